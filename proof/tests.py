"""Tests of the tools: the memory model, the queries, and the bridge. The mechanisms are proofs, and need no tests."""

from __future__ import annotations

import itertools
import unittest

from .bridge.contracts import Contracts
from .bridge.events import Run, parse
from .logic import CODE, TIME, And, Concrete, Sort, State
from .memory import Thread, Word
from .mechanisms import build_all, waiting
from .queries import Progress, Effort, advance, begin, induct, without_each
from .rules import hostile, kinds, loom
from .system import System

SIDE = Sort("Side")
PLAIN, ORDERED = False, True


def litmus(ops: list[list[tuple]], release: bool, acquire: bool) -> set[tuple[int, ...]]:
    """All outcomes of a program: for each thread, operations on `x` and `y`. Loads go to registers, in order."""
    m = System("litmus")
    x = Word(m, "x", values={"v": CODE}, fenced=True)
    y = Word(m, "y", values={"v": CODE}, carries=(x,), fenced=True)
    thread = Thread(m, "thread", SIDE, (x, y))
    words, outcomes = {"x": x, "y": y}, set()

    def run(state: Concrete, at: tuple[int, ...], seen: tuple[tuple[int, int, int], ...]) -> None:
        if all(at[side] == len(ops[side]) for side in range(len(ops))):
            outcomes.add(tuple(value for _, _, value in sorted(seen)))
        for side in range(len(ops)):
            if at[side] == len(ops[side]):
                continue
            kind, *rest = ops[side][at[side]]
            after = tuple(pc + (index == side) for index, pc in enumerate(at))
            for time in range(state.latest() + 1) if kind == "load" else (0,):
                m.steps.clear()

                @m.step("op")
                def _(t, kind=kind, rest=rest, side=side, time=time):
                    if kind == "store":
                        thread.store(t, side, words[rest[0]], (), release, v=rest[1])
                    elif kind == "load":
                        thread.load(t, side, words[rest[0]], (), time, acquire)
                    else:
                        thread.fence(t, side)

                new = Concrete(m.fields, {SIDE: len(ops)})
                new.values, new.highest = dict(state.values), state.highest
                if m.take(new, m.steps["op"], {}):
                    got = ((side, at[side], new.values.get((f"{rest[0]}_v", time), 0)),) if kind == "load" else ()
                    run(new, after, seen + got)

    run(Concrete(m.fields, {SIDE: len(ops)}), (0,) * len(ops), ())
    return outcomes


class Memory(unittest.TestCase):
    def test_store_buffer_needs_both_fences(self) -> None:
        fence = [("fence",)]
        for first, second in itertools.product(([], fence), repeat=2):
            ops = [[("store", "x", 1), *first, ("load", "y")], [("store", "y", 1), *second, ("load", "x")]]
            found = litmus(ops, release=ORDERED, acquire=ORDERED)
            self.assertEqual((0, 0) in found, not (first and second))
            self.assertLessEqual({(0, 1), (1, 0), (1, 1)}, found)

    def test_message_passing_needs_release_and_acquire(self) -> None:
        ops = [[("store", "x", 1), ("store", "y", 1)], [("load", "y"), ("load", "x")]]
        for release, acquire in itertools.product((PLAIN, ORDERED), repeat=2):
            self.assertEqual((1, 0) in litmus(ops, release, acquire), not (release and acquire))

    def test_reads_of_one_word_do_not_go_back(self) -> None:
        ops = [[("store", "x", 1), ("store", "x", 2)], [("load", "x"), ("load", "x")]]
        found = litmus(ops, PLAIN, PLAIN)
        self.assertIn((0, 2), found)
        self.assertFalse({(2, 1), (1, 0), (2, 0)} & found)

    def test_load_buffering_is_not_in_the_model(self) -> None:
        ops = [[("load", "x"), ("store", "y", 1)], [("load", "y"), ("store", "x", 1)]]
        self.assertNotIn((1, 1), litmus(ops, PLAIN, PLAIN))


