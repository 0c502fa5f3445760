//! For each rule of the engine, a small program that goes wrong without it, and never with it.
//!
//! loom runs each program in every interleaving, with every value that each load may return. The
//! programs use the engine as a kernel does; what can go wrong is a page or a page table that is
//! used after it was given away, which the software machine notices, and an answer that never
//! comes.
//!
//! What loom does not see: more than four threads; stores to one word that take effect in another
//! order than that in which they were executed (so nothing here fails for `StampClaim`); loads
//! that return what is stored later. For the last, pages are cells whose every use must be
//! *ordered* before the reuse, which is the same question asked differently.

#![expect(unsafe_code, reason = "switching is unsafe, and loom's cells are")]

#[path = "platforms/loom.rs"]
mod platform;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Once};
use std::time::Instant;

use loom::thread;
use platform::Loom;
use shootdown::soft::{Config, OnCpu, Soft, Touch};
use shootdown::{CpuId, Extent, Pending, Rule, Shootdown, Space};

/// With `W` words of CPUs. One would do; with two, the sets' summaries are explored as well.
type Machine<const W: usize> = Soft<Loom, W>;
type Cpu<'e, const W: usize> = OnCpu<'e, Loom, W>;

/// A machine with two spaces whose pages are all mapped, and its CPUs online.
struct System<const W: usize> {
    engine: Shootdown<Machine<W>>,
    a: Space<Machine<W>>,
    b: Space<Machine<W>>,
}

impl<const W: usize> System<W> {
    fn new(config: Config) -> Arc<Self> {
        let engine = Machine::<W>::engine(config);
        let (a, b) = (engine.space(shootdown::Root(0)), engine.space(shootdown::Root(1)));
        let system = Self { engine, a, b };
        for page in 0..config.pages {
            system.machine().map(&system.a, page);
            system.machine().map(&system.b, page);
            system.machine().map_kernel(page);
        }
        for cpu in 0..config.cpus {
            system.cpu(cpu).here().online();
        }
        Arc::new(system)
    }

    fn machine(&self) -> &Machine<W> {
        self.engine.machine()
    }

    fn cpu(&self, cpu: u32) -> Cpu<'_, W> {
        self.engine.enter(CpuId(cpu))
    }

    /// Unmaps a page of `a` and sends the flush.
    fn unmap<'e>(&self, cpu: &Cpu<'e, W>, page: usize) -> Pending<'e, Machine<W>> {
        self.machine().unmap(&self.a, page);
        cpu.here().flush(&self.a, page_at(page))
    }

    /// The end of every program, when all threads have: CPU 1 takes the interrupt that may be on
    /// its way, the flush of page 0 is done, the page is given away, and CPU 1 must not use it.
    fn conclude(&self, pending: Pending<'_, Machine<W>>) {
        let cpu = self.cpu(1);
        cpu.interrupt_point();
        finish(pending);
        self.machine().free(&self.a, 0);
        assert_ne!(cpu.touch(0), Touch::Stale);
    }
}

fn page_at(page: usize) -> Extent {
    Extent::page((page as u64) << 12)
}

/// Everybody has answered, or will not: a wait would spin for ever.
fn finish<const W: usize>(mut pending: Pending<'_, Machine<W>>) {
    let done = pending.poll();
    if !done {
        // Dropping it would wait.
        std::mem::forget(pending);
    }
    assert!(done, "nobody is left to answer");
}

/// Switches CPU `cpu`; every space here outlives every CPU's use of it.
fn switch<const W: usize>(cpu: &Cpu<'_, W>, space: &Space<Machine<W>>) {
    // SAFETY: the spaces of a `System` live as long as its machine, and do not move.
    unsafe { cpu.here().switch(space) };
}

// ---- the programs ------------------------------------------------------------------------------

/// CPU 1 switches in for the first time while CPU 0 flushes.
fn first_switch<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    let other = Arc::clone(&system);
    let switching = thread::spawn(move || {
        let cpu = other.cpu(1);
        switch(&cpu, &other.a);
        let _ = cpu.touch(0);
    });
    let pending = system.unmap(&system.cpu(0), 0);
    switching.join().unwrap();
    system.conclude(pending);
}

