//! *Pending*: a flush that was sent and may not yet be done.
//!
//! Between the flush and the wait, the caller may drop its locks, send other flushes, and join
//! them. During that time, the CPUs that were rung invalidate in parallel with this one.

mod elsewhere;

use core::fmt;
use core::mem::MaybeUninit;
use core::num::NonZeroU64;

use crate::base::ids::CpuId;
use crate::base::rules::Rule;
use crate::parts::cpu_set::CpuSet;
use crate::parts::trace_event::{FlushCause, WaitTrace};
use crate::path::quarantine::Horizon;
use crate::state::broadcaster::Broadcaster;
use crate::state::engine::Shootdown;
use crate::state::machine::{Machine, is_checked};
use crate::state::pinned_cpu::PinnedCpu;
use crate::state::stall::Turns;

use elsewhere::Elsewhere;

/// Number of CPUs whose answers a waiter reads ahead. A core has ten or more buffers for cache
/// lines on their way (Intel: line fill buffers), and more requests would wait.
const PREFETCHED_TICKETS: usize = 10;

/// A flush that was sent and may not yet be done.
///
/// The pages that the flush covered must not be reused before [`wait`](Self::wait) returns or
/// [`poll`](Self::poll) returns `true`. Dropping a `Pending` waits for the flush.
///
/// The size is seven words and a bit per CPU: 72 bytes up to 64 CPUs, 568 bytes for 4096. To wait
/// for it does not copy it.
#[must_use = "pages that the flush covered must not be reused before this is done"]
pub struct Pending<'e, M: Machine> {
    pub(crate) engine: &'e Shootdown<M>,
    /// The CPUs that were rung, and whose answer this waiter has not yet observed.
    pub(crate) waiting: CpuSet<M::CpuBits>,
    /// While there are devices to wait for, their ticket. Otherwise the round that the first CPU of
    /// `waiting` must have ended, taken when that CPU becomes the first.
    ticket: Option<NonZeroU64>,
    elsewhere: Elsewhere,
    /// The cause of the flush. Initialised only if the machine [traces](Machine::TRACES).
    cause: MaybeUninit<FlushCause>,
    pub(crate) horizon: Horizon,
}

impl<'e, M: Machine> Pending<'e, M> {
    /// A flush that is done, to which others can be [joined](Self::join).
    #[inline]
    pub const fn done(engine: &'e Shootdown<M>) -> Self {
        Self {
            engine,
            waiting: CpuSet::new(),
            ticket: None,
            elsewhere: Elsewhere::NOTHING,
            cause: if M::TRACES {
                MaybeUninit::new(FlushCause::Unnamed)
            } else {
                MaybeUninit::uninit()
            },
            horizon: Horizon::UNKNOWN,
        }
    }

    /// Waits until every CPU that was rung has answered, and every
    /// [device](crate::Shootdown::attach_device) has dropped what the flush covers.
    ///
    /// You may wait on any CPU, with the flush interrupt masked or not:
    ///
    /// - With the interrupt masked, the waiter polls and answers its own bell, so two CPUs can wait
    ///   for each other. The waiter publishes that it polls, so no CPU sends it the interrupt. This
    ///   is the better choice for many flushes at the same time, if other interrupts can be
    ///   delayed.
    /// - Where the machine [broadcasts](Machine::broadcaster), wait masked and on the CPU of the
    ///   flush, because only that CPU can complete its broadcast. A wait on another CPU, or with
    ///   the interrupt unmasked (the thread may be moved at any time), must interrupt that CPU.
    ///
    /// The caller must hold no lock for which another CPU spins with the interrupt masked, unless
    /// that CPU calls [`PinnedCpu::handle_flush_ipi`] in its loop.
    ///
    /// Do not wait for or drop a `Pending` in a handler that may have interrupted a method of a
    /// [`PinnedCpu`]: see [`Shootdown::pin`].
    ///
    /// There is no timeout. A hypervisor may stop a virtual CPU for seconds, and to continue
    /// without its answer would cause the corruption that this crate prevents. If a CPU has stopped
    /// for good, [disconnect](PinnedCpu::disconnect) it: then the wait ends. A build with debug
    /// assertions [reports](Machine::report_stall) a wait of some seconds.
    #[inline]
    pub fn wait(&mut self) {
        if !self.waiting.is_empty() || self.elsewhere.is_some() {
            self.wait_slow();
        }
    }

    /// The horizon of this flush: which unhooked page tables of the space CPUs may still walk when
    /// the flush is done.
    ///
    /// It is known for the results of [`flush_gathered`](PinnedCpu::flush_gathered) and
    /// [`flush_walkers`](PinnedCpu::flush_walkers), and of a [`flush`](PinnedCpu::flush) that frees
    /// tables. [Joining](Self::join) another flush does not change it.
    #[must_use]
    pub const fn horizon(&self) -> Horizon {
        self.horizon
    }