class Queries(unittest.TestCase):
    def test_step_that_breaks_the_invariant_is_found(self) -> None:
        m = System("count", sizes={TIME: 4})
        m.field((), {TIME: "n"})

        @m.step("add")
        def _(x):
            x.require(x.n < 2 if x.obeys("FlushFence") else True)
            x.set("n", to=x.n + 1)

        @m.holds("small")
        def _(s: State):
            return And(s.n <= 2)

        self.assertEqual(induct(m, list(m.steps.values()), Effort()), [])
        failure = without_each(m, Effort())["FlushFence"]
        self.assertEqual((failure.step, failure.part), ("add", "small"))
        self.assertIn("n: 2 becomes 3", failure.model)

    def test_lemma_must_follow(self) -> None:
        m = System("lemma")
        m.field((), {TIME: "n"})
        m.holds("positive")(lambda s: And(s.n >= 0))
        m.follows("not negative", "positive")(lambda s: And(s.n > -1))
        self.assertEqual(begin(m, Effort()), [])
        m.follows("more", "positive")(lambda s: And(s.n > 0))
        self.assertEqual([(it.part, it.result) for it in begin(m, Effort())], [("more", "sat")])

    def test_wrong_rank_is_rejected(self) -> None:
        m = waiting.build()
        self.assertEqual(advance(m, m.progress, Effort()), [])
        flat = Progress(m.progress.waits, lambda s, f, c: 1, m.progress.sorts, m.progress.helpful)
        self.assertTrue(advance(m, flat, Effort()))
        fewer = Progress(m.progress.waits, m.progress.rank, m.progress.sorts, m.progress.helpful[:-1])
        self.assertIn("no helpful step", [it.part for it in advance(m, fewer, Effort())])

    def test_every_rule_is_modelled(self) -> None:
        named = {rule for system in build_all() for rule in system.rules()}
        self.assertEqual(named, set(kinds()))


class Rules(unittest.TestCase):
    def test_sources_are_parsed(self) -> None:
        self.assertGreaterEqual(len(kinds()), 90)
        self.assertEqual((kinds()["FlushFence"], kinds()["BumpRelease"], kinds()["Wait"]), ("Fence", "Release", "Step"))
        self.assertEqual(loom()["GenerationAcquire"], "first_switch")
        self.assertEqual(hostile()["OnlineSync"], "ARM64")


