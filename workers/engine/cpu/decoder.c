/* The forward of a decoder over one flat batch, for the engine's paged cache: RMS norm, attention
   with rotary positions, gated SiLU, residuals in float32. All threads walk through the same
   phases and meet at a barrier after each. */

#include <math.h>
#include <omp.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "attention.h"
#include "logits.h"
#include "project.h"

typedef struct {
    Linear query, key, value, output, gate, up, down;
    const float *attention_norm, *mlp_norm; /* [hidden] */
    const float *query_norm, *key_norm;     /* [head_dim], or NULL */
    bf16 *keys, *values;                    /* [kv_heads][blocks][block_size][head_dim] */
    int64_t window;                         /* tokens that a token sees, itself included */
    float scale;
} Layer;

typedef struct {
    int32_t hidden, heads, kv_heads, head_dim, intermediate, num_layers, block_size;
    float epsilon;
    int64_t num_blocks;
    const bf16 *embedding; /* [vocabulary][hidden] */
    const float *cosine, *sine; /* [positions][head_dim] */
    const float *norm;
    Linear head;
    const Layer *layers;
} Model;

typedef struct {
    int32_t rows, num_logits, num_threads;
    const int64_t *ids, *positions, *slots; /* [rows]; a slot is block * block_size + offset */
    const int64_t *owners;                  /* [rows]: a row's line in `tables` */
    const int64_t *tables;                  /* [sequences][table_width] */
    int64_t table_width;
    const int64_t *logits_rows; /* [num_logits] */
    float *logits;              /* [num_logits][vocabulary] */
    /* Scratch, the number of rows rounded up to ROW_BLOCK. */
    float *residual;  /* [rows][hidden] */
    bf16 *normed;     /* [rows][hidden] */
    float *projected; /* [rows][(heads + 2 * kv_heads) * head_dim] */
    bf16 *queries;    /* [rows][heads * head_dim]: becomes what attention puts out */
    bf16 *activated;  /* [rows][intermediate] */
    Quantized quantized; /* what is multiplied next, for weights in int8 */
    float *scores;    /* [threads][MAX_QUERIES][max_tokens] */
    bf16 *weights;    /* [threads][MAX_QUERIES][max_tokens] */
    int64_t max_tokens;
} Batch;

typedef struct {
    atomic_int arrived, round;
    int size;
} Barrier;

/* Wait for the others. A neighbour may keep one of them from its core for some milliseconds: who gave
   its own core away meanwhile would get it back just as late, at each of a step's 270 barriers. */
static void meet(Barrier *barrier) {
    const int round = atomic_load_explicit(&barrier->round, memory_order_acquire);
    if (atomic_fetch_add(&barrier->arrived, 1) == barrier->size - 1) {
        atomic_store(&barrier->arrived, 0);
        atomic_fetch_add(&barrier->round, 1);
        return;
    }
    for (int spins = 0; atomic_load_explicit(&barrier->round, memory_order_acquire) == round; spins++)
        if (spins < 100000)
            _mm_pause();
        else
            sched_yield(); /* the one that we wait for has no core */
}

/* RMS norm (Zhang and Sennrich, 2019): x / rms(x) * weight. */
static void normalize(const float *x, const float *weight, int size, float epsilon, bf16 *out) {
    __m512 squares = _mm512_setzero_ps();
    for (int i = 0; i < size; i += LANES) {
        const __m512 value = _mm512_loadu_ps(x + i);
        squares = _mm512_fmadd_ps(value, value, squares);
    }
    const float scale = 1.0f / sqrtf(_mm512_reduce_add_ps(squares) / size + epsilon);
    for (int i = 0; i < size; i += LANES)
        narrow(out + i, _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(scale)),
                                      _mm512_loadu_ps(weight + i)));
}

/* For `linear`, and those that multiply the same. */
static void normalize_rows(const Model *m, const Batch *b, const float *weight,
                           const Linear *linear) {
    const Share share = share_of(b->rows);
    for (int64_t row = share.begin; row < share.end; row++) {
        normalize(b->residual + row * m->hidden, weight, m->hidden, m->epsilon,
                  b->normed + row * m->hidden);
        quantize_row(linear, b->normed, row, &b->quantized);
    }
}

static void embed(const Model *m, const Batch *b) {
    const Share share = share_of(b->rows);
    for (int64_t row = share.begin; row < share.end; row++)
        for (int i = 0; i < m->hidden; i += LANES)
            _mm512_storeu_ps(b->residual + row * m->hidden + i,
                             widen(m->embedding + b->ids[row] * m->hidden + i));
}

/* x / (1 + e^-x) */
static inline __m512 silu(__m512 x) {
    const __m512 least = _mm512_set1_ps(-80.0f), one = _mm512_set1_ps(1.0f);
    const __m512 negative = _mm512_sub_ps(_mm512_setzero_ps(), _mm512_max_ps(x, least));
    return _mm512_div_ps(x, _mm512_add_ps(one, exponential(negative)));
}

