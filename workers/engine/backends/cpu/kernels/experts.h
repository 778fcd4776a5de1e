/* Mixtures of experts: every row goes through a few of many MLPs (Shazeer et al., 2017).

   Rows are sorted by expert, so that each expert multiplies all of its rows at once. A row's expert
   outputs are added in the order of the experts' numbers, whatever else the step computes. */

#pragma once
#include <math.h>
#include <string.h>

#include "mlp.h"
#include "scores.h"

/* Compute the router's logits for all rows and experts. */
static void score_experts(const Model *m, const Experts *e, const Batch *b) {
    const Share share = share_of((int64_t)b->rows * e->count);
    for (int64_t i = share.begin; i < share.end; i++) {
        const int64_t row = i / e->count, expert = i % e->count;
        const float bias = e->bias ? e->bias[expert] : 0;
        const bf16 *normed = b->normed + row * m->hidden;
        const int64_t from = expert * m->hidden;
        b->routing[i] = bias + (e->wide_router
                                    ? dot_with_wide(normed, e->wide_router + from, m->hidden)
                                    : dot(normed, e->router + from, m->hidden));
    }
}

/* By what an expert is chosen. */
static inline float score_of(const Experts *e, const float *scores, int expert) {
    return scores[expert] + (e->correction ? e->correction[expert] : 0);
}

/* Which groups of experts a row leaves out: all but those with the highest sums of their
   `group_best` best scores; of equal ones it keeps the first. */
static void leave_groups(const Experts *e, const float *scores, uint8_t *left) {
    const int size = e->count / e->groups;
    float sums[e->groups];
    for (int group = 0; group < e->groups; group++) {
        float best = -INFINITY, second = -INFINITY;
        for (int i = group * size; i < (group + 1) * size; i++) {
            const float score = score_of(e, scores, i);
            second = fmaxf(second, fminf(best, score));
            best = fmaxf(best, score);
        }
        sums[group] = e->group_best == 2 ? best + second : best;
        left[group] = 1;
    }
    for (int i = 0; i < e->kept_groups; i++) {
        int best = -1;
        for (int group = 0; group < e->groups; group++)
            if (left[group] && (best < 0 || sums[group] > sums[best])) best = group;
        left[best] = 0;
    }
}

/* Choose the experts of a row from the router's logits, the likeliest first; of equal ones the
   first. */
static void choose_experts(const Experts *e, float *logits, int32_t *chosen, float *weights) {
    float highest = logits[0], total = 0, kept = 0;
    for (int i = 1; i < e->count; i++) highest = fmaxf(highest, logits[i]);
    for (int i = 0; i < e->count; i++) {
        if (e->scales_inputs) continue;
        logits[i] = e->sigmoid ? logistic(logits[i]) : expf(logits[i] - highest);
        total += logits[i];
    }
    if (e->correction && !e->sigmoid) {  /* it is added to probabilities */
        for (int i = 0; i < e->count; i++) logits[i] /= total;
        total = 1;
    }
    uint8_t left[e->groups];
    if (e->groups > 1) leave_groups(e, logits, left);
    for (int rank = 0; rank < e->chosen; rank++) {
        int best = -1;
        float best_score = 0;
        for (int i = 0; i < e->count; i++) {
            const float score = score_of(e, logits, i);
            int taken = e->groups > 1 && left[i / (e->count / e->groups)];
            for (int j = 0; j < rank; j++) taken |= chosen[j] == i;
            if (taken || (best >= 0 && !(score > best_score))) continue;
            best = i;
            best_score = score;
        }
        chosen[rank] = best;
        weights[rank] = e->scales_inputs ? logistic(logits[best]) : logits[best];
        kept += weights[rank];
    }
    const float by = e->normalizes ? kept : e->sigmoid ? 1 : total;
    for (int rank = 0; rank < e->chosen; rank++)
        weights[rank] = weights[rank] / by * e->scale * (e->factors ? e->factors[chosen[rank]] : 1);
}

/* Choose experts for this thread's rows, and compute the weight of the shared expert for each. */
static void route_rows(const Model *m, const Experts *e, const Batch *b) {
    const Share share = share_of(b->rows);
    for (int64_t row = share.begin; row < share.end; row++) {
        choose_experts(e, b->routing + row * e->count, b->chosen + row * e->chosen,
                       b->expert_weights + row * e->chosen);
        const float part = e->shared_gate
                               ? logistic(dot(b->normed + row * m->hidden, e->shared_gate, m->hidden))
                               : 1;
        b->shared_routes[row] = (Route){(int32_t)row, part * m->residual_scale};
    }
}

