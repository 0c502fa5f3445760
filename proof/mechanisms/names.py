"""The ASID that a flush names in a broadcast: of one space, whose ASID changes when epochs end.

`asids.py` has how ASIDs are given. Here, a name is a number that grows, and other spaces are elsewhere.
"""

from __future__ import annotations

from ..logic import ALL, BOOL, CODE, TIME, And, Expr, If, Implies, Not, Or, State, later, one_of, within
from ..memory import Thread, Word, append, changes_tables
from ..system import System
from .bell import CPU, FLUSH
from .tags import TAG

AWAY, CAME, PROPOSED, FENCED, CONFIRMED, ALLOCATES, CHOSE, LOADED, ON, LEAVES, STORED, LEFT = range(12)
NEW, CHANGED, ORDERED, NAMED, DONE = range(5)
UNREAD, COVERED, LEAVING = range(3)


def build() -> System:
    m = System("names", sizes={CPU: 2, FLUSH: 1, TIME: 5})
    m.small = {TIME: 4}
    tables = Word(m, "tables", fenced=True)
    pres = Word(m, "pres", (CPU,), {"on": BOOL, "visit": TIME})
    tag = Word(m, "tag", values={"name": TIME, "epoch": TIME, "proposed": BOOL}, carries=(tables, pres), fenced=True)
    Word(m, "chosen", (CPU,), {"on": BOOL, "pres": TIME})
    cpu = Thread(m, "cpu", CPU, (tables, pres, tag))
    flush = Thread(m, "flush", FLUSH, (tables, pres, tag))
    m.field((CPU,), {CODE: "pc", TIME: "at visit off_at name tlb new_epoch", BOOL: "root"})
    # `active_tag`: whether it names this space's ASID, its epoch, and what it carries; `chosen_tag`.
    m.field((CPU,), {BOOL: "active_on", TIME: "active_epoch active_pres active_chosen"})
    m.field((CPU, CPU), {BOOL: "scanned"})
    m.field((TIME,), {TIME: "proposed_at"})
    m.field((FLUSH,), {CODE: "fs", TIME: "fv named", BOOL: "uncounted"})
    m.field((FLUSH, CPU), {CODE: "about", TIME: "read_visit"})
    word = lambda x, c, value: getattr(x, f"tag_{value}")(x.at(c))
    same = lambda x, c: And(*(word(x, c, value) == getattr(x, f"tag_{value}")(x.tag_last) for value in tag.values))

    def publish(x, c, is_on: bool) -> None:
        cpu.store(x, c, pres, (c,), False, on=is_on, visit=x.visit(c))

    def choose(x, c, is_on: bool) -> None:
        """Stores `chosen_tag`. The barrier before has released the presence."""
        append(x, "chosen", (c,), on=is_on, pres=x.cpu_pres(c, c))

    @m.step("switch: publish Switching, and fence", c=CPU, pc=(AWAY, CAME))
    def _(x, c):
        x.set("visit", c, to=x.visit(c) + 1)
        cpu.store(x, c, pres, (c,), False, on=False, visit=x.visit(c) + 1)

    @m.step("switch: load the space's ASID", c=CPU, t=TIME, is_over=BOOL, pc=CAME)
    def _(x, c, t, is_over):
        cpu.load(x, c, tag, (), t, x.obeys("AsidAcquire"))
        x.put(c, at=t, pc=If(Or(is_over, x.tag_name(t) == 0), ALLOCATES, If(x.tag_proposed(t), PROPOSED, CONFIRMED)), new_epoch=0)
        x.set("scanned", c, ALL, to=False)

    cpu.fence_step(m, "switch: fence before it confirms", "NewAsidFence", c=CPU, pc=(PROPOSED, FENCED))

    @m.step("switch: confirm the ASID", c=CPU, pc=(FENCED, CAME))
    def _(x, c):
        x.require(same(x, c))
        cpu.modify(x, c, tag, (), acquire=False, release=True, name=word(x, c, "name"), epoch=word(x, c, "epoch"), proposed=False)

    m.moves("switch: begin again", c=CPU, pc=({PROPOSED, FENCED, CONFIRMED, ALLOCATES}, CAME))

    @m.step("allocate: begin, in a later epoch", c=CPU, e=TIME, pc=ALLOCATES, new_epoch=0)
    def _(x, c, e):
        x.require(e > word(x, c, "epoch"))
        x.set("new_epoch", c, to=e)

    def scan(x, c, d, on) -> None:
        x.require(x.pc(c) == ALLOCATES, x.new_epoch(c) > 0, Not(x.scanned(c, d)), x.active_on(d) == on)
        x.require(Or(x.active_epoch(d) < x.new_epoch(c), And(x.active_epoch(d) == x.new_epoch(c))))
        x.set("active_epoch", d, to=x.new_epoch(c))
        x.set("scanned", c, d, to=True)

    @m.step("allocate: seal the word of a CPU that has another ASID", c=CPU, d=CPU)
    def _(x, c, d):
        scan(x, c, d, False)
        if x.obeys("ActiveTagAcquire"):
            x.set("cpu_pres", c, d, to=later(x.cpu_pres(c, d), x.active_pres(d)))

    @m.step("allocate: seal the word of a CPU that has this ASID, and has chosen another", c=CPU, d=CPU, t=TIME)
    def _(x, c, d, t):
        scan(x, c, d, True)
        acquires = x.obeys("ActiveTagAcquire")
        x.require((x.active_chosen(d) if acquires else 0) <= t, t <= x.chosen_last(d), Not(x.chosen_on(d, t)))
        if x.obeys("ChosenTagAcquire"):
            x.set("cpu_pres", c, d, to=later(x.cpu_pres(c, d), x.chosen_pres(d, t)))

    @m.step("allocate: propose a new ASID", c=CPU, pc=(ALLOCATES, CAME))
    def _(x, c):
        x.require(x.new_epoch(c) > 0, same(x, c), x.before.forall(lambda d: x.scanned(c, d), CPU))
        cpu.modify(x, c, tag, (), acquire=False, release=x.obeys("AsidRelease"), name=x.new_epoch(c), epoch=x.new_epoch(c),
            proposed=True)
        x.set("proposed_at", x.new_epoch(c), to=x.tag_last + 1)

    @m.step("allocate: keep the ASID", c=CPU, pc=(ALLOCATES, CAME))
    def _(x, c):
        x.require(x.new_epoch(c) > 0, same(x, c), word(x, c, "name") > 0, Not(word(x, c, "proposed")))
        cpu.modify(x, c, tag, (), acquire=False, release=True, name=word(x, c, "name"), epoch=x.new_epoch(c), proposed=False)

    @m.step("choose: exchange its own word", c=CPU, pc=(CONFIRMED, CHOSE))
    def _(x, c):
        x.require(x.active_epoch(c) <= word(x, c, "epoch"))
        choose(x, c, True)
        x.put(c, active_on=True, active_epoch=word(x, c, "epoch"))
        if x.obeys("ActiveTagRelease"):
            x.put(c, active_pres=x.cpu_pres(c, c), active_chosen=x.chosen_last(c) + 1)

    @m.step("switch: load the root", c=CPU, pc=(CHOSE, LOADED))
    def _(x, c):
        x.put(c, tlb=If(x.name(c) == word(x, c, "name"), x.tlb(c), x.cpu_tables(c)), name=word(x, c, "name"), root=True)

    @m.step("switch: publish Active", c=CPU, pc=(LOADED, ON))
    def _(x, c):
        publish(x, c, True)

    @m.step("leave: publish Switching, and fence", c=CPU, pc=(ON, LEAVES))
    def _(x, c):
        publish(x, c, False)
        x.put(c, off_at=x.pres_last(c) + 1)

    @m.step("leave: store that it has chosen another ASID", c=CPU, pc=(LEAVES, STORED))
    def _(x, c):
        choose(x, c, False)

    @m.step("leave: exchange its own word", c=CPU, e=TIME, pc=(STORED, LEFT))
    def _(x, c, e):
        x.require(e >= x.active_epoch(c))
        x.put(c, active_on=False, active_epoch=e)
        if x.obeys("ActiveTagRelease"):
            x.put(c, active_pres=x.cpu_pres(c, c), active_chosen=x.chosen_last(c))

    @m.step("leave: load another root", c=CPU, pc=(LEFT, AWAY))
    def _(x, c):
        x.put(c, root=False)

    changes_tables(m, "flush: change the tables", f=FLUSH, fs=(NEW, CHANGED))

    flush.fence_step(m, "flush: fence", "FlushFence", f=FLUSH, fs=(CHANGED, ORDERED))

    @m.step("flush that is not counted: fence", f=FLUSH, fs=(CHANGED, ORDERED))
    def _(x, f):
        x.put(f, uncounted=True)
        if x.obeys("UncountedFence"):
            flush.fence(x, f)

    @m.step("flush: load the space's ASID", f=FLUSH, t=TIME, fs=(ORDERED, NAMED))
    def _(x, f, t):
        flush.load(x, f, tag, (), t, x.obeys("BroadcastAsidAcquire"))
        x.put(f, named=x.tag_name(t))

    @m.step("flush: read a CPU's presence", f=FLUSH, c=CPU, t=TIME, fs=NAMED, about=UNREAD)
    def _(x, f, c, t):
        flush.load(x, f, pres, (c,), t, False)
        x.put(f, c, about=If(x.pres_on(c, t), COVERED, LEAVING), read_visit=x.pres_visit(c, t))

    @m.step("flush: broadcast, and wait", f=FLUSH, fs=(NAMED, DONE))
    def _(x, f):
        x.require(x.before.forall(lambda c: x.about(f, c) != UNREAD, CPU))
        x.set("tlb", ALL, to=lambda c: later(x.tlb(c), x.fv(f)), where=lambda c: x.name(c) == x.named(f))
        # The tables were published before, for the walks of every CPU. Only a flush that no CPU can miss relies on that.
        x.set("cpu_tables", ALL, to=lambda c: later(x.cpu_tables(c), x.fv(f)),
            where=lambda c: Or(x.name(c) == x.named(f), x.uncounted(f)))

    on_it = lambda s, c: And(s.pc(c) >= CHOSE)
    of = lambda s, c: If(s.pc(c) == CHOSE, word(s, c, "name"), s.name(c))
    left = lambda s, c: s.pc(c) >= LEAVES

    @m.holds("ranges")
    def _(s: State) -> Expr:
        return And(
            s.tables_last >= 0, within(0, s.S_tables, s.tables_last), s.tag_last >= 0, within(0, s.S_tag, s.tag_last),
            s.forall(lambda c: And(AWAY <= s.pc(c), s.pc(c) <= LEFT, s.visit(c) >= 0, s.pres_last(c) >= 0, s.chosen_last(c) >= 0,
                s.cpu_pres(c, c) == s.pres_last(c), 0 <= s.cpu_tables(c), s.cpu_tables(c) <= s.tables_last, 0 <= s.cpu_tag(c),
                s.cpu_tag(c) <= s.tag_last,
                within(0, s.at(c), s.cpu_tag(c)), s.new_epoch(c) >= 0, within(0, s.tlb(c), s.cpu_tables(c)), 0 <= s.name(c),
                s.active_epoch(c) >= 0, within(0, s.active_chosen(c), s.chosen_last(c)),
                within(0, s.active_pres(c), s.pres_last(c)),
                s.root(c) == (s.pc(c) >= LOADED), s.active_on(c) == And(s.pc(c) >= CHOSE, s.pc(c) <= STORED),
                s.off_at(c) <= s.pres_last(c)), CPU),
            s.forall(lambda t: Implies(within(0, t, s.tag_last), And(0 <= s.tag_name(t), s.tag_name(t) <= s.tag_epoch(t),
                s.tag_name(t) <= s.tag_name(s.tag_last), s.tag_epoch(t) <= s.tag_epoch(s.tag_last),
                s.tag_has_tables(t) <= s.tables_last,
                Implies(s.tag_proposed(t), And(s.tag_name(t) > 0, s.tag_name(t) == s.tag_epoch(t))),
                within(0, s.proposed_at(s.tag_name(t)), t),
                Implies(s.tag_name(t) > 0, s.tag_name(s.proposed_at(s.tag_name(t))) == s.tag_name(t)))), TIME),
            s.forall(lambda c, t: Implies(within(0, t, s.chosen_last(c)), s.chosen_pres(c, t) <= s.pres_last(c)), CPU, TIME),
            s.forall(lambda f: And(within(NEW, s.fs(f), DONE), within(0, s.flush_tag(f), s.tag_last),
                s.flush_tables(f) <= s.tables_last, Implies(s.fs(f) >= CHANGED, And(0 < s.fv(f), s.fv(f) <= s.flush_tables(f))),
                Implies(s.fs(f) >= ORDERED, s.fv(f) <= s.S_tables)), FLUSH),
            s.forall(lambda t, c: Implies(within(0, t, s.tag_last), s.tag_has_pres(t, c) <= s.pres_last(c)), TIME, CPU),
            s.forall(lambda c, d: s.cpu_pres(c, d) <= s.pres_last(d), CPU, CPU),
            s.forall(lambda f, c: And(within(0, s.flush_pres(f, c), s.pres_last(c)),
                Implies(s.fs(f) < NAMED, s.about(f, c) == UNREAD)), FLUSH, CPU))

    @m.holds("names grow")
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda t, u: Implies(And(within(0, t, u), u <= s.tag_last), And(s.tag_name(t) <= s.tag_name(u),
                s.tag_epoch(t) <= s.tag_epoch(u),
                Implies(s.tag_name(u) > s.tag_name(t), s.tag_name(u) > s.tag_epoch(t)),
                Implies(And(s.tag_epoch(u) == s.tag_epoch(t), s.tag_proposed(u)), s.tag_proposed(t)))), TIME, TIME),
            s.forall(lambda t, u: Implies(And(within(0, t, s.tag_last), within(0, u, s.tag_last), s.tag_name(t) > 0,
                u >= s.proposed_at(s.tag_name(t))), s.tag_name(u) >= s.tag_name(t)), TIME, TIME),
            s.forall(lambda c: And(
                Implies(one_of(s.pc(c), PROPOSED, FENCED, CONFIRMED, CHOSE), word(s, c, "name") > 0),
                Implies(one_of(s.pc(c), PROPOSED, FENCED), word(s, c, "proposed")), Implies(one_of(s.pc(c), CONFIRMED, CHOSE),
                    Not(word(s, c, "proposed"))),
                Implies(And(s.pc(c) == ALLOCATES, s.new_epoch(c) > 0), s.new_epoch(c) > word(s, c, "epoch")),
                s.name(c) <= s.tag_name(s.tag_last), Implies(s.name(c) > 0, And(s.tag_name(s.proposed_at(s.name(c))) == s.name(c),
                    s.proposed_at(s.name(c)) <= s.S_tag, s.proposed_at(s.name(c)) >= 0)), Implies(s.root(c), s.name(c) > 0)),
                CPU))

    @m.holds("a flush names an ASID, or all that use it come after the flush's barrier")
    def _(s: State) -> Expr:
        knows = lambda f, n, view: Implies(s.fs(f) >= ORDERED, Or(s.flush_tag(f) >= s.proposed_at(n), view >= s.fv(f)))
        return And(
            s.forall(lambda t: Implies(And(within(0, t, s.tag_last), Not(s.tag_proposed(t)), s.tag_name(t) > 0),
                s.S_tag >= s.proposed_at(s.tag_name(t))), TIME),
            s.forall(lambda f, t: Implies(And(within(0, t, s.tag_last), Not(s.tag_proposed(t)), s.tag_name(t) > 0),
                knows(f, s.tag_name(t), s.tag_has_tables(t))), FLUSH, TIME),
            s.forall(lambda c: Implies(s.pc(c) == FENCED, s.S_tag >= s.proposed_at(word(s, c, "name"))), CPU),
            s.forall(lambda f, c: And(Implies(one_of(s.pc(c), FENCED, CONFIRMED, CHOSE),
                knows(f, word(s, c, "name"), s.cpu_tables(c))), Implies(s.name(c) > 0, knows(f, s.name(c), s.tlb(c)))), FLUSH,
            CPU))

    @m.holds("a CPU's presence")
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda c, t: Implies(within(0, t, s.pres_last(c)), And(s.pres_visit(c, t) <= s.visit(c),
                Implies(And(s.pc(c) >= LEAVES, t >= s.off_at(c)), Not(s.pres_on(c, t))),
                Implies(And(s.pres_on(c, t), s.pres_visit(c, t) == s.visit(c)), Or(s.pc(c) >= ON, s.pc(c) == AWAY)))), CPU, TIME),
            s.forall(lambda c, t: Implies(And(on_it(s, c), within(s.active_chosen(c), t, s.chosen_last(c)),
                Not(s.chosen_on(c, t))), And(left(s, c), s.pc(c) >= STORED, s.chosen_pres(c, t) >= s.off_at(c))), CPU, TIME),
            s.forall(lambda c: Implies(s.pc(c) == LEFT, s.active_pres(c) >= s.off_at(c)), CPU),
            s.forall(lambda c: Implies(s.pc(c) == STORED, And(Not(s.chosen_on(c, s.chosen_last(c))),
                s.chosen_pres(c, s.chosen_last(c)) >= s.off_at(c))), CPU))

    @m.holds("an ASID that replaces another one carries the presence of the CPUs that leave")
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda c, t: Implies(And(on_it(s, c), within(0, t, s.tag_last), s.tag_name(t) > of(s, c)),
                And(left(s, c), s.tag_has_pres(t, c) >= s.off_at(c))), CPU, TIME),
            s.forall(lambda c, d: Implies(And(s.pc(c) == ALLOCATES, s.scanned(c, d)),
                And(s.new_epoch(c) > 0, s.active_epoch(d) >= s.new_epoch(c), Implies(And(on_it(s, d), same(s, c)),
                And(left(s, d), s.cpu_pres(c, d) >= s.off_at(d))))), CPU, CPU),
            s.forall(lambda c, t: Implies(And(within(0, t, s.tag_last), s.tag_name(t) > s.active_epoch(c)), s.tag_name(t) == 0),
                CPU, TIME))

    @m.holds("a flush that names another ASID finds the CPU leaving")
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda f, c: Implies(And(s.fs(f) >= NAMED, s.fs(f) < DONE, s.root(c)),
                Or(s.named(f) == s.name(c), s.tlb(c) >= s.fv(f), And(left(s, c), s.flush_pres(f, c) >= s.off_at(c)))), FLUSH,
            CPU),
            s.forall(lambda f: Implies(s.fs(f) >= NAMED, s.named(f) == s.tag_name(s.flush_tag(f))), FLUSH),
            s.forall(lambda f, c: Implies(s.about(f, c) == COVERED,
                And(Implies(s.read_visit(f, c) == s.visit(c), Or(s.pc(c) >= ON, s.pc(c) == AWAY)),
                s.read_visit(f, c) <= s.visit(c), Implies(And(s.root(c), s.read_visit(f, c) == s.visit(c), s.fs(f) < DONE),
                Or(s.named(f) == s.name(c), s.tlb(c) >= s.fv(f))))), FLUSH, CPU))

    @m.holds("1: a broadcast reaches all that a CPU that it finds on the space has cached", safety=True)
    def _(s: State) -> Expr:
        return s.forall(lambda f, c: Implies(And(s.fs(f) == DONE, s.about(f, c) == COVERED, s.root(c),
            s.read_visit(f, c) == s.visit(c)), s.tlb(c) >= s.fv(f)), FLUSH, CPU)

    @m.holds("after a broadcast that is not counted, what is older is under an ASID that the space has no more")
    def _(s: State) -> Expr:
        return s.forall(lambda f, c: Implies(And(s.fs(f) == DONE, s.uncounted(f)),
            And(s.cpu_tables(c) >= s.fv(f), Or(s.name(c) == 0, s.name(c) < s.named(f), s.tlb(c) >= s.fv(f)))), FLUSH, CPU)

    @m.holds("1: after a broadcast that is not counted, no CPU on the space has cached anything older", safety=True)
    def _(s: State) -> Expr:
        return s.forall(lambda f, c: Implies(And(s.fs(f) == DONE, s.uncounted(f), s.pc(c) == ON), s.tlb(c) >= s.fv(f)),
            FLUSH, CPU)

    own = {"c": 0}
    seal = lambda d: ("allocate: seal the word of a CPU that has another ASID", {"d": d})
    load = lambda t: ("switch: load the space's ASID", {"t": t, "is_over": False})
    m.routes.append([
        ("switch: publish Switching, and fence", own), ("switch: load the space's ASID", {"t": 0}),
        ("allocate: begin, in a later epoch", {"e": 1}), seal(0), seal(1), "allocate: propose a new ASID", load(1),
        "switch: fence before it confirms", "switch: confirm the ASID", load(2),
        "choose: exchange its own word", "switch: load the root", "switch: publish Active", "leave: publish Switching, and fence",
        "leave: store that it has chosen another ASID",
        ("switch: publish Switching, and fence", {"c": 1}), ("switch: load the space's ASID", {"t": 2, "is_over": True}),
        ("allocate: begin, in a later epoch", {"e": 2}),
        ("allocate: seal the word of a CPU that has this ASID, and has chosen another", {"d": 0}), seal(1),
        "allocate: propose a new ASID"])
    return m