/// CPU 1 switches in again, with a tag that still holds the page, while CPU 0 flushes.
fn switch_with_kept_tag<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    {
        let cpu = system.cpu(1);
        switch(&cpu, &system.a);
        assert_eq!(cpu.touch(0), Touch::Ok);
        cpu.here().leave();
    }
    let other = Arc::clone(&system);
    let switching = thread::spawn(move || switch(&other.cpu(1), &other.a));
    let pending = system.unmap(&system.cpu(0), 0);
    switching.join().unwrap();
    system.conclude(pending);
}

/// CPU 1 comes back from lazy while CPU 0 flushes.
fn resume<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    {
        let cpu = system.cpu(1);
        switch(&cpu, &system.a);
        assert_eq!(cpu.touch(0), Touch::Ok);
        cpu.here().enter_lazy();
    }
    let other = Arc::clone(&system);
    let resuming = thread::spawn(move || switch(&other.cpu(1), &other.a));
    let pending = system.unmap(&system.cpu(0), 0);
    resuming.join().unwrap();
    system.conclude(pending);
}

/// CPU 1 stops using the space while CPU 0 flushes, and CPU 0 gives the page away as soon as it
/// may.
fn enter_lazy<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    switch(&system.cpu(1), &system.a);
    let other = Arc::clone(&system);
    let leaving = thread::spawn(move || {
        let cpu = other.cpu(1);
        assert_ne!(cpu.touch(0), Touch::Stale);
        cpu.here().enter_lazy();
    });
    let mut pending = system.unmap(&system.cpu(0), 0);
    if pending.poll() {
        system.machine().free(&system.a, 0);
    }
    leaving.join().unwrap();
    system.cpu(1).interrupt_point();
    finish(pending);
}

/// CPU 1 runs and takes the interrupt; CPU 0 gives the page away as soon as it may.
fn answer<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    switch(&system.cpu(1), &system.a);
    let other = Arc::clone(&system);
    let running = thread::spawn(move || {
        let cpu = other.cpu(1);
        assert_ne!(cpu.touch(0), Touch::Stale);
        cpu.interrupt_point();
        assert_ne!(cpu.touch(0), Touch::Stale);
    });
    let mut pending = system.unmap(&system.cpu(0), 0);
    let done = pending.poll();
    if done {
        system.machine().free(&system.a, 0);
    }
    running.join().unwrap();
    let cpu = system.cpu(1);
    cpu.interrupt_point();
    finish(pending);
    if !done {
        system.machine().free(&system.a, 0);
    }
    assert_ne!(cpu.touch(0), Touch::Stale);
}

/// CPU 1 has interrupts masked, and polls its bell as one that spins on a lock does.
fn answer_by_polling<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    {
        let cpu = system.cpu(1);
        switch(&cpu, &system.a);
        assert_eq!(cpu.touch(0), Touch::Ok);
    }
    let other = Arc::clone(&system);
    let polling = thread::spawn(move || other.cpu(1).here().answer());
    let pending = system.unmap(&system.cpu(0), 0);
    polling.join().unwrap();
    system.conclude(pending);
}

/// CPU 0 rings a second time while CPU 1 answers the first ring.
fn ring_while_answering<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    {
        let cpu = system.cpu(1);
        switch(&cpu, &system.a);
        assert_eq!(cpu.touch(0), Touch::Ok);
    }
    let first = system.unmap(&system.cpu(0), 1);
    let other = Arc::clone(&system);
    let answering = thread::spawn(move || other.cpu(1).interrupt_point());
    let mut second = system.unmap(&system.cpu(0), 0);
    answering.join().unwrap();
    second.join(first);
    system.conclude(second);
}

