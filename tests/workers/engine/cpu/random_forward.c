/* The forward of a small decoder with random weights over one text, for processors that only an
   emulator can run here.

       random_forward DTYPE CHUNK

   Compiled with -DHEAD_SIZE=..., it writes the logits [TOKENS][VOCABULARY] to standard output, in float32. DTYPE is
   "bfloat16", "int8" or "int4"; the text is computed CHUNK tokens per step, beside another one. The same arguments give
   the same weights and tokens on every processor. */

#include <stdio.h>
#include <stdlib.h>

#include "decoder.c"

enum {
    TOKENS = 40, HIDDEN = 128, HEAD_DIM = HEAD_SIZE, KV_HEADS = HEAD_DIM % 32 ? 4 : 1,
    HEADS = 2 * KV_HEADS, INTERMEDIATE = 96, WIDEST = HEADS * HEAD_DIM,
    VOCABULARY = 96, LAYERS = 2, BLOCK = 16, BLOCKS = 8, MAX_TOKENS = 64, ROWS = 2 * TOKENS + 32
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
    uint8_t *bytes = room((size_t)size);
    for (int i = 0; i < size; i++) {
        bytes[i] = (uint8_t)(128 + (int)(127 * draw()));
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

static Layer random_layer(int bits) {
    enum { KV = KV_HEADS * HEAD_DIM, PAGES = KV_HEADS * BLOCKS * BLOCK * HEAD_DIM };
    return (Layer){
        .query = random_linear(HIDDEN, HEADS * HEAD_DIM, bits),
        .key = random_linear(HIDDEN, KV, bits),
        .value = random_linear(HIDDEN, KV, bits),
        .output = random_linear(HEADS * HEAD_DIM, HIDDEN, bits),
        .mlp = {
            .gate = random_linear(HIDDEN, INTERMEDIATE, bits),
            .up = random_linear(HIDDEN, INTERMEDIATE, bits),
            .down = random_linear(INTERMEDIATE, HIDDEN, bits),
            .activation = GELU,
        },
        .attention_norm = random_norm(HIDDEN),
        .mlp_norm = {random_floats(HIDDEN, 1, 0.3f), random_floats(HIDDEN, 0, 0.1f), 1e-5f, 1},
        .mlp_out_norm = random_norm(HIDDEN),
        .query_norm = HEAD_DIM % 16 ? (Norm){0} : random_norm(HEADS * HEAD_DIM),
        .key_norm = HEAD_DIM % 16 ? (Norm){0} : random_norm(KV),
        .cosine = random_floats(MAX_TOKENS * HEAD_DIM, 0, 1),
        .sine = random_floats(MAX_TOKENS * HEAD_DIM, 0, 1),
        .sinks = random_floats(HEADS, 1, 1),
        .keys = room(PAGES * sizeof(bf16)),
        .values = room(PAGES * sizeof(bf16)),
        .window = 23,
        .scale = 0.125f,
        .softcap = 20,
    };
}

static void run(const Model *model, int begin, int count, float *logits) {
    static int64_t ids[ROWS], positions[ROWS], slots[ROWS], owners[ROWS], all[ROWS];
    static const int64_t tables[2][4] = {{3, 1, 6, 0}, {2, 7, 4, 0}};
    const int rows = 2 * count; /* the text's, then its neighbour's */
    for (int i = 0; i < rows; i++) {
        const int owner = i >= count, position = begin + i % count;
        ids[i] = (position * 37 + owner * 11) % VOCABULARY;
        positions[i] = position;
        owners[i] = owner;
        slots[i] = tables[owner][position / BLOCK] * BLOCK + position % BLOCK;
        all[i] = i;
    }
    Batch batch = {
        .rows = rows, .num_logits = count, .num_threads = 2, .ids = ids, .positions = positions,
        .slots = slots, .owners = owners, .tables = tables[0], .table_width = 4,
        .logits_rows = all, .logits = logits + (int64_t)begin * VOCABULARY,
        .residual = room(ROWS * HIDDEN * sizeof(float)),
        .normed = room(ROWS * HIDDEN * sizeof(bf16)),
        .branch = room(ROWS * HIDDEN * sizeof(float)),
        .projected = room(ROWS * (HEADS + 2 * KV_HEADS) * HEAD_DIM * sizeof(float)),
        .queries = room(ROWS * HEADS * HEAD_DIM * sizeof(bf16)),
        .activated = room(ROWS * INTERMEDIATE * sizeof(bf16)),
        .prepared = {room(ROWS * WIDEST * sizeof(float)),
                     room(ROWS * (WIDEST / GROUP + 1) * sizeof(float)),
                     room(ROWS * (WIDEST / GROUP + 1) * sizeof(int32_t))},
        .scores = room(2 * MAX_QUERIES * MAX_TOKENS * sizeof(float)),
        .weights = room(2 * MAX_QUERIES * MAX_TOKENS * sizeof(bf16)),
        .max_tokens = MAX_TOKENS,
    };
    quire_forward(model, &batch);
}

int main(int count, char **arguments) {
    if (count != 3 || quire_prepare() != 0) return 2;
    const int bits = !strcmp(arguments[1], "int8") ? 8 : !strcmp(arguments[1], "int4") ? 4 : 16;
    const int chunk = atoi(arguments[2]);
    Layer layers[LAYERS];
    for (int i = 0; i < LAYERS; i++) layers[i] = random_layer(bits);
    const Model model = {
        .hidden = HIDDEN, .heads = HEADS, .kv_heads = KV_HEADS, .head_dim = HEAD_DIM,
        .num_layers = LAYERS, .block_size = BLOCK,
        .width = (HEADS + 2 * KV_HEADS) * HEAD_DIM, .query_step = HEADS / KV_HEADS * HEAD_DIM,
        .kv_step = HEAD_DIM, .key_begin = HEADS * HEAD_DIM,
        .value_begin = (HEADS + KV_HEADS) * HEAD_DIM, .query_span = HEAD_DIM, .key_span = HEAD_DIM,
        .rotary_dim = HEAD_DIM / 32 * 16, .interleaved = 1, .embedding_scale = 1.5f,
        .residual_scale = 0.7f, .logits_scale = 0.5f, .logits_softcap = 30, .num_blocks = BLOCKS,
        .embedding = random_bf16(VOCABULARY * HIDDEN, 1), .norm = random_norm(HIDDEN),
        .head = random_linear(HIDDEN, VOCABULARY, bits), .layers = layers,
    };
    float *logits = room((TOKENS + 32) * VOCABULARY * sizeof(float));
    for (int i = 0; i < TOKENS; i += chunk)
        run(&model, i, TOKENS - i < chunk ? TOKENS - i : chunk, logits);
    return fwrite(logits, sizeof(float), TOKENS * VOCABULARY, stdout) != TOKENS * VOCABULARY;
}
