"""The doorbell of each CPU: rounds, coalesced rings, tickets, and the interrupts that rings send.

The theorem that others use: a waiter that stops to wait for a CPU comes after the end of a round that began after the
waiter's ring, or after the CPU was disconnected.
"""

from __future__ import annotations

from ..logic import ALL, BOOL, CODE, TIME, And, Expr, If, Implies, Not, Or, Sort, State, later, one_of, within
from ..memory import Thread, Word
from ..system import System, Taken

CPU, FLUSH = Sort("Cpu"), Sort("Flush")

UNREAD, SKIPPED, CHOSEN, RUNG, IN_ROUND, ANSWERED, OBSERVED = range(7)
"""What a flush has done about a CPU, and the CPU for it."""
NONE, BEGUN, LOADED, CAUGHT_UP, ENDED, FLUSHING = range(6)
"""Where a CPU's handler is; or the CPU flushes for itself."""


class Bell:
    """The words of the bells, and the operations on them. `uses` counts what owners have done."""

    def __init__(self, m: System, owner: Thread, gen: Word | None = None) -> None:
        self.owner = owner
        self.rung = Word(m, "rung", (CPU,), {"round": TIME, "flag": BOOL, "att": BOOL, "conn": BOOL, "uses": TIME},
            carries=(gen,) if gen else ())
        self.waiter = Thread(m, "waiter", FLUSH, (self.rung,))
        m.field((CPU,), {CODE: "handler", TIME: "uses", BOOL: "polling leaving irq self_send", FLUSH: "sender"})
        m.field((CPU, TIME), {BOOL: "published", TIME: "published_uses"})
        m.field((FLUSH, CPU), {CODE: "about", TIME: "ring_at begin_at cover ticket answered_uses waiter_uses", BOOL: "sends"})

    def now(self, x: Taken | State, c: Expr, value: str) -> Expr:
        """A value of the newest message."""
        return getattr(x, f"rung_{value}")(c, x.rung_last(c))

    def change(self, x: Taken, thread: Thread, me: Expr, c: Expr, acquire: bool = False, release: bool = False,
        **changes: Expr) -> None:
        values = {name: self.now(x, c, name) for name in self.rung.values} | changes
        thread.modify(x, me, self.rung, (c,), acquire, release, **values)

    def ring(self, x: Taken, thread: Thread, me: Expr, f: Expr, c: Expr) -> None:
        """Rings a CPU for a flush. The flush's fence, or the ring itself, releases."""
        gone = Not(self.now(x, c, "conn"))
        quiet = Not(Or(self.now(x, c, "flag"), self.now(x, c, "att"), gone))
        self.change(x, thread, me, c, release=True, flag=True)
        at = x.rung_last(c) + 1
        x.put(f, c, waiter_rung=at, ring_at=at, ticket=0, about=If(gone, OBSERVED, RUNG), begin_at=at,
            cover=self.now(x, c, "round"))
        x.put(f, c, answered_uses=If(gone, x.uses(c), 0), sends=Or(quiet, x.sends(f, c)))
        x.set("sender", c, to=If(quiet, f, x.sender(c)))
        if x.obeys("DisconnectAcquire"):
            x.set("waiter_uses", f, c, to=If(gone, later(x.waiter_uses(f, c), self.now(x, c, "uses")), x.waiter_uses(f, c)))

    def begin(self, x: Taken, c: Expr) -> None:
        """Begins a round for all that have rung."""
        x.require(self.now(x, c, "flag"), self.now(x, c, "conn"), Not(x.leaving(c)))
        number, at = self.now(x, c, "round") + 1, x.rung_last(c) + 1
        self.change(x, self.owner, c, c, acquire=x.obeys("BellAcquire"), round=number, flag=False, att=True)
        rang = lambda f: x.about(f, c) == RUNG
        x.put(ALL, c, where=rang, about=IN_ROUND, begin_at=at, cover=number)
        x.set("handler", c, to=BEGUN)

    def end(self, x: Taken, c: Expr) -> None:
        """Publishes that the round is over."""
        number = self.now(x, c, "round")
        x.put(c, number, published=True, published_uses=x.uses(c) if x.obeys("AnswerRelease") else 0)
        self.answer(x, c, lambda f: x.about(f, c) == IN_ROUND)
        x.set("handler", c, to=ENDED)

    def answer(self, x: Taken, c: Expr, which) -> None:
        x.put(ALL, c, where=which, about=ANSWERED, answered_uses=x.uses(c))

    def leave(self, x: Taken, c: Expr) -> None:
        """Stops attending. If a CPU has rung since, this fails, and the owner begins another round."""
        flag = self.now(x, c, "flag")
        if x.obeys("RecheckBell"):
            x.require(Not(flag))
        uses = later(self.now(x, c, "uses"), x.uses(c)) if x.obeys("QuietRelease") else self.now(x, c, "uses")
        self.change(x, self.owner, c, c, att=False, flag=False, uses=uses)
        x.put(c, handler=NONE, polling=False)

    def hang_up(self, x: Taken, c: Expr) -> None:
        """After three rounds, stops attending in any case, and interrupts itself if a CPU has rung."""
        uses = later(self.now(x, c, "uses"), x.uses(c)) if x.obeys("QuietRelease") else self.now(x, c, "uses")
        x.set("self_send", c, to=self.now(x, c, "flag"))
        self.change(x, self.owner, c, c, att=False, uses=uses)
        x.set("handler", c, to=NONE)

    def disconnect(self, x: Taken, c: Expr) -> None:
        """The owner has used its last translation, or has stopped for good."""
        number, at = self.now(x, c, "round") + 1, x.rung_last(c) + 1
        x.require(self.now(x, c, "conn"))
        uses = later(self.now(x, c, "uses"), x.uses(c)) if x.obeys("DisconnectRelease") else self.now(x, c, "uses")
        self.change(x, self.owner, c, c, round=number, att=False, conn=False, uses=uses)
        rang = lambda f: x.about(f, c) == RUNG
        x.put(ALL, c, where=rang, begin_at=at, cover=number)
        self.answer(x, c, lambda f: one_of(x.about(f, c), RUNG, IN_ROUND))
        x.put(c, leaving=True, handler=NONE, polling=False, self_send=False)

    def publish_leaving(self, x: Taken, c: Expr) -> None:
        number = self.now(x, c, "round")
        x.require(x.leaving(c))
        x.put(c, number, published=True, published_uses=x.uses(c) if x.obeys("AnswerRelease") else 0)
        x.set("leaving", c, to=False)

    def connect(self, x: Taken, c: Expr) -> None:
        x.require(Not(self.now(x, c, "conn")), Not(x.leaving(c)))
        self.change(x, self.owner, c, c, conn=True, flag=False)

    def take_ticket(self, x: Taken, f: Expr, c: Expr, t: Expr) -> None:
        """Begins to wait for a CPU: it may be quiet already."""
        x.require(one_of(x.about(f, c), RUNG, IN_ROUND, ANSWERED))
        self.waiter.load(x, f, self.rung, (c,), t, False)
        done = Or(Not(x.rung_conn(c, t)), Not(Or(x.rung_flag(c, t), x.rung_att(c, t))))
        x.put(f, c, about=If(done, OBSERVED, x.about(f, c)), ticket=x.rung_round(c, t) + If(x.rung_flag(c, t), 1, 0))
        if x.obeys("QuietAcquire"):
            x.set("waiter_uses", f, c, to=If(done, later(x.waiter_uses(f, c), x.rung_uses(c, t)), x.waiter_uses(f, c)))

    def observe(self, x: Taken, f: Expr, c: Expr, n: Expr) -> None:
        """Observes the end of a round."""
        x.require(one_of(x.about(f, c), RUNG, IN_ROUND, ANSWERED), x.ticket(f, c) > 0, x.published(c, n), n >= x.ticket(f, c))
        x.set("about", f, c, to=OBSERVED)
        if x.obeys("WaitAcquire"):
            x.set("waiter_uses", f, c, to=later(x.waiter_uses(f, c), x.published_uses(c, n)))

    def invariant(self, m: System) -> None:
        now = self.now

        @m.holds("bell: ranges")
        def _(s: State) -> Expr:
            return And(
                s.forall(lambda c: And(
                    s.rung_last(c) >= 0, now(s, c, "round") >= 0, s.uses(c) >= 0, within(0, s.handler(c), FLUSHING),
                    Implies(one_of(s.handler(c), BEGUN, LOADED, CAUGHT_UP), And(now(s, c, "att"), now(s, c, "conn"),
                        Not(s.published(c, now(s, c, "round"))))),
                    Implies(s.handler(c) == ENDED, And(now(s, c, "conn"), now(s, c, "att"))),
                    Implies(s.leaving(c), And(Not(now(s, c, "conn")), Not(s.published(c, now(s, c, "round"))))),
                    Implies(Not(now(s, c, "conn")), And(Not(now(s, c, "att"))))), CPU),
                s.forall(lambda c, t: Implies(And(t >= 0, t <= s.rung_last(c)), And(s.rung_round(c, t) <= now(s, c, "round"),
                    s.rung_uses(c, t) <= s.uses(c), Or(s.rung_conn(c, t), Not(s.rung_att(c, t))))), CPU, TIME),
                s.forall(lambda c, n: Implies(s.published(c, n), n <= now(s, c, "round")), CPU, TIME),
                s.forall(lambda f, c: And(s.about(f, c) >= 0, s.about(f, c) <= OBSERVED, s.waiter_uses(f, c) >= 0,
                    s.answered_uses(f, c) <= s.uses(c),
                    Implies(s.about(f, c) >= RUNG, And(s.ring_at(f, c) >= 0, within(s.ring_at(f, c), s.waiter_rung(f, c),
                        s.rung_last(c)), s.ring_at(f, c) <= s.begin_at(f, c)))), FLUSH, CPU))

        @m.holds("bell: a ring stays in the bell until a round begins")
        def _(s: State) -> Expr:
            return And(
                s.forall(lambda f, c, t: Implies(And(s.about(f, c) == RUNG, within(s.ring_at(f, c), t, s.rung_last(c))),
                    And(s.rung_flag(c, t), s.rung_conn(c, t), s.rung_round(c, t) == now(s, c, "round"))), FLUSH, CPU, TIME),
                s.forall(lambda f, c: Implies(And(s.about(f, c) == RUNG, s.ticket(f, c) > 0),
                    s.ticket(f, c) > now(s, c, "round")), FLUSH, CPU))

        @m.holds("bell: a round covers all rings before its begin")
        def _(s: State) -> Expr:
            return And(
                s.forall(lambda f, c, t: Implies(And(one_of(s.about(f, c), IN_ROUND, ANSWERED),
                    within(s.ring_at(f, c), t, s.rung_last(c))),
                    And(Implies(t < s.begin_at(f, c), And(s.rung_flag(c, t), s.rung_conn(c, t),
                        s.rung_round(c, t) + 1 >= s.cover(f, c))), Implies(t >= s.begin_at(f, c), s.rung_round(c, t) >= s.cover(f,
                        c)))), FLUSH, CPU, TIME),
                s.forall(lambda f, c: Implies(one_of(s.about(f, c), IN_ROUND, ANSWERED), And(s.begin_at(f, c) <= s.rung_last(c),
                    s.cover(f, c) <= now(s, c, "round"), Implies(s.ticket(f, c) > 0, s.ticket(f, c) >= s.cover(f, c)))), FLUSH,
                CPU))

        @m.holds("bell: no end of a round is published, and the bell is not quiet, before the covering round has ended")
        def _(s: State) -> Expr:
            return And(
                s.forall(lambda f, c: Implies(s.about(f, c) == IN_ROUND, And(s.cover(f, c) == now(s, c, "round"),
                    one_of(s.handler(c), BEGUN, LOADED, CAUGHT_UP))), FLUSH, CPU),
                s.forall(lambda f, c, t: Implies(And(s.about(f, c) == IN_ROUND, within(s.begin_at(f, c), t, s.rung_last(c))),
                    And(s.rung_att(c, t), s.rung_conn(c, t))), FLUSH, CPU, TIME),
                s.forall(lambda f, c, n: Implies(And(s.about(f, c) == IN_ROUND, n >= s.cover(f, c)), Not(s.published(c, n))),
                    FLUSH, CPU, TIME))

        @m.holds("bell: whoever observes the end comes after it")
        def _(s: State) -> Expr:
            quiet = lambda c, t: Or(Not(s.rung_conn(c, t)), Not(Or(s.rung_flag(c, t), s.rung_att(c, t))))
            return And(
                s.forall(lambda f, c, t: Implies(And(s.about(f, c) == ANSWERED, within(s.begin_at(f, c), t, s.rung_last(c)),
                    quiet(c, t)), s.rung_uses(c, t) >= s.answered_uses(f, c)), FLUSH, CPU, TIME),
                s.forall(lambda f, c, n: Implies(And(s.about(f, c) == ANSWERED, n >= s.cover(f, c), s.published(c, n)),
                    s.published_uses(c, n) >= s.answered_uses(f, c)), FLUSH, CPU, TIME),
                s.forall(lambda c: Implies(Not(now(s, c, "conn")), now(s, c, "uses") >= s.uses(c)), CPU),
                s.forall(lambda c, f: Implies(Not(now(s, c, "conn")), Not(one_of(s.about(f, c), RUNG, IN_ROUND))), CPU, FLUSH))

        @m.holds("bell: a waiter that stops comes after a round that began after its ring", safety=True)
        def _(s: State) -> Expr:
            return s.forall(lambda f, c: Implies(s.about(f, c) == OBSERVED, s.waiter_uses(f, c) >= s.answered_uses(f, c)), FLUSH,
                CPU)

        @m.holds("bell: a bell that is rung and not attended has an interrupt on its way", safety=True)
        def _(s: State) -> Expr:
            return s.forall(lambda c: And(
                Implies(And(now(s, c, "flag"), Not(now(s, c, "att")), now(s, c, "conn")),
                    Or(s.irq(c), s.self_send(c), s.sends(s.sender(c), c)))), CPU)


