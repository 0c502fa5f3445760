"""What a CPU owes, whatever rules the engine names: an access makes it owe another one, before some later access.

The steps of the models follow each other in this order: a flush changes the tables, publishes them, counts, fences, scans,
invalidates, rings and waits. A statement that is left out of the engine names no rule, but its duty stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from .events import Event, Run

RUNG, ATTENDED, DISCONNECTED, RUNG_AWAY = 1, 2, 4, 2
"""Bits of the bell, and one of the word that a hypervisor shares."""


@dataclass
class Cpu:
    """What one CPU has done, and what it owes."""

    unfenced: set[str] = field(default_factory=set)
    """Accesses that a barrier must separate from later loads."""
    unpublished: bool = False
    uncounted: set[int | None] = field(default_factory=set)
    """Spaces whose tables the CPU has changed, and that it has neither counted nor broadcast to every CPU; `None` for the
    kernel."""
    named: int | None = None
    """The space whose ASID was loaded last."""
    unwritten: set[str] = field(default_factory=set)
    """Entries of logs that are claimed, and not complete."""
    counted: set[int | None] = field(default_factory=set)
    devices: set[int | None] = field(default_factory=set)
    """Spaces of which devices must invalidate."""
    commands: set[int] = field(default_factory=set)
    """Commands to devices that the CPU must find complete."""
    counts: bool = False
    """A flush of the kernel's translations is under way, which has not read who is online."""
    kernel_loaded: int = 0
    kernel_seen: int = 0
    """The kernel's generation that the CPU has loaded, and that with which its TLB has caught up."""
    kernel_counted: int = 0
    """The kernel's generation that the CPU has counted."""
    enters: bool = False
    """It has entered the kernel from user mode, and not loaded the kernel's generation."""
    entered: bool = False
    """It has done so in this operation."""
    kernel_fresh: bool = True
    """The kernel's generation was loaded in this round."""
    seen: bool = False
    """The generation that the CPU has seen was published in this switch."""
    presence: int = 0
    issued: bool = False
    narrow: bool = False
    """Its last broadcast was for some domains, and it has not counted another flush."""
    marked: bool = False
    """A hazard pointer that the CPU has dropped was marked, or counted: it must drop a reference."""
    dropped: bool = False
    """Its handler has dropped a reference, before the hazard pointer."""
    references: set[int | None] = field(default_factory=set)
    """Spaces of which it has counted a reference of its own."""
    last: bool = False
    """It has dropped the last reference, and not reclaimed the space."""
    last_read: int | None = None
    switching: int | None = None
    """The CPU whose presence was read last, if that was Switching."""
    owed: set[int] = field(default_factory=set)
    """CPUs that must be rung."""
    unsent: set[int] = field(default_factory=set)
    """CPUs whose bell was quiet: the CPU that rang sends the interrupt."""
    awaited: set[int] = field(default_factory=set)
    """CPUs that were rung, and have not answered."""


FENCED_BEFORE: list[tuple[str, Callable[[Event], bool], Callable[[Event], bool]]] = [
    ("a count", lambda e: e.kind == "modify" and e.word == "generation", lambda e: is_scan(e)),
    ("what it flushes walkers of", lambda e: e.kind == "operation" and e.text.startswith("flushes the walkers"),
        lambda e: is_scan(e)),
    ("the announced trim", lambda e: e.text.startswith("adds to phase") and bool(e.value >> 9 & 1),
        lambda e: is_others(e, "presence", "hazard")),
    ("Switching", lambda e: is_own(e, "presence") and e.kind == "store" and e.value & 3 == 3, lambda e: is_of_space(e, "phase",
        "generation")),
    ("its registration", lambda e: e.text.startswith("sets in set"), lambda e: is_of_space(e, "phase", "generation")),
    ("the incomplete list", lambda e: e.kind == "store" and e.word == "listed epoch" and e.value == 0,
        lambda e: e.kind == "store" and e.word.startswith("unavailable")),
    ("the epoch", lambda e: e.kind == "load" and e.word == "ASID epoch",
        lambda e: e.kind == "load" and e.word.startswith("ASID users")),
    ("the pin", lambda e: e.kind == "store" and e.word == "pinned ASIDs" and e.value != 0,
        lambda e: e.kind == "load" and e.word == "ASID epoch"),
    ("a device", lambda e: is_counted(e, "ASID", 0xFF0000) or is_counted(e, "phase", 0x1FE), lambda e: e.text.startswith("attaches")),
    ("its entry into the kernel", lambda e: is_own(e, "user mode") and e.kind == "store" and e.value == 0,
        lambda e: e.kind == "load" and e.word == "generation" and e.of is None),
    ("its entry into the users", lambda e: e.text.startswith("sets in ASID users"),
        lambda e: e.kind == "root" and "tag" in e.more),
    ("the proposed ASID", lambda e: e.kind == "load" and e.word == "ASID" and bool(e.value >> 24 & 1),
        lambda e: e.kind == "modify" and e.word == "ASID" and (e.before ^ e.value) == 1 << 24),
]
"""A barrier must be between two accesses of a CPU."""


