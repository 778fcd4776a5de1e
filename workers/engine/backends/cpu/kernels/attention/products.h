/* Products of attention's rows with a packed span, by AMX tiles or vectors. */

#pragma once
#include "spans.h"

/* How many rows a product takes at most: two tiles. */
enum { TILE_ROWS = 16, ROWS_AT_ONCE = 2 * TILE_ROWS };

/* sums [rows][stride] = or += x [rows][x_stride] times `blocks` packed blocks of LANES columns, over
   `depth` inputs. Every sum adds the products of its inputs in their order, as in matmul.h. */
typedef struct {
    const factor *x;
    int64_t x_stride;
    int rows, depth, blocks, adds;
    const bf16 *const *packed; /* [blocks] */
    float *sums;
    int64_t stride;
    Prefetch *ahead;
} Product;

#ifndef __AMX_BF16__

/* So many registers hold sums. */
enum { SUM_REGISTERS = VECTOR_ROWS * VECTOR_BLOCKS * VECTORS };

static inline __attribute__((always_inline)) void multiply_blocks(const Product *p, int row, int rows,
                                                                  int block, int blocks) {
    const factor *x = p->x + row * p->x_stride;
    const bf16 *const *packed = p->packed + block;
    float *to = p->sums + row * p->stride + block * LANES;
    const int count = blocks * VECTORS;
    floats sums[VECTOR_ROWS][ROW_REGISTERS];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < count; j++)
            sums[i][j] = p->adds ? load(to + i * p->stride + j * WIDTH) : all_of(0);
    for (int k = 0; k < p->depth; k += 8) {
        for (int at = k; at < k + 8; at += 2) {
            ints weights[ROW_REGISTERS];
            fetch_ahead(p->ahead, blocks);
#pragma GCC unroll 16
            for (int j = 0; j < count; j++)
                weights[j] = load_ints(packed[j / VECTORS] + at * LANES + 2 * WIDTH * (j % VECTORS));
            add_rows(x + at, p->x_stride, weights, count, rows, sums);
        }
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < count; j++) store(to + i * p->stride + j * WIDTH, sums[i][j]);
}

/* As many blocks side by side as there are registers for the sums of `rows` rows. */
static inline __attribute__((always_inline)) void multiply_rows_of(const Product *p, int row,
                                                                   int rows) {
    const int room = SUM_REGISTERS / (rows * VECTORS), most = room >= 4 ? 4 : room >= 2 ? 2 : 1;
    int block = 0;
    for (; block + most <= p->blocks; block += most) multiply_blocks(p, row, rows, block, most);
    for (; block < p->blocks; block++) multiply_blocks(p, row, rows, block, 1);
}

static inline void keep_tiles_awake(void) {}

static void multiply_span(const Product *p) {
    int row = 0;
    for (; row + VECTOR_ROWS <= p->rows; row += VECTOR_ROWS) multiply_rows_of(p, row, VECTOR_ROWS);
    switch (p->rows - row) {
    case 0: break;
    case 1: multiply_rows_of(p, row, 1); break;
    case 2: multiply_rows_of(p, row, 2); break;
    case 3: multiply_rows_of(p, row, 3); break;
#define CASE(rows) \
    case rows: multiply_rows_of(p, row, VECTOR_ROWS < rows ? VECTOR_ROWS : rows); break
    CASE(4);
    CASE(5);
    CASE(6);
    CASE(7);
#undef CASE
    }
}

#else

/* Write what the compiler may still hold in registers, or think unused: GCC does not know that tiles
   are loaded from memory. */
static inline void finish_stores(void) { __asm__ volatile("" ::: "memory"); }

/* Multiply tiles, for nothing: where they were idle for some 800 cycles, their next product takes 280 ns
   longer. Tiles must be configured. */
static inline void keep_tiles_awake(void) { _tile_dpbf16ps(0, 4, 6); }

/* As many rows as a tile is configured for times four blocks, or two if there are no more. */
static void multiply_few(const Product *p, int block) {
    const int four = p->blocks - block > 2;
    const bf16 *const *packed = p->packed + block;
    float *sums = p->sums + block * LANES;
    const int64_t line = p->stride * (int64_t)sizeof(float);
    const int64_t x_line = p->x_stride * (int64_t)sizeof(factor);
    if (p->adds) {
        _tile_loadd(0, sums, line);
        _tile_loadd(1, sums + LANES, line);
        if (four) {
            _tile_loadd(2, sums + 2 * LANES, line);
            _tile_loadd(3, sums + 3 * LANES, line);
        }
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int k = 0; k < p->depth; k += DEPTH) {
        const int at = k * LANES;
        fetch_ahead(p->ahead, DEPTH / 2 * (four ? 4 : 2));
        _tile_loadd(4, p->x + k, x_line);
        _tile_loadd(6, packed[0] + at, 64);
        _tile_loadd(7, packed[1] + at, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (four) {
            _tile_loadd(6, packed[2] + at, 64);
            _tile_loadd(7, packed[3] + at, 64);
            _tile_dpbf16ps(2, 4, 6);
            _tile_dpbf16ps(3, 4, 7);
        }
    }
    _tile_stored(0, sums, line);
    _tile_stored(1, sums + LANES, line);
    if (four) {
        _tile_stored(2, sums + 2 * LANES, line);
        _tile_stored(3, sums + 3 * LANES, line);
    }
}

/* Two tiles of rows times two blocks. */
static void multiply_many(const Product *p, int block) {
    const bf16 *const *packed = p->packed + block;
    const factor *below = p->x + TILE_ROWS * p->x_stride;
    float *sums = p->sums + block * LANES, *sums_below = sums + TILE_ROWS * p->stride;
    const int64_t line = p->stride * (int64_t)sizeof(float);
    const int64_t x_line = p->x_stride * (int64_t)sizeof(factor);
    if (p->adds) {
        _tile_loadd(0, sums, line);
        _tile_loadd(1, sums + LANES, line);
        _tile_loadd(2, sums_below, line);
        _tile_loadd(3, sums_below + LANES, line);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int k = 0; k < p->depth; k += DEPTH) {
        _tile_loadd(6, packed[0] + k * LANES, 64);
        _tile_loadd(7, packed[1] + k * LANES, 64);
        _tile_loadd(4, p->x + k, x_line);
        _tile_loadd(5, below + k, x_line);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, line);
    _tile_stored(1, sums + LANES, line);
    _tile_stored(2, sums_below, line);
    _tile_stored(3, sums_below + LANES, line);
}

/* The number of rows is that of two tiles or not more than that of one. */
static void multiply_span(const Product *p) {
    const int is_many = p->rows == ROWS_AT_ONCE;
    finish_stores();
    for (int block = 0; block < p->blocks; block += is_many ? 2 : 4)
        if (is_many)
            multiply_many(p, block);
        else
            multiply_few(p, block);
}

#endif
