/* Registers of four numbers: ARM's NEON, with its bfloat16 and byte products where available. */

#pragma once
#include <arm_neon.h>
#include <stdint.h>

enum { WIDTH = 4 };
enum { REGISTERS = 32, VECTOR_ROWS = 4, VECTOR_BLOCKS = 1, ROW_PAIRS = 2 };
enum { BYTE_ROWS = 4, NIBBLE_ROWS = 6, NIBBLE_BLOCKS = 1 };

typedef float32x4_t floats;
typedef int32_t ints __attribute__((vector_size(16), may_alias));
typedef ints mask;

static inline void relax(void) { __asm__ volatile("yield"); }

static inline floats load(const float *x) { return vld1q_f32(x); }
static inline void store(float *x, floats values) { vst1q_f32(x, values); }
static inline floats all_of(float x) { return vdupq_n_f32(x); }
static inline floats larger(floats a, floats b) { return vmaxq_f32(a, b); }
static inline floats magnitude(floats x) { return vabsq_f32(x); }

/* a * b + c and c - a * b, rounded once. */
static inline floats multiply_add(floats a, floats b, floats c) { return vfmaq_f32(c, a, b); }
static inline floats multiply_subtract(floats a, floats b, floats c) { return vfmsq_f32(c, a, b); }

/* Every even lane with the odd one after it. */
static inline floats swap_neighbours(floats x) { return vrev64q_f32(x); }

static inline floats reciprocal(floats x) { return all_of(1.0f) / x; }
static inline floats nearest(floats x) { return vrndnq_f32(x); }
/* x * 2^n, for the whole number n that is not greater than `power`, from -126 to 127. */
static inline floats times_power_of_two(floats x, floats power) {
    const ints exponent = (ints)vcvtmq_s32_f32(power) + 127;
    return x * (floats)(exponent << 23);
}
/* x less the greatest whole number that is not greater. */
static inline floats fraction_of(floats x) { return x - vrndmq_f32(x); }
static inline float sum_of(floats x) { return vaddvq_f32(x); }
static inline float highest_of(floats x) { return vmaxvq_f32(x); }
/* The highest lane of each of WIDTH registers. */
static inline floats highest_of_each(const floats *x) {
    float highest[WIDTH];
    for (int i = 0; i < WIDTH; i++) highest[i] = highest_of(x[i]);
    return load(highest);
}

static inline ints load_ints(const void *x) { return (ints)vld1q_u8((const uint8_t *)x); }
/* The first `count` of 2 * WIDTH bf16, which are all of them: sizes of heads are multiples of 8. */
static inline ints load_first(const bf16 *x, int count) {
    (void)count;
    return load_ints(x);
}
static inline void store_ints(int32_t *x, ints values) { vst1q_s32(x, (int32x4_t)values); }
static inline ints all_ints(int32_t x) { return (ints)vdupq_n_s32(x); }

static inline floats to_floats(ints x) { return vcvtq_f32_s32((int32x4_t)x); }
static inline ints rounded(floats x) { return (ints)vcvtnq_s32_f32(x); }
static inline int32_t sum_of_ints(ints x) { return vaddvq_s32((int32x4_t)x); }

/* WIDTH unsigned 8-bit numbers, and 2 * WIDTH of them widened to 16 bits each. */
static inline ints ints_of_bytes(const uint8_t *x) {
    return (ints){x[0], x[1], x[2], x[3]};
}
static inline ints words_of_bytes(const uint8_t *x) { return (ints)vmovl_u8(vld1_u8(x)); }
/* The sum of the products of both 16-bit halves of a lane. */
static inline ints multiply_words(ints a, ints b) {
    const int16x8_t left = (int16x8_t)a, right = (int16x8_t)b;
    const int32x4_t low = vmull_s16(vget_low_s16(left), vget_low_s16(right));
    return (ints)vpaddq_s32(low, vmull_high_s16(left, right));
}

