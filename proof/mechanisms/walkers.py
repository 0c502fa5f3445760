"""Freed page tables: which CPUs may still walk them, and how long they wait in quarantine. One space.

Every flush here frees tables. A CPU comes to the space for a *stint*, and leaves it. What it caches of upper levels is
clean up to a generation, `path`. A walk is stale for a generation if the path was older.
"""

from __future__ import annotations

from ..logic import ALL, BOOL, CODE, TIME, And, Expr, If, Implies, Not, Or, Sort, State, later, one_of, within
from ..memory import Thread, Word
from ..system import System, Taken
from .bell import CPU

CLEARER = Sort("Clearer")
"""The flushes that free tables, and the calls of `flush_walkers`."""
ELSEWHERE, LAZY, SWITCHING, ACTIVE = range(4)
AWAY, STORED, FENCED, READ, ROOT, SEEN, ON_HAZARD, IN, LAZY_SEEN, IDLE, RESUMES, RESUMED, LEAVES, UNLOADED, OTHER_SEEN, QUITS, CLEARED = range(17)
"""Where a CPU's program is: on its way in (to `ON_HAZARD`), in, lazy, back (`RESUMES`), away (`LEAVES`), to the kernel's root."""
WALKING = (ROOT, SEEN, ON_HAZARD, IN, LAZY_SEEN, IDLE, RESUMES, RESUMED, LEAVES)
INTERRUPT, DEFER, WALKERS = range(3)
NEW, COUNTED, SCANNING, DONE = range(4)
UNREAD, PRESENCE, HAZARD, SKIPPED, CHOSEN, RUNG, IN_ROUND, ANSWERED, OBSERVED = range(9)


