/* AMX's instructions for tiles in plain C, so that a processor without them can test the code that
   uses them. Included before the library's own sources. Rounding follows Intel's Software
   Developer's Manual, TDPBF16PS, but for numbers below the normal ones. */

#include <immintrin.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbssd

enum { TILES = 8, TALLEST = 16, TILE_BYTES = 64 };

static __thread struct {
    uint16_t bytes[TILES];
    uint8_t rows[TILES];
    uint8_t data[TILES][TALLEST][TILE_BYTES];
} tile_state;

static inline void _tile_loadconfig(const void *config) {
    memcpy(tile_state.bytes, (const uint8_t *)config + 16, sizeof tile_state.bytes);
    memcpy(tile_state.rows, (const uint8_t *)config + 48, sizeof tile_state.rows);
    memset(tile_state.data, 0, sizeof tile_state.data);
}

static inline void _tile_release(void) { memset(&tile_state, 0, sizeof tile_state); }

static inline void _tile_zero(int tile) {
    memset(tile_state.data[tile], 0, sizeof tile_state.data[tile]);
}

static inline void _tile_loadd(int tile, const void *from, int64_t stride) {
    _tile_zero(tile);
    for (int row = 0; row < tile_state.rows[tile]; row++)
        memcpy(tile_state.data[tile][row], (const uint8_t *)from + row * stride,
               tile_state.bytes[tile]);
}

#define _tile_stream_loadd _tile_loadd

static inline void _tile_stored(int tile, void *to, int64_t stride) {
    for (int row = 0; row < tile_state.rows[tile]; row++)
        memcpy((uint8_t *)to + row * stride, tile_state.data[tile][row], tile_state.bytes[tile]);
}

static inline float _tile_number(const uint8_t *bfloat16) {
    uint16_t high;
    memcpy(&high, bfloat16, sizeof high);
    const uint32_t bits = (uint32_t)high << 16;
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

/* A wrong configuration faults, as it does on the processor. */
static inline void _tile_dpbf16ps(int sums, int left, int right) {
    const int rows = tile_state.rows[sums], pairs = tile_state.bytes[left] / 4;
    if (rows == 0 || rows != tile_state.rows[left] || pairs != tile_state.rows[right])
        __builtin_trap();
    for (int row = 0; row < rows; row++)
        for (int column = 0; column < tile_state.bytes[sums] / 4; column++) {
            float even = 0, odd = 0, sum;
            for (int pair = 0; pair < pairs; pair++) {
                const uint8_t *a = tile_state.data[left][row] + 4 * pair;
                const uint8_t *b = tile_state.data[right][pair] + 4 * column;
                even = __builtin_fmaf(_tile_number(a), _tile_number(b), even);
                odd = __builtin_fmaf(_tile_number(a + 2), _tile_number(b + 2), odd);
            }
            uint8_t *to = tile_state.data[sums][row] + 4 * column;
            memcpy(&sum, to, sizeof sum);
            sum += even + odd;
            memcpy(to, &sum, sizeof sum);
        }
}

static inline void _tile_dpbssd(int sums, int left, int right) {
    const int rows = tile_state.rows[sums], fours = tile_state.bytes[left] / 4;
    if (rows == 0 || rows != tile_state.rows[left] || fours != tile_state.rows[right])
        __builtin_trap();
    for (int row = 0; row < rows; row++)
        for (int column = 0; column < tile_state.bytes[sums] / 4; column++) {
            uint8_t *to = tile_state.data[sums][row] + 4 * column;
            int32_t sum;
            memcpy(&sum, to, sizeof sum);
            for (int k = 0; k < 4 * fours; k++)
                sum += (int8_t)tile_state.data[left][row][k] *
                       (int8_t)tile_state.data[right][k / 4][4 * column + k % 4];
            memcpy(to, &sum, sizeof sum);
        }
}

#define __AMX_BF16__ 1
#define __AMX_INT8__ 1
#define syscall(...) 0 /* the system has no state of tiles to give */
