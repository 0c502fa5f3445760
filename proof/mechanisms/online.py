"""The kernel's own translations: a flush of these interrupts every CPU that is online."""

from __future__ import annotations

from ..logic import ALL, BOOL, CODE, TIME, And, Expr, If, Implies, Not, Or, State, later, one_of, within
from ..memory import Thread, Word, changes_tables
from ..system import System
from .bell import ANSWERED, BEGUN, CAUGHT_UP, CHOSEN, CPU, ENDED, FLUSH, IN_ROUND, LOADED, NONE, OBSERVED, RUNG, SKIPPED, UNREAD, Bell

OFF, CONNECTED, INSERTED, COUNTED, SYNCHRONIZED, ON, REMOVED = range(7)
NEW, CHANGED, PUBLISHED, BUMPED, FENCED, DONE = range(6)


def publishes_tables(m: System, what: str) -> None:
    @m.step(f"{what}: publish the tables", f=FLUSH, fs=(CHANGED, PUBLISHED))
    def _(x, f):
        if x.obeys("PublishTables"):
            x.set("flush_tables", f, to=later(x.flush_tables(f), x.fv(f)))


def publishes_and_counts(m: System, flush: Thread, gen: Word) -> None:
    """Declares the steps of a flush of the kernel from the change of the tables until the CPUs are read."""
    publishes_tables(m, "flush")

    @m.step("flush: count", f=FLUSH, fs=(PUBLISHED, BUMPED))
    def _(x, f):
        flush.modify(x, f, gen, (), acquire=False, release=x.obeys("BumpRelease"))
        x.put(f, fg=x.gen_last + 1)

    flush.fence_step(m, "flush: fence", "FlushFence", f=FLUSH, fs=(BUMPED, FENCED))


def generations_carry_tables(m: System) -> None:
    @m.holds("a generation carries the tables of its flush")
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda f: And(Implies(s.fs(f) >= PUBLISHED, s.flush_tables(f) >= s.fv(f)),
                Implies(s.fs(f) >= BUMPED, And(s.gen_has_tables(s.fg(f)) >= s.fv(f), s.flush_gen(f) >= s.fg(f))),
                Implies(s.fs(f) >= FENCED, And(s.S_tables >= s.fv(f), s.S_gen >= s.fg(f)))), FLUSH),
            s.forall(lambda n, k: Implies(And(within(0, n, k), k <= s.gen_last), And(s.gen_has_tables(n) <= s.gen_has_tables(k),
                s.gen_has_tables(n) >= 0, s.gen_has_tables(n) <= s.tables_last)), TIME, TIME))


