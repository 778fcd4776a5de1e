/* Many rows times a weight in bfloat16, by AMX tiles.

   Rows are stored tile by tile, [rows / 16][inputs / 32][16][32]: a tile is loaded from 16 successive
   lines. Lines that lie a row apart would share few places of the L1 cache.

   Long rows are multiplied by CHUNK inputs at a time, for PAIRS_AT_ONCE pairs of blocks: the inputs of all
   rows, the weights and the sums of tiles then stay in the L2 cache, and a pair's weights in the L1 cache.
   A sum leaves its tile between two chunks and returns, so it has the bits of one that stays.

   While tiles multiply, vectors finish the sums of the tiles before them: each alone would wait for the
   other for as long again. */

#pragma once
#include "matmul.h"

#ifdef __AMX_BF16__

enum { CHUNK = 576, PAIRS_AT_ONCE = 16, PANEL_ROWS = 256 };

/* The memory of one thread for sums. */
enum { PANEL_ROOM = PAIRS_AT_ONCE * (PANEL_ROWS / ROW_BLOCK) * (int)sizeof(Tile) };

/* Whether rows are stored tile by tile. */
static inline int are_stored_by_tiles(int64_t rows) { return rows > ROW_BLOCK; }

/* Where an input of a row is stored; the others up to a multiple of DEPTH follow. */
static inline bf16 *find_in_tiles(bf16 *values, int inputs, int64_t row, int input) {
    return values + row / LANES * LANES * inputs + (int64_t)(input / DEPTH) * DEPTH * LANES +
           row % LANES * DEPTH + input % DEPTH;
}

static inline void store_by_tiles(const bf16 *x, int inputs, int64_t row, bf16 *values) {
    for (int i = 0; i < inputs; i += DEPTH)
        memcpy(find_in_tiles(values, inputs, row, i), x + i, DEPTH * sizeof(bf16));
}

/* Weights that are fetched from memory, `count` lines of both blocks at a time: those of the product
   that follows. They come evenly, since the L1 cache has few requests to memory under way. */
typedef struct {
    const bf16 *a, *b;
    int left, count;
} Coming;

static inline __attribute__((always_inline)) void fetch_coming(Coming *c) {
    for (int i = 0; i < c->count && c->left; i++, c->left--) {
        fetch(c->a);
        fetch(c->b);
        c->a += 64 / (int)sizeof(bf16);
        c->b += 64 / (int)sizeof(bf16);
    }
}

/* Sums that have left their tiles, and are finished while others are made. */
typedef struct {
    const Tile *tile; /* or NULL */
    int pair, row, line, lines;
} Finished;

static inline __attribute__((always_inline)) void write_lines(Finished *f, int count, Write write,
                                                              const void *to) {
    for (int i = 0; i < count && f->line < f->lines; i++, f->line++)
        write(to, f->pair, f->tile, f->line, f->row + f->line);
}

/* A chunk of up to ROW_BLOCK rows times two blocks. */
typedef struct {
    const bf16 *x, *below, *a, *b; /* `below` are the rows from the 17th on, or NULL */
    int size, is_first;            /* inputs; whether no chunk came before */
    Tile *sums;
} Step;

static inline __attribute__((always_inline)) void multiply_step(const Step *s, Coming *coming,
                                                                Finished *f, Write write,
                                                                const void *to) {
    const int lines = (ROW_BLOCK * DEPTH + s->size - 1) / s->size; /* to write with each product */
    __asm__ volatile("" ::: "memory"); /* the compiler does not know that tiles are loaded from memory */
    if (s->is_first) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, s->sums->sums[0], 64);
        _tile_loadd(1, s->sums->sums[1], 64);
        _tile_loadd(2, s->sums->sums[0][16], 64);
        _tile_loadd(3, s->sums->sums[1][16], 64);
    }
    for (int k = 0; k < s->size; k += DEPTH) {
        const int64_t at = (int64_t)k * LANES;
        _tile_loadd(6, s->a + at, 64);
        _tile_loadd(7, s->b + at, 64);
        fetch_coming(coming);
        _tile_stream_loadd(4, s->x + at, 64); /* rows must not replace weights in the L1 cache */
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (s->below) {
            _tile_stream_loadd(5, s->below + at, 64);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        write_lines(f, lines, write, to);
    }
    _tile_stored(0, s->sums->sums[0], 64);
    _tile_stored(1, s->sums->sums[1], 64);
    _tile_stored(2, s->sums->sums[0][16], 64);
    _tile_stored(3, s->sums->sums[1][16], 64);
    __asm__ volatile("" ::: "memory");
}

