/* The forward of a small decoder with random weights over one text, for processors that only an
   emulator can run here.

       random_forward DTYPE CHUNK

   Compiled with -DHEAD_SIZE=..., and perhaps with one of

       -DVALUE_SIZE=...  for heads from latents,
       -DDELTA_SIZE=...  for a gated delta network in the first layer, and gated attention,
       -DSPACE_SIZE=...  for state spaces: in the first layer in place of attention, in the second beside it,

   it writes the logits [TOKENS][VOCABULARY] to standard output, in float32. DTYPE is "bfloat16", "int8" or
   "int4"; the text is computed CHUNK tokens per step, beside another one. The same arguments give the same
   weights and tokens on every processor. */

#include <stdio.h>
#include <stdlib.h>

#include "decoder.c"

#ifdef VALUE_SIZE
enum { HAS_LATENTS = 1, VALUE_DIM = VALUE_SIZE };
#else
enum { HAS_LATENTS = 0, VALUE_DIM = HEAD_SIZE };
#endif

#ifdef DELTA_SIZE
enum { HAS_DELTA = 1, STATE_DIM = DELTA_SIZE };
#else
enum { HAS_DELTA = 0, STATE_DIM = 16 };
#endif

#ifdef SPACE_SIZE
enum { HAS_SPACE = 1, SPACE_STATE = SPACE_SIZE };
#else
enum { HAS_SPACE = 0, SPACE_STATE = 16 };
#endif

enum {
    TOKENS = 100, HIDDEN = 128, HEAD_DIM = HEAD_SIZE, KV_HEADS = HEAD_DIM % 32 ? 4 : 1,
    HEADS = HAS_LATENTS ? KV_HEADS : 2 * KV_HEADS, INTERMEDIATE = 96, WIDEST = HEADS * HEAD_DIM,
    TURNED = HEAD_DIM / 32 * 16, RANK = 64, QUERY_RANK = 96,
    KEY_STEP = HAS_LATENTS ? HEAD_DIM - TURNED + VALUE_DIM : HEAD_DIM,
    HEAD_STEP = HAS_DELTA ? 2 * HEAD_DIM : HEAD_DIM, QUERIES = HEADS * HEAD_STEP,
    VALUE_BEGIN = QUERIES + (HAS_LATENTS ? HEAD_DIM - TURNED : KV_HEADS * HEAD_DIM),
    LATENT_BEGIN = QUERIES + KV_HEADS * (HAS_LATENTS ? KEY_STEP : 2 * HEAD_DIM),
    QUERY_LATENT_BEGIN = LATENT_BEGIN + (HAS_LATENTS ? RANK + TURNED : 0),
    KEY_DIM = 48, KEY_GROUPS = 2, VALUES = 4 * STATE_DIM, CHANNELS = 2 * KEY_GROUPS * KEY_DIM + VALUES,
    DELTA_WIDTH = HAS_DELTA ? CHANNELS + VALUES + 8 : 0,
    SPACE_HEADS = 6, SPACE_DIM = 16, SPACE_GROUPS = 2, SPACE_VALUES = SPACE_HEADS * SPACE_DIM,
    SPACE_CHANNELS = SPACE_VALUES + 2 * SPACE_GROUPS * SPACE_STATE,
    SPACE_WIDTH = HAS_SPACE ? SPACE_VALUES + SPACE_CHANNELS + SPACE_HEADS : 0,
    STATE_WIDTH = DELTA_WIDTH > SPACE_WIDTH ? DELTA_WIDTH : SPACE_WIDTH,
    ATTENTION_WIDTH = QUERY_LATENT_BEGIN + (HAS_LATENTS ? QUERY_RANK : 0),
    WIDTH_OF_ROW = STATE_WIDTH > ATTENTION_WIDTH ? STATE_WIDTH : ATTENTION_WIDTH,
    OUTPUTS = HEADS * VALUE_DIM > VALUES ? HEADS * VALUE_DIM : VALUES,
    INPUTS = OUTPUTS > WIDEST ? OUTPUTS : WIDEST,
    VOCABULARY = 96, LAYERS = 2, BLOCK = 16, BLOCKS = 16, MAX_TOKENS = 112, ROWS = 2 * TOKENS + 32
};

static uint64_t state = 1;

