/* Registers of sixteen numbers: AVX512, with its bfloat16 and byte products where available. */

#pragma once
#include <immintrin.h>
#include <stdint.h>

enum { WIDTH = 16 };
enum { REGISTERS = 32, VECTOR_ROWS = 8, VECTOR_BLOCKS = 2, ROW_PAIRS = 4 };
enum { BYTE_ROWS = 6, NIBBLE_ROWS = 6, NIBBLE_BLOCKS = 2 };

typedef __m512 floats;
typedef int32_t ints __attribute__((vector_size(64), may_alias));
typedef __mmask16 mask;

static inline void relax(void) { _mm_pause(); }

static inline floats load(const float *x) { return _mm512_loadu_ps(x); }
static inline void store(float *x, floats values) { _mm512_storeu_ps(x, values); }
static inline floats all_of(float x) { return _mm512_set1_ps(x); }
static inline floats larger(floats a, floats b) { return _mm512_max_ps(a, b); }
static inline floats magnitude(floats x) { return _mm512_abs_ps(x); }

/* a * b + c and c - a * b, rounded once. */
static inline floats multiply_add(floats a, floats b, floats c) { return _mm512_fmadd_ps(a, b, c); }
static inline floats multiply_subtract(floats a, floats b, floats c) {
    return _mm512_fnmadd_ps(a, b, c);
}

/* Every even lane with the odd one after it. */
static inline floats swap_neighbours(floats x) { return _mm512_permute_ps(x, 0xb1); }

/* 1 / x for a positive x, with a relative error of 2^-27; faster than a division. */
static inline floats reciprocal(floats x) {
    const floats y = _mm512_rcp14_ps(x);
    return multiply_add(y, multiply_subtract(x, y, all_of(1.0f)), y);
}
static inline floats nearest(floats x) { return _mm512_roundscale_ps(x, 0); }
/* x * 2^n, for the whole number n that is not greater than `power`. */
static inline floats times_power_of_two(floats x, floats power) { return _mm512_scalef_ps(x, power); }
/* x less the greatest whole number that is not greater. */
static inline floats fraction_of(floats x) { return _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF); }
static inline float sum_of(floats x) { return _mm512_reduce_add_ps(x); }
static inline float highest_of(floats x) { return _mm512_reduce_max_ps(x); }
/* The highest lane of each of WIDTH registers: halves of lanes are compared as lanes of one register. */
static inline floats highest_of_each(const floats *x) {
    floats two[8], four[4], eight[2];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        two[i] = larger(_mm512_shuffle_f32x4(x[i], x[i + 8], 0x44),
                        _mm512_shuffle_f32x4(x[i], x[i + 8], 0xee));
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        four[i] = larger(_mm512_shuffle_f32x4(two[i], two[i + 4], 0x88),
                         _mm512_shuffle_f32x4(two[i], two[i + 4], 0xdd));
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        eight[i] = larger(_mm512_shuffle_ps(four[i], four[i + 2], 0x44),
                          _mm512_shuffle_ps(four[i], four[i + 2], 0xee));
    const floats all = larger(_mm512_shuffle_ps(eight[0], eight[1], 0x88),
                              _mm512_shuffle_ps(eight[0], eight[1], 0xdd));
    const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
    return _mm512_permutexvar_ps(order, all);
}

static inline ints load_ints(const void *x) { return (ints)_mm512_loadu_si512(x); }
/* The first `count` of 2 * WIDTH bf16, a multiple of 8; the others are zero, and not read. */
static inline ints load_first(const bf16 *x, int count) {
    return (ints)_mm512_maskz_loadu_epi16((1u << count) - 1, x);
}
static inline void store_ints(int32_t *x, ints values) { _mm512_storeu_si512(x, (__m512i)values); }
static inline ints all_ints(int32_t x) { return (ints)_mm512_set1_epi32(x); }

static inline floats to_floats(ints x) { return _mm512_cvtepi32_ps((__m512i)x); }
static inline ints rounded(floats x) { return (ints)_mm512_cvtps_epi32(x); }
static inline int32_t sum_of_ints(ints x) { return _mm512_reduce_add_epi32((__m512i)x); }

/* WIDTH unsigned 8-bit numbers, and 2 * WIDTH of them widened to 16 bits each. */
static inline ints ints_of_bytes(const uint8_t *x) {
    return (ints)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)x));
}
static inline ints words_of_bytes(const uint8_t *x) {
    return (ints)_mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)x));
}
/* The sum of the products of both 16-bit halves of a lane. */
static inline ints multiply_words(ints a, ints b) {
    return (ints)_mm512_madd_epi16((__m512i)a, (__m512i)b);
}

