//! Tags that mean the same space on every CPU, as Arm's and RISC-V's ASIDs do.
//!
//! A space gets an ASID when it first runs, and keeps it until ASIDs run out. Then comes a
//! *rollover*: a new epoch begins, in which only those ASIDs are allocated that a CPU has loaded,
//! and each CPU empties its TLB before it uses an ASID of the new epoch. So an ASID belongs to one
//! space at a time, no CPU is interrupted, and a rollover costs each CPU one flush.
//!
//! Going back to a space costs one compare-and-swap of the CPU's own word, `active_tag`. A rollover
//! takes that word's ASID away by a swap, and reserves it. The two meet in one word: either the
//! rollover finds the ASID that the CPU has just chosen, and reserves that, or the CPU finds its
//! word empty, and takes the slow path under the lock. (The scheme is that of Linux on Arm,
//! `arch/arm64/mm/context.c`, without the second ASID per space that Linux reserves there.)
//!
//! Where there are no more ASIDs than CPUs, a CPU may find none: it runs the space under
//! [`Tag::KERNEL`], as a machine without tags does. Such a machine cannot broadcast.

use core::sync::atomic::Ordering::Relaxed;

use super::Choice;
use super::asids::Asid;
use super::slots::{named_by, vacate};
use crate::cpu_set::CpuSet;
use crate::ids::Tag;
use crate::machine::{Machine, Tagging};
use crate::memory::{Word, fence, order};
use crate::pinned_cpu::PinnedCpu;
use crate::rules::Rule;
use crate::space::Space;

/// The result of the choice of an ASID.
struct Found {
    tag: Tag,
    /// Whether the TLB was emptied, and so is clean of every flush.
    emptied: bool,
}

impl<'e, M: Machine> PinnedCpu<'e, M> {
    /// The tag of `space`, which is at `generation`.
    #[inline]
    pub(crate) fn choose_global_tag(&self, space: &Space<M>, generation: u64) -> Choice<'e> {
        let Found { tag, emptied } = self.choose_asid(space);
        // Where there is a number for every space that runs here, each keeps its slot: the slot is
        // named by the number, and the number is the space's on all CPUs.
        let slot = (tag != Tag::KERNEL).then(|| named_by(self.tags(), tag)).flatten();
        let slot = slot.unwrap_or(self.spare_slot().0);
        let known = slot.is_of(space.id()).then(|| slot.generation());
        slot.give_to(space.id(), tag);
        let clean = if tag == Tag::KERNEL {
            None
        } else if emptied {
            Some(generation)
        } else {
            // Every CPU was notified of what was broadcast. What else this CPU does not know of,
            // it missed.
            let clean = space.clean_everywhere();
            Some(known.map_or(clean, |seen| seen.max(clean)))
        };
        Choice { slot, generation: clean }
    }

    /// The space's number, which this CPU says it is going to load.
    #[inline]
    fn choose_asid(&self, space: &Space<M>) -> Found {
        // Acquires what the CPU that gave the space its number found: see `current_asid`.
        let full = Asid(space.tag.load(order(self.machine(), Rule::AsidAcquire)));
        let active = &self.cpu.active_tag;
        // Relaxed: a rollover meets the CPU in this one word by read-modify-writes (ReserveTags).
        // A epoch that is out of date goes with an `active` that the rollover has emptied.
        let before = active.load(Relaxed);
        let is_current = full.epoch() == self.engine.tags().epoch.load(Relaxed);
        let chosen = full.unpinned().0;
        if before != 0
            && is_current
            && active.compare_exchange(before, chosen, Relaxed, Relaxed).is_ok()
        {
            return Found { tag: full.tag(), emptied: false };
        }
        self.allocate_slow(space)
    }

    /// Relaxed: all under the lock (`TagLockAcquire`).
    #[inline(never)]
    fn allocate_slow(&self, space: &Space<M>) -> Found {
        let (machine, tags) = (self.machine(), self.engine.tags());
        if tags.count(machine) == 0 {
            return Found { tag: Tag::KERNEL, emptied: false };
        }
        tags.with_lock(machine, || {
            let chosen = self.current_asid(space);
            let emptied = tags.flush_pending.contains(self.id);
            if emptied {
                // What is loaded now may fill the TLB again at once; its number is reserved.
                tags.flush_pending.remove(self.id, Relaxed);
                if !machine.breaks(Rule::FlushOnRollover) {
                    machine.invalidate_all();
                }
                self.counters().flushes_full.add_unshared(1);
                vacate(self.tags());
            }
            self.cpu.active_tag.store(chosen.unpinned().0, Relaxed);
            if chosen == Asid(0) {
                // It runs without; what it had reserved is another's to take.
                self.cpu.reserved_tag.store(0, Relaxed);
            }
            Found { tag: chosen.tag(), emptied }
        })
    }

    /// The space's ASID in this epoch, allocated if it has none; 0 if there is none left. Call this
    /// under the lock.
    ///
    /// Relaxed: loads under the lock (`TagLockAcquire`).
    fn current_asid(&self, space: &Space<M>) -> Asid {
        let (machine, tags) = (self.machine(), self.engine.tags());
        let full = Asid(space.tag.load(Relaxed));
        if full.epoch() == tags.epoch.load(Relaxed) {
            return full;
        }
        let Some(number) = self.asid_for(full) else { return Asid(0) };
        // The epoch may be another by now.
        let pins = full.0 & Asid::PINS;
        let renewed = Asid(Asid::new(tags.epoch.load(Relaxed), number).0 | pins);
        // Pairs with FlushFence: a flush that broadcasts names this number, or comes before the
        // fence; and whoever uses the number comes after it, and walks page tables that are as new
        // as that flush. For that, it is first there without a epoch, which sends all others
        // here: they must not find it before the fence.
        let release = order(machine, Rule::AsidRelease);
        space.tag.store(Asid::new(0, number).0 | pins, release);
        fence(machine, Rule::NewAsidFence);
        space.tag.store(renewed.0, release);
        renewed
    }

    /// A number for the space that had `old` in an earlier epoch.
    ///
    /// Relaxed: called under the lock (`TagLockAcquire`).
    fn asid_for(&self, old: Asid) -> Option<u64> {
        let (machine, tags) = (self.machine(), self.engine.tags());
        let number = old.number();
        if number != 0 && (self.renew_reserved(old) || old.is_pinned() || tags.take(number)) {
            return Some(number);
        }
        self.counters().tags_taken.add_unshared(1);
        if let Some(number) = tags.take_next(machine) {
            return Some(number);
        }
        // Where numbers are fewer than CPUs, a rollover may free none: then not at each request.
        let failures = tags.failures.load(Relaxed);
        if failures != 0 && failures < tags.count(machine) {
            tags.failures.store(failures + 1, Relaxed);
            return None;
        }
        self.roll_over();
        let number = tags.take_next(machine);
        tags.failures.store(u64::from(number.is_none()), Relaxed);
        number
    }

    /// Whether a CPU has the number reserved: then it stays the space's, in the new epoch.
    ///
    /// Relaxed: called under the lock (`TagLockAcquire`).
    fn renew_reserved(&self, old: Asid) -> bool {
        let (machine, tags) = (self.machine(), self.engine.tags());
        let renewed = Asid::new(tags.epoch.load(Relaxed), old.number());
        let mut found = false;
        for cpu in self.cpus_with_tags().iter() {
            let reserved = &machine.state(cpu).reserved_tag;
            if reserved.load(Relaxed) == old.unpinned().0 {
                reserved.store(renewed.0, Relaxed);
                found = true;
            }
        }
        found
    }

    /// Begins a new epoch, in which only those numbers are taken that CPUs have loaded or devices
    /// use.
    ///
    /// Relaxed: called under the lock (`TagLockAcquire`).
    fn roll_over(&self) {
        let (machine, tags) = (self.machine(), self.engine.tags());
        self.counters().rollovers.add_unshared(1);
        let epoch = tags.epoch.load(Relaxed) + 1;
        tags.epoch.store(epoch, Relaxed);
        for (taken, pinned) in tags.taken().iter().zip(tags.pins()) {
            taken.store(pinned.load(Relaxed), Relaxed);
        }
        for cpu in self.cpus_with_tags().iter() {
            let state = machine.state(cpu);
            // Of a CPU that has just chosen, a flush that finds one of the numbers given away from
            // here on (NumberRelease, GivenAwayAcquire) must find that it is on its way. Relaxed:
            // before we leave the lock, we give a number away, and RenumberFence acquires what this
            // swap has read.
            let active = state.active_tag.swap(0, Relaxed);
            // Else it has not chosen since the last rollover, and still has that one loaded.
            if active != 0 {
                state.reserved_tag.store(active, Relaxed);
            }
            let reserved = Asid(state.reserved_tag.load(Relaxed));
            if reserved.number() != 0 && !machine.breaks(Rule::ReserveTags) {
                tags.take(reserved.number());
            }
            tags.flush_pending.insert(cpu);
        }
    }

    /// This CPU goes offline, and nothing is reserved for it any more. Under the lock, lest a
    /// rollover that is on do so once more: the number would still pass for reserved when the CPU
    /// comes back, and be another space's by then.
    pub(crate) fn release_asids(&self) {
        if self.machine().tagging() == Tagging::Global {
            self.engine.tags().with_lock(self.machine(), || {
                // Relaxed: under the lock (TagLockAcquire).
                self.cpu.active_tag.store(0, Relaxed);
                self.cpu.reserved_tag.store(0, Relaxed);
            });
        }
    }

    /// The CPUs that may have a tag loaded. One that comes online meanwhile asks for its first
    /// number under the lock, and its TLB is empty.
    fn cpus_with_tags(&self) -> CpuSet<M::CpuBits> {
        let mut online = CpuSet::new();
        self.engine.online().read_into(self.machine(), &mut online);
        online
    }

    /// Keeps the space's number as it is, for a device that translates by the same page tables
    /// (shared virtual memory: Arm's SMMU): returns it, to be told to the device.
    ///
    /// Until it is [unpinned](Self::unpin_tag) as often, rollovers leave it alone, and each flush
    /// of the space is broadcast, for a device says nobody when it uses a translation.
    ///
    /// To be unpinned before the space is [retired](Self::retire), for its tables may be freed
    /// then.
    ///
    /// `None` if the machine's tags are not [global](crate::Tagging::Global), if it cannot
    /// [broadcast](Machine::broadcaster) to everyone, if fewer ASIDs than CPUs would be left, or if
    /// this space is pinned 255 times.
    pub fn pin_tag(&self, space: &Space<M>) -> Option<Tag> {
        let (machine, tags) = (self.machine(), self.engine.tags());
        self.engine.broadcaster_to_all()?;
        let pinned = tags.with_lock(machine, || {
            // Relaxed: under the lock (TagLockAcquire).
            let full = self.current_asid(space);
            let pinned = tags.pinned.load(Relaxed);
            let for_devices = tags.count(machine).saturating_sub(machine.cpu_limit() as u64 + 1);
            let is_first = !full.is_pinned();
            let fits =
                if is_first { pinned < for_devices } else { full.0 & Asid::PINS != Asid::PINS };
            if full.number() == 0 || !fits {
                return None;
            }
            if is_first {
                tags.pinned.store(pinned + 1, Relaxed);
                tags.set_pinned(full.number(), |word, bit| word | bit);
            }
            space.tag.store(full.0 + Asid::PIN, order(machine, Rule::AsidRelease));
            Some(full.tag())
        });
        // As for a CPU that has chosen: flushes from now on see that it is pinned, or the device
        // walks page tables that are as new.
        fence(machine, Rule::NewAsidFence);
        pinned
    }

    /// The device has dropped what it cached under the space's number, and uses it no more.
    ///
    /// # Panics
    ///
    /// If it is not [pinned](Self::pin_tag).
    pub fn unpin_tag(&self, space: &Space<M>) {
        let (machine, tags) = (self.machine(), self.engine.tags());
        let was_pinned = tags.with_lock(machine, || {
            // Relaxed: under the lock (TagLockAcquire).
            let full = Asid(space.tag.load(Relaxed));
            if !full.is_pinned() {
                return false;
            }
            let left = Asid(full.0 - Asid::PIN);
            space.tag.store(left.0, order(machine, Rule::AsidRelease));
            if !left.is_pinned() {
                tags.pinned.store(tags.pinned.load(Relaxed) - 1, Relaxed);
                tags.set_pinned(full.number(), |word, bit| word & !bit);
            }
            true
        });
        // Not under the lock: a kernel that survives the panic must be able to go on.
        assert!(was_pinned, "unpinned more often than pinned");
    }
}

impl<M: Machine> Space<M> {
    /// The ASID that the space has on all CPUs that have it loaded; [`Tag::KERNEL`] if it has
    /// none. Call this after a full fence (see [`Rule::NewAsidFence`]), and before the scan.
    ///
    /// A CPU that the scan finds on the space, or lazy on it, has the space under this ASID. A CPU
    /// that is leaving may not: it has published the next space's ASID, and this one may have been
    /// given to another space while the old root is still loaded. A flush that reads the ASID that
    /// the space has got instead finds that CPU leaving.
    #[inline]
    pub(crate) fn global_tag(&self, machine: &M) -> Tag {
        Asid(self.tag.load(order(machine, Rule::BroadcastAsidAcquire))).tag()
    }

    /// Whether a device uses the space.
    #[inline]
    pub(crate) fn is_pinned(&self) -> bool {
        // Relaxed: asked after FlushFence, which pairs with RenumberFence of `pin_tag`.
        Asid(self.tag.load(Relaxed)).is_pinned()
    }
}