/// Two CPUs flush and wait for each other, with their interrupts masked.
fn wait_for_each_other<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    switch(&system.cpu(0), &system.a);
    switch(&system.cpu(1), &system.a);
    let other = Arc::clone(&system);
    let flush_and_go = |system: &System<W>, cpu: u32| {
        let cpu = system.cpu(cpu);
        system.unmap(&cpu, 0).wait();
        // The other one may not have rung yet.
        cpu.here().offline();
    };
    let waiting = thread::spawn(move || flush_and_go(&other, 1));
    flush_and_go(&system, 0);
    waiting.join().unwrap();
}

/// CPU 1 comes back and reads in the log what CPU 0 is just writing there, over an older entry.
fn read_entry_being_written<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    let cpu = system.cpu(1);
    switch(&cpu, &system.a);
    assert_eq!(cpu.touch(0), Touch::Ok);
    for _ in 0..16 {
        let pending = system.unmap(&system.cpu(0), 1);
        cpu.interrupt_point();
        finish(pending);
    }
    cpu.here().enter_lazy();
    drop(cpu);

    let other = Arc::clone(&system);
    let resuming = thread::spawn(move || switch(&other.cpu(1), &other.a));
    let pending = system.unmap(&system.cpu(0), 0);
    resuming.join().unwrap();
    system.conclude(pending);
}

/// CPU 1 comes back and reads in the log what CPU 0 is just overwriting.
fn read_entry_being_overwritten<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    {
        let cpu = system.cpu(1);
        switch(&cpu, &system.a);
        assert_eq!(cpu.touch(0), Touch::Ok);
        cpu.here().enter_lazy();
    }
    finish(system.unmap(&system.cpu(0), 0));
    system.machine().free(&system.a, 0);
    for _ in 1..16 {
        finish(system.unmap(&system.cpu(0), 1));
    }

    let other = Arc::clone(&system);
    let resuming = thread::spawn(move || {
        let cpu = other.cpu(1);
        switch(&cpu, &other.a);
        assert_ne!(cpu.touch(0), Touch::Stale);
    });
    let pending = system.unmap(&system.cpu(0), 1);
    resuming.join().unwrap();
    system.cpu(1).interrupt_point();
    finish(pending);
}

/// The roster moves, and CPU 0 flushes, while CPU 1, which was registered, switches in.
fn move_roster_while_switching<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    {
        let cpu = system.cpu(1);
        switch(&cpu, &system.a);
        assert_eq!(cpu.touch(0), Touch::Ok);
        cpu.here().leave();
    }
    let other = Arc::clone(&system);
    let switching = thread::spawn(move || switch(&other.cpu(1), &other.a));
    let cpu = system.cpu(0);
    assert!(cpu.here().trim_roster(&system.a));
    let pending = system.unmap(&cpu, 0);
    switching.join().unwrap();
    drop(cpu);
    system.conclude(pending);
}

/// The same with a CPU that was not registered.
fn move_roster_while_registering<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    let other = Arc::clone(&system);
    let switching = thread::spawn(move || {
        let cpu = other.cpu(1);
        switch(&cpu, &other.a);
        let _ = cpu.touch(0);
    });
    let cpu = system.cpu(0);
    assert!(cpu.here().trim_roster(&system.a));
    let pending = system.unmap(&cpu, 0);
    switching.join().unwrap();
    drop(cpu);
    system.conclude(pending);
}

/// The same with a CPU whose bit of two epochs ago is still in the set that is becoming current.
fn move_roster_to_a_used_set<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    {
        let cpu = system.cpu(1);
        switch(&cpu, &system.a);
        assert_eq!(cpu.touch(0), Touch::Ok);
        assert!(cpu.here().trim_roster(&system.a));
        cpu.here().leave();
        assert!(cpu.here().trim_roster(&system.a));
    }
    let other = Arc::clone(&system);
    let switching = thread::spawn(move || switch(&other.cpu(1), &other.a));
    let cpu = system.cpu(0);
    assert!(cpu.here().trim_roster(&system.a));
    let pending = system.unmap(&cpu, 0);
    switching.join().unwrap();
    drop(cpu);
    system.conclude(pending);
}

