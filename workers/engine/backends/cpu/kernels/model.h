/* A decoder as the C forward computes it, and one flat batch of rows for it. */

#pragma once
#include <stdint.h>

#include "matmul/matmul.h"

/* Without weights, there is no norm. With `centers`, a norm subtracts the mean (Ba et al., 2016);
   without, it only divides by the root mean square (Zhang and Sennrich, 2019). */
typedef struct {
    const float *weight, *bias; /* [size]; `bias` may be NULL */
    float epsilon;
    int32_t centers;
} Norm;

/* In the same order as in activations.py. */
enum { SILU, GELU, GELU_TANH, RELU, RELU_SQUARED, QUICK_GELU, CLAMPED_SWIGLU, XIELU };

/* down(factor f(gate_factor gate x) * up x), or down(f(up x)) if `gate` has no weight. */
typedef struct {
    Linear gate, up, down;
    int32_t activation;
    float gate_factor, factor;
    float limit; /* of CLAMPED_SWIGLU */
    float above, below, slope; /* of XIELU */
} Mlp;

/* Many MLPs, of which each row uses a few, and one that all rows share (without weights if there is
   none). */
typedef struct {
    const bf16 *router;             /* [count][hidden] or NULL */
    const float *wide_router;       /* the same in float32, if bfloat16 does not hold it */
    const float *bias, *correction; /* [count] or NULL: added to router logits; to the scores */
    const Mlp *mlps;                /* [count] */
    Mlp shared;
    const bf16 *shared_gate; /* [hidden] or NULL */
    int32_t count, chosen;
    /* A row chooses among the experts of `kept_groups` of the groups. The sums of their `group_best`
       (1 or 2) best scores decide which. There may be one group. */
    int32_t groups, kept_groups, group_best;
    int32_t sigmoid, normalizes; /* scores by sigmoid, not softmax; weights that sum to one */
    int32_t scales_inputs;       /* weights by sigmoid of the inputs of experts, chosen by logits */
    float scale;
    const float *factors; /* [count] or NULL: of the weights of experts */
    Norm router_norm;     /* of the router's input, if that is not the experts' */
    /* Of experts beside an MLP of all rows: of their input, of their output, and of the MLP's. */
    Norm norm, out_norm, mlp_out_norm;
} Experts;

/* A row that an expert computes, and how much of the result the row gets. */
typedef struct {
    int32_t row;
    float weight;
} Route;

/* Keys and values of all heads as products of one latent (DeepSeek-AI, "DeepSeek-V2", 2024, section
   2.1). `down` computes the latent and, after it, the rotated part that the keys of all heads share;
   `up` computes of each head the rest of its key, and its value. Queries may have a latent too. */
typedef struct {
    Linear down, up;
    Linear query_down; /* without weights, queries are computed from the layer's input */
    Norm norm, query_norm;
} Latents;

/* A causal convolution of each channel by itself, and the last inputs of each sequence. */
typedef struct {
    const float *taps; /* [kernel][channels] */
    const float *bias; /* [channels], or NULL */
    bf16 *inputs;      /* [states][kernel][channels] */
    int32_t kernel, channels;
} Convolution;

/* A gated delta network (Yang et al., "Gated Delta Networks", 2024): a causal convolution of queries,
   keys and values, and a recurrence over them (recurrent/delta.h). Successive value heads share a key
   head. `input` computes queries, keys and values, and `gate` the gates of the outputs, unless `input`
   has their columns too. In a projected row [width], the parts of successive key heads lie a step apart;
   channels of the convolution are all queries, then all keys, then all values. */
typedef struct {
    Linear input, gate;
    const bf16 *rates; /* [2][value_heads][hidden]: of how strongly to write, and to forget */
    const float *decay, *decay_bias; /* [value_heads] */
    Convolution convolution;
    Norm norm; /* of the output of a head */
    float *states; /* [states][value_heads][key_dim][value_dim] */
    int32_t key_heads, value_heads, key_dim, value_dim;
    int32_t query_begin, key_begin, value_begin, gate_begin, rates_begin;
    int32_t key_step, value_step; /* of queries and keys, and of values and gates */
} Delta;

