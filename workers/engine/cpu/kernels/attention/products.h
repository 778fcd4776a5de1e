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
    const bf16 *packed;
    int64_t block_size; /* numbers from one block to the next */
    float *sums;
    int64_t stride;
    Prefetch *ahead;
} Product;

#ifndef __AMX_BF16__

static inline int depth_computed(int dim) { return dim; }

static inline __attribute__((always_inline)) void multiply_blocks(const Product *p, int row, int rows,
                                                                  int block, int blocks) {
    const factor *x = p->x + row * p->x_stride;
    const bf16 *packed = p->packed + block * p->block_size;
    float *to = p->sums + row * p->stride + block * LANES;
    floats sums[VECTOR_ROWS][4][VECTORS];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < blocks; j++)
            for (int v = 0; v < VECTORS; v++)
                sums[i][j][v] =
                    p->adds ? load(to + i * p->stride + j * LANES + v * WIDTH) : all_of(0);
    for (int k = 0; k < p->depth; k += 2) {
        if (k % 8 == 0) fetch_ahead(p->ahead, WITH_INPUTS);
        ints weights[4][VECTORS];
#pragma GCC unroll 4
        for (int j = 0; j < blocks; j++)
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++)
                weights[j][v] = load_ints(packed + j * p->block_size + k * LANES + 2 * WIDTH * v);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            const Pair pair = broadcast_pair(x + i * p->x_stride + k);
#pragma GCC unroll 4
            for (int j = 0; j < blocks; j++)
#pragma GCC unroll 4
                for (int v = 0; v < VECTORS; v++)
                    sums[i][j][v] = add_products(sums[i][j][v], pair, weights[j][v]);
        }
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < blocks; j++)
            for (int v = 0; v < VECTORS; v++)
                store(to + i * p->stride + j * LANES + v * WIDTH, sums[i][j][v]);
}

/* As many blocks side by side as there are registers for the sums of `rows` rows. */
static inline __attribute__((always_inline)) void multiply_rows_of(const Product *p, int row,
                                                                   int rows) {
    enum { SUMS = VECTOR_ROWS * VECTOR_BLOCKS * VECTORS };
    const int room = SUMS / (rows * VECTORS), most = room >= 4 ? 4 : room >= 2 ? 2 : 1;
    int block = 0;
    for (; block + most <= p->blocks; block += most) multiply_blocks(p, row, rows, block, most);
    for (; block < p->blocks; block++) multiply_blocks(p, row, rows, block, 1);
}

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

static inline int depth_computed(int dim) { return depth_of(dim); }

/* Write what the compiler may still hold in registers, or think unused: GCC does not know that tiles
   are loaded from memory. */
static inline void finish_stores(void) { __asm__ volatile("" ::: "memory"); }

/* As many rows as a tile is configured for times four blocks, or two if there are no more. */
static void multiply_few(const Product *p, int block) {
    const int four = p->blocks - block > 2;
    const bf16 *packed = p->packed + block * p->block_size;
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
        const bf16 *at = packed + k * LANES;
        fetch_ahead(p->ahead, WITH_INPUTS * DEPTH / 8);
        _tile_loadd(4, p->x + k, x_line);
        _tile_loadd(6, at, 64);
        _tile_loadd(7, at + p->block_size, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (four) {
            _tile_loadd(6, at + 2 * p->block_size, 64);
            _tile_loadd(7, at + 3 * p->block_size, 64);
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
    const bf16 *packed = p->packed + block * p->block_size;
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
        _tile_loadd(6, packed + k * LANES, 64);
        _tile_loadd(7, packed + p->block_size + k * LANES, 64);
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
