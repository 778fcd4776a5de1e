/* Queries over the paged keys and values of one sequence, for one key head. */

#pragma once
#include <float.h>
#include <immintrin.h>
#include <math.h>
#include <stdint.h>

#include "matmul.h"

enum { MAX_QUERIES = 16, MAX_HEAD_DIM = 256, AHEAD = 128 /* tokens */ };

/* Keys and values of one key head, [blocks][block_size][dim], and where a sequence lies in them. */
typedef struct {
    const bf16 *keys, *values;
    const int64_t *table;
    int32_t block_size; /* a multiple of 16 */
    int32_t dim;        /* a multiple of 64 */
    int64_t window;     /* tokens that a token sees, itself included */
    float scale;
} Context;

/* Up to MAX_QUERIES queries: `group` heads of each of `rows` tokens that follow each other, the
   first at `position`. A token's queries lie side by side; the next token's `stride` further. */
typedef struct {
    bf16 *queries; /* become the outputs */
    int64_t stride;
    int32_t rows, group;
    int64_t position;
} Queries;

/* One piece of attention: queries, and the tokens [first, end) that any of them sees; `first` is a
   multiple of 16. */
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

/* e^x: 2^n times a polynomial of the rest (the coefficients of Cephes' expf). */
static inline __m512 exponential(__m512 x) {
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 0);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.9875691500e-4f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
    p = _mm512_fmadd_ps(_mm512_mul_ps(p, r), r, _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
    return _mm512_scalef_ps(p, n);
}

static inline const bf16 *token_at(const bf16 *pages, const Context *c, int64_t token) {
    const int64_t block = c->table[token / c->block_size];
    return pages + (block * c->block_size + token % c->block_size) * c->dim;
}

/* Where the keys or values lie that are needed AHEAD tokens after `token`, in the next piece once
   this one ends, or NULL. Pages lie anywhere, which hardware cannot foresee, and waiting for them
   takes longer than computing: so for every line that is read one is asked for. */
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
    return token_at(is_key ? c->keys : c->values, c, wanted);
}

static inline bf16 *query_at(const Queries *q, const Context *c, int index) {
    return q->queries + index / q->group * q->stride + (int64_t)(index % q->group) * c->dim;
}

#ifdef __AMX_BF16__

/* Scores of all queries and tokens, by tiles of 16 keys times 16 queries. */
static void score(const Piece *piece, const Piece *next, Room *room) {
    const Queries *q = &piece->queries;
    const Context *c = &piece->context;
    const int count = q->rows * q->group;
    _Alignas(64) int32_t pairs[MAX_HEAD_DIM / 2][MAX_QUERIES]; /* the queries, transposed */
    _Alignas(64) float sums[16][MAX_QUERIES];
    for (int i = 0; i < count; i++) {
        const int32_t *query = (const int32_t *)query_at(q, c, i);
        for (int d = 0; d < c->dim / 2; d++) pairs[d][i] = query[d];
    }
    const __m512i column = _mm512_slli_epi32(
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), 4);
    for (int64_t token = piece->first; token < piece->end; token += 16) {
        const bf16 *keys = token_at(c->keys, c, token);
        const bf16 *soon = ahead(piece, next, token, 1);
        for (int d = 0; soon && d < 16 * c->dim; d += DEPTH)
            _mm_prefetch((const char *)(soon + d), _MM_HINT_T1);
        _tile_zero(0);
        for (int d = 0; d < c->dim; d += DEPTH) {
            _tile_loadd(6, keys + d, c->dim * (int64_t)sizeof(bf16));
            _tile_loadd(7, pairs[d / 2], 64);
            _tile_dpbf16ps(0, 6, 7);
        }
        _tile_stored(0, sums, 64);
        for (int i = 0; i < count; i++)
            _mm512_storeu_ps(room->scores + i * room->max_tokens + token - piece->first,
                             _mm512_i32gather_ps(column, &sums[0][i], 4));
    }
}

#else

/* The sum of each of 16 vectors, in one. */
static inline __m512 sums_of(__m512 v[16]) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        v[i] = _mm512_add_ps(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]),
                             _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const __m512d a = _mm512_castps_pd(v[2 * i]), b = _mm512_castps_pd(v[2 * i + 1]);
        v[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
#define HALVES(a, b) \
    _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd))
    return HALVES(HALVES(v[0], v[1]), HALVES(v[2], v[3]));
#undef HALVES
}

/* Scores of all queries and tokens, 16 keys at a time. */
static void score(const Piece *piece, const Piece *next, Room *room) {
    const Queries *q = &piece->queries;
    const Context *c = &piece->context;
    for (int64_t token = piece->first; token < piece->end; token += 16) {
        const bf16 *keys = token_at(c->keys, c, token);
        const bf16 *soon = ahead(piece, next, token, 1);
        for (int i = 0; i < q->rows * q->group; i++) {
            const bf16 *query = query_at(q, c, i);
            __m512 partial[16];
#pragma GCC unroll 16
            for (int t = 0; t < 16; t++) partial[t] = _mm512_setzero_ps();
            for (int d = 0; d < c->dim; d += DEPTH) {
                const __m512i part = _mm512_loadu_si512(query + d);
#pragma GCC unroll 16
                for (int t = 0; t < 16; t++)
                    partial[t] = add_pairs(partial[t], part,
                                           _mm512_loadu_si512(keys + (int64_t)t * c->dim + d));
                if (i || !soon) continue;
#pragma GCC unroll 16
                for (int t = 0; t < 16; t++)
                    _mm_prefetch((const char *)(soon + (int64_t)t * c->dim + d), _MM_HINT_T1);
            }
            _mm512_storeu_ps(room->scores + i * room->max_tokens + token - piece->first,
                             sums_of(partial));
        }
    }
}

