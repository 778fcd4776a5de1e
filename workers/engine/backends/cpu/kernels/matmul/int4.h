/* Products of activations in 8 bits, as int8.h rounds them, and weights in 4.

   A weight is step * (scale * q - 16 * minimum), with q from 0 to 15. Each output column has one
   step, and for each group of 32 inputs an 8-bit scale and minimum. The packed form is
   [out / 16][in / 64] pieces of NIBBLE_BYTES: scales [2][16] of both groups, minima [16][2], then q
   [8][16][4]. A byte of q holds one input in its low half, and the input four further in its high
   half. Sums of 32 inputs are exact integers. The minima are multiplied by the sums of the row's
   groups of activations. */

#pragma once
#include <stdint.h>

#include "int8.h"

enum { NIBBLE_GROUP = 32, NIBBLE_BYTES = 2 * 2 * LANES + 8 * 64 };

static inline int64_t nibble_block_size(int inputs) { return groups_of(inputs) * NIBBLE_BYTES; }

static inline const uint8_t *nibble_block(const Linear *linear, int block) {
    return (const uint8_t *)linear->packed + block * nibble_block_size(linear->inputs);
}

/* A group of a block in the form that products take: q as bytes, and the minima times -16. */
typedef struct {
    _Alignas(64) float scales[2][LANES];
    int16_t minima[LANES][2];
    uint8_t fours[GROUP / 4][4 * LANES];
} Unpacked;

/* Unpack a group, and prefetch the one at `soon`, unless NULL, into the L2 cache. Not inline: the
   compiler would keep what it stores in registers of which there are too few. */
static __attribute__((noinline)) void unpack(const uint8_t *piece, const uint8_t *soon,
                                             Unpacked *out) {
    for (int i = 0; soon && i < NIBBLE_BYTES; i += 64) fetch(soon + i);
    for (int v = 0; v < LANES; v += WIDTH) {
        for (int half = 0; half < 2; half++)
            store(out->scales[half] + v, to_floats(ints_of_bytes(piece + half * LANES + v)));
        const ints minima = words_of_bytes(piece + 2 * LANES + 2 * v);
        store_ints((int32_t *)out->minima[v], (ints)((words)minima * -16));
    }
    piece += 4 * LANES;
    for (int line = 0; line < GROUP / 8; line++)
        for (int at = 0; at < 4 * LANES; at += 4 * WIDTH) {
            const ints both = load_ints(piece + 4 * LANES * line + at);
            store_ints((int32_t *)(out->fours[2 * line] + at), both & all_ints(0x0f0f0f0f));
            store_ints((int32_t *)(out->fours[2 * line + 1] + at), both >> 4 & all_ints(0x0f0f0f0f));
        }
}

/* Add the products of `rows` rows, `groups` groups apart, with a group of `count` blocks to `out`, the
   first block's to `out[0]`. */
static inline __attribute__((always_inline)) void add_group(Quantized x, int rows, int64_t groups,
                                                            const Unpacked *blocks, int count,
                                                            float (*out)[ROW_BLOCK][LANES]) {
    const int64_t stride = groups * GROUP * (int64_t)sizeof(small);
#define EACH                               \
    _Pragma("GCC unroll 8")                \
    for (int i = 0; i < rows; i++)         \
        _Pragma("GCC unroll 2")            \
        for (int j = 0; j < count; j++)    \
            _Pragma("GCC unroll 4")        \
            for (int v = 0; v < VECTORS; v++)
    floats sums[NIBBLE_ROWS][2][VECTORS];
    EACH {
        const ints minima = load_ints(blocks[j].minima[v * WIDTH]);
        sums[i][j][v] = to_floats(multiply_words(minima, all_ints(x.starts[i * groups])));
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        ints parts[NIBBLE_ROWS][2][VECTORS];
        EACH parts[i][j][v] = all_ints(0);
#pragma GCC unroll 1
        for (int k = half * NIBBLE_GROUP / 4; k < (half + 1) * NIBBLE_GROUP / 4; k++) {
            ints weights[2][VECTORS];
            for (int j = 0; j < count; j++)
                for (int v = 0; v < VECTORS; v++)
                    weights[j][v] = load_ints(blocks[j].fours[k] + 4 * WIDTH * v);
#pragma GCC unroll 8
            for (int i = 0; i < rows; i++) {
                const ints four = repeat_four((const int8_t *)x.values + i * stride + 4 * k);
#pragma GCC unroll 2
                for (int j = 0; j < count; j++)
#pragma GCC unroll 4
                    for (int v = 0; v < VECTORS; v++)
                        parts[i][j][v] = add_nibbles(parts[i][j][v], weights[j][v], four);
            }
        }
        EACH sums[i][j][v] = multiply_add(to_floats(nibble_sums(parts[i][j][v])),
                                          load(blocks[j].scales[half] + v * WIDTH), sums[i][j][v]);
    }
    EACH {
        float *to = out[j][i] + v * WIDTH;
        store(to, multiply_add(sums[i][j][v], all_of(x.steps[i * groups]), load(to)));
    }
#undef EACH
}

/* As multiply_bytes. A group is unpacked once for all rows. */
static inline void multiply_nibbles(const Prepared *prepared, int64_t row, int rows, int inputs,
                                    const uint8_t *a, const uint8_t *b, Tile *out, int64_t next) {
    const int64_t groups = groups_of(inputs);
    const size_t lines = rows == 1 ? 1 : (size_t)(rows + 3) / 4 * 4; /* with those of padding */
    for (int j = 0; j < 2; j++) memset(out->sums[j], 0, lines * sizeof *out->sums[j]);
    for (int64_t group = 0; group < groups; group++, a += NIBBLE_BYTES, b += NIBBLE_BYTES) {
        Unpacked blocks[2];
        unpack(a, next ? a + next : NULL, &blocks[0]);
        unpack(b, next ? b + next : NULL, &blocks[1]);
        for (int j = 0; j < 2; j += NIBBLE_BLOCKS)
            for (int i = 0, count; i < rows; i += count) {
                count = rows == 1 ? 1 : rows_at_once(rows - i, NIBBLE_ROWS);
                Quantized x = quantized_row(prepared, row + i, inputs);
                x.values = (small *)((int8_t *)x.values + group * GROUP);
                x.steps += group;
                x.starts += group;
                float(*to)[ROW_BLOCK][LANES] = (float(*)[ROW_BLOCK][LANES])out->sums[j][i];
                if (count == 1)
                    add_group(x, 1, groups, blocks + j, NIBBLE_BLOCKS, to);
                else if (count == 2)
                    add_group(x, 2, groups, blocks + j, NIBBLE_BLOCKS, to);
                else if (count == 4)
                    add_group(x, 4, groups, blocks + j, NIBBLE_BLOCKS, to);
                else
                    add_group(x, NIBBLE_ROWS, groups, blocks + j, NIBBLE_BLOCKS, to);
            }
    }
}
