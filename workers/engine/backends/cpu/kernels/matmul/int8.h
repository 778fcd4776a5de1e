/* Products of activations and weights in 8 bits, summed exactly in 32.

   A row of activations is rounded to 8 bits by groups of 64 inputs, each with its own step: with
   one step for the whole row, a few large numbers would cost the small ones their precision. A
   weight [out, in] is packed as [out / 16][in / 4][16][4], each output column's step beside it, and
   stored as w + 128, since most instructions multiply unsigned by signed bytes. The offset adds 128
   times the sum of the row's group to each product, so sums start from the negative of that. Tiles
   multiply signed bytes: for them w is stored as it is, and the offset is added on the way to vectors. */

#pragma once
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "matmul.h"

enum { GROUP = 64 };

#ifdef __AMX_INT8__
enum { STORED_OFFSET = 0 };
static inline ints with_offset(ints weights) { return weights ^ all_ints((int32_t)0x80808080); }
#else
enum { STORED_OFFSET = 128 };
static inline ints with_offset(ints weights) { return weights; }
#endif

/* A row of activations [inputs], zeros up to a whole group, and for each group its step and the initial
   value of sums. For weights of 4 bits, values are bytes on every processor, and the initial value holds
   the sums of the group's halves, in 16 bits each. */
typedef struct {
    small *values;
    float *steps;
    int32_t *starts;
} Quantized;

static inline int64_t groups_of(int inputs) { return (inputs + GROUP - 1) / GROUP; }

static inline Quantized quantized_row(const Prepared *rows, int64_t row, int inputs) {
    const int64_t group = row * groups_of(inputs);
    return (Quantized){(small *)rows->values + group * GROUP, rows->steps + group,
                       rows->starts + group};
}

/* One group. If a number in it is not finite, its step is NaN, so that it shows in the sums. */
static inline void quantize_group(const bf16 *x, int size, int weight_bits, Quantized out) {
    floats highest = all_of(0);
    mask strange = no_lane();
    for (int i = 0; i < size; i += WIDTH) {
        const floats value = magnitude(widen(x + i));
        strange |= is_nan(value) | is_greater(value, all_of(FLT_MAX));
        highest = larger(highest, value);
    }
    const int is_strange = any_lane(strange);
    const float top = is_strange ? 0.0f : highest_of(highest);
    const int is_zero = top < 1e-30f; /* its reciprocal might overflow */
    const mask is_kept = lanes_of_bits(is_zero ? 0 : 0xffff);
    const floats by = all_of(is_zero ? 0.0f : 127.0f / top);
    ints totals[2] = {all_ints(0), all_ints(0)};
    for (int i = 0; i < size; i += WIDTH) {
        const ints values = rounded(choose(is_kept, widen(x + i) * by, all_of(0)));
        totals[i / (GROUP / 2)] += values;
        if (weight_bits == 8)
            store_small(out.values + i, values);
        else
            store_bytes((int8_t *)out.values + i, values);
    }
    *out.steps = is_strange ? NAN : top / 127.0f;
    if (weight_bits == 8)
        *out.starts = -BYTE_OFFSET * sum_of_ints(totals[0] + totals[1]);
    else
        *out.starts = (sum_of_ints(totals[0]) & 0xffff) | (int32_t)((uint32_t)sum_of_ints(totals[1]) << 16);
}

/* For weights of 8 or 4 bits. */
static inline void quantize(const bf16 *x, int inputs, int weight_bits, Quantized out) {
    const int64_t width = weight_bits == 8 ? sizeof(small) : 1; /* of a number, in bytes */
    for (int i = 0; i < inputs; i += GROUP, out.steps++, out.starts++) {
        const int size = inputs - i < GROUP ? inputs - i : GROUP;
        quantize_group(x + i, size, weight_bits, out);
        memset((char *)out.values + size * width, 0, (size_t)((GROUP - size) * width));
        out.values = (small *)((char *)out.values + GROUP * width);
    }
}

static inline const uint8_t *byte_block(const Linear *linear, int block) {
    return (const uint8_t *)linear->packed + (int64_t)block * LANES * linear->inputs;
}

/* How many bytes ahead one row fetches its weights into the nearest cache. */
enum { BYTES_AHEAD = 4096 };