/// CPU 2 moves the roster `moves` times while CPU 0 flushes and CPU 1 stays active.
fn move_roster_while_flushing<const W: usize>(config: Config, moves: usize) {
    let system = System::<W>::new(Config { cpus: 3, ..config });
    {
        let cpu = system.cpu(1);
        switch(&cpu, &system.a);
        assert_eq!(cpu.touch(0), Touch::Ok);
    }
    let other = Arc::clone(&system);
    let moving = thread::spawn(move || {
        let cpu = other.cpu(2);
        for _ in 0..moves {
            assert!(cpu.here().trim_roster(&other.a));
        }
    });
    let pending = system.unmap(&system.cpu(0), 0);
    moving.join().unwrap();
    system.conclude(pending);
}

fn move_roster_once<const W: usize>(config: Config) {
    move_roster_while_flushing::<W>(config, 1);
}

fn move_roster_twice<const W: usize>(config: Config) {
    move_roster_while_flushing::<W>(config, 2);
}

/// CPU 1 comes online, with a TLB that kept a page of the kernel, while CPU 0 flushes that page.
fn come_online<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    {
        let cpu = system.cpu(1);
        assert_eq!(cpu.touch_kernel(0), Touch::Ok);
        cpu.here().offline();
    }
    let other = Arc::clone(&system);
    let coming = thread::spawn(move || {
        let cpu = other.cpu(1);
        cpu.here().online();
        let _ = cpu.touch_kernel(0);
    });
    system.machine().unmap_kernel(0);
    let pending = system.cpu(0).here().flush_kernel(page_at(0));
    coming.join().unwrap();
    let cpu = system.cpu(1);
    cpu.interrupt_point();
    finish(pending);
    system.machine().free_kernel(0);
    assert_ne!(cpu.touch_kernel(0), Touch::Stale);
}

/// CPU 1 goes offline, for good, while CPU 0 flushes.
fn go_offline<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    switch(&system.cpu(1), &system.a);
    let other = Arc::clone(&system);
    let going = thread::spawn(move || {
        let cpu = other.cpu(1);
        assert_ne!(cpu.touch(0), Touch::Stale);
        cpu.here().offline();
    });
    let mut pending = system.unmap(&system.cpu(0), 0);
    if pending.poll() {
        system.machine().free(&system.a, 0);
    }
    going.join().unwrap();
    finish(pending);
}

/// Unhooks the page tables of `a` and sends the flush.
fn unhook_tables<const W: usize>(system: &System<W>) -> Pending<'_, Machine<W>> {
    let cpu = system.cpu(0);
    system.machine().unhook_tables(&system.a);
    cpu.here().flush(&system.a, page_at(0).freeing_tables())
}

/// CPU 1 switches away from the space while CPU 0 frees its page tables, as soon as it may.
fn switch_away_from_freed_tables<const W: usize>(config: Config) {
    switch_away::<W>(config, |_| {});
}

/// The same, after CPU 0 has moved the roster.
fn switch_away_from_moved_roster<const W: usize>(config: Config) {
    switch_away::<W>(config, |system| {
        assert!(system.cpu(0).here().trim_roster(&system.a));
    });
}

fn switch_away<const W: usize>(config: Config, before: fn(&System<W>)) {
    let system = System::<W>::new(config);
    switch(&system.cpu(1), &system.a);
    let other = Arc::clone(&system);
    let switching = thread::spawn(move || switch(&other.cpu(1), &other.b));
    before(&system);
    let mut pending = unhook_tables(&system);
    let done = pending.poll();
    if done {
        system.machine().free_tables(&system.a);
    }
    switching.join().unwrap();
    let cpu = system.cpu(1);
    cpu.interrupt_point();
    finish(pending);
    if !done {
        system.machine().free_tables(&system.a);
    }
    cpu.speculate();
    assert_eq!(system.machine().freed_table_walks(), 0);
}

