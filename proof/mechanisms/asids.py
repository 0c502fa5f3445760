"""Tags that CPUs share: ASIDs with epochs, taken from stocks. An ASID belongs to one space at a time.

A step is one access to a shared word. Blocks of ASIDs have any size; `next` is abstract: each ASID is taken once in an epoch.
"""

from __future__ import annotations

from ..logic import ALL, BOOL, CODE, TIME, And, Expr, If, Implies, Not, Or, State, later, one_of
from ..memory import Thread, Word
from ..system import System, Taken
from .bell import CPU
from .tags import SPACE, TAG

OFF, JOINED, SYNCED, IDLE, READ, PROPOSED, OLD, FOUND, KEEPS, USES, EMPTIED, STORED, LOADS, PINS, PIN_FENCED, UNPINS = range(16)
"""Where a CPU is. From `JOINED` on, it is in the set of users."""
EMPTY, BLOCK, SCAN, READY = range(4)
"""A CPU's stock: none; a block is being taken; its ASIDs are compared with those that others reserve; usable."""


def build() -> System:
    m = System("asids", sizes={CPU: 2, SPACE: 2, TAG: 2, TIME: 4})
    epoch = Word(m, "epoch", fenced=True)
    users = Word(m, "users", (CPU,), fenced=True)
    pins = Word(m, "pins", (TAG,), {"on": BOOL, "listed": TIME}, fenced=True)
    tag = Word(m, "tag", (SPACE,), {"epoch": TIME, "some": BOOL, "asid": TAG, "proposed": BOOL, "pinned": BOOL}, carries=(epoch,))
    cpu = Thread(m, "cpu", CPU, (epoch, users, pins))
    for name, args, result in (
        # `active_tag`, with its views; `reserved_tag`; `chosen_tag`.
        ("active_last", (CPU,), TIME), ("cpu_active", (CPU,), TIME), ("active_epoch", (CPU, TIME), TIME), ("active_sealed", (CPU, TIME), BOOL), ("active_some", (CPU, TIME), BOOL), ("active_asid", (CPU, TIME), TAG),
        ("active_has_reserved", (CPU, TIME), TIME), ("active_has_chosen", (CPU, TIME), TIME), ("active_has_epoch", (CPU, TIME), TIME),
        ("reserved_last", (CPU,), TIME), ("reserved_epoch", (CPU, TIME), TIME), ("reserved_some", (CPU, TIME), BOOL), ("reserved_asid", (CPU, TIME), TAG),
        ("chosen_last", (CPU,), TIME), ("chosen_epoch", (CPU, TIME), TIME), ("chosen_some", (CPU, TIME), BOOL), ("chosen_asid", (CPU, TIME), TAG),
        # A CPU that switches.
        ("pc", (CPU,), CODE), ("space", (CPU,), SPACE), ("at", (CPU,), TIME), ("e", (CPU,), TIME), ("seen_at", (CPU,), TIME), ("wants", (CPU,), BOOL), ("asid", (CPU,), TAG),
        ("clean", (CPU,), TIME), ("found", (CPU,), CPU), ("found_chosen", (CPU,), TIME), ("lock_some", (), BOOL), ("lock", (), CPU),
        ("root_some", (CPU,), BOOL), ("root_asid", (CPU,), TAG), ("root_space", (CPU,), SPACE), ("holds", (CPU, TAG, SPACE), BOOL),
        # Its stock.
        ("stock", (CPU,), CODE), ("stock_epoch", (CPU,), TIME), ("mine", (CPU, TAG), BOOL), ("checked", (CPU, TAG), BOOL), ("scanned", (CPU, CPU), BOOL), ("taken", (TIME, TAG), BOOL),
        # Ghosts: each epoch's owners, by which reservation or pin they were kept; what a CPU reserves in an epoch.
        ("owned", (TIME, TAG), BOOL), ("owner", (TIME, TAG), SPACE), ("kept", (TIME, TAG), BOOL), ("pinned_in", (TIME, TAG), BOOL), ("pinner", (TIME, TAG), SPACE), ("birth", (TIME, TAG), TIME), ("cover", (TIME, TAG, TIME), CPU), ("cover_at", (TIME, TAG, TIME), TIME),
        ("res_known", (CPU, TIME), BOOL), ("res_some", (CPU, TIME), BOOL), ("res_asid", (CPU, TIME), TAG), ("res_space", (CPU, TIME), SPACE), ("res_from", (CPU, TIME), TIME),
        # Ghosts: the space of the active ASID, and the epoch from which on it is that space's; the same for the root, until
        # it is replaced; the root that was loaded when the TLB was emptied; the epoch known when the CPU came online.
        ("act_space", (CPU,), SPACE), ("act_from", (CPU,), TIME), ("root_from", (CPU,), TIME), ("root_until", (CPU,), TIME),
        ("old_some", (CPU,), BOOL), ("old_asid", (CPU,), TAG), ("old_space", (CPU,), SPACE), ("old_from", (CPU,), TIME), ("came", (CPU,), BOOL), ("first", (CPU,), TIME), ("since", (TAG,), TIME), ("pin_from", (SPACE,), TIME), ("lock_epoch", (), TIME),
    ):
        m.field(name, args, result)
    m.small = {TAG: 1, SPACE: 1, TIME: 3}
    steps_of_words(m, cpu, epoch, users, tag)
    steps_of_stock(m, cpu, users, pins, tag)
    steps_of_pins(m, cpu, pins, tag)
    invariant(m)
    routes(m)
    return m


def routes(m: System) -> None:
    load = lambda t, n: [("switch: load the space's ASID", {"p": 0, "t": t}), ("switch: load the epoch, and its own word", {"n": n})]
    scan = ["stock: fence", *["stock: read whether an ASID is pinned"] * 2, ("stock: find that a CPU has never been online", {"d": 1})]
    first = [("online: enter the users", {"c": 0}), "online: synchronize", "online: empty the TLB", *load(0, 0), "stock: begin a block", "stock: take an ASID of the block", *scan, ("stock: read what a CPU reserves", {"d": 0}), "stock: is complete", "space: propose an ASID of the stock", *load(1, 0), "switch: confirm a proposed ASID"]
    choose = ["choose: exchange its own word", "switch: load the root", "hardware: cache a translation of the loaded root"]
    mark = [*first, "pin or unpin: take the lock", *load(2, 0), "pin: mark the ASID pinned", "pin: fence"]
    pin = "pin: find the epoch the same, and pin"
    found = ["space: find its ASID chosen by the CPU that reserves it", "space: keep a reserved ASID"]
    own = [*first, *load(2, 0), "switch: empty the TLB for the epoch", "choose: store what it has chosen", *choose, *load(2, 0), "roll over", *load(2, 1)]
    m.routes += [
        [*own, "space: find its ASID reserved, and seal the CPU's word", *found, *load(3, 1), "switch: empty the TLB for the epoch", "choose: store what it reserves, and has chosen", *choose],
        [*own, ("stock: begin a block", {"g": 1}), *scan, "stock: seal a CPU's word", "space: find its ASID reserved", *found],
        [*mark, pin, "unpin", "unpin: list the ASIDs of the epoch, and mark the ASID unpinned", "pin or unpin: release the lock"],
        [*mark, pin, *load(3, 0), "roll over", *load(3, 1), ("stock: begin a block", {"g": 1}), *scan, "space: keep a pinned ASID", *load(4, 1), "switch: empty the TLB for the epoch", "choose: store what it reserves, and has chosen", ("stock: seal a CPU's word", {"d": 0}), "choose: find its own word sealed"],
        [*first, *load(1, 0), "switch: find its word changed"],
        [*mark, "pin: find the epoch over, or the word changed"],
    ]


