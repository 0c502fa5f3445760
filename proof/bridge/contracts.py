"""What each rule means for the steps of a CPU, where the engine names it.

A rule of the memory model is a hypothesis of the models' steps: the access has the rule's ordering, or a full barrier
follows. A rule that is a step of a protocol has an effect, which must be the CPU's next step of that kind.
"""

from __future__ import annotations

from collections.abc import Callable

from ..rules import kinds
from .duties import Duties
from .events import Event, Run

Words = str | tuple[str, ...]
ACCESSES: dict[str, dict[str, Words]] = {
    "load": {"GenerationAcquire": "generation", "PresenceAcquire": "presence", "WaitAcquire": "acknowledgement",
        "QuietAcquire": "bell", "PhaseAcquire": "phase", "ScanAcquire": "set", "SeenAcquire": "seen generation",
        "DropRefAcquire": "references", "RetireAcquire": "references", "AsidAcquire": "ASID", "BroadcastAsidAcquire": "ASID",
        "UnpinAcquire": "ASID", "ActiveTagAcquire": "active tag", "ChosenTagAcquire": "chosen tag",
        "ListAcquire": ("listed", "unavailable", "pinned"), "WalkAcquire": "walks", "BatchedAcquire": "batches",
        "ExtentAcquire": "extent", "StampAcquire": "stamp", "HazardAcquire": "hazard",
        "InUserAcquire": "user mode"},
    "store": {"LeaveRelease": "presence", "AnswerRelease": "acknowledgement", "ExtentRelease": "extent", "StampRelease": "stamp",
        "ClearRelease": "set", "SeenRelease": "seen generation", "OrphanRelease": "hazard", "TagLockRelease": "ASID lock",
        "ListRelease": ("listed", "pinned"), "WalkRelease": "walks",
        "EnterUserRelease": "user mode"},
    "modify": {"BumpRelease": "generation", "BellAcquire": "bell", "QuietRelease": "bell", "DisconnectRelease": "bell",
        "DisconnectAcquire": "bell", "WakeRelease": "bell", "StampClaim": "stamp", "StopRelease": "hypervisor", "DeferAcquire": "hypervisor",
        "ReturnAcquire": "hypervisor", "TrimRelease": "phase", "TrimmingRelease": "phase", "HazardRelease": "hazard",
        "DropRefRelease": "references", "RetireRelease": "references", "TagLockAcquire": "ASID lock", "AsidRelease": "ASID",
        "UnpinRelease": "ASID", "ActiveTagRelease": "active tag", "BatchedRelease": "batches", "DetachRelease": "phase",
        "LeaveOnlineRelease": "online set"},
}
"""The access that each ordering is of: kind, and beginning of the word's name, or beginnings of several."""
ALWAYS = {("store", "presence"): "LeaveRelease", ("store", "acknowledgement"): "AnswerRelease",
    ("store", "seen generation"): "SeenRelease", ("store", "extent"): "ExtentRelease", ("store", "stamp"): "StampRelease",
    ("load", "extent"): "ExtentAcquire", ("load", "acknowledgement"): "WaitAcquire", ("load", "generation"): "GenerationAcquire"}
"""Accesses that must always name their rule: the engine has no other reason for them."""


VERBS = {"QuietRelease": "exchanges", "BellAcquire": "adds to", "DisconnectRelease": "adds to", "DisconnectAcquire": "sets in",
    "WakeRelease": "sets in"}
"""The operation, where several on the same word have different rules."""


def is_on(event: Event, kind: str, word: Words, rule: str = "") -> bool:
    same = event.kind == kind or kind == "modify" and event.kind == "fail"
    return same and event.text.startswith(VERBS.get(rule,
        "")) and (event.word.startswith(word) or word == "set" and event.word.endswith(("online set", "ASID users")))


def ordering(rule: str) -> tuple[str, Words] | None:
    return next(((kind, words[rule]) for kind, words in ACCESSES.items() if rule in words), None)


Test = Callable[[Event], bool]


def on(kind: str, word: str) -> Test:
    return lambda event: is_on(event, kind, word)


def kind(*kinds_: str) -> Test:
    return lambda event: event.kind in kinds_


def not_(test: Test) -> Test:
    return lambda event: not test(event)


def any_of(*tests: Test) -> Test:
    return lambda event: any(test(event) for test in tests)


