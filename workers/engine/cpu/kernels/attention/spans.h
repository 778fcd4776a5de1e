/* Keys and values of a span of tokens, taken from their pages and packed as products read weights. */

#pragma once
#include "../activations.h"

/* Attention goes over the tokens of a sequence in spans of SPAN tokens, each from a multiple of SPAN
   on. So the sums of a query are made of the same parts in the same order, whatever is computed
   beside it. Pages hold SLICE tokens or a multiple of that. */
enum { SPAN = 64, SLICE = 16 };

/* Columns of packed values are a multiple of this: what `pair_up` writes, or a block of columns. */
enum { COLUMN_STEP = 2 * WIDTH > LANES ? 2 * WIDTH : LANES };

/* Keys [blocks][block_size][dim] and values [blocks][block_size][value_dim] of one key head, and how
   queries attend to them. */
typedef struct {
    const bf16 *keys, *values;
    int32_t block_size;     /* a multiple of SLICE */
    int32_t dim, value_dim; /* multiples of 8 */
    int64_t window;         /* tokens that a token attends to, itself included */
    float scale, softcap;
    const float *sinks; /* of the heads of a group, or NULL */
} Context;

/* The tokens [start + begin, start + end) of the sequence whose blocks are in `table`. `start` is a
   multiple of SPAN, `begin` of SLICE. */
typedef struct {
    const Context *context;
    const int64_t *table;
    int64_t start;
    int begin, end;
} Span;

/* Numbers per packed key, and per packed value. Rows of queries are as long as keys. */
static inline int depth_of(int dim) { return (dim + DEPTH - 1) / DEPTH * DEPTH; }
static inline int columns_of_values(int value_dim) {
    return (value_dim + COLUMN_STEP - 1) / COLUMN_STEP * COLUMN_STEP;
}

/* How many tokens of a span are computed: whole tiles of them. */
static inline int size_of(const Span *span) { return (span->end + DEPTH - 1) / DEPTH * DEPTH; }

/* Where a span's slice of tokens lies in pages of `dim` numbers per token; NULL if the span does not
   reach it. */
static inline const bf16 *find_slice(const Span *span, int slice, const bf16 *pages, int dim) {
    if (slice < span->begin || slice >= span->end) return NULL;
    const int block_size = span->context->block_size;
    const int64_t token = span->start + slice;
    return pages + (span->table[token / block_size] * block_size + token % block_size) * dim;
}

/* The span to prefetch while another is computed. Pages are scattered, so the hardware cannot predict
   them, and waiting for them takes longer than computing. A core has few requests under way at once,
   and waits if there are more, so they are spread over the steps of computing. */
typedef struct {
    const Span *span; /* or NULL */
    const bf16 *place;
    int lines, slices; /* cache lines left from `place` on, slices of keys and values behind */
    int all;           /* lines of the whole span */
} Prefetch;

/* How many lines are fetched with the values of two tokens (in 256ths of all), with a square of keys,
   with 8 inputs of products, and with each of two passes over a row of scores (in 256ths). With heads
   of 64 and few queries, these are some 256. They follow the time that each step takes. */
#ifdef __AMX_BF16__
enum { WITH_VALUES = 4, WITH_KEYS = 8, WITH_INPUTS = 2, WITH_SCORES = 8 };
#else
enum { WITH_VALUES = 1, WITH_KEYS = WIDTH * WIDTH / 40, WITH_INPUTS = 7, WITH_SCORES = 3 };
#endif
enum { LINE = 32 /* numbers */ };

static inline Prefetch begin_ahead(const Span *span) {
    const int numbers = span ? span->context->dim + span->context->value_dim : 0;
    return (Prefetch){.span = span, .slices = span ? 0 : 2 * SPAN / SLICE, .all = SPAN * numbers / LINE};
}

/* Go to the next slice. */
static inline void turn_ahead(Prefetch *a) {
    const Context *c = a->span->context;
    const int is_value = a->slices & 1, dim = is_value ? c->value_dim : c->dim;
    a->place = find_slice(a->span, a->slices / 2 * SLICE, is_value ? c->values : c->keys, dim);
    a->lines = a->place ? SLICE * dim / LINE : 0;
    a->slices++;
}

