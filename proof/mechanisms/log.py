"""The log of a space: one entry, with any number of writers and readers; and catching up range by range."""

from __future__ import annotations

from ..logic import ALL, BOOL, CODE, TIME, And, Expr, Implies, Not, Or, Sort, State, later, within
from ..memory import Thread, Word
from ..system import System

WRITER, READER = Sort("Writer"), Sort("Reader")
NEW, STARTED, CLAIMED, WRITTEN, COMPLETE = range(5)
FOUND, READ, RETURNED = range(1, 4)


def build() -> System:
    """Generations whose number is the same modulo 16 share an entry, and each has one writer."""
    m = System("log", sizes={WRITER: 2, READER: 1, TIME: 6})
    # The extents of several writers are stored without reading the word: a store may come before those that its writer
    # does not observe. So the messages of this word have any times, and not the next one.
    extent = Word(m, "extent")
    stamp = Word(m, "stamp", values={"gen": TIME, "writing": BOOL, "by": WRITER}, carries=(extent,))
    writer = Thread(m, "writer", WRITER, (stamp, extent))
    reader = Thread(m, "reader", READER, (stamp, extent))
    m.field((TIME,), {BOOL: "extent_used taken", WRITER: "extent_by", TIME: "extent_has_stamp"})
    m.field((WRITER,), {CODE: "ws", TIME: "number claimed_at written_at"})
    m.field((READER,), {CODE: "rs", TIME: "wanted found_at read_at"})

    @m.step("log: count the flush", w=WRITER, n=TIME, ws=(NEW, STARTED))
    def _(x, w, n):
        x.require(n >= 1, Not(x.taken(n)))
        x.set("number", w, to=n)
        x.set("taken", n, to=True)

    @m.step("log: claim the entry", w=WRITER, ws=(STARTED, CLAIMED))
    def _(x, w):
        last = x.stamp_last
        x.require(Not(x.stamp_writing(last)), x.stamp_gen(last) < x.number(w))
        writer.modify(x, w, stamp, (), acquire=x.obeys("StampClaim"), release=False, gen=x.number(w), writing=True, by=w)
        x.put(w, claimed_at=last + 1)

    @m.step("log: store the extent", w=WRITER, t=TIME, ws=(CLAIMED, WRITTEN))
    def _(x, w, t):
        x.require(t > x.writer_extent(w), Not(x.extent_used(t)))
        x.put(t, extent_used=True, extent_by=w, extent_has_stamp=x.writer_stamp(w) if x.obeys("ExtentRelease") else 0)
        x.set("extent_last", to=later(x.extent_last, t))
        x.put(w, writer_extent=t, written_at=t)

    @m.step("log: complete the entry", w=WRITER, ws=(WRITTEN, COMPLETE))
    def _(x, w):
        writer.store(x, w, stamp, (), x.obeys("StampRelease"), gen=x.number(w), writing=False, by=w)

    @m.step("read: find the stamp", r=READER, t=TIME, n=TIME, rs=(NEW, FOUND))
    def _(x, r, t, n):
        x.require(n >= 1, x.stamp_gen(t) == n, Not(x.stamp_writing(t)))
        reader.load(x, r, stamp, (), t, x.obeys("StampAcquire"))
        x.put(r, wanted=n, found_at=t)

    @m.step("read: load the extent", r=READER, t=TIME, rs=(FOUND, READ))
    def _(x, r, t):
        x.require(t >= x.reader_extent(r), Or(x.extent_used(t), t == 0))
        x.put(r, reader_extent=t, read_at=t)
        if x.obeys("ExtentAcquire"):
            x.set("reader_stamp", r, to=later(x.reader_stamp(r), x.extent_has_stamp(t)))

    @m.step("read: find the stamp unchanged", r=READER, t=TIME, rs=(READ, RETURNED))
    def _(x, r, t):
        x.require(x.stamp_gen(t) == x.wanted(r), Not(x.stamp_writing(t)))
        reader.load(x, r, stamp, (), t, False)

    @m.holds("ranges")
    def _(s: State) -> Expr:
        return And(
            s.stamp_last >= 0, s.stamp_gen(0) == 0, Not(s.stamp_writing(0)),
            s.forall(lambda w: And(s.ws(w) >= NEW, s.ws(w) <= COMPLETE,
                Implies(s.ws(w) >= STARTED, And(s.number(w) >= 1, s.taken(s.number(w)))), s.writer_stamp(w) >= 0,
                s.writer_stamp(w) <= s.stamp_last, s.writer_extent(w) >= 0), WRITER),
            s.forall(lambda w, v: Implies(And(s.ws(w) >= STARTED, s.ws(v) >= STARTED, s.number(w) == s.number(v)), w == v),
                WRITER, WRITER),
            s.forall(lambda r: And(s.rs(r) >= NEW, s.rs(r) <= RETURNED, s.reader_stamp(r) >= 0, s.reader_stamp(r) <= s.stamp_last,
                s.reader_extent(r) >= 0), READER))

    @m.holds("stamps grow, and each is its writer's")
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda t: Implies(within(1, t, s.stamp_last), And(s.ws(s.stamp_by(t)) >= CLAIMED,
                s.number(s.stamp_by(t)) == s.stamp_gen(t), Or(s.stamp_writing(t), s.ws(s.stamp_by(t)) == COMPLETE),
                s.claimed_at(s.stamp_by(t)) <= t)), TIME),
            s.forall(lambda t, u: Implies(And(within(0, t, u), u <= s.stamp_last), s.stamp_gen(t) <= s.stamp_gen(u)), TIME, TIME),
            s.forall(lambda w: Implies(s.ws(w) >= CLAIMED, And(within(1, s.claimed_at(w), s.stamp_last),
                s.stamp_gen(s.claimed_at(w)) == s.number(w))), WRITER),
            s.forall(lambda w: Implies(Or(s.ws(w) == CLAIMED, s.ws(w) == WRITTEN), And(s.claimed_at(w) == s.stamp_last,
                s.stamp_writing(s.stamp_last), s.stamp_by(s.stamp_last) == w, s.writer_stamp(w) == s.stamp_last)), WRITER))

    @m.holds("each extent is its writer's, and comes after the claim")
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda t: Implies(s.extent_used(t), And(t >= 1, s.ws(s.extent_by(t)) >= WRITTEN,
                s.written_at(s.extent_by(t)) == t, s.extent_has_stamp(t) >= s.claimed_at(s.extent_by(t)),
                s.extent_has_stamp(t) <= s.stamp_last)), TIME),
            s.forall(lambda w: Implies(s.ws(w) >= WRITTEN, And(s.extent_used(s.written_at(w)),
                s.extent_by(s.written_at(w)) == w)), WRITER),
            s.forall(lambda w: Implies(s.ws(w) == WRITTEN, s.writer_extent(w) >= s.written_at(w)), WRITER))

    @m.holds("a complete stamp carries the extents of all writers up to it")
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda w, t: Implies(And(s.ws(w) >= WRITTEN, within(s.claimed_at(w), t, s.stamp_last),
                Not(s.stamp_writing(t))), s.stamp_has_extent(t) >= s.written_at(w)), WRITER, TIME),
            s.forall(lambda w, v: Implies(And(s.ws(v) >= CLAIMED, s.ws(v) < COMPLETE, s.ws(w) >= WRITTEN,
                s.number(w) < s.number(v)), s.writer_extent(v) >= s.written_at(w)), WRITER, WRITER),
            s.forall(lambda w, v: Implies(And(s.ws(w) >= CLAIMED, s.ws(v) >= CLAIMED, s.claimed_at(w) < s.claimed_at(v)),
                And(s.number(w) < s.number(v), s.ws(w) == COMPLETE)), WRITER, WRITER))

    @m.holds("extents are in the order of their generations")
    def _(s: State) -> Expr:
        return s.forall(lambda w, v: Implies(And(s.ws(w) >= WRITTEN, s.ws(v) >= WRITTEN, s.number(w) < s.number(v)),
            s.written_at(w) < s.written_at(v)), WRITER, WRITER)

    @m.holds("a reader's extent is not older than its stamp")
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda r: Implies(s.rs(r) >= FOUND, And(within(1, s.found_at(r), s.stamp_last),
                s.stamp_gen(s.found_at(r)) == s.wanted(r), Not(s.stamp_writing(s.found_at(r))),
                s.reader_extent(r) >= s.written_at(s.stamp_by(s.found_at(r))))), READER),
            s.forall(lambda r: Implies(s.rs(r) >= READ, And(s.read_at(r) == s.reader_extent(r), s.extent_used(s.read_at(r)))),
                READER),
            s.forall(lambda r: Implies(s.rs(r) == READ, And(s.reader_stamp(r) >= s.claimed_at(s.extent_by(s.read_at(r))),
                s.number(s.extent_by(s.read_at(r))) >= s.wanted(r))), READER))

    @m.holds("5: a range that is read is the range of that generation", safety=True)
    def _(s: State) -> Expr:
        return s.forall(lambda r: Implies(s.rs(r) == RETURNED, And(s.extent_used(s.read_at(r)),
            s.number(s.extent_by(s.read_at(r))) == s.wanted(r))), READER)

    return m


