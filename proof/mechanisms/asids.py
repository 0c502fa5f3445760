"""Tags that CPUs share: ASIDs with epochs, taken from stocks. An ASID belongs to one space at a time.

A step is one access to a shared word. Blocks of ASIDs have any size; `next` is abstract: each ASID is taken once in an epoch.
"""

from __future__ import annotations

from ..logic import ALL, BOOL, CODE, TIME, And, Expr, If, Not, Or, State, later, within
from ..memory import Thread, Word, append
from ..system import System, Taken
from .bell import CPU
from .tags import SPACE, TAG

OFF, JOINED, SYNCED, IDLE, READ, PROPOSED, OLD, FOUND, KEEPS, USES, EMPTIED, STORED, LOADS, PINS, PIN_FENCED, UNPINS = range(16)
"""Where a CPU is. From `JOINED` on, it is in the set of users."""
EMPTY, BLOCK, SCAN, READY = range(4)
"""A CPU's stock: none; a block is being taken; its ASIDs are compared with those that others reserve; usable."""

# The parts of the invariant, and what follows from them. Steps name those that they rely on.
RANGES = "ranges"
BLOCK_EPOCH = "a CPU has read the epoch of its stock"
WORDS = "a space's word names an ASID that it owned in that epoch, and does not go back"
SOLE = "what a CPU has chosen, has loaded, or reserves, is one space's"
OWN_WORDS = "a CPU's words"
SAME = "all that can be read of what a CPU reserves in an epoch is the same"
CHOSEN = "a CPU that reserves an ASID has chosen it since it was last given"
COMPARED = "a stock has no ASID that a CPU reserves, or will choose in the stock's epoch"
UNIQUE = "an ASID is in one stock, and a space has it only if it was kept"
BETWEEN = "a space that keeps an ASID has it in all epochs between"
PINNED = "pins: a pinned ASID is its space's, from the epoch on in which it was pinned"
PIN_VIEWS = "pins: what can be read of a pinned ASID"
HELD = "6: a TLB that was emptied for an epoch holds translations of the owners in that epoch, and of the root at that time"
FREE = "an ASID of a stock that is complete is no space's in the epoch"
FREE_AROUND = "an ASID of a stock that is complete is no space's in epochs around it"
KEPT = "an ASID that a space may keep is claimed for that space only"


def model() -> System:
    m = System("asids", sizes={CPU: 2, SPACE: 2, TAG: 2, TIME: 4}, basis=(RANGES, OWN_WORDS, WORDS))
    epoch = Word(m, "epoch", fenced=True)
    users = Word(m, "users", (CPU,), fenced=True)
    pins = Word(m, "pins", (TAG,), {"on": BOOL, "listed": TIME}, fenced=True)
    tag = Word(m, "tag", (SPACE,), {"epoch": TIME, "some": BOOL, "asid": TAG, "proposed": BOOL, "pinned": BOOL}, carries=(epoch,))
    cpu = Thread(m, "cpu", CPU, (epoch, users, pins))
    own = {"epoch": TIME, "some": BOOL, "asid": TAG}
    for name, values in (("active", {"sealed": BOOL, "has_reserved": TIME, "has_chosen": TIME}), ("reserved", {}),
        ("chosen", {})):
        Word(m, name, (CPU,), own | values)
    m.field((CPU,), {TIME: "cpu_active"})
    # A CPU that switches.
    m.field((CPU,), {CODE: "pc", SPACE: "space", TIME: "at e seen_at clean found_chosen", BOOL: "wants", TAG: "asid", CPU: "found"})
    m.field((), {BOOL: "lock_some", CPU: "lock"})
    m.field((CPU, TAG, SPACE), {BOOL: "holds"})
    # Its stock.
    m.field((CPU,), {CODE: "stock", TIME: "stock_epoch"})
    m.field((CPU, TAG), {BOOL: "mine checked"})
    m.field((CPU, CPU), {BOOL: "scanned"})
    m.field((TIME, TAG), {BOOL: "taken"})
    # Ghosts: each epoch's owners, by which reservation or pin they were kept; what a CPU reserves in an epoch.
    m.field((TIME, TAG), {BOOL: "owned kept pinned_in", SPACE: "owner pinner", TIME: "birth"})
    m.field((TIME, TAG, TIME), {CPU: "cover", TIME: "cover_at"})
    m.field((CPU, TIME), {BOOL: "res_known"})
    # Ghosts: the space of the active ASID, and the epoch from which on it is that space's; the same for the root, until
    # it is replaced; the root that was loaded when the TLB was emptied; the epoch known when the CPU came online.
    m.field((CPU,), {SPACE: "act_space", TIME: "act_from root_until first", BOOL: "came"})
    for name, args in (("res", (CPU, TIME)), ("root", (CPU,)), ("old", (CPU,))):
        m.field(args, {BOOL: f"{name}_some", TAG: f"{name}_asid", SPACE: f"{name}_space", TIME: f"{name}_from"})
    m.field((TAG,), {TIME: "since"})
    m.field((SPACE,), {TIME: "pin_from"})
    m.field((), {TIME: "lock_epoch"})
    m.small = {TAG: 1, SPACE: 1, TIME: 3}
    steps_of_words(m, cpu, epoch, users, tag)
    steps_of_stock(m, cpu, epoch, users, pins, tag)
    steps_of_pins(m, cpu, pins, tag)
    routes(m)
    return m