def build() -> System:
    m = System("walkers", sizes={CPU: 1, CLEARER: 2, TIME: 5})
    gen = Word(m, "gen", fenced=True)
    bell = Word(m, "bell", (CPU,), carries=(gen,))
    seen = Word(m, "seen", (CPU,), {"to": TIME, "walks": TIME, "stint": TIME})
    hazard = Word(m, "hazard", (CPU,), {"on": BOOL, "seen": TIME, "walks": TIME, "stint": TIME})
    pres = Word(m, "pres", (CPU,), {"kind": CODE, "hazard": TIME, "seen": TIME, "walks": TIME, "stint": TIME}, fenced=True)
    cpu = Thread(m, "cpu", CPU, (gen,))
    clearer = Thread(m, "clearer", CLEARER, (gen, pres, hazard, seen))
    m.small = {CLEARER: 1}
    m.field((CPU,), {CODE: "pc", BOOL: "handler", TIME: "stint since got handler_got slot path walks"})
    m.field((CPU, TIME), {TIME: "stale stale_stint first_hazard first_seen"})
    m.field((CLEARER,), {CODE: "ks policy", TIME: "kg clears"})
    m.field((CLEARER, CPU), {CODE: "about read_kind", TIME: "clearer_walks answered_walks read_stint"})

    def publish(x: Taken, c: Expr, kind: int, stint: Expr) -> None:
        releases = x.obeys("LeaveRelease")
        of = lambda time: time if releases else 0
        cpu.store(x, c, pres, (c,), False, kind=kind, hazard=of(x.hazard_last(c)), seen=of(x.seen_last(c)), walks=of(x.walks(c)),
            stint=stint)

    def publish_seen(x: Taken, c: Expr, to: Expr) -> None:
        cpu.store(x, c, seen, (c,), False, to=to, walks=x.walks(c) if x.obeys("SeenRelease") else 0, stint=x.stint(c))

    def publish_hazard(x: Taken, c: Expr, on: bool) -> None:
        releases, last = x.obeys("HazardRelease"), x.hazard_last(c)
        of = lambda time, before: later(time, before) if releases else before
        cpu.modify(x, c, hazard, (c,), False, False, on=on, seen=of(x.seen_last(c), x.hazard_seen(c, last)),
            walks=of(x.walks(c), x.hazard_walks(c, last)), stint=x.stint(c))

    @m.step("switch: publish Switching", c=CPU, pc=(AWAY, STORED), handler=False)
    def _(x, c):
        publish(x, c, SWITCHING, x.stint(c) + 1)
        x.put(c, stint=x.stint(c) + 1, since=x.pres_last(c) + 1)

    cpu.fence_step(m, "switch: fence", "SwitchFence", own=pres, c=CPU, pc=(STORED, FENCED), handler=False)

    cpu.load_step(m, "switch: load the generation", gen, None, "got", c=CPU, n=TIME, pc=(FENCED, READ), handler=False)

    @m.step("switch: load the root", c=CPU, pc=(READ, ROOT), handler=False)
    def _(x, c):
        x.put(c, path=x.got(c) if x.obeys("DiscardFreedTables") else x.slot(c), slot=x.got(c))

    @m.step("switch: publish what it has seen", c=CPU, pc=(ROOT, SEEN), handler=False)
    def _(x, c):
        x.set("path", c, to=x.slot(c))
        publish_seen(x, c, x.slot(c))
        x.set("first_seen", c, x.stint(c), to=x.seen_last(c) + 1)

    @m.step("switch: publish the hazard pointer", c=CPU, pc=(SEEN, ON_HAZARD), handler=False)
    def _(x, c):
        publish_hazard(x, c, True)
        x.set("first_hazard", c, x.stint(c), to=x.hazard_last(c) + 1)

    @m.step("publish Active", c=CPU, pc=({ON_HAZARD, RESUMED}, IN), handler=False)
    def _(x, c):
        publish(x, c, ACTIVE, x.stint(c))

    @m.step("walk page tables", c=CPU)
    def _(x, c):
        x.require(one_of(x.pc(c), *WALKING))
        x.set("walks", c, to=x.walks(c) + 1)
        x.put(c, ALL, where=lambda n: x.path(c) < n, stale=x.walks(c) + 1, stale_stint=x.stint(c))

    @m.step("enter lazy: publish what it has seen", c=CPU, pc=(IN, LAZY_SEEN), handler=False)
    def _(x, c):
        publish_seen(x, c, x.slot(c))

    @m.step("enter lazy: publish Lazy", c=CPU, pc=(LAZY_SEEN, IDLE), handler=False)
    def _(x, c):
        publish(x, c, LAZY, x.stint(c))

    @m.step("resume: publish Switching", c=CPU, pc=(IDLE, RESUMES), handler=False)
    def _(x, c):
        publish(x, c, SWITCHING, x.stint(c))

    @m.step("resume: load the generation, and catch up", c=CPU, n=TIME, pc=(RESUMES, RESUMED), handler=False)
    def _(x, c, n):
        cpu.load(x, c, gen, (), n, False)
        x.put(c, path=n, slot=n)

    @m.step("switch away: publish another space", c=CPU, pc=({IN, IDLE}, LEAVES), handler=False)
    def _(x, c):
        publish(x, c, ELSEWHERE, x.stint(c))

    m.moves("switch away: load another root", c=CPU, pc=(LEAVES, UNLOADED), handler=False)

    @m.step("switch away: publish what it has seen of the other space", c=CPU, n=TIME, pc=(UNLOADED, OTHER_SEEN), handler=False)
    def _(x, c, n):
        publish_seen(x, c, n)

    @m.step("switch away: replace the hazard pointer", c=CPU, pc=(OTHER_SEEN, AWAY), handler=False)
    def _(x, c):
        publish_hazard(x, c, False)

    @m.step("leave: load the kernel's root", c=CPU)
    def _(x, c):
        x.require(Or(And(Not(x.handler(c)), one_of(x.pc(c), IN, IDLE)), And(x.handler(c), x.pc(c) == IDLE,
            x.slot(c) < x.handler_got(c))))
        x.set("pc", c, to=QUITS)

    @m.step("leave: clear the hazard pointer", c=CPU, pc=(QUITS, CLEARED))
    def _(x, c):
        publish_hazard(x, c, False)

    @m.step("leave: publish Out", c=CPU, pc=(CLEARED, AWAY))
    def _(x, c):
        publish(x, c, ELSEWHERE, x.stint(c))

    @m.step("handler: begin a round, and load the generation", c=CPU, n=TIME, pc={AWAY, IN, IDLE}, handler=(False, True))
    def _(x, c, n):
        x.require(within(later(x.cpu_gen(c), x.bell_has_gen(c, x.bell_last(c))), n, x.gen_last))
        x.put(c, cpu_gen=n, handler_got=n)
        x.set("about", ALL, c, to=IN_ROUND, where=lambda k: x.about(k, c) == RUNG)

    @m.step("handler: catch up, if active", c=CPU, pc=IN, handler=True)
    def _(x, c):
        x.put(c, path=x.handler_got(c), slot=x.handler_got(c))

    @m.step("handler: answer", c=CPU, handler=(True, False))
    def _(x, c):
        x.require(Or(x.pc(c) == AWAY, And(one_of(x.pc(c), IN, IDLE), x.slot(c) >= x.handler_got(c))))
        x.put(ALL, c, where=lambda k: x.about(k, c) == IN_ROUND, about=ANSWERED, answered_walks=x.walks(c))

    @m.step("flush: unhook tables, and count", k=CLEARER, defers=BOOL, ks=(NEW, COUNTED))
    def _(x, k, defers):
        clearer.modify(x, k, gen, (), False, False)
        x.put(k, policy=If(defers, DEFER, INTERRUPT), kg=x.gen_last + 1, clears=x.gen_last + 1)

    @m.step("flush walkers: load the generation", k=CLEARER, n=TIME, ks=(NEW, COUNTED))
    def _(x, k, n):
        clearer.load(x, k, gen, (), n, False)
        x.put(k, policy=WALKERS, kg=n, clears=n)

    clearer.fence_step(m, "flush: fence", "FlushFence", k=CLEARER, ks=(COUNTED, SCANNING), policy={INTERRUPT, DEFER})
    clearer.fence_step(m, "flush walkers: fence", "FlushWalkersFence", k=CLEARER, ks=(COUNTED, SCANNING), policy=WALKERS)

    @m.step("scan: read a CPU's presence", k=CLEARER, c=CPU, t=TIME, ks=SCANNING, about=UNREAD)
    def _(x, k, c, t):
        clearer.load(x, k, pres, (c,), t, False)
        if x.obeys("PresenceAcquire"):
            x.put(k, c, clearer_hazard=later(x.clearer_hazard(k, c), x.pres_hazard(c, t)))
            x.put(k, c, clearer_seen=later(x.clearer_seen(k, c), x.pres_seen(c, t)))
            x.put(k, c, clearer_walks=later(x.clearer_walks(k, c), x.pres_walks(c, t)))
        kind = x.pres_kind(c, t)
        rings = Or(And(kind == SWITCHING, x.obeys("RingSwitching"), Or(x.policy(k) != WALKERS, x.obeys("InterruptWalkers"))),
            And(kind == ACTIVE, x.policy(k) != WALKERS))
        x.put(k, c, read_kind=kind, about=If(rings, CHOSEN, PRESENCE))

    @m.step("scan: read a hazard pointer", k=CLEARER, c=CPU, t=TIME, about=PRESENCE)
    def _(x, k, c, t):
        clearer.load(x, k, hazard, (c,), t, False)
        if x.obeys("HazardAcquire"):
            x.put(k, c, clearer_seen=later(x.clearer_seen(k, c), x.hazard_seen(c, t)))
            x.put(k, c, clearer_walks=later(x.clearer_walks(k, c), x.hazard_walks(c, t)))
        lazy = x.read_kind(k, c) == LAZY
        rings = And(x.policy(k) == INTERRUPT, Or(And(lazy, x.obeys("RingLazy")), And(Not(lazy), x.obeys("RingLeaving"))))
        waits = Or(x.policy(k) == WALKERS, And(x.policy(k) == DEFER, x.obeys("QuarantineTables")))
        x.put(k, c, about=If(x.hazard_on(c, t), If(rings, CHOSEN, If(waits, HAZARD, SKIPPED)), SKIPPED),
            read_stint=x.hazard_stint(c, t))

    @m.step("scan: read what a CPU has seen", k=CLEARER, c=CPU, t=TIME, about=HAZARD)
    def _(x, k, c, t):
        clearer.load(x, k, seen, (c,), t, False)
        if x.obeys("SeenAcquire"):
            x.set("clearer_walks", k, c, to=later(x.clearer_walks(k, c), x.seen_walks(c, t)))
        to, walks = x.seen_to(c, t), x.policy(k) == WALKERS
        x.set("clears", k, to=If(And(Not(walks), to < x.clears(k)), to, x.clears(k)))
        x.put(k, c, about=If(And(walks, to < x.kg(k), x.obeys("InterruptWalkers")), CHOSEN, SKIPPED),
            read_stint=x.seen_stint(c, t))

    @m.step("scan: ring a CPU", k=CLEARER, c=CPU, about=(CHOSEN, RUNG))
    def _(x, k, c):
        clearer.modify(x, k, bell, (c,), False, True)

    @m.step("wait: observe an answer", k=CLEARER, c=CPU, about=(ANSWERED, OBSERVED))
    def _(x, k, c):
        x.put(k, c, clearer_walks=later(x.clearer_walks(k, c), x.answered_walks(k, c)))

    @m.step("wait: return", k=CLEARER, ks=(SCANNING, DONE))
    def _(x, k):
        x.require(x.before.forall(lambda c: one_of(x.about(k, c), SKIPPED, OBSERVED), CPU))

    invariant(m)
    return m


