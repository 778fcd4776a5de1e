/* Sixteen numbers at a time between bfloat16 and float32, and products of pairs of bfloat16. */

#pragma once
#include <immintrin.h>
#include <stdint.h>

typedef uint16_t bf16;

static inline __m512 widen(const bf16 *x) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)x));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

static inline __m512i broadcast_pair(const bf16 *pair) {
    return _mm512_set1_epi32(*(const int32_t *)pair);
}

#ifdef __AVX512BF16__

static inline void narrow(bf16 *out, __m512 x) {
    _mm256_storeu_si256((__m256i *)out, (__m256i)_mm512_cvtneps_pbh(x));
}

/* Each lane's pair of `a` times its pair of `b`, added to `sums`. */
static inline __m512 add_pairs(__m512 sums, __m512i a, __m512i b) {
    return _mm512_dpbf16_ps(sums, (__m512bh)a, (__m512bh)b);
}

#else

/* To the nearest, to the even one of two as near. */
static inline void narrow(bf16 *out, __m512 x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i near = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff));
    const __mmask16 strange = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i high = _mm512_mask_mov_epi32(_mm512_srli_epi32(near, 16), strange,
                                               _mm512_set1_epi32(0x7fc0));
    _mm256_storeu_si256((__m256i *)out, _mm512_cvtepi32_epi16(high));
}

static inline __m512 add_pairs(__m512 sums, __m512i a, __m512i b) {
    const __m512i high = _mm512_set1_epi32((int32_t)0xffff0000);
    sums = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(a, 16)),
                           _mm512_castsi512_ps(_mm512_slli_epi32(b, 16)), sums);
    return _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(a, high)),
                           _mm512_castsi512_ps(_mm512_and_si512(b, high)), sums);
}

#endif