/* Prefetch the next `lines`, if there are as many. */
static inline void fetch_ahead(Prefetch *a, int lines) {
    while (lines > 0) {
        if (!a->lines) {
            if (a->slices == 2 * SPAN / SLICE) return;
            turn_ahead(a);
            continue;
        }
        const int some = lines < a->lines ? lines : a->lines;
        for (int i = 0; i < some; i++, a->place += LINE) fetch(a->place);
        a->lines -= some;
        lines -= some;
    }
}

/* Write 2 * WIDTH numbers of WIDTH keys so that the pairs of successive keys lie side by side. */
static inline void pack_square(const bf16 *keys, int stride, bf16 *out) {
    ints pairs[4];
    for (int i = 0; i < WIDTH; i += 4) {
        load_four_columns(keys + 2 * i, stride * (int64_t)sizeof(bf16), pairs);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) store_ints((int32_t *)out + (i + j) * SLICE, pairs[j]);
    }
}

/* Pack a slice of keys [SLICE][dim] as [depth / 2][SLICE][2]: a block of a weight whose columns are
   tokens. */
static void pack_keys(const bf16 *keys, int dim, bf16 *out, Prefetch *ahead) {
    enum { SQUARE = 2 * WIDTH };
    const int whole = dim / SQUARE * SQUARE;
    for (int d = 0; d < whole; d += SQUARE)
        for (int t = 0; t < SLICE; t += WIDTH) {
            pack_square(keys + t * dim + d, dim, out + d * SLICE + 2 * t);
            fetch_ahead(ahead, WITH_KEYS);
        }
    if (whole == depth_of(dim)) return;
    _Alignas(64) bf16 rest[SLICE][DEPTH] = {{0}};
    for (int t = 0; t < SLICE; t++)
        memcpy(rest[t], keys + t * dim + whole, (size_t)(dim - whole) * sizeof(bf16));
    for (int d = 0; d < depth_of(dim) - whole; d += SQUARE)
        for (int t = 0; t < SLICE; t += WIDTH)
            pack_square(rest[t] + d, DEPTH, out + (whole + d) * SLICE + 2 * t);
}

/* Write 2 * WIDTH columns of two tokens, from `column` on. */
static inline void pack_pair(ints even, ints odd, int column, bf16 *out) {
    ints pairs[2];
    pair_up(even, odd, pairs);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++, column += WIDTH)
        store_ints((int32_t *)(out + column / LANES * SPAN * LANES) + column % LANES, pairs[i]);
}

/* Pack the first `count` of a slice of values [SLICE][dim], and zeros for the others, which may hold
   anything, as [columns / LANES][SPAN / 2][LANES][2]: a weight whose inputs are tokens. Its columns
   are in the order of `pair_up`. */
static void pack_values(const bf16 *values, int dim, int count, bf16 *out, Prefetch *ahead) {
    const int whole = dim / (2 * WIDTH) * (2 * WIDTH);
    const ints zero = all_ints(0);
    for (int t = 0; t < SLICE; t += 2, values += 2 * dim, out += 2 * LANES) {
        fetch_ahead(ahead, ahead->all * WITH_VALUES / 256);
        for (int d = 0; d < whole; d += 2 * WIDTH)
            pack_pair(t < count ? load_ints(values + d) : zero,
                      t + 1 < count ? load_ints(values + dim + d) : zero, d, out);
        for (int d = whole; d < columns_of_values(dim); d += 2 * WIDTH)
            pack_pair(t < count && d < dim ? load_first(values + d, dim - d) : zero,
                      t + 1 < count && d < dim ? load_first(values + dim + d, dim - d) : zero, d,
                      out);
    }
}

/* Pack the keys of a span. Those outside it stay undefined: their scores are not used. */
static void pack_span_keys(const Span *span, bf16 *out, Prefetch *ahead) {
    const Context *c = span->context;
    for (int t = 0; t < SPAN; t += SLICE) {
        const bf16 *keys = find_slice(span, t, c->keys, c->dim);
        if (keys) pack_keys(keys, c->dim, out + t * depth_of(c->dim), ahead);
    }
}

/* Pack the values of a span, and zeros outside it. */
static void pack_span_values(const Span *span, bf16 *out, Prefetch *ahead) {
    const Context *c = span->context;
    for (int t = 0; t < size_of(span); t += SLICE) {
        const bf16 *values = find_slice(span, t, c->values, c->value_dim);
        pack_values(values, c->value_dim, values ? span->end - t : 0, out + t * LANES, ahead);
    }
}
