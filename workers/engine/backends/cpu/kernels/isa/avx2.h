/* Registers of eight numbers: AVX2 and FMA, with AVX-VNNI's byte products where available. */

#pragma once
#include <immintrin.h>
#include <stdint.h>

enum { WIDTH = 8 };
enum { REGISTERS = 16, VECTOR_ROWS = 6, VECTOR_BLOCKS = 1, ROW_PAIRS = 2 };
enum { NIBBLE_ROWS = 6, NIBBLE_BLOCKS = 1 };

typedef __m256 floats;
typedef int32_t ints __attribute__((vector_size(32), may_alias));
typedef ints mask;

static inline void relax(void) { _mm_pause(); }

static inline floats load(const float *x) { return _mm256_loadu_ps(x); }
static inline void store(float *x, floats values) { _mm256_storeu_ps(x, values); }
static inline floats all_of(float x) { return _mm256_set1_ps(x); }
static inline floats larger(floats a, floats b) { return _mm256_max_ps(a, b); }
static inline floats magnitude(floats x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }

/* a * b + c and c - a * b, rounded once. */
static inline floats multiply_add(floats a, floats b, floats c) { return _mm256_fmadd_ps(a, b, c); }
static inline floats multiply_subtract(floats a, floats b, floats c) {
    return _mm256_fnmadd_ps(a, b, c);
}

/* Every even lane with the odd one after it. */
static inline floats swap_neighbours(floats x) { return _mm256_permute_ps(x, 0xb1); }

static inline floats reciprocal(floats x) { return all_of(1.0f) / x; }
static inline floats nearest(floats x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* x * 2^n, for the whole number n that is not greater than `power`, from -126 to 127. */
static inline floats times_power_of_two(floats x, floats power) {
    const ints exponent = (ints)_mm256_cvtps_epi32(_mm256_floor_ps(power)) + 127;
    return x * (floats)(exponent << 23);
}
/* x less the greatest whole number that is not greater. */
static inline floats fraction_of(floats x) { return x - _mm256_floor_ps(x); }

static inline float sum_of(floats x) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

static inline float highest_of(floats x) {
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}
/* The highest lane of each of WIDTH registers. */
static inline floats highest_of_each(const floats *x) {
    float highest[WIDTH];
    for (int i = 0; i < WIDTH; i++) highest[i] = highest_of(x[i]);
    return load(highest);
}

static inline ints load_ints(const void *x) {
    return (ints)_mm256_loadu_si256((const __m256i *)x);
}
/* The first `count` of 2 * WIDTH bf16, which is 8; the others are zero, and not read. */
static inline ints load_first(const bf16 *x, int count) {
    (void)count;
    return (ints)_mm256_zextsi128_si256(_mm_loadu_si128((const __m128i *)x));
}
static inline void store_ints(int32_t *x, ints values) {
    _mm256_storeu_si256((__m256i *)x, (__m256i)values);
}
static inline ints all_ints(int32_t x) { return (ints)_mm256_set1_epi32(x); }

static inline floats to_floats(ints x) { return _mm256_cvtepi32_ps((__m256i)x); }
static inline ints rounded(floats x) { return (ints)_mm256_cvtps_epi32(x); }
static inline int32_t sum_of_ints(ints x) {
    int32_t sum = 0;
    for (int i = 0; i < WIDTH; i++) sum += x[i];
    return sum;
}

/* WIDTH unsigned 8-bit numbers, and 2 * WIDTH of them widened to 16 bits each. */
static inline ints ints_of_bytes(const uint8_t *x) {
    return (ints)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)x));
}
static inline ints words_of_bytes(const uint8_t *x) {
    return (ints)_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)x));
}
/* The sum of the products of both 16-bit halves of a lane. */
static inline ints multiply_words(ints a, ints b) {
    return (ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
}

static inline mask is_greater(floats a, floats b) {
    return (mask)_mm256_cmp_ps(a, b, _CMP_GT_OQ);
}
static inline mask is_nan(floats x) { return (mask)_mm256_cmp_ps(x, x, _CMP_UNORD_Q); }
static inline mask no_lane(void) { return all_ints(0); }
static inline int any_lane(mask lanes) { return !_mm256_testz_si256((__m256i)lanes, (__m256i)lanes); }
/* A mask in which bit i selects lane i. */
static inline mask lanes_of_bits(uint32_t bits) {
    const ints bit = {1, 2, 4, 8, 16, 32, 64, 128};
    return (all_ints((int32_t)bits) & bit) == bit;
}
/* The lanes i for which begin <= i < end. */
static inline mask lanes_between(int begin, int end) {
    const ints lane = {0, 1, 2, 3, 4, 5, 6, 7};
    return (lane >= all_ints(begin)) & (lane < all_ints(end));
}
static inline floats choose(mask lanes, floats yes, floats no) {
    return _mm256_blendv_ps(no, yes, (floats)lanes);
}
static inline ints choose_ints(mask lanes, ints yes, ints no) {
    return (ints)_mm256_blendv_epi8((__m256i)no, (__m256i)yes, (__m256i)lanes);
}

static inline floats widen(const bf16 *x) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)x));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

