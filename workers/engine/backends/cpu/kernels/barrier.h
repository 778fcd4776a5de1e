/* Where all threads of a forward meet. */

#pragma once
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "isa/vector.h"

enum { SPINS = 4000, FEWEST_SPINS = 250 };

typedef struct {
    atomic_int arrived, round, sleepers, spins;
    int size;
} Barrier;

/* Wait for the other threads: spin for some 50 us, then sleep. Another process may hold the core of
   one of them for milliseconds. Asleep, this thread frees its own core, which the system then gives
   to the other one; spinning on, both would lose that time at each of 270 barriers. A wait that long
   also shows that cores are scarce, so the next barriers of this pass spin less. */
static void meet(Barrier *barrier) {
    const int round = atomic_load_explicit(&barrier->round, memory_order_acquire);
    if (atomic_fetch_add(&barrier->arrived, 1) == barrier->size - 1) {
        atomic_store(&barrier->arrived, 0);
        atomic_fetch_add(&barrier->round, 1);
        if (atomic_load(&barrier->sleepers))
            syscall(SYS_futex, &barrier->round, FUTEX_WAKE_PRIVATE, barrier->size, NULL, NULL, 0);
        return;
    }
    const int spins = atomic_load_explicit(&barrier->spins, memory_order_relaxed);
    for (int i = 0; i < spins; i++) {
        if (atomic_load_explicit(&barrier->round, memory_order_acquire) != round) return;
        relax();
    }
    atomic_store_explicit(&barrier->spins, spins / 4 > FEWEST_SPINS ? spins / 4 : FEWEST_SPINS,
                          memory_order_relaxed);
    atomic_fetch_add(&barrier->sleepers, 1);
    while (atomic_load(&barrier->round) == round) /* a wait on a changed round returns at once */
        syscall(SYS_futex, &barrier->round, FUTEX_WAIT_PRIVATE, round, NULL, NULL, 0);
    atomic_fetch_sub(&barrier->sleepers, 1);
}
