"""The CPU mask of a space, and how a trim moves it to a fresh set. A flush watches for one CPU, any one.

A CPU that has registered is found by each flush that comes after the CPU's last barrier, whatever phase the flush reads;
all other flushes are in the CPU's view.
"""

from __future__ import annotations

from ..logic import ALL, BOOL, CODE, TIME, And, Expr, If, Implies, Not, Or, State, later, one_of, within
from ..memory import append
from ..system import System, Taken
from .bell import CPU, FLUSH

AWAY, STORED, FENCED, PHASED, WANTS, INSERTED, REFENCED, REGISTERED, IN, LEAVES = range(10)
STABLE, CLEARING, TRIMMING = range(3)
IDLE, CLEARS, ANNOUNCED, LOOKS = range(4)
NEW, COUNTED, SCANNING, READ_PHASE, READ_OLD, READ, DONE = range(7)

# The parts of the invariant. Steps name those that they rely on.
PHASES = "phases follow each other"
CLEARED = "bits are cleared for the next epoch only"
CARRIED = "a cleared bit carries the phase in which the set was cleared"
CARRIES = "a phase carries the clearing of the set in which CPUs register"
PRESENCE = "presence and hazard pointer of a CPU that has come"
BARRIERS = "views at barriers"
NAMES = "all that can be read of the set names its members"
EACH_PHASE = "in each phase since a member came, all that can be read names it"
MEMBER = "a CPU that has registered is a member, and a trim keeps it"
FOUND = "a flush has found a member that it comes after, or will find another phase"


def build() -> System:
    m = System("mask", sizes={CPU: 1, FLUSH: 1, TIME: 6}, basis=(PHASES, CLEARED, PRESENCE, BARRIERS))
    m.field((), {TIME: "gen_last S_gen"})
    # The phase: for each of its messages, the epoch, the kind, the set that flushes read, and the views of bits.
    m.field((), {TIME: "phase_last S_phase"})
    m.field((TIME,), {TIME: "phase_epoch", CODE: "phase_kind phase_set"})
    m.field((TIME, CODE, CPU), {TIME: "phase_bit"})
    # A CPU's bit in the two sets: whether it is in, the epoch of the set's last clearing, the view of the phase.
    m.field((CODE, CPU), {TIME: "bit_last S_bit"})
    m.field((CODE, CPU, TIME), {BOOL: "bit_in", TIME: "bit_epoch bit_phase"})
    m.field((CPU,), {CODE: "pc", TIME: "pres_last S_pres hazard_last since hazard_since cpu_gen cpu_phase at slot", BOOL: "has_slot"})
    m.field((CPU, TIME), {BOOL: "pres_on hazard_on", TIME: "pres_hazard"})
    m.field((CPU, CODE), {TIME: "cpu_bit"})
    # The trim that is under way, if one is.
    m.field((), {CODE: "trim", TIME: "trim_at"})
    m.field((CODE, CPU), {TIME: "trim_bit"})
    m.field((CPU,), {TIME: "trim_pres trim_hazard", BOOL: "cleared looked keeps"})
    m.field((FLUSH,), {CODE: "fs", TIME: "fg flush_phase flush_at", CPU: "watched", BOOL: "found"})
    m.field((FLUSH, CODE), {TIME: "flush_bit"})
    # Ghosts: views at a CPU's last barrier; its last own insertion; the phase from which it was a member.
    m.field((CPU,), {TIME: "fenced_phase began"})
    m.field((CPU, CODE), {TIME: "fenced_bit own"})
    # Ghosts: the CPU was no member at its last barrier; the trim's barrier came after all that makes it a member.
    m.field((CPU,), {BOOL: "outside sure"})
    steps_of_cpu(m)
    steps_of_trim(m)
    steps_of_flush(m)
    invariant(m)
    return m


def registers_in(x, p: Expr) -> tuple[Expr, Expr]:
    """The set and the epoch in which CPUs register in a phase."""
    trims = x.phase_kind(p) == TRIMMING
    return If(trims, 1 - x.phase_set(p), x.phase_set(p)), x.phase_epoch(p) + If(trims, 1, 0)