/* Multiply `rows` rows by `count` blocks, the first one to `out[0]`. Meanwhile the memory at `soon`, as
   long as a block, is prefetched. */
static inline __attribute__((always_inline)) void multiply_bytes_rows(
    Quantized x, int rows, int inputs, const uint8_t *const *blocks, int count,
    float (*out)[ROW_BLOCK][LANES], const uint8_t *const *soon) {
    const int64_t groups = groups_of(inputs);
    floats totals[BYTE_ROWS][VECTOR_BLOCKS][VECTORS];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < count; j++)
            for (int v = 0; v < VECTORS; v++) totals[i][j][v] = all_of(0);
    for (int begin = 0; begin < inputs; begin += GROUP, x.steps++, x.starts++) {
        const int end = inputs - begin < GROUP ? inputs : begin + GROUP;
        ints sums[BYTE_ROWS][VECTOR_BLOCKS][VECTORS];
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < count; j++)
                for (int v = 0; v < VECTORS; v++) sums[i][j][v] = all_ints(x.starts[i * groups]);
        for (int k = begin; k < end; k += 4) {
            const int64_t at = (int64_t)k * LANES;
            ints weights[VECTOR_BLOCKS][VECTORS];
#pragma GCC unroll 2
            for (int j = 0; j < count; j++) {
                if (rows == 1)
                    fetch_near(soon[j] + at);
                else if (soon[j])
                    fetch(soon[j] + at);
#pragma GCC unroll 4
                for (int v = 0; v < VECTORS; v++)
                    weights[j][v] = with_offset(load_ints(blocks[j] + at + 4 * WIDTH * v));
            }
#pragma GCC unroll 8
            for (int i = 0; i < rows; i++) {
                const Four four = broadcast_four(x.values + i * groups * GROUP + k);
#pragma GCC unroll 2
                for (int j = 0; j < count; j++)
#pragma GCC unroll 4
                    for (int v = 0; v < VECTORS; v++)
                        sums[i][j][v] = add_fours(sums[i][j][v], weights[j][v], four);
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            const floats step = all_of(x.steps[i * groups]);
#pragma GCC unroll 2
            for (int j = 0; j < count; j++)
#pragma GCC unroll 4
                for (int v = 0; v < VECTORS; v++)
                    totals[i][j][v] = multiply_add(to_floats(sums[i][j][v]), step, totals[i][j][v]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int j = 0; j < count; j++)
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) store(out[j][i] + v * WIDTH, totals[i][j][v]);
}

/* As multiply_block; the caller applies the columns' steps. Padding rows beyond the batch may be
   computed too. One row waits for memory: it reads one block after the other, in the order of memory. */
static inline void multiply_bytes(const Prepared *x, int64_t row, int rows, int inputs,
                                  const uint8_t *a, const uint8_t *b, Tile *out, int64_t next) {
    const uint8_t *const blocks[2] = {a, b};
    if (rows == 1) {
        const Quantized from = quantized_row(x, row, inputs);
        for (int j = 0; j < 2; j++) {
            const uint8_t *soon = blocks[j] + BYTES_AHEAD;
            multiply_bytes_rows(from, 1, inputs, blocks + j, 1, out->sums + j, &soon);
        }
        return;
    }
    for (int j = 0; j < 2; j += VECTOR_BLOCKS)
        for (int i = 0, pass = 0, count; i < rows; i += count, pass++) {
            count = rows_at_once(rows - i, BYTE_ROWS);
            const uint8_t *soon[2] = {next && pass == 0 ? blocks[j] + next : NULL,
                                      next && fetches_second(pass, count, rows) ? b + next : NULL};
            const Quantized from = quantized_row(x, row + i, inputs);
            float(*to)[ROW_BLOCK][LANES] = (float(*)[ROW_BLOCK][LANES])out->sums[j][i];
            if (count == 2)
                multiply_bytes_rows(from, 2, inputs, blocks + j, VECTOR_BLOCKS, to, soon);
            else if (count == 4)
                multiply_bytes_rows(from, 4, inputs, blocks + j, VECTOR_BLOCKS, to, soon);
            else
                multiply_bytes_rows(from, BYTE_ROWS, inputs, blocks + j, VECTOR_BLOCKS, to, soon);
        }
}
