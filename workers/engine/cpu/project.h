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

/* Up to ROW_BLOCK rows from `row` on times the blocks `a` and `b` of two weights of one form. */
static inline void multiply(Rows x, int row, int count, const Linear *left, int a,
                            const Linear *right, int b, Tile *out, int64_t next) {
#ifdef __AVX512VNNI__
    if (left->scales) {
        multiply_bytes(x.quantized, row, count, left->inputs, byte_block(left, a),
                       byte_block(right, b), out, next);
        return;
    }
#endif
    multiply_block(x.values + (int64_t)row * left->inputs, count, left->inputs,
                   column_block(left, a), column_block(right, b), out, next);
}

/* out[row * stride + column] = or += x [rows][inputs] times the weight. */
static void project(const Linear *linear, Rows x, int rows, float *out, int64_t stride, int adds) {
    const Share share = share_of(linear->outputs / (2 * LANES));
    Tile tile;
    for (int64_t pair = share.begin; pair < share.end; pair++) {
        const int block = 2 * (int)pair;
        const __m512 left = bias_of(linear, block), right = bias_of(linear, block + 1);
        const __m512 by = scale_of(linear, block), beside = scale_of(linear, block + 1);
        for (int row = 0; row < rows; row += ROW_BLOCK) {
            const int count = rows - row < ROW_BLOCK ? rows - row : ROW_BLOCK;
            multiply(x, row, count, linear, block, linear, block + 1, &tile,
                     row ? 0 : (int64_t)2 * LANES * linear->inputs);
            for (int i = 0; i < count; i++) {
                float *to = out + (row + i) * stride + block * LANES;
                __m512 a = _mm512_fmadd_ps(_mm512_load_ps(tile.first[i]), by, left);
                __m512 c = _mm512_fmadd_ps(_mm512_load_ps(tile.second[i]), beside, right);
                if (adds) {
                    a = _mm512_add_ps(a, _mm512_loadu_ps(to));
                    c = _mm512_add_ps(c, _mm512_loadu_ps(to + LANES));
                }
                _mm512_storeu_ps(to, a);
                _mm512_storeu_ps(to + LANES, c);
            }
        }
    }
}
