/* Attention of a batch over the paged keys and values, in one pass: every span of tokens is packed
   once, and all queries of a piece attend to it. */

#pragma once
#include "plan.h"
#include "weights.h"

/* The room of one thread. */
typedef struct {
    State state;
    factor *queries;      /* [queries][depth] */
    bf16 *keys, *values;  /* of a span */
    int tile_rows;        /* the height of tiles of queries */
} Room;

/* Tiles may read and write rows beyond the last query. */
enum { QUERY_LINES = MAX_QUERIES + TILE_ROWS };

/* Divide the memory of one thread. Return its size. */
static int64_t divide_room(const Heads *h, char *memory, Room *room) {
    const int64_t depth = depth_of(h->dim), columns = columns_of_values(h->value_dim);
    char *at = memory;
#define TAKE(count, type) (type *)at, at += (int64_t)(count) * (int64_t)sizeof(type)
    room->queries = TAKE(QUERY_LINES * depth, factor);
    room->state.outputs = TAKE(QUERY_LINES * columns, float);
    room->state.totals = TAKE(QUERY_LINES * WIDTH, float);
    room->state.tops = TAKE(QUERY_LINES, float);
    room->state.ends = TAKE(QUERY_LINES, int64_t);
    room->keys = TAKE(SPAN * depth, bf16);
    room->values = TAKE(SPAN * columns, bf16);
#undef TAKE
    room->tile_rows = 0;
    return at - memory;
}

static int64_t room_size(const Heads *h) {
    Room room;
    return divide_room(h, NULL, &room);
}

static Context find_context(const Model *m, const Layer *layer, int64_t head) {
    const Heads *h = layer->heads;
    const int64_t slots = head * m->num_blocks * m->block_size;
    return (Context){
        .keys = layer->keys + slots * h->dim,
        .values = layer->values + slots * h->value_dim,
        .block_size = m->block_size,
        .dim = h->dim,
        .value_dim = h->value_dim,
        .window = layer->window,
        .chunk = layer->chunk,
        .scale = layer->scale,
        .softcap = layer->softcap,
    };
}

/* A piece and the heads that it is computed for: `group` heads from `head` on, which share the keys of
   the context. */
typedef struct {
    const Heads *heads;
    const Plan *plan;
    const Piece *piece;
    Context context;
    int head, group;
} Task;

static int64_t count_tasks(const Heads *h, const Plan *plan) {
    return (int64_t)plan->num_pieces * h->kv_heads * parts_of_group(h);
}

static Task find_task(const Model *m, const Layer *layer, const Plan *plan, int64_t i) {
    const Heads *h = layer->heads;
    const int group = h->heads / h->kv_heads, parts = parts_of_group(h);
    const int from = (int)(i % parts) * MAX_QUERIES, left = group - from;
    const int64_t kv_head = i / parts % h->kv_heads;
    Task task = {
        .heads = h,
        .plan = plan,
        .piece = plan->pieces + i / parts / h->kv_heads,
        .context = find_context(m, layer, kv_head),
        .head = (int)kv_head * group + from,
        .group = left < MAX_QUERIES ? left : MAX_QUERIES,
    };
    if (layer->sinks) task.context.sinks = layer->sinks + task.head;
    return task;
}

/* The tokens of a segment that any of its queries sees: from token `first` on. */
typedef struct {
    const Task *task;
    const Segment *segment;
    int64_t first;
} Stretch;

static Stretch find_stretch(const Task *task, int segment_index) {
    const Segment *segment = task->plan->segments + segment_index;
    int64_t first = INT64_MAX;
    for (int i = segment->first; i < segment->last; i++) {
        const Run *run = task->plan->runs + i;
        const int64_t seen = find_first(&task->context, run->end - run->count + 1);
        if (seen < first) first = seen;
    }
    const int64_t begin = segment->begin * SPAN;
    return (Stretch){task, segment, first > begin ? first : begin};
}

static Span find_span(const Stretch *stretch, int64_t index) {
    const Run *run = stretch->task->plan->runs + stretch->segment->first;
    const Context *context = &stretch->task->context;
    const int64_t start = index * SPAN, block = start / context->block_size;
    return (Span){
        .context = context,
        .table = run->table,
        .start = start,
        .block = block,
        .offset = (int)(start - block * context->block_size),
        .begin = within_span(stretch->first - start) / SLICE * SLICE,
        .end = within_span(run->end - start),
    };
}

