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

/* The least and the greatest of some ends. */
typedef struct {
    int64_t least, greatest;
} Ends;

static inline Ends find_ends(const int64_t *ends, int rows) {
    Ends found = {ends[0], ends[0]};
    for (int i = 1; i < rows; i++) {
        found.least = ends[i] < found.least ? ends[i] : found.least;
        found.greatest = ends[i] > found.greatest ? ends[i] : found.greatest;
    }
    return found;
}

/* Whether a query with one of these ends may see a token of a span. */
static inline int may_see(const Span *span, Ends ends) {
    return ends.greatest > span->start && find_first(span->context, ends.least) < span->start + SPAN;
}

/* Whether all queries see all of the first `size` tokens of a span. */
static inline int see_all(const Span *span, int size, Ends ends) {
    return ends.least >= span->start + size && find_first(span->context, ends.greatest) <= span->start;
}

/* Limit scores with the softcap of Gemma 2 (Gemma Team, 2024, section 2). */
static void cap_scores(const Context *c, float *scores, int size) {
    for (int i = 0; i < size; i += WIDTH)
        store(scores + i, capped(load(scores + i) * all_of(c->scale), c->softcap));
}

/* The highest of the scores that a query sees, lane by lane. */
static inline floats highest_seen(const float *scores, int size, Seen seen, int sees_all) {
    floats highest = all_of(-FLT_MAX);
    for (int i = 0; i < size; i += WIDTH) {
        const floats higher = larger(highest, load(scores + i));
        highest = sees_all ? higher : choose(lanes_between(seen.begin - i, seen.end - i), higher, highest);
    }
    return highest;
}

/* Turn scores into weights in the form that products take, and return their sum. */
static inline floats weigh(const float *scores, int size, Seen seen, int sees_all, floats units,
                           floats below, factor *weights) {
    floats sum = all_of(0);
    for (int i = 0; i < size; i += 2 * WIDTH) {
        floats two[2];
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            const int at = i + j * WIDTH;
            two[j] = power_of_two(multiply_add(load(scores + at), units, below));
            if (!sees_all)
                two[j] = choose(lanes_between(seen.begin - at, seen.end - at), two[j], all_of(0));
            sum += two[j];
        }
        put_factors(weights + i, two[0], two[1]);
    }
    return sum;
}

/* Turn the scores [rows][SPAN] of up to WIDTH queries from `query` on for `size` tokens into weights, and
   scale what these queries have summed so far to their new highest scores. With `are_many`, the
   weights are for `multiply_span`. */
static inline __attribute__((always_inline)) void weigh_some(const Span *span, State *s, int query,
                                                             int rows, int size, int see_all,
                                                             int are_many, float (*scores)[SPAN],
                                                             factor (*weights)[SPAN]) {
    const Context *c = span->context;
    const int columns = columns_of_values(c->value_dim);
    const floats units = all_of(units_of(c));
    floats highest[WIDTH];
    float below[WIDTH], fading[WIDTH];
    for (int i = 0; i < rows; i++) {
        const Seen seen = see_all ? (Seen){0} : find_seen(c, span->start, s->ends[query + i]);
        if (c->softcap > 0) cap_scores(c, scores[i], size);
        highest[i] = highest_seen(scores[i], size, seen, see_all);
    }
    for (int i = rows; i < WIDTH; i++) highest[i] = all_of(-FLT_MAX);
    const floats before = load(s->tops + query);
    const floats tops = larger(highest_of_each(highest) * units, before);
    store(s->tops + query, tops);
    store(below, all_of(0) - tops);
    store(fading, power_of_two(before - tops));
    for (int i = 0; i < rows; i++) {
        const Seen seen = see_all ? (Seen){0} : find_seen(c, span->start, s->ends[query + i]);
        if (are_many && i % 8 == 0) keep_tiles_awake(); /* 8 queries take some 300 cycles */
        float *total = s->totals + (query + i) * WIDTH, *outputs = s->outputs + (query + i) * columns;
        const floats fade = all_of(fading[i]);
        const floats sum =
            weigh(scores[i], size, seen, see_all, units, all_of(below[i]), weights[i]);
        store(total, multiply_add(load(total), fade, sum));
        if (fading[i] == 1) continue;
        for (int j = 0; j < columns; j += WIDTH) store(outputs + j, load(outputs + j) * fade);
    }
}

/* The same for any number of queries, with these ends. Many queries usually see all of a whole span; the
   compiler then knows how long the loops are. */
static void weigh_rows(const Span *span, State *s, int query, int rows, int size, Ends ends,
                       int are_many, float (*scores)[SPAN], factor (*weights)[SPAN]) {
    const int all = see_all(span, size, ends);
    for (int i = 0; i < rows; i += WIDTH) {
        const int count = rows - i < WIDTH ? rows - i : WIDTH;
        if (all && are_many && size == SPAN)
            weigh_some(span, s, query + i, count, SPAN, 1, 1, scores + i, weights + i);
        else if (all)
            weigh_some(span, s, query + i, count, size, 1, are_many, scores + i, weights + i);
        else
            weigh_some(span, s, query + i, count, size, 0, are_many, scores + i, weights + i);
    }
}
