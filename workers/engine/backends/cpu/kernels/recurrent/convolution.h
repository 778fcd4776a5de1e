/* Causal convolutions of a sequence's channels, a few tokens at a time.

   The inputs are rounded to bfloat16, as they are kept for the tokens after them: an output does not
   depend on which of its inputs an earlier step computed. */

#pragma once
#include <string.h>

#include "../activations.h"

/* Channels that lie side by side: `channel` is the first, and `column` its place in a projected row.
   All three are multiples of 16. */
typedef struct {
    int column, channel, size;
} Part;

/* Inputs of some parts of the channels, one part after the other: [kernel + tokens][width], the kept ones
   first. */
typedef struct {
    float *inputs;
    int width;
} Window;

static inline bf16 *kept_inputs(const Convolution *c, int64_t state, int line) {
    return c->inputs + (state * c->kernel + line) * c->channels;
}

static inline void round_all(float *out, const float *x, int size) {
    for (int i = 0; i < size; i += WIDTH) {
        bf16 narrowed[WIDTH];
        narrow(narrowed, load(x + i));
        store(out + i, widen(narrowed));
    }
}

/* Read the kept inputs of a state, and those of `tokens` rows that are `stride` apart. */
static inline void fill_window(const Convolution *c, const Part *parts, int num_parts, int64_t state,
                               const float *rows, int64_t stride, int tokens, Window window) {
    for (int p = 0, at = 0; p < num_parts; at += parts[p++].size) {
        float *to = window.inputs + at;
        for (int line = 0; line < c->kernel; line++, to += window.width) {
            const bf16 *kept = kept_inputs(c, state, line) + parts[p].channel;
            for (int i = 0; i < parts[p].size; i += WIDTH) store(to + i, widen(kept + i));
        }
        for (int t = 0; t < tokens; t++, to += window.width)
            round_all(to, rows + t * stride + parts[p].column, parts[p].size);
    }
}

/* Keep the last inputs of the window. */
static inline void keep_inputs(const Convolution *c, const Part *parts, int num_parts, int64_t state,
                               int tokens, Window window) {
    const float *last = window.inputs + (int64_t)tokens * window.width;
    for (int line = 0; line < c->kernel; line++, last += window.width)
        for (int p = 0, at = 0; p < num_parts; at += parts[p++].size)
            narrow_all(kept_inputs(c, state, line) + parts[p].channel, last + at, parts[p].size);
}

/* Write the convolution of the window's tokens, or silu of it, to out [tokens][width]. */
static inline void convolve(const Convolution *c, const Part *parts, int num_parts, int tokens,
                            Window window, float *out, int is_activated) {
    for (int p = 0, at = 0; p < num_parts; at += parts[p++].size)
        for (int i = 0; i < parts[p].size; i += WIDTH) {
            const float *taps = c->taps + parts[p].channel + i;
            const floats bias = c->bias ? load(c->bias + parts[p].channel + i) : all_of(0);
            for (int t = 0; t < tokens; t++) {
                const float *inputs = window.inputs + (int64_t)(t + 1) * window.width + at + i;
                floats sum = bias;
                for (int k = 0; k < c->kernel; k++)
                    sum = multiply_add(load(inputs + (int64_t)k * window.width),
                                       load(taps + (int64_t)k * c->channels), sum);
                store(out + (int64_t)t * window.width + at + i,
                      is_activated ? gated_by(sum, sum) : sum);
            }
        }
}

/* Begin or copy the parts of a state. */
static inline void clear_inputs(const Convolution *c, const Part *parts, int num_parts, int64_t state) {
    for (int line = 0; line < c->kernel; line++)
        for (int p = 0; p < num_parts; p++)
            memset(kept_inputs(c, state, line) + parts[p].channel, 0,
                   (size_t)parts[p].size * sizeof(bf16));
}

static inline void copy_inputs(const Convolution *c, const Part *parts, int num_parts, int64_t from,
                               int64_t to) {
    for (int line = 0; line < c->kernel; line++)
        for (int p = 0; p < num_parts; p++)
            memcpy(kept_inputs(c, to, line) + parts[p].channel,
                   kept_inputs(c, from, line) + parts[p].channel,
                   (size_t)parts[p].size * sizeof(bf16));
}
