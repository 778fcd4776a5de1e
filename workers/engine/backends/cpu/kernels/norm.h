/* Norms of a row. */

#pragma once
#include <math.h>

#include "model.h"

static inline void normalize(const float *x, const Norm *norm, int size, bf16 *out) {
    floats mean = all_of(0), squares = all_of(0);
    if (norm->centers) {
        for (int i = 0; i < size; i += WIDTH) mean += load(x + i);
        mean = all_of(sum_of(mean) / (float)size);
    }
    for (int i = 0; i < size; i += WIDTH) {
        const floats value = load(x + i) - mean;
        squares = multiply_add(value, value, squares);
    }
    const floats scale = all_of(1.0f / sqrtf(sum_of(squares) / (float)size + norm->epsilon));
    for (int i = 0; i < size; i += WIDTH) {
        floats value = (load(x + i) - mean) * scale * load(norm->weight + i);
        if (norm->bias) value += load(norm->bias + i);
        narrow(out + i, value);
    }
}

/* The norm of x, or x itself where there is no norm. */
static inline void normalize_or_copy(const float *x, const Norm *norm, int size, bf16 *out) {
    if (norm->weight)
        normalize(x, norm, size, out);
    else
        for (int i = 0; i < size; i += WIDTH) narrow(out + i, load(x + i));
}
