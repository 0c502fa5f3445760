"""CPUs in user mode: a flush of the kernel's translations leaves them alone, and they catch up when they enter the kernel."""

from __future__ import annotations

from ..logic import ALL, BOOL, CODE, TIME, And, Expr, If, Implies, Not, Or, State, later, one_of, within
from ..memory import Thread, Word, append
from ..system import System
from .bell import CPU, FLUSH
from .online import BUMPED, CHANGED, DONE, NEW, generations_carry_tables, publishes_and_counts
from .online import FENCED as READING

KERNEL, USER, ENTERED, FENCED, LOADED = range(5)
UNREAD, SKIPPED, RUNG, ANSWERED = range(4)


def build() -> System:
    m = System("isolated", sizes={CPU: 2, FLUSH: 2, TIME: 5})
    tables = Word(m, "tables", fenced=True)
    gen = Word(m, "gen", carries=(tables,), fenced=True)
    user = Word(m, "user", (CPU,), {"in": BOOL, "uses": TIME}, fenced=True)
    cpu = Thread(m, "cpu", CPU, (tables, gen))
    flush = Thread(m, "flush", FLUSH, (tables, gen, user))
    m.field((CPU,), {CODE: "pc"})
    # `uses` counts all uses, and `kernel_uses` is that count at the last use in the kernel.
    m.field((CPU,), {TIME: "tlb slot got since uses kernel_uses"})
    m.field((FLUSH,), {CODE: "fs", TIME: "fv fg", BOOL: "frees_tables is_entry"})
    m.field((FLUSH, CPU), {CODE: "about", TIME: "stale waiter_uses"})

    def use(x, c: Expr, which) -> None:
        x.set("uses", c, to=x.uses(c) + 1)
        x.set("stale", ALL, c, to=x.uses(c) + 1, where=lambda f: And(x.fs(f) >= CHANGED, x.tlb(c) < x.fv(f), which(f)))

    @m.step("use a kernel page", c=CPU, pc=KERNEL)
    def _(x, c):
        use(x, c, lambda f: True)
        x.set("kernel_uses", c, to=x.uses(c) + 1)

    @m.step("walk a kernel table by speculation in user mode", c=CPU)
    def _(x, c):
        x.require(x.pc(c) != KERNEL)
        use(x, c, x.frees_tables)

    @m.step("use an entry page before catching up", c=CPU)
    def _(x, c):
        x.require(x.pc(c) != KERNEL)
        use(x, c, x.is_entry)

    @m.step("enter user mode", c=CPU, pc=(KERNEL, USER))
    def _(x, c):
        cpu.store(x, c, user, (c,), False, **{"in": True, "uses": x.uses(c) if x.obeys("EnterUserRelease") else 0})

    @m.step("enter the kernel: publish", c=CPU, pc=(USER, ENTERED))
    def _(x, c):
        cpu.store(x, c, user, (c,), False, **{"in": False, "uses": 0})
        x.put(c, since=x.user_last(c) + 1)

    cpu.fence_step(m, "enter the kernel: fence", "EnterKernelFence", own=user, c=CPU, pc=(ENTERED, FENCED))

    cpu.load_step(m, "enter the kernel: load the kernel's generation", gen, "GenerationAcquire", "got",
        c=CPU, n=TIME, pc=(FENCED, LOADED))

    @m.step("enter the kernel: catch up", c=CPU, pc=(LOADED, KERNEL))
    def _(x, c):
        if x.obeys("CatchUpOnEntry"):
            behind = x.got(c) != x.slot(c)
            x.put(c, tlb=If(behind, cpu.view(x, c, tables), x.tlb(c)), slot=x.got(c))

    @m.step("flush: change the kernel's tables", f=FLUSH, t=BOOL, e=BOOL, fs=(NEW, CHANGED))
    def _(x, f, t, e):
        x.put(f, fv=append(x, "tables", ()), frees_tables=t, is_entry=e)

    publishes_and_counts(m, flush, gen)

    @m.step("flush: read whether a CPU is in user mode", f=FLUSH, c=CPU, t=TIME, fs=READING, about=UNREAD)
    def _(x, f, c, t):
        flush.load(x, f, user, (c,), t, False)
        if x.obeys("InUserAcquire"):
            x.set("waiter_uses", f, c, to=later(x.waiter_uses(f, c), x.user_uses(c, t)))
        rings = [Not(x.user_in(c, t))]
        if x.obeys("RingInUserForTables"):
            rings.append(x.frees_tables(f))
        if x.obeys("RingInUserForEntry"):
            rings.append(x.is_entry(f))
        x.put(f, c, about=If(Or(*rings), RUNG, SKIPPED))

    @m.step("handler: catch up, and answer", f=FLUSH, c=CPU, n=TIME, about=(RUNG, ANSWERED))
    def _(x, f, c, n):
        # By the theorem of `bell`, the round begins after the ring. From user mode, the CPU enters the kernel first.
        x.require(x.pc(c) == KERNEL, n >= x.fg(f))
        cpu.load(x, c, gen, (), n, True)
        x.put(c, tlb=later(x.cpu_tables(c), x.gen_has_tables(n)), slot=n)
        x.put(f, c, waiter_uses=later(x.waiter_uses(f, c), x.uses(c)))

    @m.step("wait: return", f=FLUSH, fs=(READING, DONE))
    def _(x, f):
        x.require(x.before.forall(lambda c: one_of(x.about(f, c), SKIPPED, ANSWERED), CPU))

    is_plain = lambda s, f: Not(Or(s.frees_tables(f), s.is_entry(f)))
    in_user = lambda s, c, t: s.user_in(c, t)

    @m.holds("ranges")
    def _(s: State) -> Expr:
        return And(
            s.gen_last >= 0, s.tables_last >= 0, s.S_gen <= s.gen_last, s.S_tables >= 0, s.S_tables <= s.tables_last,
            s.forall(lambda c: And(
                s.pc(c) >= KERNEL, s.pc(c) <= LOADED, within(0, s.slot(c), s.cpu_gen(c)), s.cpu_gen(c) <= s.gen_last,
                within(0, s.S_user(c), s.user_last(c)), within(0, s.since(c), s.user_last(c)),
                within(0, s.kernel_uses(c), s.uses(c)),
                s.cpu_tables(c) >= 0, s.cpu_tables(c) <= s.tables_last, s.cpu_tables(c) >= s.gen_has_tables(s.slot(c)),
                in_user(s, c, s.user_last(c)) == (s.pc(c) == USER)), CPU),
            s.forall(lambda f: And(s.fs(f) >= NEW, s.fs(f) <= DONE, s.flush_gen(f) >= 0, s.flush_gen(f) <= s.gen_last,
                s.flush_tables(f) >= 0, s.flush_tables(f) <= s.tables_last,
                Implies(s.fs(f) >= BUMPED, within(1, s.fg(f), s.gen_last)),
                Implies(s.fs(f) >= CHANGED, s.fv(f) <= s.tables_last)), FLUSH),
            s.forall(lambda f, c: And(within(0, s.flush_user(f, c), s.user_last(c)), s.stale(f, c) >= 0,
                s.stale(f, c) <= s.uses(c), Implies(And(s.fs(f) >= CHANGED, is_plain(s, f)), s.stale(f, c) <= s.kernel_uses(c)),
                Implies(s.fs(f) < READING, s.about(f, c) == UNREAD), within(UNREAD, s.about(f, c), ANSWERED),
                Implies(s.fs(f) == NEW, s.stale(f, c) == 0)), FLUSH, CPU))

    generations_carry_tables(m)

    @m.holds("a CPU's views are those of the generation that it has loaded")
    def _(s: State) -> Expr:
        return s.forall(lambda c: And(
            s.tlb(c) >= s.gen_has_tables(s.slot(c)), s.tlb(c) <= s.cpu_tables(c),
            Implies(s.pc(c) == LOADED, And(within(s.slot(c), s.got(c), s.cpu_gen(c)),
                s.cpu_tables(c) >= s.gen_has_tables(s.got(c))))), CPU)

    @m.holds("a CPU that has entered the kernel is not in user mode in all that others may read since")
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda c, t: Implies(And(s.pc(c) != USER, within(s.since(c), t, s.user_last(c))), Not(in_user(s, c, t))),
                CPU, TIME),
            s.forall(lambda c: Implies(one_of(s.pc(c), FENCED, LOADED, KERNEL), s.S_user(c) >= s.since(c)), CPU))

    @m.holds("no use in the kernel follows a stay in user mode that a later fence shows")
    def _(s: State) -> Expr:
        return s.forall(lambda c, t: Implies(And(within(s.S_user(c), t, s.user_last(c)), in_user(s, c, t)),
            s.user_uses(c, t) >= s.kernel_uses(c)), CPU, TIME)

    @m.holds("a flush and a CPU that enters the kernel do not miss each other")
    def _(s: State) -> Expr:
        clean = lambda f, c: And(Implies(s.pc(c) == FENCED, s.cpu_gen(c) >= s.fg(f)),
            Implies(s.pc(c) == LOADED, s.got(c) >= s.fg(f)), Implies(s.pc(c) == KERNEL, s.tlb(c) >= s.fv(f)))
        return And(
            s.forall(lambda f, c: Implies(And(s.fs(f) >= READING, one_of(s.pc(c), FENCED, LOADED, KERNEL)),
                Or(s.flush_user(f, c) >= s.since(c), clean(f, c))), FLUSH, CPU),
            s.forall(lambda f, c, t: Implies(And(s.fs(f) >= READING, is_plain(s, f),
                within(s.flush_user(f, c), t, s.user_last(c)), in_user(s, c, t)), s.stale(f, c) <= s.user_uses(c, t)),
                FLUSH, CPU, TIME))

    @m.holds("a CPU that is skipped has used no stale translation since, and one that has answered has none")
    def _(s: State) -> Expr:
        return s.forall(lambda f, c: And(
            Implies(s.about(f, c) == SKIPPED, And(is_plain(s, f), in_user(s, c, s.flush_user(f, c)),
                s.stale(f, c) <= s.waiter_uses(f, c))),
            Implies(s.about(f, c) == ANSWERED, And(s.tlb(c) >= s.fv(f), s.stale(f, c) <= s.waiter_uses(f, c)))), FLUSH, CPU)

    @m.holds("1, 2, 8: after the wait, no CPU has used or walked what the flush covered without an order, or can",
        safety=True)
    def _(s: State) -> Expr:
        return s.forall(lambda f, c: Implies(s.fs(f) == DONE, And(one_of(s.about(f, c), SKIPPED, ANSWERED),
            s.stale(f, c) <= s.waiter_uses(f, c), Or(s.tlb(c) >= s.fv(f), And(s.pc(c) != KERNEL, is_plain(s, f))))), FLUSH, CPU)

    return m