/* A gated short convolution (recurrent/short_convolution.h). `input` computes the factors of what is
   convolved, those of the outputs, and what is convolved: each has a column for each channel. */
typedef struct {
    Linear input;
    Convolution convolution;
} ShortConvolution;

/* A state-space layer of Mamba 2 (recurrent/state_space.h). `input` computes the gates of the outputs, and
   what is convolved: the values of all heads, the keys and the queries of all groups. */
typedef struct {
    Linear input;
    const bf16 *rates;                /* [heads][hidden] */
    const float *rate_bias;           /* [heads] */
    const float *decay, *skip;        /* [heads] */
    const float *factors;             /* [channels] of what is convolved, or NULL */
    Convolution convolution;
    Norm norm;     /* of `norm_span` numbers at a time, before or after the outputs are gated */
    float *states; /* [states][heads][dim][size] */
    int32_t heads, groups, dim, size, norm_span, norms_first;
    float gate_factor, rate_factor, least_rate, most_rate;
    /* Beside attention: what its outputs go through, and factors of its branch and of attention's. */
    Linear output;
    float output_factor, attention_factor;
} StateSpace;

/* Pairs of rotated numbers: halves apart, neighbours, or neighbours that are then stored halves apart.
   In the same order as in rotary.py. */
enum { HALVES, NEIGHBOURS, PARTED_NEIGHBOURS };

/* Heads of one or more layers, and where they lie in a projected row. Queries that share a key head are
   `head_step` apart: side by side, or each before the gate of its head's output, which is as wide. The
   groups of successive key heads are `query_step` apart. Keys and values start at their own offsets and
   are `kv_step` apart. Latents, if there are any, start at their own offsets. */
typedef struct {
    int32_t heads, kv_heads, dim, value_dim;
    int32_t head_step, query_step, kv_step, key_begin, value_begin;
    int32_t latent_begin, query_latent_begin;
    int32_t query_span, key_span; /* width of one norm of queries or keys: one head or all */
    int32_t rotary_dim, pairing;  /* which numbers of a head are rotated, and in which pairs */
} Heads;

/* Each layer's input beside the residual (layer_inputs.h): scale * (norm(projection_scale * projection
   token) + embedding_scale * embedding), with a norm of the `size` numbers of a layer. */
typedef struct {
    const bf16 *embedding; /* [vocabulary][layers][size] */
    Linear projection;     /* [layers * size] outputs */
    Norm norm;
    int32_t size;
    float embedding_scale, projection_scale, scale;
} LayerInputs;

/* norm(projection (f(gate x) * input)), whose input begins at column `begin`. */
typedef struct {
    Linear gate, projection;
    Norm norm;
    int32_t activation, begin;
} LayerInput;

typedef struct {
    const Heads *heads;       /* one of the model's, or NULL if the layer does not attend */
    /* Side by side in a row; `query` may hold the columns of all three. Values without weights are keys
       before their norm. */
    Linear query, key, value;
    const Latents *latents;   /* in place of key and value, or NULL */
    const Delta *delta;       /* in place of attention, or NULL */
    const ShortConvolution *short_convolution; /* in place of attention, or NULL */
    const StateSpace *state_space; /* in place of attention, or beside it, or NULL */
    Linear output;            /* without weights, the layer has neither of these */
    Mlp mlp;                  /* without weights, it may have none */
    const Experts *experts;                /* in place of the MLP, or beside it, or NULL */
    const LayerInput *input;               /* or NULL */
    float factor;                          /* of the residual after the layer */
    Norm attention_norm, mlp_norm;         /* of the inputs of attention and MLP */
    Norm attention_out_norm, mlp_out_norm; /* of their outputs */
    Norm query_norm, key_norm, value_norm; /* weights for all heads, one after the other */
    int32_t norms_last; /* queries and keys are normalized after they are rotated */
    float clip;         /* the largest magnitude of projected numbers, or 0 */
    float key_factor, value_factor; /* of projected keys and values */
    int32_t stores; /* keys and values of its own; else it reads those of an earlier layer */
    const float *cosine, *sine;            /* [positions][rotary_dim], or NULL */
    const float *sinks;                    /* [heads], or NULL */
    const float *temperatures;             /* [positions]: factors of queries, or NULL */
    bf16 *keys;   /* [kv_heads][blocks][block_size / LANES][dim / 2][LANES][2] */
    bf16 *values; /* [kv_heads][blocks][block_size][value_dim] */
    int64_t window;                        /* tokens that a token attends to, itself included */
    int64_t chunk;                         /* it attends to its own chunk of so many tokens; or 0 */
    float scale, softcap;                  /* of scores; 0 means no softcap */
} Layer;