/* activated = silu(gate x) * (up x) */
static void gate(const Model *m, const Layer *layer, const Batch *b) {
    const Share share = share_of(m->intermediate / LANES);
    const int most = pairs_at_once(b->rows);
    Tile tile;
    for (int first = (int)share.begin; first < share.end; first += most) {
        const int pairs = share.end - first < most ? (int)share.end - first : most;
        const Pairs blocks = {&layer->gate, &layer->up, first, first, 1, pairs};
        for (int row = 0; row < b->rows; row += ROW_BLOCK) {
            const int count = b->rows - row < ROW_BLOCK ? b->rows - row : ROW_BLOCK;
            multiply((Rows){b->normed, &b->quantized}, row, count, &blocks, &tile, row == 0);
            for (int line = 0, block = first; line < count * pairs; line += count, block++) {
                const Columns left = columns_of(&layer->gate, block);
                const Columns right = columns_of(&layer->up, block);
                bf16 *to = b->activated + (int64_t)row * m->intermediate + block * LANES;
                for (int i = line; i < line + count; i++, to += m->intermediate)
                    narrow(to, _mm512_mul_ps(silu(finish(left, tile.first[i])),
                                             finish(right, tile.second[i])));
            }
        }
    }
}

/* Rotary positions (Su et al., 2021): the halves of a head turn by the angles of its position. */
static void rotate(const float *x, const float *cosine, const float *sine, int dim, bf16 *out) {
    const int half = dim / 2;
    for (int i = 0; i < half; i += LANES) {
        const __m512 a = _mm512_loadu_ps(x + i), c = _mm512_loadu_ps(x + half + i);
        narrow(out + i, _mm512_fnmadd_ps(c, _mm512_loadu_ps(sine + i),
                                         _mm512_mul_ps(a, _mm512_loadu_ps(cosine + i))));
        narrow(out + half + i, _mm512_fmadd_ps(a, _mm512_loadu_ps(sine + half + i),
                                               _mm512_mul_ps(c, _mm512_loadu_ps(cosine + half + i))));
    }
}

/* One head of a row, normalized if the model does that, and turned. */
static void place_head(const Model *m, float *x, const float *norm, int64_t position, bf16 *out) {
    if (norm) {
        normalize(x, norm, m->head_dim, m->epsilon, out);
        for (int i = 0; i < m->head_dim; i += LANES) _mm512_storeu_ps(x + i, widen(out + i));
    }
    rotate(x, m->cosine + position * m->head_dim, m->sine + position * m->head_dim, m->head_dim, out);
}

/* Queries are turned; keys, turned too, and values go to the cache. */
static void place_rows(const Model *m, const Layer *layer, const Batch *b) {
    const Share share = share_of(b->rows);
    const int width = (m->heads + 2 * m->kv_heads) * m->head_dim;
    for (int64_t row = share.begin; row < share.end; row++) {
        float *x = b->projected + row * width;
        bf16 *queries = b->queries + row * m->heads * m->head_dim;
        for (int h = 0; h < m->heads; h++, x += m->head_dim)
            place_head(m, x, layer->query_norm, b->positions[row], queries + h * m->head_dim);
        for (int h = 0; h < m->kv_heads; h++, x += m->head_dim) {
            const int64_t at = (h * m->num_blocks * m->block_size + b->slots[row]) * m->head_dim;
            place_head(m, x, layer->key_norm, b->positions[row], layer->keys + at);
            for (int i = 0; i < m->head_dim; i += LANES)
                narrow(layer->values + at + i,
                       _mm512_loadu_ps(x + m->kv_heads * m->head_dim + i));
        }
    }
}

/* Rows that attend together: [starts[i], starts[i + 1]) are tokens of one sequence that follow
   each other, as many as fill a tile with the queries of one key head. */
typedef struct {
    int32_t count;
    int32_t *starts;
} Tiles;

static void find_tiles(const Model *m, const Batch *b, Tiles *tiles) {
    const int most = MAX_QUERIES / (m->heads / m->kv_heads);
    tiles->count = 0;
    for (int row = 0, size = 0; row <= b->rows; row++, size++) {
        const int goes_on = row > 0 && row < b->rows && size < most &&
                            b->owners[row] == b->owners[row - 1] &&
                            b->positions[row] == b->positions[row - 1] + 1;
        if (goes_on) continue;
        tiles->starts[tiles->count++] = row;
        size = 0;
    }
    tiles->count--;
}

/* The `i`-th piece of attention: a tile's queries of one key head. */
static Piece find_piece(const Model *m, const Layer *layer, const Batch *b, const Tiles *tiles,
                        int64_t i) {
    const int group = m->heads / m->kv_heads;
    const int64_t tile = i / m->kv_heads, head = i % m->kv_heads, row = tiles->starts[tile];
    const int64_t pages = head * m->num_blocks * m->block_size * m->head_dim;
    Piece piece = {
        .context = {
            .keys = layer->keys + pages,
            .values = layer->values + pages,
            .table = b->tables + b->owners[row] * b->table_width,
            .block_size = m->block_size,
            .dim = m->head_dim,
            .window = layer->window,
            .scale = layer->scale,
        },
        .queries = {
            .queries = b->queries + (row * m->heads + head * group) * m->head_dim,
            .stride = (int64_t)m->heads * m->head_dim,
            .rows = tiles->starts[tile + 1] - row,
            .group = group,
            .position = b->positions[row],
        },
    };
    limit(&piece);
    return piece;
}