/// CPU 1 has the space loaded lazily when its page tables are freed.
fn lazy_on_freed_tables<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    let cpu = system.cpu(1);
    switch(&cpu, &system.a);
    cpu.here().enter_lazy();
    let pending = unhook_tables(&system);
    cpu.interrupt_point();
    finish(pending);
    system.machine().free_tables(&system.a);
    cpu.speculate();
    assert_eq!(system.machine().freed_table_walks(), 0);
}

/// CPU 1 is on another space when page tables are freed, and comes back.
fn return_to_freed_tables<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    let cpu = system.cpu(1);
    switch(&cpu, &system.a);
    switch(&cpu, &system.b);
    finish(unhook_tables(&system));
    system.machine().free_tables(&system.a);
    switch(&cpu, &system.a);
    assert_eq!(system.machine().freed_table_walks(), 0);
}

/// CPU 1 is active, and CPU 0 flushes.
fn flush_active<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    let cpu = system.cpu(1);
    switch(&cpu, &system.a);
    assert_eq!(cpu.touch(0), Touch::Ok);
    let mut pending = system.unmap(&system.cpu(0), 0);
    if pending.poll() {
        system.machine().free(&system.a, 0);
        assert_ne!(cpu.touch(0), Touch::Stale);
    }
    drop(cpu);
    system.conclude(pending);
}

/// CPU 1 flushes what it uses itself.
fn flush_own<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    let cpu = system.cpu(1);
    switch(&cpu, &system.a);
    assert_eq!(cpu.touch(0), Touch::Ok);
    finish(system.unmap(&cpu, 0));
    system.machine().free(&system.a, 0);
    assert_eq!(cpu.touch(0), Touch::Fault);
}

/// CPU 1 has one tag for two spaces that map the same address.
fn share_a_tag<const W: usize>(config: Config) {
    let system = System::<W>::new(Config { tags: 1, ..config });
    let cpu = system.cpu(1);
    // So that the two translations can be told apart.
    system.machine().unmap(&system.b, 0);
    system.machine().free(&system.b, 0);
    system.machine().map(&system.b, 0);
    switch(&cpu, &system.a);
    assert_eq!(cpu.touch(0), Touch::Ok);
    switch(&cpu, &system.b);
    assert_eq!(cpu.touch(0), Touch::Ok);
}

/// CPU 1 uses a page of the kernel that CPU 0 flushes.
fn flush_kernel<const W: usize>(config: Config) {
    let system = System::<W>::new(config);
    let cpu = system.cpu(1);
    assert_eq!(cpu.touch_kernel(0), Touch::Ok);
    system.machine().unmap_kernel(0);
    let pending = system.cpu(0).here().flush_kernel(page_at(0));
    cpu.interrupt_point();
    finish(pending);
    system.machine().free_kernel(0);
    assert_eq!(cpu.touch_kernel(0), Touch::Fault);
}

/// CPUs 1 to `switching` switch in, one after the other as far as loom has threads, while
/// `flushing` CPUs flush, CPU 0 among them.
fn crowd<const W: usize>(switching: u32, flushing: u32) {
    let cpus = switching + flushing;
    let system = System::<W>::new(Config { cpus, ..Config::default() });
    for cpu in 1..=switching {
        let cpu = system.cpu(cpu);
        switch(&cpu, &system.a);
        assert_eq!(cpu.touch(0), Touch::Ok);
        cpu.here().leave();
    }
    let mut threads = Vec::new();
    for cpu in 1..cpus {
        let system = Arc::clone(&system);
        threads.push(thread::spawn(move || {
            let cpu = system.cpu(cpu);
            if cpu.here().id().0 <= switching {
                switch(&cpu, &system.a);
            } else {
                // Its own answers are given by the main thread in the end.
                std::mem::forget(system.unmap(&cpu, 1));
            }
        }));
    }
    let pending = system.unmap(&system.cpu(0), 0);
    for thread in threads {
        thread.join().unwrap();
    }
    for cpu in 1..cpus {
        system.cpu(cpu).interrupt_point();
    }
    finish(pending);
    system.machine().free(&system.a, 0);
    for cpu in 1..=switching {
        assert_ne!(system.cpu(cpu).touch(0), Touch::Stale);
    }
}

