/* Attention of queries over the paged keys and values of one sequence, for one key head. */

#pragma once
#include <float.h>
#include <math.h>
#include <stdint.h>

#include "activations.h"

enum { MAX_QUERIES = 16, AHEAD = 128 /* tokens */ };

/* Keys [blocks][block_size][dim] and values [blocks][block_size][value_dim] of one key head, and where
   a sequence lies in them. */
typedef struct {
    const bf16 *keys, *values;
    const int64_t *table;
    int32_t block_size;     /* a multiple of 16 */
    int32_t dim, value_dim; /* multiples of 8 */
    int64_t window;         /* tokens that a token attends to, itself included */
    float scale, softcap;
    const float *sinks; /* of the heads of a group, or NULL */
} Context;

/* Up to MAX_QUERIES queries: `group` heads of each of `rows` tokens that follow each other, the
   first at `position`. A token's queries lie side by side; the next token's `stride` further. The
   outputs are as wide as values. If values are as wide as keys, outputs may replace the queries. */
typedef struct {
    const bf16 *queries;
    bf16 *outputs;
    int64_t stride, output_stride;
    int32_t rows, group;
    int64_t position;
} Queries;

/* One piece of attention: queries, and the tokens [first, end) that any of them attends to; `first`
   is a multiple of 16. */
typedef struct {
    Queries queries;
    Context context;
    int64_t first, end;
} Piece;

/* Room for one thread: by query, scores of all tokens, and weights in bfloat16. */
typedef struct {
    float *scores;
    bf16 *weights;
    int64_t max_tokens;
} Room;

/* Where a token's numbers lie in pages of `dim` numbers per token. */
static inline const bf16 *token_at(const bf16 *pages, const Context *c, int64_t token, int dim) {
    const int64_t block = c->table[token / c->block_size];
    return pages + (block * c->block_size + token % c->block_size) * dim;
}

/* The address of the keys or values needed AHEAD tokens after `token` (in the next piece once this
   one ends), or NULL. Pages are scattered, so the hardware prefetcher cannot predict them, and
   waiting for them takes longer than computing. So each cache line read prefetches another. */
static inline const bf16 *ahead(const Piece *piece, const Piece *next, int64_t token, int is_key) {
    const int64_t size = (piece->end - piece->first + 15) / 16 * 16;
    int64_t wanted = token + (size < AHEAD ? size : AHEAD);
    if (wanted >= piece->end) {
        if (!next) return NULL;
        wanted += next->first - piece->first - size;
        if (wanted >= next->end) return NULL;
        piece = next;
    }
    const Context *c = &piece->context;
    return is_key ? token_at(c->keys, c, wanted, c->dim)
                  : token_at(c->values, c, wanted, c->value_dim);
}

static inline const bf16 *query_at(const Queries *q, const Context *c, int index) {
    return q->queries + index / q->group * q->stride + (int64_t)(index % q->group) * c->dim;
}

static inline bf16 *output_at(const Queries *q, const Context *c, int index) {
    return q->outputs + index / q->group * q->output_stride +
           (int64_t)(index % q->group) * c->value_dim;
}

#ifdef __AMX_BF16__

/* Scores of all queries and tokens, by tiles of 16 keys times 16 queries. */
static void score(const Piece *piece, const Piece *next, Room *room) {
    const Queries *q = &piece->queries;
    const Context *c = &piece->context;
    const int count = q->rows * q->group, whole = c->dim / DEPTH * DEPTH;
    _Alignas(64) int32_t pairs[MAX_HEAD_DIM / 2][MAX_QUERIES]; /* the queries, transposed */
    _Alignas(64) float sums[16][MAX_QUERIES];
    for (int i = 0; i < count; i++) {
        const int32_t *query = (const int32_t *)query_at(q, c, i);
        for (int d = 0; d < c->dim / 2; d++) pairs[d][i] = query[d];
    }
    const __m512i column = _mm512_slli_epi32(
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), 4);
    for (int64_t token = piece->first; token < piece->end; token += 16) {
        const bf16 *keys = token_at(c->keys, c, token, c->dim);
        const bf16 *soon = ahead(piece, next, token, 1);
        for (int d = 0; soon && d < 16 * c->dim; d += DEPTH)
            fetch(soon + d);
        _tile_zero(0);
        for (int d = 0; d < whole; d += DEPTH) {
            _tile_loadd(6, keys + d, c->dim * (int64_t)sizeof(bf16));
            _tile_loadd(7, pairs[d / 2], 64);
            _tile_dpbf16ps(0, 6, 7);
        }
        if (whole < c->dim) { /* tiles of the rest's size */
            _tile_loadd(4, keys + whole, c->dim * (int64_t)sizeof(bf16));
            _tile_loadd(5, pairs[whole / 2], 64);
            _tile_dpbf16ps(0, 4, 5);
        }
        _tile_stored(0, sums, 64);
        for (int i = 0; i < count; i++)
            _mm512_storeu_ps(room->scores + i * room->max_tokens + token - piece->first,
                             _mm512_i32gather_ps(column, &sums[0][i], 4));
    }
}

