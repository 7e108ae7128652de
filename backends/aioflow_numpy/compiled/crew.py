"""Matrix products whose parts are computed by spinning threads, in C, as one program for all products.

Waking a thread takes a tenth of a millisecond, and Python code in it needs the GIL; half of a small product takes less.
Here a helper thread spins for a moment, without the GIL, and watches its *board*, a cache line that holds its state:

    ASLEEP    the helper is in Python, or sleeps
    AWAKE     it spins, and waits for work
    CLAIMED   a caller has reserved it, and writes its work to the board
    OFFERED   the work is ready; the caller computes its own part, then takes back work that is still offered
    TAKEN     the helper computes, and the caller waits for it
    DONE      the work is done, until the caller sets the state to AWAKE

So the caller never waits for a preempted helper that has not started yet. The function is passed as an address with its
arguments: one that multiplies matrices, or a loop over elements. The program is the same for all of them except for the
BLAS's integer type.
"""

from __future__ import annotations

import time
from typing import Final

BOARD: Final = 64  # bytes of a board, which begins with a cache line
MOST_PARTS: Final = 64  # of one piece of work
# The fields of a part, each of 64 bits: arguments of the function; for each matrix the offset of the part in bytes;
# functions that get and set its number of threads, or 0 if it always uses one; the number of pieces along `k` in
# which the product is summed up, and the bytes of each operand between two adjacent elements along `k`.
FIELDS: Final = (
    *("function", "kind", "transpose_a", "transpose_b", "m", "n", "k", "a", "lda", "b", "ldb", "c", "ldc"),
    *("get_threads", "set_threads", "pieces", "step_a", "step_b"),
)
# The kinds of functions: cblas_sgemm; cblas_dgemm; a loop that takes the first element, the one after the last (`m`
# and `n`), and an address; and one like dnnl_sgemm, which takes letters and returns a status.
SINGLE: Final = 0
DOUBLE: Final = 1
LOOP: Final = 2
WITH_LETTERS: Final = 3
AWAKE: Final = 1  # one of the states
# The first four fields of a board and the status take 28 bytes; the rest fills its cache line. A store of a state
# releases, so a helper that reads OFFERED also sees `part` and `places`. `fetch` reads one byte of each cache line.
# No headers: a compiler may be installed without those of the C library.
_TEXT: Final = """\
#if __SIZEOF_LONG__ != 8
#error "clock_gettime is declared for systems of 64 bits"
#endif
typedef __PTRDIFF_TYPE__ Index;
typedef INTEGER Int;
typedef struct { Index FIELDS; } Part;
typedef struct { char *a, *b, *c; } Places;
typedef struct {
    int state, called;
    const Part *part;
    const Places *places;
    int status;
    char rest[BOARD - 28];
} Board;
enum { ASLEEP, AWAKE = 1, CLAIMED, OFFERED, TAKEN, DONE };
enum { ROWS_FIRST = 101, LOOKS = 64, PATIENT = 1024, LINE = 64 };
extern int clock_gettime(int, long *);
extern int sched_yield(void);
typedef void Single(int, int, int, Int, Int, Int, float, const float *, Int, const float *, Int, float, float *, Int);
typedef void Double(
    int, int, int, Int, Int, Int, double, const double *, Int, const double *, Int, double, double *, Int);
typedef void Loop(Index, Index, void *);
typedef int Letters(
    char, char, Index, Index, Index, float, const float *, Index, const float *, Index, float, float *, Index);
typedef int Get(void);
typedef void Set(int);
static long nanoseconds(int clock)
{
    long t[2] = {0};
    clock_gettime(clock, t);
    return t[0] * 1000000000 + t[1];
}
static long now(void) { return nanoseconds(MONOTONIC); }
static inline void relax(void)
{
#if defined(__x86_64__)
    for (int i = 0; i < 16; i++) __builtin_ia32_pause(); /* looks are not worth the bus */
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}
static inline int state_of(Board *b) { return __atomic_load_n(&b->state, __ATOMIC_ACQUIRE); }
static inline void be(Board *b, int state) { __atomic_store_n(&b->state, state, __ATOMIC_RELEASE); }
static inline int turn(Board *b, int from, int to)
{
    return __atomic_compare_exchange_n(&b->state, &from, to, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}
static int multiply(const Part *p, Index k, void *a, void *b, int sum, void *c)
{
    if (p->kind == WITH_LETTERS)
        return ((Letters *)p->function)(p->transpose_a, p->transpose_b, p->m, p->n, k, 1, a, p->lda, b, p->ldb, sum, c,
                                        p->ldc);
    if (p->kind == DOUBLE)
        ((Double *)p->function)(ROWS_FIRST, p->transpose_a, p->transpose_b, p->m, p->n, k, 1, a, p->lda, b, p->ldb,
                                sum, c, p->ldc);
    else
        ((Single *)p->function)(ROWS_FIRST, p->transpose_a, p->transpose_b, p->m, p->n, k, 1, a, p->lda, b, p->ldb,
                                sum, c, p->ldc);
    return 0;
}
static void fetch(const char *b, Index rows, Index step, Index bytes)
{
    for (Index i = 0; i < rows; i++)
        for (Index j = 0; j < bytes; j += LINE) (void)*(const volatile char *)(b + i * step + j);
}
static int compute(const Part *p, const Places *at)
{
    char *a = at->a + p->a, *b = at->b + p->b, *c = at->c + p->c;
    if (p->kind == LOOP) {
        ((Loop *)p->function)(p->m, p->n, a);
        return 0;
    }
    const int threads = p->get_threads ? ((Get *)p->get_threads)() : 1;
    int status = 0;
    if (threads != 1) ((Set *)p->set_threads)(1);
    for (Index i = 0; i < p->pieces; i++) {
        const Index from = p->k * i / p->pieces, k = p->k * (i + 1) / p->pieces - from;
        if (p->pieces > 1) fetch(b + from * p->step_b, k, p->step_b, p->n * (p->kind == DOUBLE ? 8 : 4));
        status |= multiply(p, k, a + from * p->step_a, b + from * p->step_b, i > 0, c);
    }
    if (threads != 1) ((Set *)p->set_threads)(threads);
    return status;
}
void piece0(Index patience, Index unused, Board *board, Index *done)
{
    long until = now() + patience;
    *done = 0;
    if (!turn(board, ASLEEP, AWAKE)) return;
    for (unsigned looks = 0;; looks++) {
        if (state_of(board) == OFFERED && turn(board, OFFERED, TAKEN)) {
            board->status = compute(board->part, board->places);
            be(board, DONE);
            ++*done;
            until = now() + patience;
        }
        relax();
        const int called = __atomic_load_n(&board->called, __ATOMIC_ACQUIRE);
        if ((called || (looks % LOOKS == 0 && now() >= until)) && turn(board, AWAKE, ASLEEP)) return;
    }
}
void piece1(Index count, Index helpers, Board *boards, const Part *parts, char *a, char *b, char *c, long *took)
{
    const Places places = {a, b, c};
    Board *by[MOST_PARTS] = {0};
    Index helper = 0, taken = 0;
    int status = 0;
    for (Index i = 1; i < count; i++)
        for (; helper < helpers && !by[i]; helper++)
            if (turn(boards + helper, AWAKE, CLAIMED)) {
                by[i] = boards + helper;
                by[i]->part = parts + i;
                by[i]->places = &places;
                be(by[i], OFFERED);
            }
    const long begun = nanoseconds(OF_THREAD); /* what this thread waits for a processor is nothing that others save */
    status |= compute(parts, &places);
    const long own = nanoseconds(OF_THREAD);
    for (Index i = 1; i < count; i++)
        if (!by[i]) status |= compute(parts + i, &places);
    for (Index i = 1; i < count; i++)
        if (by[i] && turn(by[i], OFFERED, AWAKE)) {
            by[i] = 0;
            status |= compute(parts + i, &places);
        }
    const long ended = now();
    for (Index i = 1; i < count; i++)
        if (by[i]) {
            for (unsigned looks = 0; state_of(by[i]) != DONE; looks++) {
                relax();
                if (looks > PATIENT) sched_yield();
            }
            status |= by[i]->status;
            be(by[i], AWAKE);
            taken++;
        }
    took[0] = taken, took[1] = own - begun, took[2] = now() - ended, took[3] = status;
}
"""