// ---- the rules ---------------------------------------------------------------------------------

type Program = fn(Config);

/// The program that goes wrong without `rule`; `None` where no tool at hand can show it.
fn program_against<const W: usize>(rule: Rule) -> Option<Program> {
    Some(match rule {
        Rule::FlushFence => switch_with_kept_tag::<W>,
        Rule::SwitchFence => switch_with_kept_tag::<W>,
        Rule::ResumeFence => resume::<W>,
        Rule::RegisterFence => first_switch::<W>,
        Rule::OnlineFence => come_online::<W>,
        Rule::BumpRelease | Rule::GenerationAcquire => first_switch::<W>,
        Rule::LeaveRelease | Rule::PresenceAcquire => enter_lazy::<W>,
        Rule::LookAcquire => answer_by_polling::<W>,
        Rule::AnswerRelease | Rule::WaitAcquire => answer::<W>,
        Rule::QuietRelease | Rule::QuietAcquire => answer::<W>,
        Rule::DisconnectRelease | Rule::DisconnectAcquire => go_offline::<W>,
        Rule::StampClaim => return None,
        Rule::ExtentRelease | Rule::ExtentAcquire => read_entry_being_overwritten::<W>,
        Rule::StampRelease | Rule::StampAcquire => read_entry_being_written::<W>,
        Rule::MoveFence => move_roster_while_switching::<W>,
        Rule::MoveRelease | Rule::PhaseAcquire => move_roster_once::<W>,
        Rule::MovingRelease => move_roster_to_a_used_set::<W>,
        Rule::ClearRelease | Rule::ScanAcquire => move_roster_twice::<W>,
        Rule::RingPresent => flush_active::<W>,
        Rule::RingSwitching => switch_with_kept_tag::<W>,
        Rule::RingLeaving => switch_away_from_freed_tables::<W>,
        Rule::RingLazy => lazy_on_freed_tables::<W>,
        Rule::FlushLocally => flush_own::<W>,
        Rule::Wait => flush_active::<W>,
        Rule::ServeWhileWaiting => wait_for_each_other::<W>,
        Rule::LookAgain => ring_while_answering::<W>,
        Rule::CatchUpOnSwitch => switch_with_kept_tag::<W>,
        Rule::CatchUpOnResume => resume::<W>,
        Rule::KnowEveryRange => resume::<W>,
        Rule::DiscardReusedTag => share_a_tag::<W>,
        Rule::DiscardFreedTables => return_to_freed_tables::<W>,
        Rule::RecheckPhase => move_roster_while_registering::<W>,
        Rule::KeepPresent => move_roster_once::<W>,
        Rule::KeepLeaving => switch_away_from_moved_roster::<W>,
        Rule::RecheckScan => move_roster_twice::<W>,
        Rule::AnswerBeforeOffline => go_offline::<W>,
        Rule::FlushOnOnline => come_online::<W>,
        Rule::RingOnline => flush_kernel::<W>,
    })
}

/// How loom is to search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Search {
    /// Every interleaving that loom finds by itself.
    Unbounded,
    /// Those of them with up to so many preemptions.
    Bounded(usize),
    /// Every interleaving with up to so many preemptions, found with [`platform::with_witnesses`].
    Witnessed(usize),
}