#else

/* Scores of all queries and tokens, WIDTH keys at a time. `rest` numbers of a head fill no register. */
static inline __attribute__((always_inline)) void score_but(const Piece *piece, const Piece *next,
                                                            int rest, Room *room) {
    const Queries *q = &piece->queries;
    const Context *c = &piece->context;
    const int whole = c->dim - rest;
    for (int64_t token = piece->first; token < piece->end; token += 16) {
        const bf16 *soon = ahead(piece, next, token, 1);
        for (int i = 0; i < q->rows * q->group; i++)
            for (int from = 0; from < 16; from += WIDTH) {
                const bf16 *keys = token_at(c->keys, c, token + from, c->dim);
                const bf16 *query = query_at(q, c, i);
                floats partial[WIDTH];
#pragma GCC unroll 16
                for (int t = 0; t < WIDTH; t++) partial[t] = all_of(0);
                for (int d = 0; d < whole; d += 2 * WIDTH) {
                    const ints part = load_ints(query + d);
#pragma GCC unroll 16
                    for (int t = 0; t < WIDTH; t++)
                        partial[t] = add_pairs(partial[t], part,
                                               load_ints(keys + (int64_t)t * c->dim + d));
                    if (i || !soon || d % DEPTH) continue;
#pragma GCC unroll 16
                    for (int t = 0; t < WIDTH; t++)
                        fetch(soon + (int64_t)(from + t) * c->dim + d);
                }
                if (rest) {
                    const ints part = load_first(query + whole, rest);
#pragma GCC unroll 16
                    for (int t = 0; t < WIDTH; t++)
                        partial[t] = add_pairs(partial[t], part,
                                               load_first(keys + (int64_t)t * c->dim + whole, rest));
                }
                store(room->scores + i * room->max_tokens + token + from - piece->first,
                      sums_of(partial));
            }
    }
}

static __attribute__((noinline)) void score_with_rest(const Piece *piece, const Piece *next,
                                                      Room *room) {
    score_but(piece, next, piece->context.dim % (2 * WIDTH), room);
}

static void score(const Piece *piece, const Piece *next, Room *room) {
    if (piece->context.dim % (2 * WIDTH))
        score_with_rest(piece, next, room);
    else
        score_but(piece, next, 0, room);
}

#endif

/* Turn scores [size], of which a query attends to [begin, end), into weights e^(score - highest).
   Return their sum. A sink is a score that counts in both and has no value. */
static float weigh(const float *scores, bf16 *weights, int64_t size, int64_t begin, int64_t end,
                   float scale, const float *sink) {
    floats highest = all_of(sink ? *sink / scale : -FLT_MAX), total = all_of(0);
    for (int64_t i = 0; i < size; i += WIDTH) {
        const mask seen = lanes_between((int)(begin - i), (int)(end - i));
        highest = choose(seen, larger(highest, load(scores + i)), highest);
    }
    const floats top = all_of(highest_of(highest)), by = all_of(scale);
    for (int64_t i = 0; i < size; i += WIDTH) {
        const mask seen = lanes_between((int)(begin - i), (int)(end - i));
        const floats below = (load(scores + i) - top) * by;
        const floats weight = choose(seen, exponential(larger(below, all_of(-80.0f))), all_of(0));
        total += weight;
        narrow(weights + i, weight);
    }
    if (!sink) return sum_of(total);
    float own[WIDTH];
    store(own, exponential(larger((all_of(*sink / scale) - top) * by, all_of(-80.0f))));
    return sum_of(total) + own[0];
}

/* Prepare scores [size] for e^x, with the softcap of Gemma 2 (Gemma Team, 2024, section 2). */
static void cap_scores(float *scores, int64_t size, const Context *c) {
    for (int64_t i = 0; i < size; i += WIDTH)
        store(scores + i, capped(load(scores + i) * all_of(c->scale), c->softcap));
}

enum { MIXED_COLUMNS = 4 * WIDTH };

/* The weighted sum of values for `count` of the queries, `vectors` times WIDTH of their columns,
   two tokens at a time. With `rest`, only so many columns of two vectors are read and written. Slots
   that no query attends to are not read: they may hold stale values. */
