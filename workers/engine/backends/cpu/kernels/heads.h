/* Turns projected rows into queries, and into keys and values in the cache. */

#pragma once
#include "activations.h"
#include "norm.h"
#include "project.h"

/* Rotary positions (Su et al., 2021) of `size` numbers. `cosine` and `sine` hold, for each result, the
   factors of the number in its place and of that one's partner. Numbers beyond the rotated dimensions
   stay as they are. */
static inline void rotate(const Heads *h, const float *x, int size, const float *cosine,
                          const float *sine, bf16 *out) {
    const int half = h->rotary_dim / 2, rest = h->rotary_dim;
    if (h->pairing == PARTED_NEIGHBOURS) {
        _Alignas(64) float turned[MAX_HEAD_DIM];
        for (int i = 0; i < half; i++) {
            const float a = x[2 * i], c = x[2 * i + 1];
            turned[i] = c * sine[i] + a * cosine[i];
            turned[half + i] = a * sine[half + i] + c * cosine[half + i];
        }
        narrow_all(out, turned, rest);
    } else if (h->pairing == NEIGHBOURS) {
        for (int i = 0; i < h->rotary_dim; i += WIDTH) {
            const floats value = load(x + i);
            narrow(out + i, multiply_add(swap_neighbours(value), load(sine + i),
                                         value * load(cosine + i)));
        }
    } else if (half % WIDTH == 0) {
        for (int i = 0; i < half; i += WIDTH) {
            const floats a = load(x + i), c = load(x + half + i);
            narrow(out + i, multiply_add(c, load(sine + i), a * load(cosine + i)));
            narrow(out + half + i,
                   multiply_add(a, load(sine + half + i), c * load(cosine + half + i)));
        }
    } else {
        _Alignas(64) float turned[MAX_HEAD_DIM];
        for (int i = 0; i < half; i++) turned[i] = x[i + half] * sine[i] + x[i] * cosine[i];
        for (int i = half; i < rest; i++) turned[i] = x[i - half] * sine[i] + x[i] * cosine[i];
        for (int i = rest; i < size; i++) turned[i] = x[i];
        narrow_all(out, turned, size);
        return;
    }
    narrow_all(out + rest, x + rest, size - rest);
}

static inline void place_head(const Layer *layer, const float *x, int64_t position, bf16 *out) {
    const Heads *h = layer->heads;
    if (layer->cosine)
        rotate(h, x, h->dim, layer->cosine + position * h->rotary_dim,
               layer->sine + position * h->rotary_dim, out);
    else
        narrow_all(out, x, h->dim);
}

/* Normalize numbers in place, `span` of them at a time (a multiple of 16), rounded as the next
   step reads them. */
static inline void normalize_heads(const Norm *norm, float *x, int from, int size, int span) {
    bf16 normed[span];
    for (int i = 0; i < size; i += span) {
        const Norm own = {norm->weight + from + i, norm->bias ? norm->bias + from + i : NULL,
                          norm->epsilon, norm->centers};
        normalize(x + i, &own, span, normed);
        for (int j = 0; j < span; j += WIDTH) store(x + i + j, widen(normed + j));
    }
}

/* Rotate a head, and normalize it if that comes last. */
static inline void finish_head(const Layer *layer, const Norm *norm, int head, const float *x,
                               int64_t position, bf16 *out) {
    const int dim = layer->heads->dim;
    float turned[MAX_HEAD_DIM];
    place_head(layer, x, position, out);
    if (!layer->norms_last) return;
    for (int i = 0; i < dim; i += WIDTH) store(turned + i, widen(out + i));
    const Norm own = {norm->weight + head * dim, norm->bias ? norm->bias + head * dim : NULL,
                      norm->epsilon, norm->centers};
    normalize(turned, &own, dim, out);
}

static inline void clip_row(float *x, int size, float most) {
    for (int i = 0; i < size; i += WIDTH)
        store(x + i, larger(smaller(load(x + i), all_of(most)), all_of(-most)));
}

static inline void scale_some(float *x, int size, float factor) {
    for (int i = 0; i < size; i += WIDTH) store(x + i, load(x + i) * all_of(factor));
}

/* Multiply the queries of a row by the temperature of its position. */
static inline void tune_queries(const Layer *layer, float *x, int64_t position) {
    const Heads *h = layer->heads;
    const floats by = all_of(layer->temperatures[position]);
    for (int i = 0; i < h->heads; i++) {
        float *query = query_in(h, x, i);
        for (int j = 0; j < h->dim; j += WIDTH) store(query + j, load(query + j) * by);
    }
}

