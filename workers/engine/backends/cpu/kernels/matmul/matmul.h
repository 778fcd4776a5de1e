/* Products of bfloat16 activations with packed bfloat16 weights, by AMX tiles or vectors.

   A weight [out, in] is packed as [out / 16][in / 2][16][2]: blocks of 16 output columns, in which the
   two inputs of a pair are adjacent, because all instruction sets multiply pairs. */

#pragma once
#include <stdint.h>

#include "../isa/vector.h"

enum { LANES = 16, DEPTH = 32, ROW_BLOCK = 32, VECTORS = LANES / WIDTH, MAX_HEAD_DIM = 512 };

typedef struct {
    const void *packed;  /* bf16, or as int8.h or int4.h describes */
    const float *scales; /* [outputs] of a weight in 8 or 4 bits, else NULL */
    const float *bias;   /* [outputs], or NULL */
    int32_t inputs;      /* a multiple of 32 */
    int32_t outputs;     /* a multiple of 32 but in the output layer; all three are padded to one */
    int32_t bits;        /* of a weight: 16, 8 or 4 */
} Linear;

/* Rows of activations in the form that products take, if that is not bfloat16: [rows][inputs] numbers
   in 8 bits as int8.h describes, or in float32. */
typedef struct {
    void *values;
    float *steps;    /* [rows][groups] */
    int32_t *starts; /* [rows][groups] */
} Prepared;

/* Two blocks of 16 columns times up to ROW_BLOCK rows, in float32. */
typedef struct {
    _Alignas(64) float sums[2][ROW_BLOCK][LANES];
} Tile;

/* `pairs` pairs of column blocks: the first pair is block `a` of `left` and block `b` of `right`; each
   further one lies `step` blocks after the previous one. Both weights have the same form. */
typedef struct {
    const Linear *left, *right;
    int a, b, step, pairs;
} Pairs;

/* What becomes of line `line` of a tile: the sums of row `row` and pair `pair`. */
typedef void Write(const void *to, int pair, const Tile *tile, int line, int64_t row);

static inline const bf16 *column_block(const Linear *linear, int block) {
    return (const bf16 *)linear->packed + (int64_t)block * LANES * linear->inputs;
}

/* Activations in the form that products with bfloat16 weights take: bfloat16 if the CPU multiplies
   pairs of it, else float32, since widening them for every product takes as long as the product. */
#if defined(__AMX_BF16__) || defined(HAS_PAIR_PRODUCTS)

enum { WIDENS = 0 };
typedef bf16 factor;
typedef ints Pair;

static inline Pair broadcast_pair(const factor *pair) { return repeat_pair(pair); }

/* 2 * WIDTH numbers as factors; `size` numbers of bfloat16, a multiple of 8, as factors. */
static inline void put_factors(factor *out, floats a, floats b) { narrow_two(out, a, b); }
static inline void copy_factors(factor *out, const bf16 *x, int size) {
    memcpy(out, x, (size_t)size * sizeof(factor));
}

static inline floats add_products(floats sums, Pair pair, ints weights) {
    return add_pairs(sums, pair, weights);
}

#else

enum { WIDENS = 1 };
typedef float factor;
typedef struct {
    floats first, second;
} Pair;

static inline Pair broadcast_pair(const factor *pair) {
    return (Pair){all_of(pair[0]), all_of(pair[1])};
}

/* Rounded to bfloat16 like everywhere, so that processors differ in the order of sums alone. */
static inline void put_factors(factor *out, floats a, floats b) {
    bf16 rounded[2 * WIDTH];
    narrow_two(rounded, a, b);
    store(out, widen(rounded));
    store(out + WIDTH, widen(rounded + WIDTH));
}
static inline void copy_factors(factor *out, const bf16 *x, int size) {
    for (int i = 0; i < size; i++) out[i] = first_of_pairs(all_ints(x[i]))[0];
}

static inline floats add_products(floats sums, Pair pair, ints weights) {
    sums = multiply_add(pair.first, first_of_pairs(weights), sums);
    return multiply_add(pair.second, second_of_pairs(weights), sums);
}

#endif

/* Which weights are fetched from memory while products take others: those of a pair of blocks that lies
   `next` numbers (bytes of 8 or 4 bits) further, or none if that is 0. Products of bytes by tiles fetch
   `count` of each 16 lines from `first` on: half the bytes for more work than in bfloat16, so that they
   may come evenly, with all rows. Others fetch all with the first rows. */
typedef struct {
    int64_t next;
    int first, count;
} Ahead;

/* The part that rows from `row` on fetch, a multiple of 16, of `rows`; `next` is left open. */
static inline Ahead part_ahead(int row, int rows) {
    const int passes = (rows + 15) / 16, count = (16 + passes - 1) / passes;
    return (Ahead){0, row / 16 * count, count};
}

/* Fetch lines of the 16 at `weights`. */
static inline void fetch_lines(const void *weights, int first, int count) {
    const int end = first + count < 16 ? first + count : 16;
    for (int i = first; i < end; i++) fetch((const char *)weights + 64 * i);
}

