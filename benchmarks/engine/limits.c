/* What this machine's products and memory reach with the instructions of the C forward, and how long
   its attention takes by itself. */

#include <time.h>

#include "decoder.c"

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Without a use of its results, the compiler would leave out what is measured. */
static inline void use(int32_t result) { __asm__ volatile("" : : "r"(result)); }

/* Products of numbers in registers, `rounds` times as many as there are sums: enough sums that none waits
   for the one before. Return how many operations, a product and a sum each counted as one. */
static double multiply_registers(int64_t rounds) {
#ifdef __AMX_BF16__
    _Alignas(64) static bf16 zeros[TILE_ROWS * DEPTH];
    configure_tiles(TILE_ROWS);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, zeros, 64);
    _tile_loadd(5, zeros, 64);
    _tile_loadd(6, zeros, 64);
    _tile_loadd(7, zeros, 64);
    for (int64_t i = 0; i < rounds; i++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    release_tiles();
    return (double)rounds * 4 * 2 * TILE_ROWS * LANES * DEPTH;
#else
    enum { SUMS = 12 }; /* and two factors: 14 of 16 registers */
    floats sums[SUMS];
    for (int i = 0; i < SUMS; i++) sums[i] = all_of((float)i);
#ifdef HAS_PAIR_PRODUCTS
    const ints x = all_ints(0);
    enum { OPERATIONS = 4 * WIDTH };
#define MULTIPLY(sum) add_pairs(sum, x, x)
#else
    const floats x = all_of(0);
    enum { OPERATIONS = 2 * WIDTH };
#define MULTIPLY(sum) multiply_add(x, x, sum)
#endif
    for (int64_t i = 0; i < rounds; i++)
#pragma GCC unroll 12
        for (int j = 0; j < SUMS; j++) sums[j] = MULTIPLY(sums[j]);
#undef MULTIPLY
    floats all = all_of(0);
    for (int i = 0; i < SUMS; i++) all += sums[i];
    use((int32_t)sum_of(all));
    return (double)rounds * SUMS * OPERATIONS;
#endif
}

/* Without products of bytes, `add_fours` adds products of other instructions, which the compiler would
   compute once for all sums if it knew that the factors stay the same. */
static inline void hide(Four *four) {
#if defined(__x86_64__) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)
    __asm__ volatile("" : "+v"(four->even), "+v"(four->odd));
#else
    (void)four;
#endif
}

/* As multiply_registers, with factors in 8 bits. */
static double multiply_byte_registers(int64_t rounds) {
#ifdef __AMX_INT8__
    configure_tiles(TILE_ROWS); /* all are zero */
    for (int64_t i = 0; i < rounds; i++) {
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
    release_tiles();
    return (double)rounds * 4 * 2 * TILE_ROWS * LANES * GROUP;
#else
    enum { SUMS = 10 }; /* two fewer: factors may take four registers */
    const small numbers[4] = {1, 1, 1, 1};
    Four four = broadcast_four(numbers);
    ints sums[SUMS], all = all_ints(0);
    for (int i = 0; i < SUMS; i++) sums[i] = all_ints(i);
    for (int64_t i = 0; i < rounds; i++)
#pragma GCC unroll 10
        for (int j = 0; j < SUMS; j++) {
            hide(&four);
            sums[j] = add_fours(sums[j], all_ints(0x01010101), four);
        }
    for (int i = 0; i < SUMS; i++) all += sums[i];
    use(sum_of_ints(all));
    return (double)rounds * SUMS * 8 * WIDTH;
#endif
}

/* Operations per second of all threads. */
double quire_measure_products(int threads, int64_t rounds) {
    double operations = 0;
    const double began = seconds();
#pragma omp parallel num_threads(threads) reduction(+ : operations)
    operations += multiply_registers(rounds);
    return operations / (seconds() - began);
}

double quire_measure_byte_products(int threads, int64_t rounds) {
    double operations = 0;
    const double began = seconds();
#pragma omp parallel num_threads(threads) reduction(+ : operations)
    operations += multiply_byte_registers(rounds);
    return operations / (seconds() - began);
}

/* Bytes per second of all threads, each of which reads its part of `size` bytes from end to end. */
double quire_measure_memory(const char *memory, int64_t size, int threads) {
    const double began = seconds();
#pragma omp parallel num_threads(threads)
    {
        enum { STEP = 16 * 64, REGISTER = 4 * WIDTH };
        const Share share = share_of(size / STEP);
        ints all = all_ints(0);
        for (int64_t i = share.begin; i < share.end; i++)
#pragma GCC unroll 16
            for (int j = 0; j < STEP; j += REGISTER) all |= load_ints(memory + i * STEP + j);
        use(sum_of_ints(all));
    }
    return (double)size / (seconds() - began);
}

/* The seconds that attention of a batch takes in layers [begin, end), the mean of them, which have the
   same heads. Of the batch, only what attention reads need be there. */
double quire_measure_attention(const Model *m, const Batch *b, int begin, int end) {
    Run runs[b->rows];
    Segment segments[2 * b->rows];
    Piece pieces[b->rows];
    Plan plan = {.runs = runs, .segments = segments, .pieces = pieces};
    Barrier barrier = {.size = b->num_threads, .spins = SPINS};
    make_plan(m, m->layers[begin].heads, b, &plan);
    const double began = seconds();
#pragma omp parallel num_threads(b->num_threads)
    {
        configure_tiles(b->rows);
        for (int i = begin; i < end; i++) {
            if (omp_get_thread_num() == 0) atomic_store(&plan.taken, 0);
            meet(&barrier);
            attend_rows(m, m->layers + i, b, &plan);
            meet(&barrier);
        }
        release_tiles();
    }
    return (seconds() - began) / (end - begin);
}
