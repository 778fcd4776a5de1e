/* The division of a batch's attention among threads, for layers with the same heads. */

#pragma once
#include <stdatomic.h>
#include <stdlib.h>

#include "spans.h"

/* How many queries of a key head attend together at most: their outputs stay in the L2 cache. */
enum { MAX_QUERIES = 256 };

/* Consecutive tokens of one sequence: rows [row, row + count) of the batch. */
typedef struct {
    const int64_t *table;
    int64_t end;    /* the tokens of the sequence up to the last of them */
    int32_t row, count;
    int32_t pages;  /* of the sequence that are full */
    int32_t shared; /* spans whose pages the run before has too */
    int32_t offset; /* the tokens of the piece before this run */
} Run;

/* The spans [begin, end) of which runs [first, last) have the same pages. */
typedef struct {
    int32_t first, last;
    int64_t begin, end;
} Segment;

/* Runs that one thread computes together for one key head, and their spans by segments, in order. */
typedef struct {
    int32_t first_run, last_run, first_segment, last_segment;
    int64_t cost;
} Piece;

typedef struct {
    Run *runs;
    Segment *segments;
    Piece *pieces;
    int32_t num_runs, num_segments, num_pieces;
    atomic_llong taken; /* pieces times heads that threads have begun */
} Plan;

/* How many parts the queries of one key head are cut into: one, unless there are very many. */
static inline int parts_of_group(const Heads *h) {
    return (h->heads / h->kv_heads + MAX_QUERIES - 1) / MAX_QUERIES;
}

/* How many tokens a piece has at most. With many threads they are fewer: every thread gets several
   pieces, and the last one to end is not late. */
static int find_most_tokens(const Heads *h, const Batch *b) {
    enum { PIECES_PER_THREAD = 4, FEWEST_QUERIES = 32 };
    const int group = h->heads / h->kv_heads, parts = parts_of_group(h);
    const int most = MAX_QUERIES / group, least = (FEWEST_QUERIES + group - 1) / group;
    const int64_t fair = (int64_t)b->rows * h->kv_heads * parts / (PIECES_PER_THREAD * b->num_threads);
    const int64_t wanted = fair > least ? fair : least;
    return wanted < most ? (int)wanted : most > 1 ? most : 1;
}

/* Cut the batch into runs of similar size. */
static void find_runs(const Model *m, const Batch *b, int most, Plan *plan) {
    plan->num_runs = 0;
    for (int row = 0, end; row < b->rows; row = end) {
        for (end = row + 1; end < b->rows; end++)
            if (b->owners[end] != b->owners[row] || b->positions[end] != b->positions[end - 1] + 1)
                break;
        const int count = end - row, cuts = (count + most - 1) / most;
        for (int i = 0; i < cuts; i++) {
            const int from = row + (int)((int64_t)count * i / cuts);
            const int to = row + (int)((int64_t)count * (i + 1) / cuts);
            const int64_t tokens = b->positions[to - 1] + 1;
            plan->runs[plan->num_runs++] = (Run){
                .table = b->tables + b->owners[row] * b->table_width,
                .end = tokens,
                .row = from,
                .count = to - from,
                .pages = (int32_t)(tokens / m->block_size),
            };
        }
    }
}

/* How many pages at their beginning two runs have in common. */
static int count_common_pages(const Run *a, const Run *b) {
    const int most = a->pages < b->pages ? a->pages : b->pages;
    int count = 0;
    while (count < most && a->table[count] == b->table[count]) count++;
    return count;
}

/* The order of their pages: runs with a common beginning lie side by side. */
static int compare_runs(const void *left, const void *right) {
    const Run *a = left, *b = right;
    const int common = count_common_pages(a, b);
    if (common < a->pages && common < b->pages)
        return a->table[common] < b->table[common] ? -1 : 1;
    return a->pages != b->pages ? (a->pages < b->pages ? -1 : 1) : a->row < b->row ? -1 : 1;
}

static int compare_costs(const void *left, const void *right) {
    const Piece *a = left, *b = right;
    return a->cost != b->cost ? (a->cost > b->cost ? -1 : 1)
                              : (a->first_run > b->first_run) - (a->first_run < b->first_run);
}

/* Add the segments of runs [first, last) from span `begin` on: what all have in common, then that of
   each group of runs that have more in common. */
static void add_segments(Plan *plan, Piece *piece, int first, int last, int64_t begin) {
    const Run *runs = plan->runs;
    int64_t common = (runs[first].end + SPAN - 1) / SPAN;
    for (int i = first + 1; i < last; i++)
        if (runs[i].shared < common) common = runs[i].shared;
    if (common > begin) {
        const int tokens = runs[last - 1].offset + runs[last - 1].count - runs[first].offset;
        plan->segments[plan->num_segments++] = (Segment){first, last, begin, common};
        piece->cost += (common - begin) * (SPAN + tokens);
    }
    for (int from = first, to; last - first > 1 && from < last; from = to) {
        for (to = from + 1; to < last && runs[to].shared > common; to++) continue;
        add_segments(plan, piece, from, to, common > begin ? common : begin);
    }
}

/* Gather runs into pieces, and find their segments. Runs that share pages attend together: a span is
   then packed once for all of them. */
static void make_plan(const Model *m, const Heads *h, const Batch *b, Plan *plan) {
    const int most = find_most_tokens(h, b);
    find_runs(m, b, most, plan);
    qsort(plan->runs, (size_t)plan->num_runs, sizeof(Run), compare_runs);
    plan->num_segments = plan->num_pieces = 0;
    for (int first = 0, last; first < plan->num_runs; first = last) {
        int tokens = 0;
        for (last = first; last < plan->num_runs; last++) {
            Run *run = plan->runs + last;
            if (last > first) {
                run->shared = (int32_t)((int64_t)count_common_pages(run - 1, run) * m->block_size /
                                        SPAN);
                if (!run->shared || tokens + run->count > most) break;
            }
            run->offset = tokens;
            tokens += run->count;
        }
        Piece *piece = plan->pieces + plan->num_pieces++;
        *piece = (Piece){first, last, plan->num_segments, 0, 0};
        add_segments(plan, piece, first, last, 0);
        piece->last_segment = plan->num_segments;
    }
    qsort(plan->pieces, (size_t)plan->num_pieces, sizeof(Piece), compare_costs);
}