def cpu_fence(x: Taken, c: Expr) -> None:
    for q in (0, 1):
        view = later(x.cpu_bit(c, q), x.S_bit(q, c))
        x.put(c, q, cpu_bit=view, fenced_bit=view)
        x.set("S_bit", q, c, to=view)
    phase, gen = later(x.cpu_phase(c), x.S_phase), later(x.cpu_gen(c), x.S_gen)
    x.put(S_phase=phase, S_gen=gen)
    x.put(c, cpu_phase=phase, fenced_phase=phase, cpu_gen=gen, S_pres=later(x.S_pres(c), x.pres_last(c)))


def load_phase(x: Taken, c: Expr, p: Expr) -> None:
    x.require(within(x.cpu_phase(c), p, x.phase_last))
    x.set("cpu_phase", c, to=p)
    if x.obeys("PhaseAcquire"):
        for q in (0, 1):
            x.set("cpu_bit", c, q, to=later(x.cpu_bit(c, q), x.phase_bit(p, q, c)))


def insert(x: Taken, c: Expr, q: Expr) -> Expr:
    """Adds a CPU to a set."""
    last = x.bit_last(q, c)
    return append(x, "bit", (q, c), **{"in": True}, epoch=x.bit_epoch(q, c, last), phase=x.bit_phase(q, c, last))


def steps_of_cpu(m: System) -> None:
    @m.step("switch: publish Switching", c=CPU, pc=(AWAY, STORED))
    def _(x, c):
        x.put(c, since=append(x, "pres", (c,), on=True), sure=False)

    @m.step("switch: fence", CARRIES, c=CPU, pc=(STORED, FENCED))
    def _(x, c):
        old, trims = x.phase_set(x.phase_last), x.phase_kind(x.phase_last) == TRIMMING
        in_ = lambda q: x.bit_in(q, c, x.bit_last(q, c))
        x.set("outside", c, to=Not(If(trims,
            Or(in_(1 - old), And(in_(old), Or(x.trim == ANNOUNCED, And(x.keeps(c), Not(x.looked(c)))))), in_(old))))
        if x.obeys("SwitchFence"):
            cpu_fence(x, c)

    @m.step("register: load the phase", MEMBER, FOUND, c=CPU, p=TIME, pc=FENCED)
    def _(x, c, p):
        load_phase(x, c, p)
        x.put(c, at=p, pc=If(And(x.has_slot(c), x.slot(c) == p), REGISTERED, PHASED))

    @m.step("register: read its own bit", CARRIES, NAMES, MEMBER, FOUND, c=CPU, t=TIME, pc=PHASED)
    def _(x, c, t):
        q, _ = registers_in(x, x.at(c))
        x.require(within(x.cpu_bit(c, q), t, x.bit_last(q, c)))
        x.set("cpu_bit", c, q, to=t)
        is_in = x.bit_in(q, c, t)
        x.put(c, pc=If(is_in, REGISTERED, WANTS), slot=If(is_in, x.at(c), x.slot(c)), has_slot=Or(is_in, x.has_slot(c)))

    @m.step("register: insert itself", NAMES, c=CPU, pc=(WANTS, INSERTED))
    def _(x, c):
        q, _ = registers_in(x, x.at(c))
        at = insert(x, c, q)
        x.put(c, q, cpu_bit=at, own=at)
        newest, epoch = x.phase_last, registers_in(x, x.at(c))[1]
        timely = Or(registers_in(x, newest)[1] == epoch, x.phase_epoch(newest) == epoch)
        late = If(And(x.phase_kind(newest) == CLEARING, q != x.phase_set(newest)), newest + 1, newest)
        x.put(c, began=If(timely, x.at(c), late))

    @m.step("register: fence", c=CPU, pc=(INSERTED, REFENCED))
    def _(x, c):
        if x.obeys("RegisterFence"):
            cpu_fence(x, c)

    @m.step("register: load the phase again", MEMBER, FOUND, c=CPU, p=TIME, pc=REFENCED)
    def _(x, c, p):
        load_phase(x, c, p)
        same = registers_in(x, p)[1] == registers_in(x, x.at(c))[1]
        done = same if x.obeys("RecheckPhase") else True
        x.put(c, at=p, slot=If(done, p, x.slot(c)), has_slot=Or(done, x.has_slot(c)), pc=If(done, REGISTERED, WANTS))

    @m.step("publish the hazard pointer", c=CPU, pc=(REGISTERED, IN))
    def _(x, c):
        x.put(c, hazard_since=append(x, "hazard", (c,), on=True))

    @m.step("leave: publish another presence", c=CPU, pc=(IN, LEAVES))
    def _(x, c):
        append(x, "pres", (c,), on=False, hazard=x.hazard_last(c))

    @m.step("leave: replace the hazard pointer", c=CPU, pc=(LEAVES, AWAY))
    def _(x, c):
        append(x, "hazard", (c,), on=False)


