/* Turns projected rows into queries, and into keys and values in the cache. */

#pragma once
#include "norm.h"
#include "project.h"

/* Rotary positions (Su et al., 2021) of `size` numbers. `cosine` and `sine` hold, for each result, the
   factors of the number in its place and of that one's partner. Numbers beyond the rotated dimensions
   stay as they are. */
static inline void rotate(const Model *m, const float *x, int size, const float *cosine,
                          const float *sine, bf16 *out) {
    const int half = m->rotary_dim / 2, rest = m->rotary_dim;
    if (m->pairing == PARTED_NEIGHBOURS) {
        _Alignas(64) float turned[MAX_HEAD_DIM];
        for (int i = 0; i < half; i++) {
            const float a = x[2 * i], c = x[2 * i + 1];
            turned[i] = c * sine[i] + a * cosine[i];
            turned[half + i] = a * sine[half + i] + c * cosine[half + i];
        }
        narrow_all(out, turned, rest);
    } else if (m->pairing == NEIGHBOURS) {
        for (int i = 0; i < m->rotary_dim; i += WIDTH) {
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

static inline void place_head(const Model *m, const Layer *layer, const float *x, int64_t position,
                              bf16 *out) {
    if (layer->cosine)
        rotate(m, x, m->head_dim, layer->cosine + position * m->rotary_dim,
               layer->sine + position * m->rotary_dim, out);
    else
        narrow_all(out, x, m->head_dim);
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

static void normalize_queries_and_keys(const Model *m, const Layer *layer, float *x) {
    if (layer->query_norm.weight && m->query_span == m->head_dim)
        for (int h = 0; h < m->heads; h++)
            normalize_heads(&layer->query_norm, query_in(m, x, h), h * m->head_dim, m->head_dim,
                            m->head_dim);
    else if (layer->query_norm.weight)
        normalize_heads(&layer->query_norm, x, 0, m->query_span, m->query_span);
    if (layer->key_norm.weight && m->key_span == m->head_dim)
        for (int h = 0; h < m->kv_heads; h++)
            normalize_heads(&layer->key_norm, x + m->key_begin + (int64_t)h * m->kv_step,
                            h * m->head_dim, m->head_dim, m->head_dim);
    else if (layer->key_norm.weight)
        normalize_heads(&layer->key_norm, x + m->key_begin, 0, m->key_span, m->key_span);
}

/* Store the key of a slot in its pages, which hold LANES tokens side by side as a block of a weight:
   [dim / 2][LANES][2]. */
static inline void store_key(const bf16 *key, int dim, int64_t slot, bf16 *pages) {
    bf16 *to = pages + slot / LANES * LANES * dim + slot % LANES * 2;
    for (int i = 0; i < dim; i += 2) memcpy(to + i * LANES, key + i, 2 * sizeof(bf16));
}

/* Rotate queries and keys, and store keys and values in the cache. */
static void place_rows(const Model *m, const Layer *layer, const Batch *b) {
    const Share share = share_of(b->rows);
    const int group = m->heads / m->kv_heads;
    bf16 placed[MAX_HEAD_DIM];
    for (int64_t row = share.begin; row < share.end; row++) {
        float *x = b->projected + row * m->width;
        bf16 *queries = b->queries + row * m->heads * m->head_dim;
        const int64_t position = b->positions[row];
        normalize_queries_and_keys(m, layer, x);
        for (int h = 0; h < m->kv_heads; h++) {
            const int64_t slot = h * m->num_blocks * m->block_size + b->slots[row];
            const float *key = x + m->key_begin + (int64_t)h * m->kv_step;
            const float *value = x + m->value_begin + (int64_t)h * m->kv_step;
            for (int i = 0; i < group; i++)
                place_head(m, layer, query_in(m, x, h * group + i), position,
                           queries + (h * group + i) * m->head_dim);
            place_head(m, layer, key, position, placed);
            store_key(placed, m->head_dim, slot, layer->keys);
            narrow_all(layer->values + slot * m->head_dim, value, m->head_dim);
        }
    }
}

/* The same for heads whose keys and values are made from a latent: the last numbers of a head are
   rotated, and these are the same in all keys of a row. */
static void place_latent_rows(const Model *m, const Layer *layer, const Batch *b) {
    const Share share = share_of(b->rows);
    const int turned = m->rotary_dim, plain = m->head_dim - turned;
    bf16 key[MAX_HEAD_DIM];
    for (int64_t row = share.begin; row < share.end; row++) {
        const float *x = b->projected + row * m->width, *latent = x + m->latent_begin;
        const float *cosine = layer->cosine + b->positions[row] * turned;
        const float *sine = layer->sine + b->positions[row] * turned;
        bf16 *query = b->queries + row * m->heads * m->head_dim;
        rotate(m, latent + layer->latents->up.inputs, turned, cosine, sine, key + plain);
        for (int h = 0; h < m->heads; h++, query += m->head_dim) {
            const int64_t slot = h * m->num_blocks * m->block_size + b->slots[row];
            const float *from = x + (int64_t)h * m->query_step, *own = x + (int64_t)h * m->kv_step;
            narrow_all(query, from, plain);
            rotate(m, from + plain, turned, cosine, sine, query + plain);
            narrow_all(key, own + m->key_begin, plain);
            store_key(key, m->head_dim, slot, layer->keys);
            narrow_all(layer->values + slot * m->value_dim, own + m->value_begin, m->value_dim);
        }
    }
}