static inline __attribute__((always_inline)) void mix(const Piece *piece, const Piece *next,
                                                      int index, int count, int column, int vectors,
                                                      int rest, const Room *room,
                                                      const float *totals) {
    const Queries *q = &piece->queries;
    const Context *c = &piece->context;
    const bf16 *soon = NULL;
    floats sums[4][4];
    for (int i = 0; i < count; i++)
        for (int j = 0; j < vectors; j++) sums[i][j] = all_of(0);
    for (int64_t token = piece->first; token < piece->end; token += 2) {
        const bf16 *values = token_at(c->values, c, token, c->value_dim) + column;
        const bf16 *beside = token + 1 < piece->end ? values + c->value_dim : values;
        if (index == 0 && token % 16 == 0) soon = ahead(piece, next, token, 0);
        for (int j = 0; soon && j < 2 * vectors * WIDTH; j += DEPTH)
            fetch(soon + (token % 16 + j / (vectors * WIDTH)) * c->value_dim + column +
                  j % (vectors * WIDTH));
        ints pairs[4];
        if (rest)
            pair_up(load_first(values, rest), load_first(beside, rest), pairs);
        else
            for (int j = 0; j < vectors / 2; j++)
                pair_up(load_ints(values + 2 * WIDTH * j), load_ints(beside + 2 * WIDTH * j),
                        pairs + 2 * j);
        for (int i = 0; i < count; i++) {
            const ints weight = repeat_pair(room->weights + (index + i) * room->max_tokens +
                                            token - piece->first);
            for (int j = 0; j < vectors; j++) sums[i][j] = add_pairs(sums[i][j], pairs[j], weight);
        }
    }
    for (int i = 0; i < count; i++) {
        const floats share = all_of(1.0f / totals[index + i]);
        bf16 *out = output_at(q, c, index + i) + column;
        in_order(sums[i]);
        if (vectors == 4) in_order(sums[i] + 2);
        if (rest) {
            float last[2 * WIDTH];
            for (int j = 0; j < 2; j++) store(last + j * WIDTH, sums[i][j] * share);
            narrow_all(out, last, rest);
            continue;
        }
        for (int j = 0; j < vectors; j++) narrow(out + j * WIDTH, sums[i][j] * share);
    }
}

/* The same for the last columns of heads whose size is no multiple of 2 * WIDTH. */
static __attribute__((noinline)) void mix_rest(const Piece *piece, const Piece *next, int index,
                                               int count, int column, const Room *room,
                                               const float *totals) {
    const int rest = piece->context.value_dim - column;
    switch (count) {
    case 1: mix(piece, next, index, 1, column, 2, rest, room, totals); break;
    case 2: mix(piece, next, index, 2, column, 2, rest, room, totals); break;
    case 3: mix(piece, next, index, 3, column, 2, rest, room, totals); break;
    default: mix(piece, next, index, 4, column, 2, rest, room, totals);
    }
}

/* Set the range of tokens that a piece attends to. */
static void limit(Piece *piece) {
    const Queries *q = &piece->queries;
    const int64_t window = piece->context.window;
    const int64_t seen = q->position + 1 > window ? q->position + 1 - window : 0;
    piece->first = seen / 16 * 16;
    piece->end = q->position + q->rows;
}

/* The same for up to MIXED_QUERIES of the queries. */
static inline __attribute__((always_inline)) void mix_some(const Piece *piece, const Piece *next,
                                                           int index, int count, const Room *room,
                                                           const float *totals) {
    const int dim = piece->context.value_dim;
    int column = 0;
    for (; column + MIXED_COLUMNS <= dim; column += MIXED_COLUMNS)
        mix(piece, next, index, count, column, 4, 0, room, totals);
    if (dim - column >= 2 * WIDTH) {
        mix(piece, next, index, count, column, 2, 0, room, totals);
        column += 2 * WIDTH;
    }
    if (column < dim) mix_rest(piece, next, index, count, column, room, totals);
}

/* `next` is the piece that this thread computes afterwards, or NULL. */
static void attend(const Piece *piece, const Piece *next, Room *room) {
    const Queries *q = &piece->queries;
    const Context *c = &piece->context;
    const int count = q->rows * q->group;
    const int64_t first = piece->first, end = piece->end, size = (end - first + 15) / 16 * 16;
    float totals[MAX_QUERIES];
    score(piece, next, room);
    for (int i = 0; i < count; i++) {
        const int64_t own_end = q->position + i / q->group + 1;
        const int64_t own_begin = own_end > c->window ? own_end - c->window : 0;
        float *scores = room->scores + i * room->max_tokens;
        if (c->softcap > 0) cap_scores(scores, size, c);
        totals[i] = weigh(scores, room->weights + i * room->max_tokens, size, own_begin - first,
                          own_end - first, c->softcap > 0 ? 1 : c->scale,
                          c->sinks ? c->sinks + i % q->group : NULL);
    }
    for (int i = 0; i < count; i += MIXED_QUERIES)
        switch (count - i < MIXED_QUERIES ? count - i : MIXED_QUERIES) {
        case 1: mix_some(piece, next, i, 1, room, totals); break;
        case 2: mix_some(piece, next, i, 2, room, totals); break;
        case 3: mix_some(piece, next, i, 3, room, totals); break;
        default: mix_some(piece, next, i, 4, room, totals);
        }
}
