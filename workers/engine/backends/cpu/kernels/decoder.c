/* The forward of a decoder over one flat batch, for the engine's paged cache: the norms, heads, MLPs
   and experts that model.h describes, residuals in float32. All threads walk through the same phases
   and meet at a barrier after each. */

#include <omp.h>
#include <stdint.h>
#include <string.h>

#include "attention/attention.h"
#include "branches.h"
#include "heads.h"
#include "layer_inputs.h"
#include "logits.h"
#include "mixture.h"
#include "recurrent/delta.h"
#include "recurrent/short_convolution.h"
#include "recurrent/state_space.h"
#include "removal.h"
#include "rest.h"

/* Multiply this thread's rows of the residual. */
static void scale_rows(const Model *m, const Batch *b, float factor) {
    const Share share = share_of(b->rows);
    for (int64_t i = share.begin * m->hidden; i < share.end * m->hidden; i += WIDTH)
        store(b->residual + i, load(b->residual + i) * all_of(factor));
}

static void embed(const Model *m, const Batch *b) {
    const Share share = share_of(b->rows);
    const floats scale = all_of(m->embedding_scale);
    for (int64_t row = share.begin; row < share.end; row++) {
        const bf16 *token = m->embedding + b->ids[row] * m->hidden;
        const bf16 *place = m->position_embedding;
        if (place) place += b->positions[row] * m->hidden;
        for (int i = 0; i < m->hidden; i += WIDTH) {
            floats value = widen(token + i) * scale;
            if (place) value += widen(place + i);
            store(b->residual + row * m->hidden + i, value);
        }
    }
}

/* Normalize the latents that begin at column `from` of the projected rows, and write their products
   with `up` at column `to`. */
static void expand_latents(const Model *m, const Batch *b, const Norm *norm, const Linear *up,
                           int from, int to, Barrier *barrier) {
    meet(barrier);
    const Share share = share_of(b->rows);
    for (int64_t row = share.begin; row < share.end; row++) {
        normalize(b->projected + row * m->width + from, norm, up->inputs,
                  b->normed + row * up->inputs);
        prepare_row(up, b->normed, row, b->rows, &b->prepared);
    }
    meet(barrier);
    project(up, rows_of(b, b->normed, b->rows), b->rows, b->projected + to, m->width, 0);
}

/* Compute queries, and the keys and values that are made from a latent. */
static void project_latents(const Model *m, const Layer *layer, const Batch *b, Barrier *barrier) {
    const Heads *h = layer->heads;
    const Latents *l = layer->latents;
    const Rows normed = rows_of(b, b->normed, b->rows);
    const int has_latent = l->query_down.packed != NULL; /* latents of queries */
    project(has_latent ? &l->query_down : &layer->query, normed, b->rows,
            b->projected + (has_latent ? h->query_latent_begin : 0), m->width, 0);
    project(&l->down, normed, b->rows, b->projected + h->latent_begin, m->width, 0);
    if (has_latent)
        expand_latents(m, b, &l->query_norm, &layer->query, h->query_latent_begin, 0, barrier);
    expand_latents(m, b, &l->norm, &l->up, h->latent_begin, h->key_begin, barrier);
}

/* Compute queries, keys and values of all rows, and attention of those that go on. */
static void run_attention(const Model *m, const Layer *layer, Batch *b, const Course *course,
                          Barrier *barrier) {
    const Heads *h = layer->heads;
    Plan *plan = course->plans + (h - m->heads);
    const Rows normed = rows_of(b, b->normed, b->rows);
    normalize_rows(m, b, &layer->attention_norm,
                   layer->latents ? &layer->latents->down : &layer->query);
    meet(barrier);
    if (layer->latents) {
        project_latents(m, layer, b, barrier);
    } else {
        project(&layer->query, normed, b->rows, b->projected, m->width, 0);
        if (layer->key.packed)
            project(&layer->key, normed, b->rows, b->projected + h->key_begin, m->width, 0);
        if (layer->value.packed)
            project(&layer->value, normed, b->rows, b->projected + h->value_begin, m->width, 0);
    }
    meet(barrier);
    if (layer->latents)
        place_latent_rows(m, layer, b);
    else
        place_rows(m, layer, b);
    if (layer == course->rest.layer && !keeps_states(layer)) {
        meet(barrier);
        leave_rows(m, layer, b, course);
    }
    if (omp_get_thread_num() == 0) atomic_store(&plan->taken, 0);
    meet(barrier);
    if (!b->rows) return;
    attend_rows(m, layer, b, plan);
    configure_tiles(b->rows);
}

