"""Tags of one CPU: a slot for each tag, and tags that the CPU counts up. (Tags that CPUs share are in `asids.py`.)"""

from __future__ import annotations

from ..logic import ALL, BOOL, TIME, And, Expr, Implies, Not, Or, Sort, State, within
from ..system import System, Taken
from .bell import CPU

SPACE, TAG = Sort("Space"), Sort("Tag")


def build() -> System:
    """A space that has a slot keeps its tag; another one takes over any slot (the engine takes the oldest)."""
    m = System("slots", sizes={SPACE: 3, TAG: 2, TIME: 4})
    m.field((TAG,), {BOOL: "owned", SPACE: "owner"})
    m.field((TAG, SPACE), {BOOL: "holds"})
    m.field((), {BOOL: "is_loaded", TAG: "tag"})

    @m.step("switch to a space that has a slot", g=TAG, owned=True)
    def _(x, g):
        x.put(tag=g, is_loaded=True)

    @m.step("switch to a space that takes over a slot", g=TAG, p=SPACE)
    def _(x, g, p):
        x.require(x.before.forall(lambda h: Not(And(x.owned(h), x.owner(h) == p)), TAG))
        x.put(g, owned=True, owner=p)
        x.put(tag=g, is_loaded=True)
        if x.obeys("DiscardReusedTag"):
            x.set("holds", g, ALL, to=False)

    @m.step("hardware: cache a translation of the loaded space", is_loaded=True)
    def _(x):
        x.set("holds", x.tag, x.owner(x.tag), to=True)

    @m.step("load the kernel's root")
    def _(x):
        x.set("is_loaded", to=False)

    @m.step("come online: vacate the slots", keeps=BOOL, is_loaded=False)
    def _(x, keeps):
        x.set("owned", ALL, to=False)

    @m.holds("the loaded tag has a slot, and each space has one slot")
    def _(s: State) -> Expr:
        return And(Implies(s.is_loaded, s.owned(s.tag)),
            s.forall(lambda g, h: Implies(And(s.owned(g), s.owned(h), s.owner(g) == s.owner(h)), g == h), TAG, TAG))

    @m.holds("6: under a tag that has a slot, the TLB holds translations of its space only", safety=True)
    def _(s: State) -> Expr:
        return s.forall(lambda g, p: Implies(And(s.owned(g), s.holds(g, p)), p == s.owner(g)), TAG, SPACE)

    return m


def build_renamed() -> System:
    """Tags 1 to `count`, which the CPU counts up: a space gets a new tag after each flush of everything."""
    m = System("renamed", sizes={SPACE: 2, TIME: 5})
    m.field((), {TIME: "taken tag count_less_one", BOOL: "is_loaded", SPACE: "space"})
    m.field((SPACE,), {BOOL: "known", TIME: "slot_tag"})
    m.field((TIME, SPACE), {BOOL: "holds"})

    @m.step("boot, with any number of tags", n=TIME, taken=0, is_loaded=False)
    def _(x, n):
        x.require(n >= 0)
        x.set("count_less_one", to=n)

    @m.step("give a space the next tag", p=SPACE)
    def _(x, p):
        x.require(x.taken <= x.count_less_one)
        x.put(taken=x.taken + 1, tag=x.taken + 1)
        x.put(p, known=True, slot_tag=x.taken + 1)
        x.put(space=p, is_loaded=True)

    @m.step("give a space the first tag, when the count wraps around", p=SPACE)
    def _(x, p):
        x.require(x.taken > x.count_less_one)
        if x.obeys("FlushOnWrap"):
            x.set("holds", ALL, ALL, to=False)
        x.set("known", ALL, to=False)
        x.put(p, known=True, slot_tag=1)
        x.put(taken=1, tag=1, space=p, is_loaded=True)

    @m.step("switch to a space that has a tag", p=SPACE, known=True)
    def _(x, p):
        x.put(tag=x.slot_tag(p), space=p, is_loaded=True)

    @m.step("another space takes the slot", p=SPACE)
    def _(x, p):
        x.require(Or(Not(x.is_loaded), x.space != p))
        x.set("known", p, to=False)

    @m.step("hardware: cache a translation of the loaded space", is_loaded=True)
    def _(x):
        x.set("holds", x.tag, x.space, to=True)

    @m.holds("a tag that was not taken since the count wrapped around is empty")
    def _(s: State) -> Expr:
        return And(
            s.taken >= 0, s.count_less_one >= 0, Implies(s.is_loaded, And(s.known(s.space), s.slot_tag(s.space) == s.tag)),
            s.forall(lambda p: Implies(s.known(p), within(1, s.slot_tag(p), s.taken)), SPACE),
            s.forall(lambda p, q: Implies(And(s.known(p), s.known(q), s.slot_tag(p) == s.slot_tag(q)), p == q), SPACE, SPACE),
            s.forall(lambda g, p: Implies(g > s.taken, Not(s.holds(g, p))), TIME, SPACE))

    @m.holds("6: under a space's tag, the TLB holds translations of that space only", safety=True)
    def _(s: State) -> Expr:
        return s.forall(lambda p, q: Implies(And(s.known(p), s.holds(s.slot_tag(p), q)), p == q), SPACE, SPACE)

    return m