def active(s: State | Taken, c: Expr, name: str) -> Expr:
    return getattr(s, f"active_{name}")(c, s.active_last(c))


def tag_of(s: State | Taken, p: Expr, name: str) -> Expr:
    return getattr(s, f"tag_{name}")(p, s.tag_last(p))


def word(x: State | Taken, c: Expr, name: str) -> Expr:
    """The space's word that the CPU has read."""
    return getattr(x, f"tag_{name}")(x.space(c), x.at(c))


def unchanged(x: Taken, c: Expr) -> Expr:
    return And(*(tag_of(x, x.space(c), name) == word(x, c, name) for name in ("epoch", "some", "asid", "proposed", "pinned")))


def renew(x: Taken, cpu: Thread, tag: Word, c: Expr, **changes: Expr) -> None:
    """The exchange of the space's word, which finds it unchanged."""
    x.require(unchanged(x, c))
    values = {name: word(x, c, name) for name in tag.values} | changes
    cpu.modify(x, c, tag, (x.space(c),), acquire=False, release=True, **values)
    x.set("owned", values["epoch"], values["asid"], to=True)
    x.set("owner", values["epoch"], values["asid"], to=x.space(c))
    x.set("pc", c, to=IDLE)


def change_active(x: Taken, c: Expr, epoch: Expr, sealed: bool, some: Expr, asid: Expr, reserved: Expr, chosen: Expr, view: Expr) -> None:
    at = x.active_last(c) + 1
    x.set("active_last", c, to=at)
    for name, value in (("epoch", epoch), ("sealed", sealed), ("some", some), ("asid", asid), ("has_reserved", reserved), ("has_chosen", chosen), ("has_epoch", later(active(x, c, "has_epoch"), view))):
        x.set(f"active_{name}", c, at, to=value)


def append(x: Taken, name: str, c: Expr, epoch: Expr, some: Expr, asid: Expr) -> None:
    at = getattr(x, f"{name}_last")(c) + 1
    x.set(f"{name}_last", c, to=at)
    for value, to in (("epoch", epoch), ("some", some), ("asid", asid)):
        x.set(f"{name}_{value}", c, at, to=to)


def reserves(x: Taken, c: Expr, e: Expr, is_first: Expr) -> None:
    """Ghosts: in an epoch, a CPU reserves the ASID that it has when its word first is of that epoch."""
    for name, value in (("some", active(x, c, "some")), ("asid", active(x, c, "asid")), ("space", x.act_space(c)), ("from", x.act_from(c))):
        x.set(f"res_{name}", c, e, to=If(is_first, value, getattr(x, f"res_{name}")(c, e)))
    x.set("res_known", c, e, to=True)


def steps_of_words(m: System, cpu: Thread, epoch: Word, users: Word, tag: Word) -> None:
    @m.step("online: enter the users", c=CPU, n=TIME)
    def _(x, c, n):
        x.require(x.pc(c) == OFF)
        cpu.modify(x, c, users, (c,), acquire=False, release=False)
        cpu.load(x, c, epoch, (), n, False)
        x.set("clean", c, to=n)
        x.set("old_some", c, to=False)
        x.set("pc", c, to=JOINED)

    @m.step("online: synchronize", c=CPU)
    def _(x, c):
        x.require(x.pc(c) == JOINED)
        x.set("pc", c, to=SYNCED)
        x.set("came", c, to=True)
        x.set("first", c, to=If(x.came(c), x.first(c), later(x.cpu_epoch(c), x.S_epoch) if x.obeys("OnlineSync") else x.cpu_epoch(c)))
        if x.obeys("OnlineSync"):
            cpu.fence(x, c)

    @m.step("online: empty the TLB", c=CPU)
    def _(x, c):
        x.require(x.pc(c) == SYNCED)
        x.set("holds", c, ALL, ALL, to=False)
        x.set("pc", c, to=IDLE)

    @m.step("offline", c=CPU)
    def _(x, c):
        x.require(x.pc(c) == IDLE, Not(x.root_some(c)), Not(And(x.lock_some, x.lock == c)))
        x.set("pc", c, to=OFF)

    @m.step("hardware: cache a translation of the loaded root", c=CPU)
    def _(x, c):
        x.require(x.root_some(c))
        x.set("holds", c, x.root_asid(c), x.root_space(c), to=True)

    @m.step("switch: load the space's ASID", c=CPU, p=SPACE, t=TIME)
    def _(x, c, p, t):
        x.require(x.pc(c) == IDLE, 0 <= t, t <= x.tag_last(p))
        if x.obeys("AsidAcquire"):
            cpu.join(x, c, tag, (p,), t)
        x.set("space", c, to=p)
        x.set("at", c, to=t)
        x.set("pc", c, to=READ)

    @m.step("switch: load the epoch, and its own word", c=CPU, n=TIME, o=TIME)
    def _(x, c, n, o):
        x.require(x.pc(c) == READ, x.cpu_epoch(c) <= n, n <= x.epoch_last, x.cpu_active(c) <= o, o <= x.active_last(c))
        e = later(n, x.active_epoch(c, o))
        x.set("cpu_epoch", c, to=later(n, x.active_has_epoch(c, o)))
        x.set("e", c, to=e)
        x.set("pc", c, to=If(And(word(x, c, "some"), word(x, c, "epoch") == e), If(word(x, c, "proposed"), PROPOSED, USES), OLD))

    @m.step("switch: confirm a proposed ASID", c=CPU)
    def _(x, c):
        x.require(x.pc(c) == PROPOSED)
        renew(x, cpu, tag, c, proposed=False)

    @m.step("switch: find its word changed", c=CPU)
    def _(x, c):
        x.require(one_of(x.pc(c), PROPOSED, OLD, FOUND, KEEPS), Not(unchanged(x, c)))
        x.set("pc", c, to=IDLE)

    @m.step("switch: empty the TLB for the epoch", c=CPU)
    def _(x, c):
        x.require(x.pc(c) == USES)
        empties(x, c)
        x.set("wants", c, to=True)
        x.set("asid", c, to=word(x, c, "asid"))
        x.set("pc", c, to=EMPTIED)

    def empties(x: Taken, c: Expr) -> None:
        is_new = x.clean(c) < x.e(c)
        x.set("clean", c, to=later(x.clean(c), x.e(c)))
        if x.obeys("FlushOnRollover"):
            x.set("holds", c, ALL, ALL, to=False, where=lambda a, p: is_new)
            for name in ("some", "asid", "space", "from"):
                x.set(f"old_{name}", c, to=If(is_new, getattr(x, f"root_{name}")(c), getattr(x, f"old_{name}")(c)))

    @m.step("switch to a space without an ASID", c=CPU)
    def _(x, c):
        x.require(x.pc(c) == IDLE)
        # Not of an earlier epoch than that for which the TLB was emptied: until the root is replaced, its ASID is reserved.
        x.set("e", c, to=later(active(x, c, "epoch"), x.clean(c)))
        x.set("wants", c, to=False)
        x.set("pc", c, to=EMPTIED)

    for moves, name in ((True, "choose: store what it reserves, and has chosen"), (False, "choose: store what it has chosen")):
        @m.step(name, c=CPU, b=TIME)
        def _(x, c, b, moves=moves):
            x.require(x.pc(c) == EMPTIED, x.cpu_active(c) <= b, b <= x.active_last(c), x.active_epoch(c, b) <= x.e(c))
            x.require(Or(x.active_epoch(c, b) != x.e(c), x.active_sealed(c, b)) == moves)
            if moves:
                append(x, "reserved", c, x.e(c), x.active_some(c, b), x.active_asid(c, b))
            append(x, "chosen", c, x.e(c), x.wants(c), x.asid(c))
            x.set("seen_at", c, to=b)
            x.set("pc", c, to=STORED)

    @m.step("choose: exchange its own word", c=CPU)
    def _(x, c):
        x.require(x.pc(c) == STORED, x.active_last(c) == x.seen_at(c))
        first = Or(active(x, c, "epoch") != x.e(c), active(x, c, "sealed"))
        views = (x.reserved_last(c), x.chosen_last(c)) if x.obeys("ActiveTagRelease") else (active(x, c, "has_reserved"), active(x, c, "has_chosen"))
        reserves(x, c, x.e(c), And(first, Not(x.res_known(c, x.e(c)))))
        change_active(x, c, x.e(c), False, x.wants(c), x.asid(c), *views, x.cpu_epoch(c))
        x.set("cpu_active", c, to=x.active_last(c) + 1)
        x.set("act_space", c, to=x.space(c))
        x.set("act_from", c, to=x.e(c))
        x.set("root_until", c, to=x.e(c))
        x.set("pc", c, to=LOADS)

    @m.step("choose: find its own word sealed", c=CPU)
    def _(x, c):
        x.require(Or(And(x.pc(c) == STORED, x.active_last(c) != x.seen_at(c)), And(x.pc(c) == EMPTIED, active(x, c, "epoch") > x.e(c))))
        x.set("pc", c, to=IDLE)

    @m.step("switch to a space without an ASID: empty the TLB", c=CPU)
    def _(x, c):
        x.require(x.pc(c) == LOADS, Not(x.wants(c)))
        empties(x, c)

    @m.step("switch: load the root", c=CPU)
    def _(x, c):
        x.require(x.pc(c) == LOADS)
        for name, value in (("some", x.wants(c)), ("asid", x.asid(c)), ("space", x.act_space(c)), ("from", x.act_from(c))):
            x.set(f"root_{name}", c, to=value)
        x.set("pc", c, to=IDLE)

    @m.step("roll over", c=CPU)
    def _(x, c):
        x.require(one_of(x.pc(c), USES, OLD))
        cpu.modify(x, c, epoch, (), acquire=False, release=False)
        x.set("pc", c, to=IDLE)


def seal(x: Taken, c: Expr, d: Expr, e: Expr) -> tuple[Expr, Expr, Expr]:
    """Seals a CPU's word for an epoch. Returns what that CPU reserves, and the view of what it has chosen."""
    some = active(x, d, "some") if x.obeys("ReserveTags") else False
    asid = active(x, d, "asid")
    x.require(active(x, d, "epoch") < e)
    reserves(x, d, e, True)
    change_active(x, d, e, True, some, asid, active(x, d, "has_reserved"), active(x, d, "has_chosen"), x.cpu_epoch(c))
    return some, asid, active(x, d, "has_chosen") if x.obeys("ActiveTagAcquire") else 0


def read(x: Taken, d: Expr, e: Expr, t: Expr, r: Expr) -> tuple[Expr, Expr, Expr]:
    """The same for a CPU whose word is of the epoch already."""
    acquires = x.obeys("ActiveTagAcquire")
    x.require(0 <= t, t <= x.active_last(d), x.active_epoch(d, t) == e)
    x.require(Or(x.active_sealed(d, t), And((x.active_has_reserved(d, t) if acquires else 0) <= r, r <= x.reserved_last(d), x.reserved_epoch(d, r) <= e)))
    of_epoch = And(x.reserved_epoch(d, r) == e, x.reserved_some(d, r))
    some = If(x.active_sealed(d, t), x.active_some(d, t), of_epoch)
    return some, If(x.active_sealed(d, t), x.active_asid(d, t), x.reserved_asid(d, r)), x.active_has_chosen(d, t) if acquires else 0


