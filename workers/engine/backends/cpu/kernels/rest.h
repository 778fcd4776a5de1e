/* Which rows go on after the last layer that keeps something for later tokens. Nothing reads the others,
   which have no logits, any more: they end there. Where many layers share the keys and values of
   earlier ones (Gemma 4), that saves most of a prompt's work. */

#pragma once
#include "attention/plan.h"
#include "project.h"

/* The rows whose logits are wanted, in order. Their positions and owners, and the logits' rows among
   them, take the place of the batch's. */
typedef struct {
    const Layer *layer; /* after which, or after whose keys and values, only they go on; or NULL */
    int32_t count;
    int64_t *rows, *positions, *owners; /* [rows of the batch] */
    int64_t *logits_rows;               /* [num_logits] */
} Rest;

/* How a batch goes through the layers: the plans of its kinds of heads, and the rows that go on. */
typedef struct {
    Plan *plans;
    Rest rest;
} Course;

static inline int keeps_states(const Layer *layer) {
    return layer->delta || layer->short_convolution || layer->state_space;
}

/* The last layer that keeps states, or keys and values; or NULL. */
static const Layer *find_last_keeper(const Model *m) {
    for (const Layer *layer = m->layers + m->num_layers - 1; layer >= m->layers; layer--)
        if (keeps_states(layer) || (layer->heads && layer->stores)) return layer;
    return NULL;
}

/* Find the rows that go on. Before, `rest` has the arrays. */
static void find_rest(const Model *m, const Batch *b, Rest *rest) {
    int64_t *places = rest->positions; /* of each row, until its position is stored */
    rest->count = 0;
    for (int row = 0; row < b->rows; row++) places[row] = -1;
    for (int i = 0; i < b->num_logits; i++) places[b->logits_rows[i]] = 0;
    for (int row = 0; row < b->rows; row++)
        if (!places[row]) rest->rows[places[row] = rest->count++] = row;
    rest->layer = rest->count < b->rows ? find_last_keeper(m) : NULL;
    for (int i = 0; i < b->num_logits; i++) rest->logits_rows[i] = places[b->logits_rows[i]];
    for (int i = 0; i < rest->count; i++) {
        rest->positions[i] = b->positions[rest->rows[i]];
        rest->owners[i] = b->owners[rest->rows[i]];
    }
}

/* Move the rows that go on to the front of [rows][size] bytes: this thread's columns of them. */
static void move_rows(const Rest *rest, void *x, int64_t size) {
    const Share share = share_of(size);
    char *columns = (char *)x + share.begin;
    for (int64_t i = 0; i < rest->count; i++)
        memmove(columns + i * size, columns + rest->rows[i] * size, (size_t)(share.end - share.begin));
}

/* Go on with the rest of the batch, of which every thread has its own `b`. All threads have computed
   their parts of the rows; the next barrier is the caller's. */
static void leave_rows(const Model *m, const Layer *layer, Batch *b, const Course *course) {
    const Rest *rest = &course->rest;
    move_rows(rest, b->residual, m->hidden * (int64_t)sizeof(float));
    if (m->inputs)
        move_rows(rest, b->layer_inputs, m->inputs->projection.outputs * (int64_t)sizeof(float));
    if (!keeps_states(layer)) {
        const Heads *h = layer->heads;
        move_rows(rest, b->queries, (int64_t)h->heads * h->dim * (int64_t)sizeof(bf16));
        if (has_gates(h)) move_rows(rest, b->projected, m->width * (int64_t)sizeof(float));
    }
    b->rows = rest->count;
    b->positions = rest->positions;
    b->owners = rest->owners;
    b->logits_rows = rest->logits_rows;
    if (omp_get_thread_num() == 0)
        for (int i = 0; i < m->kinds; i++) make_plan(m, m->heads + i, b, course->plans + i);
}