/* From -1 to 1, by Knuth's linear congruential generator. */
static float draw(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(state >> 32) / 2147483648.0f;
}

static void *room(size_t size) {
    void *found = aligned_alloc(64, (size + 63) / 64 * 64);
    if (!found) abort();
    memset(found, 0, size);
    return found;
}

static bf16 *random_bf16(int size, float scale) {
    bf16 *numbers = room((size_t)size * sizeof(bf16));
    for (int i = 0; i < size; i += WIDTH) {
        float wide[WIDTH];
        for (int j = 0; j < WIDTH; j++) wide[j] = draw() * scale;
        narrow(numbers + i, load(wide));
    }
    return numbers;
}

static float *random_floats(int size, float middle, float range) {
    float *numbers = room((size_t)size * sizeof(float));
    for (int i = 0; i < size; i++) numbers[i] = middle + range * draw();
    return numbers;
}

/* Of random numbers, whose places are as good as any. */
static Linear random_linear(int inputs, int outputs, int bits) {
    Linear linear = {.inputs = inputs, .outputs = outputs, .bits = bits};
    linear.bias = random_floats(outputs, 0, 0.1f);
    if (bits == 16) {
        linear.packed = random_bf16(inputs * outputs, 0.2f);
        return linear;
    }
    linear.scales = random_floats(outputs, 0.0016f, 0.0004f);
    const int size = bits == 8 ? inputs * outputs : outputs / LANES * (int)nibble_block_size(inputs);
    uint8_t *bytes = room((size_t)size + 512); /* products may read further */
    for (int i = 0; i < size; i++) {
        bytes[i] = (uint8_t)((bits == 8 ? STORED_OFFSET : 128) + (int)(127 * draw()));
        const int is_scale = i % NIBBLE_BYTES < 2 * LANES, is_minimum = i % NIBBLE_BYTES < 4 * LANES;
        if (bits == 4 && is_scale)
            bytes[i] = 16;
        else if (bits == 4 && is_minimum)
            bytes[i] = (uint8_t)(7 + (i & 1)); /* 16 times that, in the middle of 15 scales */
    }
    linear.packed = bytes;
    return linear;
}

static Norm random_norm(int size) {
    return (Norm){.weight = random_floats(size, 1, 0.3f), .epsilon = 1e-5f};
}

static const Latents *random_latents(int bits) {
    Latents *latents = room(sizeof(Latents));
    *latents = (Latents){
        .down = random_linear(HIDDEN, RANK + TURNED, bits),
        .up = random_linear(RANK, KV_HEADS * KEY_STEP, bits),
        .query_down = random_linear(HIDDEN, QUERY_RANK, bits),
        .norm = random_norm(RANK),
        .query_norm = random_norm(QUERY_RANK),
    };
    return latents;
}

static Convolution random_convolution(int channels) {
    return (Convolution){
        .taps = random_floats(4 * channels, 0, 0.5f), .bias = random_floats(channels, 0, 0.1f),
        .inputs = room(2 * 4 * (size_t)channels * sizeof(bf16)), .kernel = 4, .channels = channels,
    };
}

static const Delta *random_delta(int bits) {
    Delta *delta = room(sizeof(Delta));
    *delta = (Delta){
        .input = random_linear(HIDDEN, CHANNELS, bits),
        .gate = random_linear(HIDDEN, VALUES, bits),
        .rates = random_bf16(8 * HIDDEN, 0.1f),
        .decay = random_floats(4, -0.5f, 0.4f),
        .decay_bias = random_floats(4, 0, 1),
        .convolution = random_convolution(CHANNELS),
        .norm = random_norm(STATE_DIM),
        .states = room(2 * 4 * KEY_DIM * STATE_DIM * sizeof(float)),
        .key_heads = KEY_GROUPS, .value_heads = 4, .key_dim = KEY_DIM, .value_dim = STATE_DIM,
        .key_begin = KEY_GROUPS * KEY_DIM, .value_begin = 2 * KEY_GROUPS * KEY_DIM,
        .gate_begin = CHANNELS, .rates_begin = CHANNELS + VALUES,
        .key_step = KEY_DIM, .value_step = 2 * STATE_DIM,
    };
    return delta;
}

