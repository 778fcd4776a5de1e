/* Vector registers of the widest instruction set that the compiler may use.

   Every header defines the same names for its registers: `floats` and `ints` of WIDTH 32-bit numbers,
   and `mask` with a truth value per lane. Their + - * / & | are the compiler's. Each lane of `ints` may
   hold a pair of bfloat16, two `words` of 16 bits or four bytes instead. Activations rounded to 8 bits
   for weights of 8 bits are stored as `small`, in the order and width in which `broadcast_four` reads
   four of them as a `Four`; `add_fours` multiplies them by weights from 0 to 255. For weights of 4 bits
   they are stored as bytes in their order; `add_nibbles` multiplies them by weights from 0 to 15, and
   may leave a lane's sum in two halves, which `nibble_sums` adds. They hold the sums of 32 inputs.

   The constants say how much the available REGISTERS compute side by side: VECTOR_ROWS rows (BYTE_ROWS
   in 8 bits) times VECTOR_BLOCKS blocks of columns; NIBBLE_ROWS rows times NIBBLE_BLOCKS blocks of 4-bit
   weights; one row times ROW_PAIRS pairs of blocks.

   A function without a comment does for every lane what its name says. The headers differ in the order
   in which `sum_of` adds, and in how products of pairs are rounded, so results are
   bit-identical within one instruction set only. Products of bytes are exact in all of them. */

#pragma once
#include <stdint.h>
#include <string.h>

typedef uint16_t bf16;

#if defined(__AVX512F__)
#include "avx512.h"
#elif defined(__AVX2__)
#include "avx2.h"
#elif defined(__aarch64__)
#include "neon.h"
#else
#error "needs AVX512, AVX2 or NEON"
#endif

typedef int16_t words __attribute__((vector_size(4 * WIDTH), may_alias));

/* Prefetch the cache line at `place` into the L2 cache. */
static inline void fetch(const void *place) { __builtin_prefetch(place, 0, 2); }
/* The same into the L1 cache, for what is read soon. */
static inline void fetch_near(const void *place) { __builtin_prefetch(place, 0, 3); }

/* Have the compiler hold a sum in its register. With 16 of them, it would rather load factors early and
   move sums to memory. */
static inline void hold(floats *sum) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    __asm__("" : "+x"(*sum));
#else
    (void)sum;
#endif
}

#ifndef HAS_NARROW_TWO
/* Narrow the numbers of two registers. */
static inline void narrow_two(bf16 *out, floats a, floats b) {
    narrow(out, a);
    narrow(out + WIDTH, b);
}
#endif

/* Narrow `size` numbers, a multiple of 8: the last ones may fill half a register of 16. */
static inline void narrow_all(bf16 *out, const float *x, int size) {
    int i = 0;
    for (; i + 2 * WIDTH <= size; i += 2 * WIDTH) narrow_two(out + i, load(x + i), load(x + i + WIDTH));
    for (; i + WIDTH <= size; i += WIDTH) narrow(out + i, load(x + i));
    if (i == size) return;
    float last[WIDTH] = {0};
    bf16 narrowed[WIDTH];
    memcpy(last, x + i, WIDTH / 2 * sizeof(float));
    narrow(narrowed, load(last));
    memcpy(out + i, narrowed, WIDTH / 2 * sizeof(bf16));
}

static inline ints repeat_four(const int8_t *four) { return all_ints(*(const int32_t *)four); }
static inline ints repeat_pair(const bf16 *pair) { return all_ints(*(const int32_t *)pair); }

/* The first and the second number of each lane's pair. */
static inline floats first_of_pairs(ints pairs) { return (floats)(pairs << 16); }
static inline floats second_of_pairs(ints pairs) {
    return (floats)(pairs & all_ints((int32_t)0xffff0000));
}

#ifndef HAS_PAIR_PRODUCTS
/* Each lane's pair of `a` times its pair of `b`, added to `sums`. */
static inline floats add_pairs(floats sums, ints a, ints b) {
    sums = multiply_add(first_of_pairs(a), first_of_pairs(b), sums);
    return multiply_add(second_of_pairs(a), second_of_pairs(b), sums);
}
#endif
