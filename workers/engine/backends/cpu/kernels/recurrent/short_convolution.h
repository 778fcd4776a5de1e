/* Gated short convolutions (Liquid AI, "LFM2 Technical Report", 2025): of each channel by itself, the
   products of two projections are convolved, and the result is multiplied by a third. */

#pragma once
#include "../project.h"
#include "convolution.h"
#include "pieces.h"

enum { CHANNELS_AT_ONCE = 32 };

static int64_t short_room_size(const ShortConvolution *s) {
    const int lines = s->convolution.kernel + 2 * TOKENS_AT_ONCE;
    return (int64_t)sizeof(float) * lines * CHANNELS_AT_ONCE;
}

/* to[i] *= by[i] of some channels. */
static inline void multiply_channels(float *to, const float *by) {
    for (int i = 0; i < CHANNELS_AT_ONCE; i += WIDTH) store(to + i, load(to + i) * load(by + i));
}

/* Compute some channels of a piece, from `channel` on. A projected row has the factors of all inputs, those
   of all outputs, and the inputs. */
static void convolve_piece(const Model *m, const ShortConvolution *s, const Batch *b, int channel,
                           const StatePiece *piece, float *room) {
    const Convolution *c = &s->convolution;
    const Part part = {channel, channel, CHANNELS_AT_ONCE};
    const Window window = {room, CHANNELS_AT_ONCE};
    float *outputs = room + (c->kernel + TOKENS_AT_ONCE) * CHANNELS_AT_ONCE;
    Progress progress = begin_piece(piece);
    if (piece->is_fresh) clear_inputs(c, &part, 1, piece->state);
    while (take_rows(b, &progress)) {
        const int64_t first = piece->start + progress.begin;
        const int tokens = (int)progress.count;
        float *rows = b->projected + first * m->width + channel;
        for (int t = 0; t < tokens; t++)
            multiply_channels(rows + t * (int64_t)m->width,
                              rows + t * (int64_t)m->width + 2 * c->channels);
        fill_window(c, &part, 1, piece->state, rows - channel, m->width, tokens, window);
        convolve(c, &part, 1, tokens, window, outputs, 0);
        keep_inputs(c, &part, 1, piece->state, tokens, window);
        for (int t = 0; t < tokens; t++) {
            float *output = outputs + t * CHANNELS_AT_ONCE;
            multiply_channels(output, rows + t * (int64_t)m->width + c->channels);
            narrow_all(b->attended + (first + t) * c->channels + channel, output, CHANNELS_AT_ONCE);
        }
        if (progress.copied_to >= 0) copy_inputs(c, &part, 1, piece->state, progress.copied_to);
    }
}

/* Compute all pieces. Threads divide the channels first: pieces may differ in length. */
static void convolve_pieces(const Model *m, const ShortConvolution *s, const Batch *b) {
    float *room = (float *)(b->room + omp_get_thread_num() * short_room_size(s));
    const int parts = s->convolution.channels / CHANNELS_AT_ONCE;
    const Share share = share_of((int64_t)parts * b->num_pieces);
    for (int64_t i = share.begin; i < share.end; i++)
        convolve_piece(m, s, b, (int)(i / b->num_pieces) * CHANNELS_AT_ONCE,
                       b->pieces + i % b->num_pieces, room);
}
