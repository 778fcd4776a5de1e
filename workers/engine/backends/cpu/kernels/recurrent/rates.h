/* The rates of a state: how strongly a token writes to it, and how fast it decays. Few products, with
   weights in bfloat16. */

#pragma once
#include "../project.h"
#include "../scores.h"

/* Write the products of all rows with `weights` [count][hidden] to the columns of the projected rows from
   `begin` on. */
static void project_rates(const Model *m, const Batch *b, const bf16 *weights, int count, int begin) {
    const Share share = share_of((int64_t)b->rows * count);
    for (int64_t i = share.begin; i < share.end; i++) {
        const int64_t row = i / count, rate = i % count;
        b->projected[row * m->width + begin + rate] =
            dot(b->normed + row * m->hidden, weights + rate * m->hidden, m->hidden);
    }
}

static inline float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }
