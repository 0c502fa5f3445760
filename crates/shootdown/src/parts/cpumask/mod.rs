//! *CPU mask*: the CPUs that a flush of a space must probe.
//!
//! A CPU adds itself to a space's cpumask when it first switches to the space, and stays in the
//! mask when it leaves, so that switching back and forth writes no shared line. Linux's
//! `mm_cpumask` works the same way, at a cost: if a process once ran everywhere and now runs on one
//! CPU, its mask names every CPU. Linux then interrupts those CPUs once a second, so that each
//! removes itself. It is a race to remove another CPU (powerpc had it: a665eec0a22e).
//!
//! Here, a cpumask that has become mostly stale is trimmed by moving to a fresh set; there are two
//! sets. A flush that has wasted too many probes announces the move, and copies the CPUs that are
//! present into the fresh set. After that, the old set is not read any more. A CPU that was
//! elsewhere registers again when it next switches in. Trimming interrupts no CPU, and no CPU waits
//! for it: during the move, readers read both sets. The argument that no CPU is lost between the
//! sets is in [`rules`](crate::base::rules).

use core::fmt;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::base::ids::CpuId;
use crate::base::memory::{Memory, Word, fence, order};
use crate::base::rules::Rule;
use crate::parts::cpu_set::{CpuBits, CpuSet, SharedCpuSet};
use crate::parts::phase::Phase;

/// Number of wasted probes per CPU in the cpumask after which the cpumask is trimmed.
///
/// A wasted probe costs a cache miss, 50–150 ns. Trimming costs about as much for each CPU in the
/// mask, and once more for each CPU that registers again later. So trimming costs at most a quarter
/// of the probes that were wasted before it.
const WASTED_PROBES_PER_CPU: u64 = 8;

/// The others that a flush of a space concerns, besides the CPU that flushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Others {
    /// No other CPU may be present, and no device uses the space.
    None,
    /// Other CPUs may be present, and no device uses the space.
    PerhapsCpus,
    /// Devices may use the space, and other CPUs may be present.
    PerhapsDevices,
}

/// The CPUs that may be present on one space, and some that are no longer; and the number of
/// devices that use the space.
pub(crate) struct CpuMask<M: Memory, B: CpuBits> {
    phase: M::Word,
    sets: [SharedCpuSet<M, B>; 2],
}

impl<M: Memory<Word = AtomicU64>, B: CpuBits> CpuMask<M, B> {
    /// A mask without CPUs.
    pub(crate) const fn new() -> Self {
        Self { phase: AtomicU64::new(0), sets: [SharedCpuSet::new(), SharedCpuSet::new()] }
    }
}

impl<M: Memory, B: CpuBits> Default for CpuMask<M, B> {
    fn default() -> Self {
        Self { phase: M::Word::new(0), sets: [SharedCpuSet::default(), SharedCpuSet::default()] }
    }
}

impl<M: Memory, B: CpuBits> CpuMask<M, B> {
    /// Ensures that flushes probe `cpu`. Returns the phase in which it is registered. Writes
    /// nothing if `cpu` is registered already.
    ///
    /// Call this after `cpu` has published that it is present, followed by a full fence.
    pub(crate) fn register(&self, machine: &M, cpu: CpuId) -> Phase {
        let phase = self.phase(machine);
        if self.set(phase.registered_epoch()).contains(cpu) {
            phase
        } else {
            self.register_slow(machine, cpu, phase)
        }
    }

    #[cold]
    fn register_slow(&self, machine: &M, cpu: CpuId, mut phase: Phase) -> Phase {
        loop {
            let epoch = phase.registered_epoch();
            // Pairs with FlushFence: either the flush observes the bit, or the caller observes the
            // flush's generation. Without the fence, the flush may skip this CPU, which then uses a
            // translation that the flush covered. Pairs with TrimFence: either the CPU that trims
            // the cpumask observes the bit in the old set, or this CPU observes the phase that the
            // other one has stored. Without the fence, this CPU may be in neither set.
            self.set(epoch).insert_then_fence(machine, cpu, Rule::RegisterFence);
            phase = self.phase(machine);
            if phase.registered_epoch() == epoch || machine.breaks(Rule::RecheckPhase) {
                return phase;
            }
        }
    }

    /// Reads whether a flush by `cpu` concerns no other CPU and no device.
    #[inline]
    pub(crate) fn others(&self, machine: &M, cpu: CpuId) -> Others {
        let phase = self.phase(machine);
        if !phase.is_plain() {
            return Others::PerhapsDevices;
        }
        if self.set(phase.epoch()).has_only(machine, cpu)
            && self.is_still_in(machine, phase).is_ok()
        {
            return Others::None;
        }
        Others::PerhapsCpus
    }

    /// Returns `true` if no CPU but `cpu` has ever registered. Call this for a dead space.
    pub(crate) fn has_had_only(&self, machine: &M, cpu: CpuId) -> bool {
        self.phase(machine) == Phase::FIRST && self.set(0).has_only(machine, cpu)
    }

    /// Adds the CPUs that may be present to `members`.
    #[inline]
    pub(crate) fn read_into(&self, machine: &M, members: &mut CpuSet<B>) {
        let mut phase = self.phase(machine);
        loop {
            let epoch = phase.epoch();
            self.set(epoch).read_into(machine, members);
            if phase.is_trimming() {
                self.set(epoch + 1).read_into(machine, members);
            }
            match self.is_still_in(machine, phase) {
                Ok(()) => return,
                Err(now) => phase = now,
            }
        }
    }

