/* Single numbers of a row: its products with vectors too few for a packed weight. */

#pragma once
#include <math.h>

#include "isa/vector.h"

/* The dot product of two rows. */
static inline float dot(const bf16 *a, const bf16 *b, int size) {
    floats sums[2] = {all_of(0), all_of(0)};
    for (int i = 0; i < size; i += 2 * WIDTH)
        for (int j = 0; j < 2; j++)
            sums[j] = multiply_add(widen(a + i + j * WIDTH), widen(b + i + j * WIDTH), sums[j]);
    return sum_of(sums[0] + sums[1]);
}

/* The same with a row of float32. */
static inline float dot_with_wide(const bf16 *a, const float *b, int size) {
    floats sums[2] = {all_of(0), all_of(0)};
    for (int i = 0; i < size; i += 2 * WIDTH)
        for (int j = 0; j < 2; j++)
            sums[j] = multiply_add(widen(a + i + j * WIDTH), load(b + i + j * WIDTH), sums[j]);
    return sum_of(sums[0] + sums[1]);
}

static inline float logistic(float x) { return 1 / (1 + expf(-x)); }
