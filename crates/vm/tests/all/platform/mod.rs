//! A machine in host memory: frames that detect use after free, CPUs with TLBs that invalidate only
//! what a flush names, and coherences.
//!
//! The MMU reads page tables with its own decoder.

#![allow(dead_code, unreachable_pub, reason = "a part of each test, which uses a part of it")]

pub mod decode;
pub mod deferring;
mod frame_state;
pub mod lagging;
pub mod lock;
mod mmu;
mod notifying;
mod observed;

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};

use parking_lot::Mutex;
use shootdown_vm::{
    Access, AddressSpace, Change, Coherence, EntryAt, ExecuteLoss, FaultError, FileId, Flush,
    Format, Frame, FrameUse, OutOfMemory, PAGE_BYTES, Platform, Protection, System, Vm, Work,
    X86_64,
};

use decode::Mmu;
use frame_state::{FREE, FrameState, GARBAGE, PAGE, TABLE};
pub use mmu::PageFault;
use mmu::Tlb;
pub use notifying::{
    BATCHING, EXCLUSIVE, IN_PLACE, KEEPING, Notifying, PER_AREA, PER_SPACE, RELEASED, REPLICATED,
    REPLICATED_IF_WORTH, REPLICATED_PER_PAGE, REUSING, REUSING_REPLICATED, SHARED,
};
pub(crate) use notifying::{discards_in_place, empty_tables, unmap_lock, unused};
pub use observed::RecordUse;

pub const READ: Protection = Protection::READ;
pub const READ_WRITE: Protection = Protection::READ.union(Protection::WRITE);

/// The first user address. User memory crosses a boundary of 1 GiB in its middle.
pub const BASE: u64 = (1 << 30) - PAGES / 2 * PAGE_BYTES;
/// Number of pages of user addresses.
pub const PAGES: u64 = 96;

/// Returns the addresses of `count` pages from page `first` on.
pub fn pages(first: u64, count: u64) -> Range<u64> {
    BASE + first * PAGE_BYTES..BASE + (first + count) * PAGE_BYTES
}

/// The time at which the coherence invalidates: `AT_FLUSH` or `AT_WAIT`.
pub const AT_FLUSH: u8 = 0;
pub const AT_WAIT: u8 = 1;

/// Frames alternate between two nodes.
pub const NODES: usize = 2;
/// Maximum number of spaces in a batch.
const BATCH_SPACES: usize = 2;

type Hook = Box<dyn FnOnce() + Send>;

/// A claim that a test leaves out.
#[derive(Clone, Copy)]
enum SkippedClaim {
    /// The next one.
    Next,
    /// The entry, the claim, and the value that the entry has instead.
    At(EntryAt, u64, u64),
}

pub struct Machine {
    frames: Vec<FrameState>,
    free: Mutex<VecDeque<u64>>,
    /// Number of allocations that will succeed.
    budget: AtomicU64,
    user_addresses: Range<u64>,
    mmu: Mmu,
    tlbs: Vec<Mutex<Tlb>>,
    flushes: Mutex<Vec<Change>>,
    retired: AtomicUsize,
    /// Number of tables that ended spaces have emptied.
    emptied: AtomicUsize,
    /// The contents of the disk: the word of each page of each file.
    stored: Mutex<HashMap<(FileId, u64), u64>>,
    /// Number of batches that contain pages of each space.
    batched: Mutex<HashMap<u64, usize>>,
    /// Number of batches that contain each page and wait for the reuse of its frame.
    waiting: Mutex<HashMap<(u64, u64), usize>>,
    /// Called once, by the next wait, before any CPU is notified.
    hook: Mutex<Option<Hook>>,
    /// Called once, after this number of platform calls.
    interruption: Mutex<Option<(u64, Hook)>>,
    interrupts: AtomicBool,
    /// Called once, after the next exchange of an entry that succeeds.
    exchange_hook: Mutex<Option<Hook>>,
    failed_exchanges: AtomicUsize,
    /// The uses of records, in order, if a test asks for them.
    records: Mutex<Option<Vec<(RecordUse, Frame)>>>,
    drops_flushes: AtomicBool,
    takes_pages_for_zero: AtomicBool,
    skipped_claim: Mutex<Option<SkippedClaim>>,
    forgets_sharers: AtomicBool,
    /// `true` if no executable page may become not executable in one step (Arm's erratum 2645198).
    breaks_executable: AtomicBool,
    now_ns: AtomicU64,
    resident: Mutex<HashMap<Frame, isize>>,
}

