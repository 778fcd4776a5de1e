/* Gated delta networks (Yang et al., "Gated Delta Networks: Improving Mamba2 with Delta Rule", 2024).

   The state of a head is a matrix [key_dim][value_dim]. Each token lets it decay, subtracts from the
   token's value what the state holds for its key, and adds the rest, times how strongly to write:

       S = decay S,  S = S + key (strength (value - key S)),  output = query S

   Prompts are computed token by token too, not in chunks (section 3.3 there): on vectors, chunks take as
   many operations, and here a token's output has the same bits wherever its prompt is cut. Columns of
   a state do not depend on each other: a few of them stay in the L1 cache for several tokens. */

#pragma once
#include "../norm.h"
#include "convolution.h"
#include "pieces.h"
#include "rates.h"

enum { COLUMN_REGISTERS = 4, NUM_PARTS = 3 };

/* What a thread computes: one key head, its value heads, and their parts of the convolution. */
typedef struct {
    const Delta *d;
    int head, group;        /* the first value head, and how many there are */
    Part parts[NUM_PARTS];  /* query, key, values */
    Window window;
    float *mixed;           /* [TOKENS_AT_ONCE][window.width] */
    float *decays, *strengths; /* [TOKENS_AT_ONCE][group] */
} DeltaHead;

static inline int delta_width(const Delta *d) {
    return 2 * d->key_dim + d->value_heads / d->key_heads * d->value_dim;
}

static int64_t delta_room_size(const Delta *d) {
    const int lines = d->convolution.kernel + 2 * TOKENS_AT_ONCE;
    const int rates = 2 * TOKENS_AT_ONCE * d->value_heads / d->key_heads;
    return (int64_t)sizeof(float) * ((int64_t)lines * delta_width(d) + rates);
}

static DeltaHead find_head(const Delta *d, int key_head, float *room) {
    const int width = delta_width(d), group = d->value_heads / d->key_heads;
    const int keys = d->key_heads * d->key_dim;
    float *mixed = room + (d->convolution.kernel + TOKENS_AT_ONCE) * width;
    float *rates = mixed + TOKENS_AT_ONCE * width;
    const int key = key_head * d->key_dim, value = key_head * group * d->value_dim;
    return (DeltaHead){
        .d = d, .head = key_head * group, .group = group,
        .parts = {
            {d->query_begin + key_head * d->key_step, key, d->key_dim},
            {d->key_begin + key_head * d->key_step, keys + key, d->key_dim},
            {d->value_begin + key_head * d->value_step, 2 * keys + value, group * d->value_dim},
        },
        .window = {room, width}, .mixed = mixed,
        .decays = rates, .strengths = rates + TOKENS_AT_ONCE * group,
    };
}

static inline float *get_states(const DeltaHead *h, int64_t state) {
    const Delta *d = h->d;
    return d->states + (state * d->value_heads + h->head) * d->key_dim * d->value_dim;
}

static inline size_t count_state_bytes(const DeltaHead *h) {
    return sizeof(float) * (size_t)h->group * (size_t)h->d->key_dim * (size_t)h->d->value_dim;
}

static inline void read_rates(const DeltaHead *h, const float *row, int token) {
    const Delta *d = h->d;
    const float *rates = row + d->rates_begin + h->head;
    for (int g = 0; g < h->group; g++) {
        const float forget = softplus(rates[d->value_heads + g] + d->decay_bias[h->head + g]);
        h->strengths[token * h->group + g] = logistic(rates[g]);
        h->decays[token * h->group + g] = expf(d->decay[h->head + g] * forget);
    }
}

/* Scale a query or key to this length. */
static inline void set_length(float *x, int size, float length) {
    floats squares = all_of(0);
    for (int i = 0; i < size; i += WIDTH) squares = multiply_add(load(x + i), load(x + i), squares);
    const floats scale = all_of(length / sqrtf(sum_of(squares) + 1e-6f));
    for (int i = 0; i < size; i += WIDTH) store(x + i, load(x + i) * scale);
}

/* Convolve `tokens` rows from `rows` on, and make queries and keys of them. */
static inline void convolve_rows(const DeltaHead *h, int64_t state, const float *rows, int64_t stride,
                            int tokens) {
    const Delta *d = h->d;
    fill_window(&d->convolution, h->parts, NUM_PARTS, state, rows, stride, tokens, h->window);
    convolve(&d->convolution, h->parts, NUM_PARTS, tokens, h->window, h->mixed, 1);
    keep_inputs(&d->convolution, h->parts, NUM_PARTS, state, tokens, h->window);
    for (int t = 0; t < tokens; t++) {
        float *query = h->mixed + (int64_t)t * h->window.width;
        set_length(query, d->key_dim, 1.0f / sqrtf((float)d->key_dim));
        set_length(query + d->key_dim, d->key_dim, 1);
        read_rates(h, rows + t * stride, t);
    }
}

