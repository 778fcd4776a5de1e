/* State-space layers of Mamba 2 (Dao and Gu, "Transformers are SSMs", 2024).

   The state of a head is a matrix [dim][size]. Each token lets it decay, and adds the product of what it
   writes with its key; its query reads the result:

       S = decay S + (rate value) key,  output = S query + skip value

   where rate = softplus(product + bias) within limits, and decay = e^(-e^A rate). Heads of a group share
   keys and queries (B and C there). Values, keys and queries come out of a causal convolution.

   Prompts are computed token by token too, not in chunks (section 6 there), so that a token's output has
   the same bits wherever its prompt is cut. Lines of a state do not depend on each other: a few numbers of
   two lines stay in registers for several tokens. */

#pragma once
#include "../norm.h"
#include "convolution.h"
#include "pieces.h"
#include "rates.h"

enum { LINE_REGISTERS = REGISTERS / 4, LINES = 2, CONVOLVED_AT_ONCE = 32 };

/* What the heads of a state-space layer read of some tokens: their projected rows are `stride` apart. */
typedef struct {
    const StateSpace *s;
    float *values;              /* of the head and the first token; the outputs take their place */
    const float *keys, *queries;
    int64_t stride;
    int tokens;
    float rates[TOKENS_AT_ONCE], decays[TOKENS_AT_ONCE], skip;
} HeadTokens;

static inline int space_outputs(const StateSpace *s) { return s->heads * s->dim; }

/* A projected row has the gates of the outputs, the inputs of the convolution and the rates. */
static inline int space_rates_begin(const StateSpace *s) {
    return space_outputs(s) + s->convolution.channels;
}

static int64_t space_room_size(const StateSpace *s) {
    const int lines = s->convolution.kernel + 2 * TOKENS_AT_ONCE;
    return (int64_t)sizeof(float) * lines * CONVOLVED_AT_ONCE;
}

static inline void scale_channels(const StateSpace *s, int channel, float *x) {
    for (int i = 0; i < CONVOLVED_AT_ONCE; i += WIDTH)
        store(x + i, load(x + i) * load(s->factors + channel + i));
}

/* Convolve some channels of a piece, from `channel` on, in place. */
static void convolve_space_piece(const Model *m, const StateSpace *s, const Batch *b, int channel,
                                 const StatePiece *piece, float *room) {
    const Convolution *c = &s->convolution;
    const Part part = {0, channel, CONVOLVED_AT_ONCE};
    const Window window = {room, CONVOLVED_AT_ONCE};
    float *outputs = room + (c->kernel + TOKENS_AT_ONCE) * CONVOLVED_AT_ONCE;
    Progress progress = begin_piece(piece);
    if (piece->is_fresh) clear_inputs(c, &part, 1, piece->state);
    while (take_rows(b, &progress)) {
        const int tokens = (int)progress.count;
        float *rows = b->projected + (piece->start + progress.begin) * m->width +
                      space_outputs(s) + channel;
        for (int t = 0; s->factors && t < tokens; t++)
            scale_channels(s, channel, rows + (int64_t)t * m->width);
        fill_window(c, &part, 1, piece->state, rows, m->width, tokens, window);
        convolve(c, &part, 1, tokens, window, outputs, 1);
        keep_inputs(c, &part, 1, piece->state, tokens, window);
        for (int t = 0; t < tokens; t++)
            memcpy(rows + (int64_t)t * m->width, outputs + t * CONVOLVED_AT_ONCE,
                   CONVOLVED_AT_ONCE * sizeof(float));
        if (progress.copied_to >= 0) copy_inputs(c, &part, 1, piece->state, progress.copied_to);
    }
}

/* Convolve all pieces. Threads divide the channels first: pieces may differ in length. */
static void convolve_space(const Model *m, const StateSpace *s, const Batch *b) {
    float *room = (float *)(b->room + omp_get_thread_num() * space_room_size(s));
    const int parts = s->convolution.channels / CONVOLVED_AT_ONCE;
    const Share share = share_of((int64_t)parts * b->num_pieces);
    for (int64_t i = share.begin; i < share.end; i++)
        convolve_space_piece(m, s, b, (int)(i / b->num_pieces) * CONVOLVED_AT_ONCE,
                             b->pieces + i % b->num_pieces, room);
}

static inline float limited(float x, float least, float most) { return fminf(fmaxf(x, least), most); }

static HeadTokens read_head(const Model *m, const StateSpace *s, const Batch *b, int head, int64_t row,
                            int tokens) {
    float *first = b->projected + row * m->width;
    float *values = first + space_outputs(s), *keys = values + space_outputs(s);
    const int group = head / (s->heads / s->groups);
    HeadTokens h = {
        .s = s, .values = values + (int64_t)head * s->dim, .keys = keys + (int64_t)group * s->size,
        .queries = keys + (int64_t)(s->groups + group) * s->size, .stride = m->width,
        .tokens = tokens, .skip = s->skip[head],
    };
    for (int t = 0; t < tokens; t++) {
        const float product = first[(int64_t)t * m->width + space_rates_begin(s) + head];
        const float rate = softplus(product * s->rate_factor + s->rate_bias[head]);
        h.rates[t] = limited(rate, s->least_rate, s->most_rate);
        h.decays[t] = expf(s->decay[head] * h.rates[t]);
    }
    return h;
}