def build() -> System:
    m = System("online", sizes={CPU: 2, FLUSH: 1, TIME: 5})
    tables = Word(m, "tables", fenced=True)
    gen = Word(m, "gen", carries=(tables,), fenced=True)
    online = Word(m, "online", (CPU,), {"in": BOOL, "uses": TIME}, fenced=True)
    cpu = Thread(m, "cpu", CPU, (tables, gen))
    flush = Thread(m, "flush", FLUSH, (tables, gen, online))
    bell = Bell(m, cpu, gen)
    m.field((CPU,), {CODE: "pc", TIME: "tlb slot got handler_got since"})
    m.field((FLUSH,), {CODE: "fs", TIME: "fv fg"})
    m.field((FLUSH, CPU), {TIME: "stale read_at"})

    def inside(x, c: Expr) -> Expr:
        return x.online_in(c, x.online_last(c))

    m.step("online: connect the bell", c=CPU, pc=(OFF, CONNECTED))(bell.connect)

    @m.step("online: enter the set", c=CPU, pc=(CONNECTED, INSERTED))
    def _(x, c):
        cpu.modify(x, c, online, (c,), acquire=False, release=False, **{"in": True, "uses": x.online_uses(c, x.online_last(c))})
        x.put(c, since=x.online_last(c) + 1)

    cpu.load_step(m, "online: load the kernel's generation", gen, "GenerationAcquire", "got",
        c=CPU, n=TIME, pc=(INSERTED, COUNTED))

    cpu.fence_step(m, "online: synchronize", "OnlineSync", own=online, c=CPU, pc=(COUNTED, SYNCHRONIZED))

    @m.step("online: invalidate everything", c=CPU, pc=(SYNCHRONIZED, ON))
    def _(x, c):
        if x.obeys("FlushOnOnline"):
            x.set("tlb", c, to=cpu.view(x, c, tables))
        x.put(c, slot=x.got(c))

    @m.step("use a kernel page", c=CPU, pc=ON)
    def _(x, c):
        x.set("uses", c, to=x.uses(c) + 1)
        x.set("stale", ALL, c, to=x.uses(c) + 1, where=lambda f: And(x.fs(f) >= CHANGED, x.tlb(c) < x.fv(f)))

    @m.step("offline: leave the set", c=CPU, pc=(ON, REMOVED), handler=NONE)
    def _(x, c):
        before = x.online_uses(c, x.online_last(c))
        cpu.modify(x, c, online, (c,), acquire=False, release=False,
            **{"in": False, "uses": later(before, x.uses(c)) if x.obeys("LeaveOnlineRelease") else before})

    m.step("offline: disconnect the bell", c=CPU, pc=(REMOVED, OFF))(bell.disconnect)
    m.step("offline: publish", c=CPU)(bell.publish_leaving)
    m.step("handler: begin a round", c=CPU, pc=ON, handler={NONE, ENDED})(bell.begin)

    cpu.load_step(m, "handler: load the kernel's generation", gen, "GenerationAcquire", "handler_got",
        c=CPU, n=TIME, handler=(BEGUN, LOADED))

    @m.step("handler: catch up with the kernel", c=CPU, handler=(LOADED, CAUGHT_UP))
    def _(x, c):
        behind = x.handler_got(c) != x.slot(c)
        x.put(c, tlb=If(behind, cpu.view(x, c, tables), x.tlb(c)), slot=x.handler_got(c))

    m.step("handler: answer", c=CPU, handler=CAUGHT_UP)(bell.end)
    m.step("handler: leave", c=CPU, handler=ENDED)(bell.leave)

    changes_tables(m, "flush: change the kernel's tables", False, f=FLUSH, fs=(NEW, CHANGED))
    publishes_and_counts(m, flush, gen)

    @m.step("flush: read whether a CPU is online", f=FLUSH, c=CPU, t=TIME, fs=FENCED, about=UNREAD)
    def _(x, f, c, t):
        flush.load(x, f, online, (c,), t, False)
        if x.obeys("ScanAcquire"):
            x.set("waiter_uses", f, c, to=later(x.waiter_uses(f, c), x.online_uses(c, t)))
        x.put(f, c, read_at=t, about=If(And(x.online_in(c, t), x.obeys("RingOnline")), CHOSEN, SKIPPED))

    @m.step("flush: ring a CPU", f=FLUSH, c=CPU, about=CHOSEN)
    def _(x, f, c):
        bell.ring(x, flush, f, f, c)

    m.step("wait: take a ticket", f=FLUSH, c=CPU, t=TIME)(bell.take_ticket)
    m.step("wait: observe an answer", f=FLUSH, c=CPU, n=TIME)(bell.observe)

    @m.step("wait: return", f=FLUSH, fs=(FENCED, DONE))
    def _(x, f):
        x.require(x.before.forall(lambda c: one_of(x.about(f, c), SKIPPED, OBSERVED), CPU))

    bell.invariant(m)
    synced = lambda s, c: And(s.pc(c) >= SYNCHRONIZED, s.pc(c) <= ON)

    @m.holds("ranges")
    def _(s: State) -> Expr:
        return And(
            s.gen_last >= 0, s.tables_last >= 0, s.S_gen <= s.gen_last, s.S_tables >= 0, s.S_tables <= s.tables_last,
            s.forall(lambda c: And(
                s.pc(c) >= OFF, s.pc(c) <= REMOVED, within(0, s.slot(c), s.cpu_gen(c)), s.cpu_gen(c) <= s.gen_last,
                within(0, s.S_online(c), s.online_last(c)), s.since(c) >= 0,
                s.cpu_tables(c) >= 0, s.cpu_tables(c) <= s.tables_last, s.cpu_tables(c) >= s.gen_has_tables(s.slot(c)),
                Implies(And(s.pc(c) >= INSERTED, s.pc(c) <= ON), And(s.since(c) <= s.online_last(c), inside(s, c))),
                Implies(s.pc(c) == CONNECTED, Not(inside(s, c))), Implies(one_of(s.pc(c), OFF, REMOVED), Not(inside(s, c))),
                s.rung_conn(c, s.rung_last(c)) == (s.pc(c) != OFF), Implies(s.handler(c) != NONE, s.pc(c) == ON)), CPU),
            s.forall(lambda f: And(s.fs(f) >= NEW, s.fs(f) <= DONE, s.flush_gen(f) >= 0, s.flush_gen(f) <= s.gen_last,
                s.flush_tables(f) >= 0, s.flush_tables(f) <= s.tables_last,
                Implies(s.fs(f) >= BUMPED, within(1, s.fg(f), s.gen_last)),
                Implies(s.fs(f) >= CHANGED, s.fv(f) <= s.tables_last)), FLUSH),
            s.forall(lambda f, c: And(within(0, s.flush_online(f, c), s.online_last(c)), s.stale(f, c) >= 0,
                s.stale(f, c) <= s.uses(c), Implies(s.fs(f) < FENCED, s.about(f, c) == UNREAD),
                Implies(s.fs(f) == NEW, s.stale(f, c) == 0)), FLUSH, CPU))

    generations_carry_tables(m)

    @m.holds("a CPU's views are those of the generation that it has loaded")
    def _(s: State) -> Expr:
        return s.forall(lambda c: And(
            Implies(s.pc(c) == ON, And(s.tlb(c) >= s.gen_has_tables(s.slot(c)), s.tlb(c) <= s.cpu_tables(c))),
            Implies(And(s.pc(c) >= COUNTED, s.pc(c) <= SYNCHRONIZED), And(s.got(c) >= s.slot(c), s.got(c) <= s.cpu_gen(c),
                s.cpu_tables(c) >= s.gen_has_tables(s.got(c)))),
            Implies(s.handler(c) == LOADED, And(s.handler_got(c) <= s.cpu_gen(c), s.handler_got(c) >= s.slot(c),
                s.cpu_tables(c) >= s.gen_has_tables(s.handler_got(c)))),
            ), CPU)

    def clean(s: State, f: Expr, c: Expr) -> Expr:
        return And(Implies(s.pc(c) == SYNCHRONIZED, s.cpu_tables(c) >= s.fv(f)), Implies(s.pc(c) == ON, s.tlb(c) >= s.fv(f)))

    @m.holds("a CPU that is online is in the set in all that others may read since")
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda c, t: Implies(And(s.pc(c) >= INSERTED, s.pc(c) <= ON, within(s.since(c), t, s.online_last(c))),
                s.online_in(c, t)), CPU, TIME),
            s.forall(lambda c: Implies(synced(s, c), s.S_online(c) >= s.since(c)), CPU))

    @m.holds("no use follows an absence that a later fence shows")
    def _(s: State) -> Expr:
        return s.forall(lambda c, t: Implies(And(within(s.S_online(c), t, s.online_last(c)), Not(s.online_in(c, t))),
            s.online_uses(c, t) >= s.uses(c)), CPU, TIME)

    @m.holds("a flush and a CPU that comes online do not miss each other")
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda f, c: Implies(And(s.fs(f) >= FENCED, synced(s, c)), Or(s.flush_online(f, c) >= s.since(c),
                clean(s, f, c))), FLUSH, CPU),
            s.forall(lambda f, c, t: Implies(And(s.fs(f) >= FENCED, within(s.flush_online(f, c), t, s.online_last(c)),
                Not(s.online_in(c, t))), s.stale(f, c) <= s.online_uses(c, t)), FLUSH, CPU, TIME))

    @m.holds("a CPU that is skipped has used no stale translation since")
    def _(s: State) -> Expr:
        return s.forall(lambda f, c: Implies(s.about(f, c) == SKIPPED, And(s.flush_online(f, c) == s.read_at(f, c),
            Not(s.online_in(c, s.read_at(f, c))), s.stale(f, c) <= s.waiter_uses(f, c))), FLUSH, CPU)

    @m.holds("a ring carries the flush's generation, and its round catches up")
    def _(s: State) -> Expr:
        return s.forall(lambda f, c: And(
            Implies(s.about(f, c) == RUNG, s.rung_has_gen(c, s.rung_last(c)) >= s.fg(f)),
            s.rung_has_gen(c, s.rung_last(c)) <= s.gen_last,
            Implies(s.about(f, c) == IN_ROUND, And(s.cpu_gen(c) >= s.fg(f), Implies(s.handler(c) == LOADED,
                s.handler_got(c) >= s.fg(f)), Implies(s.handler(c) == CAUGHT_UP, And(s.pc(c) == ON, s.tlb(c) >= s.fv(f)))))),
            FLUSH, CPU)

    @m.holds("a CPU that has answered uses nothing stale")
    def _(s: State) -> Expr:
        return s.forall(lambda f, c: Implies(one_of(s.about(f, c), ANSWERED, OBSERVED),
            And(s.stale(f, c) <= s.answered_uses(f, c), Or(clean(s, f, c), s.flush_online(f, c) < s.since(c)))), FLUSH, CPU)

    @m.holds("1, 8: after the wait, no CPU has used a stale kernel translation without an order, or can", safety=True)
    def _(s: State) -> Expr:
        return s.forall(lambda f, c: Implies(s.fs(f) == DONE, And(one_of(s.about(f, c), SKIPPED, OBSERVED),
            s.stale(f, c) <= s.waiter_uses(f, c), Implies(s.pc(c) == ON, s.tlb(c) >= s.fv(f)))), FLUSH, CPU)

    return m
