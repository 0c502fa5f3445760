"""Devices with a TLB of their own: attached to a space, and seen by each flush of it."""

from __future__ import annotations

from ..counting import Census
from ..logic import ALL, BOOL, CODE, TIME, And, Expr, Implies, Or, Sort, State, later, within
from ..memory import Thread, Word, changes_tables
from ..rules import kinds
from ..system import System
from .bell import FLUSH

DEVICE = Sort("Device")
DETACHED, COUNTED, ATTACHED = range(3)
NEW, CHANGED, FENCED, LOADED, SENT, DONE = range(6)


def build() -> System:
    return system("devices", "AttachFence", "DetachRelease", "PhaseAcquire", "FlushDevices", "CompleteDevices")


def build_pins() -> System:
    """Devices that observe broadcasts: they pin the tag of the space. Without the two orderings, this does not claim that a
    device's last use comes before the end of a flush that finds no pin."""
    orders = ("UnpinRelease", "UnpinAcquire") if "UnpinAcquire" in kinds() else (None, None)
    return system("pins", "NewAsidFence", *orders, "BroadcastForDevices", None)


def system(name: str, fence: str, release: str | None, acquire: str | None, invalidates: str, completes: str | None) -> System:
    m, orders = System(name, sizes={DEVICE: 2, FLUSH: 1, TIME: 5}), acquire is not None
    tables, uses = Word(m, "tables", fenced=True), Word(m, "uses", (DEVICE,))
    phase = Word(m, "phase", values={"devices": TIME}, carries=(uses,), fenced=True)
    device = Thread(m, "device", DEVICE, (tables, uses, phase))
    flush = Thread(m, "flush", FLUSH, (tables, uses, phase))
    attached = Census(m, "attached", DEVICE)
    m.field((DEVICE,), {CODE: "pc", TIME: "tlb since"})
    m.field((FLUSH,), {CODE: "fs", BOOL: "sent", TIME: "fv read_at"})
    m.field((FLUSH, DEVICE), {TIME: "stale"})

    @m.step("attach: count the device", d=DEVICE, pc=(DETACHED, COUNTED))
    def _(x, d):
        device.modify(x, d, phase, (), acquire=False, release=False, devices=x.phase_devices(x.phase_last) + 1)
        attached.add(x, d)
        x.put(d, since=x.phase_last + 1)

    @m.step("attach: fence, and begin to walk", d=DEVICE, pc=(COUNTED, ATTACHED))
    def _(x, d):
        view = x.device_tables(d)
        if x.obeys(fence):
            device.fence(x, d)
            view = later(view, x.S_tables)
        x.set("tlb", d, to=view)

    @m.step("use a translation", d=DEVICE, pc=ATTACHED)
    def _(x, d):
        device.store(x, d, uses, (d,), False)
        x.set("stale", ALL, d, to=x.uses_last(d) + 1, where=lambda f: And(x.fs(f) >= CHANGED, x.tlb(d) < x.fv(f)))

    @m.step("detach", d=DEVICE, pc=(ATTACHED, DETACHED))
    def _(x, d):
        device.modify(x, d, phase, (), acquire=False, release=release is None or x.obeys(release),
            devices=x.phase_devices(x.phase_last) - 1)
        attached.remove(x, d)

    changes_tables(m, "flush: change the tables", f=FLUSH, fs=(NEW, CHANGED))

    flush.fence_step(m, "flush: fence", "FlushFence", f=FLUSH, fs=(CHANGED, FENCED))

    flush.load_step(m, "flush: load the number of devices", phase, acquire, "read_at", f=FLUSH, t=TIME, fs=(FENCED, LOADED))

    @m.step("flush: send commands to devices", f=FLUSH, fs=(LOADED, SENT))
    def _(x, f):
        x.put(f, sent=x.phase_devices(x.read_at(f)) > 0 if x.obeys(invalidates) else False)

    # As late as possible. A device that acts earlier only has newer translations until then.
    @m.step("flush: the devices complete the commands, and the wait returns", f=FLUSH, fs=(SENT, DONE))
    def _(x, f):
        if completes is None or x.obeys(completes):
            found = x.sent(f)
            x.set("tlb", ALL, to=lambda d: later(x.tlb(d), x.fv(f)), where=lambda d: And(found, x.pc(d) == ATTACHED))
            x.set("device_tables", ALL, to=lambda d: later(x.device_tables(d), x.fv(f)),
                where=lambda d: And(found, x.pc(d) != DETACHED))
            # The command completes after the devices' uses.
            x.set("flush_uses", f, ALL, to=lambda d: later(x.flush_uses(f, d), x.uses_last(d)), where=lambda d: found)

    @m.holds("the phase counts the devices")
    def _(s: State) -> Expr:
        return And(
            attached.invariant(s), s.phase_last >= 0, s.phase_devices(s.phase_last) == attached.count(s), s.S_phase >= 0,
            s.S_phase <= s.phase_last, s.S_tables <= s.tables_last,
            s.forall(lambda d: And(s.pc(d) >= DETACHED, s.pc(d) <= ATTACHED, attached.has(s, d) == (s.pc(d) != DETACHED),
                s.uses_last(d) >= 0, s.device_uses(d, d) >= s.uses_last(d), s.since(d) <= s.phase_last,
                s.device_tables(d) <= s.tables_last, s.device_phase(d) <= s.phase_last, s.device_phase(d) >= 0,
                Or(s.pc(d) == ATTACHED, s.phase_has_uses(s.phase_last, d) >= s.uses_last(d)),
                Implies(s.pc(d) != DETACHED, s.device_phase(d) >= s.since(d))), DEVICE),
            s.forall(lambda f: And(s.fs(f) >= NEW, s.fs(f) <= DONE, s.flush_phase(f) >= 0, s.flush_phase(f) <= s.phase_last,
                Implies(s.fs(f) >= CHANGED, And(s.fv(f) <= s.flush_tables(f), s.fv(f) <= s.tables_last,
                s.flush_tables(f) <= s.tables_last)), Implies(s.fs(f) >= FENCED, s.S_tables >= s.fv(f)),
            Implies(s.fs(f) >= LOADED, And(s.read_at(f) == s.flush_phase(f)))), FLUSH),
            s.forall(lambda f, d: And(s.stale(f, d) <= s.uses_last(d), Implies(s.fs(f) == NEW, s.stale(f, d) == 0)), FLUSH,
                DEVICE))

    @m.holds("an attached device is counted in all that others may read since")
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda d, t: Implies(And(s.pc(d) != DETACHED, within(s.since(d), t, s.phase_last)), s.phase_devices(t) >= 1),
                DEVICE, TIME),
            s.forall(lambda d: Implies(s.pc(d) == ATTACHED, s.S_phase >= s.since(d)), DEVICE))

    @m.holds("no use follows an absence that a later fence shows")
    def _(s: State) -> Expr:
        return s.forall(lambda d, t: Implies(And(within(s.S_phase, t, s.phase_last), s.phase_devices(t) <= 0),
            s.phase_has_uses(t, d) >= s.uses_last(d)), DEVICE, TIME)

    @m.holds("a flush and a device do not miss each other")
    def _(s: State) -> Expr:
        return And(
            s.forall(lambda f, d: Implies(And(s.fs(f) >= FENCED, s.pc(d) == ATTACHED), Or(s.flush_phase(f) >= s.since(d),
                s.tlb(d) >= s.fv(f))), FLUSH, DEVICE),
            s.forall(lambda f, d, t: Implies(And(orders, s.fs(f) >= FENCED, s.fs(f) < DONE,
                within(s.flush_phase(f), t, s.phase_last), s.phase_devices(t) <= 0), s.stale(f, d) <= s.phase_has_uses(t, d)),
            FLUSH, DEVICE, TIME),
            s.forall(lambda f: Implies(s.fs(f) == SENT, s.sent(f) == (s.phase_devices(s.read_at(f)) > 0)), FLUSH),
            s.forall(lambda f, d: Implies(And(orders, s.fs(f) >= LOADED, s.fs(f) < DONE, s.phase_devices(s.read_at(f)) <= 0),
                s.stale(f, d) <= s.flush_uses(f, d)), FLUSH, DEVICE))

    @m.holds("1: after the flush, no device has used a stale translation without an order, or can", safety=True)
    def _(s: State) -> Expr:
        return s.forall(lambda f, d: Implies(s.fs(f) == DONE, And(Or(not orders, s.stale(f, d) <= s.flush_uses(f, d)),
            Implies(s.pc(d) == ATTACHED, s.tlb(d) >= s.fv(f)), Implies(s.pc(d) == COUNTED, Or(s.S_tables >= s.fv(f))))), FLUSH,
        DEVICE)

    return m