/* Beside attention, outputs are normalized before they are gated, as in Falcon-H1. */
static const StateSpace *random_space(int bits, int is_beside) {
    StateSpace *space = room(sizeof(StateSpace));
    *space = (StateSpace){
        .input = random_linear(HIDDEN, SPACE_VALUES + SPACE_CHANNELS, bits),
        .rates = random_bf16(SPACE_HEADS * HIDDEN, 0.1f),
        .rate_bias = random_floats(SPACE_HEADS, -1, 1),
        .decay = random_floats(SPACE_HEADS, -0.5f, 0.4f),
        .skip = random_floats(SPACE_HEADS, 1, 0.3f),
        .factors = is_beside ? random_floats(SPACE_CHANNELS, 1, 0.2f) : NULL,
        .convolution = random_convolution(SPACE_CHANNELS),
        .norm = random_norm(SPACE_VALUES),
        .states = room(2 * SPACE_VALUES * SPACE_STATE * sizeof(float)),
        .heads = SPACE_HEADS, .groups = SPACE_GROUPS, .dim = SPACE_DIM, .size = SPACE_STATE,
        .norm_span = SPACE_VALUES / SPACE_GROUPS, .norms_first = is_beside,
        .gate_factor = 0.9f, .rate_factor = 1.1f, .least_rate = 0.001f, .most_rate = 3,
        .output = is_beside ? random_linear(SPACE_VALUES, HIDDEN, bits) : (Linear){0},
        .output_factor = 0.8f, .attention_factor = 0.7f,
    };
    return space;
}

static const Heads HEADS_OF_ALL = {
    .heads = HEADS, .kv_heads = KV_HEADS, .dim = HEAD_DIM, .value_dim = VALUE_DIM,
    .head_step = HEAD_STEP, .query_step = HEADS / KV_HEADS * HEAD_STEP, .kv_step = KEY_STEP,
    .key_begin = QUERIES, .value_begin = VALUE_BEGIN, .latent_begin = LATENT_BEGIN,
    .query_latent_begin = QUERY_LATENT_BEGIN, .query_span = HEAD_DIM, .key_span = HEAD_DIM,
    .rotary_dim = TURNED, .pairing = HAS_LATENTS ? PARTED_NEIGHBOURS : NEIGHBOURS,
};

static Layer random_layer(int bits, int64_t window, int is_first) {
    enum { KV = KV_HEADS * HEAD_DIM, SLOTS = KV_HEADS * BLOCKS * BLOCK };
    const int is_normed = HEAD_DIM % 16 == 0 && !HAS_LATENTS;
    const int is_delta = HAS_DELTA && is_first, is_space = HAS_SPACE && is_first;
    const int outputs = is_delta ? VALUES : is_space ? SPACE_VALUES : HEADS * VALUE_DIM;
    return (Layer){
        .heads = is_space ? NULL : &HEADS_OF_ALL,
        .query = random_linear(HAS_LATENTS ? QUERY_RANK : HIDDEN, QUERIES, bits),
        .key = HAS_LATENTS ? (Linear){0} : random_linear(HIDDEN, KV, bits),
        .value = HAS_LATENTS ? (Linear){0} : random_linear(HIDDEN, KV, bits),
        .latents = HAS_LATENTS ? random_latents(bits) : NULL,
        .delta = is_delta ? random_delta(bits) : NULL,
        .state_space = HAS_SPACE ? random_space(bits, !is_first) : NULL,
        .output = random_linear(outputs, HIDDEN, bits),
        .mlp = {
            .gate = random_linear(HIDDEN, INTERMEDIATE, bits),
            .up = random_linear(HIDDEN, INTERMEDIATE, bits),
            .down = random_linear(INTERMEDIATE, HIDDEN, bits),
            .activation = GELU,
            .gate_factor = 1,
            .factor = 1,
        },
        .attention_norm = random_norm(HIDDEN),
        .mlp_norm = {random_floats(HIDDEN, 1, 0.3f), random_floats(HIDDEN, 0, 0.1f), 1e-5f, 1},
        .mlp_out_norm = random_norm(HIDDEN),
        .query_norm = is_normed ? random_norm(HEADS * HEAD_DIM) : (Norm){0},
        .key_norm = is_normed ? random_norm(KV) : (Norm){0},
        .value_norm = is_normed ? random_norm(KV) : (Norm){0},
        .stores = 1,
        .factor = 0.9f,
        .key_factor = 1,
        .value_factor = 1,
        .cosine = random_floats(MAX_TOKENS * HEAD_DIM, 0, 1),
        .sine = random_floats(MAX_TOKENS * HEAD_DIM, 0, 1),
        .sinks = random_floats(HEADS, 1, 1),
        .keys = room(SLOTS * HEAD_DIM * sizeof(bf16)),
        .values = room(SLOTS * VALUE_DIM * sizeof(bf16)),
        .window = window,
        .scale = 0.125f,
        .softcap = 20,
    };
}