/* Clip, scale and normalize the heads of a row, as far as that comes before they are rotated. */
static void normalize_row(const Layer *layer, float *x) {
    const Heads *h = layer->heads;
    float *values = x + h->value_begin;
    if (layer->clip > 0) clip_row(x, h->value_begin + h->kv_heads * h->kv_step, layer->clip);
    if (layer->key_factor != 1) scale_some(x + h->key_begin, h->kv_heads * h->kv_step, layer->key_factor);
    if (layer->value_factor != 1) scale_some(values, h->kv_heads * h->kv_step, layer->value_factor);
    if (layer->norms_last) return;
    if (layer->key.packed && !layer->value.packed)
        memcpy(values, x + h->key_begin, sizeof(float) * (size_t)(h->kv_heads * h->dim));
    if (layer->query_norm.weight && h->query_span == h->dim)
        for (int i = 0; i < h->heads; i++)
            normalize_heads(&layer->query_norm, query_in(h, x, i), i * h->dim, h->dim, h->dim);
    else if (layer->query_norm.weight)
        normalize_heads(&layer->query_norm, x, 0, h->query_span, h->query_span);
    if (layer->key_norm.weight && h->key_span == h->dim)
        for (int i = 0; i < h->kv_heads; i++)
            normalize_heads(&layer->key_norm, x + h->key_begin + (int64_t)i * h->kv_step, i * h->dim,
                            h->dim, h->dim);
    else if (layer->key_norm.weight)
        normalize_heads(&layer->key_norm, x + h->key_begin, 0, h->key_span, h->key_span);
    if (layer->value_norm.weight)
        for (int i = 0; i < h->kv_heads; i++)
            normalize_heads(&layer->value_norm, values + (int64_t)i * h->kv_step, i * h->dim, h->dim,
                            h->dim);
}

/* Store the key of a slot in its pages, which hold LANES tokens side by side as a block of a weight:
   [dim / 2][LANES][2]. */
static inline void store_key(const bf16 *key, int dim, int64_t slot, bf16 *pages) {
    bf16 *to = pages + slot / LANES * LANES * dim + slot % LANES * 2;
    for (int i = 0; i < dim; i += 2) memcpy(to + i * LANES, key + i, 2 * sizeof(bf16));
}

/* Rotate queries and keys, and store keys and values in the cache, if the layer has its own. */
static void place_rows(const Model *m, const Layer *layer, const Batch *b) {
    const Heads *h = layer->heads;
    const Share share = share_of(b->rows);
    bf16 placed[MAX_HEAD_DIM];
    for (int64_t row = share.begin; row < share.end; row++) {
        float *x = b->projected + row * m->width;
        bf16 *queries = b->queries + row * h->heads * h->dim;
        const int64_t position = b->positions[row];
        normalize_row(layer, x);
        if (layer->temperatures) tune_queries(layer, x, position);
        for (int i = 0; i < h->heads; i++)
            finish_head(layer, &layer->query_norm, i, query_in(h, x, i), position,
                        queries + i * h->dim);
        for (int i = 0; layer->stores && i < h->kv_heads; i++) {
            const int64_t slot = i * m->num_blocks * m->block_size + b->slots[row];
            const int64_t from = (int64_t)i * h->kv_step;
            finish_head(layer, &layer->key_norm, i, x + h->key_begin + from, position, placed);
            store_key(placed, h->dim, slot, layer->keys);
            narrow_all(layer->values + slot * h->dim, x + h->value_begin + from, h->dim);
        }
    }
}

/* The same for heads whose keys and values are made from a latent: the last numbers of a head are
   rotated, and these are the same in all keys of a row. */
static void place_latent_rows(const Model *m, const Layer *layer, const Batch *b) {
    const Heads *h = layer->heads;
    const Share share = share_of(b->rows);
    const int turned = h->rotary_dim, plain = h->dim - turned;
    bf16 key[MAX_HEAD_DIM];
    for (int64_t row = share.begin; row < share.end; row++) {
        const float *x = b->projected + row * m->width, *latent = x + h->latent_begin;
        const float *cosine = layer->cosine + b->positions[row] * turned;
        const float *sine = layer->sine + b->positions[row] * turned;
        bf16 *query = b->queries + row * h->heads * h->dim;
        rotate(h, latent + layer->latents->up.inputs, turned, cosine, sine, key + plain);
        for (int i = 0; i < h->heads; i++, query += h->dim) {
            const int64_t slot = i * m->num_blocks * m->block_size + b->slots[row];
            const float *from = x + (int64_t)i * h->query_step, *own = x + (int64_t)i * h->kv_step;
            narrow_all(query, from, plain);
            rotate(h, from + plain, turned, cosine, sine, query + plain);
            narrow_all(key, own + h->key_begin, plain);
            store_key(key, h->dim, slot, layer->keys);
            narrow_all(layer->values + slot * h->value_dim, own + h->value_begin, h->value_dim);
        }
    }
}
