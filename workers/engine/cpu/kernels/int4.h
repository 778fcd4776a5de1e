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

/* Multiply `rows` rows by `count` blocks, the first one to `out[0]`. Meanwhile the memory at
   `soon`, as long as a block, is prefetched into the L2 cache. Both halves of a group are summed in
   parallel, to hide latency, and scaled as floats, with half the instructions of integers. */
static inline __attribute__((always_inline)) void multiply_nibble_rows(
    Quantized x, int rows, int inputs, const uint8_t *const *blocks, int count,
    float (*out)[ROW_BLOCK][LANES], const uint8_t *const *soon) {
    const int64_t groups = groups_of(inputs);
#define EACH                               \
    _Pragma("GCC unroll 2")                \
    for (int j = 0; j < count; j++)        \
        _Pragma("GCC unroll 4")            \
        for (int v = 0; v < VECTORS; v++)  \
            _Pragma("GCC unroll 8")        \
            for (int i = 0; i < rows; i++)
    EACH store(out[j][i] + v * WIDTH, all_of(0));
    for (int64_t group = 0; group < groups; group++, x.steps++, x.starts++) {
        const int64_t piece = group * NIBBLE_BYTES;
        const int halves = inputs - group * GROUP < GROUP ? 1 : 2;
        ints parts[2][NIBBLE_ROWS][2][VECTORS];
        EACH parts[0][i][j][v] = parts[1][i][j][v] = all_ints(0);
        for (int k = 0; k < NIBBLE_GROUP; k += 8)
#pragma GCC unroll 2
            for (int half = 0; half < 2; half++) {
                if (half == halves) break;
                const int64_t at = piece + 4 * LANES + (half * NIBBLE_GROUP + k) * (LANES / 2);
                const small *from = x.values + group * GROUP + half * NIBBLE_GROUP + k;
#pragma GCC unroll 2
                for (int j = 0; j < count; j++) {
                    if (soon[j]) fetch(soon[j] + at);
#pragma GCC unroll 4
                    for (int v = 0; v < VECTORS; v++) {
                        const ints both = load_ints(blocks[j] + at + 4 * WIDTH * v);
                        const ints low = both & all_ints(0x0f0f0f0f);
                        const ints high = both >> 4 & all_ints(0x0f0f0f0f);
#pragma GCC unroll 8
                        for (int i = 0; i < rows; i++) {
                            const small *own = from + i * groups * GROUP;
                            ints *sum = &parts[half][i][j][v];
                            *sum = add_small_fours(*sum, low, broadcast_four(own));
                            *sum = add_small_fours(*sum, high, broadcast_four(own + 4));
                        }
                    }
                }
            }
#pragma GCC unroll 2
        for (int j = 0; j < count; j++)
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) {
                const uint8_t *said = blocks[j] + piece + v * WIDTH;
                const floats first = to_floats(ints_of_bytes(said));
                const floats second = to_floats(ints_of_bytes(said + LANES));
                const ints minima = words_of_bytes(blocks[j] + piece + 2 * LANES + 2 * v * WIDTH);
#pragma GCC unroll 8
                for (int i = 0; i < rows; i++) {
                    const ints offset = multiply_words(minima, all_ints(x.starts[i * groups]));
                    floats sum = to_floats(offset) * all_of(-16);
                    sum = multiply_add(to_floats(parts[0][i][j][v]), first, sum);
                    sum = multiply_add(to_floats(parts[1][i][j][v]), second, sum);
                    float *to = out[j][i] + v * WIDTH;
                    store(to, multiply_add(sum, all_of(x.steps[i * groups]), load(to)));
                }
            }
    }
#undef EACH
}

/* As multiply_row of matmul.h; each further pair lies `next` bytes after the previous one. */
static inline void multiply_nibble_row(Quantized x, int inputs, const uint8_t *a, const uint8_t *b,
                                       int64_t next, int pairs, Tile *out) {
    for (int i = 0; i < pairs; i++) {
        const uint8_t *const blocks[2] = {a + i * next, b + i * next};
        const uint8_t *const soon[2] = {blocks[0] + next, blocks[1] + next};
        multiply_nibble_rows(x, 1, inputs, blocks, 2, (float(*)[ROW_BLOCK][LANES])out->sums[0][i],
                             soon);
    }
}

/* As multiply_bytes. */
static inline void multiply_nibbles(const Prepared *x, int64_t row, int rows, int inputs,
                                    const uint8_t *a, const uint8_t *b, Tile *out, int64_t next) {
    const uint8_t *const blocks[2] = {a, b};
    for (int i = 0; i < rows; i += NIBBLE_ROWS)
        for (int j = 0; j < 2; j++) {
            const uint8_t *const soon[2] = {next && i == 0 ? blocks[j] + next : NULL, NULL};
            const Quantized from = quantized_row(x, row + i, inputs);
            float(*to)[ROW_BLOCK][LANES] = (float(*)[ROW_BLOCK][LANES])out->sums[j][i];
            if (rows - i <= 2 || NIBBLE_ROWS == 2)
                multiply_nibble_rows(from, 2, inputs, blocks + j, 1, to, soon);
            else if (rows - i <= 4)
                multiply_nibble_rows(from, 4, inputs, blocks + j, 1, to, soon);
            else
                multiply_nibble_rows(from, NIBBLE_ROWS, inputs, blocks + j, 1, to, soon);
        }
}