#endif

/* Scores [size], of which a query sees [begin, end), to weights e^(score - highest); their sum. */
static float weigh(const float *scores, bf16 *weights, int64_t size, int64_t begin, int64_t end,
                   float scale) {
    const __m512i step = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512 highest = _mm512_set1_ps(-FLT_MAX), total = _mm512_setzero_ps();
#define SEEN(i)                                                                             \
    (_mm512_cmplt_epi32_mask(step, _mm512_set1_epi32((int)(end - (i)))) &                   \
     _mm512_cmpge_epi32_mask(step, _mm512_set1_epi32((int)(begin - (i)))))
    for (int64_t i = 0; i < size; i += 16)
        highest = _mm512_mask_max_ps(highest, SEEN(i), highest, _mm512_loadu_ps(scores + i));
    const __m512 top = _mm512_set1_ps(_mm512_reduce_max_ps(highest)), by = _mm512_set1_ps(scale);
    for (int64_t i = 0; i < size; i += 16) {
        const __m512 below = _mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(scores + i), top), by);
        const __m512 weight = _mm512_maskz_mov_ps(
            SEEN(i), exponential(_mm512_max_ps(below, _mm512_set1_ps(-80.0f))));
        total = _mm512_add_ps(total, weight);
        narrow(weights + i, weight);
    }
#undef SEEN
    return _mm512_reduce_add_ps(total);
}

static inline void store_mixed(bf16 *out, __m512 low, __m512 high, __m512 share) {
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i rest = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    narrow(out, _mm512_mul_ps(_mm512_permutex2var_ps(low, first, high), share));
    narrow(out + 16, _mm512_mul_ps(_mm512_permutex2var_ps(low, rest, high), share));
}

/* The mixture of values for `count` of the queries, 64 of `dim` columns, two tokens at a time.
   Places that nobody may see are not read: another owner may have left anything there. */
static inline __attribute__((always_inline)) void mix(const Piece *piece, const Piece *next,
                                                      int index, int count, int column,
                                                      const Room *room, const float *totals) {
    const Queries *q = &piece->queries;
    const Context *c = &piece->context;
    const bf16 *soon = NULL;
    __m512 sums[4][4];
    for (int i = 0; i < count; i++)
        for (int j = 0; j < 4; j++) sums[i][j] = _mm512_setzero_ps();
    for (int64_t token = piece->first; token < piece->end; token += 2) {
        const bf16 *values = token_at(c->values, c, token) + column;
        const bf16 *beside = token + 1 < piece->end ? values + c->dim : values;
        if (index == 0 && token % 16 == 0) soon = ahead(piece, next, token, 0);
        for (int j = 0; soon && j < 4; j++)
            _mm_prefetch((const char *)(soon + (token % 16 + j / 2) * c->dim + column + j % 2 * 32),
                         _MM_HINT_T1);
        __m512i pairs[4];
        for (int j = 0; j < 2; j++) {
            const __m512i even = _mm512_loadu_si512(values + 32 * j);
            const __m512i odd = _mm512_loadu_si512(beside + 32 * j);
            pairs[2 * j] = _mm512_unpacklo_epi16(even, odd);
            pairs[2 * j + 1] = _mm512_unpackhi_epi16(even, odd);
        }
        for (int i = 0; i < count; i++) {
            const __m512i weight =
                broadcast_pair(room->weights + (index + i) * room->max_tokens + token -
                               piece->first);
            for (int j = 0; j < 4; j++) sums[i][j] = add_pairs(sums[i][j], pairs[j], weight);
        }
    }
    for (int i = 0; i < count; i++) {
        const __m512 share = _mm512_set1_ps(1.0f / totals[index + i]);
        bf16 *out = query_at(q, c, index + i) + column;
        store_mixed(out, sums[i][0], sums[i][1], share);
        store_mixed(out + 32, sums[i][2], sums[i][3], share);
    }
}

/* Say which tokens a piece sees. */
static void limit(Piece *piece) {
    const Queries *q = &piece->queries;
    const int64_t window = piece->context.window;
    const int64_t seen = q->position + 1 > window ? q->position + 1 - window : 0;
    piece->first = seen / 16 * 16;
    piece->end = q->position + q->rows;
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
        totals[i] = weigh(room->scores + i * room->max_tokens, room->weights + i * room->max_tokens,
                          size, own_begin - first, own_end - first, c->scale);
    }
    for (int i = 0; i < count; i += 4)
        for (int column = 0; column < c->dim; column += 64) switch (count - i) {
            case 1: mix(piece, next, i, 1, column, room, totals); break;
            case 2: mix(piece, next, i, 2, column, room, totals); break;
            case 3: mix(piece, next, i, 3, column, room, totals); break;
            default: mix(piece, next, i, 4, column, room, totals);
            }
}
