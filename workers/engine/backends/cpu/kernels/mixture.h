/* A layer's experts, alone or beside an MLP. */

#pragma once
#include "branches.h"
#include "experts.h"

/* Compute the first half of an MLP for all normalized rows. */
static void activate_rows(const Mlp *mlp, const Batch *b, int by_tiles) {
    const Portion portion = portion_of(b->rows, mlp_pieces(mlp));
    activate_pieces(mlp, rows_of(b, b->normed, b->rows), portion.from, portion.rows, portion.pieces,
                    b->activated + (int64_t)portion.from * mlp->up.outputs, by_tiles);
}

/* Apply the MLP's activation function to all rows. */
static void run_mlp(const Model *m, const Layer *layer, const Batch *b, Barrier *barrier) {
    const Mlp *mlp = &layer->mlp;
    normalize_rows(m, b, &layer->mlp_norm, &mlp->up);
    meet(barrier);
    activate_rows(mlp, b, activates_by_tiles(mlp, b->rows));
}

/* Wait for the rows that run_mlp makes, and prepare them. */
static Rows await_activated(const Mlp *mlp, const Batch *b, Barrier *barrier) {
    if (!activates_by_tiles(mlp, b->rows)) return await_rows(&mlp->down, b->activated, b, barrier);
    meet(barrier);
    Rows rows = rows_of(b, b->activated, b->rows);
    rows.prepared.values = b->activated;
    return rows;
}

/* Compute a mixture of experts, whose input is the residual after `norm`, and add its output to the
   rows of `to`. */
static void run_experts(const Model *m, const Experts *e, const Norm *norm, const Batch *b, float *to,
                        Barrier *barrier) {
    const int has_shared = e->shared.up.packed != NULL, has_own = e->router_norm.weight != NULL;
    const Rows activated = {b->activated, b->prepared, 0, NULL};
    const Linear *down = &e->mlps->down;
    const Share columns = share_of(m->hidden / (2 * LANES));
    normalize_rows(m, b, has_own ? &e->router_norm : norm, &e->shared.up);
    meet(barrier);
    score_experts(m, e, b);
    if (has_shared)
        activate_rows(&e->shared, b, 0);
    meet(barrier);
    route_rows(m, e, b);
    if (has_own) normalize_rows(m, b, norm, &e->shared.up);
    if (has_shared) prepare_rows(&e->shared.down, b->activated, b->rows, &b->prepared);
    meet(barrier);
    if (has_shared)
        add_routed(m, &e->shared.down, rows_of(b, b->activated, b->rows), 0, b->rows, b->shared_routes, columns, to);
    if (omp_get_thread_num() == 0) sort_routes(m, e, b);
    meet(barrier);
    gather_rows(m, e, b);
    meet(barrier);
    activate_experts(e, b);
    meet(barrier);
    if (needs_preparation(down, 1)) {
        prepare_rows(down, b->activated, (int64_t)b->rows * e->chosen, &b->prepared);
        meet(barrier);
    }
    for (int i = 0; i < e->count; i++) {
        const int from = b->expert_starts[i], rows = b->expert_starts[i + 1] - from;
        if (rows)
            add_routed(m, &e->mlps[i].down, activated, from, rows, b->routes, columns, to);
    }
}

/* Set this thread's rows [rows][hidden] to zero. */
static void clear_rows(const Model *m, const Batch *b, float *x) {
    const Share share = share_of(b->rows);
    memset(x + share.begin * m->hidden, 0,
           (size_t)((share.end - share.begin) * m->hidden) * sizeof(float));
}

/* Add a mixture of experts to the residual: as it is, or after a norm. An MLP of all rows may add to the
   branch too; then MLP and experts have norms of their own before the common one (Gemma 4). */
static void add_mixture(const Model *m, const Layer *layer, const Batch *b, Barrier *barrier) {
    const Experts *e = layer->experts;
    const Linear *down = &layer->mlp.down;
    const Share share = share_of(b->rows);
    if (!layer->mlp_out_norm.weight) {
        run_experts(m, e, &layer->mlp_norm, b, b->residual, barrier);
        return;
    }
    if (!down->packed) {
        clear_rows(m, b, b->branch);
        run_experts(m, e, &layer->mlp_norm, b, b->branch, barrier);
        meet(barrier);
        add_rows_of_branch(m, &layer->mlp_out_norm, b);
        return;
    }
    float *mixed = b->projected; /* it has room for [rows][hidden], and nothing reads it before the next layer */
    run_mlp(m, layer, b, barrier);
    project(down, await_activated(&layer->mlp, b, barrier), b->rows, b->branch, m->hidden, 0);
    clear_rows(m, b, mixed);
    meet(barrier);
    run_experts(m, e, &e->norm, b, mixed, barrier);
    meet(barrier);
    for (int64_t row = share.begin; row < share.end; row++) {
        float *branch = b->branch + row * m->hidden, *own = mixed + row * m->hidden;
        bf16 *normed = b->normed + row * m->hidden;
        normalize_in_place(m, &e->mlp_out_norm, branch, normed);
        normalize_in_place(m, &e->out_norm, own, normed);
        for (int i = 0; i < m->hidden; i += WIDTH) store(branch + i, load(branch + i) + load(own + i));
    }
    add_rows_of_branch(m, &layer->mlp_out_norm, b);
}