def build_recycled() -> System:
    """An ASID that goes from a dead space to the next one in one epoch. `asids` has these spaces as one.

    The cpumask of a dead space is read after all its registrations (contract of `retire`), so `ran` needs no views.
    """
    m = System("recycled", sizes={CPU: 3, SPACE: 3})
    m.field((CPU, SPACE), {BOOL: "ran holds"})
    m.field((SPACE,), {BOOL: "has_had"})
    m.field((CPU,), {BOOL: "is_loaded", SPACE: "loaded"})
    m.field((), {BOOL: "is_owned is_dead is_stocked needs_discard", SPACE: "owner", CPU: "keeper"})

    def give(x: Taken, p: Expr) -> None:
        x.require(Not(x.has_had(p)))
        x.set("has_had", p, to=True)
        x.put(is_owned=True, is_dead=False, owner=p)

    @m.step("take the ASID from a block", p=SPACE, is_owned=False, is_stocked=False)
    def _(x, p):
        give(x, p)

    @m.step("load the space", c=CPU, is_owned=True, is_dead=False)
    def _(x, c):
        x.set("ran", c, x.owner, to=True)
        discards = And(x.needs_discard, x.keeper == c)
        if x.obeys("DiscardReusedTag"):
            x.set("holds", c, ALL, to=False, where=lambda p: discards)
        x.put(c, is_loaded=True, loaded=x.owner)
        x.put(needs_discard=And(x.needs_discard, Not(discards)))

    @m.step("pin the space: empty the TLB", needs_discard=(True, False))
    def _(x):
        x.set("holds", x.keeper, ALL, to=False)

    @m.step("hardware: cache a translation of the loaded space", c=CPU, is_loaded=True)
    def _(x, c):
        x.set("holds", c, x.loaded(c), to=True)

    @m.step("load another root", c=CPU)
    def _(x, c):
        x.set("is_loaded", c, to=False)

    @m.step("retire the space", is_owned=True, needs_discard=False)
    def _(x):
        # A CPU that has taken the ASID for the space loads the space, pins it, or finds the epoch over; until then, it uses
        # the space.
        x.put(is_dead=True)

    @m.step("recycle the ASID of the dead space", c=CPU, is_owned=(True, False), is_dead=True, is_loaded=False)
    def _(x, c):
        if x.obeys("RecycleOwnTag"):
            x.require(x.before.forall(lambda d: Or(d == c, Not(x.ran(d, x.owner))), CPU))
        x.put(is_stocked=True, keeper=c)

    @m.step("give the ASID to the next space", p=SPACE, is_stocked=(True, False))
    def _(x, p):
        give(x, p)
        x.put(needs_discard=True)

    @m.holds("a space has the ASID once, and a CPU holds translations of what it ran")
    def _(s: State) -> Expr:
        return And(
            Implies(s.is_owned, And(s.has_had(s.owner), Not(s.is_stocked))), Implies(s.needs_discard, And(s.is_owned,
            Not(s.is_dead))), Implies(s.is_dead, s.has_had(s.owner)),
            s.forall(lambda c, p: And(Implies(s.ran(c, p), s.has_had(p)), Implies(s.holds(c, p), s.ran(c, p))), CPU, SPACE),
            s.forall(lambda c: Implies(s.is_loaded(c), And(s.is_owned, s.loaded(c) == s.owner, s.ran(c, s.owner))), CPU))

    @m.holds("what a TLB holds of a dead space, it drops before it loads the next one")
    def _(s: State) -> Expr:
        return And(
            Implies(Not(Or(s.is_owned, s.is_stocked)), s.forall(lambda c, p: Not(s.holds(c, p)), CPU, SPACE)),
            s.forall(lambda c, p: Implies(And(s.is_owned, s.holds(c, p), p != s.owner), And(s.needs_discard, s.keeper == c)), CPU,
                SPACE),
            s.forall(lambda c, p: Implies(And(s.is_stocked, s.holds(c, p)), s.keeper == c), CPU, SPACE),
            s.forall(lambda c: Implies(And(s.needs_discard, s.keeper == c), Not(s.is_loaded(c))), CPU))

    @m.holds("6: under a recycled ASID, the TLB holds translations of the loaded space only", safety=True)
    def _(s: State) -> Expr:
        return s.forall(lambda c, p: Implies(And(s.is_loaded(c), s.holds(c, p)), p == s.loaded(c)), CPU, SPACE)

    return m
