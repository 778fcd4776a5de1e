/* Rows of activations through a linear layer, in bfloat16 or int8, shared by all threads. */

#pragma once
#include <omp.h>
#include <stdint.h>

#include "int8.h"
#include "matmul.h"

typedef struct {
    int64_t begin, end;
} Share;

/* What the calling thread does of `total` equal pieces of work. */
static Share share_of(int64_t total) {
    const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
    return (Share){total * thread / threads, total * (thread + 1) / threads};
}

/* What `linear` multiplies next, in 8 bits if its weight is. */
static void quantize_row(const Linear *linear, const bf16 *x, int64_t row, const Quantized *out) {
    if (linear->scales)
        quantize(x + row * linear->inputs, linear->inputs,
                 quantized_row(out, row, linear->inputs));
}

static void quantize_rows(const Linear *linear, const bf16 *x, int64_t rows, const Quantized *out) {
    const Share share = share_of(rows);
    for (int64_t row = share.begin; row < share.end; row++) quantize_row(linear, x, row, out);
}

/* Rows of activations, in either form. */
typedef struct {
    const bf16 *values;
    const Quantized *quantized;
} Rows;

/* `pairs` pairs of column blocks that are multiplied together: the first pair is block `a` of `left`
   and block `b` of `right`, each further pair lies `step` blocks after the one before. Both weights
   have the same form. */
typedef struct {
    const Linear *left, *right;
    int a, b, step, pairs;
} Pairs;

/* How many pairs a product takes at once. One row is bound by latency unless it takes several. */
static inline int pairs_at_once(int rows) { return rows == 1 ? ROW_PAIRS : 1; }

/* Rows [row, row + count) times `p`: one pair times up to ROW_BLOCK rows, or several pairs times one
   row. `out` has a line for each row, or for each pair. With `fetches`, the pair that follows is
   fetched from memory meanwhile. */
static inline void multiply(Rows x, int row, int count, const Pairs *p, Tile *out, int fetches) {
    const int inputs = p->left->inputs;
    const int64_t next = (int64_t)p->step * LANES * inputs, ahead = fetches ? next : 0;
#ifdef __AVX512VNNI__
    if (p->left->scales) {
        const uint8_t *a = byte_block(p->left, p->a), *b = byte_block(p->right, p->b);
        if (count > 1)
            multiply_bytes(x.quantized, row, count, inputs, a, b, out, ahead);
        for (int i = 0; count == 1 && i < p->pairs; i++)
            multiply_bytes_row(quantized_row(x.quantized, row, inputs), inputs, a + i * next,
                               b + i * next, out, i);
        return;
    }
#endif
    const bf16 *values = x.values + (int64_t)row * inputs;
    const bf16 *a = column_block(p->left, p->a), *b = column_block(p->right, p->b);
    if (p->pairs == 1)
        multiply_block(values, count, inputs, a, b, out, ahead);
    else
        multiply_row(values, inputs, a, b, next, p->pairs, out);
}

/* What a weight's 16 columns of a block are multiplied by, and what is added to them. */
typedef struct {
    __m512 scale, bias;
} Columns;

static inline Columns columns_of(const Linear *linear, int block) {
    return (Columns){scale_of(linear, block), bias_of(linear, block)};
}

static inline __m512 finish(Columns columns, const float *sums) {
    return _mm512_fmadd_ps(_mm512_load_ps(sums), columns.scale, columns.bias);
}

/* out[row * stride + column] = or += x [rows][inputs] times the weight. */
static void project(const Linear *linear, Rows x, int rows, float *out, int64_t stride, int adds) {
    const Share share = share_of(linear->outputs / (2 * LANES));
    const int most = pairs_at_once(rows);
    Tile tile;
    for (int pair = (int)share.begin; pair < share.end; pair += most) {
        const int pairs = share.end - pair < most ? (int)share.end - pair : most;
        const Pairs blocks = {linear, linear, 2 * pair, 2 * pair + 1, 2, pairs};
        for (int row = 0; row < rows; row += ROW_BLOCK) {
            const int count = rows - row < ROW_BLOCK ? rows - row : ROW_BLOCK;
            multiply(x, row, count, &blocks, &tile, row == 0);
            for (int line = 0, p = pair; line < count * pairs; line += count, p++) {
                const Columns left = columns_of(linear, 2 * p), right = columns_of(linear, 2 * p + 1);
                float *to = out + row * stride + 2 * p * LANES;
                for (int i = line; i < line + count; i++, to += stride) {
                    __m512 a = finish(left, tile.first[i]), b = finish(right, tile.second[i]);
                    if (adds) {
                        a = _mm512_add_ps(a, _mm512_loadu_ps(to));
                        b = _mm512_add_ps(b, _mm512_loadu_ps(to + LANES));
                    }
                    _mm512_storeu_ps(to, a);
                    _mm512_storeu_ps(to + LANES, b);
                }
            }
        }
    }
}
