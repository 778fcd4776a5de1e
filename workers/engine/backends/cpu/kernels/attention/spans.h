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
    int64_t chunk;          /* it attends to its own chunk of so many tokens; 0 if there are none */
    float scale, softcap;
    const float *sinks; /* of the heads of a group, or NULL */
} Context;

/* The tokens [start + begin, start + end) of the sequence whose blocks are in `table`. `start` is a
   multiple of SPAN, `begin` of SLICE; it lies `offset` tokens into the table's block `block`. */
typedef struct {
    const Context *context;
    const int64_t *table;
    int64_t start, block;
    int offset, begin, end;
} Span;

/* Numbers per key and row of queries: as many as tiles multiply. Columns of packed values. */
#ifdef __AMX_BF16__
static inline int depth_of(int dim) { return (dim + DEPTH - 1) / DEPTH * DEPTH; }
#else
static inline int depth_of(int dim) { return dim; }
#endif
static inline int columns_of_values(int value_dim) {
    return (value_dim + COLUMN_STEP - 1) / COLUMN_STEP * COLUMN_STEP;
}

/* How many tokens of a span are computed, of which queries see the first `count`: whole tiles of them. */
static inline int size_of(int count) { return (count + DEPTH - 1) / DEPTH * DEPTH; }

/* Where a span's slice of tokens lies in pages of `dim` numbers per token; NULL if the span does not
   reach it. */
static inline const bf16 *find_slice(const Span *span, int slice, const bf16 *pages, int dim) {
    if (slice < span->begin || slice >= span->end) return NULL;
    const int block_size = span->context->block_size;
    const int64_t *block = span->table + span->block;
    int offset = span->offset + slice;
    for (; offset >= block_size; offset -= block_size) block++; /* faster than a division */
    return pages + (*block * block_size + offset) * dim;
}

/* What to prefetch while a span is computed: lines of slices of values, then of keys. Pages are
   scattered, so the hardware cannot predict them, and waiting for them takes longer than computing. What
   products read where it lies goes into the L1 cache: values with the span's own scores, the next span's
   keys with its values, so that little is under way at once. A span earlier, each goes into the L2 cache:
   a core has few requests of the L1 cache under way, and memory would keep them too long. Values that are
   packed first, and their keys, are fetched with the span before, into the L2 cache only where there are
   tiles. */
typedef struct {
    const Span *near[2], *far[2]; /* of values and of keys; one without a context is none */
    const bf16 *place;
    int64_t distance;  /* from there to the line that goes into the L2 cache */
    int lines, slices; /* lines left from `place` on; slices begun */
    int is_near;       /* whether lines go into the L1 cache too */
} Prefetch;

/* A core waits if too many requests are under way. So single lines are fetched between products, in the
   order of memory, rather than many at once. Where products take longer than memory, two at once:
   counting them takes time too. */
#ifdef __AMX_BF16__
enum { HAS_TILES = 1, LINES_AT_ONCE = 4 };
#else
enum { HAS_TILES = 0, LINES_AT_ONCE = WIDTH == 16 ? 1 : 2 };
#endif
enum { LINE = 32 /* numbers */, SLICES = 2 * SPAN / SLICE /* of keys and values */ };
enum { ALL_LINES = 2 * SPAN * MAX_HEAD_DIM / LINE };

/* Begin to prefetch for `span`, of which products read the values where they lie if they `are_read`, and
   for the two spans that follow it. */
static inline Prefetch begin_ahead(const Span *span, int are_read, const Span *next,
                                   const Span *after) {
    if (!are_read) return (Prefetch){.near = {next, next}, .far = {next, next}, .is_near = !HAS_TILES};
    return (Prefetch){.near = {span, next}, .far = {next, after}, .is_near = 1};
}

/* Where the slice of values or keys lies that is prefetched as the i-th, or NULL. */
static const bf16 *find_ahead(const Span *const spans[2], int i) {
    const int is_key = i >= SLICES / 2;
    const Span *span = spans[is_key];
    const Context *c = span->context;
    if (!c) return NULL;
    return find_slice(span, i % (SLICES / 2) * SLICE, is_key ? c->keys : c->values,
                      is_key ? c->dim : c->value_dim);
}