    /// The address of the engine, or what memory has there that was never a flush: for the C
    /// interface, which finds such memory by it.
    #[doc(hidden)]
    #[inline]
    pub const fn engine_address(&self) -> *const Shootdown<M> {
        #[expect(unsafe_code, reason = "the memory may not have a reference")]
        // SAFETY: the place is one of `self`, and any of its values is a pointer.
        unsafe {
            (&raw const self.engine).cast::<*const Shootdown<M>>().read()
        }
    }

    /// Returns `true` if the flush is done, without waiting for other CPUs.
    ///
    /// If this CPU has issued a broadcast for the flush, waits for the hardware to complete it.
    /// Does not answer this CPU's own bell.
    #[inline]
    pub fn poll(&mut self) -> bool {
        if self.elsewhere.is_some() && !self.poll_elsewhere() {
            return false;
        }
        let mut prefetched = 0;
        while let Some(cpu) = self.waiting.first() {
            if !self.has_answered(cpu) {
                return false;
            }
            self.waiting.remove(cpu);
            self.set_bell_ticket(None);
            if M::PREFETCHES {
                if prefetched == 0 {
                    self.prefetch_tickets();
                    prefetched = PREFETCHED_TICKETS;
                }
                prefetched -= 1;
            }
        }
        true
    }

    /// As [`poll`](Self::poll). If the flush is not done, one of the CPUs in
    /// [`waiting`](Self::waiting) calls [`Machine::wake_waiters`] when it has answered; then call
    /// this again. The caller can sleep until then. While devices are not done, [their
    /// driver](Machine::devices_are_done) must wake the caller instead.
    ///
    /// Before each call, put the caller where `wake_waiters` finds it: no wake-up is lost then.
    ///
    /// ```
    /// use core::{future::Future, pin::Pin, task::{Context, Poll, Waker}};
    /// use shootdown::{Machine, Pending};
    ///
    /// # fn register(waker: &Waker) {}
    /// struct Done<'e, M: Machine>(Pending<'e, M>);
    ///
    /// impl<M: Machine> Future for Done<'_, M> {
    ///     type Output = ();
    ///
    ///     fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
    ///         register(context.waker()); // in the kernel's list, from which `wake_waiters` wakes
    ///         if self.0.poll_or_wake() { Poll::Ready(()) } else { Poll::Pending }
    ///     }
    /// }
    /// ```
    pub fn poll_or_wake(&mut self) -> bool {
        while !self.poll() {
            if self.elsewhere.is_some() {
                return false;
            }
            let Some(cpu) = self.waiting.first() else { break };
            let machine = &self.engine.machine;
            if machine.state(cpu).bell.request_wake(machine) {
                return false;
            }
            // The CPU has left its bell since the poll, so a new ticket shows that it has answered.
            self.set_bell_ticket(None);
        }
        true
    }

    /// Prefetches what [`poll`](Self::poll) reads of the next CPUs, which have probably answered,
    /// because they were rung at the same time as a CPU that has. Before the first answer, this
    /// would take their bells' lines away from CPUs that are about to write them.
    #[inline]
    fn prefetch_tickets(&self) {
        let machine = &self.engine.machine;
        for cpu in self.waiting.iter().take(PREFETCHED_TICKETS) {
            let bell = &machine.state(cpu).bell;
            bell.prefetch_for_ticket(machine);
            if machine.answers_early() {
                // The CPU probably still attends to its bell.
                bell.prefetch_answer(machine);
            }
        }
    }

    /// Adds the CPUs, the broadcast and the devices of `other`: this flush is done when both are
    /// done.
    ///
    /// If two CPUs have issued the two broadcasts, the broadcast of `other` is completed here or
    /// requested from its issuer, as [`poll`](Self::poll) does.
    pub fn join(&mut self, mut other: Self) {
        match (self.issuer(), other.issuer()) {
            (None, Some(issuer)) => self.set_issuer(issuer),
            // There is room for one issuer only.
            (Some(issuer), Some(second)) if issuer != second => other.complete_broadcast(),
            _ => {}
        }
        self.waiting.insert_all(&other.waiting);
        // The first CPU may have changed. For the same CPU, a later ticket is equally valid.
        self.forget_bell_ticket();
        if let Some(ticket) = other.devices() {
            self.add_devices(ticket);
        }
        other.waiting.clear();
        other.elsewhere = Elsewhere::NOTHING;
    }

    /// Records the cause of the flush.
    #[inline(always)]
    pub(crate) fn set_cause(&mut self, cause: FlushCause) {
        self.cause = MaybeUninit::new(cause);
    }

    /// The cause of the flush. Meaningful only if the machine traces.
    fn cause(&self) -> FlushCause {
        if !M::TRACES {
            return FlushCause::Unnamed;
        }
        #[expect(unsafe_code, reason = "the cause is not initialised where nothing reads it")]
        // SAFETY: `done`, the only constructor, has initialised the cause, because the machine
        // traces.
        unsafe {
            self.cause.assume_init()
        }
    }

    /// Adds `cpu`, which was rung, to the CPUs to wait for.
    pub(crate) fn wait_for(&mut self, cpu: CpuId) {
        self.waiting.insert(cpu);
        self.forget_bell_ticket();
    }

