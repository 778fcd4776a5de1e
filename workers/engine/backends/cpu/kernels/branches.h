/* What a layer's branches, such as attention and MLP, read of the residual and add to it. */

#pragma once
#include "barrier.h"
#include "norm.h"
#include "project.h"

/* Copy normalized rows of the residual, for `linear` and layers that multiply the same input. */
static void normalize_rows(const Model *m, const Batch *b, const Norm *norm, const Linear *linear) {
    const Share share = share_of(b->rows);
    for (int64_t row = share.begin; row < share.end; row++) {
        normalize_or_copy(b->residual + row * m->hidden, norm, m->hidden,
                          b->normed + row * m->hidden);
        prepare_row(linear, b->normed, row, b->rows, &b->prepared);
    }
}

/* Wait for all rows that `linear` multiplies next, and prepare them. */
static Rows await_rows(const Linear *linear, const bf16 *x, const Batch *b, Barrier *barrier) {
    meet(barrier);
    if (needs_preparation(linear, b->rows)) {
        prepare_rows(linear, x, b->rows, &b->prepared);
        meet(barrier);
    }
    return rows_of(b, x, b->rows);
}

/* Normalize a row in place, if there is a norm, rounded as the next step reads it. */
static inline void normalize_in_place(const Model *m, const Norm *norm, float *row, bf16 *normed) {
    if (!norm->weight) return;
    normalize(row, norm, m->hidden, normed);
    for (int i = 0; i < m->hidden; i += WIDTH) store(row + i, widen(normed + i));
}

/* Add this thread's rows of `branch` to the residual, after `norm`. */
static void add_rows_of_branch(const Model *m, const Norm *norm, const Batch *b) {
    const Share share = share_of(b->rows);
    const floats scale = all_of(m->residual_scale);
    for (int64_t row = share.begin; row < share.end; row++) {
        float *to = b->residual + row * m->hidden, *from = b->branch + row * m->hidden;
        normalize_in_place(m, norm, from, b->normed + row * m->hidden);
        for (int i = 0; i < m->hidden; i += WIDTH)
            store(to + i, multiply_add(load(from + i), scale, load(to + i)));
    }
}

/* Add rows times `linear` to the residual, after `norm`. No thread reads the residual before
   the next barrier, so each product may be added as soon as it is computed. */
static void add_branch(const Model *m, const Linear *linear, const Norm *norm, Rows rows,
                       const Batch *b, Barrier *barrier) {
    const int is_finished_apart = norm->weight || m->residual_scale != 1;
    if (!is_finished_apart) {
        project(linear, rows, b->rows, b->residual, m->hidden, 1);
        return;
    }
    project(linear, rows, b->rows, b->branch, m->hidden, 0);
    meet(barrier);
    add_rows_of_branch(m, norm, b);
}