/* One token and `registers` columns of a state; `value` becomes the output. */
static inline __attribute__((always_inline)) void advance_columns(
    float *state, int stride, const float *query, const float *key, int key_dim, float decay,
    float strength, float *value, int registers) {
    floats held[2][COLUMN_REGISTERS], change[COLUMN_REGISTERS], output[COLUMN_REGISTERS];
    for (int v = 0; v < registers; v++) held[0][v] = held[1][v] = output[v] = all_of(0);
    const float *line = state;
    for (int i = 0; i < key_dim; i += 2)
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++, line += stride) {
            const floats factor = all_of(key[i + half]);
#pragma GCC unroll 4
            for (int v = 0; v < registers; v++)
                held[half][v] = multiply_add(load(line + v * WIDTH), factor, held[half][v]);
        }
    for (int v = 0; v < registers; v++) {
        const floats known = (held[0][v] + held[1][v]) * all_of(decay);
        change[v] = (load(value + v * WIDTH) - known) * all_of(strength);
    }
    float *to = state;
    for (int i = 0; i < key_dim; i++, to += stride) {
        const floats own = all_of(key[i]), asked = all_of(query[i]);
#pragma GCC unroll 4
        for (int v = 0; v < registers; v++) {
            const floats left = load(to + v * WIDTH) * all_of(decay);
            const floats next = multiply_add(own, change[v], left);
            store(to + v * WIDTH, next);
            output[v] = multiply_add(asked, next, output[v]);
        }
    }
    for (int v = 0; v < registers; v++) store(value + v * WIDTH, output[v]);
}

/* Some columns of value head `g` for all tokens, one after the other. */
static inline __attribute__((always_inline)) void advance_tokens(const DeltaHead *h, float *state,
                                                                 int g, int column, int tokens,
                                                                 int registers) {
    const Delta *d = h->d;
    for (int t = 0; t < tokens; t++) {
        float *query = h->mixed + (int64_t)t * h->window.width, *key = query + d->key_dim;
        advance_columns(state + column, d->value_dim, query, key, d->key_dim,
                        h->decays[t * h->group + g], h->strengths[t * h->group + g],
                        key + d->key_dim + g * d->value_dim + column, registers);
    }
}

static void advance_head(const DeltaHead *h, float *state, int g, int tokens) {
    int column = 0;
    for (; column + 4 * WIDTH <= h->d->value_dim; column += 4 * WIDTH)
        advance_tokens(h, state, g, column, tokens, 4);
    for (; column < h->d->value_dim; column += WIDTH)
        advance_tokens(h, state, g, column, tokens, 1);
}

/* Normalize the outputs of a row, and multiply them by the activation of their gates. */
static inline void finish_heads(const DeltaHead *h, const float *outputs, const float *gates,
                                bf16 *to) {
    const Delta *d = h->d;
    for (int g = 0; g < h->group; g++) {
        const int64_t at = (int64_t)g * d->value_dim;
        const float *x = outputs + at;
        floats squares = all_of(0);
        for (int i = 0; i < d->value_dim; i += WIDTH)
            squares = multiply_add(load(x + i), load(x + i), squares);
        const floats scale =
            all_of(1.0f / sqrtf(sum_of(squares) / (float)d->value_dim + d->norm.epsilon));
        for (int i = 0; i < d->value_dim; i += WIDTH) {
            const floats gate = load(gates + at + i);
            const floats normed = load(x + i) * scale * load(d->norm.weight + i);
            narrow(to + at + i, gated_by(normed * gate, gate));
        }
    }
}

/* Compute `tokens` rows of the batch from `row` on. */
static void advance_rows(const Model *m, const Batch *b, const DeltaHead *h, int64_t state,
                         int64_t row, int tokens) {
    const Delta *d = h->d;
    const float *rows = b->projected + row * m->width;
    convolve_rows(h, state, rows, m->width, tokens);
    for (int g = 0; g < h->group; g++)
        advance_head(h, get_states(h, state) + (int64_t)g * d->key_dim * d->value_dim, g, tokens);
    const int gate = d->gate_begin + h->head / h->group * d->value_step;
    for (int t = 0; t < tokens; t++)
        finish_heads(h, h->mixed + (int64_t)t * h->window.width + 2 * d->key_dim,
                     rows + (int64_t)t * m->width + gate,
                     b->attended + ((row + t) * d->value_heads + h->head) * d->value_dim);
}

static void begin_states(const DeltaHead *h, int64_t state) {
    memset(get_states(h, state), 0, count_state_bytes(h));
    clear_inputs(&h->d->convolution, h->parts, NUM_PARTS, state);
}

static void save_states(const DeltaHead *h, int64_t from, int64_t to) {
    memcpy(get_states(h, to), get_states(h, from), count_state_bytes(h));
    copy_inputs(&h->d->convolution, h->parts, NUM_PARTS, from, to);
}

/* Compute a piece, stopping where its states are saved. */
static void advance_piece(const Model *m, const Batch *b, const DeltaHead *h,
                          const StatePiece *piece) {
    Progress progress = begin_piece(piece);
    if (piece->is_fresh) begin_states(h, piece->state);
    while (take_rows(b, &progress)) {
        advance_rows(m, b, h, piece->state, piece->start + progress.begin, (int)progress.count);
        if (progress.copied_to >= 0) save_states(h, piece->state, progress.copied_to);
    }
}

/* Compute all pieces. Threads divide the heads first: pieces may differ in length. */
static void advance_pieces(const Model *m, const Delta *d, const Batch *b) {
    float *room = (float *)(b->room + omp_get_thread_num() * delta_room_size(d));
    const Share share = share_of((int64_t)d->key_heads * b->num_pieces);
    for (int64_t i = share.begin; i < share.end; i++) {
        const DeltaHead head = find_head(d, (int)(i / b->num_pieces), room);
        advance_piece(m, b, &head, b->pieces + i % b->num_pieces);
    }
}