def crew_program(integer: str) -> str:
    """Return the text of two functions.

    `piece0(patience, 0, board, done)` spins at a board until `patience` nanoseconds have passed after the last part,
    and counts the parts that it has computed. It returns sooner if `called` is set.

    `piece1(count, helpers, boards, parts, a, b, c, took)` computes `count` parts, at most `MOST_PARTS`, of matrices at
    these addresses. It reports the number of parts that helpers computed, the nanoseconds of this thread's own part,
    the nanoseconds of its wait for theirs, and a status that is 0 if all succeeded.

    Args:
        integer: The BLAS's type of sizes.
    """
    # The numbers differ between systems.
    clocks = {
        "MONOTONIC": time.CLOCK_MONOTONIC,
        "OF_THREAD": time.CLOCK_THREAD_CPUTIME_ID,
    }
    text = _TEXT.replace("INTEGER", integer).replace("FIELDS", ", ".join(FIELDS))
    kinds = {"DOUBLE": DOUBLE, "LOOP": LOOP, "WITH_LETTERS": WITH_LETTERS}
    # Plain replacement: none of these names may be a part of another word in the program.
    for name, number in {"MOST_PARTS": MOST_PARTS, "BOARD": BOARD, **kinds, **clocks}.items():
        text = text.replace(name, str(number))
    return text
