/* What is best in rows of logits, after what a grammar forbids became impossible. */

#pragma once
#include <immintrin.h>
#include <math.h>
#include <stdint.h>

#include "matmul.h"

typedef struct {
    float *logits; /* [rows][vocabulary] */
    int64_t vocabulary;
    const uint16_t *allowed; /* [lines][pieces]: a bit for each token, the lowest first */
    int64_t pieces;
    const int32_t *lines; /* [rows]: a row's line in `allowed`, or -1 */
    float *highest;       /* [rows]: not a number if any of the row is not */
    int64_t *ids;         /* [rows]: the first of the highest */
} Choices;

/* The best of what a lane has seen, and where. */
typedef struct {
    __m512 highest;
    __m512i place;
    __mmask16 strange;
} Best;

static inline __mmask16 first_lanes(int64_t count) {
    return count >= LANES ? 0xffff : (__mmask16)((1u << count) - 1);
}

static inline void look(Best *best, __m512 values, int64_t place) {
    const __mmask16 higher = _mm512_cmp_ps_mask(values, best->highest, _CMP_GT_OQ);
    best->strange |= _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
    best->highest = _mm512_mask_mov_ps(best->highest, higher, values);
    best->place = _mm512_mask_mov_epi32(best->place, higher, _mm512_set1_epi32((int32_t)place));
}

static void choose_row(const Choices *c, int64_t row) {
    const __m512 impossible = _mm512_set1_ps(-INFINITY);
    float *logits = c->logits + row * c->vocabulary;
    const uint16_t *line = c->lines[row] < 0 ? NULL : c->allowed + c->lines[row] * c->pieces;
    Best best[2] = {{impossible, _mm512_setzero_si512(), 0}, {impossible, _mm512_setzero_si512(), 0}};
    for (int64_t i = 0; i < c->vocabulary; i += LANES) {
        const __mmask16 there = first_lanes(c->vocabulary - i);
        __m512 values = _mm512_mask_loadu_ps(impossible, there, logits + i);
        if (line) {
            const __mmask16 allowed = line[i / LANES];
            values = _mm512_mask_mov_ps(impossible, allowed, values);
            if ((allowed & there) != there) _mm512_mask_storeu_ps(logits + i, there, values);
        }
        look(&best[i / LANES % 2], values, i);
    }
    float highest[2][LANES];
    int32_t places[2][LANES];
    for (int j = 0; j < 2; j++) {
        _mm512_storeu_ps(highest[j], best[j].highest);
        _mm512_storeu_si512(places[j], best[j].place);
    }
    float top = -INFINITY;
    int64_t id = 0;
    for (int j = 0; j < 2; j++)
        for (int i = 0; i < LANES; i++) {
            const int64_t candidate = (int64_t)places[j][i] + i;
            if (highest[j][i] > top || (highest[j][i] == top && candidate < id)) {
                top = highest[j][i];
                id = candidate;
            }
        }
    c->highest[row] = best[0].strange | best[1].strange ? NAN : top;
    c->ids[row] = top == -INFINITY ? 0 : id;
}