def next_phase(x: Taken, epoch: Expr, kind: int, set_: Expr, carries: bool) -> None:
    at = append(x, "phase", (), epoch=epoch, kind=kind, set=set_)
    for q in (0, 1):
        x.set("phase_bit", at, q, ALL, to=lambda c, q=q: later(x.phase_bit(at - 1, q, c),
            x.trim_bit(q, c)) if carries else x.phase_bit(at - 1, q, c))


def steps_of_trim(m: System) -> None:
    fresh_set = lambda x: 1 - x.phase_set(x.phase_last)

    @m.step("trim: begin to clear the fresh set", NAMES, trim=(IDLE, CLEARS))
    def _(x):
        # The phase was loaded with acquire before, and the exchange finds it unchanged.
        last = x.phase_last
        x.require(x.phase_kind(last) == STABLE)
        for q in (0, 1):
            x.set("trim_bit", q, ALL, to=lambda c, q=q: x.phase_bit(last, q, c) if x.obeys("PhaseAcquire") else 0)
        x.put(ALL, trim_pres=0, trim_hazard=0, cleared=False, looked=False, keeps=False)
        next_phase(x, x.phase_epoch(last), CLEARING, x.phase_set(last), False)

    @m.step("trim: clear a bit of the fresh set", c=CPU, trim=CLEARS, cleared=(False, True))
    def _(x, c):
        at = append(x, "bit", (fresh_set(x), c), **{"in": False}, epoch=x.phase_epoch(x.phase_last) + 1,
            phase=x.phase_last if x.obeys("ClearRelease") else 0)
        x.set("trim_bit", fresh_set(x), c, to=at)

    @m.step("trim: announce the trim", CARRIES, NAMES, MEMBER, trim=(CLEARS, ANNOUNCED))
    def _(x):
        x.require(x.before.forall(lambda c: x.cleared(c), CPU))
        last = x.phase_last
        next_phase(x, x.phase_epoch(last), TRIMMING, x.phase_set(last), x.obeys("TrimmingRelease"))
        x.put(trim_at=last + 1)

    @m.step("trim: fence", CARRIES, NAMES, trim=(ANNOUNCED, LOOKS))
    def _(x):
        if x.obeys("TrimFence"):
            for q in (0, 1):
                x.set("trim_bit", q, ALL, to=lambda c, q=q: later(x.trim_bit(q, c), x.S_bit(q, c)))
            x.set("trim_pres", ALL, to=lambda c: later(x.trim_pres(c), x.S_pres(c)))
            x.set("S_phase", to=later(x.S_phase, x.trim_at))
        old = x.phase_set(x.phase_last)
        x.set("sure", ALL, to=lambda c: And(x.pc(c) >= FENCED, x.bit_in(old, c, x.bit_last(old, c)), x.S_pres(c) >= x.since(c),
            x.S_bit(old, c) >= x.own(c, old)))

    @m.step("trim: look at a CPU", CARRIES, c=CPU, t=TIME, u=TIME, h=TIME, trim=LOOKS, looked=False, keeps=False)
    def _(x, c, t, u, h):
        old = x.phase_set(x.phase_last)
        x.require(within(x.trim_bit(old, c), t, x.bit_last(old, c)), within(x.trim_pres(c), u, x.pres_last(c)),
            h <= x.hazard_last(c), 0 <= h)
        x.require(later(x.trim_hazard(c), x.pres_hazard(c, u)) <= h)
        x.set("trim_bit", old, c, to=t)
        x.set("trim_pres", c, to=u)
        present = And(x.pres_on(c, u), x.obeys("KeepPresent"))
        keeps = And(x.bit_in(old, c, t), Or(present, And(x.hazard_on(c, h), x.obeys("KeepHazards"))))
        x.put(c, keeps=keeps, outside=And(x.outside(c), Not(keeps)), looked=Not(keeps))

    @m.step("trim: insert a CPU into the fresh set", NAMES, c=CPU, trim=LOOKS, keeps=True, looked=(False, True))
    def _(x, c):
        x.set("trim_bit", fresh_set(x), c, to=insert(x, c, fresh_set(x)))

    @m.step("trim: end", NAMES, trim=(LOOKS, IDLE))
    def _(x):
        x.require(x.before.forall(lambda c: x.looked(c), CPU))
        last = x.phase_last
        next_phase(x, x.phase_epoch(last) + 1, STABLE, 1 - x.phase_set(last), x.obeys("TrimRelease"))


