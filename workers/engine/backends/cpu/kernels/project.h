/* Rows of activations through a linear layer, in bfloat16, int8 or int4, shared by all threads. */

#pragma once
#include <omp.h>
#include <stdint.h>

#include "matmul/int4.h"
#include "matmul/int8_tiles.h"
#include "matmul/panel.h"
#include "model.h"

/* The calling thread's share of `total` equal pieces of work. */
static Share share_of(int64_t total) {
    const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
    return (Share){total * thread / threads, total * (thread + 1) / threads};
}

/* The rows [from, from + rows) and the pieces of columns that the calling thread computes of a product. */
typedef struct {
    int from, rows;
    Share pieces;
} Portion;

/* Threads divide the columns of a product. Of many rows, each thread or some threads compute a part: what a
   row becomes then stays in the cache of one core from product to product. Such parts have at least
   FEWEST_ROWS, for which the weights are read once more. */
static Portion portion_of(int rows, int64_t pieces) {
    enum { FEWEST_ROWS = 128 };
    const int thread = omp_get_thread_num(), threads = omp_get_num_threads();
    int parts = are_stored_by_tiles(rows) && rows >= FEWEST_ROWS ? rows / FEWEST_ROWS : 1;
    if (parts > threads) parts = threads;
    while (threads % parts) parts--;
    const int beside = threads / parts, part = thread / beside, own = thread % beside;
    const int blocks = (rows + ROW_BLOCK - 1) / ROW_BLOCK;
    const int from = blocks * part / parts * ROW_BLOCK, to = blocks * (part + 1) / parts * ROW_BLOCK;
    const Share share = {pieces * own / beside, pieces * (own + 1) / beside};
    return (Portion){from, (to < rows ? to : rows) - from, share};
}

/* Whether a batch of so many rows is prepared for a product with `linear`. */
static int needs_preparation(const Linear *linear, int64_t rows) {
    return WIDENS || linear->scales || are_stored_by_tiles(rows);
}

/* Convert one of `rows` rows, which `linear` multiplies next, to the form that its products require. */
static void prepare_row(const Linear *linear, const bf16 *x, int64_t row, int64_t rows,
                        const Prepared *out) {
    const int inputs = linear->inputs;
    const bf16 *from = x + row * inputs;
    if (linear->scales)
        quantize(from, inputs, linear->bits, quantized_row(out, row, inputs));
    else if (WIDENS)
        for (int i = 0; i < inputs; i += WIDTH)
            store((float *)out->values + row * inputs + i, widen(from + i));
    else if (are_stored_by_tiles(rows))
        store_by_tiles(from, inputs, row, out->values);
}

static void prepare_rows(const Linear *linear, const bf16 *x, int64_t rows, const Prepared *out) {
    const Share share = share_of(rows);
    for (int64_t row = share.begin; row < share.end; row++) prepare_row(linear, x, row, rows, out);
}

/* Rows of activations and their prepared form; whether this form is `by_tiles`, if it is in bfloat16, and
   then this thread's room for the sums of a panel. */
typedef struct {
    const bf16 *values;
    Prepared prepared;
    int by_tiles;
    Tile *sums;
} Rows;

/* `count` rows of a batch. */
static inline Rows rows_of(const Batch *b, const bf16 *x, int count) {
    return (Rows){x, b->prepared, are_stored_by_tiles(count),
                  (Tile *)(b->room + (int64_t)omp_get_thread_num() * PANEL_ROOM)};
}

/* How many pairs a product takes at once. One row in bfloat16 is bound by latency unless it takes
   several. */
static inline int pairs_at_once(const Linear *linear, int rows) {
    return rows == 1 && !linear->scales ? ROW_PAIRS : 1;
}

/* Rows [row, row + count) times `p`: one pair times up to ROW_BLOCK rows, or several pairs times one
   row. `out` has a line for each row, or for each pair. Meanwhile a part of the pair that follows is
   fetched from memory. */
static inline void multiply(Rows x, int row, int count, const Pairs *p, Tile *out, Ahead ahead) {
    const int inputs = p->left->inputs;
    if (p->left->bits == 4) {
        const uint8_t *a = nibble_block(p->left, p->a), *b = nibble_block(p->right, p->b);
        const int64_t next = p->step * nibble_block_size(inputs);
        multiply_nibbles(&x.prepared, row, count, inputs, a, b, out, ahead.first ? 0 : next);
        return;
    }
    const int64_t next = (int64_t)p->step * LANES * inputs;
    ahead.next = next;
    if (p->left->bits == 8) {
        const uint8_t *a = byte_block(p->left, p->a), *b = byte_block(p->right, p->b);
#ifdef __AMX_INT8__
        if (count >= FEWEST_TILE_ROWS) {
            multiply_byte_tiles(&x.prepared, row, count, inputs, a, b, out, ahead);
            return;
        }
#endif
        multiply_bytes(&x.prepared, row, count, inputs, a, b, out, ahead.first ? 0 : next);
        return;
    }
    const factor *values = WIDENS ? x.prepared.values : (const void *)x.values;
    values += (int64_t)row * inputs;
    const bf16 *a = column_block(p->left, p->a), *b = column_block(p->right, p->b);
    if (p->pairs == 1)
        multiply_block(values, count, inputs, a, b, out, ahead);
    else
        multiply_row(values, inputs, a, b, next, p->pairs, out);
}

