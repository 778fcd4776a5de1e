/* How the pieces of a batch are computed: a few rows at a time, up to where states are saved. */

#pragma once
#include "../model.h"

enum { TOKENS_AT_ONCE = 16 };

/* How far a piece is computed: its rows [begin, begin + count) come next. Then its states are copied to
   the row `copied_to` of states, unless that is -1. */
typedef struct {
    const StatePiece *piece;
    int64_t begin, count, copied_to, next_save;
} Progress;

static inline Progress begin_piece(const StatePiece *piece) {
    return (Progress){.piece = piece, .next_save = piece->first_save};
}

/* Go on to the rows that follow. Return 0 if there are none. */
static inline int take_rows(const Batch *b, Progress *p) {
    const StatePiece *piece = p->piece;
    p->begin += p->count;
    if (p->begin == piece->size) return 0;
    const int saves = p->next_save < piece->last_save;
    const int64_t left = (saves ? b->saves[p->next_save].tokens : piece->size) - p->begin;
    p->count = left < TOKENS_AT_ONCE ? left : TOKENS_AT_ONCE;
    p->copied_to = saves && p->count == left ? b->saves[p->next_save++].row : -1;
    return 1;
}
