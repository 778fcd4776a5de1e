/* Products in 8 bits by AMX tiles: int8.h's sums, with its bits, for many rows.

   A product of two tiles is a whole group's sum for 16 rows and 16 columns. Each group has a step of its
   own, so its sums leave the tile before the next group's. They leave three groups late: tiles, the
   stores of their rows and the vectors that scale them then work side by side. */

#pragma once
#include "int8.h"

#ifdef __AMX_INT8__

enum {
    FEWEST_TILE_ROWS = 5, /* fewer take less time as vectors */
    LATE = 3,             /* how many groups are under way when the sums of one are scaled */
};

typedef struct {
    _Alignas(64) int32_t sums[LATE + 1][LANES][LANES];
} Exact;

/* totals += the sums of a group times the group's step. */
static inline __attribute__((always_inline)) void scale_group(const int32_t (*sums)[LANES], int rows,
                                                              const float *steps, int64_t groups,
                                                              floats *totals) {
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
        totals[i] =
            multiply_add(to_floats(load_ints(sums[i])), all_of(steps[i * groups]), totals[i]);
}

/* Up to `rows` rows, 8 or 16, times one block. */
static inline __attribute__((always_inline)) void multiply_tile(Quantized x, int rows, int64_t groups,
                                                                const uint8_t *block, Ahead ahead,
                                                                float (*out)[LANES]) {
    const int64_t stride = groups * GROUP;
    Exact exact;
    floats totals[LANES];
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) totals[i] = all_of(0);
#define STEP(tile, finished)                                                                 \
    if (group + tile < groups) {                                                             \
        const int64_t at = (group + tile) * GROUP;                                           \
        fetch_lines(block + ahead.next + at * LANES, ahead.first, ahead.count);              \
        _tile_zero(tile);                                                                    \
        _tile_loadd(4, x.values + at, stride);                                               \
        _tile_loadd(6, block + at * LANES, 64);                                              \
        _tile_dpbssd(tile, 4, 6);                                                            \
        _tile_stored(tile, exact.sums[tile], 64);                                            \
    }                                                                                        \
    if (group + tile >= LATE && group + tile - LATE < groups)                                \
        scale_group(exact.sums[finished], rows, x.steps + group + tile - LATE, groups, totals);
    for (int64_t group = 0; group < groups + LATE; group += LATE + 1) {
        STEP(0, 1)
        STEP(1, 2)
        STEP(2, 3)
        STEP(3, 0)
    }
#undef STEP
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) store(out[i], totals[i]);
}

/* As multiply_bytes. Reads weights up to GROUP inputs after the last block. */
static inline void multiply_byte_tiles(const Prepared *x, int64_t row, int rows, int inputs,
                                       const uint8_t *a, const uint8_t *b, Tile *out, Ahead ahead) {
    const uint8_t *const blocks[2] = {a, b};
    const int64_t groups = groups_of(inputs);
    for (int i = 0; i < rows; i += LANES, ahead.first += ahead.count)
        for (int j = 0; j < 2; j++) {
            const Quantized from = quantized_row(x, row + i, inputs);
            if (rows - i > 8)
                multiply_tile(from, 16, groups, blocks[j], ahead, out->sums[j] + i);
            else
                multiply_tile(from, 8, groups, blocks[j], ahead, out->sums[j] + i);
        }
}

#endif