/* Whether a pass over `count` of `rows` rows prefetches the second of the next blocks. The first pass
   prefetches the first of them; the second pass, or the only one, prefetches the second. */
static inline int fetches_second(int pass, int count, int rows) {
    return pass == 1 || count >= rows;
}

/* How many of the `left` remaining rows are computed next: 2, 4 or `most`. Two tiles of 4 are
   faster than one of 6 and one of 2. */
static inline int rows_at_once(int left, int most) {
    return left <= 2 ? 2 : left <= 4 || (left > most && left <= 8) ? 4 : most;
}

/* Every sum adds the products of its inputs in their order, one after the other, whatever the number
   of rows: a row's sums have the same bits alone and among others. Latency is hidden by computing
   several sums side by side, never by splitting one.

   multiply_block multiplies up to ROW_BLOCK rows by the blocks `a` and `b`, and prefetches the next ones
   meanwhile: loading them later would take as long as the products of about ten rows. multiply_row
   multiplies one row by up to ROW_PAIRS pairs of blocks, each `next` numbers after the one before, and
   writes a pair per line of `out`.

   VECTOR_ROWS, VECTOR_BLOCKS and ROW_PAIRS are as many as the instruction set has registers for. */

#ifndef __AMX_BF16__

/* How far ahead one row fetches its weights into the nearest cache. */
enum { NEAR = 1024 /* numbers */ };

static inline __attribute__((always_inline)) void multiply_pairs(const factor *x, int inputs,
                                                                 const bf16 *a, const bf16 *b,
                                                                 int64_t next, int pairs,
                                                                 Tile *out) {
    floats sums[ROW_PAIRS][2][VECTORS];
    for (int i = 0; i < pairs; i++)
        for (int v = 0; v < VECTORS; v++) sums[i][0][v] = sums[i][1][v] = all_of(0);
    for (int k = 0; k < inputs; k += 2) {
        const Pair pair = broadcast_pair(x + k);
        const int64_t at = (int64_t)k * LANES;
#pragma GCC unroll 4
        for (int i = 0; i < pairs; i++) {
            if (ROW_PAIRS < 4) { /* eight blocks side by side keep memory busy by themselves */
                fetch_near(a + i * next + at + NEAR);
                fetch_near(b + i * next + at + NEAR);
            }
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) {
                const int64_t of = i * next + at + 2 * WIDTH * v;
                sums[i][0][v] = add_products(sums[i][0][v], pair, load_ints(a + of));
                sums[i][1][v] = add_products(sums[i][1][v], pair, load_ints(b + of));
            }
        }
    }
    for (int i = 0; i < pairs; i++)
        for (int j = 0; j < 2; j++)
            for (int v = 0; v < VECTORS; v++) store(out->sums[j][i] + v * WIDTH, sums[i][j][v]);
}

static void multiply_row(const factor *x, int inputs, const bf16 *a, const bf16 *b, int64_t next,
                         int pairs, Tile *out) {
    switch (pairs) {
    case ROW_PAIRS: multiply_pairs(x, inputs, a, b, next, ROW_PAIRS, out); break;
    case 3: multiply_pairs(x, inputs, a, b, next, ROW_PAIRS == 4 ? 3 : 2, out); break;
    default: multiply_pairs(x, inputs, a, b, next, 2, out);
    }
}

/* The most registers of weights that rows are multiplied by side by side: those of four blocks. */
enum { ROW_REGISTERS = 4 * VECTORS };

/* Add to the sums of each row [rows][count] the products of a pair of its inputs with `count` registers
   of weights. Where products take numbers, not pairs, registers hold the first or the second of all
   pairs beside the sums, or if these are too many, both of one register of weights. */
static inline __attribute__((always_inline)) void add_rows(const factor *x, int64_t stride,
                                                           const ints *weights, int count, int rows,
                                                           floats (*sums)[ROW_REGISTERS]) {
#if defined(HAS_PAIR_PRODUCTS)
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
        const Pair pair = broadcast_pair(x + i * stride);
#pragma GCC unroll 16
        for (int j = 0; j < count; j++) sums[i][j] = add_products(sums[i][j], pair, weights[j]);
    }
#else
    const int together = rows * count + count < REGISTERS ? count : 1;
#pragma GCC unroll 16
    for (int from = 0; from < count; from += together)
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            floats numbers[ROW_REGISTERS];
#pragma GCC unroll 16
            for (int j = 0; j < together; j++)
                numbers[j] = half ? second_of_pairs(weights[from + j])
                                  : first_of_pairs(weights[from + j]);
#pragma GCC unroll 8
            for (int i = 0; i < rows; i++) {
                const floats factor = all_of(x[i * stride + half]);
#pragma GCC unroll 16
                for (int j = 0; j < together; j++) {
                    sums[i][from + j] = multiply_add(factor, numbers[j], sums[i][from + j]);
                    if (together > 1) hold(&sums[i][from + j]);
                }
            }
        }