/* Compute the gated delta network of all rows. */
static void run_delta(const Model *m, const Layer *layer, const Batch *b, Barrier *barrier) {
    const Delta *d = layer->delta;
    const Rows normed = rows_of(b, b->normed, b->rows);
    normalize_rows(m, b, &layer->attention_norm, &d->input);
    meet(barrier);
    project(&d->input, normed, b->rows, b->projected, m->width, 0);
    if (d->gate.packed)
        project(&d->gate, normed, b->rows, b->projected + d->gate_begin, m->width, 0);
    project_rates(m, b, d->rates, 2 * d->value_heads, d->rates_begin);
    meet(barrier);
    advance_pieces(m, d, b);
}

/* Compute the short convolution of all rows. */
static void run_short_convolution(const Model *m, const Layer *layer, const Batch *b,
                                  Barrier *barrier) {
    const ShortConvolution *s = layer->short_convolution;
    normalize_rows(m, b, &layer->attention_norm, &s->input);
    meet(barrier);
    project(&s->input, rows_of(b, b->normed, b->rows), b->rows, b->projected, m->width, 0);
    meet(barrier);
    convolve_pieces(m, s, b);
}

/* Compute the state-space layer of all rows. */
static void run_state_space(const Model *m, const Layer *layer, const Batch *b, Barrier *barrier) {
    const StateSpace *s = layer->state_space;
    normalize_rows(m, b, &layer->attention_norm, &s->input);
    meet(barrier);
    project(&s->input, rows_of(b, b->normed, b->rows), b->rows, b->projected, m->width, 0);
    project_rates(m, b, s->rates, s->heads, space_rates_begin(s));
    meet(barrier);
    convolve_space(m, s, b);
    meet(barrier);
    advance_space(m, s, b);
    meet(barrier);
    finish_space(m, s, b);
}

/* Add a state-space layer and attention, which read the same residual, to it. */
static void add_state_space_and_attention(const Model *m, const Layer *layer, Batch *b,
                                          const Course *course, Barrier *barrier) {
    const StateSpace *s = layer->state_space;
    float *attention = b->projected; /* [rows][hidden], once the heads have been placed */
    run_state_space(m, layer, b, barrier);
    project(&s->output, await_rows(&s->output, b->attended, b, barrier), b->rows, b->branch, m->hidden, 0);
    meet(barrier);
    run_attention(m, layer, b, course, barrier);
    project(&layer->output, await_rows(&layer->output, b->attended, b, barrier), b->rows, attention, m->hidden, 0);
    meet(barrier);
    const Share share = share_of((int64_t)b->rows * m->hidden / WIDTH);
    for (int64_t i = share.begin * WIDTH; i < share.end * WIDTH; i += WIDTH) {
        const floats both = multiply_add(load(attention + i), all_of(s->attention_factor),
                                         load(b->branch + i) * all_of(s->output_factor));
        store(b->residual + i, multiply_add(both, all_of(m->residual_scale), load(b->residual + i)));
    }
}

/* Compute what a layer has in place of attention, or attention. */
static void run_mixer(const Model *m, const Layer *layer, Batch *b, const Course *course,
                      Barrier *barrier) {
    if (layer->delta)
        run_delta(m, layer, b, barrier);
    else if (layer->short_convolution)
        run_short_convolution(m, layer, b, barrier);
    else if (layer->state_space)
        run_state_space(m, layer, b, barrier);
    else
        run_attention(m, layer, b, course, barrier);
}

/* Add what the mixer made to the residual. */
static void add_attended(const Model *m, const Layer *layer, const Batch *b, Barrier *barrier) {
    const Rows rows = await_rows(&layer->output, b->attended, b, barrier);
    add_branch(m, &layer->output, &layer->attention_out_norm, rows, b, barrier);
}