/* A walk over the spans of a task, and then of the task after it. */
typedef struct {
    const Task *task, *next; /* `next` may be NULL */
    Stretch stretch;
    int segment;
    int64_t index; /* of the next span */
} Walk;

static void enter_segment(Walk *walk, const Task *task, int segment) {
    walk->task = task;
    walk->segment = segment;
    walk->stretch = find_stretch(task, segment);
    walk->index = walk->stretch.first / SPAN;
}

static Walk begin_walk(const Task *task, const Task *next) {
    Walk walk = {.next = next};
    enter_segment(&walk, task, task->piece->first_segment);
    return walk;
}

/* The next span; one without a context at the end. */
static Span take_span(Walk *walk) {
    while (walk->index >= walk->stretch.segment->end) {
        if (walk->segment + 1 < walk->task->piece->last_segment) {
            enter_segment(walk, walk->task, walk->segment + 1);
        } else if (walk->next) {
            enter_segment(walk, walk->next, walk->next->piece->first_segment);
            walk->next = NULL;
        } else {
            return (Span){0};
        }
    }
    return find_span(&walk->stretch, walk->index++);
}

/* Copy the queries of a task, and begin their sums. A sink is a score that counts in the total and has
   no value. */
static void begin_queries(const Batch *b, const Task *task, Room *room) {
    const Heads *h = task->heads;
    const int dim = h->dim, depth = depth_of(dim), columns = columns_of_values(h->value_dim);
    const Piece *piece = task->piece;
    const State *s = &room->state;
    int query = 0;
    for (int i = piece->first_run; i < piece->last_run; i++) {
        const Run *run = task->plan->runs + i;
        for (int row = run->row; row < run->row + run->count; row++)
            for (int g = 0; g < task->group; g++, query++) {
                const int64_t head = (int64_t)row * h->heads + task->head + g;
                const float *sink = task->context.sinks ? task->context.sinks + g : NULL;
                factor *to = room->queries + (int64_t)query * depth;
                copy_factors(to, b->queries + head * dim, dim);
                memset(to + dim, 0, (size_t)(depth - dim) * sizeof(factor));
                memset(s->outputs + (int64_t)query * columns, 0, (size_t)columns * sizeof(float));
                memset(s->totals + query * WIDTH, 0, WIDTH * sizeof(float));
                s->totals[query * WIDTH] = sink ? 1 : 0;
                s->tops[query] = sink ? *sink * LOG2_E : LOWEST;
                s->ends[query] = b->positions[row] + 1;
            }
    }
}

/* Multiply the outputs of a head by the logistic function of their gates. */
static inline void gate_outputs(float *outputs, const float *gates, int size) {
    for (int i = 0; i < size; i += WIDTH)
        store(outputs + i, gated_by(load(outputs + i), load(gates + i)));
}

/* Write the outputs of a task. */
static void finish_queries(const Model *m, const Batch *b, const Task *task, const Room *room) {
    const Heads *h = task->heads;
    const int dim = h->value_dim, columns = columns_of_values(dim);
    const Piece *piece = task->piece;
    int query = 0;
    for (int i = piece->first_run; i < piece->last_run; i++) {
        const Run *run = task->plan->runs + i;
        for (int row = run->row; row < run->row + run->count; row++)
            for (int g = 0; g < task->group; g++, query++) {
                const floats share =
                    all_of(1.0f / sum_of(load(room->state.totals + query * WIDTH)));
                float *outputs = room->state.outputs + (int64_t)query * columns;
                bf16 *to = b->attended + ((int64_t)row * h->heads + task->head + g) * dim;
                for (int j = 0; j < columns; j += 2 * WIDTH) {
                    floats two[2] = {load(outputs + j), load(outputs + j + WIDTH)};
                    in_order(two);
                    store(outputs + j, two[0] * share);
                    store(outputs + j + WIDTH, two[1] * share);
                }
                if (has_gates(h))
                    gate_outputs(outputs, query_in(h, b->projected + (int64_t)row * m->width,
                                                   task->head + g) + dim, dim);
                narrow_all(to, outputs, dim);
            }
    }
}

/* How many of the `left` remaining queries are computed together. */
static inline int queries_at_once(int left) {
#ifdef __AMX_BF16__
    if (left < ROWS_AT_ONCE && left > TILE_ROWS) return TILE_ROWS;
#endif
    return left < ROWS_AT_ONCE ? left : ROWS_AT_ONCE;
}