def steps_of_stock(m: System, cpu: Thread, users: Word, pins: Word, tag: Word) -> None:
    def compare(x: Taken, c: Expr, d: Expr, some: Expr, asid: Expr) -> None:
        x.require(x.stock(c) == SCAN, Not(x.scanned(c, d)))
        x.set("mine", c, asid, to=And(x.mine(c, asid), Not(some)))
        x.set("scanned", c, d, to=True)

    @m.step("stock: begin a block", c=CPU, g=TIME)
    def _(x, c, g):
        # The block is of an epoch that the CPU has loaded.
        x.require(x.pc(c) == OLD, one_of(x.stock(c), EMPTY, READY), 0 <= g, g <= x.cpu_epoch(c))
        x.set("stock", c, to=BLOCK)
        x.set("stock_epoch", c, to=g)
        for name in ("mine", "checked", "scanned"):
            x.set(name, c, ALL, to=False)

    @m.step("stock: take an ASID of the block", c=CPU, a=TAG)
    def _(x, c, a):
        x.require(x.stock(c) == BLOCK, Not(x.taken(x.stock_epoch(c), a)))
        x.set("taken", x.stock_epoch(c), a, to=True)
        x.set("mine", c, a, to=True)

    @m.step("stock: fence", c=CPU)
    def _(x, c):
        x.require(x.stock(c) == BLOCK)
        x.set("stock", c, to=SCAN)
        if x.obeys("ReserveFence"):
            cpu.fence(x, c)

    @m.step("stock: read whether an ASID is pinned", c=CPU, a=TAG, t=TIME)
    def _(x, c, a, t):
        x.require(x.stock(c) == SCAN, Not(x.checked(c, a)))
        cpu.load(x, c, pins, (a,), t, False)
        x.set("checked", c, a, to=True)
        # If the ASID was unpinned, the list is complete, or the epoch is over.
        listed = And(x.obeys("ListAcquire"), x.pins_listed(a, t) > x.stock_epoch(c))
        x.set("mine", c, a, to=And(x.mine(c, a), Not(x.pins_on(a, t)), Not(listed)))

    @m.step("stock: find that a CPU has never been online", c=CPU, d=CPU)
    def _(x, c, d):
        x.require(x.stock(c) == SCAN)
        cpu.load(x, c, users, (d,), 0, False)
        x.set("scanned", c, d, to=True)

    @m.step("stock: seal a CPU's word", c=CPU, d=CPU)
    def _(x, c, d):
        some, asid, _ = seal(x, c, d, x.stock_epoch(c))
        compare(x, c, d, some, asid)

    @m.step("stock: read what a CPU reserves", c=CPU, d=CPU, t=TIME, r=TIME)
    def _(x, c, d, t, r):
        some, asid, _ = read(x, d, x.stock_epoch(c), t, r)
        compare(x, c, d, some, asid)

    @m.step("stock: is complete", c=CPU)
    def _(x, c):
        x.require(x.stock(c) == SCAN, x.before.forall(lambda d: x.scanned(c, d), CPU), x.before.forall(lambda a: x.checked(c, a), TAG))
        x.set("stock", c, to=READY)

    @m.step("space: propose an ASID of the stock", c=CPU, a=TAG)
    def _(x, c, a):
        x.require(x.pc(c) == OLD, x.stock(c) == READY, x.stock_epoch(c) == x.e(c), x.mine(c, a), Not(word(x, c, "pinned")))
        x.set("mine", c, a, to=False)
        x.set("birth", x.e(c), a, to=x.e(c))
        renew(x, cpu, tag, c, epoch=x.e(c), some=True, asid=a, proposed=True)

    def keeps(x: Taken, c: Expr) -> None:
        x.set("birth", x.e(c), word(x, c, "asid"), to=x.birth(word(x, c, "epoch"), word(x, c, "asid")))

    def find(x: Taken, c: Expr, d: Expr, some: Expr, asid: Expr, chosen: Expr) -> None:
        x.require(x.pc(c) == OLD, word(x, c, "some"), some, asid == word(x, c, "asid"))
        x.set("found", c, to=d)
        x.set("found_chosen", c, to=chosen)
        x.set("pc", c, to=FOUND)

    @m.step("space: find its ASID reserved, and seal the CPU's word", c=CPU, d=CPU)
    def _(x, c, d):
        find(x, c, d, *seal(x, c, d, x.e(c)))

    @m.step("space: find its ASID reserved", c=CPU, d=CPU, t=TIME, r=TIME)
    def _(x, c, d, t, r):
        find(x, c, d, *read(x, d, x.e(c), t, r))

    @m.step("space: find its ASID chosen by the CPU that reserves it", c=CPU, t=TIME)
    def _(x, c, t):
        d = x.found(c)
        x.require(x.pc(c) == FOUND, x.found_chosen(c) <= t, t <= x.chosen_last(d))
        x.require(x.chosen_some(d, t), x.chosen_asid(d, t) == word(x, c, "asid"), x.chosen_epoch(d, t) <= word(x, c, "epoch"))
        x.set("pc", c, to=KEEPS)

    @m.step("space: keep a reserved ASID", c=CPU)
    def _(x, c):
        x.require(x.pc(c) == KEEPS)
        renew(x, cpu, tag, c, epoch=x.e(c), proposed=False)
        keeps(x, c)
        x.set("kept", x.e(c), word(x, c, "asid"), to=True)
        for name, value in (("cover", x.found(c)), ("cover_at", x.e(c))):
            x.set(name, x.e(c), word(x, c, "asid"), ALL, to=lambda j, n=name, v=value: If(j >= word(x, c, "epoch"), v, getattr(x, n)(word(x, c, "epoch"), word(x, c, "asid"), j)))

    @m.step("space: keep a pinned ASID", c=CPU)
    def _(x, c):
        x.require(x.pc(c) == OLD, word(x, c, "pinned"))
        renew(x, cpu, tag, c, epoch=x.e(c), proposed=False)
        keeps(x, c)
        w, a = word(x, c, "epoch"), word(x, c, "asid")
        x.set("pinned_in", ALL, a, to=True, where=lambda j: And(w < j, j <= x.e(c)))
        x.set("pinner", ALL, a, to=x.space(c), where=lambda j: And(w < j, j <= x.e(c)))
        for name in ("cover", "cover_at"):
            x.set(name, x.e(c), a, ALL, to=lambda j, n=name: getattr(x, n)(w, a, j))


def steps_of_pins(m: System, cpu: Thread, pins: Word, tag: Word) -> None:
    """The first pin of a space, and the last, under the lock. A later list has what an earlier one had to have."""

    def mark(x: Taken, c: Expr, on: bool, listed: Expr) -> None:
        a = word(x, c, "asid")
        cpu.store(x, c, pins, (a,), False, on=on, listed=later(x.pins_listed(a, x.pins_last(a)), listed))

    def release(x: Taken) -> None:
        x.set("lock_some", to=False)
        if x.obeys("TagLockRelease"):
            x.set("lock_epoch", to=later(x.lock_epoch, x.cpu_epoch(x.lock)))

    holds = lambda x, c: And(x.lock_some, x.lock == c)

    @m.step("pin or unpin: take the lock", c=CPU)
    def _(x, c):
        x.require(x.pc(c) == IDLE, Not(x.lock_some))
        x.set("lock_some", to=True)
        x.set("lock", to=c)
        if x.obeys("TagLockAcquire"):
            x.set("cpu_epoch", c, to=later(x.cpu_epoch(c), x.lock_epoch))

    @m.step("pin or unpin: release the lock", c=CPU)
    def _(x, c):
        x.require(x.pc(c) == IDLE, holds(x, c))
        release(x)

    @m.step("pin: mark the ASID pinned", c=CPU)
    def _(x, c):
        # The word was read under the lock, under which pins change.
        x.require(x.pc(c) == USES, holds(x, c), Not(word(x, c, "pinned")), Not(tag_of(x, x.space(c), "pinned")))
        mark(x, c, True, 0)
        x.set("since", word(x, c, "asid"), to=x.pins_last(word(x, c, "asid")) + 1)
        x.set("pc", c, to=PINS)

    @m.step("pin: fence", c=CPU)
    def _(x, c):
        x.require(x.pc(c) == PINS)
        x.set("pc", c, to=PIN_FENCED)
        if x.obeys("PinFence"):
            cpu.fence(x, c)

    @m.step("pin: find the epoch the same, and pin", c=CPU)
    def _(x, c):
        x.require(x.pc(c) == PIN_FENCED, x.cpu_epoch(c) <= x.e(c))
        renew(x, cpu, tag, c, pinned=True)
        x.set("pin_from", x.space(c), to=x.e(c))

    @m.step("pin: find the epoch over, or the word changed", c=CPU)
    def _(x, c):
        x.require(x.pc(c) == PIN_FENCED)
        mark(x, c, False, 0)
        x.set("pc", c, to=IDLE)

    @m.step("unpin", c=CPU, p=SPACE)
    def _(x, c, p):
        x.require(x.pc(c) == IDLE, holds(x, c), tag_of(x, p, "pinned"))
        x.set("space", c, to=p)
        x.set("at", c, to=x.tag_last(p))
        cpu.modify(x, c, tag, (p,), acquire=False, release=True, **{name: tag_of(x, p, name) for name in tag.values} | {"pinned": False})
        x.set("pc", c, to=UNPINS)

    @m.step("unpin: list the ASIDs of the epoch, and mark the ASID unpinned", c=CPU, n=TIME)
    def _(x, c, n):
        x.require(x.pc(c) == UNPINS, x.cpu_epoch(c) <= n, n <= x.epoch_last)
        mark(x, c, False, later(n, word(x, c, "epoch")) + 1 if x.obeys("ListRelease") else 0)
        x.set("pc", c, to=IDLE)