/* Add what the MLP made to the residual. */
static void add_activated(const Model *m, const Layer *layer, const Batch *b, Barrier *barrier) {
    add_branch(m, &layer->mlp.down, &layer->mlp_out_norm, await_activated(&layer->mlp, b, barrier), b,
               barrier);
}

/* Add the first branch of a layer to the residual, if it has one. */
static void add_mixer(const Model *m, const Layer *layer, Batch *b, const Course *course,
                      Barrier *barrier) {
    if (!layer->output.packed) return;
    if (layer->state_space && layer->heads) {
        add_state_space_and_attention(m, layer, b, course, barrier);
    } else {
        run_mixer(m, layer, b, course, barrier);
        if (!b->rows) return;
        add_attended(m, layer, b, barrier);
    }
    meet(barrier);
}

/* Add the MLP or the experts of a layer to the residual, if it has them. */
static void add_mlp(const Model *m, const Layer *layer, const Batch *b, Barrier *barrier) {
    if (layer->experts) {
        add_mixture(m, layer, b, barrier);
    } else if (layer->mlp.up.packed) {
        run_mlp(m, layer, b, barrier);
        add_activated(m, layer, b, barrier);
    }
    meet(barrier);
}

/* Compute a layer, until no row is left. */
static void run_layer(const Model *m, const Layer *layer, Batch *b, const Course *course,
                      Barrier *barrier) {
    if (m->parallel) {
        run_mixer(m, layer, b, course, barrier);
        if (!b->rows) return;
        run_mlp(m, layer, b, barrier);
        add_attended(m, layer, b, barrier);
        add_activated(m, layer, b, barrier);
        meet(barrier);
    } else {
        add_mixer(m, layer, b, course, barrier);
        if (!b->rows) return;
        add_mlp(m, layer, b, barrier);
    }
    if (layer->input) {
        add_layer_input(m, layer, b, barrier);
        meet(barrier);
    }
    if (layer->factor != 1) {
        scale_rows(m, b, layer->factor);
        meet(barrier);
    }
    if (layer == course->rest.layer && keeps_states(layer)) {
        leave_rows(m, layer, b, course);
        meet(barrier);
        if (b->rows) configure_tiles(b->rows);
    }
}

static inline void finish_some(const Model *m, float *logits) {
    const floats scaled = load(logits) * all_of(m->logits_scale);
    store(logits, m->logits_softcap > 0 ? capped(scaled, m->logits_softcap) : scaled);
}

/* The columns of the logits that this thread has computed, scaled and capped. */
static void finish_logits(const Model *m, const Batch *b) {
    const Portion portion = portion_of(b->num_logits, pairs_of(&m->head));
    const int64_t wanted = portion.pieces.end * 2 * LANES, outputs = m->head.outputs;
    const int64_t end = wanted < outputs ? wanted : outputs;
    if (m->logits_scale == 1 && m->logits_softcap == 0) return;
    for (int64_t row = portion.from; row < portion.from + portion.rows; row++) {
        float *logits = b->logits + row * outputs, last[WIDTH] = {0};
        int64_t i = portion.pieces.begin * 2 * LANES;
        for (; i + WIDTH <= end; i += WIDTH) finish_some(m, logits + i);
        if (i >= end) continue;
        memcpy(last, logits + i, (size_t)(end - i) * sizeof(float));
        finish_some(m, last);
        memcpy(logits + i, last, (size_t)(end - i) * sizeof(float));
    }
}

/* Multiply the sampled rows, normalized and packed together, by the output head. */
static void run_head(const Model *m, const Batch *b, Barrier *barrier) {
    if (!b->num_logits) return; /* the chunk of a prompt: no tile may have 0 rows */
    const Share share = share_of(b->num_logits);
    for (int64_t i = share.begin; i < share.end; i++) {
        normalize_or_copy(b->residual + b->logits_rows[i] * m->hidden, &m->norm, m->hidden,
                          b->normed + i * m->hidden);
        prepare_row(&m->head, b->normed, i, b->num_logits, &b->prepared);
    }
    meet(barrier);
    configure_tiles(b->num_logits);
    project(&m->head, rows_of(b, b->normed, b->num_logits), b->num_logits, b->logits, m->head.outputs,
            0);
    finish_logits(m, b);
}

