//! Tags that mean the same space on every CPU, as Arm's and RISC-V's ASIDs do.
//!
//! A space gets a number when it first runs, and keeps it until numbers run out. Then comes a
//! *rollover*: a new version of the book begins, in which only those numbers are taken that are
//! loaded somewhere, and each CPU empties its TLB before it uses a number of the new version. So a
//! number has one space at a time, nobody is interrupted, and a rollover costs each CPU one flush.
//!
//! Going back to a space costs one compare-and-swap of the CPU's own word, `active`. A rollover
//! takes that word's number away by a swap, and reserves it. The two meet in one word: either the
//! rollover finds the number that the CPU has just chosen, and reserves that, or the CPU finds its
//! word empty, and asks under the lock. (The scheme is that of Linux on Arm,
//! `arch/arm64/mm/context.c`; what is reserved in addition there for two tags a space is not here.)
//!
//! Where there are not even as many numbers as CPUs, some CPU may find none: it runs the space
//! under [`Tag::KERNEL`], as a machine without tags does. Such a machine cannot broadcast.

use core::sync::atomic::Ordering::Relaxed;

use super::slots::{named_by, vacate};
use super::{Choice, Tagging};
use crate::cpu::Here;
use crate::cpu_set::{CpuSet, SharedCpuSet};
use crate::machine::sealed::Sealed;
use crate::machine::{Machine, Tag, Word};
use crate::rules::{Rule, fence, order};
use crate::space::Space;

/// Room for the book of tags. Implemented for arrays of words, and for nothing else.
pub trait TagWords<W>: Sealed + Send + Sync {
    /// All zero.
    fn zero() -> Self;
    /// The words.
    fn words(&self) -> &[W];
}

impl<W: Word, const N: usize> Sealed for [W; N] {}
impl<W: Word, const N: usize> TagWords<W> for [W; N] {
    fn zero() -> Self {
        core::array::from_fn(|_| W::new(0))
    }
    #[inline]
    fn words(&self) -> &[W] {
        self
    }
}

/// A number, the version of the book that it is from, and how often it is pinned. 0 for none.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FullTag(u64);

impl FullTag {
    const NUMBER: u64 = 0xffff;
    const PIN: u64 = 1 << 16;
    const PINS: u64 = 0xff << 16;
    const VERSION_SHIFT: u32 = 24;

    const fn new(version: u64, number: u64) -> Self {
        Self(version << Self::VERSION_SHIFT | number)
    }

    const fn number(self) -> u64 {
        self.0 & Self::NUMBER
    }

    const fn tag(self) -> Tag {
        Tag(self.0 as u16)
    }

    const fn version(self) -> u64 {
        self.0 >> Self::VERSION_SHIFT
    }

    const fn is_pinned(self) -> bool {
        self.0 & Self::PINS != 0
    }

    /// As CPUs say that they use it.
    const fn unpinned(self) -> Self {
        Self(self.0 & !Self::PINS)
    }
}

/// The book.
pub(crate) struct GlobalTags<M: Machine> {
    /// 1 while somebody writes in the book, with its interrupts masked.
    lock: M::Word,
    version: M::Word,
    /// Where to look for a number that is free.
    next: M::Word,
    /// How often there was none, since the last rollover.
    failures: M::Word,
    /// How many numbers are pinned.
    pinned: M::Word,
    /// CPUs that must empty their TLB before they use a number of this version.
    flush_pending: SharedCpuSet<M>,
    /// A bit for each number that is taken; then as many for those that are pinned.
    words: M::TagWords,
}

impl<M: Machine> GlobalTags<M> {
    pub(crate) fn new() -> Self {
        Self {
            lock: M::Word::new(0),
            version: M::Word::new(1),
            next: M::Word::new(1),
            failures: M::Word::new(0),
            pinned: M::Word::new(0),
            flush_pending: SharedCpuSet::new(),
            words: M::TagWords::zero(),
        }
    }

    /// Whether there is a number for each CPU whatever happens, so that none ever runs without.
    pub(crate) fn suffice(&self, machine: &M) -> bool {
        self.count(machine) > machine.cpu_limit() as u64
    }

    /// How many numbers there are, from 1 on.
    fn count(&self, machine: &M) -> u64 {
        let room = (self.taken().len() * 64).saturating_sub(1);
        machine.tag_count().min(room).min(usize::from(u16::MAX)) as u64
    }

    fn taken(&self) -> &[M::Word] {
        let words = self.words.words();
        &words[..words.len() / 2]
    }

    fn pins(&self) -> &[M::Word] {
        let words = self.words.words();
        &words[words.len() / 2..]
    }

