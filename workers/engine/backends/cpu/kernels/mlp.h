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

/* Where activated pieces go, which begin with the piece `first`. */
typedef struct {
    const Mlp *mlp;
    bf16 *out; /* [rows][intermediate] */
    int first, by_tiles;
} Activated;

/* Write a piece of one row. With a gate, it is the first half of the sums. */
static inline __attribute__((always_inline)) void write_activated(const void *activated, int pair,
                                                                  const Tile *tile, int line,
                                                                  int64_t row) {
    const Activated *a = activated;
    const Mlp *mlp = a->mlp;
    const int piece = a->first + pair, has_gate = mlp->gate.packed != NULL;
    const Columns columns[2] = {has_gate ? columns_of(&mlp->gate, piece) : columns_of(&mlp->up, 2 * piece),
                                columns_of(&mlp->up, has_gate ? piece : 2 * piece + 1)};
    const int width = mlp->up.outputs, column = piece * (has_gate ? LANES : 2 * LANES);
    bf16 *to = a->by_tiles ? find_in_tiles(a->out, width, row, column) : a->out + row * width + column;
    for (int v = 0; v < VECTORS; v++) {
        floats left = finish(&columns[0], tile->sums[0][line], v);
        const floats right = finish(&columns[1], tile->sums[1][line], v);
        if (has_gate) {
            left = left * all_of(mlp->gate_factor);
            narrow(to + v * WIDTH,
                   gated(mlp->activation, mlp->limit, left, right) * all_of(mlp->factor));
        } else {
            narrow(to + v * WIDTH, activate_alone(mlp, left));
            narrow(to + LANES + v * WIDTH, activate_alone(mlp, right));
        }
    }
}

/* Whether so many activated rows are stored as the product that follows takes them. */
static inline int activates_by_tiles(const Mlp *mlp, int rows) {
    return !mlp->down.scales && are_stored_by_tiles(rows);
}

/* Compute some pieces of out [rows][intermediate] for rows [from, from + rows) of x. */
static void activate_pieces(const Mlp *mlp, Rows x, int from, int rows, Share pieces, bf16 *out,
                            int by_tiles) {
    const int first = (int)pieces.begin, count = (int)(pieces.end - pieces.begin);
    const Linear *up = &mlp->up;
    const Pairs pairs = mlp->gate.packed ? (Pairs){&mlp->gate, up, first, first, 1, count}
                                         : (Pairs){up, up, 2 * first, 2 * first + 1, 2, count};
    const Activated activated = {mlp, out, first, by_tiles};
    multiply_all(&pairs, x, from, rows, write_activated, &activated);
}