void quire_forward(const Model *m, const Batch *b) {
    Barrier barrier = {.size = 1, .spins = SPINS};
    Run runs[m->kinds][b->rows];
    Segment segments[m->kinds][2 * b->rows];
    Piece pieces[m->kinds][b->rows];
    Plan plans[m->kinds];
    int64_t kept[3][b->rows], logits_rows[b->num_logits];
    Course course = {plans, {NULL, 0, kept[0], kept[1], kept[2], logits_rows}};
    find_rest(m, b, &course.rest);
    for (int i = 0; i < m->kinds; i++) {
        plans[i] = (Plan){.runs = runs[i], .segments = segments[i], .pieces = pieces[i]};
        make_plan(m, m->heads + i, b, plans + i);
    }
#pragma omp parallel num_threads(b->num_threads)
    {
#pragma omp single
        barrier.size = omp_get_num_threads();
        Batch own = *b;
        configure_tiles(own.rows);
        embed(m, &own);
        if (m->inputs) embed_layer_inputs(m, &own, &barrier);
        for (int i = 0; i < m->num_layers && own.rows; i++)
            run_layer(m, m->layers + i, &own, &course, &barrier);
        run_head(m, &own, &barrier);
        release_tiles();
    }
}

/* out [rows][outputs] = x [rows][inputs] times the weight; rows of x beyond the last may be read
   up to a multiple of ROW_BLOCK. `prepared` is room for them, if the weight is in int8 or
   quire_prepares. */
void quire_linear(const Linear *linear, const bf16 *x, int32_t rows, const Prepared *prepared,
                  float *out, int32_t threads) {
#pragma omp parallel num_threads(threads)
    {
        _Alignas(64) char room[PANEL_ROOM];
        prepare_rows(linear, x, rows, prepared);
#pragma omp barrier
        configure_tiles(rows);
        project(linear, (Rows){x, prepared ? *prepared : (Prepared){0}, are_stored_by_tiles(rows), (Tile *)room}, rows, out, linear->outputs, 0);
        release_tiles();
    }
}

static int64_t larger_size(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t layer_room_size(const Layer *layer) {
    int64_t size = 0;
    if (layer->delta) size = delta_room_size(layer->delta);
    if (layer->short_convolution) size = short_room_size(layer->short_convolution);
    if (layer->state_space) size = space_room_size(layer->state_space);
    return layer->heads ? larger_size(size, room_size(layer->heads)) : size;
}

/* The bytes of `room` for each thread. */
int64_t quire_thread_room(const Model *m) {
    int64_t size = PANEL_ROOM;
    for (int i = 0; i < m->num_layers; i++) size = larger_size(size, layer_room_size(m->layers + i));
    return size;
}

/* Whether rows in bfloat16 are prepared too. */
int quire_prepares(void) { return WIDENS || are_stored_by_tiles(INT32_MAX); }

/* What is added to weights in 8 bits before they are packed. */
int quire_stored_offset(void) { return STORED_OFFSET; }

/* Mask the rows that have a line in the mask, and find the highest logit of every row. */
void quire_choose(const Choices *choices, int32_t rows, int32_t threads) {
#pragma omp parallel for num_threads(threads) if (rows > 1)
    for (int32_t row = 0; row < rows; row++) choose_row(choices, row);
}

/* The effect of a mask on some rows, which stay as they are. */
void quire_find_removed(const Removals *removals, int32_t rows, int32_t threads) {
#pragma omp parallel for num_threads(threads) if (rows > 1)
    for (int32_t row = 0; row < rows; row++) find_removed(removals, row);
}

/* Request AMX state from the system. Return 0 if this process may use the compiled instructions. */
int quire_prepare(void) {
#ifdef __AMX_BF16__
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return (int)syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
#else
    return 0;
#endif
}
