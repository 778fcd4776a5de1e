/* Scores of queries and the keys of a span. */

#pragma once
#include "products.h"

#ifdef __AMX_BF16__

/* Whether queries are so few that packing keys would take longer than products with them. */
static inline int are_few(int queries) { return queries < TILE_ROWS; }

/* How many of the `left` remaining queries are computed together. */
static inline int queries_at_once(int left) {
    return left >= ROWS_AT_ONCE ? ROWS_AT_ONCE : left < TILE_ROWS ? left : TILE_ROWS;
}

/* Make tiles of queries so high. This takes as long as some ten products, so only if it must be. */
static inline void prepare_tiles(int rows, int *tile_rows) {
    if (*tile_rows != rows) configure_tiles(rows);
    *tile_rows = rows;
}

/* Sums of a slice of keys as they are, times few queries that are packed as [depth / 2][TILE_ROWS][2].
   Each score is the same sum of the same products as of packed keys. */
static void score_slice(const bf16 *keys, int dim, const bf16 *queries, float (*sums)[TILE_ROWS],
                        Prefetch *ahead) {
    const int whole = dim / DEPTH * DEPTH;
    finish_stores();
    _tile_zero(5);
    for (int d = 0; d < whole; d += DEPTH) {
        _tile_loadd(6, keys + d, dim * (int64_t)sizeof(bf16));
        _tile_loadd(7, queries + d * TILE_ROWS, 64);
        _tile_dpbf16ps(5, 6, 7);
        fetch_ahead(ahead, WITH_KEYS);
    }
    if (whole < dim) {
        _Alignas(64) bf16 rest[SLICE][DEPTH] = {{0}};
        for (int i = 0; i < SLICE; i++)
            memcpy(rest[i], keys + i * dim + whole, (size_t)(dim - whole) * sizeof(bf16));
        finish_stores();
        _tile_loadd(6, rest, 64);
        _tile_loadd(7, queries + whole * TILE_ROWS, 64);
        _tile_dpbf16ps(5, 6, 7);
    }
    _tile_stored(5, sums, 64);
}

/* The scores of few queries. */
static void score_few(const Span *span, const bf16 *queries, int rows, float (*scores)[SPAN],
                      Prefetch *ahead) {
    const Context *c = span->context;
    _Alignas(64) float sums[SLICE][TILE_ROWS];
    for (int t = 0; t < SPAN; t += SLICE) {
        const bf16 *keys = find_slice(span, t, c->keys, c->dim);
        if (!keys) continue;
        score_slice(keys, c->dim, queries, sums, ahead);
        for (int i = 0; i < rows; i += 4) {
            ints columns[4];
            load_four_columns(sums[0] + i, sizeof sums[0], columns);
            for (int j = 0; j < 4; j++) store(scores[i + j] + t, (floats)columns[j]);
        }
    }
}

#else

/* Vectors multiply few queries as fast as many, by packed keys. */
static inline int are_few(int queries) { return (void)queries, 0; }
static inline int queries_at_once(int left) { return left < ROWS_AT_ONCE ? left : ROWS_AT_ONCE; }
static inline void prepare_tiles(int rows, int *tile_rows) { (void)rows, (void)tile_rows; }
static void score_few(const Span *span, const bf16 *queries, int rows, float (*scores)[SPAN],
                      Prefetch *ahead) {
    (void)span, (void)queries, (void)rows, (void)scores, (void)ahead;
}

#endif