static inline mask is_greater(floats a, floats b) { return (mask)vcgtq_f32(a, b); }
static inline mask is_nan(floats x) { return ~(mask)vceqq_f32(x, x); }
static inline mask no_lane(void) { return all_ints(0); }
static inline int any_lane(mask lanes) { return vmaxvq_u32((uint32x4_t)lanes) != 0; }
/* A mask in which bit i selects lane i. */
static inline mask lanes_of_bits(uint32_t bits) {
    const ints bit = {1, 2, 4, 8};
    return (all_ints((int32_t)bits) & bit) == bit;
}
/* The lanes i for which begin <= i < end. */
static inline mask lanes_between(int begin, int end) {
    const ints lane = {0, 1, 2, 3};
    return (lane >= all_ints(begin)) & (lane < all_ints(end));
}
static inline floats choose(mask lanes, floats yes, floats no) {
    return vbslq_f32((uint32x4_t)lanes, yes, no);
}
static inline ints choose_ints(mask lanes, ints yes, ints no) {
    return (ints)vbslq_s32((uint32x4_t)lanes, (int32x4_t)yes, (int32x4_t)no);
}

static inline floats widen(const bf16 *x) { return (floats)vshll_n_u16(vld1_u16(x), 15 + 1); }

/* Round to nearest, ties to even. */
static inline void narrow(bf16 *out, floats x) {
    const uint32x4_t bits = (uint32x4_t)x;
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t near = vaddq_u32(vaddq_u32(bits, odd), vdupq_n_u32(0x7fff));
    const uint32x4_t high =
        vbslq_u32((uint32x4_t)is_nan(x), vdupq_n_u32(0x7fc0), vshrq_n_u32(near, 16));
    vst1_u16(out, vmovn_u32(high));
}

#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
#define HAS_PAIR_PRODUCTS
static inline floats add_pairs(floats sums, ints a, ints b) {
    return vbfdotq_f32(sums, (bfloat16x8_t)a, (bfloat16x8_t)b);
}
#endif

/* Pairs of what lies side by side in `even` and `odd`, 2 * WIDTH bf16 each, in two registers, whose
   columns `in_order` puts in order. */
static inline void pair_up(ints even, ints odd, ints pairs[2]) {
    pairs[0] = (ints)vzip1q_u16((uint16x8_t)even, (uint16x8_t)odd);
    pairs[1] = (ints)vzip2q_u16((uint16x8_t)even, (uint16x8_t)odd);
}

static inline void in_order(floats columns[2]) { (void)columns; }

static inline void store_bytes(int8_t *out, ints x) {
    const int16x4_t words = vmovn_s32((int32x4_t)x);
    const int8x8_t bytes = vmovn_s16(vcombine_s16(words, words));
    vst1_lane_s32((int32_t *)out, vreinterpret_s32_s8(bytes), 0);
}

typedef int8_t small;
typedef ints Four;

static inline void store_small(small *out, ints x) { store_bytes(out, x); }

static inline Four broadcast_four(const small *four) { return all_ints(*(const int32_t *)four); }

/* sums += weights * four, with four signed bytes in each lane. */
static inline ints add_signed_fours(ints sums, ints weights, Four four) {
#ifdef __ARM_FEATURE_DOTPROD
    return (ints)vdotq_s32((int32x4_t)sums, (int8x16_t)weights, (int8x16_t)four);
#else
    /* Two products of 127 * 127 fit 16 bits. */
    const int8x16_t a = (int8x16_t)weights, b = (int8x16_t)four;
    const int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(b)), high = vmull_high_s8(a, b);
    return (ints)vpadalq_s16((int32x4_t)sums, vpaddq_s16(low, high));
#endif
}

/* The same for weights from 0 to 255, from which BYTE_OFFSET is subtracted. */
#ifdef __ARM_FEATURE_MATMUL_INT8
enum { BYTE_OFFSET = 128 };
static inline ints add_fours(ints sums, ints weights, Four four) {
    return (ints)vusdotq_s32((int32x4_t)sums, (uint8x16_t)weights, (int8x16_t)four);
}
#else
enum { BYTE_OFFSET = 0 };
static inline ints add_fours(ints sums, ints weights, Four four) {
    return add_signed_fours(sums, weights ^ all_ints((int32_t)0x80808080), four);
}
#endif

static inline ints add_nibbles(ints sums, ints weights, ints four) {
    return add_signed_fours(sums, weights, four);
}
static inline ints nibble_sums(ints sums) { return sums; }
