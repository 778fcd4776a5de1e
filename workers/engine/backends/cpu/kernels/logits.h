/* The highest logit of each row, without the tokens that a grammar forbids. */

#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "isa/vector.h"

typedef struct {
    float *logits; /* [rows][vocabulary] */
    int64_t vocabulary;
    const uint16_t *allowed; /* [lines][pieces]: a bit for each token, the lowest first */
    int64_t pieces;
    const int32_t *lines; /* [rows]: a row's line in `allowed`, or -1; NULL if all are -1 */
    float *highest;       /* [rows]: NaN if the row contains a NaN */
    int64_t *ids;         /* [rows]: the first id with the highest logit */
} Choices;

/* The highest logit that each lane has seen, and its place. */
typedef struct {
    floats highest;
    ints place;
    mask strange;
} Best;

static inline void look(Best *best, floats values, int64_t place) {
    const mask higher = is_greater(values, best->highest);
    best->strange |= is_nan(values);
    best->highest = choose(higher, values, best->highest);
    best->place = choose_ints(higher, all_ints((int32_t)place), best->place);
}

/* WIDTH logits from `place` on; the ones that `line` forbids become impossible. */
static inline floats allow(float *logits, const uint16_t *line, int64_t place) {
    enum { ALL = (1 << WIDTH) - 1 };
    const floats values = load(logits);
    const uint32_t allowed = line ? line[place / 16] >> place % 16 & ALL : ALL;
    if (allowed == ALL) return values;
    const floats left = choose(lanes_of_bits(allowed), values, all_of(-INFINITY));
    store(logits, left);
    return left;
}

static void choose_row(const Choices *c, int64_t row) {
    float *logits = c->logits + row * c->vocabulary;
    const int is_masked = c->lines && c->lines[row] >= 0;
    const uint16_t *line = is_masked ? c->allowed + c->lines[row] * c->pieces : NULL;
    const Best none = {all_of(-INFINITY), all_ints(0), no_lane()};
    Best best[2] = {none, none};
    int64_t i = 0;
    for (; i + WIDTH <= c->vocabulary; i += WIDTH)
        look(&best[i / WIDTH % 2], allow(logits + i, line, i), i);
    if (i < c->vocabulary) {
        const size_t size = (size_t)(c->vocabulary - i) * sizeof(float);
        float rest[WIDTH];
        store(rest, all_of(-INFINITY));
        memcpy(rest, logits + i, size);
        look(&best[0], allow(rest, line, i), i);
        memcpy(logits + i, rest, size);
    }
    float highest[2][WIDTH];
    int32_t places[2][WIDTH];
    for (int j = 0; j < 2; j++) {
        store(highest[j], best[j].highest);
        store_ints(places[j], best[j].place);
    }
    float top = -INFINITY;
    int64_t id = 0;
    for (int j = 0; j < 2; j++)
        for (int lane = 0; lane < WIDTH; lane++) {
            const int64_t candidate = (int64_t)places[j][lane] + lane;
            if (highest[j][lane] > top || (highest[j][lane] == top && candidate < id)) {
                top = highest[j][lane];
                id = candidate;
            }
        }
    c->highest[row] = any_lane(best[0].strange | best[1].strange) ? NAN : top;
    c->ids[row] = top == -INFINITY ? 0 : id;
}
