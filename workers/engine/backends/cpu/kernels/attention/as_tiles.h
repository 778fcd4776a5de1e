/* Products of few queries by vectors, with the bits that tiles give: few queries wait for memory, and
   tiles would take packed values and longer than that.

   A product of two tiles adds to each sum what 32 inputs make: the sum over the 16 even ones plus that over
   the odd ones, each added up in order by fused products (Intel's Software Developer's Manual,
   TDPBF16PS). Denormal numbers count as zero, to which `flush_denormals` makes vectors agree. */

#pragma once
#include "products.h"

#ifdef __AMX_BF16__

/* Let vectors of this thread take and give zeros for denormal numbers. Return how it was. */
static inline uint32_t flush_denormals(void) {
    const uint32_t control = _mm_getcsr();
    _mm_setcsr(control | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON);
    return control;
}
static inline void restore_denormals(uint32_t control) { _mm_setcsr(control); }

/* The most rows that vectors multiply, and the most registers of columns side by side. */
enum { FEW_ROWS = VECTOR_ROWS, FEW_REGISTERS = 4 };

/* The sums of a product of two tiles, of even and of odd inputs. */
typedef struct {
    floats even[FEW_ROWS][FEW_REGISTERS], odd[FEW_ROWS][FEW_REGISTERS];
} Halves;

/* Add the products of a pair of inputs of each row with `count` registers of weights. */
static inline __attribute__((always_inline)) void add_halves(Halves *h, const float *x, int64_t stride,
                                                             const ints *weights, int rows,
                                                             int count) {
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < count; j++) {
            h->even[i][j] =
                multiply_add(all_of(x[i * stride]), first_of_pairs(weights[j]), h->even[i][j]);
            h->odd[i][j] =
                multiply_add(all_of(x[i * stride + 1]), second_of_pairs(weights[j]), h->odd[i][j]);
        }
}

static inline __attribute__((always_inline)) void clear_halves(Halves *h, int rows, int count) {
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < count; j++) h->even[i][j] = h->odd[i][j] = all_of(0);
}

/* Add both halves to the sums [rows][stride]. */
static inline __attribute__((always_inline)) void add_up(const Halves *h, int rows, int count, float *sums,
                                                         int64_t stride) {
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < count; j++) {
            float *at = sums + i * stride + j * WIDTH;
            store(at, load(at) + (h->even[i][j] + h->odd[i][j]));
        }
}

/* scores [rows][SPAN] = x [rows][depth] times `count` slices of keys. */
static inline __attribute__((always_inline)) void score_slices(const float *x, int rows, int depth,
                                                               const bf16 *const *keys, int count,
                                                               float *scores, Prefetch *ahead) {
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < count; j++) store(scores + i * SPAN + j * LANES, all_of(0));
    for (int k = 0; k < depth; k += DEPTH) {
        Halves halves;
        clear_halves(&halves, rows, count);
        for (int at = k; at < k + DEPTH; at += 2) {
            ints weights[FEW_REGISTERS];
            fetch_some(ahead, count, 1);
#pragma GCC unroll 4
            for (int j = 0; j < count; j++) weights[j] = load_ints(keys[j] + at * LANES);
            add_halves(&halves, x + at, depth, weights, rows, count);
        }
        add_up(&halves, rows, count, scores, SPAN);
    }
}

/* Add to the outputs [rows][columns] of two registers of columns, in the order of `pair_up`, the values
   of `size` tokens times their weights [rows][SPAN]. */
static inline __attribute__((always_inline)) void mix_two(const Span *span, const float *weights, int rows,
                                                          int size, float *outputs, int column,
                                                          Prefetch *ahead) {
    const Context *c = span->context;
    const int dim = c->value_dim, columns = columns_of_values(dim);
    for (int t = 0; t < size; t += DEPTH) {
        Halves halves;
        clear_halves(&halves, rows, 2);
        for (int slice = t; slice < t + DEPTH; slice += SLICE) {
            const bf16 *values = find_slice(span, slice, c->values, dim);
            const int left = span->end - slice, count = !values ? 0 : left < SLICE ? left : SLICE;
            for (int i = 0; i < count; i += 2, values += 2 * dim) {
                ints pairs[2];
                fetch_some(ahead, 2, 1);
                pair_up(load_values(values, column, dim),
                        i + 1 < count ? load_values(values + dim, column, dim) : all_ints(0), pairs);
                add_halves(&halves, weights + slice + i, SPAN, pairs, rows, 2);
            }
        }
        add_up(&halves, rows, 2, outputs + column, columns);
    }
}

#define FOR_ROWS(rows, use)  \
    switch (rows) {          \
    case 1: use(1); break;   \
    case 2: use(2); break;   \
    case 3: use(3); break;   \
    case 4: use(4); break;   \
    case 5: use(5); break;   \
    case 6: use(6); break;   \
    case 7: use(7); break;   \
    default: use(8);         \
    }

/* As multiply_span with the product of a span's scores. */
static void score_few(const Product *p) {
    float x[FEW_ROWS * MAX_HEAD_DIM];
    for (int i = 0; i < p->rows * p->depth; i += WIDTH) store(x + i, widen(p->x + i));
#define SCORE(rows)                                                                          \
    for (int block = 0; block < p->blocks; block += (rows) <= 4 ? 2 : 1)                     \
    score_slices(x, rows, p->depth, p->packed + block, (rows) <= 4 ? 2 : 1,                  \
                 p->sums + block * LANES, p->ahead)
    FOR_ROWS(p->rows, SCORE)
#undef SCORE
}

/* Add the values of a span times the weights of few queries to their outputs. */
static void mix_few(const Span *span, const factor (*weights)[SPAN], int rows, int size, float *outputs,
                    Prefetch *ahead) {
    float x[FEW_ROWS * SPAN];
    for (int i = 0; i < rows * SPAN; i += WIDTH) store(x + i, widen(weights[0] + i));
#define MIX(rows)                                                                            \
    for (int column = 0; column < columns_of_values(span->context->value_dim); column += 2 * WIDTH) \
    mix_two(span, x, rows, size, outputs, column, ahead)
    FOR_ROWS(rows, MIX)
#undef MIX
}

#else

static inline uint32_t flush_denormals(void) { return 0; }
static inline void restore_denormals(uint32_t control) { (void)control; }

#endif