    /// As [`read_into`](Self::read_into). Returns `true` if devices may use the space.
    #[inline]
    pub(crate) fn read_with_devices(&self, machine: &M, members: &mut CpuSet<B>) -> bool {
        let phase = self.phase(machine);
        if phase.is_plain() {
            self.set(phase.epoch()).read_into(machine, members);
            if self.is_still_in(machine, phase).is_ok() {
                return false;
            }
        }
        self.read_with_devices_slow(machine, members)
    }

    #[cold]
    #[inline(never)]
    fn read_with_devices_slow(&self, machine: &M, members: &mut CpuSet<B>) -> bool {
        self.read_into(machine, members);
        self.phase(machine).device_count() != 0
    }

    /// Checks that the cpumask is still in the phase in which its sets were read. See
    /// [`Rule::RecheckScan`].
    ///
    /// A set is cleared only in a later phase than those in which it is read. So if the phase is
    /// the same, the caller has observed every bit that was set before its fence.
    ///
    /// # Errors
    ///
    /// The current phase, if it is another one.
    #[inline]
    fn is_still_in(&self, machine: &M, phase: Phase) -> Result<(), Phase> {
        // Relaxed: ScanAcquire orders this load after the loads of the sets.
        if machine.breaks(Rule::RecheckScan) || self.phase.load(Relaxed) == phase.0 {
            return Ok(());
        }
        Err(self.phase(machine))
    }

    /// Returns `true` if a mask of `member_count` CPUs should be trimmed after this many wasted
    /// probes.
    pub(crate) fn is_stale(wasted_probes: u64, member_count: u64) -> bool {
        wasted_probes >= WASTED_PROBES_PER_CPU * member_count
    }

    /// Trims the mask: removes every CPU for which `keeps` returns `false`. Does nothing if another
    /// CPU is trimming the mask.
    ///
    /// `keeps` must return `true` for a CPU that is present on the space, or whose hazard pointer
    /// names it. It is called after [`Rule::TrimFence`].
    ///
    /// Returns `true` if this call has trimmed the mask.
    #[cold]
    pub(crate) fn trim(&self, machine: &M, keeps: impl Fn(CpuId) -> bool) -> bool {
        let stable = self.phase(machine);
        if !stable.is_stable() {
            return false;
        }
        let clearing = stable.0 + Phase::CLEARING;
        // Relaxed: the load above has acquired this phase, and no phase returns, except that of a
        // space whose devices come and go. ClearRelease orders later stores to the sets after this
        // one.
        if self.phase.compare_exchange(stable.0, clearing, Relaxed, Relaxed).is_err() {
            return false;
        }
        let epoch = stable.epoch();
        self.set(epoch + 1).clear(machine);

        // Adds, because devices are attached and detached at any time.
        self.phase.fetch_add(Phase::BEGIN_TRIMMING, order(machine, Rule::TrimmingRelease));
        // Pairs with SwitchFence and RegisterFence. A CPU that registers concurrently either has
        // set its bit in the old set, and `keeps` observes its presence; or it observes the phase
        // TRIMMING, and registers in the new set. Without the fence, both CPUs may read old values,
        // and the CPU is in neither set.
        fence(machine, Rule::TrimFence);
        let mut old = CpuSet::new();
        self.set(epoch).read_into(machine, &mut old);
        for cpu in old.iter().filter(|&cpu| keeps(cpu)) {
            self.set(epoch + 1).insert(cpu);
        }
        self.phase.fetch_add(Phase::END_TRIMMING, order(machine, Rule::TrimRelease));
        true
    }

    /// Counts a device that uses the space from now on. Returns `false` if there is no room for
    /// another one. See [`Rule::AttachFence`].
    #[cold]
    pub(crate) fn attach_device(&self, machine: &M) -> bool {
        let mut phase = self.phase(machine);
        while phase.device_count() < Phase::DEVICES_MAX {
            // Relaxed: AttachFence orders the count, which publishes no other data.
            match self.phase.compare_exchange(phase.0, phase.0 + Phase::DEVICE, Relaxed, Relaxed) {
                Ok(_) => {
                    // Pairs with FlushFence: either a flush observes the device, or the device
                    // walks page tables at least as new as the flush. Without the fence, the device
                    // may cache an old entry that the flush does not invalidate there.
                    fence(machine, Rule::AttachFence);
                    return true;
                }
                Err(now) => phase = Phase(now),
            }
        }
        false
    }

    /// Counts a device that does not use the space any more. See [`Rule::DetachRelease`].
    ///
    /// Returns `false` if no device uses it.
    #[cold]
    pub(crate) fn detach_device(&self, machine: &M) -> bool {
        let mut phase = self.phase(machine);
        let release = order(machine, Rule::DetachRelease);
        while phase.device_count() > 0 {
            let fewer = phase.0 - Phase::DEVICE;
            // Relaxed: a failed exchange is repeated.
            match self.phase.compare_exchange(phase.0, fewer, release, Relaxed) {
                Ok(_) => return true,
                Err(now) => phase = Phase(now),
            }
        }
        false
    }

    /// The current phase of the mask. See [`Rule::PhaseAcquire`].
    #[inline]
    pub(crate) fn phase(&self, machine: &M) -> Phase {
        Phase(self.phase.load(order(machine, Rule::PhaseAcquire)))
    }

    #[inline]
    fn set(&self, epoch: u64) -> &SharedCpuSet<M, B> {
        &self.sets[usize::from(epoch % 2 == 1)]
    }
}

impl<M: Memory, B: CpuBits> fmt::Debug for CpuMask<M, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.sets).finish()
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests;
