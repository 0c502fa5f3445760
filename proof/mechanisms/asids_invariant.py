"""The invariant of the tags that CPUs share: each ASID has one owner in an epoch, and keeps it while a CPU reserves the ASID."""

from __future__ import annotations

from ..logic import TIME, And, Expr, If, Implies, Not, Or, State, later, one_of, within
from ..system import System
from .asids import (
    RANGES, BLOCK_EPOCH, WORDS, SOLE, OWN_WORDS, SAME, CHOSEN, COMPARED, UNIQUE, BETWEEN, PINNED, PIN_VIEWS, HELD, FREE,
    FREE_AROUND, KEPT, OFF, JOINED, SYNCED, IDLE, READ, PROPOSED, OLD, FOUND, KEEPS, USES, EMPTIED, STORED, LOADS, PINS,
    PIN_FENCED, UNPINS, EMPTY, SCAN, READY, active, tag_of, word, model,
)
from .bell import CPU
from .tags import SPACE, TAG


def build() -> System:
    m = model()
    invariant(m)
    return m


def invariant(m: System) -> None:
    scans = lambda s, c: s.stock(c) >= SCAN
    locked = lambda s, c: And(s.lock_some, s.lock == c)
    works = lambda s, c: Or(one_of(s.pc(c), PROPOSED, OLD, FOUND, KEEPS, USES, PINS, PIN_FENCED),
        And(one_of(s.pc(c), EMPTIED, STORED, LOADS), s.wants(c)))

    def claims(s: State, c: Expr, k: Expr) -> dict[str, tuple[Expr, Expr, Expr, Expr]]:
        """What a CPU makes one space's alone: whether it does at an epoch, the ASID, the space, and from which epoch on."""
        return {
            "act": (And(active(s, c, "some"), s.act_from(c) <= k), active(s, c, "asid"), s.act_space(c), s.act_from(c)),
            "root": (And(s.root_some(c), s.pc(c) == LOADS, within(s.root_from(c), k, s.root_until(c))), s.root_asid(c),
                s.root_space(c), s.root_from(c)),
            "old": (And(s.old_some(c), within(s.old_from(c), k, s.clean(c))), s.old_asid(c), s.old_space(c), s.old_from(c)),
        }

    def res_claim(s: State, c: Expr, k: Expr, x: Expr) -> tuple[Expr, Expr, Expr, Expr]:
        return And(s.res_some(c, x), within(s.res_from(c, x), k, x)), s.res_asid(c, x), s.res_space(c, x), s.res_from(c, x)

    @m.holds(RANGES)
    def _(s: State) -> Expr:
        return And(
            within(0, s.S_epoch, s.epoch_last), within(0, s.lock_epoch, s.epoch_last),
            s.forall(lambda c: And(
                within(OFF, s.pc(c), UNPINS), within(EMPTY, s.stock(c), READY), within(0, s.cpu_epoch(c), s.epoch_last),
                s.active_last(c) >= 0, s.reserved_last(c) >= 0, s.chosen_last(c) >= 0,
                within(0, s.cpu_active(c), s.active_last(c)),
                within(0, s.clean(c), later(s.cpu_epoch(c), s.active_epoch(c, s.cpu_active(c)))),
                within(0, s.first(c), s.cpu_epoch(c)),
                0 <= s.e(c), Implies(one_of(s.pc(c), EMPTIED, STORED), s.e(c) <= later(s.clean(c), active(s, c, "epoch"))),
                Implies(works(s, c), within(s.first(c), s.e(c), s.cpu_epoch(c))),
                Implies(s.pc(c) == READ, word(s, c, "epoch") <= s.cpu_epoch(c)),
                Implies(s.stock(c) != EMPTY, within(0, s.stock_epoch(c), s.epoch_last)),
                Implies(scans(s, c), s.stock_epoch(c) <= s.S_epoch),
                within(0, s.at(c), s.tag_last(s.space(c))), s.users_last(c) >= 0, within(0, s.S_users(c), s.users_last(c)),
                s.S_users(c) <= s.users_last(c),
                Implies(And(s.pc(c) > READ, s.pc(c) != UNPINS),
                    Or(s.e(c) >= s.clean(c), s.active_epoch(c, s.cpu_active(c)) >= s.clean(c)))), CPU),
            s.forall(lambda c, t: Implies(within(0, t, s.active_last(c)), And(0 <= s.active_epoch(c, t),
                s.active_epoch(c, t) <= active(s, c, "epoch"), s.active_epoch(c, t) <= s.epoch_last,
                within(0, s.active_has_reserved(c, t), s.reserved_last(c)), within(0, s.active_has_chosen(c, t),
                    s.chosen_last(c)))), CPU, TIME),
            s.forall(lambda p, t: Implies(within(0, t, s.tag_last(p)), And(within(0, s.tag_epoch(p, t), s.tag_has_epoch(p, t)),
                s.tag_has_epoch(p, t) <= s.epoch_last)), SPACE, TIME),
            s.forall(lambda p: s.tag_last(p) >= 0, SPACE),
            s.forall(lambda a: And(s.pins_last(a) >= 0, within(0, s.S_pins(a), s.pins_last(a)),
                within(0, s.since(a), s.pins_last(a))), TAG),
            s.forall(lambda c, a: within(0, s.cpu_pins(c, a), s.pins_last(a)), CPU, TAG),
            s.forall(lambda c, d: within(0, s.cpu_users(c, d), s.users_last(d)), CPU, CPU))

    @m.holds(BLOCK_EPOCH)
    def _(s: State) -> Expr:
        return s.forall(lambda c: Implies(s.stock(c) != EMPTY, s.stock_epoch(c) <= s.cpu_epoch(c)), CPU)

    @m.holds(WORDS)
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda p, t: Implies(within(0, t, s.tag_last(p)), And(
                Implies(s.tag_some(p, t), And(s.owned(s.tag_epoch(p, t), s.tag_asid(p, t)),
                    s.owner(s.tag_epoch(p, t), s.tag_asid(p, t)) == p)), Implies(Or(s.tag_pinned(p, t), s.tag_proposed(p, t)),
                s.tag_some(p, t)), s.tag_epoch(p, t) <= tag_of(s, p, "epoch"))), SPACE, TIME),
            s.forall(lambda c: And(
                Implies(And(s.pc(c) > READ, s.pc(c) < EMPTIED), word(s, c, "epoch") <= s.e(c)),
                Implies(one_of(s.pc(c), PROPOSED, USES, PINS, PIN_FENCED),
                    And(word(s, c, "some"), word(s, c, "epoch") == s.e(c))),
                Implies(one_of(s.pc(c), OLD, FOUND, KEEPS), Or(Not(word(s, c, "some")), word(s, c, "epoch") < s.e(c))),
                Implies(And(s.pc(c) >= EMPTIED, s.pc(c) <= STORED, s.wants(c)), And(s.owned(s.e(c), s.asid(c)),
                    s.owner(s.e(c), s.asid(c)) == s.space(c), s.clean(c) >= s.e(c),
                    Implies(s.pc(c) == STORED, s.clean(c) == s.e(c))))), CPU))

    @m.holds(SOLE)
    def _(s: State) -> Expr:
        def sole(claim: tuple[Expr, Expr, Expr, Expr], k: Expr) -> Expr:
            holds, asid, space, from_ = claim
            return Implies(holds, And(s.owned(from_, asid), s.owner(from_, asid) == space,
                Implies(s.owned(k, asid), s.owner(k, asid) == space)))
        return And(
            *(s.forall(lambda c, k, n=name: sole(claims(s, c, k)[n], k), CPU, TIME) for name in ("act", "root", "old")),
            s.forall(lambda c, k, x: sole(res_claim(s, c, k, x), k), CPU, TIME, TIME))

    @m.holds(OWN_WORDS)
    def _(s: State) -> Expr:
        last = lambda c: s.active_last(c)
        return And(
            s.forall(lambda c: And(
                within(0, s.act_from(c), s.active_epoch(c, s.cpu_active(c))),
                Implies(active(s, c, "some"), And(s.came(c), s.first(c) <= s.act_from(c))),
                Implies(s.root_some(c), And(s.came(c), within(s.first(c), s.root_from(c), s.clean(c)))),
                Implies(s.old_some(c), And(s.came(c), s.first(c) <= s.old_from(c), s.old_from(c) < s.clean(c))),
                Implies(s.pc(c) != LOADS, And(s.root_some(c) == active(s, c, "some"),
                    Implies(s.root_some(c), And(s.root_asid(c) == active(s, c, "asid"), s.root_space(c) == s.act_space(c),
                    s.root_from(c) == s.act_from(c))))),
                Implies(s.pc(c) == LOADS, And(s.active_epoch(c, s.cpu_active(c)) == s.e(c), s.wants(c) == active(s, c, "some"),
                    s.asid(c) == active(s, c, "asid"), s.root_until(c) == s.e(c), s.act_from(c) == s.e(c), s.clean(c) <= s.e(c),
                    Implies(s.wants(c), s.clean(c) == s.e(c)), Implies(s.root_some(c), s.root_from(c) <= s.e(c)))),
                Implies(s.pc(c) > SYNCED, s.came(c)), Implies(s.pc(c) < IDLE, And(Not(s.root_some(c)))),
                Implies(one_of(s.pc(c), JOINED, SYNCED), Not(s.old_some(c))),
                Implies(And(s.root_some(c), s.root_from(c) < s.clean(c)), And(s.old_some(c), s.old_asid(c) == s.root_asid(c),
                    s.old_space(c) == s.root_space(c), s.old_from(c) == s.root_from(c))),
                Implies(And(s.old_some(c), s.clean(c) > active(s, c, "epoch")),
                    And(active(s, c, "some"), active(s, c, "asid") == s.old_asid(c), s.act_from(c) == s.old_from(c),
                    s.act_space(c) == s.old_space(c)))), CPU),
            s.forall(lambda c: Or(s.active_epoch(c, s.cpu_active(c)) <= s.clean(c), s.pc(c) == OFF,
                And(s.pc(c) == LOADS, Not(s.wants(c)))), CPU),
            s.forall(lambda c, t: Implies(within(s.cpu_active(c), t, last(c)), And(s.active_some(c, t) == active(s, c, "some"),
                s.active_asid(c, t) == active(s, c, "asid"))), CPU, TIME),
            s.forall(lambda c, t: Implies(within(0, t, last(c)), And(Implies(s.active_sealed(c, t), s.active_epoch(c, t) > 0),
                Or(s.active_sealed(c, t), t <= s.cpu_active(c)),
                Implies(t >= s.cpu_active(c), s.active_epoch(c, t) >= s.active_epoch(c, s.cpu_active(c))),
                Implies(t <= s.cpu_active(c), s.active_epoch(c, t) <= s.active_epoch(c, s.cpu_active(c))))), CPU, TIME),
            s.forall(lambda c, t: Implies(And(within(0, t, last(c)), t > s.cpu_active(c)),
                s.active_epoch(c, t) > s.active_epoch(c, s.cpu_active(c))), CPU, TIME))

    @m.holds(SAME)
    def _(s: State) -> Expr:
        same = lambda c, x, some, asid: And(some == s.res_some(c, x), Implies(some, asid == s.res_asid(c, x)))
        known = lambda c, x: Or(s.res_known(c, x), x == 0)
        as_res = lambda c, x, asid, from_: Implies(s.res_known(c, x), And(s.res_some(c, x), s.res_asid(c, x) == asid,
            s.res_from(c, x) == from_))
        return And(
            s.forall(lambda c, t: Implies(within(0, t, s.active_last(c)), And(known(c, s.active_epoch(c, t)),
                Implies(s.active_sealed(c, t), same(c, s.active_epoch(c, t), s.active_some(c, t), s.active_asid(c, t))))), CPU,
            TIME),
            s.forall(lambda c, t, r: Implies(And(within(0, t, s.active_last(c)), Not(s.active_sealed(c, t)),
                within(s.active_has_reserved(c, t), r, s.reserved_last(c))), s.reserved_epoch(c, r) >= s.active_epoch(c, t)), CPU,
            TIME, TIME),
            s.forall(lambda c, r: Implies(within(0, r, s.reserved_last(c)), And(
                Implies(And(s.reserved_epoch(c, r) <= active(s, c, "epoch"), known(c, s.reserved_epoch(c, r))),
                    same(c, s.reserved_epoch(c, r), s.reserved_some(c, r), s.reserved_asid(c, r))),
                Implies(s.reserved_epoch(c, r) > active(s, c, "epoch"), And(s.reserved_some(c, r) == active(s, c, "some"),
                    Implies(s.reserved_some(c, r), s.reserved_asid(c, r) == active(s, c, "asid")))))), CPU, TIME),
            s.forall(lambda c, r: Implies(within(0, r, s.reserved_last(c)), s.reserved_epoch(c, r) <= later(s.clean(c),
                active(s, c, "epoch"))), CPU, TIME),
            s.forall(lambda c, x: And(Implies(Or(s.res_known(c, x), s.res_some(c, x)),
                And(s.res_known(c, x), within(0, x, active(s, c, "epoch")))),
            Implies(s.res_some(c, x), And(s.came(c), s.first(c) <= s.res_from(c, x), s.res_from(c, x) < x,
                s.res_from(c, x) <= s.act_from(c)))), CPU, TIME),
            s.forall(lambda c, x: And(
                Implies(And(active(s, c, "some"), s.act_from(c) < x, x <= active(s, c, "epoch")),
                    as_res(c, x, active(s, c, "asid"), s.act_from(c))),
                Implies(And(Not(active(s, c, "some")), s.act_from(c) < x, x <= active(s, c, "epoch")), Not(s.res_some(c, x))),
                Implies(And(s.root_some(c), s.pc(c) == LOADS, s.root_from(c) < x, x <= s.root_until(c)),
                    as_res(c, x, s.root_asid(c), s.root_from(c))),
                Implies(And(s.old_some(c), s.old_from(c) < x, x <= s.clean(c)), as_res(c, x, s.old_asid(c), s.old_from(c)))), CPU,
                TIME),
            s.forall(lambda c, x, y: Implies(And(s.res_some(c, x), s.res_from(c, x) < y, y < x), as_res(c, y, s.res_asid(c, x),
                s.res_from(c, x))), CPU, TIME, TIME),
            s.forall(lambda c: Implies(s.pc(c) == STORED, And(within(s.cpu_active(c), s.seen_at(c), s.active_last(c)),
                s.active_epoch(c, s.seen_at(c)) <= s.e(c), s.reserved_epoch(c, s.reserved_last(c)) >= s.e(c))), CPU))

    @m.holds(CHOSEN)
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda c, t: Implies(within(active(s, c, "has_chosen"), t, s.chosen_last(c)),
                s.chosen_epoch(c, t) >= s.act_from(c)), CPU, TIME),
            s.forall(lambda c, t, u: Implies(And(within(0, t, s.active_last(c)), s.res_some(c, s.active_epoch(c, t)),
                within(s.active_has_chosen(c, t), u, s.chosen_last(c))), s.chosen_epoch(c, u) >= s.res_from(c,
                s.active_epoch(c, t))), CPU, TIME, TIME),
            s.forall(lambda c: Implies(s.pc(c) == STORED, s.chosen_epoch(c, s.chosen_last(c)) == s.e(c)), CPU),
            s.forall(lambda c: Implies(one_of(s.pc(c), FOUND, KEEPS), And(word(s, c, "some"), s.res_some(s.found(c), s.e(c)),
                s.res_asid(s.found(c), s.e(c)) == word(s, c, "asid"), s.found_chosen(c) >= 0)), CPU),
            s.forall(lambda c, u: Implies(And(s.pc(c) == FOUND, within(s.found_chosen(c), u, s.chosen_last(s.found(c)))),
                s.chosen_epoch(s.found(c), u) >= s.res_from(s.found(c), s.e(c))), CPU, TIME),
            s.forall(lambda c: Implies(s.pc(c) == KEEPS, s.res_from(s.found(c), s.e(c)) <= word(s, c, "epoch")), CPU))

    @m.holds(COMPARED)
    def _(s: State) -> Expr:
        seen = lambda c, d: And(scans(s, c), s.scanned(c, d))
        return And(
            s.forall(lambda c, d: Implies(seen(c, d), Or(active(s, d, "epoch") >= s.stock_epoch(c), Not(s.came(d)),
                s.first(d) >= s.stock_epoch(c))), CPU, CPU),
            *(s.forall(lambda c, d, n=name: Implies(And(seen(c, d), claims(s, d, s.stock_epoch(c))[n][0],
                s.mine(c, claims(s, d, s.stock_epoch(c))[n][1])), claims(s, d, s.stock_epoch(c))[n][3] >= s.stock_epoch(c)), CPU,
            CPU) for name in ("act", "root", "old")),
            s.forall(lambda c, d, x: Implies(And(seen(c, d), res_claim(s, d, s.stock_epoch(c), x)[0],
                s.mine(c, s.res_asid(d, x))), s.res_from(d, x) >= s.stock_epoch(c)), CPU, CPU, TIME),
            s.forall(lambda c, d: Implies(And(scans(s, c), s.came(d)),
                Or(s.cpu_users(c, d) >= 1, s.first(d) >= s.stock_epoch(c))), CPU, CPU),
            s.forall(lambda d: And(Implies(s.came(d), s.S_users(d) >= 1), Implies(one_of(s.pc(d), JOINED, SYNCED),
                s.cpu_users(d, d) >= 1), Implies(s.pc(d) >= SYNCED, s.came(d))), CPU))

    @m.holds(UNIQUE)
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda c, a: And(
                Implies(s.mine(c, a), And(s.stock(c) != EMPTY, s.taken(s.stock_epoch(c), a), Implies(s.owned(s.stock_epoch(c), a),
                    Or(s.kept(s.stock_epoch(c), a), s.pinned_in(s.stock_epoch(c), a))))),
                Implies(And(s.checked(c, a)), s.stock(c) >= SCAN)), CPU, TAG),
            s.forall(lambda c, d: Implies(s.scanned(c, d), s.stock(c) >= SCAN), CPU, CPU),
            s.forall(lambda c: Implies(s.stock(c) == READY, And(s.forall(lambda d: s.scanned(c, d), CPU),
                s.forall(lambda a: s.checked(c, a), TAG))), CPU),
            s.forall(lambda c, d, a: Implies(And(s.mine(c, a), s.mine(d, a), s.stock_epoch(c) == s.stock_epoch(d)), c == d), CPU,
                CPU, TAG),
            s.forall(lambda k, a: And(Implies(s.owned(k, a), Or(s.taken(k, a), s.kept(k, a), s.pinned_in(k, a))),
                Implies(s.kept(k, a), s.owned(k, a)),
                Implies(s.kept(k, a), And(s.res_some(s.cover(k, a, k - 1), k), s.res_asid(s.cover(k, a, k - 1), k) == a))), TIME,
                TAG))

    @m.holds(BETWEEN)
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda k, a: Implies(s.owned(k, a), And(within(0, s.birth(k, a), k), s.birth(k, a) <= s.S_epoch,
                s.owned(s.birth(k, a), a), tag_of(s, s.owner(k, a), "epoch") >= k)), TIME, TAG),
            s.forall(lambda k, a, j: Implies(And(s.owned(k, a), within(s.birth(k, a), j, k), s.owned(j, a)),
                s.owner(j, a) == s.owner(k, a)), TIME, TAG, TIME),
            s.forall(lambda k, a, j: Implies(And(s.owned(k, a), s.birth(k, a) <= j, j < k, Not(s.owned(j, a)),
                Not(s.pinned_in(j, a))), And(
                s.res_some(s.cover(k, a, j), s.cover_at(k, a, j)), s.res_asid(s.cover(k, a, j), s.cover_at(k, a, j)) == a,
                s.res_from(s.cover(k, a, j), s.cover_at(k, a, j)) <= j, j < s.cover_at(k, a, j))), TIME, TAG, TIME),
            s.forall(lambda c, k, a: Implies(s.owned(k, a), Or(active(s, c, "epoch") >= s.birth(k, a), Not(s.came(c)),
                s.first(c) >= s.birth(k, a))), CPU, TIME, TAG))

    pinned = lambda s, p: tag_of(s, p, "pinned")

    @m.holds(PINNED)
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda p: Implies(pinned(s, p), And(s.pin_from(p) <= tag_of(s, p, "epoch"),
                s.owned(s.pin_from(p), tag_of(s, p, "asid")), s.owner(s.pin_from(p), tag_of(s, p, "asid")) == p,
                Or(s.pin_from(p) <= s.lock_epoch, And(s.lock_some, s.pin_from(p) <= s.cpu_epoch(s.lock))),
                s.S_pins(tag_of(s, p, "asid")) >= s.since(tag_of(s, p, "asid")))), SPACE),
            s.forall(lambda c, p: Implies(And(locked(s, c), pinned(s, p)), And(s.pin_from(p) <= s.cpu_epoch(c),
                Implies(Or(And(s.pc(c) >= PROPOSED, s.pc(c) <= USES), one_of(s.pc(c), PINS, PIN_FENCED)),
                s.pin_from(p) <= s.e(c)))), CPU, SPACE),
            s.forall(lambda p, k: Implies(And(pinned(s, p), s.pin_from(p) <= k, s.owned(k, tag_of(s, p, "asid"))),
                s.owner(k, tag_of(s, p, "asid")) == p), SPACE, TIME))

    @m.holds(PIN_VIEWS)
    def _(s: State) -> Expr:
        of = lambda c: word(s, c, "asid")
        over = lambda c: s.cpu_epoch(c) > s.e(c)
        shown = lambda k, a, t: Or(s.pins_on(a, t), s.pins_listed(a, t) > k)
        return And(
            s.forall(lambda c: And(Implies(one_of(s.pc(c), PINS, PIN_FENCED, UNPINS), And(locked(s, c), word(s, c, "some"),
                Not(tag_of(s, s.space(c), "pinned")))), Implies(s.pc(c) == PIN_FENCED, s.S_pins(of(c)) >= s.since(of(c))),
            Implies(s.pc(c) == PINS, s.cpu_pins(c, of(c)) >= s.since(of(c))),
            Implies(locked(s, c), s.lock_epoch <= s.cpu_epoch(c)),
                Implies(And(locked(s, c)), s.pc(c) >= IDLE)), CPU),
            s.forall(lambda c, p: Implies(And(one_of(s.pc(c), PINS, PIN_FENCED, UNPINS), pinned(s, p)),
                tag_of(s, p, "asid") != of(c)), CPU, SPACE),
            s.forall(lambda p, t: Implies(And(pinned(s, p), within(s.since(tag_of(s, p, "asid")), t,
                s.pins_last(tag_of(s, p, "asid")))), s.pins_on(tag_of(s, p, "asid"), t)), SPACE, TIME),
            s.forall(lambda c, t: Implies(And(one_of(s.pc(c), PINS, PIN_FENCED, UNPINS),
                within(s.since(of(c)), t, s.pins_last(of(c)))), s.pins_on(of(c), t)), CPU, TIME),
            s.forall(lambda c, p: Implies(And(scans(s, c), pinned(s, p), s.stock_epoch(c) > s.pin_from(p)),
                And(s.cpu_pins(c, tag_of(s, p, "asid")) >= s.since(tag_of(s, p, "asid")),
                Not(And(s.mine(c, tag_of(s, p, "asid")), s.checked(c, tag_of(s, p, "asid")))))), CPU, SPACE),
            s.forall(lambda c, d: Implies(And(scans(s, d), s.pc(c) == PIN_FENCED, s.stock_epoch(d) > s.e(c)),
                Or(over(c), And(s.cpu_pins(d, of(c)) >= s.since(of(c)), Not(And(s.mine(d, of(c)), s.checked(d, of(c))))))), CPU,
            CPU),
            s.forall(lambda c, k: Implies(And(one_of(s.pc(c), PINS, PIN_FENCED), k > s.e(c), s.owned(k, of(c)),
                s.owner(k, of(c)) != s.space(c)), If(s.pc(c) == PINS, s.S_epoch > s.e(c), over(c))), CPU, TIME),
            s.forall(lambda k, a, t: Implies(And(s.pinned_in(k, a), within(s.S_pins(a), t, s.pins_last(a))), shown(k, a, t)),
                TIME, TAG, TIME),
            s.forall(lambda c, a, t: Implies(And(scans(s, c), s.pinned_in(s.stock_epoch(c), a),
                within(s.cpu_pins(c, a), t, s.pins_last(a))), shown(s.stock_epoch(c), a, t)), CPU, TAG, TIME),
            s.forall(lambda c, a: Implies(And(scans(s, c), s.pinned_in(s.stock_epoch(c), a), s.mine(c, a)), Not(s.checked(c, a))),
                CPU, TAG),
            s.forall(lambda k, a: Implies(s.pinned_in(k, a), Or(s.pins_listed(a, s.pins_last(a)) > k,
                And(pinned(s, s.pinner(k, a)), tag_of(s, s.pinner(k, a), "asid") == a, tag_of(s, s.pinner(k, a), "epoch") >= k),
                And(s.lock_some, s.pc(s.lock) == UNPINS, of(s.lock) == a, word(s, s.lock, "epoch") >= k))), TIME, TAG))

    @m.holds(HELD)
    def _(s: State) -> Expr:
        return s.forall(lambda c, a, q: Implies(And(s.pc(c) >= IDLE, s.holds(c, a, q)),
            Or(And(s.owned(s.clean(c), a), s.owner(s.clean(c), a) == q), And(s.old_some(c), s.old_asid(c) == a,
            s.old_space(c) == q))), CPU, TAG, SPACE)

    complete = lambda s, c, a: And(s.stock(c) == READY, s.mine(c, a))

    @m.follows(FREE, UNIQUE, COMPARED, PIN_VIEWS, SAME)
    def _(s: State) -> Expr:
        return s.forall(lambda c, a: Implies(complete(s, c, a), And(Not(s.owned(s.stock_epoch(c), a)),
            Not(s.pinned_in(s.stock_epoch(c), a)))), CPU, TAG)

    @m.follows(FREE_AROUND, FREE, BETWEEN, COMPARED, UNIQUE, SOLE)
    def _(s: State) -> Expr:
        return s.forall(lambda c, a, k: Implies(And(complete(s, c, a), s.owned(k, a), s.stock_epoch(c) < k),
            s.birth(k, a) > s.stock_epoch(c)), CPU, TAG, TIME)

    @m.follows(KEPT, SOLE, WORDS, CHOSEN, RANGES, PINNED)
    def _(s: State) -> Expr:
        mine = lambda c, claim: Implies(And(s.pc(c) == KEEPS, claim[0], claim[1] == word(s, c, "asid")), claim[2] == s.space(c))
        pin = lambda p, claim: Implies(And(tag_of(s, p, "pinned"), claim[0], claim[1] == tag_of(s, p, "asid")), claim[2] == p)
        return And(
            *(s.forall(lambda c, d, n=name: mine(c, claims(s, d, s.e(c))[n]), CPU, CPU) for name in ("act", "root", "old")),
            s.forall(lambda c, d, x: mine(c, res_claim(s, d, s.e(c), x)), CPU, CPU, TIME),
            *(s.forall(lambda p, d, k, n=name: Implies(s.pin_from(p) <= k, pin(p, claims(s, d, k)[n])), SPACE, CPU,
                TIME) for name in ("act", "root", "old")),
            s.forall(lambda p, d, k, x: Implies(s.pin_from(p) <= k, pin(p, res_claim(s, d, k, x))), SPACE, CPU, TIME, TIME))

    @m.holds("6: under a loaded ASID, the TLB holds translations of the loaded space only", safety=True)
    def _(s: State) -> Expr:
        return s.forall(lambda c, q: Implies(And(s.root_some(c), s.holds(c, s.root_asid(c), q)), q == s.root_space(c)), CPU,
            SPACE)

    @m.follows("6: an ASID that CPUs have chosen, or a device uses, is one space's", SOLE, PINNED, safety=True)
    def _(s: State) -> Expr:
        has = lambda c, a: And(active(s, c, "some"), active(s, c, "asid") == a)
        return And(
            s.forall(lambda c, d: Implies(And(s.act_from(c) <= s.act_from(d), active(s, c, "some"), has(d, active(s, c, "asid"))),
                s.act_space(c) == s.act_space(d)), CPU, CPU),
            s.forall(lambda c, p: Implies(And(tag_of(s, p, "pinned"), has(c, tag_of(s, p, "asid"))), s.act_space(c) == p), CPU,
                SPACE))