/* Make tiles of queries so high. This takes as long as some ten products, so only if it must be. */
static inline void prepare_tiles(int rows, int *tile_rows) {
    if (*tile_rows != rows) configure_tiles(rows);
    *tile_rows = rows;
}

/* Let queries [begin, end) attend to a span. If they are the last ones of their task, tiles may write
   beyond them. */
static void attend_span(const Span *span, Prefetch *ahead, int begin, int end, int are_last, Room *room) {
    const Context *c = span->context;
    const int depth = depth_of(c->dim), columns = columns_of_values(c->value_dim);
    const int is_mixed = are_few(end - begin);
    const bf16 *keys[SPAN / SLICE], *values[MAX_HEAD_DIM / LANES];
    _Alignas(64) float scores[ROWS_AT_ONCE][SPAN];
    _Alignas(64) factor weights[ROWS_AT_ONCE][SPAN];
    find_keys(span, room->keys, keys);
    for (int i = 0; i < columns / LANES; i++) values[i] = room->values + i * SPAN * LANES;
    if (!is_mixed) pack_values(span, room->values, ahead);
    for (int query = begin, rows; query < end; query += rows) {
        float *outputs = room->state.outputs + (int64_t)query * columns;
        rows = queries_at_once(end - query);
        const Ends ends = find_ends(room->state.ends + query, rows);
        if (!may_see(span, ends)) continue;
        const int64_t seen = ends.greatest - span->start;
        const int size = size_of(seen < span->end ? (int)seen : span->end);
        const Product product = {
            .x = room->queries + (int64_t)query * depth, .x_stride = depth, .rows = rows,
            .depth = depth, .blocks = size / LANES, .packed = keys,
            .sums = scores[0], .stride = SPAN, .ahead = ahead,
        };
        if (is_mixed) {
            score_few(&product);
            weigh_rows(span, &room->state, query, rows, size, ends, 0, scores, weights);
            mix_values(span, weights, rows, size, outputs, ahead);
            continue;
        }
        const int is_short = rows < TILE_ROWS && (end - begin < TILE_ROWS || !are_last);
        prepare_tiles(is_short ? rows : TILE_ROWS, &room->tile_rows);
        multiply_span(&product);
        weigh_rows(span, &room->state, query, rows, size, ends, 1, scores, weights);
        multiply_span(&(Product){
            .x = weights[0], .x_stride = SPAN, .rows = rows, .depth = size,
            .blocks = columns / LANES, .adds = 1, .packed = values,
            .sums = outputs, .stride = columns, .ahead = ahead,
        });
    }
    fetch_ahead(ahead, ALL_LINES);
}

/* Compute a task. `next` is the task that this thread computes afterwards, or NULL. */
static void run_task(const Model *m, const Batch *b, const Task *task, const Task *next, Room *room) {
    const Piece *piece = task->piece;
    const Run *runs = task->plan->runs;
    Walk walk = begin_walk(task, next);
    Span span = take_span(&walk), second = take_span(&walk);
    begin_queries(b, task, room);
    for (int i = piece->first_segment; i < piece->last_segment; i++) {
        const Segment *segment = task->plan->segments + i;
        const Run *last = runs + segment->last - 1;
        const int begin = runs[segment->first].offset * task->group;
        const int end = (last->offset + last->count) * task->group;
        for (int64_t j = find_stretch(task, i).first / SPAN; j < segment->end; j++) {
            const Span third = take_span(&walk);
            Prefetch ahead = begin_ahead(&span, are_few(end - begin), &second, &third);
            attend_span(&span, &ahead, begin, end, segment->last == piece->last_run, room);
            span = second;
            second = third;
        }
    }
    finish_queries(m, b, task, room);
}

/* Compute attention of all rows, whose pieces the threads take one after the other. */
static void attend_rows(const Model *m, const Layer *layer, const Batch *b, Plan *plan) {
    const int64_t count = count_tasks(layer->heads, plan);
    Room room;
    divide_room(layer->heads, b->room + omp_get_thread_num() * room_size(layer->heads), &room);
    int64_t i = atomic_fetch_add(&plan->taken, 1);
    if (i >= count) return;
    Task task = find_task(m, layer, plan, i);
    const uint32_t control = flush_denormals();
    for (;;) {
        i = atomic_fetch_add(&plan->taken, 1);
        if (i >= count) break;
        const Task next = find_task(m, layer, plan, i);
        run_task(m, b, &task, &next, &room);
        task = next;
    }
    run_task(m, b, &task, NULL, &room);
    restore_denormals(control);
}
