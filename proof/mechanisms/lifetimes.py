"""The end of a space: marks, drops and references, for one space; and the list of dead spaces."""

from __future__ import annotations

from ..logic import ALL, BOOL, CODE, TIME, And, Expr, If, Implies, Not, Or, Sort, State, later, one_of, within
from ..counting import Census
from ..memory import Thread, Word
from ..system import System, Taken
from .bell import CPU

AGENT, SPACE = Sort("Agent"), Sort("Space")
"""The threads that retire and reap; and the spaces of the list."""
ELSEWHERE, ON, MARKED, ORPHANED = range(4)
"""A CPU's hazard pointer: elsewhere; the space; the dead space; the space that the CPU could not reclaim."""
OUT, LOADED, UNLOADED, IN_HANDLER, DROPS, ORPHANS, CLEARS = range(7)
"""Where a CPU's program is."""
ALIVE, MARKING, RETIRED = range(3)
NOT_YET, WITH_CPU, RECLAIMED = range(3)
"""What has become of the space."""


def build() -> System:
    """When the space is retired, no CPU uses it; some are lazy on it, and none comes back."""
    m = System("lifetimes", sizes={CPU: 2, AGENT: 2, TIME: 4})
    walks, users = Word(m, "walks", (CPU,)), Word(m, "users")
    hazard = Word(m, "hazard", (CPU,), {"state": CODE}, carries=(walks, users))
    refs = Word(m, "refs", values={"dead": BOOL, "count": TIME}, carries=(walks, users))
    cpu = Thread(m, "cpu", CPU, (walks, users))
    agent = Thread(m, "agent", AGENT, (walks, users))
    load, mark = "load the space, and publish the hazard pointer", "retire: mark a hazard pointer"
    orphan = [load, load, "retire: begin", mark, mark, "retire: drop the users' reference", "handler: load the kernel's root",
        "handler: drop a reference", "handler: load the kernel's root", "handler: drop a reference",
        "handler: orphan the hazard pointer"]
    m.routes = [[*orphan, "reap: clear an orphaned hazard pointer, and reclaim"],
        [*orphan, "replace its own orphaned hazard pointer, and reclaim"]]
    m.field((CPU,), {CODE: "pc", BOOL: "looked answered"})
    m.field((), {CODE: "phase", AGENT: "by"})
    # The CPUs that owe a drop: their number is what the references must count.
    owing = Census(m, "owing", CPU)
    m.field((), {TIME: "marked reclaims reclaimer_users", CODE: "outcome", CPU: "keeper"})
    m.field((CPU,), {TIME: "left_at reclaimer_walks"})

    def now(x: Taken | State, c: Expr) -> Expr:
        return x.hazard_state(c, x.hazard_last(c))

    def reclaim(x: Taken, thread: Thread, me: Expr, when: Expr, word: Word | None = None, at: tuple = (),
        acquires: bool = True) -> None:
        """Reclaims the space, on a thread that has joined the views of the newest message of a word."""
        def view(seen: Word, *i: Expr) -> Expr:
            own = thread.view(x, me, seen, *i)
            return later(own, word.get(x, f"has_{seen.name}", *at, word.last(x, *at), *i)) if word and acquires else own
        x.put(reclaims=If(when, x.reclaims + 1, x.reclaims), outcome=If(when, RECLAIMED, x.outcome))
        x.set("reclaimer_walks", ALL, to=lambda i: view(walks, i), where=lambda i: when)
        x.set("reclaimer_users", to=If(when, view(users), x.reclaimer_users))

    def replace(x: Taken, c: Expr, to: int) -> None:
        cpu.modify(x, c, hazard, (c,), acquire=False, release=x.obeys("HazardRelease"), state=to)
        x.set("left_at", c, to=x.hazard_last(c) + 1)

    @m.step("use the space", c=CPU, phase=ALIVE, pc=LOADED)
    def _(x, c):
        x.set("users_last", to=x.users_last + 1)

    @m.step("load the space, and publish the hazard pointer", c=CPU, pc=(OUT, LOADED), phase=ALIVE)
    def _(x, c):
        x.require(now(x, c) == ELSEWHERE)
        replace(x, c, ON)

    @m.step("walk the space's tables", c=CPU, pc={LOADED, IN_HANDLER})
    def _(x, c):
        cpu.store(x, c, walks, (c,), False)

    m.moves("drop: load another root", c=CPU, pc=(LOADED, UNLOADED))

    @m.step("drop: replace the hazard pointer", c=CPU, pc=UNLOADED)
    def _(x, c):
        replace(x, c, ELSEWHERE)
        x.set("pc", c, to=If(And(now(x, c) == MARKED, x.obeys("CheckMark")), DROPS, OUT))

    def drop(x: Taken, c: Expr, in_handler: bool) -> None:
        dead, count = x.refs_dead(x.refs_last), x.refs_count(x.refs_last)
        cpu.modify(x, c, refs, (), acquire=False, release=x.obeys("DropRefRelease"), dead=dead, count=count - 1)
        last, acquires = And(dead, count == 1), x.obeys("DropRefAcquire")
        owing.remove(x, c)
        if not in_handler:
            x.set("pc", c, to=OUT)
            reclaim(x, cpu, c, last, refs, (), acquires)
            return
        x.set("pc", c, to=If(last, ORPHANS, CLEARS))
        x.put(outcome=If(last, WITH_CPU, x.outcome), keeper=If(last, c, x.keeper))
        if acquires:
            x.set("cpu_walks", c, ALL, to=lambda i: later(x.cpu_walks(c, i), x.refs_has_walks(x.refs_last, i)),
                where=lambda i: last)
            x.set("cpu_users", c, to=If(last, later(x.cpu_users(c), x.refs_has_users(x.refs_last)), x.cpu_users(c)))

    @m.step("drop: drop a reference", c=CPU, pc=DROPS)
    def _(x, c):
        drop(x, c, in_handler=False)

    m.moves("handler: load the kernel's root", c=CPU, pc=(LOADED, IN_HANDLER))

    @m.step("handler: clear an unmarked hazard pointer", c=CPU, pc=(IN_HANDLER, OUT))
    def _(x, c):
        x.require(now(x, c) == ON)
        replace(x, c, ELSEWHERE)

    @m.step("handler: drop a reference", c=CPU, pc=IN_HANDLER)
    def _(x, c):
        x.require(now(x, c) == MARKED)
        drop(x, c, in_handler=True)

    @m.step("handler: orphan the hazard pointer", c=CPU, pc=(ORPHANS, OUT))
    def _(x, c):
        cpu.store(x, c, hazard, (c,), x.obeys("OrphanRelease"), state=ORPHANED)

    @m.step("handler: clear a marked hazard pointer", c=CPU, pc=(CLEARS, OUT))
    def _(x, c):
        replace(x, c, ELSEWHERE)

    @m.step("handler: answer a CPU that reaps", c=CPU, pc={OUT, LOADED}, phase=RETIRED)
    def _(x, c):
        if x.obeys("LeaveDeadSpace"):
            x.require(Not(And(x.pc(c) == LOADED, now(x, c) == MARKED)))
        x.set("answered", c, to=True)

    @m.step("replace its own orphaned hazard pointer, and reclaim", c=CPU, pc=OUT)
    def _(x, c):
        x.require(now(x, c) == ORPHANED)
        replace(x, c, ELSEWHERE)
        reclaim(x, cpu, c, True)

    @m.step("reap: clear an orphaned hazard pointer, and reclaim", a=AGENT, c=CPU)
    def _(x, a, c):
        x.require(now(x, c) == ORPHANED)
        agent.modify(x, a, hazard, (c,), acquire=False, release=False, state=ELSEWHERE)
        x.set("left_at", c, to=x.hazard_last(c) + 1)
        reclaim(x, agent, a, True, hazard, (c,), x.obeys("HazardAcquire"))

    @m.step("retire: begin", a=AGENT, phase=(ALIVE, MARKING))
    def _(x, a):
        # The caller promises that no CPU uses the space, and that all uses come before this call.
        x.put(by=a)
        x.set("agent_users", a, to=x.users_last)

    @m.step("retire: find a hazard pointer elsewhere", c=CPU, t=TIME, phase=MARKING, looked=(False, True))
    def _(x, c, t):
        # All uses come before this call, and so do the hazard pointers that name the space.
        x.require(now(x, c) == ELSEWHERE, within(x.left_at(c), t, x.hazard_last(c)))
        if x.obeys("HazardAcquire"):
            agent.join(x, x.by, hazard, (c,), t)

    @m.step("retire: mark a hazard pointer", c=CPU, phase=MARKING, looked=(False, True))
    def _(x, c):
        x.require(now(x, c) == ON)
        if x.obeys("MarkHazards"):
            agent.modify(x, x.by, hazard, (c,), acquire=False, release=False, state=MARKED)
            owing.add(x, c)
            x.set("marked", to=x.marked + 1)

    @m.step("retire: drop the users' reference", phase=(MARKING, RETIRED))
    def _(x):
        x.require(x.before.forall(lambda c: x.looked(c), CPU))
        count = x.refs_count(x.refs_last) + x.marked
        agent.modify(x, x.by, refs, (), acquire=False, release=x.obeys("RetireRelease"), dead=True, count=count)
        reclaim(x, agent, x.by, count == 0, refs, (), x.obeys("RetireAcquire"))

    @m.holds("the references count the CPUs that owe a drop")
    def _(s: State) -> Expr:
        dead, count = s.refs_dead(s.refs_last), s.refs_count(s.refs_last)
        return And(
            owing.invariant(s), s.refs_last >= 0, s.marked >= s.owing_count, count == If(dead, s.owing_count,
                s.owing_count - s.marked), dead == (s.phase == RETIRED), s.phase >= ALIVE, s.phase <= RETIRED,
            Implies(s.phase == ALIVE, And(s.marked == 0)))

    @m.holds("a CPU owes a drop from the mark on its hazard pointer until it drops")
    def _(s: State) -> Expr:
        return s.forall(lambda c: And(
            s.hazard_last(c) >= 0, now(s, c) >= ELSEWHERE, now(s, c) <= ORPHANED, s.pc(c) >= OUT, s.pc(c) <= CLEARS,
            s.owing_has(c) == Or(And(now(s, c) == MARKED, Not(one_of(s.pc(c), ORPHANS, CLEARS))), s.pc(c) == DROPS),
            Implies(one_of(s.pc(c), LOADED, UNLOADED, IN_HANDLER), one_of(now(s, c), ON, MARKED)),
            Implies(one_of(s.pc(c), OUT, DROPS), one_of(now(s, c), ELSEWHERE, ORPHANED)),
            Implies(one_of(s.pc(c), ORPHANS, CLEARS), now(s, c) == MARKED),
            Implies(s.pc(c) == DROPS, now(s, c) == ELSEWHERE)), CPU)

    @m.holds("a CPU that was looked at is marked, or has dropped the space")
    def _(s: State) -> Expr:
        return s.forall(lambda c: And(Implies(s.phase == ALIVE, And(Not(s.looked(c)), now(s, c) != MARKED)),
            Implies(s.phase == RETIRED, s.looked(c)), Implies(s.looked(c), now(s, c) != ON),
            Implies(Not(s.looked(c)), one_of(now(s, c), ON, ELSEWHERE))), CPU)

    @m.holds("views include the walks of the CPUs that have dropped")
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda c: And(s.walks_last(c) >= 0, s.cpu_walks(c, c) >= s.walks_last(c), s.left_at(c) <= s.hazard_last(c)),
                CPU),
            s.forall(lambda c, t: Implies(And(now(s, c) == ELSEWHERE, within(s.left_at(c), t, s.hazard_last(c))),
                s.hazard_has_walks(c, t, c) >= s.walks_last(c)), CPU, TIME),
            s.forall(lambda c: Implies(And(s.looked(c), Not(s.owing_has(c))),
                Or(And(s.phase == MARKING, s.agent_walks(s.by, c) >= s.walks_last(c)),
                s.refs_has_walks(s.refs_last, c) >= s.walks_last(c))), CPU),
            Implies(s.phase == MARKING, s.agent_users(s.by) >= s.users_last),
            Implies(s.phase == RETIRED, s.refs_has_users(s.refs_last) >= s.users_last))

    @m.holds("the CPU that keeps a dead space has joined all views")
    def _(s: State) -> Expr:
        keeps = lambda c: Or(s.pc(c) == ORPHANS, now(s, c) == ORPHANED)
        return And(
            s.forall(lambda c: keeps(c) == And(s.outcome == WITH_CPU, s.keeper == c), CPU),
            Implies(s.outcome == WITH_CPU, And(s.cpu_users(s.keeper) >= s.users_last,
                s.forall(lambda i: s.cpu_walks(s.keeper, i) >= s.walks_last(i), CPU))),
            Implies(And(s.outcome == WITH_CPU, now(s, s.keeper) == ORPHANED),
                And(s.hazard_has_users(s.keeper, s.hazard_last(s.keeper)) >= s.users_last,
                s.forall(lambda i: s.hazard_has_walks(s.keeper, s.hazard_last(s.keeper), i) >= s.walks_last(i), CPU))))

    @m.holds("2: the space is reclaimed once, after the last drop, and some CPU has it until then", safety=True)
    def _(s: State) -> Expr:
        return And(
            s.outcome >= NOT_YET, s.outcome <= RECLAIMED, s.reclaims == If(s.outcome == RECLAIMED, 1, 0),
            (s.outcome == NOT_YET) == Or(s.phase != RETIRED, s.owing_count > 0),
            s.forall(lambda c: Implies(s.answered(c), And(s.phase == RETIRED, Not(And(s.pc(c) == LOADED, now(s, c) == MARKED)))),
                CPU))

    @m.holds("2: all walks and uses of a space come before it is reclaimed", safety=True)
    def _(s: State) -> Expr:
        return Implies(s.outcome == RECLAIMED, And(s.reclaimer_users >= s.users_last,
            s.forall(lambda c: And(s.reclaimer_walks(c) >= s.walks_last(c), Not(one_of(s.pc(c), LOADED, IN_HANDLER))), CPU)))

    return m


