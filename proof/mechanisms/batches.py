"""Batches: an operation that finds an entry clear may rely on it only if no batch has cleared it and not flushed yet."""

from __future__ import annotations

from ..counting import Census
from ..logic import CODE, TIME, And, Expr, Implies, Sort, State, within
from ..memory import Thread, Word
from ..system import System

BATCH, READER = Sort("Batch"), Sort("Reader")
NEW, MARKED, CLEARED, FLUSHED, UNMARKED = range(5)
FOUND_CLEAR, RELIES = 1, 2


def build() -> System:
    """One space. Each batch clears one entry of its own; a reader finds the entry of some batch clear."""
    m = System("batches", sizes={BATCH: 2, READER: 1, TIME: 6})
    done = Word(m, "done", (BATCH,))
    batched = Word(m, "batched", values={"count": TIME}, carries=(done,))
    entry = Word(m, "entry", (BATCH,), carries=(batched,))
    batch = Thread(m, "batch", BATCH, (batched, done))
    reader = Thread(m, "reader", READER, (batched, done))
    census = Census(m, "open", BATCH)
    m.field((BATCH,), {CODE: "bs", TIME: "marked_at"})
    m.field((READER,), {CODE: "rs", BATCH: "of"})

    @m.step("batch: mark the space", b=BATCH, bs=(NEW, MARKED))
    def _(x, b):
        if x.obeys("MarkBatched"):
            batch.modify(x, b, batched, (), acquire=False, release=False, count=x.batched_count(x.batched_last) + 1)
            census.add(x, b)
            x.set("marked_at", b, to=x.batched_last + 1)

    @m.step("batch: clear an entry", b=BATCH, bs=(MARKED, CLEARED))
    def _(x, b):
        # The kernel's exchange of the entry releases.
        batch.modify(x, b, entry, (b,), acquire=False, release=True)

    @m.step("batch: flush, and wait", b=BATCH, bs=(CLEARED, FLUSHED))
    def _(x, b):
        x.set("done_last", b, to=1)
        x.set("batch_done", b, b, to=1)

    @m.step("batch: unmark the space", b=BATCH, bs=(FLUSHED, UNMARKED))
    def _(x, b):
        batch.modify(x, b, batched, (), acquire=False, release=x.obeys("BatchedRelease"),
            count=x.batched_count(x.batched_last) - 1)
        census.remove(x, b)

    @m.step("find an entry clear", r=READER, b=BATCH, rs=(NEW, FOUND_CLEAR))
    def _(x, r, b):
        x.require(x.entry_last(b) >= 1)
        # The kernel's load of the entry acquires.
        reader.load(x, r, entry, (b,), x.entry_last(b), acquire=True)
        x.put(r, of=b)

    @m.step("find the space unmarked", r=READER, t=TIME, rs=(FOUND_CLEAR, RELIES))
    def _(x, r, t):
        x.require(x.batched_count(t) == 0)
        reader.load(x, r, batched, (), t, x.obeys("BatchedAcquire"))

    @m.holds("the count is that of the batches that are not flushed")
    def _(s: State) -> Expr:
        return And(
            census.invariant(s), s.batched_last >= 0, s.batched_count(s.batched_last) == census.count(s),
            s.forall(lambda b: And(s.bs(b) >= NEW, s.bs(b) <= UNMARKED, census.has(s, b) == And(s.bs(b) >= MARKED,
                s.bs(b) <= FLUSHED), s.entry_last(b) >= 0, s.batch_batched(b) <= s.batched_last,
            s.batched_last >= s.entry_has_batched(b, s.entry_last(b)), Implies(s.bs(b) < CLEARED, s.entry_last(b) == 0)), BATCH),
            s.forall(lambda r: And(s.rs(r) >= NEW, s.rs(r) <= RELIES, s.reader_batched(r) <= s.batched_last,
                Implies(s.rs(r) >= FOUND_CLEAR, s.bs(s.of(r)) >= CLEARED)), READER))

    @m.holds("an entry carries the mark of its batch")
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda b: Implies(s.bs(b) >= MARKED, And(s.batch_batched(b) >= s.marked_at(b),
                s.marked_at(b) <= s.batched_last)), BATCH),
            s.forall(lambda b: Implies(s.bs(b) >= CLEARED, s.entry_has_batched(b, s.entry_last(b)) >= s.marked_at(b)), BATCH),
            s.forall(lambda b, t: Implies(And(s.bs(b) >= MARKED, s.bs(b) <= FLUSHED, within(s.marked_at(b), t, s.batched_last)),
                s.batched_count(t) >= 1), BATCH, TIME))

    @m.holds("a count of 0 carries the flushes of all batches that were marked before")
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda b: Implies(s.bs(b) >= FLUSHED, s.batch_done(b, b) >= 1), BATCH),
            s.forall(lambda b: Implies(s.bs(b) == UNMARKED, s.batched_has_done(s.batched_last, b) >= 1), BATCH),
            s.forall(lambda b, t: Implies(And(s.bs(b) >= MARKED, within(s.marked_at(b), t, s.batched_last),
                s.batched_count(t) == 0), s.batched_has_done(t, b) >= 1), BATCH, TIME),
            s.forall(lambda r: Implies(s.rs(r) >= FOUND_CLEAR, s.reader_batched(r) >= s.marked_at(s.of(r))), READER))

    @m.holds("7: an operation that relies on a clear entry comes after its flush", safety=True)
    def _(s: State) -> Expr:
        return s.forall(lambda r: Implies(s.rs(r) == RELIES, s.reader_done(r, s.of(r)) >= 1), READER)

    return m
