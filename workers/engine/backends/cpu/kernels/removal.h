/* The probability that a grammar's mask takes from each row. */

#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "activations.h"
#include "isa/vector.h"

typedef struct {
    const float *logits; /* [all rows][vocabulary] */
    int64_t vocabulary;
    const uint16_t *allowed; /* [lines][pieces]: a bit for each token, the lowest first */
    int64_t pieces;
    const int32_t *rows;  /* [rows]: which rows of the logits */
    const int32_t *lines; /* [rows]: their lines in `allowed` */
    float *removed;       /* [rows]: the probability of all forbidden tokens */
    int32_t *overruled;   /* [rows]: whether the likeliest token is forbidden */
} Removals;

/* WIDTH logits from `place` on; past the vocabulary, logits of no weight. */
static inline floats logits_at(const Removals *r, const float *row, int64_t place) {
    if (place + WIDTH <= r->vocabulary) return load(row + place);
    float rest[WIDTH];
    store(rest, all_of(-INFINITY));
    memcpy(rest, row + place, (size_t)(r->vocabulary - place) * sizeof(float));
    return load(rest);
}

static void find_removed(const Removals *r, int64_t index) {
    enum { ALL = (1 << WIDTH) - 1 };
    const float *row = r->logits + r->rows[index] * r->vocabulary;
    const uint16_t *line = r->allowed + r->lines[index] * r->pieces;
    floats highest = all_of(-INFINITY);
    for (int64_t i = 0; i < r->vocabulary; i += WIDTH)
        highest = larger(highest, logits_at(r, row, i));
    const float top = highest_of(highest);
    floats total[2] = {all_of(0), all_of(0)}, lost[2] = {all_of(0), all_of(0)};
    for (int64_t i = 0; i < r->vocabulary; i += WIDTH) {
        const int half = i / WIDTH % 2;
        const floats below = logits_at(r, row, i) - all_of(top);
        const floats weight = exponential(larger(below, all_of(-80.0f)));
        const mask kept = lanes_of_bits(line[i / 16] >> i % 16 & ALL);
        total[half] = total[half] + weight;
        lost[half] = lost[half] + choose(kept, all_of(0), weight);
    }
    int64_t likeliest = 0;
    while (likeliest < r->vocabulary - 1 && row[likeliest] != top) likeliest++;
    r->removed[index] = sum_of(lost[0] + lost[1]) / sum_of(total[0] + total[1]);
    r->overruled[index] = !(line[likeliest / 16] >> likeliest % 16 & 1);
}
