/* Products of activations and weights in 8 bits (AVX512-VNNI), summed exactly in 32.

   A row of activations is rounded to 8 bits by groups of 64 inputs, each with a step of its own:
   with one step for the whole row, its few large numbers would cost the others their digits. A
   weight [out, in] is packed as [out / 16][in / 4][16][4], each output column's step beside it, and
   stored as w + 128, since the instruction multiplies unsigned by signed bytes. What the 128 add is
   128 times the sum of the row's group, from whose negative the sums start. */

#pragma once
#include <float.h>
#include <immintrin.h>
#include <math.h>
#include <stdint.h>

#include "bfloat16.h"
#include "matmul.h"

enum { GROUP = 64 };

/* Rows of activations: [rows][inputs], and by group of each row its step and start of sums. */
typedef struct {
    int8_t *values;
    float *steps;
    int32_t *starts;
} Quantized;

static inline int64_t groups_of(int inputs) { return (inputs + GROUP - 1) / GROUP; }

static inline Quantized quantized_row(const Quantized *rows, int64_t row, int inputs) {
    const int64_t group = row * groups_of(inputs);
    return (Quantized){rows->values + row * inputs, rows->steps + group, rows->starts + group};
}

/* One group. What holds no finite number gets a step that is none, so that it shows in the sums. */
static inline void quantize_group(const bf16 *x, int size, Quantized out) {
    __m512 highest = _mm512_setzero_ps();
    __mmask16 strange = 0;
    for (int i = 0; i < size; i += LANES) {
        const __m512 value = _mm512_abs_ps(widen(x + i));
        highest = _mm512_max_ps(highest, value);
        strange |= _mm512_cmp_ps_mask(value, _mm512_set1_ps(FLT_MAX), _CMP_NLE_UQ);
    }
    const float top = _mm512_reduce_max_ps(highest);
    const int is_zero = strange || top < 1e-30f; /* whose reciprocal might overflow */
    const __m512 by = _mm512_set1_ps(is_zero ? 0.0f : 127.0f / top);
    __m512i total = _mm512_setzero_si512();
    for (int i = 0; i < size; i += LANES) {
        const __m512 scaled = _mm512_maskz_mul_ps(is_zero ? 0 : 0xffff, widen(x + i), by);
        const __m512i rounded = _mm512_cvtps_epi32(scaled);
        total = _mm512_add_epi32(total, rounded);
        _mm_storeu_si128((__m128i *)(out.values + i), _mm512_cvtepi32_epi8(rounded));
    }
    *out.steps = strange ? NAN : is_zero ? 0.0f : top / 127.0f;
    *out.starts = -128 * _mm512_reduce_add_epi32(total);
}

static inline void quantize(const bf16 *x, int inputs, Quantized out) {
    for (int i = 0; i < inputs; i += GROUP, out.steps++, out.starts++) {
        quantize_group(x + i, inputs - i < GROUP ? inputs - i : GROUP, out);
        out.values += GROUP;
    }
}

#ifdef __AVX512VNNI__

static inline const uint8_t *byte_block(const Linear *linear, int block) {
    return (const uint8_t *)linear->packed + (int64_t)block * LANES * linear->inputs;
}

static inline __m512i broadcast_four(const int8_t *four) {
    return _mm512_set1_epi32(*(const int32_t *)four);
}

/* sums += weights * four, of four bytes in each lane. The compiler's own function for it, GCC 12's at
   least, copies every sum before it adds, which takes as long as the products of a loop. */
static inline __m512i add_fours(__m512i sums, __m512i weights, __m512i four) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(weights), "v"(four));
    return sums;
}