thread_local! {
    /// The CPU that this thread stands for.
    static CPU: Cell<usize> = const { Cell::new(0) };
}

/// Makes this thread stand for a CPU. Returns the one that it stood for.
pub fn run_on(cpu: usize) -> usize {
    CPU.replace(cpu)
}

const ZERO_PAGE: Frame = Frame(1); // the first that is allocated

/// The platform: a handle to the machine.
#[derive(Clone)]
pub struct Host(pub Arc<Machine>);

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Host")
    }
}

impl Host {
    pub fn new(frame_count: usize, cpu_count: usize) -> Self {
        Self::with_addresses(frame_count, cpu_count, pages(0, PAGES))
    }

    pub fn with_addresses(
        frame_count: usize,
        cpu_count: usize,
        user_addresses: Range<u64>,
    ) -> Self {
        Self::with_mmu(frame_count, cpu_count, user_addresses, decode::X86_64)
    }

    pub fn with_mmu(
        frame_count: usize,
        cpu_count: usize,
        user_addresses: Range<u64>,
        mmu: Mmu,
    ) -> Self {
        let mut frames = Vec::new();
        frames.resize_with(frame_count, FrameState::default);
        Self(Arc::new(Machine {
            frames,
            // Frame 0 is never allocated, so that its use is detected.
            free: Mutex::new((1..frame_count as u64).collect()),
            budget: AtomicU64::new(u64::MAX),
            user_addresses,
            mmu,
            tlbs: (0..cpu_count).map(|_| Mutex::default()).collect(),
            flushes: Mutex::default(),
            retired: AtomicUsize::new(0),
            emptied: AtomicUsize::new(0),
            stored: Mutex::default(),
            batched: Mutex::default(),
            waiting: Mutex::default(),
            hook: Mutex::default(),
            interruption: Mutex::default(),
            interrupts: AtomicBool::new(false),
            exchange_hook: Mutex::default(),
            failed_exchanges: AtomicUsize::new(0),
            records: Mutex::new(None),
            drops_flushes: AtomicBool::new(false),
            takes_pages_for_zero: AtomicBool::new(false),
            skipped_claim: Mutex::default(),
            forgets_sharers: AtomicBool::new(false),
            breaks_executable: AtomicBool::new(false),
            now_ns: AtomicU64::new(0),
            resident: Mutex::default(),
        }))
    }

    /// Lets only the next `count` allocations succeed.
    pub fn limit_allocations(&self, count: u64) {
        self.0.budget.store(count, Relaxed);
    }

    /// Makes the next wait for a flush call `hook` first, in the role of other CPUs.
    pub fn when_waiting(&self, hook: impl FnOnce() + Send + 'static) {
        *self.0.hook.lock() = Some(Box::new(hook));
    }

    /// Begins a wait.
    fn begin_wait(&self) {
        self.interruption_point();
        let hook = self.0.hook.lock().take();
        if let Some(hook) = hook {
            hook();
        }
    }

    pub fn hook_is_set(&self) -> bool {
        self.0.hook.lock().is_some()
    }

    /// Calls `hook` after `count` platform calls, before the next one.
    pub fn interrupt_after(&self, count: u64, hook: impl FnOnce() + Send + 'static) {
        *self.0.interruption.lock() = Some((count, Box::new(hook)));
        self.0.interrupts.store(true, Relaxed);
    }

    /// Cancels an interruption. Returns `true` if it was still pending.
    pub fn cancel_interruption(&self) -> bool {
        self.0.interrupts.store(false, Relaxed);
        self.0.interruption.lock().take().is_some()
    }

    /// Calls `hook` when the next exchange of an entry has succeeded, before the exchange returns.
    pub fn after_exchange(&self, hook: impl FnOnce() + Send + 'static) {
        *self.0.exchange_hook.lock() = Some(Box::new(hook));
    }

    pub fn exchange_hook_is_set(&self) -> bool {
        self.0.exchange_hook.lock().is_some()
    }

