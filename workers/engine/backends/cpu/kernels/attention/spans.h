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

/* How many tokens of a span are computed: whole tiles of them. */
static inline int size_of(const Span *span) { return (span->end + DEPTH - 1) / DEPTH * DEPTH; }

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

/* The span to prefetch while another is computed. Pages are scattered, so the hardware cannot predict
   them, and waiting for them takes longer than computing. A core has few requests under way at once,
   and waits if there are more, so they are spread over the steps of computing. */
typedef struct {
    const Span *span; /* or NULL */
    const bf16 *place;
    int quads, slices; /* groups of four lines left from `place` on; slices begun */
} Prefetch;

/* How many groups of four lines are fetched with eight inputs of a block's products, and with the
   values of two tokens. With few queries, these are all. */
#ifdef __AMX_BF16__
enum { WITH_INPUTS = 1, WITH_VALUES = 1 };
#else
enum { WITH_INPUTS = 1, WITH_VALUES = 1 };
#endif
enum { LINE = 32 /* numbers */, SLICES = 2 * SPAN / SLICE /* of keys and values */ };

static inline Prefetch begin_ahead(const Span *span) {
    return (Prefetch){.span = span, .slices = span ? 0 : SLICES};
}

/* Go to the next slice, if there is one: the keys of a span, then its values. Not inline, so that loops
   keep their registers. */
static __attribute__((noinline, cold)) int turn_ahead(Prefetch *a) {
    while (a->slices < SLICES) {
        const Context *c = a->span->context;
        const int i = a->slices++, is_value = i >= SLICES / 2, dim = is_value ? c->value_dim : c->dim;
        a->place = find_slice(a->span, i % (SLICES / 2) * SLICE, is_value ? c->values : c->keys, dim);
        a->quads = SLICE * dim / LINE / 4;
        if (a->place) return 1;
    }
    a->quads = 0;
    return 0;
}

/* Prefetch the next `quads` groups of four lines, if there are as many. */
static inline void fetch_ahead(Prefetch *a, int quads) {
    for (int i = 0; i < quads; i++) {
        if (!a->quads && !turn_ahead(a)) return;
        for (int j = 0; j < 4; j++) fetch(a->place + j * LINE);
        a->place += 4 * LINE;
        a->quads--;
    }
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
        fetch_ahead(ahead, WITH_VALUES);
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
    for (int t = 0; t < size_of(span); t += SLICE) {
        const bf16 *keys = find_slice(span, t, c->keys, c->dim);
        slices[t / SLICE] = keys ? keys : find_slice(span, span->begin, c->keys, c->dim);
    }
    const int numbers = SLICE * c->dim, zeros = SLICE * depth_of(c->dim) - numbers;
    if (!zeros) return;
    for (int i = 0; i < size_of(span) / SLICE; i++, room += numbers + zeros) {
        memcpy(room, slices[i], (size_t)numbers * sizeof(bf16));
        memset(room + numbers, 0, (size_t)zeros * sizeof(bf16));
        slices[i] = room;
    }
}

/* Pack the values of a span, and zeros outside it. */
static void pack_values(const Span *span, bf16 *out, Prefetch *ahead) {
    const Context *c = span->context;
    for (int t = 0; t < size_of(span); t += SLICE) {
        const bf16 *values = find_slice(span, t, c->values, c->value_dim);
        pack_slice(values, c->value_dim, values ? span->end - t : 0, out + t * LANES, ahead);
    }
}
