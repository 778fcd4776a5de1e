/* The softmax of attention, one span of scores after the other (Milakov and Gimelshein, "Online
   normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022). */

#pragma once
#include <float.h>

#include "values.h"

/* What is known of each query after some spans: of its scores times `units`, the highest one; the sum
   of its weights 2^(score - highest), as parts; and the sum of values with these weights. */
typedef struct {
    float *tops;    /* [queries] */
    float *totals;  /* [queries][WIDTH] */
    float *outputs; /* [queries][columns] */
    int64_t *ends;  /* [queries]: the tokens that a query follows, itself included */
} State;

/* Lower than any score, but no infinity: the difference of two is a number. */
#define LOWEST (-1e30f)

/* The factor by which scores become powers of two, after the softcap if there is one. */
static inline float units_of(const Context *c) {
    return (c->softcap > 0 ? 1 : c->scale) * LOG2_E;
}

/* Which of a span's tokens a query sees: [begin, end). */
typedef struct {
    int begin, end;
} Seen;

static inline int within_span(int64_t token) {
    return token < 0 ? 0 : token > SPAN ? SPAN : (int)token;
}

/* The first token that a query sees which follows the tokens before `end`, itself included. */
static inline int64_t find_first(const Context *c, int64_t end) {
    const int64_t by_window = end - c->window;
    if (!c->chunk) return by_window;
    const int64_t by_chunk = (end - 1) / c->chunk * c->chunk;
    return by_chunk > by_window ? by_chunk : by_window;
}

static inline Seen find_seen(const Context *c, int64_t start, int64_t end) {
    return (Seen){within_span(find_first(c, end) - start), within_span(end - start)};
}

/* Whether any of `rows` queries with these ends sees a token of a span. */
static int is_seen(const Span *span, const int64_t *ends, int rows) {
    int sees = 0;
    for (int i = 0; i < rows; i++) {
        const Seen seen = find_seen(span->context, span->start, ends[i]);
        sees |= seen.begin < seen.end;
    }
    return sees;
}

/* Limit scores with the softcap of Gemma 2 (Gemma Team, 2024, section 2). */
static void cap_scores(const Context *c, float *scores, int size) {
    for (int i = 0; i < size; i += WIDTH)
        store(scores + i, capped(load(scores + i) * all_of(c->scale), c->softcap));
}

static inline float highest_seen(const float *scores, int size, Seen seen) {
    floats highest = all_of(-FLT_MAX);
    if (seen.begin == 0 && seen.end >= size)
        for (int i = 0; i < size; i += WIDTH) highest = larger(highest, load(scores + i));
    else
        for (int i = 0; i < size; i += WIDTH)
            highest = choose(lanes_between(seen.begin - i, seen.end - i),
                             larger(highest, load(scores + i)), highest);
    return highest_of(highest);
}

/* Turn scores into weights in the form that products take, and add these to `total`. */
static inline void weigh(const float *scores, int size, Seen seen, float units, float top,
                         float *total, factor *weights) {
    const floats scale = all_of(units), below = all_of(-top);
    const int sees_all = seen.begin == 0 && seen.end >= size;
    floats sum = load(total);
    for (int i = 0; i < size; i += WIDTH) {
        floats weight = power_of_two(multiply_add(load(scores + i), scale, below));
        if (!sees_all)
            weight = choose(lanes_between(seen.begin - i, seen.end - i), weight, all_of(0));
        sum += weight;
        put_factors(weights + i, weight);
    }
    store(total, sum);
}

/* Turn the scores [rows][SPAN] of queries from `query` on into weights, and scale what these queries
   have summed so far to their new highest scores. */
static void weigh_rows(const Span *span, State *s, int query, int rows, float (*scores)[SPAN],
                       factor (*weights)[SPAN]) {
    const Context *c = span->context;
    const int size = size_of(span), columns = columns_of_values(c->value_dim);
    const float units = units_of(c);
    float tops[ROWS_AT_ONCE], fading[ROWS_AT_ONCE];
    for (int i = 0; i < rows; i++) {
        const Seen seen = find_seen(c, span->start, s->ends[query + i]);
        if (c->softcap > 0) cap_scores(c, scores[i], size);
        const float highest = highest_seen(scores[i], size, seen) * units;
        tops[i] = highest > s->tops[query + i] ? highest : s->tops[query + i];
    }
    for (int i = 0; i < rows; i += WIDTH)
        store(fading + i, power_of_two(load(s->tops + query + i) - load(tops + i)));
    for (int i = 0; i < rows; i++) {
        float *total = s->totals + (query + i) * WIDTH, *outputs = s->outputs + (query + i) * columns;
        const floats fade = all_of(fading[i]);
        s->tops[query + i] = tops[i];
        store(total, load(total) * fade);
        weigh(scores[i], size, find_seen(c, span->start, s->ends[query + i]), units, tops[i], total,
              weights[i]);
        if (fading[i] == 1) continue;
        for (int j = 0; j < columns; j += WIDTH) store(outputs + j, load(outputs + j) * fade);
    }
}