def is_counted(event: Event, word: str, bits: int) -> bool:
    """Whether some bits of a word, which count devices, become more."""
    return event.kind == "modify" and event.word == word and event.value & bits > event.before & bits


def is_own(event: Event, *words: str) -> bool:
    return event.of == event.cpu and event.word in words


def is_of_space(event: Event, *words: str) -> bool:
    return event.kind == "load" and event.of is not None and event.word in words


def is_others(event: Event, *words: str) -> bool:
    return event.kind == "load" and event.of not in (None, event.cpu) and event.word in words


def disconnects(event: Event) -> bool:
    return is_own(event, "bell") and event.kind == "modify" and bool(event.value & ~event.before & DISCONNECTED)


def is_scan(event: Event) -> bool:
    """Loads that look for the CPUs which a flush must notify."""
    return is_others(event, "presence", "hazard", "walks",
        "user mode") or event.kind == "load" and (event.word.startswith("set") or event.word in ("phase", "online set"))


class Duties:
    """Checks the duties of a run's CPUs."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.cpus = [Cpu() for _ in range(run.cpus)]
        self.broadcasts = "Broadcast" in run.tags or "Domains" in run.tags

    def see(self, event: Event) -> str | None:
        """Returns what is wrong with a step, if anything is."""
        cpu = self.cpus[event.cpu]
        checks = (self.barriers, self.tables, self.kernel, self.presence, self.bells, self.lifetime)
        wrong = next((wrong for wrong in (check(event, cpu) for check in checks) if wrong), None)
        return f"{wrong}: CPU {event.cpu} {event.text}" if wrong else None

    def notify(self, event: Event) -> None:
        """The CPU whose word was read last must be rung."""
        cpu = self.cpus[event.cpu]
        if cpu.last_read is not None:
            cpu.owed.add(cpu.last_read)

    def barriers(self, event: Event, cpu: Cpu) -> str | None:
        if event.kind == "fence":
            cpu.unfenced.clear()
        for name, first, then in FENCED_BEFORE:
            if name in cpu.unfenced and then(event):
                return f"no barrier after {name}"
            if first(event):
                cpu.unfenced.add(name)
            elif name == "Switching" and is_own(event, "presence") and event.kind == "store":
                cpu.unfenced.discard(name)
        return None

    def tables(self, event: Event, cpu: Cpu) -> str | None:
        """The tables are published before the count, which comes before the end; the log's entry is complete; devices."""
        changed = re.fullmatch(r"swaps (?:kernel page \d+|page \d+ of space (\d+)): from (?!nothing).+ to nothing .+", event.text)
        if changed:
            cpu.unpublished = True
            cpu.uncounted.add(int(changed[1]) if changed[1] else None)
        elif event.kind == "publish":
            cpu.unpublished = False
        elif event.kind == "load" and event.word == "ASID" and event.order:
            cpu.named = event.of
        elif event.kind == "broadcast" and cpu.unpublished:
            return "broadcasts a flush before its tables are published"
        elif event.kind == "modify" and event.word == "generation":
            if cpu.unpublished:
                return "counts a flush before its tables are published"
            cpu.uncounted.discard(event.of)
            cpu.counted.add(event.of)
        elif event.kind == "load" and event.word == "phase" and event.order and event.of in cpu.counted:
            cpu.devices = cpu.devices | {event.of} if event.value >> 1 & 0xFF else cpu.devices - {event.of}
        elif event.kind == "devices":
            cpu.devices.discard(int(event.more["space"]))
            cpu.commands.add(int(event.more["ticket"]))
        elif event.kind == "device done":
            cpu.commands = {ticket for ticket in cpu.commands if ticket > int(event.more["ticket"])}
        elif event.kind == "modify" and event.word.startswith("stamp"):
            cpu.unwritten |= {f"{event.word} {event.of}", f"{event.word.replace('stamp', 'extent')} {event.of}"}
        elif event.kind == "store" and event.word.startswith(("stamp", "extent")):
            cpu.unwritten.discard(f"{event.word} {event.of}")
        return None

    def kernel(self, event: Event, cpu: Cpu) -> str | None:
        """A flush of the kernel's translations reads which CPUs are online, and each round catches up with it."""
        if event.word == "generation" and event.of is None:
            if event.kind == "modify":
                cpu.counts = not self.broadcasts
                cpu.kernel_counted = 0 if self.broadcasts else event.value
            elif event.kind == "load":
                cpu.kernel_loaded, cpu.kernel_fresh, cpu.enters = event.value, True, False
        elif event.kind in ("kernel pages", "everything"):
            cpu.kernel_seen = max(cpu.kernel_seen, cpu.kernel_loaded)
        elif event.kind == "load" and event.word == "online set" and cpu.counts:
            cpu.counts = False
            cpu.owed |= {other for other in range(self.run.cpus) if event.value >> other & 1 and other != event.cpu}
        elif is_others(event, "user mode") and event.value:
            cpu.owed.discard(event.of)
        elif is_own(event, "user mode") and event.kind == "store":
            cpu.enters = cpu.entered = not event.value
        elif is_own(event, "bell") and event.text.startswith("adds to"):
            cpu.kernel_fresh = bool(event.value & DISCONNECTED)
        elif is_own(event, "acknowledgement") and event.kind == "store" and not self.broadcasts:
            if not cpu.kernel_fresh:
                return "answers without a load of the kernel's generation"
            if cpu.kernel_seen < cpu.kernel_loaded:
                return "answers before it catches up with the kernel's generation"
        return None

    def presence(self, event: Event, cpu: Cpu) -> str | None:
        """What a CPU has seen is published before a walk of the tables, and before it is lazy; nothing is left loaded offline."""
        if is_own(event, "seen generation") and event.kind == "store":
            cpu.seen = True
        elif is_own(event, "hazard") and event.text.startswith("swaps") and event.value > 15 and not cpu.seen:
            return "publishes a hazard pointer before what it has seen"
        elif is_own(event, "presence") and event.kind == "store":
            if event.value & 3 == 2 and not cpu.seen:
                return "is lazy before it has published what it has seen"
            cpu.presence, cpu.seen = event.value & 3, cpu.seen and event.value & 3 == 1 and cpu.presence == 2
        elif disconnects(event) and cpu.presence:
            return "goes offline with a space"
        return None

    def bells(self, event: Event, cpu: Cpu) -> str | None:
        """A bell that was quiet gets an interrupt. CPUs that must be notified are rung, or a broadcast reaches them, which
        its issuer completes before it answers."""
        of, is_other = event.of, event.of not in (None, event.cpu)
        if event.kind == "send":
            cpu.unsent.discard(of)
        elif event.kind == "modify" and event.word == "bell" and event.value & 7 == RUNG:
            cpu.unsent |= {of} if not event.before & RUNG or event.text.startswith("exchanges") else set()
        elif of in cpu.unsent and event.kind == "load" and event.word in ("bell", "acknowledgement"):
            return "rings a CPU, and sends no interrupt"
        if event.kind == "modify" and event.word == "generation":
            cpu.narrow = False
        elif cpu.narrow and event.kind == "modify" and event.word == "covered generation":
            return "counts CPUs as clean that its broadcast has not reached"
        if event.kind == "broadcast":
            cpu.issued, cpu.narrow = True, False
            cpu.owed.clear()
            cpu.uncounted -= {None, cpu.named}
        elif event.kind == "domains":
            cpu.issued = cpu.narrow = True
            cpu.owed -= {int(reached) for reached in event.more["cpus"].split(", ")}
        elif event.kind == "complete":
            cpu.issued = False
        elif cpu.issued and (disconnects(event) or is_own(event, "acknowledgement") and event.kind == "store"):
            return "answers, and does not complete its broadcasts"
        elif cpu.issued and is_own(event, "bell") and event.text.startswith("sets in") and event.value & ATTENDED:
            return "polls its bell before it completes its broadcasts"
        if is_others(event, "seen generation") and of == cpu.switching:
            return "takes what a CPU that switches in has published for a generation of the space"
        if is_others(event, "presence", "hazard"):
            cpu.switching = of if event.word == "presence" and event.value & 3 == 3 else None
        if is_others(event, "presence", "walks"):
            cpu.last_read = of
        elif event.text.startswith("sets in bell") and (is_other or event.order):
            cpu.owed.discard(of)
            if not event.before & DISCONNECTED:
                cpu.awaited.add(of)
        elif event.kind == "load" and event.word in ("bell", "acknowledgement") and (is_other or event.order):
            cpu.awaited.discard(of)
        elif event.kind == "modify" and event.word == "hypervisor" and event.value & RUNG_AWAY:
            cpu.owed.discard(of)
        if is_own(event, "hazard") and event.kind == "modify" and not event.value & 1:
            cpu.marked = (bool(event.before & 1) or event.before // 16 - 1 in cpu.references) and not cpu.dropped
            cpu.dropped = False
        elif event.kind == "modify" and event.word == "references":
            cpu.dropped = not cpu.marked and event.before - event.value == 1
            cpu.marked = False
            cpu.references = cpu.references | {of} if event.value > event.before else cpu.references - {of}
        return None

    def lifetime(self, event: Event, cpu: Cpu) -> str | None:
        """A CPU that drops the last reference reclaims the space, or leaves it to others."""
        if event.kind == "load" and event.word == "references" and event.order and not event.value & 0xFFFFFFFF:
            cpu.last = True
        elif event.kind == "free" or event.kind in ("store", "modify") and (is_own(event, "hazard") or "dead" in event.word):
            cpu.last = False
        elif cpu.last and is_own(event, "presence") and event.kind == "store":
            return "drops the last reference, and neither reclaims the space nor leaves it to others"
        return None

    def end(self, event: Event) -> str | None:
        """At the end of an operation, nothing is owed."""
        cpu = self.cpus[event.cpu]
        owed = {
            "a CPU that must be notified was not": cpu.owed,
            "a CPU that was rung gets no interrupt": cpu.unsent,
            "a CPU that was rung was not waited for": cpu.awaited,
            "its hazard pointer was marked, and it has not dropped its reference": cpu.marked,
            "a flush is not counted, nor broadcast to every CPU": cpu.uncounted,
            "a flush of the kernel has not read who is online": cpu.counts,
            "a flush of the kernel has not invalidated here": cpu.kernel_counted > cpu.kernel_seen,
            "it has entered the kernel, and not caught up": cpu.enters or cpu.entered and cpu.kernel_loaded > cpu.kernel_seen,
            "an entry of the log is not complete": cpu.unwritten,
            "devices have not invalidated": cpu.devices,
            "a command to devices is not complete": cpu.commands,
        }
        cpu.counted.clear()
        # A trim also registers CPUs, and reads nothing after that.
        cpu.unfenced.discard("its registration")
        cpu.entered = False
        return next((f"{wrong}: CPU {event.cpu} {event.text}" for wrong, left in owed.items() if left), None)
