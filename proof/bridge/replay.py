"""Replays a recorded run in the model of targeting, with the words of the bells: each step of the engine on the words
of one space and of the bells must be a step that the model allows, and leave the words as the model does."""

from __future__ import annotations

from ..logic import Concrete, Expr
from ..mechanisms import bell as b
from ..mechanisms import targeting as t
from ..system import System
from .events import Event, Run

FLUSHES = 64
"""Flushes of one space in one run, at most."""


class Rejected(Exception):
    """A step that the model does not allow, or whose effect differs from the model's."""


class Targeting:
    """The state of the model that a run has reached, for one space."""

    system: System = t.build()

    def __init__(self, run: Run, space: int) -> None:
        self.run, self.space, self.cpus = run, space, range(run.cpus)
        self.state = Concrete(self.system.fields, {b.CPU: run.cpus, b.FLUSH: FLUSHES})
        self.flushes: dict[int, list[int]] = {cpu: [] for cpu in self.cpus}
        self.count = 0
        self.steps = 0
        self.published = {cpu: False for cpu in self.cpus}
        self.invalidated = {cpu: False for cpu in self.cpus}
        self.owes = {cpu: False for cpu in self.cpus}
        for cpu in self.cpus:
            self.take("come online", c=cpu)

    def __getattr__(self, name: str) -> Expr:
        return getattr(self.__dict__["state"], name)

    def take(self, step: str, **args: Expr) -> None:
        if not self.system.take(self.state, self.system.steps[step], args):
            at = ", ".join(f"{name} {value}" for name, value in args.items())
            raise Rejected(f"the model does not allow the step `{step}` with {at}, for space {self.space}")
        self.steps += 1

    def rung(self, cpu: int) -> int:
        """The bell's word, as the engine has it."""
        return self.raw(cpu, self.rung_last(cpu))

    def kind(self, value: int) -> int:
        """Presence on this space, of a word of presence. Spaces have ids from 1 on."""
        return {1: t.ACTIVE, 2: t.LAZY, 3: t.SWITCHING}[value & 3] if value & 3 and value >> 2 == self.space + 1 else t.ELSEWHERE

    def newest(self, times: int, matches) -> int:
        """The newest message that has the value that was read."""
        found = next((time for time in range(times, -1, -1) if matches(time)), None)
        if found is None:
            raise Rejected("no message has the value that was read")
        return found

    def see(self, event: Event) -> None:
        cpu = event.cpu
        if event.kind == "publish":
            self.published[cpu] = True
        elif event.kind in ("pages", "tag", "everything") or self.is_fresh(event):
            self.invalidated[cpu] = True
            self.invalidates(cpu)
        elif event.kind == "fence":
            self.fences(cpu)
        elif event.kind in ("claim", "free", "operation"):
            self.ends(cpu)
        elif event.word == "presence" and event.of is not None:
            self.presence(event, event.of)
        elif event.word == "generation" and event.of == self.space:
            self.generation(event)
        elif event.word in ("bell", "acknowledgement") and event.of is not None:
            self.bells(event, event.of)

    def pending(self, cpu: int, *states: int) -> list[int]:
        return [f for f in self.flushes[cpu] if self.fs(f) in states]

    def fences(self, cpu: int) -> None:
        if self.pc(cpu) == t.STORED:
            self.take(f"{'resume' if self.back(cpu) else 'switch'}: fence", c=cpu)
        for f in self.pending(cpu, t.COUNTED):
            self.take("flush: fence", f=f)

    def presence(self, event: Event, of: int) -> None:
        cpu, kind = event.cpu, self.kind(event.value)
        if event.kind == "load" and cpu != of:
            for f in self.pending(cpu, t.SCANNING, t.FLUSHED_HERE):
                if self.about(f, of) == b.UNREAD and "PresenceAcquire" in event.rules:
                    time = self.newest(self.pres_last(of), lambda at: self.pres_kind(of, at) == kind)
                    self.take("flush: read a CPU's presence", f=f, c=of, t=time)
        elif event.kind == "store" and of == cpu:
            self.stores_presence(cpu, kind)

    def stores_presence(self, cpu: int, kind: int) -> None:
        pc = self.pc(cpu)
        if kind == t.SWITCHING:
            self.take({t.AWAY: "switch: publish Switching", t.IDLE: "resume: publish Switching",
                t.IN: "leave: publish Switching"}.get(pc, "switch: publish Switching"), c=cpu)
            self.invalidated[cpu] = False
        elif kind == t.ACTIVE:
            back = self.back(cpu)
            if pc == t.READ and self.got(cpu) != self.slot(cpu) and not self.invalidated[cpu]:
                raise Rejected(f"CPU {cpu} has missed a flush and invalidates nothing")
            self.take(f"{'resume' if back else 'switch'}: catch up, publish Active", c=cpu)
        elif kind == t.LAZY:
            self.take("enter lazy", c=cpu)
        elif pc != t.AWAY:
            self.leaves(cpu)

    def leaves(self, cpu: int) -> None:
        in_handler = self.handler(cpu) in (b.BEGUN, b.LOADED)
        self.take("handler: leave the space, if lazy" if in_handler else "leave: publish another presence", c=cpu)

    def is_fresh(self, event: Event) -> bool:
        """Whether a root is loaded under a tag that has no translations: a new one, or one that is emptied."""
        is_new = "Renamed" in self.run.tags or event.more.get("tag") == "0"
        return event.kind == "root" and "tag" in event.more and ("invalidates" in event.more["how"] or is_new)

    def generation(self, event: Event) -> None:
        cpu = event.cpu
        if event.kind == "modify":
            for _ in range(event.value - event.before):
                self.begins(cpu)
            if self.gen_last != event.value:
                raise Rejected(f"the generation is {event.value}, and {self.gen_last} in the model")
        elif event.kind == "load":
            self.invalidated[cpu] = False
            back = "resume" if self.back(cpu) else "switch"
            if self.pc(cpu) in (t.STORED, t.FENCED):
                self.take(f"{back}: load the generation", c=cpu, n=event.value)
            elif self.handler(cpu) in (b.BEGUN, b.LOADED):
                self.take("handler: load the generation", c=cpu, n=event.value)
            else:
                for f in self.pending(cpu, t.SCANNING):
                    self.take("flush: load the generation here", f=f, n=event.value)
                    break

    def begins(self, cpu: int) -> None:
        f, self.count = self.count, self.count + 1
        self.flushes[cpu].append(f)
        self.take("flush: change the tables", f=f, c=cpu)
        if not self.published[cpu]:
            raise Rejected(f"CPU {cpu} counts a flush before its tables are published")
        self.take("flush: publish the tables", f=f)
        self.take("flush: count", f=f)

    def invalidates(self, cpu: int) -> None:
        self.owes[cpu] = False
        for f in self.pending(cpu, t.SCANNING, t.HERE):
            if self.fs(f) == t.HERE:
                self.take("flush: catch up here, if loaded", f=f)
            elif self.pc(cpu) in (t.IN, t.IDLE) and self.slot(cpu) + 1 == self.fg(f):
                self.take("flush: invalidate its extent here", f=f)

    def bells(self, event: Event, of: int) -> None:
        cpu = event.cpu
        if event.word == "acknowledgement":
            return self.answers(event, of)
        if event.kind == "load" and cpu != of:
            for f in self.flushes[cpu]:
                if self.about(f, of) in (b.RUNG, b.IN_ROUND, b.ANSWERED):
                    self.here(f)
                    time = self.newest(self.rung_last(of), lambda at: self.raw(of, at) == event.value)
                    self.take("wait: take a ticket", f=f, c=of, t=time)
        if event.kind != "modify":
            return None
        if self.rung(of) != event.before:
            raise Rejected(f"the bell of CPU {of} is {event.before:#x}, and {self.rung(of):#x} in the model")
        self.changes_bell(event, of)
        if self.rung(of) != event.value:
            raise Rejected(f"the bell of CPU {of} becomes {event.value:#x}, and {self.rung(of):#x} in the model")
        return None

    def raw(self, of: int, at: int) -> int:
        value = lambda name: getattr(self.state, f"rung_{name}")(of, at)
        return value("round") * 16 + (0 if value("conn") else 4) + (2 if value("att") else 0) + (1 if value("flag") else 0)

    def changes_bell(self, event: Event, of: int) -> None:
        cpu = event.cpu
        if cpu != of:
            chosen = [f for f in self.flushes[cpu] if self.about(f, of) == b.CHOSEN]
            for f in chosen[:1]:
                return self.rings(f, cpu, of, chosen)
            return self.take("another flush, of tables or of another space, rings a CPU", d=cpu, c=of)
        if event.text.startswith("sets in"):
            return self.take("wait: attend to its own bell", c=cpu)
        if event.text.startswith("exchanges") or event.text.startswith("clears in") and event.before & 2:
            if self.owes[cpu]:
                raise Rejected(f"CPU {cpu} has answered early, and leaves its bell before it invalidates")
            return self.take("handler: hang up" if event.value & 1 else "handler: leave", c=cpu)
        if event.text.startswith("clears in"):
            return self.take("come online", c=cpu)
        return self.take("go offline" if event.value & 4 else "handler: begin a round", c=cpu)

    def rings(self, f: int, cpu: int, of: int, chosen: list[int]) -> None:
        """One ring is for all flushes of a batch that have chosen the CPU."""
        self.take("flush: ring a CPU", f=f, c=of)
        for other in chosen[1:]:
            self.state.write(("about", other, of), b.SKIPPED)
            self.state.write(("read_at", other, of), 0)

    def answers(self, event: Event, of: int) -> None:
        cpu = event.cpu
        if event.kind == "store" and cpu == of:
            if self.leaving(cpu):
                return self.take("go offline: publish", c=cpu)
            is_behind = self.handler(cpu) == b.LOADED and self.pc(cpu) == t.IN and self.handler_got(cpu) != self.slot(cpu)
            if is_behind and not self.invalidated[cpu]:
                self.owes[cpu] = True
            self.catches_up(cpu)
            self.take("handler: answer", c=cpu)
            if self.rung_round(cpu, self.rung_last(cpu)) != event.value:
                raise Rejected(f"CPU {cpu} answers round {event.value}")
        elif event.kind == "load" and cpu != of:
            for f in self.flushes[cpu]:
                if self.about(f, of) in (b.RUNG, b.IN_ROUND, b.ANSWERED) and 0 < self.ticket(f, of) <= event.value:
                    self.here(f)
                    self.take("wait: observe an answer", f=f, c=of, n=event.value)
        return None

    def catches_up(self, cpu: int) -> None:
        if self.handler(cpu) == b.BEGUN:
            if self.pc(cpu) == t.IN:
                raise Rejected(f"CPU {cpu} answers without a load of the generation")
            self.take("handler: load the generation", c=cpu, n=self.cpu_gen(cpu))
        if self.handler(cpu) == b.LOADED:
            self.take("handler: catch up, if active", c=cpu)

    def here(self, f: int) -> None:
        """The flush has invalidated on its own CPU by now, or has nothing to invalidate there."""
        if self.fs(f) == t.HERE:
            self.take("flush: catch up here, if loaded", f=f)
        if self.fs(f) == t.SCANNING:
            if self.pc(self.on(f)) == t.IN and self.slot(self.on(f)) >= self.fg(f):
                self.take("flush: load the generation here", f=f, n=self.cpu_gen(self.on(f)))
                return self.take("flush: catch up here, if loaded", f=f)
            self.take("flush: leave the invalidation to its CPU's return", f=f)
        return None

    def ends(self, cpu: int) -> None:
        """The kernel relies on the flushes of a CPU from here on."""
        for f in self.flushes[cpu]:
            if self.fs(f) >= t.SCANNING and self.fs(f) < t.DONE:
                self.here(f)
                for other in self.cpus:
                    if self.about(f, other) == b.UNREAD and other != cpu:
                        self.state.write(("about", f, other), b.SKIPPED)
                self.take("wait: return", f=f)
        self.flushes[cpu] = []
        self.published[cpu] = False


def is_replayed(run: Run) -> bool:
    """Whether the model has what the machine of a run uses: no broadcasts, which reach CPUs without a ring."""
    return "Broadcast" not in run.tags and "Domains" not in run.tags and "stop" not in run.program


def replay(run: Run, space: int) -> tuple[int, str | None]:
    """Replays a run for one space. Returns the number of steps of the model, and why the run was rejected."""
    model = Targeting(run, space)
    for event in run.events:
        try:
            model.see(event)
        except Rejected as rejected:
            return model.steps, f"{rejected} (CPU {event.cpu} {event.text})"
    return model.steps, None

