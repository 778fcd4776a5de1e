/* Values of a span times the weights of few queries, without packing them first. */

#pragma once
#include "as_tiles.h"

/* Whether all queries are computed side by side, so that packed values would be read once. */
static inline int are_few(int queries) { return queries <= VECTOR_ROWS; }

#ifdef __AMX_BF16__

static void mix_values(const Span *span, const factor (*weights)[SPAN], int rows, int size,
                       float *outputs, Prefetch *ahead) {
    mix_few(span, weights, rows, size, outputs, ahead);
}

#else

static void score_few(const Product *p) { multiply_span(p); }

/* Add to the outputs [rows][stride] of `groups` times 2 * WIDTH columns, from `column` on, in the order
   of `pair_up`. The products and their order are those of packed values. */
static inline __attribute__((always_inline)) void mix_columns(const Span *span,
                                                              const factor (*weights)[SPAN], int rows,
                                                              int column, int groups, float *outputs,
                                                              Prefetch *ahead) {
    const Context *c = span->context;
    const int dim = c->value_dim, columns = columns_of_values(dim);
    floats sums[VECTOR_ROWS][ROW_REGISTERS];
    outputs += column;
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < 2 * groups; j++) sums[i][j] = load(outputs + i * columns + j * WIDTH);
    for (int t = span->begin; t < span->end; t += SLICE) {
        const bf16 *values = find_slice(span, t, c->values, dim);
        const int left = span->end - t, count = left < SLICE ? left : SLICE;
        for (int i = 0; i < count; i += 2, values += 2 * dim) {
            ints pairs[ROW_REGISTERS];
            fetch_ahead(ahead, groups * WIDTH / 8);
#pragma GCC unroll 4
            for (int g = 0; g < groups; g++) {
                const int from = column + g * 2 * WIDTH;
                const ints even = load_values(values, from, dim);
                const ints odd = i + 1 < count ? load_values(values + dim, from, dim) : all_ints(0);
                pair_up(even, odd, pairs + 2 * g);
            }
            add_rows(weights[0] + t + i, SPAN, pairs, 2 * groups, rows, sums);
        }
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < 2 * groups; j++) store(outputs + i * columns + j * WIDTH, sums[i][j]);
}

/* As many columns side by side as there are registers for the sums of `rows` rows. */
static inline __attribute__((always_inline)) void mix_rows(const Span *span,
                                                           const factor (*weights)[SPAN], int rows,
                                                           float *outputs, Prefetch *ahead) {
    enum { GROUP = 2 * WIDTH };
    const int columns = columns_of_values(span->context->value_dim);
    const int most = 4 * rows <= SUM_REGISTERS && 4 <= ROW_REGISTERS ? 2 : 1;
    int column = 0;
    for (; column + most * GROUP <= columns; column += most * GROUP)
        mix_columns(span, weights, rows, column, most, outputs, ahead);
    for (; column < columns; column += GROUP) mix_columns(span, weights, rows, column, 1, outputs, ahead);
}

static void mix_values(const Span *span, const factor (*weights)[SPAN], int rows, int size,
                       float *outputs, Prefetch *ahead) {
    (void)size;
    switch (rows) {
#define CASE(rows) \
    case rows: mix_rows(span, weights, VECTOR_ROWS < rows ? VECTOR_ROWS : rows, outputs, ahead); break
    CASE(1);
    CASE(2);
    CASE(3);
    CASE(4);
    CASE(5);
    CASE(6);
    CASE(7);
    CASE(8);
#undef CASE
    }
}

#endif