    /// Calls `f` while nobody else writes in the book.
    fn locked<R>(&self, machine: &M, f: impl FnOnce() -> R) -> R {
        let acquire = order(machine, Rule::TagLockAcquire);
        // Relaxed: where it fails, nothing has been read.
        while self.lock.compare_exchange(0, 1, acquire, Relaxed).is_err() {
            machine.spin();
        }
        let result = f();
        self.lock.store(0, order(machine, Rule::TagLockRelease));
        result
    }

    /// Takes a number, if it is free.
    ///
    /// Relaxed: called under the lock (`TagLockAcquire`).
    fn take(&self, number: u64) -> bool {
        let (word, bit) = (&self.taken()[number as usize / 64], 1 << (number % 64));
        let held = word.load(Relaxed);
        word.store(held | bit, Relaxed);
        held & bit == 0
    }

    /// Takes the next number that is free.
    ///
    /// Relaxed: called under the lock (`TagLockAcquire`).
    fn take_next(&self, machine: &M) -> Option<u64> {
        let (count, first) = (self.count(machine), self.next.load(Relaxed));
        let number = self.free_in(first..count + 1).or_else(|| self.free_in(1..first))?;
        self.take(number);
        self.next.store(number % count + 1, Relaxed);
        Some(number)
    }

    /// Relaxed: called under the lock (`TagLockAcquire`).
    fn free_in(&self, mut numbers: core::ops::Range<u64>) -> Option<u64> {
        while numbers.start < numbers.end {
            let (index, bit) = (numbers.start / 64, numbers.start % 64);
            let free = !self.taken()[index as usize].load(Relaxed) >> bit << bit;
            if free != 0 {
                let number = index * 64 + u64::from(free.trailing_zeros());
                return (number < numbers.end).then_some(number);
            }
            numbers.start = (index + 1) * 64;
        }
        None
    }

    /// Relaxed: called under the lock (`TagLockAcquire`).
    fn set_pinned(&self, number: u64, change: impl FnOnce(u64, u64) -> u64) {
        let (word, bit) = (&self.pins()[number as usize / 64], 1 << (number % 64));
        word.store(change(word.load(Relaxed), bit), Relaxed);
    }
}

/// What the slow way has found.
struct Found {
    tag: Tag,
    /// The TLB was emptied, and is as clean as can be.
    emptied: bool,
}

impl<'e, M: Machine> Here<'e, M> {
    /// The tag of `space`, which is at `generation`.
    #[inline]
    pub(crate) fn choose_global_tag(&self, space: &Space<M>, generation: u64) -> Choice<'e> {
        let Found { tag, emptied } = self.choose_number(space);
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
    fn choose_number(&self, space: &Space<M>) -> Found {
        // Acquires what the CPU that gave the space its number found: see `current_tag`.
        let full = FullTag(space.tag.load(order(self.machine(), Rule::NumberAcquire)));
        let active = &self.cpu.active_tag;
        // Relaxed: a rollover meets the CPU in this one word by read-modify-writes (ReserveTags).
        // A version that is out of date goes with an `active` that the rollover has emptied.
        let before = active.load(Relaxed);
        let is_current = full.version() == self.engine.tags().version.load(Relaxed);
        let chosen = full.unpinned().0;
        if before != 0
            && is_current
            && active.compare_exchange(before, chosen, Relaxed, Relaxed).is_ok()
        {
            return Found { tag: full.tag(), emptied: false };
        }
        self.choose_slowly(space)
    }

    /// Relaxed: all under the lock (`TagLockAcquire`).
    #[inline(never)]
    fn choose_slowly(&self, space: &Space<M>) -> Found {
        let (machine, tags) = (self.machine(), self.engine.tags());
        if tags.count(machine) == 0 {
            return Found { tag: Tag::KERNEL, emptied: false };
        }
        tags.locked(machine, || {
            let chosen = self.current_tag(space);
            let emptied = tags.flush_pending.contains(self.id);
            if emptied {
                // What is loaded now may fill the TLB again at once; its number is reserved.
                tags.flush_pending.remove(self.id, Relaxed);
                if !machine.breaks(Rule::FlushOnRollover) {
                    machine.invalidate_all();
                }
                self.counters().flushes_full.add_alone(1);
                vacate(self.tags());
            }
            self.cpu.active_tag.store(chosen.unpinned().0, Relaxed);
            if chosen == FullTag(0) {
                // It runs without; what it had reserved is another's to take.
                self.cpu.reserved_tag.store(0, Relaxed);
            }
            Found { tag: chosen.tag(), emptied }
        })
    }