static void run(const Model *model, int begin, int count, float *logits) {
    static int64_t ids[ROWS], positions[ROWS], slots[ROWS], owners[ROWS], all[ROWS];
    static const int64_t tables[2][8] = {{3, 1, 6, 12, 9, 15, 5}, {2, 7, 4, 14, 8, 11, 10}};
    const int rows = 2 * count; /* the text's, then its neighbour's */
    for (int i = 0; i < rows; i++) {
        const int owner = i >= count, position = begin + i % count;
        ids[i] = (position * 37 + owner * 11) % VOCABULARY;
        positions[i] = position;
        owners[i] = owner;
        slots[i] = tables[owner][position / BLOCK] * BLOCK + position % BLOCK;
        all[i] = i;
    }
    const StatePiece pieces[2] = {{0, 0, count, !begin, 0, 0}, {1, count, count, !begin, 0, 0}};
    Batch batch = {
        .rows = rows, .num_pieces = 2, .pieces = pieces, .num_logits = count, .num_threads = 2, .ids = ids, .positions = positions,
        .slots = slots, .owners = owners, .tables = tables[0], .table_width = 8,
        .logits_rows = all, .logits = logits + (int64_t)begin * VOCABULARY,
        .residual = room(ROWS * HIDDEN * sizeof(float)),
        .normed = room(ROWS * HIDDEN * sizeof(bf16)),
        .branch = room(ROWS * HIDDEN * sizeof(float)),
        .projected = room(ROWS * WIDTH_OF_ROW * sizeof(float)),
        .queries = room(ROWS * HEADS * HEAD_DIM * sizeof(bf16)),
        .activated = room(ROWS * INTERMEDIATE * sizeof(bf16)),
        .prepared = {room(ROWS * INPUTS * sizeof(float)),
                     room(ROWS * (INPUTS / GROUP + 1) * sizeof(float)),
                     room(ROWS * (INPUTS / GROUP + 1) * sizeof(int32_t))},
        .room = room(2 * (size_t)quire_thread_room(model)),
    };
    batch.attended =
        HAS_LATENTS || HAS_DELTA || HAS_SPACE ? room(ROWS * OUTPUTS * sizeof(bf16)) : batch.queries;
    quire_forward(model, &batch);
}

int main(int count, char **arguments) {
    if (count != 3 || quire_prepare() != 0) return 2;
    const int bits = !strcmp(arguments[1], "int8") ? 8 : !strcmp(arguments[1], "int4") ? 4 : 16;
    const int chunk = atoi(arguments[2]);
    Layer layers[LAYERS];
    for (int i = 0; i < LAYERS; i++) layers[i] = random_layer(bits, i ? MAX_TOKENS : 23, !i);
    const Model model = {
        .hidden = HIDDEN, .width = WIDTH_OF_ROW, .num_layers = LAYERS, .kinds = 1,
        .block_size = BLOCK, .heads = &HEADS_OF_ALL,
        .embedding_scale = 1.5f,
        .residual_scale = 0.7f, .logits_scale = 0.5f, .logits_softcap = 30, .num_blocks = BLOCKS,
        .embedding = random_bf16(VOCABULARY * HIDDEN, 1), .norm = random_norm(HIDDEN),
        .head = random_linear(HIDDEN, VOCABULARY, bits), .layers = layers,
    };
    float *logits = room((TOKENS + 32) * VOCABULARY * sizeof(float));
    for (int i = 0; i < TOKENS; i += chunk)
        run(&model, i, TOKENS - i < chunk ? TOKENS - i : chunk, logits);
    return fwrite(logits, sizeof(float), TOKENS * VOCABULARY, stdout) != TOKENS * VOCABULARY;
}