def build() -> System:
    m = System("bell", sizes={CPU: 1, FLUSH: 2, TIME: 6})
    m.small = {FLUSH: 1, TIME: 5}
    owner = Thread(m, "owner", CPU, ())
    bell = Bell(m, owner)

    @m.step("ring", f=FLUSH, c=CPU, about={UNREAD, OBSERVED})
    def _(x, f, c):
        bell.ring(x, owner, c, f, c)

    @m.step("send the interrupt", f=FLUSH, c=CPU, sends=(True, False))
    def _(x, f, c):
        x.set("irq", c, to=True)

    @m.step("interrupt itself", c=CPU, self_send=(True, False))
    def _(x, c):
        x.set("irq", c, to=True)

    @m.step("handler: take the interrupt, and find the bell rung", c=CPU, handler=NONE)
    def _(x, c):
        bell.begin(x, c)
        x.set("irq", c, to=False)

    @m.step("handler: take the interrupt, and find the bell quiet", c=CPU, handler=NONE)
    def _(x, c):
        x.require(Not(bell.now(x, c, "flag")))
        x.set("irq", c, to=False)

    @m.step("poll: begin to poll", c=CPU, handler=NONE)
    def _(x, c):
        x.require(bell.now(x, c, "conn"))
        bell.change(x, owner, c, c, att=True)
        x.set("polling", c, to=True)

    m.step("poll: find the bell rung", c=CPU, handler=NONE, polling=True)(bell.begin)
    m.step("poll: stop to poll", c=CPU, handler=NONE, polling=True)(bell.leave)
    m.moves("poll: continue to poll", c=CPU, handler=(ENDED, NONE), polling=True)

    @m.step("owner: use a translation", c=CPU)
    def _(x, c):
        x.require(bell.now(x, c, "conn"))
        x.set("uses", c, to=x.uses(c) + 1)

    m.step("handler: answer", c=CPU, handler=BEGUN)(bell.end)
    m.step("handler: leave", c=CPU, handler=ENDED)(bell.leave)
    m.step("handler: begin again", c=CPU, handler=ENDED)(bell.begin)
    m.step("handler: hang up", c=CPU, handler=ENDED)(bell.hang_up)
    m.step("disconnect", c=CPU)(bell.disconnect)
    m.step("disconnect: publish", c=CPU)(bell.publish_leaving)
    m.step("connect", c=CPU)(bell.connect)
    m.step("wait: take a ticket", f=FLUSH, c=CPU, t=TIME)(bell.take_ticket)
    m.step("wait: observe an answer", f=FLUSH, c=CPU, n=TIME)(bell.observe)

    bell.invariant(m)
    return m