    /// The space's number in this version of the book; none if there is none. Under the lock.
    ///
    /// Relaxed: loads under the lock (`TagLockAcquire`).
    fn current_tag(&self, space: &Space<M>) -> FullTag {
        let (machine, tags) = (self.machine(), self.engine.tags());
        let full = FullTag(space.tag.load(Relaxed));
        if full.version() == tags.version.load(Relaxed) {
            return full;
        }
        let Some(number) = self.number_for(full) else { return FullTag(0) };
        // The version may be another by now.
        let pins = full.0 & FullTag::PINS;
        let renewed = FullTag(FullTag::new(tags.version.load(Relaxed), number).0 | pins);
        // Pairs with FlushFence: a flush that broadcasts names this number, or comes before the
        // fence; and whoever uses the number comes after it, and walks page tables that are as new
        // as that flush. For that, it is first there without a version, which sends all others
        // here: they must not find it before the fence.
        let release = order(machine, Rule::NumberRelease);
        space.tag.store(FullTag::new(0, number).0 | pins, release);
        fence(machine, Rule::RenumberFence);
        space.tag.store(renewed.0, release);
        renewed
    }

    /// A number for the space that had `old` in an earlier version.
    ///
    /// Relaxed: called under the lock (`TagLockAcquire`).
    fn number_for(&self, old: FullTag) -> Option<u64> {
        let (machine, tags) = (self.machine(), self.engine.tags());
        let number = old.number();
        if number != 0 && (self.renew_reserved(old) || old.is_pinned() || tags.take(number)) {
            return Some(number);
        }
        self.counters().tags_taken.add_alone(1);
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

    /// Whether a CPU has the number reserved: then it stays the space's, in the new version.
    ///
    /// Relaxed: called under the lock (`TagLockAcquire`).
    fn renew_reserved(&self, old: FullTag) -> bool {
        let (machine, tags) = (self.machine(), self.engine.tags());
        let renewed = FullTag::new(tags.version.load(Relaxed), old.number());
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

    /// Begins a new version, in which only those numbers are taken that CPUs have loaded or devices
    /// use.
    ///
    /// Relaxed: called under the lock (`TagLockAcquire`).
    fn roll_over(&self) {
        let (machine, tags) = (self.machine(), self.engine.tags());
        self.counters().rollovers.add_alone(1);
        let version = tags.version.load(Relaxed) + 1;
        tags.version.store(version, Relaxed);
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
            let reserved = FullTag(state.reserved_tag.load(Relaxed));
            if reserved.number() != 0 && !machine.breaks(Rule::ReserveTags) {
                tags.take(reserved.number());
            }
            tags.flush_pending.insert(cpu);
        }
    }

    /// This CPU goes offline, and nothing is reserved for it any more. Under the lock, lest a
    /// rollover that is on do so once more: the number would still pass for reserved when the CPU
    /// comes back, and be another space's by then.
    pub(crate) fn give_numbers_back(&self) {
        if self.machine().tagging() == Tagging::Global {
            self.engine.tags().locked(self.machine(), || {
                // Relaxed: under the lock (TagLockAcquire).
                self.cpu.active_tag.store(0, Relaxed);
                self.cpu.reserved_tag.store(0, Relaxed);
            });
        }
    }

    /// The CPUs that may have a tag loaded. One that comes online meanwhile asks for its first
    /// number under the lock, and its TLB is empty.
    fn cpus_with_tags(&self) -> CpuSet<M> {
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
    /// [broadcast](Machine::broadcast) to everyone, if the numbers that are left would not suffice
    /// for the CPUs, or if this space is pinned 255 times.
    pub fn pin_tag(&self, space: &Space<M>) -> Option<Tag> {
        let (machine, tags) = (self.machine(), self.engine.tags());
        if !self.engine.reaches_everyone() {
            return None;
        }
        let pinned = tags.locked(machine, || {
            // Relaxed: under the lock (TagLockAcquire).
            let full = self.current_tag(space);
            let pinned = tags.pinned.load(Relaxed);
            let for_devices = tags.count(machine).saturating_sub(machine.cpu_limit() as u64 + 1);
            let is_first = !full.is_pinned();
            let fits = if is_first {
                pinned < for_devices
            } else {
                full.0 & FullTag::PINS != FullTag::PINS
            };
            if full.number() == 0 || !fits {
                return None;
            }
            if is_first {
                tags.pinned.store(pinned + 1, Relaxed);
                tags.set_pinned(full.number(), |word, bit| word | bit);
            }
            space.tag.store(full.0 + FullTag::PIN, order(machine, Rule::NumberRelease));
            Some(full.tag())
        });
        // As for a CPU that has chosen: flushes from now on see that it is pinned, or the device
        // walks page tables that are as new.
        fence(machine, Rule::RenumberFence);
        pinned
    }

    /// The device has dropped what it cached under the space's number, and uses it no more.
    ///
    /// # Panics
    ///
    /// If it is not [pinned](Self::pin_tag).
    pub fn unpin_tag(&self, space: &Space<M>) {
        let (machine, tags) = (self.machine(), self.engine.tags());
        let was_pinned = tags.locked(machine, || {
            // Relaxed: under the lock (TagLockAcquire).
            let full = FullTag(space.tag.load(Relaxed));
            if !full.is_pinned() {
                return false;
            }
            let left = FullTag(full.0 - FullTag::PIN);
            space.tag.store(left.0, order(machine, Rule::NumberRelease));
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
    /// The number that the space has on all CPUs that have it loaded; [`Tag::KERNEL`] if it has
    /// none. To be asked after a full fence: see [`Rule::RenumberFence`].
    ///
    /// And before the look at who is present: a CPU that is on the space by then, or lazy on it,
    /// has it under this number. One that is leaving may not: it has told the book of the next
    /// one's, and this may have been given away, while the old root is still loaded. Whoever reads
    /// the number that the space has got instead finds that CPU leaving.
    #[inline]
    pub(crate) fn global_tag(&self, machine: &M) -> Tag {
        FullTag(self.tag.load(order(machine, Rule::GivenAwayAcquire))).tag()
    }

    /// Whether a device uses the space.
    #[inline]
    pub(crate) fn is_pinned(&self) -> bool {
        // Relaxed: asked after FlushFence, which pairs with RenumberFence of `pin_tag`.
        FullTag(self.tag.load(Relaxed)).is_pinned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::Plain;
    use std::vec::Vec;

    #[test]
    fn a_word_keeps_number_pins_and_version_apart() {
        let mut full = FullTag::new(5, 0xfffe);
        for pins in 0..=255 {
            assert_eq!((full.number(), full.tag(), full.version()), (0xfffe, Tag(0xfffe), 5));
            assert_eq!(full.is_pinned(), pins != 0);
            assert_eq!(full.unpinned().0, FullTag::new(5, 0xfffe).0);
            full.0 = full.0.wrapping_add(FullTag::PIN);
        }
    }

    #[test]
    fn there_are_as_many_numbers_as_machine_words_and_width_have() {
        fn count<const WORDS: usize>(tags: usize) -> u64 {
            GlobalTags::<Plain<WORDS>>::new().count(&Plain::with_tags(tags))
        }
        assert_eq!([count::<8>(15), count::<8>(255), count::<8>(256)], [15, 255, 255]);
        assert_eq!([count::<2048>(1 << 20), count::<2>(0), count::<0>(9)], [65535, 0, 0]);
        // One for each CPU, and one more.
        let suffice = |tags| GlobalTags::<Plain<8>>::new().suffice(&Plain::with_tags(tags));
        assert!(suffice(129) && !suffice(128));
    }

    #[test]
    fn numbers_are_given_in_turn_and_none_twice() {
        for count in [1, 63, 64, 65, 130, 255] {
            let (machine, book) = (Plain::<8>::with_tags(count), GlobalTags::<Plain<8>>::new());
            let take_all = || core::iter::from_fn(|| book.take_next(&machine)).take(300);
            let numbers: Vec<_> = take_all().collect();
            assert!(numbers.iter().copied().eq(1..=count as u64), "{numbers:?}");
            // Some come back; first those that were not given lately.
            let free = [1, count as u64 / 2, count as u64].map(|number| number.max(1));
            for number in free {
                book.taken()[number as usize / 64].fetch_and(!(1 << (number % 64)), Relaxed);
            }
            let mut again: Vec<_> = take_all().collect();
            again.dedup();
            let mut expected = free.to_vec();
            expected.dedup();
            assert_eq!(again, expected);
            book.taken().iter().for_each(|word| word.store(0, Relaxed));
            assert_eq!(book.take_next(&machine), Some(1));
            assert!(!book.take(1));
            if count > 2 {
                assert!(book.take(2) && !book.take(2));
                assert_eq!(book.take_next(&machine), Some(3));
            }
        }
    }

    #[test]
    fn pins_are_noted_in_words_of_their_own() {
        let book = GlobalTags::<Plain<8>>::new();
        for number in [1, 64, 200] {
            book.set_pinned(number, |word, bit| word | bit);
        }
        let pins = || book.pins().iter().map(|word| word.load(Relaxed)).collect::<Vec<_>>();
        assert_eq!(pins(), [2, 1, 0, 1 << 8]);
        book.set_pinned(64, |word, bit| word & !bit);
        assert_eq!(pins(), [2, 0, 0, 1 << 8]);
        assert!(book.taken().iter().all(|word| word.load(Relaxed) == 0));
    }

    #[test]
    fn one_at_a_time_writes_in_the_book() {
        let (machine, book) = (Plain::<2>::with_tags(3), GlobalTags::<Plain<2>>::new());
        let inside = book.locked(&machine, || book.lock.load(Relaxed));
        assert_eq!((inside, book.lock.load(Relaxed)), (1, 0));
    }
}