def routes(m: System) -> None:
    load = lambda t, n: [("switch: load the space's ASID", {"p": 0, "t": t}), ("switch: load the epoch", {"n": n})]
    scan = ["stock: fence", *["stock: read whether an ASID is pinned"] * 2, ("stock: find that a CPU has never been online",
        {"d": 1})]
    first = [("online: enter the users", {"c": 0}), "online: synchronize", "online: empty the TLB", *load(0, 0),
        "stock: begin a block", "stock: take an ASID of the block", *scan, ("stock: read what a CPU reserves", {"d": 0}),
        "stock: is complete", "space: propose an ASID of the stock", *load(1, 0), "switch: confirm a proposed ASID"]
    choose = ["choose: exchange its own word", "switch: load the root", "hardware: cache a translation of the loaded root"]
    mark = [*first, "pin or unpin: take the lock", *load(2, 0), "pin: mark the ASID pinned", "pin: fence"]
    pin = "pin: find the epoch the same, and pin"
    found = ["space: find its ASID chosen by the CPU that reserves it", "space: keep a reserved ASID"]
    own = [*first, *load(2, 0), "switch: empty the TLB for the epoch", "choose: store what it has chosen", *choose, *load(2, 0),
        "roll over", *load(2, 1)]
    m.routes += [
        [*own, "space: find its ASID reserved, and seal the CPU's word", *found, *load(3, 1),
            "switch: empty the TLB for the epoch", "choose: store what it reserves, and has chosen", *choose],
        [*own, ("stock: begin a block", {"g": 1}), *scan, "stock: seal a CPU's word", "space: find its ASID reserved", *found],
        [*mark, pin, "unpin", "unpin: list the ASIDs of the epoch, and mark the ASID unpinned", "pin or unpin: release the lock"],
        [*mark, pin, *load(3, 0), "roll over", *load(3, 1), ("stock: begin a block", {"g": 1}), *scan,
            "space: keep a pinned ASID", *load(4, 1), "switch: empty the TLB for the epoch",
            "choose: store what it reserves, and has chosen", ("stock: seal a CPU's word", {"d": 0}),
            "choose: find its own word sealed"],
        [*own[: own.index("roll over") - 2], *load(2, 0), "switch: find that it has chosen in this epoch before",
            "choose: store what it has chosen", *choose],
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
    x.put(values["epoch"], values["asid"], owned=True, owner=x.space(c))
    x.set("pc", c, to=IDLE)


def reserves(x: Taken, c: Expr, e: Expr, is_first: Expr) -> None:
    """Ghosts: in an epoch, a CPU reserves the ASID that it has when its word first is of that epoch."""
    for name, value in (("some", active(x, c, "some")), ("asid", active(x, c, "asid")), ("space", x.act_space(c)),
        ("from", x.act_from(c))):
        x.set(f"res_{name}", c, e, to=If(is_first, value, getattr(x, f"res_{name}")(c, e)))
    x.set("res_known", c, e, to=True)


def steps_of_words(m: System, cpu: Thread, epoch: Word, users: Word, tag: Word) -> None:
    @m.step("online: enter the users", c=CPU, n=TIME, pc=(OFF, JOINED))
    def _(x, c, n):
        cpu.modify(x, c, users, (c,), acquire=False, release=False)
        cpu.load(x, c, epoch, (), n, False)
        # The TLB will be emptied, after its last choice. (The engine may empty it once more than the model, which drops nothing.)
        x.put(c, clean=later(n, x.active_epoch(c, x.cpu_active(c))), old_some=False)

    @m.step("online: synchronize", c=CPU, pc=(JOINED, SYNCED))
    def _(x, c):
        x.put(c, came=True, first=If(x.came(c), x.first(c), later(x.cpu_epoch(c), x.S_epoch) if x.obeys("OnlineSync") else x.cpu_epoch(c)))
        if x.obeys("OnlineSync"):
            cpu.fence(x, c)

    @m.step("online: empty the TLB", COMPARED, c=CPU, pc=(SYNCED, IDLE))
    def _(x, c):
        x.set("holds", c, ALL, ALL, to=False)

    @m.step("offline", c=CPU)
    def _(x, c):
        x.require(Or(x.pc(c) == IDLE, And(x.pc(c) == LOADS, Not(x.wants(c)))), Not(x.root_some(c)),
            Not(And(x.lock_some, x.lock == c)))
        x.set("pc", c, to=OFF)

    @m.step("hardware: cache a translation of the loaded root", SOLE, c=CPU)
    def _(x, c):
        x.require(x.root_some(c))
        x.set("holds", c, x.root_asid(c), x.root_space(c), to=True)

    @m.step("hardware: drop a translation", c=CPU, a=TAG, p=SPACE)
    def _(x, c, a, p):
        x.set("holds", c, a, p, to=False)

    @m.step("switch: load the space's ASID", c=CPU, p=SPACE, t=TIME, pc=(IDLE, READ))
    def _(x, c, p, t):
        x.require(within(0, t, x.tag_last(p)))
        if x.obeys("AsidAcquire"):
            cpu.join(x, c, tag, (p,), t)
        x.put(c, space=p, at=t)

    @m.step("switch: load the epoch", c=CPU, n=TIME, pc=READ)
    def _(x, c, n):
        cpu.load(x, c, epoch, (), n, False)
        x.put(c, e=n, pc=If(And(word(x, c, "some"), word(x, c, "epoch") == n), If(word(x, c, "proposed"), PROPOSED, USES), OLD))

    @m.step("switch: confirm a proposed ASID", c=CPU, pc=PROPOSED)
    def _(x, c):
        renew(x, cpu, tag, c, proposed=False)

    @m.step("switch: find its word changed", c=CPU, pc=({PROPOSED, OLD, FOUND, KEEPS}, IDLE))
    def _(x, c):
        x.require(Not(unchanged(x, c)))

    @m.step("switch: empty the TLB for the epoch", c=CPU, pc=(USES, EMPTIED))
    def _(x, c):
        empties(x, c)
        x.put(c, wants=True, asid=word(x, c, "asid"))

    @m.step("switch: find that it has chosen in this epoch before", c=CPU, pc=(USES, EMPTIED))
    def _(x, c):
        at = x.cpu_active(c)
        x.require(x.active_epoch(c, at) == x.e(c), Not(x.active_sealed(c, at)))
        x.put(c, wants=True, asid=word(x, c, "asid"))

    def empties(x: Taken, c: Expr) -> None:
        is_new = x.clean(c) < x.e(c)
        x.set("clean", c, to=later(x.clean(c), x.e(c)))
        if x.obeys("FlushOnRollover"):
            x.set("holds", c, ALL, ALL, to=False, where=lambda a, p: is_new)
            for name in ("some", "asid", "space", "from"):
                x.set(f"old_{name}", c, to=If(is_new, getattr(x, f"root_{name}")(c), getattr(x, f"old_{name}")(c)))

    @m.step("switch to a space without an ASID", c=CPU, pc=(IDLE, EMPTIED))
    def _(x, c):
        # Not of an earlier epoch than that for which the TLB was emptied: until the root is replaced, its ASID is reserved.
        x.put(c, e=later(active(x, c, "epoch"), x.clean(c)), wants=False)

    for moves, name in ((True, "choose: store what it reserves, and has chosen"), (False, "choose: store what it has chosen")):
        @m.step(name, SAME, c=CPU, b=TIME, pc=(EMPTIED, STORED))
        def _(x, c, b, moves=moves):
            x.require(within(x.cpu_active(c), b, x.active_last(c)), x.active_epoch(c, b) <= x.e(c))
            x.require(Or(x.active_epoch(c, b) != x.e(c), x.active_sealed(c, b)) == moves)
            if moves:
                append(x, "reserved", (c,), epoch=x.e(c), some=x.active_some(c, b), asid=x.active_asid(c, b))
            append(x, "chosen", (c,), epoch=x.e(c), some=x.wants(c), asid=x.asid(c))
            x.put(c, seen_at=b)

    @m.step("choose: exchange its own word", SAME, BETWEEN, c=CPU, pc=(STORED, LOADS))
    def _(x, c):
        x.require(x.active_last(c) == x.seen_at(c))
        first = Or(active(x, c, "epoch") != x.e(c), active(x, c, "sealed"))
        views = {"has_reserved": x.reserved_last(c), "has_chosen": x.chosen_last(c)}
        if not x.obeys("ActiveTagRelease"):
            views = {name: active(x, c, name) for name in views}
        reserves(x, c, x.e(c), And(first, Not(x.res_known(c, x.e(c)))))
        append(x, "active", (c,), epoch=x.e(c), sealed=False, some=x.wants(c), asid=x.asid(c), **views)
        x.put(c, cpu_active=x.active_last(c) + 1, act_space=x.space(c), act_from=x.e(c), root_until=x.e(c))

    @m.step("choose: find its own word sealed", c=CPU)
    def _(x, c):
        x.require(Or(And(x.pc(c) == STORED, x.active_last(c) != x.seen_at(c)),
            And(x.pc(c) == EMPTIED, active(x, c, "epoch") > x.e(c))))
        x.set("pc", c, to=IDLE)

    @m.step("switch to a space without an ASID: empty the TLB", c=CPU, pc=LOADS, wants=False)
    def _(x, c):
        empties(x, c)

    @m.step("switch: load the root", SOLE, HELD, c=CPU, pc=(LOADS, IDLE))
    def _(x, c):
        x.require(Or(x.wants(c), x.e(c) <= x.clean(c)))
        x.put(c, root_some=x.wants(c), root_asid=x.asid(c), root_space=x.act_space(c), root_from=x.act_from(c))

    @m.step("roll over", c=CPU, pc=({USES, OLD}, IDLE))
    def _(x, c):
        cpu.modify(x, c, epoch, (), acquire=False, release=False)


def seal(x: Taken, c: Expr, d: Expr, e: Expr) -> tuple[Expr, Expr, Expr]:
    """Seals a CPU's word for an epoch. Returns what that CPU reserves, and the view of what it has chosen."""
    some = active(x, d, "some") if x.obeys("ReserveTags") else False
    asid = active(x, d, "asid")
    x.require(active(x, d, "epoch") < e)
    reserves(x, d, e, True)
    views = {name: active(x, d, name) for name in ("has_reserved", "has_chosen")}
    append(x, "active", (d,), epoch=e, sealed=True, some=some, asid=asid, **views)
    return some, asid, active(x, d, "has_chosen") if x.obeys("ActiveTagAcquire") else 0


def read(x: Taken, d: Expr, e: Expr, t: Expr, r: Expr) -> tuple[Expr, Expr, Expr]:
    """The same for a CPU whose word is of the epoch already."""
    acquires = x.obeys("ActiveTagAcquire")
    x.require(within(0, t, x.active_last(d)), x.active_epoch(d, t) == e)
    x.require(Or(x.active_sealed(d, t), And((x.active_has_reserved(d, t) if acquires else 0) <= r, r <= x.reserved_last(d),
        x.reserved_epoch(d, r) <= e)))
    of_epoch = And(x.reserved_epoch(d, r) == e, x.reserved_some(d, r))
    some = If(x.active_sealed(d, t), x.active_some(d, t), of_epoch)
    return some, If(x.active_sealed(d, t), x.active_asid(d, t), x.reserved_asid(d, r)), x.active_has_chosen(d,
        t) if acquires else 0


def steps_of_stock(m: System, cpu: Thread, epoch: Word, users: Word, pins: Word, tag: Word) -> None:
    def compare(x: Taken, c: Expr, d: Expr, some: Expr, asid: Expr) -> None:
        x.require(x.stock(c) == SCAN, Not(x.scanned(c, d)))
        x.set("mine", c, asid, to=And(x.mine(c, asid), Not(some)))
        x.set("scanned", c, d, to=True)

    @m.step("stock: begin a block", c=CPU, g=TIME, n=TIME, pc=OLD, stock=({EMPTY, READY}, BLOCK))
    def _(x, c, g, n):
        # The block may be of a later epoch than the CPU has read, but not of one that has not begun.
        x.require(within(0, g, x.epoch_last))
        cpu.load(x, c, epoch, (), n, False)
        if x.obeys("ReadEpoch"):
            x.require(g <= n)
        x.put(c, stock_epoch=g)
        x.put(c, ALL, mine=False, checked=False, scanned=False)

    @m.step("stock: take an ASID of the block", c=CPU, a=TAG, stock=BLOCK)
    def _(x, c, a):
        x.require(Not(x.taken(x.stock_epoch(c), a)))
        x.set("taken", x.stock_epoch(c), a, to=True)
        x.set("mine", c, a, to=True)

    cpu.fence_step(m, "stock: fence", "ReserveFence", BLOCK_EPOCH, UNIQUE, PINNED, c=CPU, stock=(BLOCK, SCAN))

    @m.step("stock: read whether an ASID is pinned", c=CPU, a=TAG, t=TIME, stock=SCAN, checked=(False, True))
    def _(x, c, a, t):
        cpu.load(x, c, pins, (a,), t, False)
        # If the ASID was unpinned, the list is complete, or the epoch is over.
        listed = And(x.obeys("ListAcquire"), x.pins_listed(a, t) > x.stock_epoch(c))
        x.set("mine", c, a, to=And(x.mine(c, a), Not(x.pins_on(a, t)), Not(listed)))

    @m.step("stock: find that a CPU has never been online", SAME, c=CPU, d=CPU, stock=SCAN)
    def _(x, c, d):
        cpu.load(x, c, users, (d,), 0, False)
        x.set("scanned", c, d, to=True)

    @m.step("stock: seal a CPU's word", SAME, c=CPU, d=CPU)
    def _(x, c, d):
        some, asid, _ = seal(x, c, d, x.stock_epoch(c))
        compare(x, c, d, some, asid)

    @m.step("stock: read what a CPU reserves", SAME, c=CPU, d=CPU, t=TIME, r=TIME)
    def _(x, c, d, t, r):
        some, asid, _ = read(x, d, x.stock_epoch(c), t, r)
        compare(x, c, d, some, asid)

    @m.step("stock: is complete", c=CPU, stock=(SCAN, READY))
    def _(x, c):
        x.require(x.before.forall(lambda d: x.scanned(c, d), CPU), x.before.forall(lambda a: x.checked(c, a), TAG))

    @m.step("space: propose an ASID of the stock", COMPARED, UNIQUE, FREE, FREE_AROUND, PINNED, PIN_VIEWS,
        c=CPU, a=TAG, pc=OLD, stock=READY, mine=(True, False))
    def _(x, c, a):
        x.require(x.stock_epoch(c) == x.e(c), Not(word(x, c, "pinned")))
        x.set("birth", x.e(c), a, to=x.e(c))
        renew(x, cpu, tag, c, epoch=x.e(c), some=True, asid=a, proposed=True)

    def keeps(x: Taken, c: Expr) -> None:
        x.set("birth", x.e(c), word(x, c, "asid"), to=x.birth(word(x, c, "epoch"), word(x, c, "asid")))

    def find(x: Taken, c: Expr, d: Expr, some: Expr, asid: Expr, chosen: Expr) -> None:
        x.require(x.pc(c) == OLD, word(x, c, "some"), some, asid == word(x, c, "asid"))
        x.put(c, found=d, found_chosen=chosen, pc=FOUND)

    @m.step("space: find its ASID reserved, and seal the CPU's word", SAME, c=CPU, d=CPU)
    def _(x, c, d):
        find(x, c, d, *seal(x, c, d, x.e(c)))

    @m.step("space: find its ASID reserved", SAME, c=CPU, d=CPU, t=TIME, r=TIME)
    def _(x, c, d, t, r):
        find(x, c, d, *read(x, d, x.e(c), t, r))

    @m.step("space: find its ASID chosen by the CPU that reserves it", c=CPU, t=TIME, pc=(FOUND, KEEPS))
    def _(x, c, t):
        d = x.found(c)
        x.require(within(x.found_chosen(c), t, x.chosen_last(d)))
        x.require(x.chosen_some(d, t), x.chosen_asid(d, t) == word(x, c, "asid"), x.chosen_epoch(d, t) <= word(x, c, "epoch"))

    @m.step("space: keep a reserved ASID", SOLE, CHOSEN, KEPT, c=CPU, pc=KEEPS)
    def _(x, c):
        renew(x, cpu, tag, c, epoch=x.e(c), proposed=False)
        keeps(x, c)
        x.set("kept", x.e(c), word(x, c, "asid"), to=True)
        for name, value in (("cover", x.found(c)), ("cover_at", x.e(c))):
            x.set(name, x.e(c), word(x, c, "asid"), ALL, to=lambda j, n=name, v=value: If(j >= word(x, c, "epoch"), v,
                getattr(x, n)(word(x, c, "epoch"), word(x, c, "asid"), j)))

    @m.step("space: keep a pinned ASID", BETWEEN, PINNED, c=CPU, pc=OLD)
    def _(x, c):
        x.require(word(x, c, "pinned"))
        renew(x, cpu, tag, c, epoch=x.e(c), proposed=False)
        keeps(x, c)
        w, a = word(x, c, "epoch"), word(x, c, "asid")
        x.put(ALL, a, where=lambda j: And(w < j, j <= x.e(c)), pinned_in=True, pinner=x.space(c))
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

    @m.step("pin or unpin: take the lock", c=CPU, pc=IDLE, lock_some=(False, True))
    def _(x, c):
        x.put(lock=c)
        if x.obeys("TagLockAcquire"):
            x.set("cpu_epoch", c, to=later(x.cpu_epoch(c), x.lock_epoch))

    @m.step("pin or unpin: release the lock", c=CPU, pc=IDLE)
    def _(x, c):
        x.require(holds(x, c))
        release(x)

    @m.step("pin: mark the ASID pinned", BETWEEN, PINNED, c=CPU, pc=(USES, PINS))
    def _(x, c):
        # The word was read under the lock, under which pins change.
        x.require(holds(x, c), Not(word(x, c, "pinned")), Not(tag_of(x, x.space(c), "pinned")))
        mark(x, c, True, 0)
        x.set("since", word(x, c, "asid"), to=x.pins_last(word(x, c, "asid")) + 1)

    cpu.fence_step(m, "pin: fence", "PinFence", c=CPU, pc=(PINS, PIN_FENCED))

    @m.step("pin: find the epoch the same, and pin", PIN_VIEWS, c=CPU, pc=PIN_FENCED)
    def _(x, c):
        x.require(x.cpu_epoch(c) <= x.e(c))
        renew(x, cpu, tag, c, pinned=True)
        x.set("pin_from", x.space(c), to=x.e(c))

    @m.step("pin: find the epoch over, or the word changed", c=CPU, pc=(PIN_FENCED, IDLE))
    def _(x, c):
        mark(x, c, False, 0)

    @m.step("unpin", PINNED, c=CPU, p=SPACE, pc=(IDLE, UNPINS))
    def _(x, c, p):
        x.require(holds(x, c), tag_of(x, p, "pinned"))
        x.put(c, space=p, at=x.tag_last(p))
        cpu.modify(x, c, tag, (p,), acquire=False, release=True,
            **{name: tag_of(x, p, name) for name in tag.values} | {"pinned": False})

    @m.step("unpin: list the ASIDs of the epoch, and mark the ASID unpinned", c=CPU, n=TIME, pc=(UNPINS, IDLE))
    def _(x, c, n):
        x.require(within(x.cpu_epoch(c), n, x.epoch_last))
        mark(x, c, False, later(n, word(x, c, "epoch")) + 1 if x.obeys("ListRelease") else 0)