    /// A point at which other CPUs may act.
    fn interruption_point(&self) {
        if !self.0.interrupts.load(Relaxed) || lock::is_locked_here() {
            return;
        }
        let mut interruption = self.0.interruption.lock();
        match &mut *interruption {
            Some((count, _)) if *count > 0 => *count -= 1,
            _ => {
                self.0.interrupts.store(false, Relaxed);
                let due = interruption.take();
                drop(interruption);
                if let Some((_, hook)) = due {
                    hook();
                }
            }
        }
    }

    /// Makes flushes do nothing, to check that tests detect this.
    pub fn drop_flushes(&self) {
        self.0.drops_flushes.store(true, Relaxed);
    }

    /// Makes tables forget their sharers, to check that tests detect this.
    pub fn forget_sharers(&self) {
        self.0.forgets_sharers.store(true, Relaxed);
    }

    /// Makes every page look as if it were zero, to check that tests detect this.
    pub fn take_pages_for_zero(&self) {
        self.0.takes_pages_for_zero.store(true, Relaxed);
    }

    /// Makes the next claim of an entry leave the entry as it is, to check that tests detect this.
    pub fn skip_next_claim(&self) {
        *self.0.skipped_claim.lock() = Some(SkippedClaim::Next);
    }

    /// Lets allocations take only `count` frames, besides frames that are freed from now on.
    pub fn limit_frames(&self, count: usize) {
        self.0.free.lock().truncate(count);
    }

    /// Lets time pass.
    pub fn advance_ns(&self, ns: u64) {
        self.0.now_ns.fetch_add(ns, Relaxed);
    }

    /// Returns the flushes since the last call.
    pub fn take_flushes(&self) -> Vec<Change> {
        std::mem::take(&mut self.0.flushes.lock())
    }

    /// Returns the word of a page on the disk.
    pub fn stored(&self, file: FileId, number: u64) -> u64 {
        self.0.stored.lock().get(&(file, number)).copied().unwrap_or(0)
    }

    pub fn retired(&self) -> usize {
        self.0.retired.load(Relaxed)
    }

    pub fn emptied(&self) -> usize {
        self.0.emptied.load(Relaxed)
    }

    fn state(&self, frame: Frame, kind: u8) -> &FrameState {
        let state = &self.0.frames[frame.0 as usize];
        assert_eq!(state.kind.load(Acquire), kind, "{frame:?} is used as another kind");
        state
    }

    fn entry(&self, at: EntryAt) -> &AtomicU64 {
        &self.state(at.table, TABLE).entries.get().expect("tables have entries")[at.index]
    }

    /// Allocates the first free frame for which `wanted` returns `true`.
    fn allocate_wanted(
        &self,
        purpose: FrameUse,
        wanted: impl Fn(u64) -> bool,
    ) -> Result<Frame, OutOfMemory> {
        self.interruption_point();
        self.take_from_budget()?;
        let number = {
            let mut free = self.0.free.lock();
            let index = free.iter().position(|&number| wanted(number)).ok_or(OutOfMemory)?;
            free.remove(index).expect("the index was just found")
        };
        let state = &self.0.frames[number as usize];
        match purpose {
            FrameUse::Table => {
                let entries = state
                    .entries
                    .get_or_init(|| Box::new(std::array::from_fn(|_| AtomicU64::new(0))));
                entries.iter().for_each(|entry| entry.store(0, Relaxed));
                state.sharers.store(0, Relaxed);
                state.kind.store(TABLE, Release);
            }
            FrameUse::Page => state.become_page(),
        }
        Ok(Frame(number))
    }

    fn take_from_budget(&self) -> Result<(), OutOfMemory> {
        let budget = self.0.budget.fetch_update(Relaxed, Relaxed, |budget| match budget {
            u64::MAX => Some(u64::MAX),
            budget => budget.checked_sub(1),
        });
        budget.map(drop).map_err(|_| OutOfMemory)
    }

    /// Returns the word of a page.
    fn word(&self, page: Frame) -> &AtomicU64 {
        &self.state(page, PAGE).word
    }

    fn free(&self, frame: Frame, kind: u8) {
        let state = &self.0.frames[frame.0 as usize];
        let was = state.kind.swap(FREE, AcqRel);
        assert_eq!(was, kind, "{frame:?} is freed as another kind");
        state.word.store(GARBAGE, Relaxed);
        self.0.free.lock().push_back(frame.0);
    }
}

impl Platform for Host {
    type SleepingLock = lock::CountedLock;
    type IndexLock = parking_lot::RawRwLock;
    type SpinLock = lock::HookedLock;