    /// The pin guard of the CPU on which the wait runs. The flush interrupt must be masked.
    ///
    /// It meets the contract of [`Shootdown::pin`]:
    ///
    /// - Because the interrupt is masked, this thread stays on its CPU.
    /// - No method of another guard is running on this CPU. Such a method would have to call this
    ///   wait, which no method in this crate does; or this wait would have to run in a handler that
    ///   interrupted the method, which the caller of `pin` promised to prevent.
    /// - A handler that interrupts this wait (in `wait_hint`, or because its interrupt is not
    ///   masked) runs while no method of this wait's guards runs: each guard is gone when its
    ///   method returns.
    pub(crate) fn pin(&self) -> PinnedCpu<'e, M> {
        #[expect(unsafe_code, reason = "pins the CPU on which the wait runs")]
        // SAFETY: as argued above.
        unsafe {
            self.engine.pin()
        }
    }

    /// The CPUs to wait for: those that were rung and whose answer was not yet observed.
    pub const fn waiting(&self) -> &CpuSet<M::CpuBits> {
        &self.waiting
    }

    #[inline(never)]
    fn wait_slow(&mut self) {
        WaitOnce(self).0.wait_until_done();
    }

    /// Completes the broadcast, and asks the devices once. Returns `true` if they are done.
    #[inline(never)]
    fn poll_elsewhere(&mut self) -> bool {
        self.complete_broadcast();
        let machine = &self.engine.machine;
        let Some(ticket) = self.devices() else { return true };
        // Pairs with the issue of `ticket`. Without: the caller reuses a page that a device, which
        // has its command and has not acted on it, still reads and writes.
        let is_done = machine.breaks(Rule::CompleteDevices) || machine.devices_are_done(ticket);
        if is_done {
            self.remove_devices();
        }
        is_done
    }

    #[inline]
    fn wait_until_done(&mut self) {
        let is_done = !self.elsewhere.is_some() || self.poll_elsewhere();
        if is_done && self.waiting.is_empty() {
            // Only a broadcast was waited for: the bell's line is not written.
            return;
        }
        let machine = &self.engine.machine;
        // A wait for devices does not measure the time that CPUs take to answer.
        let broadcaster = self.engine.broadcaster().filter(|_| is_done);
        let began_ns = broadcaster.map_or(0, Broadcaster::clock_ns);
        let interrupted = self.waiting.len() as u64;
        let traced_ns = if M::TRACES { machine.trace_clock_ns() } else { 0 };
        let polls_bell = machine.interrupts_masked() && !machine.breaks(Rule::AnswerWhileWaiting);
        if polls_bell {
            self.pin().begin_polling();
        }
        let mut turns = Turns::default();
        while !self.poll() {
            if polls_bell {
                self.pin().poll_bell();
            }
            let hint = (polls_bell && is_checked::<M>()).then(|| self.pin().begin_hint());
            machine.wait_hint(&self.waiting);
            drop(hint);
            turns.count(machine, &self.waiting);
        }
        if M::TRACES && interrupted != 0 {
            let ns = machine.trace_clock_ns().saturating_sub(traced_ns);
            machine.trace_wait(&WaitTrace { cause: self.cause(), targets: interrupted, ns });
        }
        if polls_bell {
            let pin = self.pin();
            pin.end_polling();
            if let Some(broadcaster) = broadcaster.filter(|_| began_ns != 0) {
                let took_ns = broadcaster.clock_ns().saturating_sub(began_ns);
                pin.record_answers(interrupted, took_ns);
            }
        }
    }

    /// Returns `true` if `cpu`, the first CPU of `waiting`, has answered.
    ///
    /// The ticket is taken once. If each poll took a new ticket, the wait might never end, because
    /// other CPUs may ring again and again.
    fn has_answered(&mut self, cpu: CpuId) -> bool {
        let machine = &self.engine.machine;
        let bell = &machine.state(cpu).bell;
        let ticket = self.bell_ticket().or_else(|| bell.ticket(machine));
        self.set_bell_ticket(ticket);
        ticket.is_none_or(|ticket| bell.has_answered(machine, ticket))
    }
}

/// A guard that ends the wait. If the machine's `wait_hint` unwinds, which it must not, the drop of
/// the `Pending` does not wait again.
struct WaitOnce<'p, 'e, M: Machine>(&'p mut Pending<'e, M>);

impl<M: Machine> Drop for WaitOnce<'_, '_, M> {
    fn drop(&mut self) {
        self.0.waiting.clear();
        self.0.elsewhere = Elsewhere::NOTHING;
    }
}

impl<M: Machine> Drop for Pending<'_, M> {
    #[inline]
    fn drop(&mut self) {
        self.wait();
    }
}

/// So that a future can contain it.
impl<M: Machine> Unpin for Pending<'_, M> {}

impl<M: Machine> fmt::Debug for Pending<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pending").field(&self.waiting).finish()
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests;
