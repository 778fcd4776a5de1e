/* The first half of an MLP: its products with activations, and the activation function. */

#pragma once
#include "activations.h"
#include "project.h"

/* How many pieces of an MLP's products there are to divide among threads. A piece is 16 columns of the
   gate and the same 16 of the other projection, or 32 columns without a gate. */
static inline int64_t mlp_pieces(const Mlp *mlp) {
    return mlp->up.outputs / (mlp->gate.packed ? LANES : 2 * LANES);
}

/* The activation of an MLP without a gate. */
static inline floats activate_alone(const Mlp *mlp, floats x) {
    return mlp->activation == XIELU ? xielu(x, mlp->above, mlp->below, mlp->slope)
                                    : activate(mlp->activation, x);
}

/* Write a piece of one row. `columns[0]` is the gate's, or without a gate the first half. */
static inline void write_activated(const Mlp *mlp, const Columns columns[2], const Tile *tile, int line,
                                   bf16 *to) {
    for (int v = 0; v < VECTORS; v++) {
        floats left = finish(&columns[0], tile->sums[0][line], v);
        const floats right = finish(&columns[1], tile->sums[1][line], v);
        if (mlp->gate.packed) {
            left = left * all_of(mlp->gate_factor);
            narrow(to + v * WIDTH,
                   gated(mlp->activation, mlp->limit, left, right) * all_of(mlp->factor));
        } else {
            narrow(to + v * WIDTH, activate_alone(mlp, left));
            narrow(to + LANES + v * WIDTH, activate_alone(mlp, right));
        }
    }
}

/* Compute some pieces of out [rows][intermediate] for rows [from, from + rows) of x. */
static void activate_pieces(const Mlp *mlp, Rows x, int from, int rows, Share pieces, bf16 *out) {
    const int has_gate = mlp->gate.packed != NULL, size = has_gate ? LANES : 2 * LANES;
    const int most = pairs_at_once(&mlp->up, rows), width = mlp->up.outputs;
    const Linear *left = has_gate ? &mlp->gate : &mlp->up;
    Tile tile;
    for (int first = (int)pieces.begin; first < pieces.end; first += most) {
        const int pairs = pieces.end - first < most ? (int)pieces.end - first : most;
        const Pairs blocks = has_gate
                                 ? (Pairs){left, &mlp->up, first, first, 1, pairs}
                                 : (Pairs){left, left, 2 * first, 2 * first + 1, 2, pairs};
        for (int row = 0; row < rows; row += ROW_BLOCK) {
            const int count = rows - row < ROW_BLOCK ? rows - row : ROW_BLOCK;
            multiply(x, from + row, count, &blocks, &tile, part_ahead(row, rows));
            for (int line = 0, piece = first; line < count * pairs; line += count, piece++) {
                const int a = has_gate ? piece : 2 * piece, b = has_gate ? piece : 2 * piece + 1;
                const Columns columns[2] = {columns_of(left, a), columns_of(&mlp->up, b)};
                bf16 *to = out + (int64_t)row * width + (int64_t)piece * size;
                for (int i = line; i < line + count; i++, to += width)
                    write_activated(mlp, columns, &tile, i, to);
            }
        }
    }
}
