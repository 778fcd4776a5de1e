/* Rows of activations through a linear layer, in bfloat16, int8 or int4, shared by all threads. */

#pragma once
#include <omp.h>
#include <stdint.h>

#include "matmul/int4.h"
#include "matmul/int8_tiles.h"
#include "model.h"

/* The calling thread's share of `total` equal pieces of work. */
static Share share_of(int64_t total) {
    const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
    return (Share){total * thread / threads, total * (thread + 1) / threads};
}

static int needs_preparation(const Linear *linear) { return WIDENS || linear->scales; }

/* Convert a row that `linear` multiplies next to the form that its products require. */
static void prepare_row(const Linear *linear, const bf16 *x, int64_t row, const Prepared *out) {
    const int inputs = linear->inputs;
    x += row * inputs;
    if (linear->scales)
        quantize(x, inputs, linear->bits, quantized_row(out, row, inputs));
    else if (WIDENS)
        for (int i = 0; i < inputs; i += WIDTH)
            store((float *)out->values + row * inputs + i, widen(x + i));
}

static void prepare_rows(const Linear *linear, const bf16 *x, int64_t rows, const Prepared *out) {
    const Share share = share_of(rows);
    for (int64_t row = share.begin; row < share.end; row++) prepare_row(linear, x, row, out);
}

/* Rows of activations, and their prepared form. */
typedef struct {
    const bf16 *values;
    const Prepared *prepared;
} Rows;

/* `pairs` pairs of column blocks that are multiplied together: the first pair is block `a` of `left`
   and block `b` of `right`; each further pair lies `step` blocks after the previous one. Both
   weights have the same form. */
typedef struct {
    const Linear *left, *right;
    int a, b, step, pairs;
} Pairs;

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
        multiply_nibbles(x.prepared, row, count, inputs, a, b, out, ahead.first ? 0 : next);
        return;
    }
    const int64_t next = (int64_t)p->step * LANES * inputs;
    ahead.next = next;
    if (p->left->bits == 8) {
        const uint8_t *a = byte_block(p->left, p->a), *b = byte_block(p->right, p->b);
#ifdef __AMX_INT8__
        if (count >= FEWEST_TILE_ROWS) {
            multiply_byte_tiles(x.prepared, row, count, inputs, a, b, out, ahead);
            return;
        }
#endif
        multiply_bytes(x.prepared, row, count, inputs, a, b, out, ahead.first ? 0 : next);
        return;
    }
    const factor *values = WIDENS ? x.prepared->values : (const void *)x.values;
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

/* Write the `width` columns of a padded pair for `count` rows. */
static __attribute__((noinline)) void write_last(const Columns columns[2], const Tile *tile, int line,
                                                 int count, int width, float *to, int64_t stride) {
    float whole[2 * LANES];
    for (int i = line; i < line + count; i++, to += stride) {
        for (int j = 0; j < 2; j++)
            for (int v = 0; v < VECTORS; v++)
                store(whole + j * LANES + v * WIDTH, finish(&columns[j], tile->sums[j][i], v));
        memcpy(to, whole, (size_t)width * sizeof(float));
    }
}

/* out[row * stride + column] = or += x [rows][inputs] times the weight, which is not padded if it
   adds. */
static void project(const Linear *linear, Rows x, int rows, float *out, int64_t stride, int adds) {
    const Share share = share_of(pairs_of(linear));
    const int most = pairs_at_once(linear, rows);
    Tile tile;
    for (int pair = (int)share.begin; pair < share.end; pair += most) {
        const int pairs = share.end - pair < most ? (int)share.end - pair : most;
        const Pairs blocks = {linear, linear, 2 * pair, 2 * pair + 1, 2, pairs};
        for (int row = 0; row < rows; row += ROW_BLOCK) {
            const int count = rows - row < ROW_BLOCK ? rows - row : ROW_BLOCK;
            multiply(x, row, count, &blocks, &tile, part_ahead(row, rows));
            for (int line = 0, p = pair; line < count * pairs; line += count, p++) {
                const Columns columns[2] = {columns_of(linear, 2 * p),
                                            columns_of(linear, 2 * p + 1)};
                float *to = out + row * stride + 2 * p * LANES;
                const int left = linear->outputs - 2 * p * LANES;
                if (left < 2 * LANES) {
                    write_last(columns, &tile, line, count, left, to, stride);
                    continue;
                }
                for (int i = line; i < line + count; i++, to += stride)
                    for (int j = 0; j < 2; j++)
                        for (int v = 0; v < VECTORS; v++) {
                            float *at = to + j * LANES + v * WIDTH;
                            floats value = finish(&columns[j], tile.sums[j][i], v);
                            if (adds) value += load(at);
                            store(at, value);
                        }
            }
        }
    }
}