/* Round to nearest, ties to even. */
static inline void narrow(bf16 *out, floats x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i near = _mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7fff));
    const __m256i high = _mm256_blendv_epi8(_mm256_srli_epi32(near, 16), _mm256_set1_epi32(0x7fc0),
                                            (__m256i)is_nan(x));
    _mm_storeu_si128((__m128i *)out, _mm_packus_epi32(_mm256_castsi256_si128(high),
                                                      _mm256_extracti128_si256(high, 1)));
}

/* Pairs of what lies side by side in `even` and `odd`, 2 * WIDTH bf16 each, in two registers. The
   columns of both are in an order of this instruction set's own, which `in_order` undoes. */
static inline void pair_up(ints even, ints odd, ints pairs[2]) {
    pairs[0] = (ints)_mm256_unpacklo_epi16((__m256i)even, (__m256i)odd);
    pairs[1] = (ints)_mm256_unpackhi_epi16((__m256i)even, (__m256i)odd);
}

static inline void in_order(floats columns[2]) {
    const floats low = columns[0], high = columns[1];
    columns[0] = _mm256_permute2f128_ps(low, high, 0x20);
    columns[1] = _mm256_permute2f128_ps(low, high, 0x31);
}

enum { BYTE_OFFSET = 128 }; /* the offset of weights that `add_fours` expects */

static inline void store_bytes(int8_t *out, ints x) {
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128((__m256i)x),
                                          _mm256_extracti128_si256((__m256i)x, 1));
    _mm_storel_epi64((__m128i *)out, _mm_packs_epi16(words, words));
}

#ifdef __AVXVNNI__

#ifndef VNNI_ENCODING
#define VNNI_ENCODING "%{vex%}" /* the assembler prefers AVX512's encoding */
#endif

enum { BYTE_ROWS = 6 };
typedef int8_t small;
typedef ints Four;

static inline void store_small(small *out, ints x) { store_bytes(out, x); }

static inline Four broadcast_four(const small *four) { return all_ints(*(const int32_t *)four); }

/* sums += weights * four, with four bytes in each lane. GCC 12's intrinsic for it copies sums. */
static inline ints add_fours(ints sums, ints weights, Four four) {
    __asm__(VNNI_ENCODING " vpdpbusd %2, %1, %0" : "+x"(sums) : "x"(weights), "x"(four));
    return sums;
}

static inline ints add_nibbles(ints sums, ints weights, ints four) {
    return add_fours(sums, weights, four);
}
static inline ints nibble_sums(ints sums) { return sums; }

#else

/* Four inputs a, b, c, d as a, c, b, d, so that a lane has a pair beside the even bytes of weights
   and one beside the odd ones. Products of 16 bits cannot overflow, those of bytes can. */
enum { BYTE_ROWS = 4 };
typedef int16_t small;
typedef struct {
    __m256i even, odd;
} Four;

static inline void store_small(small *out, ints x) {
    const __m128i order = _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128((__m256i)x),
                                          _mm256_extracti128_si256((__m256i)x, 1));
    _mm_storeu_si128((__m128i *)out, _mm_shuffle_epi8(words, order));
}

static inline Four broadcast_four(const small *four) {
    return (Four){_mm256_set1_epi32(*(const int32_t *)four),
                  _mm256_set1_epi32(*(const int32_t *)(four + 2))};
}

static inline ints add_fours(ints sums, ints weights, Four four) {
    const __m256i even = _mm256_and_si256((__m256i)weights, _mm256_set1_epi16(0xff));
    const __m256i odd = _mm256_srli_epi16((__m256i)weights, 8);
    return sums + (ints)_mm256_madd_epi16(even, four.even) +
           (ints)_mm256_madd_epi16(odd, four.odd);
}

/* Two products of 15 * 127 fit 16 bits, and so do the sums of eight such pairs. */
static inline ints add_nibbles(ints sums, ints weights, ints four) {
    return (ints)_mm256_add_epi16((__m256i)sums,
                                  _mm256_maddubs_epi16((__m256i)weights, (__m256i)four));
}
static inline ints nibble_sums(ints sums) { return multiply_words(sums, all_ints(0x00010001)); }

#endif