def invariant(m: System) -> None:
    in_stint = lambda s, c: And(s.pc(c) >= STORED, s.pc(c) <= LEAVES)
    past_fence = lambda s, c: And(s.pc(c) >= FENCED, s.pc(c) <= LEAVES)
    walking = lambda s, c: And(s.pc(c) >= ROOT, s.pc(c) <= LEAVES)

    def clean(s: State, c: Expr, n: Expr) -> Expr:
        """What the CPU walks in this stint, now and later, is clean up to a generation."""
        return And(s.cpu_gen(c) >= n, Implies(s.pc(c) == READ, s.got(c) >= n), Implies(walking(s, c), s.path(c) >= n))

    @m.holds("ranges")
    def _(s: State) -> Expr:
        return And(
            s.gen_last >= 0, s.S_gen >= 0, s.S_gen <= s.gen_last,
            s.forall(lambda c: And(
                s.pc(c) >= AWAY, s.pc(c) <= CLEARED, Implies(s.handler(c), one_of(s.pc(c), AWAY, IN, IDLE, QUITS, CLEARED)),
                s.cpu_gen(c) <= s.gen_last, s.cpu_gen(c) >= 0, s.slot(c) >= 0, s.slot(c) <= s.cpu_gen(c), s.path(c) <= s.slot(c),
                s.walks(c) >= 0,
                s.stint(c) >= 0, s.pres_last(c) >= 0, s.hazard_last(c) >= 0, s.seen_last(c) >= 0, s.S_pres(c) >= 0,
                s.S_pres(c) <= s.pres_last(c), s.since(c) >= 0, s.since(c) <= s.pres_last(c),
                Implies(s.pc(c) == READ, And(s.got(c) <= s.cpu_gen(c), s.got(c) >= s.slot(c))),
                Implies(And(walking(s, c), s.pc(c) != ROOT), s.path(c) == s.slot(c)),
                Implies(s.handler(c), s.handler_got(c) <= s.cpu_gen(c)), Implies(And(s.handler(c), one_of(s.pc(c), IN, IDLE)),
                    s.handler_got(c) >= s.slot(c)),
                s.bell_last(c) >= 0, s.bell_has_gen(c, s.bell_last(c)) <= s.gen_last), CPU),
            s.forall(lambda k: And(s.ks(k) >= NEW, s.ks(k) <= DONE, s.policy(k) >= INTERRUPT, s.policy(k) <= WALKERS,
                s.clearer_gen(k) <= s.gen_last, s.clearer_gen(k) >= 0,
                Implies(s.ks(k) >= COUNTED, And(s.kg(k) <= s.clearer_gen(k), s.kg(k) >= 0, s.clears(k) <= s.kg(k))),
                Implies(s.ks(k) >= SCANNING, s.S_gen >= s.kg(k))), CLEARER),
            s.forall(lambda k, c: And(s.about(k, c) >= UNREAD, s.about(k, c) <= OBSERVED,
                Implies(s.ks(k) < SCANNING, s.about(k, c) == UNREAD), s.clearer_pres(k, c) >= 0,
                s.clearer_pres(k, c) <= s.pres_last(c), s.clearer_hazard(k, c) >= 0, s.clearer_hazard(k, c) <= s.hazard_last(c),
                s.clearer_seen(k, c) >= 0, s.clearer_seen(k, c) <= s.seen_last(c)), CLEARER, CPU))

    @m.holds("stale walks: those of an older path are stale for more generations")
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda c, n: And(s.stale(c, n) >= 0, s.stale(c, n) <= s.walks(c), s.stale_stint(c, n) >= 0,
                s.stale_stint(c, n) <= s.stint(c)), CPU, TIME),
            s.forall(lambda c, n, k: Implies(n <= k, And(s.stale(c, n) <= s.stale(c, k), s.stale_stint(c, n) <= s.stale_stint(c,
                k))), CPU, TIME, TIME))

    @m.holds("messages are of their stints, in order")
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda c: And(s.pres_stint(c, s.pres_last(c)) <= s.stint(c),
                s.hazard_stint(c, s.hazard_last(c)) <= s.stint(c), s.seen_stint(c, s.seen_last(c)) <= s.stint(c),
                Implies(in_stint(s, c), s.pres_stint(c, s.since(c)) == s.stint(c)), Implies(And(s.pc(c) >= STORED),
                s.pres_stint(c, s.pres_last(c)) == s.stint(c)), s.pres_stint(c, 0) == 0, s.hazard_stint(c, 0) == 0,
            s.seen_stint(c, 0) == 0), CPU),
            s.forall(lambda c, t, u: Implies(And(within(0, t, u), u <= s.pres_last(c)), s.pres_stint(c, t) <= s.pres_stint(c, u)),
                CPU, TIME, TIME),
            s.forall(lambda c, t, u: Implies(And(within(0, t, u), u <= s.hazard_last(c)),
                s.hazard_stint(c, t) <= s.hazard_stint(c, u)), CPU, TIME, TIME),
            s.forall(lambda c, t, u: Implies(And(within(0, t, u), u <= s.seen_last(c)), s.seen_stint(c, t) <= s.seen_stint(c, u)),
                CPU, TIME, TIME))

    @m.holds("presence other than Switching carries the stint's hazard pointer, and that what the CPU has seen")
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda c: And(
                Implies(And(s.pc(c) >= SEEN), And(s.seen_stint(c, s.first_seen(c, s.stint(c))) == s.stint(c),
                    within(0, s.first_seen(c, s.stint(c)), s.seen_last(c)))),
                Implies(And(s.pc(c) >= ON_HAZARD), And(s.hazard_stint(c, s.first_hazard(c, s.stint(c))) == s.stint(c),
                    within(0, s.first_hazard(c, s.stint(c)), s.hazard_last(c))))), CPU),
            s.forall(lambda c, t: Implies(And(within(0, t, s.pres_last(c)), s.pres_kind(c, t) != SWITCHING,
                s.pres_stint(c, t) >= 1), s.hazard_stint(c, s.pres_hazard(c, t)) >= s.pres_stint(c, t)), CPU, TIME),
            s.forall(lambda c, t: Implies(within(0, t, s.pres_last(c)), And(within(0, s.pres_hazard(c, t), s.hazard_last(c)),
                within(0, s.pres_seen(c, t), s.seen_last(c)))), CPU, TIME),
            s.forall(lambda c, t: Implies(within(0, t, s.hazard_last(c)), within(0, s.hazard_seen(c, t), s.seen_last(c))), CPU,
                TIME),
            s.forall(lambda c, t: Implies(And(within(0, t, s.hazard_last(c)), s.hazard_stint(c, t) >= 1),
                s.seen_stint(c, s.hazard_seen(c, t)) >= s.hazard_stint(c, t)), CPU, TIME))

    @m.holds("a hazard pointer elsewhere carries all walks of its stint and before")
    def _(s: State) -> Expr:
        return s.forall(lambda c, n, t: Implies(And(within(0, t, s.hazard_last(c)), Not(s.hazard_on(c, t)),
            s.stale_stint(c, n) <= s.hazard_stint(c, t)), s.stale(c, n) <= s.hazard_walks(c, t)), CPU, TIME, TIME)

    @m.holds("what a CPU has seen carries all walks that are stale for it")
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda c, n, t: Implies(And(within(0, t, s.seen_last(c)), n <= s.seen_to(c, t),
                s.stale_stint(c, n) <= s.seen_stint(c, t)), s.stale(c, n) <= s.seen_walks(c, t)), CPU, TIME, TIME),
            s.forall(lambda c, t: Implies(And(within(0, t, s.seen_last(c)), s.seen_stint(c, t) == s.stint(c), walking(s, c),
                s.pc(c) >= SEEN), s.seen_to(c, t) <= s.path(c)), CPU, TIME),
            s.forall(lambda c, t: Implies(And(within(0, t, s.seen_last(c)), s.pc(c) >= STORED, s.pc(c) <= ROOT),
                s.seen_stint(c, t) < s.stint(c)), CPU, TIME),
            s.forall(lambda c, t: Implies(And(within(0, t, s.hazard_last(c)), s.pc(c) >= STORED, s.pc(c) <= SEEN),
                s.hazard_stint(c, t) < s.stint(c)), CPU, TIME),
            s.forall(lambda c, t: Implies(And(within(0, t, s.hazard_last(c)), s.hazard_stint(c, t) == s.stint(c),
                s.pc(c) >= ON_HAZARD, s.pc(c) <= QUITS), s.hazard_on(c, t)), CPU, TIME),
            s.forall(lambda c, t: Implies(And(within(s.since(c), t, s.pres_last(c)), s.pc(c) >= STORED, s.pc(c) <= ON_HAZARD),
                s.pres_kind(c, t) == SWITCHING), CPU, TIME))

    @m.holds("a clearer and a CPU on its way in do not miss each other")
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda c: Implies(past_fence(s, c), s.S_pres(c) >= s.since(c)), CPU),
            s.forall(lambda k, c: Implies(And(s.ks(k) >= SCANNING, past_fence(s, c)), Or(s.clearer_pres(k, c) >= s.since(c),
                clean(s, c, s.kg(k)))), CLEARER, CPU),
            s.forall(lambda c, t, n: Implies(within(s.S_pres(c), t, s.pres_last(c)), s.stale_stint(c, n) <= s.pres_stint(c, t)),
                CPU, TIME, TIME),
            s.forall(lambda k, c, t: Implies(And(s.ks(k) >= SCANNING, within(s.clearer_pres(k, c), t, s.pres_last(c))),
                s.stale_stint(c, s.kg(k)) <= s.pres_stint(c, t)), CLEARER, CPU, TIME))

    @m.holds("a clearer reads hazard pointers and generations that are not older than the presence it has read")
    def _(s: State) -> Expr:
        stint = lambda k, c: s.pres_stint(c, s.clearer_pres(k, c))
        return And(
            s.forall(lambda k, c: Implies(one_of(s.about(k, c), PRESENCE, HAZARD),
                And(s.read_kind(k, c) == s.pres_kind(c, s.clearer_pres(k, c)), s.read_kind(k, c) != SWITCHING,
                s.hazard_stint(c, s.clearer_hazard(k, c)) >= stint(k, c))), CLEARER, CPU),
            s.forall(lambda k, c: Implies(s.about(k, c) == HAZARD, And(s.read_stint(k, c) >= stint(k, c),
                s.seen_stint(c, s.clearer_seen(k, c)) >= s.read_stint(k, c))), CLEARER, CPU),
            s.forall(lambda k, c: Implies(s.about(k, c) == SKIPPED, s.read_stint(k, c) >= stint(k, c)), CLEARER, CPU))

    @m.holds("a CPU that is skipped has walked, and will walk, nothing that is cleared")
    def _(s: State) -> Expr:
        return s.forall(lambda k, c: Implies(s.about(k, c) == SKIPPED, And(s.stale(c, s.clears(k)) <= s.clearer_walks(k, c),
            Implies(past_fence(s, c), clean(s, c, s.clears(k))))), CLEARER, CPU)

    @m.holds("a ring carries the clearer's generation, and its round catches up or leaves")
    def _(s: State) -> Expr:
        return s.forall(lambda k, c: And(
            Implies(s.about(k, c) == RUNG, s.bell_has_gen(c, s.bell_last(c)) >= s.kg(k)),
            Implies(s.about(k, c) == IN_ROUND, And(s.handler(c), s.handler_got(c) >= s.kg(k))),
            Implies(one_of(s.about(k, c), ANSWERED, OBSERVED), And(s.stale(c, s.kg(k)) <= s.answered_walks(k, c),
                s.cpu_gen(c) >= s.kg(k), Implies(past_fence(s, c), clean(s, c, s.kg(k))))),
            Implies(s.about(k, c) == OBSERVED, s.answered_walks(k, c) <= s.clearer_walks(k, c))), CLEARER, CPU)

    @m.holds("2: after the wait, no CPU has walked what is cleared without an order, or can", safety=True)
    def _(s: State) -> Expr:
        return s.forall(lambda k, c: Implies(s.ks(k) == DONE, And(one_of(s.about(k, c), SKIPPED, OBSERVED),
            s.stale(c, s.clears(k)) <= s.clearer_walks(k, c), Implies(walking(s, c), s.path(c) >= s.clears(k)))), CLEARER, CPU)