typedef struct {
    int32_t hidden, width, num_layers, kinds, block_size; /* `width` of a projected row */
    const Heads *heads;             /* [kinds] */
    int32_t parallel;               /* attention and the MLP read the same residual */
    float embedding_scale, residual_scale, logits_scale, logits_softcap;
    int64_t num_blocks;
    const bf16 *embedding; /* [vocabulary][hidden] */
    const bf16 *position_embedding; /* [positions][hidden], or NULL */
    const LayerInputs *inputs;      /* or NULL */
    Norm norm;
    Linear head;
    const Layer *layers;
} Model;

/* A state to copy to row `row` of the states, after the first `tokens` of a piece. */
typedef struct {
    int64_t tokens, row;
} Save;

/* Successive rows [start, start + size) of one sequence, whose states are in row `state`. A fresh piece
   begins its sequence. `saves` are in order. */
typedef struct {
    int64_t state, start, size, is_fresh;
    int64_t first_save, last_save;
} StatePiece;

typedef struct {
    int32_t rows, num_logits, num_threads, num_pieces;
    const StatePiece *pieces; /* all rows, if the model keeps states */
    const Save *saves;
    const int64_t *ids, *positions, *slots; /* [rows]; a slot is block * block_size + offset */
    const int64_t *owners;                  /* [rows]: a row's line in `tables` */
    const int64_t *tables;                  /* [sequences][table_width] */
    int64_t table_width;
    const int64_t *logits_rows; /* [num_logits] */
    float *logits;              /* [num_logits][vocabulary] */
    /* Scratch, the number of rows rounded up to ROW_BLOCK. */
    float *residual;   /* [rows][hidden] */
    float *branch;     /* [rows][hidden]: a branch's output before its norm or scale */
    bf16 *normed;      /* [rows][hidden], or [rows] of a latent */
    float *projected;  /* [rows][width], or [rows][hidden] */
    float *layer_inputs; /* [rows][layers][size] of LayerInputs */
    bf16 *queries;     /* [rows][heads * dim] */
    bf16 *attended;    /* [rows][heads * value_dim]: the same memory if values are as wide as keys;
                          or the outputs of a delta network or convolution */
    bf16 *activated;   /* [rows][intermediate] */
    Prepared prepared; /* the next product's input, unless that is bfloat16 */
    /* Scratch of experts; `slots` is rows times chosen experts per row. */
    float *routing;        /* [rows][experts] */
    int32_t *chosen;       /* [slots] */
    float *expert_weights; /* [slots] */
    int32_t *expert_starts; /* [experts + 2] */
    Route *routes;         /* [slots] */
    Route *shared_routes;  /* [rows] */
    bf16 *gathered;        /* [slots rounded up][hidden] */
    char *room;        /* [threads][quire_thread_room] */
} Batch;

typedef struct {
    int64_t begin, end;
} Share;

static inline int has_gates(const Heads *h) { return h->head_step > h->dim; }

/* Where query `head` begins in a projected row. */
static inline float *query_in(const Heads *h, float *row, int head) {
    const int group = h->heads / h->kv_heads;
    return row + (int64_t)(head / group) * h->query_step + (int64_t)(head % group) * h->head_step;
}