def steps_of_flush(m: System) -> None:
    def read_bit(x: Taken, f: Expr, q: Expr, t: Expr) -> Expr:
        c = x.watched(f)
        x.require(within(x.flush_bit(f, q), t, x.bit_last(q, c)))
        x.set("flush_bit", f, q, to=t)
        if x.obeys("ScanAcquire"):
            x.set("flush_phase", f, to=later(x.flush_phase(f), x.bit_phase(q, c, t)))
        return x.bit_in(q, c, t)

    def load(x: Taken, f: Expr, p: Expr) -> None:
        x.require(within(x.flush_phase(f), p, x.phase_last))
        x.set("flush_phase", f, to=p)
        if x.obeys("PhaseAcquire"):
            for q in (0, 1):
                x.set("flush_bit", f, q, to=later(x.flush_bit(f, q), x.phase_bit(p, q, x.watched(f))))
        x.put(f, flush_at=p, found=False, fs=READ_PHASE)

    @m.step("flush: count", f=FLUSH, c=CPU, fs=(NEW, COUNTED))
    def _(x, f, c):
        x.set("watched", f, to=c)
        x.set("gen_last", to=x.gen_last + 1)
        x.put(f, fg=x.gen_last + 1)

    @m.step("flush: fence", f=FLUSH, fs=(COUNTED, SCANNING))
    def _(x, f):
        if x.obeys("FlushFence"):
            x.set("S_gen", to=later(x.S_gen, x.fg(f)))
            x.set("flush_phase", f, to=later(x.flush_phase(f), x.S_phase))
            for q in (0, 1):
                x.set("flush_bit", f, q, to=later(x.flush_bit(f, q), x.S_bit(q, x.watched(f))))

    @m.step("flush: load the phase", f=FLUSH, p=TIME, fs=SCANNING)
    def _(x, f, p):
        load(x, f, p)

    @m.step("flush: read the set", CARRIED, EACH_PHASE, MEMBER, f=FLUSH, t=TIME, fs=READ_PHASE)
    def _(x, f, t):
        at = x.flush_at(f)
        is_in = read_bit(x, f, x.phase_set(at), t)
        x.put(f, found=is_in, fs=If(x.phase_kind(at) == TRIMMING, READ_OLD, READ))

    @m.step("flush: read the fresh set", CARRIED, f=FLUSH, t=TIME, fs=(READ_OLD, READ))
    def _(x, f, t):
        is_in = read_bit(x, f, 1 - x.phase_set(x.flush_at(f)), t)
        x.put(f, found=Or(x.found(f), is_in))

    @m.step("flush: find the phase unchanged", MEMBER, FOUND, f=FLUSH, fs=(READ, DONE))
    def _(x, f):
        if x.obeys("RecheckScan"):
            x.require(x.flush_phase(f) <= x.flush_at(f))

    @m.step("flush: find another phase", f=FLUSH, p=TIME, fs=READ)
    def _(x, f, p):
        x.require(p != x.flush_at(f))
        load(x, f, p)