/* Some numbers of successive lines of a state, which begin with `line` of the head, for all tokens. What
   their queries read is added to `read`. */
static inline __attribute__((always_inline)) void advance_lines(const HeadTokens *h, float *state,
                                                                int line, int column, int registers,
                                                                float read[LINES][TOKENS_AT_ONCE]) {
    const int size = h->s->size;
    floats held[LINES][LINE_REGISTERS];
    for (int l = 0; l < LINES; l++)
#pragma GCC unroll 8
        for (int v = 0; v < registers; v++) held[l][v] = load(state + l * size + column + v * WIDTH);
    for (int t = 0; t < h->tokens; t++) {
        const float *key = h->keys + t * h->stride + column, *value = h->values + t * h->stride + line;
        const float *query = h->queries + t * h->stride + column;
        const floats decay = all_of(h->decays[t]);
        floats written[LINES], sums[LINES];
        for (int l = 0; l < LINES; l++) {
            written[l] = all_of(value[l] * h->rates[t]);
            sums[l] = all_of(0);
        }
#pragma GCC unroll 8
        for (int v = 0; v < registers; v++) {
            const floats own = load(key + v * WIDTH), asked = load(query + v * WIDTH);
            for (int l = 0; l < LINES; l++) {
                held[l][v] = multiply_add(written[l], own, held[l][v] * decay);
                sums[l] = multiply_add(held[l][v], asked, sums[l]);
            }
        }
        for (int l = 0; l < LINES; l++) read[l][t] += sum_of(sums[l]);
    }
    for (int l = 0; l < LINES; l++)
#pragma GCC unroll 8
        for (int v = 0; v < registers; v++) store(state + l * size + column + v * WIDTH, held[l][v]);
}

/* Advance the state [dim][size] of a head, and put the outputs in the place of the values. */
static void advance_space_head(const HeadTokens *h, float *state) {
    const int size = h->s->size;
    float read[LINES][TOKENS_AT_ONCE];
    for (int line = 0; line < h->s->dim; line += LINES, state += LINES * size) {
        int column = 0;
        memset(read, 0, sizeof(read));
        for (; column + LINE_REGISTERS * WIDTH <= size; column += LINE_REGISTERS * WIDTH)
            advance_lines(h, state, line, column, LINE_REGISTERS, read);
        for (; column < size; column += WIDTH) advance_lines(h, state, line, column, 1, read);
        for (int t = 0; t < h->tokens; t++)
            for (int l = 0; l < LINES; l++) {
                float *value = h->values + t * h->stride + line + l;
                *value = read[l][t] + h->skip * *value;
            }
    }
}

/* Compute a piece of one head, stopping where its states are saved. */
static void advance_space_piece(const Model *m, const StateSpace *s, const Batch *b, int head,
                                const StatePiece *piece) {
    const int64_t size = (int64_t)s->dim * s->size, step = s->heads * size;
    float *state = s->states + piece->state * step + head * size;
    Progress progress = begin_piece(piece);
    if (piece->is_fresh) memset(state, 0, (size_t)size * sizeof(float));
    while (take_rows(b, &progress)) {
        const HeadTokens h = read_head(m, s, b, head, piece->start + progress.begin,
                                       (int)progress.count);
        advance_space_head(&h, state);
        if (progress.copied_to >= 0)
            memcpy(s->states + progress.copied_to * step + head * size, state,
                   (size_t)size * sizeof(float));
    }
}

/* Compute all pieces. Threads divide the heads first: pieces may differ in length. */
static void advance_space(const Model *m, const StateSpace *s, const Batch *b) {
    const Share share = share_of((int64_t)s->heads * b->num_pieces);
    for (int64_t i = share.begin; i < share.end; i++)
        advance_space_piece(m, s, b, (int)(i / b->num_pieces), b->pieces + i % b->num_pieces);
}

/* Gate some outputs of a row, and normalize them before or after that, if there is a norm. */
static void finish_space_span(const StateSpace *s, float *x, const float *gates, int from, bf16 *to) {
    const int size = s->norm_span;
    floats squares = all_of(0);
    for (int i = from; i < from + size; i += WIDTH) {
        const floats gate = load(gates + i) * all_of(s->gate_factor);
        if (!s->norms_first) store(x + i, gated_by(load(x + i) * gate, gate));
        squares = multiply_add(load(x + i), load(x + i), squares);
    }
    const float mean = sum_of(squares) / (float)size;
    const floats scale = all_of(s->norm.weight ? 1.0f / sqrtf(mean + s->norm.epsilon) : 1);
    for (int i = from; i < from + size; i += WIDTH) {
        floats value = load(x + i) * scale;
        if (s->norm.weight) value = value * load(s->norm.weight + i);
        const floats gate = load(gates + i) * all_of(s->gate_factor);
        narrow(to + i, s->norms_first ? gated_by(value * gate, gate) : value);
    }
}

static void finish_space(const Model *m, const StateSpace *s, const Batch *b) {
    const int size = space_outputs(s);
    const Share share = share_of(b->rows);
    for (int64_t row = share.begin; row < share.end; row++) {
        float *gates = b->projected + row * m->width;
        for (int from = 0; from < size; from += s->norm_span)
            finish_space_span(s, gates + size, gates, from, b->attended + row * size);
    }
}