static inline mask is_greater(floats a, floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
static inline mask is_nan(floats x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q); }
static inline mask no_lane(void) { return 0; }
static inline int any_lane(mask lanes) { return lanes != 0; }
/* A mask in which bit i selects lane i. */
static inline mask lanes_of_bits(uint32_t bits) { return (mask)bits; }
/* The lanes i for which begin <= i < end. */
static inline mask lanes_between(int begin, int end) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_cmplt_epi32_mask(lane, _mm512_set1_epi32(end)) &
           _mm512_cmpge_epi32_mask(lane, _mm512_set1_epi32(begin));
}
static inline floats choose(mask lanes, floats yes, floats no) {
    return _mm512_mask_mov_ps(no, lanes, yes);
}
static inline ints choose_ints(mask lanes, ints yes, ints no) {
    return (ints)_mm512_mask_mov_epi32((__m512i)no, lanes, (__m512i)yes);
}

static inline floats widen(const bf16 *x) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)x));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

#ifdef __AVX512BF16__

static inline void narrow(bf16 *out, floats x) {
    _mm256_storeu_si256((__m256i *)out, (__m256i)_mm512_cvtneps_pbh(x));
}
#define HAS_NARROW_TWO
static inline void narrow_two(bf16 *out, floats a, floats b) {
    _mm512_storeu_si512(out, (__m512i)_mm512_cvtne2ps_pbh(b, a));
}

#define HAS_PAIR_PRODUCTS
static inline floats add_pairs(floats sums, ints a, ints b) {
    return _mm512_dpbf16_ps(sums, (__m512bh)a, (__m512bh)b);
}

#else

/* Round to nearest, ties to even. */
static inline void narrow(bf16 *out, floats x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i near = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff));
    const __m512i high = _mm512_mask_mov_epi32(_mm512_srli_epi32(near, 16), is_nan(x),
                                               _mm512_set1_epi32(0x7fc0));
    _mm256_storeu_si256((__m256i *)out, _mm512_cvtepi32_epi16(high));
}

#endif

/* Pairs of what lies side by side in `even` and `odd`, 2 * WIDTH bf16 each, in two registers. The
   columns of both are in an order of this instruction set's own, which `in_order` undoes. */
static inline void pair_up(ints even, ints odd, ints pairs[2]) {
    pairs[0] = (ints)_mm512_unpacklo_epi16((__m512i)even, (__m512i)odd);
    pairs[1] = (ints)_mm512_unpackhi_epi16((__m512i)even, (__m512i)odd);
}

static inline void in_order(floats columns[2]) {
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i rest = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    const floats low = columns[0], high = columns[1];
    columns[0] = _mm512_permutex2var_ps(low, first, high);
    columns[1] = _mm512_permutex2var_ps(low, rest, high);
}

enum { BYTE_OFFSET = 128 }; /* the offset of weights that `add_fours` expects */

static inline void store_bytes(int8_t *out, ints x) {
    _mm_storeu_si128((__m128i *)out, _mm512_cvtepi32_epi8((__m512i)x));
}

#ifdef __AVX512VNNI__

typedef int8_t small;
typedef ints Four;

static inline void store_small(small *out, ints x) { store_bytes(out, x); }

static inline Four broadcast_four(const small *four) {
    return (ints)_mm512_set1_epi32(*(const int32_t *)four);
}

/* sums += weights * four, with four bytes in each lane. The compiler's intrinsic for it, at least
   in GCC 12, copies every sum before it adds, which takes as long as the products of a loop. */
static inline ints add_fours(ints sums, ints weights, Four four) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(weights), "v"(four));
    return sums;
}

static inline ints add_nibbles(ints sums, ints weights, ints four) {
    return add_fours(sums, weights, four);
}
static inline ints nibble_sums(ints sums) { return sums; }

#else

/* Four inputs a, b, c, d as a, c, b, d, so that a lane has a pair beside the even bytes of weights
   and one beside the odd ones. Products of 16 bits cannot overflow, those of bytes can. */
typedef int16_t small;
typedef struct {
    __m512i even, odd;
} Four;

static inline void store_small(small *out, ints x) {
    const __m256i order = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
    _mm256_storeu_si256((__m256i *)out,
                        _mm256_shuffle_epi8(_mm512_cvtepi32_epi16((__m512i)x), order));
}

static inline Four broadcast_four(const small *four) {
    return (Four){_mm512_set1_epi32(*(const int32_t *)four),
                  _mm512_set1_epi32(*(const int32_t *)(four + 2))};
}

static inline ints add_fours(ints sums, ints weights, Four four) {
    const __m512i even = _mm512_and_si512((__m512i)weights, _mm512_set1_epi16(0xff));
    const __m512i odd = _mm512_srli_epi16((__m512i)weights, 8);
    return sums + (ints)_mm512_madd_epi16(even, four.even) +
           (ints)_mm512_madd_epi16(odd, four.odd);
}

/* Two products of 15 * 127 fit 16 bits, and so do the sums of eight such pairs. */
static inline ints add_nibbles(ints sums, ints weights, ints four) {
    return (ints)_mm512_add_epi16((__m512i)sums,
                                  _mm512_maddubs_epi16((__m512i)weights, (__m512i)four));
}
static inline ints nibble_sums(ints sums) { return multiply_words(sums, all_ints(0x00010001)); }

#endif