CPU, PAGE = Sort("Cpu"), Sort("Page")


def build_ranges() -> System:
    """A CPU that has missed flushes reads their ranges one by one, and invalidates these or everything."""
    m = System("ranges", sizes={CPU: 1, PAGE: 2, TIME: 5})
    m.field((), {TIME: "gen_last"})
    m.field((TIME, PAGE), {BOOL: "covers"})
    m.field((CPU,), {TIME: "slot got position", BOOL: "busy everything"})
    m.field((CPU, PAGE), {BOOL: "listed", TIME: "clean"})

    @m.step("flush: cover a page", p=PAGE)
    def _(x, p):
        x.set("covers", x.gen_last + 1, p, to=True)

    @m.step("flush: count")
    def _(x):
        x.set("gen_last", to=x.gen_last + 1)

    @m.step("catch up: begin", c=CPU, n=TIME, busy=(False, True))
    def _(x, c, n):
        x.require(x.slot(c) < n, n <= x.gen_last)
        x.put(c, got=n, position=x.slot(c), everything=False)
        x.set("listed", c, ALL, to=False)

    @m.step("catch up: read the range of a generation", c=CPU, busy=True)
    def _(x, c):
        at = x.position(c) + 1
        x.require(at <= x.got(c))
        x.set("listed", c, ALL, to=True, where=lambda p: x.covers(at, p))
        x.set("position", c, to=at)

    @m.step("catch up: the range of a generation is not known", c=CPU, busy=True)
    def _(x, c):
        x.require(x.position(c) < x.got(c))
        if x.obeys("KnowEveryRange"):
            x.set("everything", c, to=True)
        x.set("position", c, to=x.position(c) + 1)

    @m.step("catch up: there are too many pages", c=CPU, busy=True)
    def _(x, c):
        x.set("everything", c, to=True)

    @m.step("catch up: invalidate", c=CPU, busy=(True, False))
    def _(x, c):
        x.require(Or(x.everything(c), x.position(c) == x.got(c)))
        x.set("clean", c, ALL, to=x.got(c), where=lambda p: Or(x.everything(c), x.listed(c, p)))
        x.put(c, slot=x.got(c))

    @m.holds("the ranges that were read are listed")
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda c: And(s.slot(c) >= 0, s.slot(c) <= s.gen_last,
                Implies(s.busy(c), And(within(s.slot(c), s.position(c), s.got(c)), s.got(c) <= s.gen_last))), CPU),
            s.forall(lambda c, p: s.clean(c, p) <= s.slot(c), CPU, PAGE),
            s.forall(lambda c, p, n: Implies(And(s.busy(c), s.slot(c) < n, n <= s.position(c), s.covers(n, p)),
                Or(s.everything(c), s.listed(c, p))), CPU, PAGE, TIME))

    @m.holds("5: a CPU that has caught up holds nothing that a flush up to there covered", safety=True)
    def _(s: State) -> Expr:
        return s.forall(lambda c, p, n: Implies(And(n <= s.slot(c), n >= 1, s.covers(n, p)), s.clean(c, p) >= n), CPU, PAGE, TIME)

    return m