/* Sort rows by expert: expert i has the routes [starts[i], starts[i + 1]). */
static void sort_routes(const Model *m, const Experts *e, const Batch *b) {
    const int slots = b->rows * e->chosen;
    int32_t *starts = b->expert_starts;
    memset(starts, 0, sizeof(int32_t) * (size_t)(e->count + 2));
    for (int i = 0; i < slots; i++) starts[b->chosen[i] + 2]++;
    for (int i = 2; i < e->count + 2; i++) starts[i] += starts[i - 1];
    for (int i = 0; i < slots; i++)
        b->routes[starts[b->chosen[i] + 1]++] =
            (Route){i / e->chosen, b->expert_weights[i] * m->residual_scale};
}

/* Write the input of an expert: a row times the weight of its route, which the output then has none
   of. */
static inline void scale_input(const Model *m, const bf16 *row, Route *route, bf16 *to) {
    const floats weight = all_of(route->weight);
    for (int i = 0; i < m->hidden; i += WIDTH) narrow(to + i, widen(row + i) * weight);
    route->weight = 1;
}

/* Copies of the rows in the order of routes, prepared for their experts. */
static void gather_rows(const Model *m, const Experts *e, const Batch *b) {
    const Share share = share_of((int64_t)b->rows * e->chosen);
    for (int64_t i = share.begin; i < share.end; i++) {
        const bf16 *row = b->normed + (int64_t)b->routes[i].row * m->hidden;
        bf16 *to = b->gathered + i * m->hidden;
        if (e->scales_inputs)
            scale_input(m, row, b->routes + i, to);
        else
            memcpy(to, row, sizeof(bf16) * (size_t)m->hidden);
        prepare_row(&e->mlps->up, b->gathered, i, 1, &b->prepared);
    }
}

/* Apply the experts' activation functions to their rows; threads share the work of all experts. */
static void activate_experts(const Experts *e, const Batch *b) {
    const Rows gathered = {b->gathered, b->prepared, 0, NULL};
    const int64_t pieces = mlp_pieces(e->mlps), width = e->mlps->up.outputs;
    int64_t active = 0, first = 0;
    for (int i = 0; i < e->count; i++) active += b->expert_starts[i] < b->expert_starts[i + 1];
    const Share share = share_of(active * pieces);
    for (int i = 0; i < e->count; i++) {
        const int from = b->expert_starts[i], rows = b->expert_starts[i + 1] - from;
        if (!rows) continue;
        const int64_t begin = share.begin - first, end = share.end - first;
        const Share own = {begin < 0 ? 0 : begin, end > pieces ? pieces : end};
        if (own.begin < own.end)
            activate_pieces(e->mlps + i, gathered, from, rows, own, b->activated + from * width, 0);
        first += pieces;
    }
}

/* Where the outputs of routed rows are added: the rows of the residual that they came from. */
typedef struct {
    const Linear *down;
    const Route *routes; /* of the rows */
    float *residual;
    int first, hidden;
} Routed;

static inline __attribute__((always_inline)) void write_routed(const void *routed, int pair,
                                                               const Tile *tile, int line,
                                                               int64_t row) {
    const Routed *r = routed;
    const int block = 2 * (r->first + pair);
    const Route route = r->routes[row];
    float *to = r->residual + (int64_t)route.row * r->hidden + block * LANES;
    for (int j = 0; j < 2; j++) {
        const Columns columns = columns_of(r->down, block + j);
        for (int v = 0; v < VECTORS; v++) {
            float *at = to + j * LANES + v * WIDTH;
            store(at, multiply_add(finish(&columns, tile->sums[j][line], v), all_of(route.weight),
                                   load(at)));
        }
    }
}

/* Multiply rows [from, from + rows) of x by `down` and by the weights of their routes, and add them
   to the residual rows that they came from: one thread's pairs of columns. */
static void add_routed(const Model *m, const Linear *down, Rows x, int from, int rows,
                       const Route *routes, Share share, float *residual) {
    const int first = (int)share.begin;
    const Pairs pairs = {down, down, 2 * first, 2 * first + 1, 2, (int)share.end - first};
    const Routed routed = {down, routes + from, residual, first, m->hidden};
    multiply_all(&pairs, x, from, rows, write_routed, &routed);
}