def build_list() -> System:
    """The list of ASIDs that are unavailable in an epoch: written under a lock, and read by CPUs that do not take it.

    What a CPU reserves in an epoch does not change, and lists are complete in the order of their epochs: both by `asids`.
    """
    m = System("unavailable", sizes={CPU: 2, TAG: 1, TIME: 6})
    listed = Word(m, "listed", values={"epoch": TIME})
    bit = Word(m, "bit", (TAG,), {"in": BOOL}, carries=(listed,))
    cpu = Thread(m, "cpu", CPU, (listed, bit))
    m.field((TIME, TAG), {BOOL: "reserved", TIME: "listed_bit"})
    m.field((TIME,), {BOOL: "begun"})
    m.field((), {CODE: "writer", CPU: "by", TIME: "e top zero"})
    m.field((TAG,), {BOOL: "cleared done"})
    m.field((CPU,), {CODE: "reader", TIME: "of at read_at", TAG: "wanted", BOOL: "saw"})

    @m.step("a CPU reserves an ASID in an epoch", k=TIME, a=TAG, begun=False)
    def _(x, k, a):
        x.require(k > 0)
        x.set("reserved", k, a, to=True)

    @m.step("list: mark it incomplete", c=CPU, k=TIME, writer=(0, 1))
    def _(x, c, k):
        x.require(k > x.top)
        cpu.store(x, c, listed, (), False, epoch=0)
        x.put(by=c, e=k, zero=x.listed_last + 1)
        x.put(ALL, cleared=False, done=False)
        x.set("begun", k, to=True)
        x.set("listed_bit", x.listed_last + 1, ALL, to=0)

    def write(x, a, value: bool) -> None:
        # The barrier after the first store releases it.
        cpu.store(x, x.by, bit, (a,), x.obeys("ListFence"), **{"in": value})

    @m.step("list: clear an ASID", a=TAG, writer=1, cleared=(False, True))
    def _(x, a):
        write(x, a, False)
        x.put(a, done=Not(x.reserved(x.e, a)))

    @m.step("list: set an ASID", a=TAG, writer=1, cleared=True, done=(False, True))
    def _(x, a):
        write(x, a, True)

    @m.step("list: mark it complete", writer=(1, 0))
    def _(x):
        x.require(x.before.forall(lambda a: x.done(a), TAG))
        cpu.store(x, x.by, listed, (), False, epoch=x.e)
        releases = x.obeys("ListRelease")
        x.set("listed_bit", x.listed_last + 1, ALL, to=lambda a: x.cpu_bit(x.by, a) if releases else 0)
        x.put(top=x.e)

    m.moves("list: find the epoch over", writer=(1, 0))

    @m.step("read: find the list complete", c=CPU, a=TAG, t=TIME, reader=(0, 1))
    def _(x, c, a, t):
        x.require(x.listed_epoch(t) > 0, within(x.cpu_listed(c), t, x.listed_last))
        x.set("cpu_listed", c, to=t)
        if x.obeys("ListAcquire"):
            x.set("cpu_bit", c, ALL, to=lambda b: later(x.cpu_bit(c, b), x.listed_bit(t, b)))
        x.put(c, of=x.listed_epoch(t), at=t, wanted=a)

    @m.step("read: load an ASID's word", c=CPU, t=TIME, reader=(1, 2))
    def _(x, c, t):
        cpu.load(x, c, bit, (x.wanted(c),), t, x.obeys("ListAcquire"))
        x.put(c, read_at=t, saw=x.bit_in(x.wanted(c), t))

    @m.step("read: find the list still complete", c=CPU, t=TIME, reader=(2, 3))
    def _(x, c, t):
        x.require(x.listed_epoch(t) == x.of(c))
        cpu.load(x, c, listed, (), t, False)

    @m.step("read: begin again", c=CPU)
    def _(x, c):
        x.require(x.reader(c) > 0)
        x.set("reader", c, to=0)

    @m.holds("lists are complete in the order of their epochs")
    def _(s: State) -> Expr:
        return And(
            s.listed_last >= 0, s.top >= 0, one_of(s.writer, 0, 1),
            Implies(s.writer == 1, And(s.e > s.top, s.zero == s.listed_last, s.zero > 0, s.listed_epoch(s.zero) == 0,
                s.begun(s.e), s.cpu_listed(s.by) >= s.zero)),
            s.forall(lambda t: Implies(within(0, t, s.listed_last), within(0, s.listed_epoch(t), s.top)), TIME),
            s.forall(lambda t, u: Implies(And(0 <= t, t < u, u <= s.listed_last, s.listed_epoch(t) > 0, s.listed_epoch(u) > 0),
                s.listed_epoch(t) < s.listed_epoch(u)), TIME, TIME),
            s.forall(lambda t: Implies(And(within(0, t, s.listed_last), s.listed_epoch(t) > 0), s.begun(s.listed_epoch(t))),
                TIME),
            s.forall(lambda c: And(within(0, s.cpu_listed(c), s.listed_last), within(0, s.reader(c), 3),
                Implies(s.reader(c) > 0, And(within(0, s.at(c), s.cpu_listed(c)), s.of(c) > 0,
                s.listed_epoch(s.at(c)) == s.of(c)))), CPU),
            s.forall(lambda a: s.bit_last(a) >= 0, TAG), s.forall(lambda c, a: within(0, s.cpu_bit(c, a), s.bit_last(a)), CPU,
                TAG))

    @m.holds("a word that a list does not carry carries that the list is over")
    def _(s: State) -> Expr:
        over = lambda t, a, u: Or(s.bit_has_listed(a, u) > t, Implies(s.reserved(s.listed_epoch(t), a), s.bit_in(a, u)))
        return And(
            s.forall(lambda t, a: Implies(within(0, t, s.listed_last), within(0, s.listed_bit(t, a), s.bit_last(a))), TIME, TAG),
            s.forall(lambda a, u: Implies(within(0, u, s.bit_last(a)), s.bit_has_listed(a, u) <= s.listed_last), TAG, TIME),
            s.forall(lambda a: And(Implies(And(s.writer == 1, s.done(a), s.reserved(s.e, a)), And(s.bit_in(a, s.bit_last(a)))),
                Implies(And(s.writer == 1, s.cleared(a)), And(s.cpu_bit(s.by, a) == s.bit_last(a))),
                Implies(And(s.writer == 1, s.cleared(a), Not(s.done(a))), s.reserved(s.e, a)),
                Implies(And(s.writer == 1, s.done(a)), s.cleared(a))), TAG),
            s.forall(lambda t, a, u: Implies(And(within(0, t, s.listed_last), s.listed_epoch(t) > 0,
                within(s.listed_bit(t, a), u, s.bit_last(a))), over(t, a, u)), TIME, TAG, TIME),
            s.forall(lambda c: And(Implies(s.reader(c) == 1, s.cpu_bit(c, s.wanted(c)) >= s.listed_bit(s.at(c), s.wanted(c))),
                Implies(And(s.reader(c) == 2, s.cpu_listed(c) <= s.at(c), s.reserved(s.of(c), s.wanted(c))), s.saw(c))), CPU))

    @m.holds("6: a CPU that finds the list complete finds each ASID that is reserved", safety=True)
    def _(s: State) -> Expr:
        return s.forall(lambda c: Implies(And(s.reader(c) == 3, s.reserved(s.of(c), s.wanted(c))), s.saw(c)), CPU)

    return m
