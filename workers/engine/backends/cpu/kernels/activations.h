/* Functions of every lane of a register: the exponential, and activations and caps based on it. */

#pragma once
#include "model.h"

/* e^x: 2^n times a polynomial of the remainder (the coefficients of Cephes' expf). */
static inline floats exponential(floats x) {
    const floats n = nearest(x * all_of(1.44269504f));
    floats r = multiply_subtract(n, all_of(0.693359375f), x);
    r = multiply_subtract(n, all_of(-2.12194440e-4f), r);
    floats p = all_of(1.9875691500e-4f);
    p = multiply_add(p, r, all_of(1.3981999507e-3f));
    p = multiply_add(p, r, all_of(8.3334519073e-3f));
    p = multiply_add(p, r, all_of(4.1665795894e-2f));
    p = multiply_add(p, r, all_of(1.6666665459e-1f));
    p = multiply_add(p, r, all_of(5.0000001201e-1f));
    p = multiply_add(p * r, r, r + all_of(1.0f));
    return times_power_of_two(p, n);
}

#define LOG2_E 1.44269504f

/* 2^x with a relative error of 3e-6, a thousandth of what bfloat16 makes of the result; 1 for 0. The
   polynomial is the best of degree 4 on [0, 1] that is 1 at 0. Where x is lower than -100, 2^-100:
   products of less than that would be denormal, and slow. */
static inline floats power_of_two(floats x) {
    x = larger(x, all_of(-100.0f));
    const floats r = fraction_of(x);
    floats p = all_of(1.34266876e-2f);
    p = multiply_add(p, r, all_of(5.22424690e-2f));
    p = multiply_add(p, r, all_of(2.41280213e-1f));
    p = multiply_add(p, r, all_of(6.93044841e-1f));
    p = multiply_add(p, r, all_of(1.0f));
    return times_power_of_two(p, x);
}

/* x / (1 + e^-y), with the error of power_of_two: the result is rounded to bfloat16. */
static inline floats gated_by(floats x, floats y) {
    const floats power = larger(y, all_of(-80.0f)) * all_of(-LOG2_E);
    return x * reciprocal(all_of(1.0f) + power_of_two(power));
}

static inline floats smaller(floats a, floats b) {
    return all_of(0) - larger(all_of(0) - a, all_of(0) - b);
}

/* cap * tanh(x / cap), of magnitude `cap` at most for every x. */
static inline floats capped(floats x, float cap) {
    const floats twice = smaller(larger(x * all_of(2.0f / cap), all_of(-40.0f)), all_of(40.0f));
    const floats both = exponential(twice);
    return all_of(cap) * ((both - all_of(1.0f)) / (both + all_of(1.0f)));
}

/* x times the normal cumulative distribution at x, with the approximation 7.1.26 of the error
   function by Abramowitz and Stegun, whose error is at most 1.5e-7. */
static inline floats gelu(floats x) {
    const floats y = smaller(magnitude(x) * all_of(0.70710678f), all_of(8.0f));
    const floats t = all_of(1.0f) / multiply_add(all_of(0.3275911f), y, all_of(1.0f));
    floats p = all_of(1.061405429f);
    p = multiply_add(p, t, all_of(-1.453152027f));
    p = multiply_add(p, t, all_of(1.421413741f));
    p = multiply_add(p, t, all_of(-0.284496736f));
    p = multiply_add(p, t, all_of(0.254829592f));
    const floats rest = p * t * exponential(all_of(0) - y * y);
    const floats below = all_of(0.5f) * rest;
    return x * choose(is_greater(x, all_of(0)), all_of(1.0f) - below, below);
}

static inline floats activate(int activation, floats x) {
    switch (activation) {
    case SILU: return gated_by(x, x);
    case GELU: return gelu(x);
    case GELU_TANH: {
        const floats cubic = multiply_add(x * x, x * all_of(0.044715f), x);
        return gated_by(x, cubic * all_of(1.59576912f)); /* 2 sqrt(2 / pi) */
    }
    case RELU: return larger(x, all_of(0));
    case RELU_SQUARED: return larger(x, all_of(0)) * larger(x, all_of(0));
    default: return gated_by(x, x * all_of(1.702f));
    }
}

/* The activation of an MLP's two products; `limit` applies to the clamped ones (gpt-oss). */
static inline floats gated(int activation, float limit, floats gate, floats up) {
    if (activation != CLAMPED_SWIGLU) return activate(activation, gate) * up;
    const floats low = smaller(gate, all_of(limit));
    const floats within = larger(smaller(up, all_of(limit)), all_of(-limit));
    return (within + all_of(1.0f)) * activate(QUICK_GELU, low);
}

/* xIELU (Huang and Schlag, "Deriving Activation Functions Using Integration", 2024). */
static inline floats xielu(floats x, float above, float below, float slope) {
    const floats least = larger(smaller(x, all_of(0)), all_of(-80.0f));
    const floats low = (exponential(least) - all_of(1.0f) - x) * all_of(below);
    const floats bent = choose(is_greater(x, all_of(0)), x * x * all_of(above), low);
    return multiply_add(x, all_of(slope), bent);
}