keeps = lambda event: event.kind == "root" and "keeps" in event.more.get("how", "")
discards = lambda event: event.kind == "root" and "invalidates" in event.more.get("how", "")
renames = lambda event: event.kind == "root" and "tag" not in event.more
clears_bell = lambda event: event.text.startswith("clears in bell")
# An odd epoch: the ASID is the one that the CPU reserves.
seals = lambda event: event.kind == "modify" and event.word == "active tag" and bool(event.value >> 24 & 1)
changes_reserved = lambda event: seals(event) and (event.value ^ event.before) & 0xFFFF != 0
activates = lambda event: is_on(event, "store", "presence") and event.value & 3 == 1
EFFECTS: dict[str, Test] = {
    "PublishTables": kind("publish"),
    "OnlineSync": kind("fence"),
    "FlushOnOnline": kind("everything"),
    "FlushOnRollover": kind("everything"),
    "FlushOnWrap": lambda event: event.kind == "root" and "tag" not in event.more,
    "FlushDevices": kind("devices"),
    "CompleteDevices": any_of(kind("device done"), on("store", "sleeper")),
    "FlushLocally": any_of(kind("pages", "tag"), on("load", "generation"), on("load", "covered")),
    "MarkBatched": on("modify", "batches"),
    "MarkHazards": on("load", "phase"),
    "RecheckScan": on("load", "phase"),
    "RecheckPhase": on("modify", "set"),
    "KeepPresent": on("modify", "set"),
    "KeepHazards": on("modify", "set"),
    "RingLazy": on("load", "hazard"),
    "RingLeaving": on("load", "hazard"),
    "QuarantineTables": on("load", "hazard"),
    "LeaveDeadSpace": any_of(kind("root"), on("load", "presence")),
    "RecheckBell": not_(clears_bell),
    "CatchUpOnSwitch": not_(keeps),
    "CatchUpOnResume": not_(activates),
    "KnowEveryRange": any_of(kind("tag", "everything"), discards, renames, on("load", "presence")),
    "DiscardReusedTag": discards,
    "DiscardFreedTables": discards,
    "AnswerTablesLate": not_(on("store", "acknowledgement")),
    "ReadEpoch": on("load", "ASID epoch"),
    "ReserveTags": not_(changes_reserved),
    "KeepGaps": not_(on("modify", "covered")),
    "CatchUpUnreached": not_(on("modify", "covered")),
    "RingOnline": on("load", "online set"),
    "CatchUpOnEntry": on("load", "generation"),
    "RingInUserForTables": not_(on("load", "user mode")),
    "RingInUserForEntry": not_(on("load", "user mode")),
    "CompleteBroadcasts": any_of(kind("complete"), on("modify", "bell")),
    "AnswerWhileWaiting": on("modify", "bell"),
    "SkipAway": on("load", "hypervisor"),
    "KeepRequest": on("modify", "hypervisor"),
}
"""The effect of each step of a protocol: the CPU's next step passes this test."""


class Contracts:
    """Checks the contracts of the rules that a run names."""

    def __init__(self, run: Run) -> None:
        cpus = range(run.cpus)
        self.run = run
        self.orders: dict[int, list[str]] = {cpu: [] for cpu in cpus}
        self.fences: dict[int, list[str]] = {cpu: [] for cpu in cpus}
        self.effects: dict[int, list[str]] = {cpu: [] for cpu in cpus}
        self.duties = Duties(run)

    def see(self, event: Event) -> str | None:
        """Returns what is wrong with a step, if anything is."""
        cpu = event.cpu
        if event.kind == "interrupt":
            # The handler runs before the access that these rules are of, and names rules of its own.
            return None
        for rule in event.rules:
            kind_ = kinds()[rule]
            (self.fences if kind_ == "Fence" else self.effects if kind_ == "Step" else self.orders)[cpu].append(rule)
        if event.kind in ("visible", "user"):
            return None
        if event.kind in ("send", "other"):
            return self.duties.see(event)
        if event.kind in ("claim", "free", "operation"):
            return self.check_end(event) or self.duties.see(event)
        return self.check_effects(event) or self.check_orders(event) or self.check_fence(event) or self.duties.see(event)

    def finish(self) -> str | None:
        """Checks that nothing is owed at the end of a run that ended well."""
        ends = (self.check_end(Event(cpu, "operation", "finishes")) for cpu in self.effects)
        return next((wrong for wrong in ends if wrong), None)

    def check_effects(self, event: Event) -> str | None:
        pending, self.effects[event.cpu] = self.effects[event.cpu], []
        for rule in pending:
            if rule in ("RingPresent", "RingSwitching", "InterruptWalkers", "WaitForWalks"):
                self.duties.notify(event)
            test = EFFECTS.get(rule)
            if rule == "SkipAway" and "stop" not in self.run.program or rule == "DiscardFreedTables" and "Renamed" in self.run.tags:
                continue
            if test and not test(event):
                return f"{rule} has no effect: CPU {event.cpu} {event.text}"
        return None

    def check_orders(self, event: Event) -> str | None:
        pending = self.orders[event.cpu]
        for rule in list(pending):
            site = ordering(rule)
            if site is None or is_on(event, *site, rule) or (rule == "HazardAcquire" and is_on(event, "modify", "hazard")):
                pending.remove(rule)
                required = frozenset({"Acquire", "Release"}) if kinds()[rule] == "AcqRel" else frozenset({kinds()[rule]})
                if not required <= event.order:
                    return f"{rule} is not obeyed: CPU {event.cpu} {event.text}"
        word = event.word.split(" ")[0] if event.word.startswith(("stamp", "extent")) else event.word
        expected = ALWAYS.get((event.kind, word))
        if expected and kinds()[expected] not in event.order:
            return f"an access that needs {expected} lacks it: CPU {event.cpu} {event.text}"
        return None

    def check_fence(self, event: Event) -> str | None:
        pending = self.fences[event.cpu]
        if event.kind == "fence":
            pending.clear()
        elif pending and not (event.kind in ("store", "modify") and set(pending) & set(event.rules)):
            return f"{pending[0]} has no full barrier: CPU {event.cpu} {event.text}"
        return None

    def check_end(self, event: Event) -> str | None:
        pending, self.orders[event.cpu] = self.orders[event.cpu], []
        if pending:
            return f"{pending[0]} has no access: CPU {event.cpu} {event.text}"
        return self.check_effects(event) or self.duties.end(event)