def invariant(m: System) -> None:
    scans = lambda s, c: s.stock(c) >= SCAN
    locked = lambda s, c: And(s.lock_some, s.lock == c)
    works = lambda s, c: Or(one_of(s.pc(c), PROPOSED, OLD, FOUND, KEEPS, USES, PINS, PIN_FENCED), And(one_of(s.pc(c), EMPTIED, STORED, LOADS), s.wants(c)))
    within = lambda low, k, high: And(low <= k, k <= high)

    def claims(s: State, c: Expr, k: Expr) -> dict[str, tuple[Expr, Expr, Expr, Expr]]:
        """What a CPU makes one space's alone: whether it does at an epoch, the ASID, the space, and from which epoch on."""
        return {
            "act": (And(active(s, c, "some"), s.act_from(c) <= k), active(s, c, "asid"), s.act_space(c), s.act_from(c)),
            "root": (And(s.root_some(c), s.pc(c) == LOADS, within(s.root_from(c), k, s.root_until(c))), s.root_asid(c), s.root_space(c), s.root_from(c)),
            "old": (And(s.old_some(c), within(s.old_from(c), k, s.clean(c))), s.old_asid(c), s.old_space(c), s.old_from(c)),
        }

    def res_claim(s: State, c: Expr, k: Expr, x: Expr) -> tuple[Expr, Expr, Expr, Expr]:
        return And(s.res_some(c, x), within(s.res_from(c, x), k, x)), s.res_asid(c, x), s.res_space(c, x), s.res_from(c, x)

    @m.holds("ranges")
    def _(s: State) -> Expr:
        return And(
            0 <= s.S_epoch, s.S_epoch <= s.epoch_last, 0 <= s.lock_epoch, s.lock_epoch <= s.epoch_last,
            s.forall(lambda c: And(
                OFF <= s.pc(c), s.pc(c) <= UNPINS, EMPTY <= s.stock(c), s.stock(c) <= READY, within(0, s.cpu_epoch(c), s.epoch_last),
                s.active_last(c) >= 0, s.reserved_last(c) >= 0, s.chosen_last(c) >= 0, within(0, s.cpu_active(c), s.active_last(c)), 0 <= s.clean(c), s.clean(c) <= later(s.cpu_epoch(c), s.active_epoch(c, s.cpu_active(c))), within(0, s.first(c), s.cpu_epoch(c)),
                0 <= s.e(c), Implies(one_of(s.pc(c), EMPTIED, STORED), s.e(c) <= later(s.clean(c), active(s, c, "epoch"))), Implies(works(s, c), And(s.first(c) <= s.e(c), s.e(c) <= s.cpu_epoch(c))), Implies(s.pc(c) == READ, word(s, c, "epoch") <= s.cpu_epoch(c)), Implies(s.stock(c) != EMPTY, within(0, s.stock_epoch(c), s.cpu_epoch(c))), Implies(scans(s, c), s.stock_epoch(c) <= s.S_epoch),
                within(0, s.at(c), s.tag_last(s.space(c))), s.users_last(c) >= 0, within(0, s.S_users(c), s.users_last(c)), s.S_users(c) <= s.users_last(c),
                Implies(And(s.pc(c) > READ, s.pc(c) != UNPINS), s.e(c) >= s.clean(c))), CPU),
            s.forall(lambda c, t: Implies(within(0, t, s.active_last(c)), And(0 <= s.active_epoch(c, t), s.active_epoch(c, t) <= active(s, c, "epoch"), s.active_epoch(c, t) <= s.active_has_epoch(c, t), s.active_has_epoch(c, t) <= s.epoch_last,
                within(0, s.active_has_reserved(c, t), s.reserved_last(c)), within(0, s.active_has_chosen(c, t), s.chosen_last(c)))), CPU, TIME),
            s.forall(lambda p, t: Implies(within(0, t, s.tag_last(p)), And(0 <= s.tag_epoch(p, t), s.tag_epoch(p, t) <= s.tag_has_epoch(p, t), s.tag_has_epoch(p, t) <= s.epoch_last)), SPACE, TIME),
            s.forall(lambda p: s.tag_last(p) >= 0, SPACE),
            s.forall(lambda a: And(s.pins_last(a) >= 0, within(0, s.S_pins(a), s.pins_last(a)), within(0, s.since(a), s.pins_last(a))), TAG),
            s.forall(lambda c, a: within(0, s.cpu_pins(c, a), s.pins_last(a)), CPU, TAG),
            s.forall(lambda c, d: within(0, s.cpu_users(c, d), s.users_last(d)), CPU, CPU))

    @m.holds("a space's word names an ASID that it owned in that epoch, and does not go back")
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda p, t: Implies(within(0, t, s.tag_last(p)), And(
                Implies(s.tag_some(p, t), And(s.owned(s.tag_epoch(p, t), s.tag_asid(p, t)), s.owner(s.tag_epoch(p, t), s.tag_asid(p, t)) == p)), Implies(Or(s.tag_pinned(p, t), s.tag_proposed(p, t)), s.tag_some(p, t)), s.tag_epoch(p, t) <= tag_of(s, p, "epoch"))), SPACE, TIME),
            s.forall(lambda c: And(
                Implies(And(s.pc(c) > READ, s.pc(c) < EMPTIED), word(s, c, "epoch") <= s.e(c)),
                Implies(one_of(s.pc(c), PROPOSED, USES, PINS, PIN_FENCED), And(word(s, c, "some"), word(s, c, "epoch") == s.e(c))),
                Implies(one_of(s.pc(c), OLD, FOUND, KEEPS), Or(Not(word(s, c, "some")), word(s, c, "epoch") < s.e(c))),
                Implies(And(s.pc(c) >= EMPTIED, s.pc(c) <= STORED, s.wants(c)), And(s.owned(s.e(c), s.asid(c)), s.owner(s.e(c), s.asid(c)) == s.space(c), s.clean(c) == s.e(c)))), CPU))

    @m.holds("what a CPU has chosen, has loaded, or reserves, is one space's")
    def _(s: State) -> Expr:
        def sole(claim: tuple[Expr, Expr, Expr, Expr], k: Expr) -> Expr:
            holds, asid, space, from_ = claim
            return Implies(holds, And(s.owned(from_, asid), s.owner(from_, asid) == space, Implies(s.owned(k, asid), s.owner(k, asid) == space)))
        return And(
            *(s.forall(lambda c, k, n=name: sole(claims(s, c, k)[n], k), CPU, TIME) for name in ("act", "root", "old")),
            s.forall(lambda c, k, x: sole(res_claim(s, c, k, x), k), CPU, TIME, TIME))

    @m.holds("a CPU's words")
    def _(s: State) -> Expr:
        last = lambda c: s.active_last(c)
        return And(
            s.forall(lambda c: And(
                0 <= s.act_from(c), s.act_from(c) <= s.active_epoch(c, s.cpu_active(c)), Implies(active(s, c, "some"), And(s.came(c), s.first(c) <= s.act_from(c))),
                Implies(s.root_some(c), And(s.came(c), s.first(c) <= s.root_from(c), s.root_from(c) <= s.clean(c))), Implies(s.old_some(c), And(s.came(c), s.first(c) <= s.old_from(c), s.old_from(c) < s.clean(c))),
                Implies(s.pc(c) != LOADS, And(s.root_some(c) == active(s, c, "some"), Implies(s.root_some(c), And(s.root_asid(c) == active(s, c, "asid"), s.root_space(c) == s.act_space(c), s.root_from(c) == s.act_from(c))))),
                Implies(s.pc(c) == LOADS, And(s.wants(c) == active(s, c, "some"), s.asid(c) == active(s, c, "asid"), s.root_until(c) == s.e(c), s.act_from(c) == s.e(c), s.clean(c) <= s.e(c), Implies(s.wants(c), s.clean(c) == s.e(c)), Implies(s.root_some(c), s.root_from(c) <= s.e(c)))),
                Implies(s.pc(c) > SYNCED, s.came(c)), Implies(s.pc(c) < IDLE, And(Not(s.root_some(c)))), Implies(one_of(s.pc(c), JOINED, SYNCED), Not(s.old_some(c))),
                Implies(And(s.root_some(c), s.root_from(c) < s.clean(c)), And(s.old_some(c), s.old_asid(c) == s.root_asid(c), s.old_space(c) == s.root_space(c), s.old_from(c) == s.root_from(c))),
                Implies(And(s.old_some(c), s.clean(c) > active(s, c, "epoch")), And(active(s, c, "some"), active(s, c, "asid") == s.old_asid(c), s.act_from(c) == s.old_from(c), s.act_space(c) == s.old_space(c)))), CPU),
            s.forall(lambda c, t: Implies(within(s.cpu_active(c), t, last(c)), And(s.active_some(c, t) == active(s, c, "some"), s.active_asid(c, t) == active(s, c, "asid"))), CPU, TIME),
            s.forall(lambda c, t: Implies(within(0, t, last(c)), And(Implies(s.active_sealed(c, t), s.active_epoch(c, t) > 0), Or(s.active_sealed(c, t), t <= s.cpu_active(c)), Implies(t >= s.cpu_active(c), s.active_epoch(c, t) >= s.active_epoch(c, s.cpu_active(c))), Implies(t <= s.cpu_active(c), s.active_epoch(c, t) <= s.active_epoch(c, s.cpu_active(c))))), CPU, TIME),
            s.forall(lambda c, t: Implies(And(within(0, t, last(c)), t > s.cpu_active(c)), s.active_epoch(c, t) > s.active_epoch(c, s.cpu_active(c))), CPU, TIME))

    @m.holds("all that can be read of what a CPU reserves in an epoch is the same")
    def _(s: State) -> Expr:
        same = lambda c, x, some, asid: And(some == s.res_some(c, x), Implies(some, asid == s.res_asid(c, x)))
        known = lambda c, x: Or(s.res_known(c, x), x == 0)
        as_res = lambda c, x, asid, from_: Implies(s.res_known(c, x), And(s.res_some(c, x), s.res_asid(c, x) == asid, s.res_from(c, x) == from_))
        return And(
            s.forall(lambda c, t: Implies(within(0, t, s.active_last(c)), And(known(c, s.active_epoch(c, t)), Implies(s.active_sealed(c, t), same(c, s.active_epoch(c, t), s.active_some(c, t), s.active_asid(c, t))))), CPU, TIME),
            s.forall(lambda c, t, r: Implies(And(within(0, t, s.active_last(c)), Not(s.active_sealed(c, t)), within(s.active_has_reserved(c, t), r, s.reserved_last(c))), s.reserved_epoch(c, r) >= s.active_epoch(c, t)), CPU, TIME, TIME),
            s.forall(lambda c, r: Implies(within(0, r, s.reserved_last(c)), And(
                Implies(And(s.reserved_epoch(c, r) <= active(s, c, "epoch"), known(c, s.reserved_epoch(c, r))), same(c, s.reserved_epoch(c, r), s.reserved_some(c, r), s.reserved_asid(c, r))),
                Implies(s.reserved_epoch(c, r) > active(s, c, "epoch"), And(s.reserved_some(c, r) == active(s, c, "some"), Implies(s.reserved_some(c, r), s.reserved_asid(c, r) == active(s, c, "asid")))))), CPU, TIME),
            s.forall(lambda c, r: Implies(within(0, r, s.reserved_last(c)), s.reserved_epoch(c, r) <= later(s.clean(c), active(s, c, "epoch"))), CPU, TIME),
            s.forall(lambda c, x: And(Implies(Or(s.res_known(c, x), s.res_some(c, x)), And(s.res_known(c, x), 0 <= x, x <= active(s, c, "epoch"))), Implies(s.res_some(c, x), And(s.came(c), s.first(c) <= s.res_from(c, x), s.res_from(c, x) < x, s.res_from(c, x) <= s.act_from(c)))), CPU, TIME),
            s.forall(lambda c, x: And(
                Implies(And(active(s, c, "some"), s.act_from(c) < x, x <= active(s, c, "epoch")), as_res(c, x, active(s, c, "asid"), s.act_from(c))),
                Implies(And(Not(active(s, c, "some")), s.act_from(c) < x, x <= active(s, c, "epoch")), Not(s.res_some(c, x))),
                Implies(And(s.root_some(c), s.pc(c) == LOADS, s.root_from(c) < x, x <= s.root_until(c)), as_res(c, x, s.root_asid(c), s.root_from(c))),
                Implies(And(s.old_some(c), s.old_from(c) < x, x <= s.clean(c)), as_res(c, x, s.old_asid(c), s.old_from(c)))), CPU, TIME),
            s.forall(lambda c, x, y: Implies(And(s.res_some(c, x), s.res_from(c, x) < y, y < x), as_res(c, y, s.res_asid(c, x), s.res_from(c, x))), CPU, TIME, TIME),
            s.forall(lambda c: Implies(s.pc(c) == STORED, And(within(s.cpu_active(c), s.seen_at(c), s.active_last(c)), s.active_epoch(c, s.seen_at(c)) <= s.e(c), s.reserved_epoch(c, s.reserved_last(c)) >= s.e(c))), CPU))

    @m.holds("a CPU that reserves an ASID has chosen it since it was last given")
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda c, t: Implies(within(active(s, c, "has_chosen"), t, s.chosen_last(c)), s.chosen_epoch(c, t) >= s.act_from(c)), CPU, TIME),
            s.forall(lambda c, t, u: Implies(And(within(0, t, s.active_last(c)), s.res_some(c, s.active_epoch(c, t)), within(s.active_has_chosen(c, t), u, s.chosen_last(c))), s.chosen_epoch(c, u) >= s.res_from(c, s.active_epoch(c, t))), CPU, TIME, TIME),
            s.forall(lambda c: Implies(s.pc(c) == STORED, s.chosen_epoch(c, s.chosen_last(c)) == s.e(c)), CPU),
            s.forall(lambda c: Implies(one_of(s.pc(c), FOUND, KEEPS), And(word(s, c, "some"), s.res_some(s.found(c), s.e(c)), s.res_asid(s.found(c), s.e(c)) == word(s, c, "asid"), s.found_chosen(c) >= 0)), CPU),
            s.forall(lambda c, u: Implies(And(s.pc(c) == FOUND, within(s.found_chosen(c), u, s.chosen_last(s.found(c)))), s.chosen_epoch(s.found(c), u) >= s.res_from(s.found(c), s.e(c))), CPU, TIME),
            s.forall(lambda c: Implies(s.pc(c) == KEEPS, s.res_from(s.found(c), s.e(c)) <= word(s, c, "epoch")), CPU))

    @m.holds("a stock has no ASID that a CPU reserves, or will choose in the stock's epoch")
    def _(s: State) -> Expr:
        seen = lambda c, d: And(scans(s, c), s.scanned(c, d))
        return And(
            s.forall(lambda c, d: Implies(seen(c, d), Or(active(s, d, "epoch") >= s.stock_epoch(c), Not(s.came(d)), s.first(d) >= s.stock_epoch(c))), CPU, CPU),
            *(s.forall(lambda c, d, n=name: Implies(And(seen(c, d), claims(s, d, s.stock_epoch(c))[n][0], s.mine(c, claims(s, d, s.stock_epoch(c))[n][1])), claims(s, d, s.stock_epoch(c))[n][3] >= s.stock_epoch(c)), CPU, CPU) for name in ("act", "root", "old")),
            s.forall(lambda c, d, x: Implies(And(seen(c, d), res_claim(s, d, s.stock_epoch(c), x)[0], s.mine(c, s.res_asid(d, x))), s.res_from(d, x) >= s.stock_epoch(c)), CPU, CPU, TIME),
            s.forall(lambda c, d: Implies(And(scans(s, c), s.came(d)), Or(s.cpu_users(c, d) >= 1, s.first(d) >= s.stock_epoch(c))), CPU, CPU),
            s.forall(lambda d: And(Implies(s.came(d), s.S_users(d) >= 1), Implies(one_of(s.pc(d), JOINED, SYNCED), s.cpu_users(d, d) >= 1), Implies(s.pc(d) >= SYNCED, s.came(d))), CPU))

    @m.holds("an ASID is in one stock, and a space has it only if it was kept")
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda c, a: And(
                Implies(s.mine(c, a), And(s.stock(c) != EMPTY, s.taken(s.stock_epoch(c), a), Implies(s.owned(s.stock_epoch(c), a), Or(s.kept(s.stock_epoch(c), a), s.pinned_in(s.stock_epoch(c), a))))),
                Implies(And(s.checked(c, a)), s.stock(c) >= SCAN)), CPU, TAG),
            s.forall(lambda c, d: Implies(s.scanned(c, d), s.stock(c) >= SCAN), CPU, CPU),
            s.forall(lambda c: Implies(s.stock(c) == READY, And(s.forall(lambda d: s.scanned(c, d), CPU), s.forall(lambda a: s.checked(c, a), TAG))), CPU),
            s.forall(lambda c, d, a: Implies(And(s.mine(c, a), s.mine(d, a), s.stock_epoch(c) == s.stock_epoch(d)), c == d), CPU, CPU, TAG),
            s.forall(lambda k, a: And(Implies(s.owned(k, a), Or(s.taken(k, a), s.kept(k, a), s.pinned_in(k, a))), Implies(s.kept(k, a), s.owned(k, a)),
                Implies(s.kept(k, a), And(s.res_some(s.cover(k, a, k - 1), k), s.res_asid(s.cover(k, a, k - 1), k) == a))), TIME, TAG))

    @m.holds("a space that keeps an ASID has it in all epochs between")
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda k, a: Implies(s.owned(k, a), And(0 <= s.birth(k, a), s.birth(k, a) <= k, s.birth(k, a) <= s.S_epoch, s.owned(s.birth(k, a), a), tag_of(s, s.owner(k, a), "epoch") >= k)), TIME, TAG),
            s.forall(lambda k, a, j: Implies(And(s.owned(k, a), within(s.birth(k, a), j, k), s.owned(j, a)), s.owner(j, a) == s.owner(k, a)), TIME, TAG, TIME),
            s.forall(lambda k, a, j: Implies(And(s.owned(k, a), s.birth(k, a) <= j, j < k, Not(s.owned(j, a)), Not(s.pinned_in(j, a))), And(
                s.res_some(s.cover(k, a, j), s.cover_at(k, a, j)), s.res_asid(s.cover(k, a, j), s.cover_at(k, a, j)) == a, s.res_from(s.cover(k, a, j), s.cover_at(k, a, j)) <= j, j < s.cover_at(k, a, j))), TIME, TAG, TIME),
            s.forall(lambda c, k, a: Implies(s.owned(k, a), Or(active(s, c, "epoch") >= s.birth(k, a), Not(s.came(c)), s.first(c) >= s.birth(k, a))), CPU, TIME, TAG))

    @m.holds("pins: what can be read of a pinned ASID")
    def _(s: State) -> Expr:
        of = lambda c: word(s, c, "asid")
        pinned = lambda p: tag_of(s, p, "pinned")
        over = lambda c: s.cpu_epoch(c) > s.e(c)
        shown = lambda k, a, t: Or(s.pins_on(a, t), s.pins_listed(a, t) > k)
        return And(
            s.forall(lambda c: And(Implies(one_of(s.pc(c), PINS, PIN_FENCED, UNPINS), And(locked(s, c), word(s, c, "some"), Not(tag_of(s, s.space(c), "pinned")))), Implies(s.pc(c) == PIN_FENCED, s.S_pins(of(c)) >= s.since(of(c))), Implies(s.pc(c) == PINS, s.cpu_pins(c, of(c)) >= s.since(of(c))), Implies(locked(s, c), s.lock_epoch <= s.cpu_epoch(c)),
                Implies(And(locked(s, c)), s.pc(c) >= IDLE)), CPU),
            s.forall(lambda p: Implies(pinned(p), And(s.pin_from(p) <= tag_of(s, p, "epoch"), s.owned(s.pin_from(p), tag_of(s, p, "asid")), s.owner(s.pin_from(p), tag_of(s, p, "asid")) == p, Or(s.pin_from(p) <= s.lock_epoch, And(s.lock_some, s.pin_from(p) <= s.cpu_epoch(s.lock))), s.S_pins(tag_of(s, p, "asid")) >= s.since(tag_of(s, p, "asid")))), SPACE),
            s.forall(lambda c, p: Implies(And(locked(s, c), pinned(p)), And(s.pin_from(p) <= s.cpu_epoch(c), Implies(Or(And(s.pc(c) >= PROPOSED, s.pc(c) <= USES), one_of(s.pc(c), PINS, PIN_FENCED)), s.pin_from(p) <= s.e(c)))), CPU, SPACE),
            s.forall(lambda p, k: Implies(And(pinned(p), s.pin_from(p) <= k, s.owned(k, tag_of(s, p, "asid"))), s.owner(k, tag_of(s, p, "asid")) == p), SPACE, TIME),
            s.forall(lambda c, p: Implies(And(one_of(s.pc(c), PINS, PIN_FENCED, UNPINS), pinned(p)), tag_of(s, p, "asid") != of(c)), CPU, SPACE),
            s.forall(lambda p, t: Implies(And(pinned(p), within(s.since(tag_of(s, p, "asid")), t, s.pins_last(tag_of(s, p, "asid")))), s.pins_on(tag_of(s, p, "asid"), t)), SPACE, TIME),
            s.forall(lambda c, t: Implies(And(one_of(s.pc(c), PINS, PIN_FENCED, UNPINS), within(s.since(of(c)), t, s.pins_last(of(c)))), s.pins_on(of(c), t)), CPU, TIME),
            s.forall(lambda c, p: Implies(And(scans(s, c), pinned(p), s.stock_epoch(c) > s.pin_from(p)), And(s.cpu_pins(c, tag_of(s, p, "asid")) >= s.since(tag_of(s, p, "asid")), Not(And(s.mine(c, tag_of(s, p, "asid")), s.checked(c, tag_of(s, p, "asid")))))), CPU, SPACE),
            s.forall(lambda c, d: Implies(And(scans(s, d), s.pc(c) == PIN_FENCED, s.stock_epoch(d) > s.e(c)), Or(over(c), And(s.cpu_pins(d, of(c)) >= s.since(of(c)), Not(And(s.mine(d, of(c)), s.checked(d, of(c))))))), CPU, CPU),
            s.forall(lambda c, k: Implies(And(one_of(s.pc(c), PINS, PIN_FENCED), k > s.e(c), s.owned(k, of(c)), s.owner(k, of(c)) != s.space(c)), If(s.pc(c) == PINS, s.S_epoch > s.e(c), over(c))), CPU, TIME),
            s.forall(lambda k, a, t: Implies(And(s.pinned_in(k, a), within(s.S_pins(a), t, s.pins_last(a))), shown(k, a, t)), TIME, TAG, TIME),
            s.forall(lambda c, a, t: Implies(And(scans(s, c), s.pinned_in(s.stock_epoch(c), a), within(s.cpu_pins(c, a), t, s.pins_last(a))), shown(s.stock_epoch(c), a, t)), CPU, TAG, TIME),
            s.forall(lambda c, a: Implies(And(scans(s, c), s.pinned_in(s.stock_epoch(c), a), s.mine(c, a)), Not(s.checked(c, a))), CPU, TAG),
            s.forall(lambda k, a: Implies(s.pinned_in(k, a), Or(s.pins_listed(a, s.pins_last(a)) > k, And(pinned(s.pinner(k, a)), tag_of(s, s.pinner(k, a), "asid") == a, tag_of(s, s.pinner(k, a), "epoch") >= k), And(s.lock_some, s.pc(s.lock) == UNPINS, of(s.lock) == a, word(s, s.lock, "epoch") >= k))), TIME, TAG))

    @m.holds("6: a TLB that was emptied for an epoch holds translations of the owners in that epoch, and of the root at that time")
    def _(s: State) -> Expr:
        return s.forall(lambda c, a, q: Implies(And(s.pc(c) >= IDLE, s.holds(c, a, q)), Or(And(s.owned(s.clean(c), a), s.owner(s.clean(c), a) == q), And(s.old_some(c), s.old_asid(c) == a, s.old_space(c) == q))), CPU, TAG, SPACE)

    stock, unique, covers, chosen, words = "a stock has no ASID that a CPU reserves, or will choose in the stock's epoch", "an ASID is in one stock, and a space has it only if it was kept", "a space that keeps an ASID has it in all epochs between", "what a CPU has chosen, has loaded, or reserves, is one space's", "a space's word names an ASID that it owned in that epoch, and does not go back"
    reserving, pins, same = "a CPU that reserves an ASID has chosen it since it was last given", "pins: what can be read of a pinned ASID", "all that can be read of what a CPU reserves in an epoch is the same"
    complete = lambda s, c, a: And(s.stock(c) == READY, s.mine(c, a))

    @m.follows("an ASID of a stock that is complete is no space's in the epoch", unique, stock, pins, same)
    def _(s: State) -> Expr:
        return s.forall(lambda c, a: Implies(complete(s, c, a), And(Not(s.owned(s.stock_epoch(c), a)), Not(s.pinned_in(s.stock_epoch(c), a)))), CPU, TAG)

    @m.follows("an ASID of a stock that is complete is no space's in epochs around it", "an ASID of a stock that is complete is no space's in the epoch", covers, stock, unique, chosen)
    def _(s: State) -> Expr:
        return s.forall(lambda c, a, k: Implies(And(complete(s, c, a), s.owned(k, a), s.stock_epoch(c) < k), s.birth(k, a) > s.stock_epoch(c)), CPU, TAG, TIME)

    @m.follows("an ASID that a space may keep is claimed for that space only", chosen, words, reserving, "ranges", pins)
    def _(s: State) -> Expr:
        mine = lambda c, claim: Implies(And(s.pc(c) == KEEPS, claim[0], claim[1] == word(s, c, "asid")), claim[2] == s.space(c))
        pin = lambda p, claim: Implies(And(tag_of(s, p, "pinned"), claim[0], claim[1] == tag_of(s, p, "asid")), claim[2] == p)
        return And(
            *(s.forall(lambda c, d, n=name: mine(c, claims(s, d, s.e(c))[n]), CPU, CPU) for name in ("act", "root", "old")), s.forall(lambda c, d, x: mine(c, res_claim(s, d, s.e(c), x)), CPU, CPU, TIME),
            *(s.forall(lambda p, d, k, n=name: Implies(s.pin_from(p) <= k, pin(p, claims(s, d, k)[n])), SPACE, CPU, TIME) for name in ("act", "root", "old")), s.forall(lambda p, d, k, x: Implies(s.pin_from(p) <= k, pin(p, res_claim(s, d, k, x))), SPACE, CPU, TIME, TIME))

    @m.holds("6: under a loaded ASID, the TLB holds translations of the loaded space only", safety=True)
    def _(s: State) -> Expr:
        return s.forall(lambda c, q: Implies(And(s.root_some(c), s.holds(c, s.root_asid(c), q)), q == s.root_space(c)), CPU, SPACE)

    @m.follows("6: an ASID that CPUs have chosen, or a device uses, is one space's", chosen, pins, safety=True)
    def _(s: State) -> Expr:
        has = lambda c, a: And(active(s, c, "some"), active(s, c, "asid") == a)
        return And(
            s.forall(lambda c, d: Implies(And(s.act_from(c) <= s.act_from(d), active(s, c, "some"), has(d, active(s, c, "asid"))), s.act_space(c) == s.act_space(d)), CPU, CPU),
            s.forall(lambda c, p: Implies(And(tag_of(s, p, "pinned"), has(c, tag_of(s, p, "asid"))), s.act_space(c) == p), CPU, SPACE))
