"""Recorded runs: what `crates/check/examples/steps.rs` writes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ORDERS = {"Relaxed": frozenset(), "Acquire": frozenset({"Acquire"}), "Release": frozenset({"Release"}),
    "AcqRel": frozenset({"Acquire", "Release"}), "SeqCst": frozenset({"Acquire", "Release"})}
PATTERNS = (
    ("load", r"reads (?P<word>.+?): (?P<new>.+) \((?P<order>\w+)\)"),
    ("store", r"stores to (?P<word>.+?): (?P<new>.+) \((?P<order>\w+), not visible yet\)"),
    ("modify", r"(?:swaps|adds to|sets in|clears in|exchanges) (?P<word>.+?): from (?P<old>.+) to (?P<new>.+) \((?P<order>\w+)\)"),
    ("fail", r"(?:swaps|adds to|sets in|clears in|exchanges) (?P<word>.+?): finds (?P<new>.+), unchanged \((?P<order>\w+)\)"),
    ("visible", r"its store to (?P<word>.+) becomes visible"),
    ("fence", r"fences"),
    ("publish", r"publishes its page-table writes"),
    ("root", r"loads (?:space (?P<space>\d+) under tag (?P<tag>\d+), and (?P<how>.+)|the kernel's root)"),
    ("pages", r"invalidates pages .+"),
    ("tag", r"invalidates tag \d+"),
    ("everything", r"invalidates everything"),
    ("kernel pages", r"invalidates kernel pages"),
    ("devices", r"sends the device command (?P<ticket>\d+), to invalidate on space (?P<space>\d+)"),
    ("device done", r"finds command (?P<ticket>\d+) of the device complete"),
    ("broadcast", r"broadcasts an invalidation of .+"),
    ("domains", r"issues an invalidation of tag \d+ in the domains of CPUs \[(?P<cpus>.*)\]"),
    ("complete", r"completes its invalidations"),
    ("claim", r"claims that the flush is complete"),
    ("free", r"(?:frees|reuses) .+"),
    ("user", r"enters user mode"),
)
COMPILED = [(kind, re.compile(pattern)) for kind, pattern in PATTERNS]


@dataclass
class Event:
    """A step of a CPU, with the rules that the engine named for it."""

    cpu: int
    kind: str
    text: str
    word: str = ""
    of: int | None = None
    """The CPU or the space whose word it is; `None` for the kernel's."""
    old: str = ""
    new: str = ""
    order: frozenset[str] = frozenset()
    rules: tuple[str, ...] = ()
    more: dict[str, str] = field(default_factory=dict)

    @property
    def value(self) -> int:
        return number(self.new)

    @property
    def before(self) -> int:
        return number(self.old)


def number(text: str) -> int:
    """A value of a word. The address of a space is 16 times one more than its number, plus flags."""
    found = re.fullmatch(r"space (\d+)(?: \+ (0x[0-9a-f]+))?", text)
    if found:
        return 16 * (int(found[1]) + 1) + int(found[2] or "0", 16)
    return int(text, 16) if text.startswith("0x") else -1


@dataclass
class Run:
    rule: str
    profile: str
    tags: str
    lifetime: str
    program: str
    end: str
    events: list[Event] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.program} ({self.profile}, {self.tags}, {self.lifetime})"

    @property
    def cpus(self) -> int:
        return self.program.count("|") + 1


def read(path: Path) -> Iterator[Run]:
    run, named = None, {}
    for line in path.read_text().splitlines():
        cells = line.split("\t")
        if cells[0] == "run":
            if run:
                yield run
            run, named = Run(*cells[1:]), {}
            continue
        assert run is not None
        cpu, kind, text = int(cells[0]), cells[1], cells[2]
        if kind == "Rule":
            named.setdefault(cpu, []).append(text)
            continue
        event = parse(cpu, kind, text)
        if event.kind != "visible":
            event.rules = tuple(named.pop(cpu, ()))
        run.events.append(event)
    if run:
        yield run


def parse(cpu: int, kind: str, text: str) -> Event:
    if kind == "Operation":
        return Event(cpu, "operation", text)
    if kind.startswith("SendsInterrupt"):
        return Event(cpu, "send", text, of=int(kind[15:-1]))
    if kind == "TakesInterrupt":
        return Event(cpu, "interrupt", text)
    for name, pattern in COMPILED:
        found = pattern.fullmatch(text)
        if found:
            more = {key: value for key, value in found.groupdict().items() if value is not None}
            event = Event(cpu, name, text, new=more.pop("new", ""), old=more.pop("old", ""),
                order=ORDERS[more.pop("order", "Relaxed")], more=more)
            place = re.fullmatch(r"(.+) of (?:CPU|space) (\d+)", found.groupdict().get("word") or "")
            if place:
                event.word, event.of = place[1], int(place[2])
            elif "word" in found.groupdict():
                event.word = found["word"].removesuffix(" of the kernel")
            return event
    return Event(cpu, "other", text)
