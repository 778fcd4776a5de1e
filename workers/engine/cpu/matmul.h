/* Products of bfloat16 activations with packed bfloat16 weights, by AMX tiles or vectors.

   A weight [out, in] is packed as [out / 16][in / 2][16][2]: 16 output columns, for which pairs of
   inputs lie side by side, as both instruction sets multiply them. */

#pragma once
#include <immintrin.h>
#include <stdint.h>

#include "bfloat16.h"

enum { LANES = 16, DEPTH = 32, ROW_BLOCK = 32, VECTOR_ROWS = 8, ROW_PAIRS = 4 };

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

/* Every sum adds the products of its inputs in their order, one after the other, whatever the number
   of rows: a row's sums have the same bits alone and among others. Latency is hidden by computing
   several sums side by side, never by splitting one.

   multiply_block multiplies up to ROW_BLOCK rows by the blocks `a` and `b`. Those that follow lie
   `next` numbers further; unless that is 0 they are fetched from memory meanwhile, which else would
   take as long as the products of some ten rows. multiply_row multiplies one row by up to ROW_PAIRS
   pairs of blocks, each `next` numbers after the one before, and writes a pair per line of `out`. */

#ifndef __AMX_BF16__

static inline __attribute__((always_inline)) void multiply_pairs(const bf16 *x, int inputs,
                                                                 const bf16 *a, const bf16 *b,
                                                                 int64_t next, int pairs,
                                                                 Tile *out) {
    __m512 first[ROW_PAIRS], second[ROW_PAIRS];
    for (int i = 0; i < pairs; i++) first[i] = second[i] = _mm512_setzero_ps();
    for (int k = 0; k < inputs; k += 2) {
        const __m512i pair = broadcast_pair(x + k);
        const int64_t at = (int64_t)k * LANES;
#pragma GCC unroll 4
        for (int i = 0; i < pairs; i++) {
            first[i] = add_pairs(first[i], pair, _mm512_loadu_si512(a + i * next + at));
            second[i] = add_pairs(second[i], pair, _mm512_loadu_si512(b + i * next + at));
        }
    }
    for (int i = 0; i < pairs; i++) {
        _mm512_store_ps(out->first[i], first[i]);
        _mm512_store_ps(out->second[i], second[i]);
    }
}

static void multiply_row(const bf16 *x, int inputs, const bf16 *a, const bf16 *b, int64_t next,
                         int pairs, Tile *out) {
    switch (pairs) {
    case 2: multiply_pairs(x, inputs, a, b, next, 2, out); break;
    case 3: multiply_pairs(x, inputs, a, b, next, 3, out); break;
    default: multiply_pairs(x, inputs, a, b, next, ROW_PAIRS, out);
    }
}

/* What lies at `soon` and `then`, as long as a block, is brought into the second cache meanwhile. */
static inline __attribute__((always_inline)) void multiply_rows(const bf16 *x, int rows, int inputs,
                                                                const bf16 *a, const bf16 *b,
                                                                Tile *out, int row,
                                                                const bf16 *soon,
                                                                const bf16 *then) {
    __m512 first[VECTOR_ROWS], second[VECTOR_ROWS];
    for (int i = 0; i < rows; i++) first[i] = second[i] = _mm512_setzero_ps();
    for (int k = 0; k < inputs; k += 2) {
        const __m512i left = _mm512_loadu_si512(a + (int64_t)k * LANES);
        const __m512i right = _mm512_loadu_si512(b + (int64_t)k * LANES);
        if (soon) _mm_prefetch((const char *)(soon + (int64_t)k * LANES), _MM_HINT_T1);
        if (then) _mm_prefetch((const char *)(then + (int64_t)k * LANES), _MM_HINT_T1);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            const __m512i pair = broadcast_pair(x + (int64_t)i * inputs + k);
            first[i] = add_pairs(first[i], pair, left);
            second[i] = add_pairs(second[i], pair, right);
        }
    }
    for (int i = 0; i < rows; i++) {
        _mm512_store_ps(out->first[row + i], first[i]);
        _mm512_store_ps(out->second[row + i], second[i]);
    }
}

static inline void configure_tiles(int rows) { (void)rows; }
static inline void release_tiles(void) {}

/* Rows beyond the batch may be computed for nothing. */
static inline void multiply_block(const bf16 *x, int rows, int inputs, const bf16 *a, const bf16 *b,
                                  Tile *out, int64_t next) {
    for (int row = 0; row < rows; row += VECTOR_ROWS) {
        const int left = rows - row;
        const bf16 *at = x + (int64_t)row * inputs;
        const bf16 *soon = next && row == 0 ? a + next : NULL;
        const int is_last = left <= VECTOR_ROWS;
        const bf16 *then = next && (row == VECTOR_ROWS || (row == 0 && is_last)) ? b + next : NULL;
        if (left <= 2)
            multiply_rows(at, 2, inputs, a, b, out, row, soon, then);
        else if (left <= 4)
            multiply_rows(at, 4, inputs, a, b, out, row, soon, then);
        else
            multiply_rows(at, VECTOR_ROWS, inputs, a, b, out, row, soon, then);
    }
}

#else
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
    multiply_tiles(x, inputs, a, b, out, rows > 16);
}

/* Tiles too, as their sums are rounded elsewhere than those of vectors: two pairs at a time. */
static void multiply_row(const bf16 *x, int inputs, const bf16 *a, const bf16 *b, int64_t next,
                         int pairs, Tile *out) {
    _Alignas(64) float sums[LANES][LANES]; /* 16 rows, if the tiles were configured for them */
    const int64_t stride = inputs * (int64_t)sizeof(bf16);
    int i = 0;
    for (; i + 1 < pairs; i += 2, a += 2 * next, b += 2 * next) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int k = 0; k < inputs; k += DEPTH) {
            const int64_t at = (int64_t)k * LANES;
            _tile_loadd(4, x + k, stride);
            _tile_loadd(6, a + at, 64);
            _tile_loadd(7, b + at, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_loadd(6, a + next + at, 64);
            _tile_loadd(7, b + next + at, 64);
            _tile_dpbf16ps(2, 4, 6);
            _tile_dpbf16ps(3, 4, 7);
        }
#define STORE(tile, to)              \
    _tile_stored(tile, sums, 64);    \
    memcpy(to, sums[0], sizeof(to))
        STORE(0, out->first[i]);
        STORE(1, out->second[i]);
        STORE(2, out->first[i + 1]);
        STORE(3, out->second[i + 1]);
#undef STORE
    }
    if (i < pairs) {
        Tile last;
        multiply_tiles(x, inputs, a, b, &last, 0);
        memcpy(out->first[i], last.first[0], sizeof last.first[0]);
        memcpy(out->second[i], last.second[0], sizeof last.second[0]);
    }
}

#endif
