/* Inputs that layers have beside the residual (Gemma 4): of each token a vector for every layer, made of
   an embedding and of a product with the embedded token. */

#pragma once
#include "branches.h"

static inline float *layer_inputs_of(const Model *m, const Batch *b, int64_t row) {
    return b->layer_inputs + row * m->inputs->projection.outputs;
}

/* Compute the inputs of all layers for all rows, after this thread has embedded its own. */
static void embed_layer_inputs(const Model *m, const Batch *b, Barrier *barrier) {
    const LayerInputs *in = m->inputs;
    const int size = in->size, width = in->projection.outputs;
    const Share share = share_of(b->rows);
    const Norm none = {0};
    bf16 normed[size];
    normalize_rows(m, b, &none, &in->projection);
    meet(barrier);
    project(&in->projection, rows_of(b, b->normed, b->rows), b->rows, b->layer_inputs, width, 0);
    meet(barrier);
    for (int64_t row = share.begin; row < share.end; row++) {
        const bf16 *token = in->embedding + b->ids[row] * width;
        float *x = layer_inputs_of(m, b, row);
        for (int at = 0; at < width; at += size) {
            for (int i = at; i < at + size; i += WIDTH)
                store(x + i, load(x + i) * all_of(in->projection_scale));
            normalize(x + at, &in->norm, size, normed);
            for (int i = 0; i < size; i += WIDTH) {
                const floats own = widen(token + at + i) * all_of(in->embedding_scale);
                store(x + at + i, (widen(normed + i) + own) * all_of(in->scale));
            }
        }
    }
    meet(barrier);
}

/* Multiply the activated gates of a layer by its input: the columns that this thread has computed. */
static void gate_layer_inputs(const Model *m, const LayerInput *in, const Batch *b) {
    const int size = m->inputs->size;
    const Portion portion = portion_of(b->rows, pairs_of(&in->gate));
    for (int64_t row = portion.from; row < portion.from + portion.rows; row++) {
        const float *gates = b->projected + row * m->width;
        const float *inputs = layer_inputs_of(m, b, row) + in->begin;
        for (int64_t i = portion.pieces.begin * 2 * LANES; i < portion.pieces.end * 2 * LANES; i += WIDTH)
            narrow(b->activated + row * size + i,
                   activate(in->activation, load(gates + i)) * load(inputs + i));
    }
}

/* Add the branch of a layer's own input to the residual. */
static void add_layer_input(const Model *m, const Layer *layer, const Batch *b, Barrier *barrier) {
    const LayerInput *in = layer->input;
    const Norm none = {0};
    normalize_rows(m, b, &none, &in->gate);
    meet(barrier);
    project(&in->gate, rows_of(b, b->normed, b->rows), b->rows, b->projected, m->width, 0);
    gate_layer_inputs(m, in, b);
    add_branch(m, &in->projection, &in->norm, await_rows(&in->projection, b->activated, b, barrier), b,
               barrier);
}