/// Runs a program in the interleavings of a search. Returns how many, or what went wrong.
fn explore(search: Search, program: impl Fn() + Send + Sync + 'static) -> Result<usize, String> {
    // loom unwinds through each thread that is left over, and would tell of each.
    static QUIET: Once = Once::new();
    QUIET.call_once(|| std::panic::set_hook(Box::new(|_| ())));

    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let mut model = loom::model::Builder::new();
    model.max_branches = 20_000;
    let program = move || {
        counted.fetch_add(1, Relaxed);
        program();
    };
    let result = catch_unwind(AssertUnwindSafe(|| match search {
        Search::Unbounded => model.check(program),
        Search::Bounded(preemptions) => {
            model.preemption_bound = Some(preemptions);
            model.check(program);
        }
        Search::Witnessed(preemptions) => {
            model.preemption_bound = Some(preemptions);
            platform::with_witnesses(|| model.check(program));
        }
    }));
    result.map_err(|cause| match cause.downcast::<String>() {
        Ok(text) => *text,
        Err(cause) => cause.downcast_ref::<&str>().map_or("?".into(), |text| (*text).into()),
    })?;
    Ok(runs.load(Relaxed))
}

/// The programs, each once, with the first rule that needs it.
fn programs<const W: usize>() -> Vec<(Rule, Program)> {
    let mut programs: Vec<(Rule, Program)> = Vec::new();
    for &rule in Rule::ALL {
        let Some(program) = program_against::<W>(rule) else { continue };
        if programs.iter().all(|&(_, known)| known as usize != program as usize) {
            programs.push((rule, program));
        }
    }
    programs
}

/// Runs all programs intact.
fn all_right<const W: usize>(search: impl Fn(Program) -> Search) {
    let mut wrong = Vec::new();
    for (rule, program) in programs::<W>() {
        let (start, search) = (Instant::now(), search(program));
        match explore(search, move || program(Config::default())) {
            Ok(runs) => println!("{runs:>8} runs {:>9.2?}  {rule:?}, {search:?}", start.elapsed()),
            Err(cause) => wrong.push((rule, cause)),
        }
    }
    // The hook that keeps loom quiet keeps an assertion's message, too.
    println!("wrong: {wrong:#?}");
    assert!(wrong.is_empty());
}

#[test]
fn every_program_is_right_in_all_interleavings() {
    all_right::<1>(|program| {
        let spins = program as usize == wait_for_each_other::<1> as Program as usize;
        if spins { Search::Witnessed(3) } else { Search::Unbounded }
    });
}

#[test]
fn every_program_is_right_with_witnesses() {
    all_right::<1>(|_| Search::Witnessed(3));
}

#[test]
fn every_program_is_right_with_sets_of_two_words() {
    all_right::<2>(|_| Search::Witnessed(2));
}

#[test]
fn three_and_four_cpus_are_right() {
    // Two of each takes five minutes with three preemptions: `cargo xtask soak` has the time.
    let pairs = if std::env::var_os("SHOOTDOWN_SOAK").is_some() { 3 } else { 2 };
    for (switching, flushing, search) in [
        (2, 1, Search::Bounded(3)),
        (1, 2, Search::Bounded(3)),
        (2, 2, Search::Bounded(pairs)),
        (3, 1, Search::Bounded(3)),
        (2, 1, Search::Witnessed(2)),
        (1, 2, Search::Witnessed(2)),
    ] {
        let start = Instant::now();
        let result = explore(search, move || crowd::<1>(switching, flushing));
        let elapsed = start.elapsed();
        println!("{switching} switching, {flushing} flushing: {result:?} {elapsed:.2?} {search:?}");
        assert!(result.is_ok());
    }
}

#[test]
fn each_rule_broken_makes_its_program_go_wrong() {
    let mut survivors = Vec::new();
    for &rule in Rule::ALL {
        let Some(program) = program_against::<1>(rule) else { continue };
        let config = Config { broken: Some(rule), ..Config::default() };
        let start = Instant::now();
        match explore(Search::Witnessed(3), move || program(config)) {
            Ok(runs) => survivors.push((rule, runs)),
            Err(cause) => {
                println!("{:>9.2?}  {rule:?}: {}", start.elapsed(), cause.replace('\n', " "));
                let expected = ["assertion", "Causality", "nobody is left", "Model exceeded"];
                assert!(expected.iter().any(|start| cause.starts_with(start)), "the test is wrong");
            }
        }
    }
    println!("nobody noticed: {survivors:#?}");
    assert!(survivors.is_empty());
}