    fn allocate(&self, purpose: FrameUse) -> Result<Frame, OutOfMemory> {
        self.allocate_wanted(purpose, |_| true)
    }

    fn allocate_on(&self, node: usize) -> Result<Frame, OutOfMemory> {
        self.allocate_wanted(FrameUse::Page, |number| self.node_of(Frame(number)) == node)
    }

    fn allocate_large(&self) -> Result<Frame, OutOfMemory> {
        self.interruption_point();
        self.take_from_budget()?;
        let mut free = self.0.free.lock();
        let mut is_free = vec![false; self.0.frames.len()];
        free.iter().for_each(|&number| is_free[number as usize] = true);
        let blocks = is_free.chunks_exact(512);
        let block = blocks.into_iter().position(|block| block.iter().all(|&is_free| is_free));
        let first = 512 * block.ok_or(OutOfMemory)? as u64;
        free.retain(|number| !(first..first + 512).contains(number));
        (first..first + 512).for_each(|number| self.0.frames[number as usize].become_page());
        Ok(Frame(first))
    }

    fn node_count(&self) -> usize {
        NODES
    }

    fn node_of(&self, page: Frame) -> usize {
        page.0 as usize % NODES
    }

    fn read_in(&self, file: FileId, number: u64, page: Frame) {
        self.interruption_point();
        let word = self.stored(file, number);
        // The page is being read.
        self.interruption_point();
        self.word(page).store(word, Relaxed);
    }

    fn write_out(&self, file: FileId, number: u64, page: Frame) {
        self.interruption_point();
        let word = self.word(page).load(Relaxed);
        self.0.stored.lock().insert((file, number), word);
    }

    fn truncate(&self, file: FileId, numbers: Range<u64>) {
        let is_kept = |&(of, number): &(FileId, u64)| of != file || !numbers.contains(&number);
        self.0.stored.lock().retain(|page, _| is_kept(page));
    }

    fn request_record(&self, page: Frame) {
        assert_ne!(page, ZERO_PAGE, "no user of the page of zeros is counted");
        self.use_record(RecordUse::Request, page);
    }

    fn share(&self, page: Frame) {
        self.use_record(RecordUse::Count, page);
        self.interruption_point();
        let before = self.state(page, PAGE).users.fetch_add(1, AcqRel);
        assert_ne!(before, 0, "{page:?} is shared without a user");
    }

    fn user_count(&self, page: Frame) -> u64 {
        self.interruption_point();
        // Not as `state`: the frame may be free, or a table, by now.
        self.0.frames[page.0 as usize].users.load(Acquire)
    }

    fn release(&self, page: Frame) {
        self.use_record(RecordUse::Count, page);
        self.interruption_point();
        let before = self.state(page, PAGE).users.fetch_sub(1, AcqRel);
        assert_ne!(before, 0, "{page:?} is released without a user");
        if before == 1 {
            self.free(page, PAGE);
        }
    }

    fn empty_table(&self, table: Frame, entries: Range<usize>) {
        self.interruption_point();
        let state = self.state(table, TABLE);
        let all = state.entries.get().expect("tables have entries");
        all[entries].iter().for_each(|entry| entry.store(0, Relaxed));
        state.is_emptied.store(true, Relaxed);
        self.0.emptied.fetch_add(1, Relaxed);
    }

    fn free_table(&self, table: Frame) {
        self.interruption_point();
        let FrameState { entries, is_emptied, .. } = self.state(table, TABLE);
        if is_emptied.swap(false, Relaxed) {
            let mut entries = entries.get().expect("tables have entries").iter();
            assert!(entries.all(|entry| entry.load(Relaxed) == 0), "{table:?} is not empty");
        }
        self.free(table, TABLE);
    }

    fn load(&self, entry: EntryAt) -> u64 {
        self.interruption_point();
        self.entry(entry).load(Acquire)
    }

    fn swap(&self, entry: EntryAt, value: u64) -> u64 {
        self.interruption_point();
        let from = self.entry(entry).swap(value, AcqRel);
        self.check_change(from, value);
        from
    }

    fn compare_exchange(&self, entry: EntryAt, current: u64, new: u64) -> Result<u64, u64> {
        self.interruption_point();
        let (current, new) = self.skip_claim(entry, current, new);
        let result = self.entry(entry).compare_exchange(current, new, AcqRel, Acquire);
        if result.is_err() {
            self.0.failed_exchanges.fetch_add(1, Relaxed);
        } else {
            self.check_change(current, new);
            let hook = self.0.exchange_hook.lock().take();
            if let Some(hook) = hook {
                hook();
            }
        }
        result
    }