class Bridge(unittest.TestCase):
    def judge(self, *lines: tuple[str, str]) -> str | None:
        contracts, named = Contracts(Run("intact", "x86", "PerCpu(2)", "Handoff", "a | b", "done")), []
        for kind, text in lines:
            if kind == "Rule":
                named.append(text)
                continue
            event = parse(0, kind, text)
            event.rules, named = tuple(named), []
            wrong = contracts.see(event)
            if wrong:
                return wrong
        return contracts.finish()

    def test_relaxed_access_is_rejected(self) -> None:
        text = "stores to presence of CPU 0: 0x5 ({}, not visible yet)"
        self.assertIsNone(self.judge(("Rule", "LeaveRelease"), ("Access", text.format("Release"))))
        self.assertIn("LeaveRelease", self.judge(("Rule", "LeaveRelease"), ("Access", text.format("Relaxed"))))
        self.assertIn("LeaveRelease", self.judge(("Access", text.format("Relaxed"))))

    def test_missing_barrier_is_rejected(self) -> None:
        bump, load = ("Access", "adds to generation of space 0: from 0x0 to 0x1 (Release)"), ("Access",
            "reads phase of space 0: 0x0 (Acquire)")
        rules = [("Rule", "BumpRelease"), ("Rule", "FlushFence")]
        self.assertIsNone(self.judge(*rules, bump, ("Access", "fences"), load))
        self.assertIn("FlushFence", self.judge(*rules, bump, load))

    def test_ring_without_interrupt_or_wait_is_rejected(self) -> None:
        ring, wait = ("Access", "sets in bell of CPU 1: from 0x0 to 0x1 (AcqRel)"), ("Access",
            "reads acknowledgement of CPU 1: 0x1 (Acquire)")
        claim, send = ("Event", "claims that the flush is complete"), ("SendsInterrupt(1)", "interrupts CPU 1")
        self.assertIsNone(self.judge(ring, send, wait, claim))
        self.assertIn("not waited for", self.judge(ring, send, claim))
        self.assertIn("sends no interrupt", self.judge(ring, wait, claim))
        coalesced = ("Access", "sets in bell of CPU 1: from 0x1 to 0x1 (AcqRel)")
        self.assertIsNone(self.judge(coalesced, wait, claim))

    def test_duties_that_are_left_out_are_rejected(self) -> None:
        access, event = (lambda text: ("Access", text)), (lambda text: ("Event", text))
        claim = event("claims that the flush is complete")
        count, fence = access("adds to generation of space 0: from 0x0 to 0x1 (Release)"), access("fences")
        phase = ("Rule", "PhaseAcquire"), access("reads phase of space 0: 0x2 (Acquire)")
        stamp = access("exchanges stamp 1 of space 0: from 0x0 to 0x5 (Acquire)")
        written = [access(f"stores to {word} 1 of space 0: 0x4 (Release, not visible yet)") for word in ("extent", "stamp")]
        changed, publish = event("swaps page 0 of space 0: from → 0 (writable) to nothing (AcqRel)"), access("publishes its page-table writes")
        kernel = access("adds to generation of the kernel: from 0x0 to 0x1 (Release)"), access("fences"), access("reads online set of the kernel: 0x1 (Acquire)")
        here = access("reads generation of the kernel: 0x1 (Acquire)"), event("invalidates kernel pages")
        walkers, hazard = ("Operation", "flushes the walkers of space 0"), access("reads hazard of CPU 1: 0x0 (Acquire)")
        command, is_done = event("sends the device command 1, to invalidate on space 0"), event("finds command 1 of the device complete")
        asid, reached = access("reads ASID of space 0: 0x1 (Acquire)"), event("broadcasts an invalidation of tag 1")
        uncounted = changed, publish, asid, reached, event("completes its invalidations"), claim
        registers = access("sets in set 0 of space 0: from 0x0 to 0x1 (Relaxed)"), fence, *phase
        for steps, left_out, wrong in (
            ((count, fence, *phase, command, is_done, claim), 4, "devices"),
            ((count, fence, *phase, command, is_done, claim), 5, "command"),
            ((count, stamp, *written, claim), 2, "log"),
            ((count, stamp, *written, claim), 3, "log"),
            ((changed, publish, count, claim), 1, "published"),
            ((changed, publish, count, claim), 2, "not counted"),
            (uncounted, 1, "broadcasts a flush before its tables"),
            (uncounted, 2, "not counted"),
            (uncounted, 3, "not counted"),
            ((*kernel, *here, claim), 1, "no barrier after a count"),
            ((*kernel, *here, claim), 2, "who is online"),
            ((*kernel, *here, claim), 4, "not invalidated here"),
            ((walkers, fence, hazard), 1, "flushes walkers"),
            (registers, 1, "registration"),
        ):
            self.assertIsNone(self.judge(*steps), steps)
            self.assertIn(wrong, self.judge(*steps[:left_out], *steps[left_out + 1 :]) or "accepted", steps)

    def test_step_without_effect_is_rejected(self) -> None:
        keeps, empties = (("Event", f"loads space 0 under tag 1, and {how}") for how in ("keeps its entries",
            "invalidates the tag"))
        self.assertIsNone(self.judge(("Rule", "DiscardReusedTag"), empties))
        self.assertIn("DiscardReusedTag", self.judge(("Rule", "DiscardReusedTag"), keeps))


if __name__ == "__main__":
    unittest.main()
