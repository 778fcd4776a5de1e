/* A decoder as the C forward computes it, and one flat batch of rows for it. */

#pragma once
#include <stdint.h>

#include "matmul.h"

/* Without weights, there is no norm. With `centers`, a norm subtracts the mean (Ba et al., 2016);
   without, it only divides by the root mean square (Zhang and Sennrich, 2019). */
typedef struct {
    const float *weight, *bias; /* [size]; `bias` may be NULL */
    float epsilon;
    int32_t centers;
} Norm;

/* In the same order as in activations.py. */
enum { SILU, GELU, GELU_TANH, RELU, RELU_SQUARED, QUICK_GELU, CLAMPED_SWIGLU };

/* down(f(gate x) * up x), or down(f(up x)) if `gate` has no weight. */
typedef struct {
    Linear gate, up, down;
    int32_t activation;
    float limit; /* of CLAMPED_SWIGLU */
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
    int32_t sigmoid, normalizes; /* scores by sigmoid, not softmax; weights that sum to one */
    float scale;
} Experts;

/* A row that an expert computes, and how much of the result the row gets. */
typedef struct {
    int32_t row;
    float weight;
} Route;

typedef struct {
    Linear query, key, value; /* side by side in a row; `query` may hold the columns of all three */
    Linear output;
    Mlp mlp;
    const Experts *experts;                /* in place of the MLP, or NULL */
    Norm attention_norm, mlp_norm;         /* of the inputs of attention and MLP */
    Norm attention_out_norm, mlp_out_norm; /* of their outputs */
    Norm query_norm, key_norm;             /* weights for all heads, one after the other */
    const float *cosine, *sine;            /* [positions][rotary_dim], or NULL */
    const float *sinks;                    /* [heads], or NULL */
    bf16 *keys, *values;                   /* [kv_heads][blocks][block_size][head_dim] */
    int64_t window;                        /* tokens that a token attends to, itself included */
    float scale, softcap;                  /* of scores; 0 means no softcap */
} Layer;

typedef struct {
    int32_t hidden, heads, kv_heads, head_dim, num_layers, block_size;
    /* Where heads lie in a projected row [width]. Queries that share a key head lie side by side;
       the groups of successive key heads are `query_step` apart. Keys and values start at their own
       offsets and are `kv_step` apart. */
    int32_t width, query_step, kv_step, key_begin, value_begin;
    int32_t query_span, key_span;   /* width of one norm of queries or keys: one head or all */
    int32_t rotary_dim, interleaved; /* pairs are halves of `rotary_dim`, or neighbours */
    int32_t parallel;               /* attention and the MLP read the same residual */
    float embedding_scale, residual_scale, logits_scale, logits_softcap;
    int64_t num_blocks;
    const bf16 *embedding; /* [vocabulary][hidden] */
    const bf16 *position_embedding; /* [positions][hidden], or NULL */
    Norm norm;
    Linear head;
    const Layer *layers;
} Model;

typedef struct {
    int32_t rows, num_logits, num_threads;
    const int64_t *ids, *positions, *slots; /* [rows]; a slot is block * block_size + offset */
    const int64_t *owners;                  /* [rows]: a row's line in `tables` */
    const int64_t *tables;                  /* [sequences][table_width] */
    int64_t table_width;
    const int64_t *logits_rows; /* [num_logits] */
    float *logits;              /* [num_logits][vocabulary] */
    /* Scratch, the number of rows rounded up to ROW_BLOCK. */
    float *residual;   /* [rows][hidden] */
    float *branch;     /* [rows][hidden]: a branch's output before its norm or scale */
    bf16 *normed;      /* [rows][hidden] */
    float *projected;  /* [rows][width] */
    bf16 *queries;     /* [rows][heads * head_dim]: overwritten with the output of attention */
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
    float *scores;     /* [threads][MAX_QUERIES][max_tokens] */
    bf16 *weights;     /* [threads][MAX_QUERIES][max_tokens] */
    int64_t max_tokens;
} Batch;

typedef struct {
    int64_t begin, end;
} Share;