    fn count_resident(&self, root: Frame, change: isize) {
        *self.0.resident.lock().entry(root).or_default() += change;
    }

    fn clear_page(&self, page: Frame) {
        self.interruption_point();
        self.word(page).store(0, Relaxed);
    }

    fn zero_in_place(&self, page: Frame) {
        assert_ne!(page, ZERO_PAGE, "the page of zeros is shared");
        self.clear_page(page);
    }

    fn is_zero(&self, page: Frame) -> bool {
        assert_ne!(page, ZERO_PAGE, "the page of zeros is not looked at");
        self.interruption_point();
        let is_zero = self.word(page).load(Relaxed) == 0;
        is_zero || self.0.takes_pages_for_zero.load(Relaxed)
    }

    fn copy_page(&self, from: Frame, to: Frame) {
        self.interruption_point();
        self.word(to).store(self.word(from).load(Relaxed), Relaxed);
    }

    fn now_ns(&self) -> u64 {
        self.0.now_ns.load(Relaxed)
    }

    fn cpu(&self) -> usize {
        CPU.get()
    }

    fn thread(&self) -> u64 {
        CPU.get() as u64
    }

    fn add_sharer(&self, table: Frame, cpu: usize) {
        self.interruption_point();
        if !self.0.forgets_sharers.load(Relaxed) {
            self.state(table, TABLE).sharers.fetch_or(1 << cpu, SeqCst);
        }
        fence(SeqCst);
    }

    fn remove_sharer(&self, table: Frame, cpu: usize) {
        self.interruption_point();
        self.state(table, TABLE).sharers.fetch_and(!(1 << cpu), SeqCst);
    }

    fn sharers(&self, table: Frame, each: &mut dyn FnMut(usize)) {
        let sharers = self.state(table, TABLE).sharers.load(Acquire);
        (0..64).filter(|cpu| sharers >> cpu & 1 != 0).for_each(each);
    }

    fn work(&self, work: Work, count: usize) {
        assert_ne!(count, 0, "{work:?} is reported with a count of 0");
    }

    fn user_addresses(&self) -> Range<u64> {
        self.0.user_addresses.clone()
    }
}

pub type Design<const LOCK: u8, const WHEN: u8> = Notifying<LOCK, WHEN>;
/// A system with the platform of the tests.
pub type TestSystem<C, F = X86_64> = (Host, C, F);
pub type OurVm<const LOCK: u8, const WHEN: u8> = Vm<TestSystem<Design<LOCK, WHEN>>>;
pub type Space<const LOCK: u8, const WHEN: u8> = AddressSpace<TestSystem<Design<LOCK, WHEN>>>;

/// Creates a memory manager on a machine.
pub fn system<const LOCK: u8, const WHEN: u8>(host: &Host) -> OurVm<LOCK, WHEN> {
    let coherence = Notifying(host.clone());
    let breaks = coherence.policy().execute_loss == ExecuteLoss::BreakBeforeMake;
    host.0.breaks_executable.store(breaks, Relaxed);
    Vm::new(host.clone(), coherence).expect("memory for a page of zeros")
}

/// Frees pages that were discarded in place, after the time in which they become old. Returns their
/// number.
pub fn free_old_discarded<S: System<Platform = Host>>(vm: &Vm<S>) -> usize {
    vm.platform().advance_ns(20_000_000);
    vm.free_discarded()
}

/// Makes an access as a thread does, and handles faults until it is allowed. Returns the word that
/// was read or written.
pub fn access<C: Coherence + 'static, F: Format + 'static>(
    space: &AddressSpace<TestSystem<C, F>>,
    cpu: usize,
    address: u64,
    access: Access,
    value: u64,
) -> Result<u64, FaultError> {
    let host = space.vm().platform();
    for _ in 0..1_000_000 {
        run_on(cpu);
        match host.touch(cpu, space.root_on(cpu), address, access, value) {
            Ok(word) => return Ok(word),
            Err(PageFault) => space.fault(address, access)?,
        }
        std::hint::spin_loop();
    }
    panic!("the access faults repeatedly");
}