/* Go to the next slice, if there is one; one that is missing beside it is replaced by it. Not inline, so
   that loops keep their registers. */
static __attribute__((noinline, cold)) int turn_ahead(Prefetch *a) {
    while (a->slices < SLICES) {
        const int i = a->slices++;
        const bf16 *near = find_ahead(a->near, i), *far = find_ahead(a->far, i);
        if (!near && !far) continue;
        const Context *c = (near ? a->near : a->far)[i >= SLICES / 2]->context;
        a->place = near ? near : far;
        a->distance = far ? far - a->place : 0;
        a->lines = SLICE * (i >= SLICES / 2 ? c->dim : c->value_dim) / LINE;
        return 1;
    }
    a->lines = 0;
    return 0;
}

/* Prefetch the next lines, if there are as many, `at_once` at a time. */
static inline __attribute__((always_inline)) void fetch_some(Prefetch *a, int lines, int at_once) {
    for (int i = 0; i < lines; i += at_once) {
        if (!a->lines && (a->slices == SLICES || !turn_ahead(a))) return;
        for (int j = 0; j < at_once; j++) {
            if (!HAS_TILES || a->is_near) fetch_near(a->place + j * LINE);
            fetch(a->place + a->distance + j * LINE);
        }
        a->place += at_once * LINE;
        a->lines -= at_once;
    }
}
static inline void fetch_ahead(Prefetch *a, int lines) { fetch_some(a, lines, LINES_AT_ONCE); }

/* Up to 2 * WIDTH values of a token from `column` on, and zeros behind the last of `dim`. */
static inline ints load_values(const bf16 *values, int column, int dim) {
    if (column + 2 * WIDTH <= dim) return load_ints(values + column);
    return column < dim ? load_first(values + column, dim - column) : all_ints(0);
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
static void pack_slice(const bf16 *values, int dim, int count, bf16 *out, Prefetch *ahead) {
    const int whole = dim / (2 * WIDTH) * (2 * WIDTH);
    const ints zero = all_ints(0);
    for (int t = 0; t < SLICE; t += 2, values += 2 * dim, out += 2 * LANES) {
        fetch_ahead(ahead, 4);
        for (int d = 0; d < whole; d += 2 * WIDTH)
            pack_pair(t < count ? load_ints(values + d) : zero,
                      t + 1 < count ? load_ints(values + dim + d) : zero, d, out);
        for (int d = whole; d < columns_of_values(dim); d += 2 * WIDTH)
            pack_pair(t < count && d < dim ? load_first(values + d, dim - d) : zero,
                      t + 1 < count && d < dim ? load_first(values + dim + d, dim - d) : zero, d,
                      out);
    }
}

/* Find the slices of a span's keys, each packed as [depth / 2][SLICE][2]: a block of a weight whose
   columns are tokens. Pages hold them so, but tiles need keys that end with zeros, for which `room` is.
   Scores of slices outside the span are not used; any keys stand in for them. */
static void find_keys(const Span *span, bf16 *room, const bf16 **slices) {
    const Context *c = span->context;
    for (int t = 0; t < size_of(span->end); t += SLICE) {
        const bf16 *keys = find_slice(span, t, c->keys, c->dim);
        slices[t / SLICE] = keys ? keys : find_slice(span, span->begin, c->keys, c->dim);
    }
    const int numbers = SLICE * c->dim, zeros = SLICE * depth_of(c->dim) - numbers;
    if (!zeros) return;
    for (int i = 0; i < size_of(span->end) / SLICE; i++, room += numbers + zeros) {
        memcpy(room, slices[i], (size_t)numbers * sizeof(bf16));
        memset(room + numbers, 0, (size_t)zeros * sizeof(bf16));
        slices[i] = room;
    }
}

/* Pack the values of a span, and zeros outside it. */
static void pack_values(const Span *span, bf16 *out, Prefetch *ahead) {
    const Context *c = span->context;
    for (int t = 0; t < size_of(span->end); t += SLICE) {
        const bf16 *values = find_slice(span, t, c->values, c->value_dim);
        pack_slice(values, c->value_dim, values ? span->end - t : 0, out + t * LANES, ahead);
    }
}