def build_list() -> System:
    """The list of dead spaces: pushed by any thread, and taken as a whole by any thread."""
    m = System("list", sizes={SPACE: 2, AGENT: 2, TIME: 4})
    access = Word(m, "access", (SPACE,))
    top = Word(m, "top", carries=(access,))
    agent = Thread(m, "agent", AGENT, (access,))
    m.field((SPACE,), {CODE: "stage", AGENT: "by"})

    @m.step("reclaim: access the dead space", a=AGENT, p=SPACE)
    def _(x, a, p):
        x.require(Or(x.stage(p) == ALIVE, And(x.stage(p) == MARKING, x.by(p) == a)))
        x.put(p, stage=MARKING, by=a, access_last=x.access_last(p) + 1)
        x.set("agent_access", a, p, to=x.access_last(p) + 1)

    @m.step("push a space", a=AGENT, p=SPACE)
    def _(x, a, p):
        x.require(x.stage(p) == MARKING, x.by(p) == a)
        agent.modify(x, a, top, (), acquire=False, release=x.obeys("PushDeadRelease"))
        x.set("stage", p, to=RETIRED)

    @m.step("take all spaces", a=AGENT)
    def _(x, a):
        agent.modify(x, a, top, (), acquire=x.obeys("TakeDeadAcquire"), release=False)
        x.put(ALL, where=lambda p: x.stage(p) == RETIRED, by=a, stage=RETIRED + 1)

    @m.holds("all accesses to the spaces on the list are in the view of its newest message")
    def _(s: State) -> Expr:
        which = s.stage
        return s.forall(lambda p: And(s.access_last(p) >= 0,
            Implies(which(p) == MARKING, s.agent_access(s.by(p), p) >= s.access_last(p)),
            Implies(which(p) == RETIRED, s.top_has_access(s.top_last, p) >= s.access_last(p))), SPACE)

    @m.holds("2: a thread that has taken a space comes after all accesses to it", safety=True)
    def _(s: State) -> Expr:
        return s.forall(lambda p: Implies(s.stage(p) == RETIRED + 1, s.agent_access(s.by(p), p) >= s.access_last(p)), SPACE)

    return m