/* The scales and biases of the 16 columns of a weight's block. */
typedef struct {
    floats scale[VECTORS], bias[VECTORS];
} Columns;

static inline Columns columns_of(const Linear *linear, int block) {
    Columns columns;
    for (int v = 0; v < VECTORS; v++) {
        const int at = block * LANES + v * WIDTH;
        columns.scale[v] = linear->scales ? load(linear->scales + at) : all_of(1);
        columns.bias[v] = linear->bias ? load(linear->bias + at) : all_of(0);
    }
    return columns;
}

/* The sums of vector `v`, scaled and with the bias added. */
static inline floats finish(const Columns *columns, const float *sums, int v) {
    return multiply_add(load(sums + v * WIDTH), columns->scale[v], columns->bias[v]);
}

/* How many pairs of blocks a weight has, the last one padded. */
static inline int pairs_of(const Linear *linear) {
    return (linear->outputs + 2 * LANES - 1) / (2 * LANES);
}

/* Rows [from, from + rows) of x times all pairs, whose sums are written line by line. */
static inline __attribute__((always_inline)) void multiply_all(const Pairs *all, Rows x, int from,
                                                               int rows, Write write,
                                                               const void *to) {
    const int most = pairs_at_once(all->left, rows);
    if (x.by_tiles && !all->left->scales) {
        const bf16 *values = (const bf16 *)x.prepared.values + (int64_t)from * all->left->inputs;
        for (int row = 0; row < rows; row += PANEL_ROWS)
            multiply_panel(values, row, rows - row < PANEL_ROWS ? rows - row : PANEL_ROWS,
                           all, x.sums, write, to);
        return;
    }
    Tile tile;
    for (int first = 0; first < all->pairs; first += most) {
        const Pairs some = {
            .left = all->left, .right = all->right, .step = all->step,
            .a = all->a + first * all->step, .b = all->b + first * all->step,
            .pairs = all->pairs - first < most ? all->pairs - first : most,
        };
        for (int row = 0; row < rows; row += ROW_BLOCK) {
            const int count = rows - row < ROW_BLOCK ? rows - row : ROW_BLOCK;
            multiply(x, from + row, count, &some, &tile, part_ahead(row, rows));
            for (int pair = 0; pair < some.pairs; pair++)
                for (int i = 0; i < count; i++)
                    write(to, first + pair, &tile, pair * count + i, row + i);
        }
    }
}

/* Where a product is written: its first pair of columns, and whether it adds to what is there. */
typedef struct {
    const Linear *linear;
    float *out;
    int64_t stride;
    int first, adds;
} Output;

static inline __attribute__((always_inline)) void write_projected(const void *output, int pair,
                                                                  const Tile *tile, int line,
                                                                  int64_t row) {
    const Output *o = output;
    const int block = 2 * (o->first + pair), left = o->linear->outputs - block * LANES;
    const Columns columns[2] = {columns_of(o->linear, block), columns_of(o->linear, block + 1)};
    float *to = o->out + row * o->stride + block * LANES, whole[2 * LANES];
    for (int j = 0; j < 2; j++)
        for (int v = 0; v < VECTORS; v++) {
            const int at = j * LANES + v * WIDTH;
            floats value = finish(&columns[j], tile->sums[j][line], v);
            if (o->adds) value += load(to + at);
            store((left < 2 * LANES ? whole : to) + at, value);
        }
    if (left < 2 * LANES) memcpy(to, whole, (size_t)left * sizeof(float)); /* the last pair is padded */
}

/* out[row * stride + column] = or += x [rows][inputs] times the weight, which is not padded if it
   adds. */
static void project(const Linear *linear, Rows x, int rows, float *out, int64_t stride, int adds) {
    const Portion portion = portion_of(rows, pairs_of(linear));
    const int first = (int)portion.pieces.begin;
    const Pairs pairs = {linear, linear, 2 * first, 2 * first + 1, 2, (int)portion.pieces.end - first};
    const Output output = {linear, out + portion.from * stride, stride, first, adds};
    multiply_all(&pairs, x, portion.from, portion.rows, write_projected, &output);
}
