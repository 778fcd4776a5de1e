/* Products of bfloat16 activations with packed bfloat16 weights, by AMX tiles or vectors.

   A weight [out, in] is packed as [out / 16][in / 2][16][2]: 16 output columns, for which pairs of
   inputs lie side by side, as both instruction sets multiply them. */

#pragma once
#include <immintrin.h>
#include <stdint.h>

#include "bfloat16.h"

enum { LANES = 16, DEPTH = 32, ROW_BLOCK = 32, VECTOR_ROWS = 8 };

typedef struct {
    const void *packed;  /* bf16, or as int8.h describes */
    const float *scales; /* [outputs] of a weight in int8, else NULL */
    const float *bias;   /* [outputs], or NULL */
    int32_t inputs;      /* a multiple of 32 */
    int32_t outputs;     /* a multiple of 32 */
} Linear;

/* Two blocks of 16 columns times up to ROW_BLOCK rows, in float32. */
typedef struct {
    _Alignas(64) float first[ROW_BLOCK][LANES], second[ROW_BLOCK][LANES];
} Tile;

static inline const bf16 *column_block(const Linear *linear, int block) {
    return (const bf16 *)linear->packed + (int64_t)block * LANES * linear->inputs;
}

static inline __m512 scale_of(const Linear *linear, int block) {
    return linear->scales ? _mm512_loadu_ps(linear->scales + block * LANES) : _mm512_set1_ps(1.0f);
}

static inline __m512 bias_of(const Linear *linear, int block) {
    return linear->bias ? _mm512_loadu_ps(linear->bias + block * LANES) : _mm512_setzero_ps();
}

/* multiply_block multiplies up to ROW_BLOCK rows by the blocks `a` and `b`. Those that follow lie
   `next` numbers further; unless that is 0 they are fetched from memory meanwhile, which else would
   take as long as the products of some ten rows. */

/* One row: bound by the reading of weights, so several sums hide the latency of the products. */
static inline void multiply_row(const bf16 *x, int inputs, const bf16 *a, const bf16 *b, Tile *out) {
    __m512 sums[2][4];
    for (int i = 0; i < 4; i++) sums[0][i] = sums[1][i] = _mm512_setzero_ps();
    for (int k = 0; k < inputs; k += 8)
        for (int i = 0; i < 4; i++) {
            const __m512i pair = broadcast_pair(x + k + 2 * i);
            const int64_t at = (int64_t)(k + 2 * i) * LANES;
            sums[0][i] = add_pairs(sums[0][i], pair, _mm512_loadu_si512(a + at));
            sums[1][i] = add_pairs(sums[1][i], pair, _mm512_loadu_si512(b + at));
        }
    for (int j = 0; j < 2; j++)
        _mm512_store_ps(j ? out->second[0] : out->first[0],
                        _mm512_add_ps(_mm512_add_ps(sums[j][0], sums[j][1]),
                                      _mm512_add_ps(sums[j][2], sums[j][3])));
}

/* VECTOR_ROWS rows; those beyond the batch are computed for nothing. What lies at `soon` and `then`,
   as long as a block, is brought into the second cache meanwhile. */
static inline void multiply_rows(const bf16 *x, int inputs, const bf16 *a, const bf16 *b, Tile *out,
                                 int row, const bf16 *soon, const bf16 *then) {
    __m512 first[VECTOR_ROWS], second[VECTOR_ROWS];
    for (int i = 0; i < VECTOR_ROWS; i++) first[i] = second[i] = _mm512_setzero_ps();
    for (int k = 0; k < inputs; k += 2) {
        const __m512i left = _mm512_loadu_si512(a + (int64_t)k * LANES);
        const __m512i right = _mm512_loadu_si512(b + (int64_t)k * LANES);
        if (soon) _mm_prefetch((const char *)(soon + (int64_t)k * LANES), _MM_HINT_T1);
        if (then) _mm_prefetch((const char *)(then + (int64_t)k * LANES), _MM_HINT_T1);
#pragma GCC unroll 8
        for (int i = 0; i < VECTOR_ROWS; i++) {
            const __m512i pair = broadcast_pair(x + (int64_t)i * inputs + k);
            first[i] = add_pairs(first[i], pair, left);
            second[i] = add_pairs(second[i], pair, right);
        }
    }
    for (int i = 0; i < VECTOR_ROWS; i++) {
        _mm512_store_ps(out->first[row + i], first[i]);
        _mm512_store_ps(out->second[row + i], second[i]);
    }
}

#ifdef __AMX_BF16__
#include <string.h>

/* All eight tiles hold 16 rows of 64 bytes; those of activations and sums `rows` rows. */
static inline void configure_tiles(int rows) {
    struct {
        uint8_t palette, start, unused[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config;
    memset(&config, 0, sizeof config);
    config.palette = 1;
    for (int i = 0; i < 8; i++) {
        config.bytes[i] = 64;
        config.rows[i] = i < 6 && rows < 16 ? rows : 16;
    }
    _tile_loadconfig(&config);
}

static inline void release_tiles(void) { _tile_release(); }

/* Up to 16 rows, or with `both` up to ROW_BLOCK. */
static inline void multiply_tiles(const bf16 *x, int inputs, const bf16 *a, const bf16 *b, Tile *out,
                                  int both) {
    const int64_t stride = inputs * (int64_t)sizeof(bf16);
    const bf16 *below = x + (int64_t)16 * inputs;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int k = 0; k < inputs; k += DEPTH) {
        _tile_loadd(6, a + (int64_t)k * LANES, 64);
        _tile_loadd(7, b + (int64_t)k * LANES, 64);
        _tile_loadd(4, x + k, stride);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (both) {
            _tile_loadd(5, below + k, stride);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, out->first, 64);
    _tile_stored(1, out->second, 64);
    if (both) {
        _tile_stored(2, out->first[16], 64);
        _tile_stored(3, out->second[16], 64);
    }
}

static inline void multiply_block(const bf16 *x, int rows, int inputs, const bf16 *a, const bf16 *b,
                                  Tile *out, int64_t next) {
    (void)next; /* its loads run ahead by themselves */
    if (rows == 1)
        multiply_row(x, inputs, a, b, out);
    else if (rows <= 16)
        multiply_tiles(x, inputs, a, b, out, 0);
    else
        multiply_tiles(x, inputs, a, b, out, 1);
}

#else

static inline void configure_tiles(int rows) { (void)rows; }
static inline void release_tiles(void) {}

static inline void multiply_block(const bf16 *x, int rows, int inputs, const bf16 *a, const bf16 *b,
                                  Tile *out, int64_t next) {
    if (rows == 1) {
        multiply_row(x, inputs, a, b, out);
        return;
    }
    for (int row = 0; row < rows; row += VECTOR_ROWS) {
        const int is_last = row + VECTOR_ROWS >= rows;
        const bf16 *soon = next && row == 0 ? a + next : NULL;
        const bf16 *then = next && (row == VECTOR_ROWS || (row == 0 && is_last)) ? b + next : NULL;
        multiply_rows(x + (int64_t)row * inputs, inputs, a, b, out, row, soon, then);
    }
}

#endif