/* Rows [first, first + rows) of x, at most PANEL_ROWS, times all pairs; `sums` is PANEL_ROOM bytes. */
static inline __attribute__((always_inline)) void multiply_panel(const bf16 *x, int first, int rows,
                                                                 const Pairs *p, Tile *sums,
                                                                 Write write, const void *to) {
    const int inputs = p->left->inputs, blocks = (rows + ROW_BLOCK - 1) / ROW_BLOCK;
    const int chunks = (inputs + CHUNK - 1) / CHUNK;
    const int chunk = (inputs + chunks * DEPTH - 1) / (chunks * DEPTH) * DEPTH;
    Finished finished = {0};
    for (int begin = 0; begin < p->pairs; begin += PAIRS_AT_ONCE) {
        const int end = begin + PAIRS_AT_ONCE < p->pairs ? begin + PAIRS_AT_ONCE : p->pairs;
        for (int k = 0; k < inputs; k += chunk) {
            const int size = inputs - k < chunk ? inputs - k : chunk;
            for (int pair = begin; pair < end; pair++) {
                const int64_t at = (int64_t)k * LANES;
                const bf16 *a = column_block(p->left, p->a + pair * p->step) + at;
                const bf16 *b = column_block(p->right, p->b + pair * p->step) + at;
                /* The next pair, or the first pair's next chunk, or the next pairs. */
                const int is_last = pair + 1 == end, goes_on = !is_last || k + size == inputs;
                const int64_t next = goes_on ? (int64_t)p->step * LANES * inputs - (is_last ? at : 0)
                                             : (int64_t)(begin - pair) * p->step * LANES * inputs +
                                                   (int64_t)size * LANES;
                const int is_end = is_last && k + size == inputs && end == p->pairs;
                Coming coming = {a + next, b + next, is_end ? 0 : size / 2, (16 + blocks - 1) / blocks};
                for (int block = 0; block < blocks; block++) {
                    const int row = first + block * ROW_BLOCK, left = rows - block * ROW_BLOCK;
                    Tile *tile = sums + (chunks == 1 ? 0 : (pair - begin) * blocks + block);
                    const bf16 *from = x + (int64_t)row * inputs + at;
                    const Step step = {
                        .x = from,
                        .below = left > LANES ? from + LANES * inputs : NULL,
                        .a = a, .b = b, .size = size, .is_first = k == 0, .sums = tile,
                    };
                    multiply_step(&step, &coming, &finished, write, to);
                    if (k + size == inputs)
                        finished = (Finished){tile, pair, row, 0, left < ROW_BLOCK ? left : ROW_BLOCK};
                }
            }
        }
    }
    write_lines(&finished, ROW_BLOCK, write, to);
}

#else

/* Vectors multiply rows as they lie. */
enum { PANEL_ROWS = ROW_BLOCK, PANEL_ROOM = 64 };

static inline int are_stored_by_tiles(int64_t rows) { return (void)rows, 0; }
static inline bf16 *find_in_tiles(bf16 *values, int inputs, int64_t row, int input) {
    return values + row * inputs + input;
}
static inline void store_by_tiles(const bf16 *x, int inputs, int64_t row, bf16 *values) {
    (void)x, (void)inputs, (void)row, (void)values;
}
static inline void multiply_panel(const bf16 *x, int first, int rows, const Pairs *p, Tile *sums,
                                  Write write, const void *to) {
    (void)x, (void)first, (void)rows, (void)p, (void)sums, (void)write, (void)to;
}

#endif