static void attend_rows(const Model *m, const Layer *layer, const Batch *b, const Tiles *tiles) {
    const Share share = share_of((int64_t)tiles->count * m->kv_heads);
    const int64_t room_size = omp_get_thread_num() * MAX_QUERIES * b->max_tokens;
    Room room = {b->scores + room_size, b->weights + room_size, b->max_tokens};
    if (share.begin == share.end) return;
    Piece piece = find_piece(m, layer, b, tiles, share.begin);
    for (int64_t i = share.begin; i < share.end; i++) {
        const int has_next = i + 1 < share.end;
        const Piece next = has_next ? find_piece(m, layer, b, tiles, i + 1) : piece;
        attend(&piece, has_next ? &next : NULL, &room);
        piece = next;
    }
}

/* Quantize, if the weight is, and wait for all rows of it. */
static void await_rows(const Linear *linear, const bf16 *x, const Batch *b, Barrier *barrier) {
    meet(barrier);
    if (!linear->scales) return;
    quantize_rows(linear, x, b->rows, &b->quantized);
    meet(barrier);
}

static void run_layer(const Model *m, const Layer *layer, const Batch *b, const Tiles *tiles,
                      Barrier *barrier) {
    const int64_t kv = m->kv_heads * m->head_dim, width = m->heads * m->head_dim + 2 * kv;
    const Rows normed = {b->normed, &b->quantized};
    normalize_rows(m, b, layer->attention_norm, &layer->query);
    meet(barrier);
    project(&layer->query, normed, b->rows, b->projected, width, 0);
    project(&layer->key, normed, b->rows, b->projected + width - 2 * kv, width, 0);
    project(&layer->value, normed, b->rows, b->projected + width - kv, width, 0);
    meet(barrier);
    place_rows(m, layer, b);
    meet(barrier);
    configure_tiles(16);
    attend_rows(m, layer, b, tiles);
    configure_tiles(b->rows);
    await_rows(&layer->output, b->queries, b, barrier);
    project(&layer->output, (Rows){b->queries, &b->quantized}, b->rows, b->residual, m->hidden, 1);
    meet(barrier);
    normalize_rows(m, b, layer->mlp_norm, &layer->gate);
    meet(barrier);
    gate(m, layer, b);
    await_rows(&layer->down, b->activated, b, barrier);
    project(&layer->down, (Rows){b->activated, &b->quantized}, b->rows, b->residual, m->hidden, 1);
    meet(barrier);
}

/* The rows that are sampled, normalized and packed together, times the output head. */
static void run_head(const Model *m, const Batch *b, Barrier *barrier) {
    if (!b->num_logits) return; /* the chunk of a prompt: no tile may have 0 rows */
    const Share share = share_of(b->num_logits);
    for (int64_t i = share.begin; i < share.end; i++) {
        normalize(b->residual + b->logits_rows[i] * m->hidden, m->norm, m->hidden, m->epsilon,
                  b->normed + i * m->hidden);
        quantize_row(&m->head, b->normed, i, &b->quantized);
    }
    meet(barrier);
    configure_tiles(b->num_logits);
    project(&m->head, (Rows){b->normed, &b->quantized}, b->num_logits, b->logits, m->head.outputs,
            0);
}

void quire_forward(const Model *m, const Batch *b) {
    Barrier barrier = {.size = 1};
    int32_t starts[b->rows + 1];
    Tiles tiles = {.starts = starts};
    find_tiles(m, b, &tiles);
#pragma omp parallel num_threads(b->num_threads)
    {
#pragma omp single
        barrier.size = omp_get_num_threads();
        configure_tiles(b->rows);
        embed(m, b);
        for (int i = 0; i < m->num_layers; i++) run_layer(m, m->layers + i, b, &tiles, &barrier);
        run_head(m, b, &barrier);
        release_tiles();
    }
}

/* out [rows][outputs] = x [rows][inputs] times the weight; rows of x beyond the last may be read
   up to a multiple of ROW_BLOCK. `quantized` is room for them, if the weight is in int8. */
void quire_linear(const Linear *linear, const bf16 *x, int32_t rows, const Quantized *quantized,
                  float *out, int32_t threads) {
#pragma omp parallel num_threads(threads)
    {
        quantize_rows(linear, x, rows, quantized);
#pragma omp barrier
        configure_tiles(rows);
        project(linear, (Rows){x, quantized}, rows, out, linear->outputs, 0);
        release_tiles();
    }
}

/* Mask the rows that have a line, and find the best of every row. */
void quire_choose(const Choices *choices, int32_t rows, int32_t threads) {
#pragma omp parallel for num_threads(threads) if (rows > 1)
    for (int32_t row = 0; row < rows; row++) choose_row(choices, row);
}

/* Ask the system for AMX state; 0 if this process may use what it was compiled for. */
int quire_prepare(void) {
#ifdef __AMX_BF16__
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return (int)syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
#else
    return 0;
#endif
}