#endif
}

/* Multiply rows by `count` blocks; the sums of the first block go to `out[0]`. Meanwhile the blocks at
   `soon`, unless NULL, are prefetched into the L2 cache. */
static inline __attribute__((always_inline)) void multiply_rows(
    const factor *x, int rows, int inputs, const bf16 *const *blocks, int count,
    float (*out)[ROW_BLOCK][LANES], const bf16 *const *soon) {
    floats sums[VECTOR_ROWS][ROW_REGISTERS];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < count * VECTORS; j++) sums[i][j] = all_of(0);
    for (int k = 0; k < inputs; k += 2) {
        const int64_t at = (int64_t)k * LANES;
        ints weights[ROW_REGISTERS];
#pragma GCC unroll 2
        for (int j = 0; j < count; j++) {
            if (soon[j]) fetch(soon[j] + at);
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++)
                weights[j * VECTORS + v] = load_ints(blocks[j] + at + 2 * WIDTH * v);
        }
        add_rows(x + k, inputs, weights, count * VECTORS, rows, sums);
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < count * VECTORS; j++)
            store(out[j / VECTORS][i] + j % VECTORS * WIDTH, sums[i][j]);
}

static inline void configure_tiles(int rows) { (void)rows; }
static inline void release_tiles(void) {}

/* May compute rows beyond the batch, whose sums are not used. */
static inline void multiply_block(const factor *x, int rows, int inputs, const bf16 *a, const bf16 *b,
                                  Tile *out, Ahead ahead) {
    const bf16 *const blocks[2] = {a, b};
    const int64_t next = ahead.first ? 0 : ahead.next;
    for (int j = 0; j < 2; j += VECTOR_BLOCKS)
        for (int row = 0, pass = 0, count; row < rows; row += count, pass++) {
            count = rows_at_once(rows - row, VECTOR_ROWS);
            const factor *at = x + (int64_t)row * inputs;
            const bf16 *const *from = blocks + j;
            const bf16 *soon[2] = {next && pass == 0 ? from[0] + next : NULL,
                                   next && fetches_second(pass, count, rows) ? b + next : NULL};
            float(*to)[ROW_BLOCK][LANES] = (float(*)[ROW_BLOCK][LANES])out->sums[j][row];
            if (count == 2)
                multiply_rows(at, 2, inputs, from, VECTOR_BLOCKS, to, soon);
            else if (count == 4)
                multiply_rows(at, 4, inputs, from, VECTOR_BLOCKS, to, soon);
            else
                multiply_rows(at, VECTOR_ROWS, inputs, from, VECTOR_BLOCKS, to, soon);
        }
}

#else
#include <string.h>

/* All eight tiles hold up to 16 rows of 64 bytes; those of activations and sums only `rows` of them. */
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
        config.rows[i] = i < 5 && rows < 16 ? rows : 16;
    }
    /* The compiler believes that the instruction reads 8 bytes, and might not store the others. */
    __asm__ volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
}

static inline void release_tiles(void) { _tile_release(); }

/* Up to 16 rows, or with `both` up to ROW_BLOCK. */
static inline void multiply_tiles(const bf16 *x, int inputs, const bf16 *a, const bf16 *b, Tile *out,
                                  int both, int64_t next) {
    const int64_t stride = inputs * (int64_t)sizeof(bf16);
    const bf16 *below = x + (int64_t)16 * inputs;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int k = 0; k < inputs; k += DEPTH) {
        _tile_loadd(6, a + (int64_t)k * LANES, 64);
        _tile_loadd(7, b + (int64_t)k * LANES, 64);
        if (next)
            for (int i = 0; i < DEPTH; i += 2) {
                fetch(a + next + (int64_t)(k + i) * LANES);
                fetch(b + next + (int64_t)(k + i) * LANES);
            }
        _tile_loadd(4, x + k, stride);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (both) {
            _tile_loadd(5, below + k, stride);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, out->sums[0], 64);
    _tile_stored(1, out->sums[1], 64);
    if (both) {
        _tile_stored(2, out->sums[0][16], 64);
        _tile_stored(3, out->sums[1][16], 64);
    }
}

static inline void multiply_block(const bf16 *x, int rows, int inputs, const bf16 *a, const bf16 *b,
                                  Tile *out, Ahead ahead) {
    multiply_tiles(x, inputs, a, b, out, rows > 16, ahead.first ? 0 : ahead.next);
}

/* Uses tiles as well, since tiles and vectors round their sums at different points. Computes two pairs
   at a time. */
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
        STORE(0, out->sums[0][i]);
        STORE(1, out->sums[1][i]);
        STORE(2, out->sums[0][i + 1]);
        STORE(3, out->sums[1][i + 1]);
#undef STORE
    }
    if (i < pairs) {
        Tile last;
        multiply_tiles(x, inputs, a, b, &last, 0, 0);
        for (int j = 0; j < 2; j++) memcpy(out->sums[j][i], last.sums[j][0], sizeof last.sums[j][0]);
    }
}

#endif