def invariant(m: System) -> None:
    P, E, K, Q = (lambda s: s.phase_last), (lambda s, p: s.phase_epoch(p)), (lambda s, p: s.phase_kind(p)), (lambda s, p: s.phase_set(p))
    began = lambda s, c: s.began(c)
    now = lambda s, q, c: s.bit_in(q, c, s.bit_last(q, c))
    trims = lambda s: K(s, P(s)) == TRIMMING

    def member(s: State, c: Expr) -> Expr:
        old = Q(s, P(s))
        return Or(now(s, old, c), And(trims(s), now(s, 1 - old, c)))

    def kept(s: State, c: Expr) -> Expr:
        """A member, and one that a trim under way will keep."""
        old = Q(s, P(s))
        must = Or(And(s.trim == ANNOUNCED, s.S_pres(c) >= s.since(c), s.S_bit(old, c) >= s.own(c, old)),
            And(s.trim == LOOKS, Not(s.looked(c)), Or(s.keeps(c), s.sure(c))))
        return If(trims(s), Or(now(s, 1 - old, c), And(now(s, old, c), must)), now(s, old, c))

    def fine(s: State, c: Expr, q: Expr, epoch: Expr, p: Expr) -> Expr:
        """What can be read of a set in a phase, by those that come after the CPU's insertion, names the CPU."""
        return s.forall(lambda t: Implies(And(s.own(c, q) <= t, within(s.phase_bit(p, q, c), t, s.bit_last(q, c))),
            Or(s.bit_in(q, c, t), s.bit_epoch(q, c, t) > epoch)), TIME)

    def good(s: State, c: Expr, p: Expr) -> Expr:
        one = fine(s, c, Q(s, p), E(s, p), p)
        return If(K(s, p) == TRIMMING, Or(one, fine(s, c, 1 - Q(s, p), E(s, p) + 1, p)), one)

    @m.holds(PHASES)
    def _(s: State) -> Expr:
        return And(
            P(s) >= 0, s.S_phase >= 0, s.S_phase <= P(s), s.S_gen <= s.gen_last, K(s, 0) == STABLE, s.trim >= IDLE,
            s.trim <= LOOKS,
            (s.trim == IDLE) == (K(s, P(s)) == STABLE), (s.trim == CLEARS) == (K(s, P(s)) == CLEARING),
            Implies(s.trim >= ANNOUNCED, s.trim_at == P(s)), Implies(s.trim == LOOKS, s.S_phase >= P(s)),
            s.forall(lambda p: And(Or(Q(s, p) == 0, Q(s, p) == 1), K(s, p) >= STABLE, K(s, p) <= TRIMMING, E(s, p) >= 0), TIME),
            s.forall(lambda p, r: Implies(And(0 <= p, p < r, r <= P(s)),
                And(E(s, p) <= E(s, r), Implies(E(s, p) == E(s, r), And(Q(s, p) == Q(s, r), K(s, p) < K(s, r))),
                Implies(E(s, r) == E(s, p) + 1, Q(s, r) == 1 - Q(s, p)))), TIME, TIME),
            s.S_phase >= 3 * E(s, P(s)) - 1,
            s.forall(lambda p: Implies(within(0, p, P(s)), p == 3 * E(s, p) + K(s, p)), TIME))

    @m.holds(CLEARED)
    def _(s: State) -> Expr:
        return And(*(And(
            s.forall(lambda c: And(s.bit_last(q, c) >= 0, s.S_bit(q, c) >= 0, s.S_bit(q, c) <= s.bit_last(q, c), s.own(c, q) >= 0,
                within(s.own(c, q), s.cpu_bit(c, q), s.bit_last(q, c)), s.fenced_bit(c, q) <= s.S_bit(q, c),
                s.fenced_bit(c, q) >= 0, s.trim_bit(q, c) >= 0, s.trim_bit(q, c) <= s.bit_last(q, c)), CPU),
            s.forall(lambda c: And(
                Implies(q == Q(s, P(s)), s.bit_epoch(q, c, s.bit_last(q, c)) == E(s, P(s))),
                Implies(q != Q(s, P(s)), And(Implies(Or(trims(s), And(s.trim == CLEARS, s.cleared(c))),
                    s.bit_epoch(q, c, s.bit_last(q, c)) == E(s, P(s)) + 1),
                Implies(Or(s.trim == IDLE, And(s.trim == CLEARS, Not(s.cleared(c)))), s.bit_epoch(q, c, s.bit_last(q, c)) <= E(s,
                    P(s)))))), CPU),
            s.forall(lambda c, t, u: Implies(And(within(0, t, u), u <= s.bit_last(q, c)),
                And(s.bit_epoch(q, c, t) <= s.bit_epoch(q, c, u), s.bit_epoch(q, c, t) >= 0)), CPU, TIME, TIME),
            s.forall(lambda c, t, u: Implies(And(within(0, t, u), u <= s.bit_last(q, c), s.bit_epoch(q, c, t) == s.bit_epoch(q, c,
                u), s.bit_in(q, c, t)), s.bit_in(q, c, u)), CPU, TIME, TIME),
            s.forall(lambda c, t: Implies(within(0, t, s.bit_last(q, c)), And(s.bit_phase(q, c, t) <= P(s))), CPU, TIME),
            s.forall(lambda c, p: Implies(within(0, p, P(s)), within(0, s.phase_bit(p, q, c), s.bit_last(q, c))), CPU,
                TIME)) for q in (0, 1)))

    @m.holds(CARRIED)
    def _(s: State) -> Expr:
        return And(*(And(
            s.forall(lambda c, t, p: Implies(And(within(0, t, s.bit_last(q, c)), within(0, p, P(s)), Q(s, p) == q,
                s.bit_epoch(q, c, t) > E(s, p)), s.bit_phase(q, c, t) > p), CPU, TIME, TIME),
            s.forall(lambda c, t, p: Implies(And(within(0, t, s.bit_last(q, c)), within(0, p, P(s)), Q(s, p) != q,
                K(s, p) == TRIMMING, s.bit_epoch(q, c, t) > E(s, p) + 1), s.bit_phase(q, c, t) > p), CPU, TIME,
            TIME)) for q in (0, 1)))

    @m.holds(CARRIES)
    def _(s: State) -> Expr:
        return And(
            *(s.forall(lambda c, p, q=q: Implies(And(within(0, p, P(s)), Q(s, p) == q),
                s.bit_epoch(q, c, s.phase_bit(p, q, c)) >= E(s, p)), CPU, TIME) for q in (0, 1)),
            *(s.forall(lambda c, p, q=q: Implies(And(within(0, p, P(s)), Q(s, p) == 1 - q, K(s, p) == TRIMMING),
                s.bit_epoch(q, c, s.phase_bit(p, q, c)) >= E(s, p) + 1), CPU, TIME) for q in (0, 1)),
            *(s.forall(lambda c, q=q: Implies(And(s.trim != IDLE, Q(s, P(s)) == q),
                And(s.phase_bit(P(s), q, c) <= s.trim_bit(q, c), Implies(Or(trims(s), s.cleared(c)),
                s.bit_epoch(1 - q, c, s.trim_bit(1 - q, c)) == E(s, P(s)) + 1))), CPU) for q in (0, 1)))

    @m.holds(PRESENCE)
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda c: And(s.pc(c) >= AWAY, s.pc(c) <= LEAVES, s.pres_last(c) >= 0, s.hazard_last(c) >= 0,
                s.S_pres(c) >= 0, s.S_pres(c) <= s.pres_last(c), s.trim_pres(c) <= s.pres_last(c), s.trim_pres(c) >= 0,
                s.since(c) >= 0, s.since(c) <= s.pres_last(c), s.cpu_gen(c) <= s.gen_last, s.cpu_phase(c) >= 0,
                s.cpu_phase(c) <= P(s), s.fenced_phase(c) >= 0, s.fenced_phase(c) <= s.S_phase, s.trim_hazard(c) == 0,
                Implies(s.pc(c) >= FENCED, And(s.S_pres(c) >= s.since(c), s.fenced_phase(c) <= s.cpu_phase(c))),
                Implies(s.pc(c) >= IN, s.hazard_since(c) <= s.hazard_last(c))), CPU),
            s.forall(lambda c, t: Implies(And(s.pc(c) >= STORED, within(s.since(c), t, s.pres_last(c))),
                Or(s.pres_on(c, t), And(s.pc(c) == LEAVES, s.pres_hazard(c, t) >= s.hazard_since(c)))), CPU, TIME),
            s.forall(lambda c, t: Implies(And(s.pc(c) >= IN, within(s.hazard_since(c), t, s.hazard_last(c))), s.hazard_on(c, t)),
                CPU, TIME))

    @m.holds(BARRIERS)
    def _(s: State) -> Expr:
        settled = lambda c: Not(one_of(s.pc(c), WANTS, INSERTED, REFENCED))
        return And(
            s.forall(lambda c: And(Implies(s.pc(c) >= PHASED, And(within(0, s.at(c), s.cpu_phase(c)), s.at(c) >= 0)),
                Implies(one_of(s.pc(c), PHASED, WANTS), s.at(c) >= s.fenced_phase(c)),
                Implies(s.pc(c) == REFENCED, s.at(c) <= s.fenced_phase(c)),
                Implies(settled(c), And(began(s, c) <= s.fenced_phase(c))),
                Implies(s.has_slot(c), within(0, s.slot(c), s.cpu_phase(c)))), CPU),
            *(s.forall(lambda c, q=q: And(Implies(s.pc(c) == PHASED, s.cpu_bit(c, q) >= s.phase_bit(s.at(c), q, c)),
                Implies(s.own(c, q) > 0, s.bit_in(q, c, s.own(c, q)))), CPU) for q in (0, 1)),
            *(s.forall(lambda c, q=q: Implies(s.pc(c) != INSERTED, s.own(c, q) <= s.fenced_bit(c, q)), CPU) for q in (0, 1)),
            s.forall(lambda f: And(s.fs(f) >= NEW, s.fs(f) <= DONE,
                Implies(s.fs(f) <= COUNTED, And(s.flush_bit(f, 0) == 0, s.flush_bit(f, 1) == 0)),
                Implies(s.fs(f) >= COUNTED, s.fg(f) <= s.gen_last), Implies(s.fs(f) >= SCANNING, s.S_gen >= s.fg(f)),
                s.flush_phase(f) >= 0, s.flush_phase(f) <= P(s), s.flush_bit(f, 0) >= 0, s.flush_bit(f, 1) >= 0,
                s.flush_bit(f, 0) <= s.bit_last(0, s.watched(f)), s.flush_bit(f, 1) <= s.bit_last(1, s.watched(f)),
                Implies(s.fs(f) >= READ_PHASE, within(0, s.flush_at(f), s.flush_phase(f)))), FLUSH),
            s.forall(lambda f: Implies(And(s.fs(f) >= SCANNING, s.pc(s.watched(f)) >= FENCED, s.cpu_gen(s.watched(f)) < s.fg(f)),
                And(s.flush_phase(f) >= s.fenced_phase(s.watched(f)), s.flush_bit(f, 0) >= s.fenced_bit(s.watched(f), 0),
                s.flush_bit(f, 1) >= s.fenced_bit(s.watched(f), 1))), FLUSH))

    @m.holds("views of the trim")
    def _(s: State) -> Expr:
        return s.forall(lambda c: Implies(And(s.trim == LOOKS, s.pc(c) >= FENCED),
            Or(s.fenced_phase(c) >= P(s), And(s.trim_pres(c) >= s.since(c), s.trim_bit(0, c) >= s.fenced_bit(c, 0),
            s.trim_bit(1, c) >= s.fenced_bit(c, 1)))), CPU)

    @m.holds(NAMES)
    def _(s: State) -> Expr:
        old = Q(s, P(s))
        return And(
            s.forall(lambda c, t: Implies(And(now(s, old, c), s.own(c, old) <= t, within(s.phase_bit(P(s), old, c), t,
                s.bit_last(old, c))), s.bit_in(old, c, t)), CPU, TIME),
            s.forall(lambda c: Implies(And(s.trim == CLEARS, s.cleared(c), now(s, 1 - old, c)),
                Or(now(s, old, c), began(s, c) > P(s))), CPU),
            s.forall(lambda c, t: Implies(And(Or(trims(s), And(s.trim == CLEARS, s.cleared(c))), now(s, 1 - old, c),
                s.own(c, 1 - old) <= t, within(s.trim_bit(1 - old, c), t, s.bit_last(1 - old, c))), s.bit_in(1 - old, c, t)), CPU,
            TIME),
            s.forall(lambda c: And(Implies(And(s.trim == LOOKS, s.keeps(c)),
                And(now(s, old, c), Or(s.looked(c), Not(s.outside(c))))), Or(s.trim == LOOKS, s.trim == IDLE,
                And(Not(s.keeps(c)), Not(s.looked(c))))), CPU),
            s.forall(lambda c: Implies(And(trims(s), now(s, 1 - old, c)), Or(now(s, old, c), began(s, c) >= P(s))), CPU))

    @m.holds(EACH_PHASE)
    def _(s: State) -> Expr:
        return s.forall(lambda c, p: Implies(And(member(s, c), began(s, c) <= p, within(0, p, P(s))), good(s, c, p)), CPU, TIME)

    @m.holds(MEMBER)
    def _(s: State) -> Expr:
        epoch = lambda p: registers_in(s, p)[1]
        slot_set = lambda c: registers_in(s, s.slot(c))[0]
        inserted = lambda c: registers_in(s, s.at(c))[0]
        timely = lambda c, p: Or(E(s, P(s)) == epoch(p), And(trims(s), E(s, P(s)) + 1 == epoch(p)))
        return And(
            s.forall(lambda c: Implies(s.pc(c) >= REGISTERED, kept(s, c)), CPU),
            s.forall(lambda c: Implies(And(s.pc(c) == REFENCED, epoch(s.fenced_phase(c)) == epoch(s.at(c))),
                And(kept(s, c), began(s, c) <= s.fenced_phase(c))), CPU),
            s.forall(lambda c: Implies(And(one_of(s.pc(c), INSERTED, REFENCED), timely(c, s.at(c))),
                And(now(s, inserted(c), c), began(s, c) == s.at(c))), CPU),
            s.forall(lambda c: Implies(And(s.has_slot(c), timely(c, s.slot(c))), And(now(s, slot_set(c), c))), CPU),
            s.forall(lambda c: Implies(And(s.trim == LOOKS, s.sure(c), Not(s.looked(c))),
                And(now(s, Q(s, P(s)), c), Or(s.pc(c) == AWAY, And(s.pc(c) >= FENCED, s.trim_pres(c) >= s.since(c))))), CPU),
            *(s.forall(lambda c, t, q=q: Implies(And(q == Q(s, P(s)), s.trim == LOOKS, s.sure(c), Not(s.looked(c)),
                within(s.trim_bit(q, c), t, s.bit_last(q, c))), s.bit_in(q, c, t)), CPU, TIME) for q in (0, 1)),
            s.forall(lambda c: Implies(one_of(s.pc(c), FENCED, PHASED),
                Or(kept(s, c), And(s.outside(c), Not(And(s.has_slot(c), s.slot(c) >= s.fenced_phase(c)))))), CPU),
            *(s.forall(lambda c, p, t, q=q: Implies(And(one_of(s.pc(c), FENCED, PHASED), s.outside(c),
                within(s.fenced_phase(c), p, P(s)), registers_in(s, p)[0] == q, within(s.phase_bit(p, q, c), t,
                s.bit_last(q, c))), Not(s.bit_in(q, c, t))), CPU, TIME, TIME) for q in (0, 1)))

    @m.holds(FOUND)
    def _(s: State) -> Expr:
        c_of = lambda f: s.watched(f)
        epoch = lambda p: registers_in(s, p)[1]
        timely = lambda c: Or(s.pc(c) != REFENCED, epoch(s.fenced_phase(c)) == epoch(s.at(c)))
        concerns = lambda f: And(s.pc(c_of(f)) >= FENCED, Not(one_of(s.pc(c_of(f)), WANTS, INSERTED)), timely(c_of(f)),
            s.cpu_gen(c_of(f)) < s.fg(f), member(s, c_of(f)))
        return And(
            s.forall(lambda f: Implies(And(s.fs(f) == READ, concerns(f)), Or(s.found(f), s.flush_phase(f) > s.flush_at(f))),
                FLUSH),
            s.forall(lambda f: Implies(And(s.fs(f) == READ_OLD, concerns(f)), Or(s.found(f), s.flush_phase(f) > s.flush_at(f),
                fine(s, c_of(f), 1 - Q(s, s.flush_at(f)), E(s, s.flush_at(f)) + 1, s.flush_at(f)))), FLUSH),
            s.forall(lambda f: Implies(s.fs(f) == READ_OLD, K(s, s.flush_at(f)) == TRIMMING), FLUSH),
            s.forall(lambda f: Implies(And(s.fs(f) >= READ_PHASE, s.fs(f) < DONE),
                And(s.flush_bit(f, 0) >= s.phase_bit(s.flush_at(f), 0, c_of(f)), s.flush_bit(f, 1) >= s.phase_bit(s.flush_at(f),
                1, c_of(f)))), FLUSH),
            s.forall(lambda f: Implies(And(s.fs(f) == DONE, concerns(f)), s.found(f)), FLUSH))

    @m.holds("2: a flush finds every CPU that has registered, or is in its view", safety=True)
    def _(s: State) -> Expr:
        return s.forall(lambda f: Implies(And(s.fs(f) == DONE, s.pc(s.watched(f)) >= REGISTERED),
            Or(s.found(f), s.cpu_gen(s.watched(f)) >= s.fg(f))), FLUSH)