/* One row, to a line of `out`: bound by the reading of weights. */
static inline void multiply_bytes_row(Quantized x, int inputs, const uint8_t *a, const uint8_t *b,
                                      Tile *out, int line) {
    __m512 first = _mm512_setzero_ps(), second = _mm512_setzero_ps();
    for (int begin = 0; begin < inputs; begin += GROUP, x.steps++, x.starts++) {
        const int end = inputs - begin < GROUP ? inputs : begin + GROUP;
        __m512i sums[2][2];
        sums[0][0] = sums[1][0] = _mm512_set1_epi32(*x.starts);
        sums[0][1] = sums[1][1] = _mm512_setzero_si512();
        for (int k = begin; k < end; k += 8)
#pragma GCC unroll 2
            for (int i = 0; i < 2; i++) {
                const __m512i four = broadcast_four(x.values + k + 4 * i);
                const int64_t at = (int64_t)(k + 4 * i) * LANES;
                sums[0][i] = add_fours(sums[0][i], _mm512_loadu_si512(a + at), four);
                sums[1][i] = add_fours(sums[1][i], _mm512_loadu_si512(b + at), four);
            }
        const __m512 step = _mm512_set1_ps(*x.steps);
        first = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(sums[0][0], sums[0][1])), step,
                                first);
        second = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(sums[1][0], sums[1][1])), step,
                                 second);
    }
    _mm512_store_ps(out->first[line], first);
    _mm512_store_ps(out->second[line], second);
}

/* VECTOR_ROWS rows; those beyond the batch are computed for nothing. What lies at `soon` and `then`,
   as long as a block, is brought into the second cache meanwhile. */
static inline void multiply_bytes_rows(Quantized x, int inputs, const uint8_t *a, const uint8_t *b,
                                       Tile *out, int row, const uint8_t *soon,
                                       const uint8_t *then) {
    const int64_t groups = groups_of(inputs);
    for (int i = row; i < row + VECTOR_ROWS; i++) {
        _mm512_store_ps(out->first[i], _mm512_setzero_ps());
        _mm512_store_ps(out->second[i], _mm512_setzero_ps());
    }
    for (int begin = 0; begin < inputs; begin += GROUP, x.steps++, x.starts++) {
        const int end = inputs - begin < GROUP ? inputs : begin + GROUP;
        __m512i first[VECTOR_ROWS], second[VECTOR_ROWS];
#pragma GCC unroll 8
        for (int i = 0; i < VECTOR_ROWS; i++)
            first[i] = second[i] = _mm512_set1_epi32(x.starts[i * groups]);
        for (int k = begin; k < end; k += 4) {
            const __m512i left = _mm512_loadu_si512(a + (int64_t)k * LANES);
            const __m512i right = _mm512_loadu_si512(b + (int64_t)k * LANES);
            if (soon) _mm_prefetch((const char *)(soon + (int64_t)k * LANES), _MM_HINT_T1);
            if (then) _mm_prefetch((const char *)(then + (int64_t)k * LANES), _MM_HINT_T1);
#pragma GCC unroll 8
            for (int i = 0; i < VECTOR_ROWS; i++) {
                const __m512i four = broadcast_four(x.values + (int64_t)i * inputs + k);
                first[i] = add_fours(first[i], left, four);
                second[i] = add_fours(second[i], right, four);
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < VECTOR_ROWS; i++) {
            const __m512 step = _mm512_set1_ps(x.steps[i * groups]);
            float *to = out->first[row + i], *beside = out->second[row + i];
            _mm512_store_ps(to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(first[i]), step,
                                                _mm512_load_ps(to)));
            _mm512_store_ps(beside, _mm512_fmadd_ps(_mm512_cvtepi32_ps(second[i]), step,
                                                    _mm512_load_ps(beside)));
        }
    }
}

/* As multiply_block, for two rows or more; the columns' steps are left to the caller. */
static inline void multiply_bytes(const Quantized *x, int64_t row, int rows, int inputs,
                                  const uint8_t *a, const uint8_t *b, Tile *out, int64_t next) {
    for (int i = 0; i < rows; i += VECTOR_ROWS) {
        const int is_last = i + VECTOR_ROWS >= rows;
        const uint8_t *soon = next && i == 0 ? a + next : NULL;
        const uint8_t *then = next && (i == VECTOR_ROWS || (i == 0 && is_last)) ? b + next : NULL;
        multiply_bytes_rows(quantized_row(x, row + i, inputs), inputs, a, b, out, i, soon, then);
    }
}

#endif
