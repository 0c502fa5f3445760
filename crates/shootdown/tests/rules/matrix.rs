//! Every operation that flushes, on CPU 0, against every action of another CPU at the same time.
//!
//! [`programs`](crate::programs) shows that each rule is needed. This matrix tests the converse:
//! that the rules are sufficient. It needs no idea of a possible bug, and it found the ordering
//! that is now [`LeaveOnlineRelease`](shootdown::Rule::LeaveOnlineRelease).

use shootdown::soft::{Answers, Config, Touch};
use shootdown::{Batch, ExtentSet, Pending, Reaping, Rule, SentBatch, Space, StaleWrites, Tagging};

use crate::ends::retire;
use crate::programs::unmap_kernel;
use crate::stopped::{SURVIVOR, stop};
use crate::system::{Cpu, Machine, System, page_at, switch};
use crate::unflushed::defer;
use crate::{NamedSearch, Search, assert_all_pass, explore, soaking};

/// An operation of CPU 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    /// Flushes a page.
    Page,
    /// Flushes a page of the kernel.
    Kernel,
    /// Flushes a page of the kernel, then a page of the space, and joins the two.
    KernelAndPage,
    /// Flushes and frees page tables, and interrupts lazy CPUs.
    Tables,
    /// Flushes page tables, and frees them if lazy CPUs cannot walk them.
    QuarantinedTables,
    /// As `QuarantinedTables`, and then flushes the walkers.
    FlushWalkers,
    /// Unmaps a page in a batch.
    Batch,
    /// Unmaps a page, defers its flush, and reuses its frame.
    Reuse,
    /// Retires the space, some of whose page tables are in quarantine.
    Retire,
    /// Reaps the space, which it has retired before.
    Reap,
}

/// An action of CPU 1 at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// Switches in for the first time.
    FirstSwitch,
    /// Switches in again, from the kernel's page table, with a tag under which the page is cached.
    Switch,
    /// As `Switch`, from another space.
    SwitchBack,
    /// Comes back from lazy.
    Resume,
    /// Comes back from lazy, and goes lazy again.
    ResumeAndIdle,
    /// Stops using the space.
    EnterLazy,
    /// Switches to another space.
    SwitchAway,
    /// Switches to another space, from lazy.
    SwitchAwayFromLazy,
    /// Loads the kernel's page table.
    Leave,
    /// Loads the kernel's page table, from lazy.
    LeaveFromLazy,
    /// Continues to use the space, and takes the interrupt.
    TakeInterrupt,
    /// Continues to use the space, and is stopped and run again by its hypervisor.
    StopAndReturn,
    /// Is stopped and run again while it is lazy.
    StopAndReturnWhileLazy,
    /// Takes the interrupt while it is lazy.
    TakeInterruptWhileLazy,
    /// Continues to use the space with interrupts masked, and polls its bell.
    Poll,
    /// Polls its bell while it is lazy.
    PollFromLazy,
    /// Flushes another page of the space.
    Flush,
    /// Flushes another page of the kernel.
    FlushKernel,
    /// Trims the space's CPU mask.
    Trim,
    /// Goes offline.
    GoOffline,
    /// Goes offline, from lazy.
    GoOfflineFromLazy,
    /// Stops as in a crash, and is disconnected by CPU 2.
    Stop,
    /// Stops while it is lazy, and is disconnected by CPU 2.
    StopWhileLazy,
    /// Comes online, with a TLB that has kept its translations, and switches in.
    GoOnline,
    /// Enters user mode, and stays there.
    EnterUser,
    /// Enters the kernel from user mode, in which it has been on the space.
    EnterKernel,
}

impl Operation {
    const ALL: [Self; 10] = [
        Self::Page,
        Self::Kernel,
        Self::KernelAndPage,
        Self::Tables,
        Self::QuarantinedTables,
        Self::FlushWalkers,
        Self::Batch,
        Self::Reuse,
        Self::Retire,
        Self::Reap,
    ];

    /// Returns `true` if the operation ends the space, so that no CPU may use it any more.
    const fn ends_space(self) -> bool {
        matches!(self, Self::Retire | Self::Reap)
    }

    /// Does on CPU 0 what the operation requires before it.
    fn prepare(self, system: &System<1>) {
        if !self.ends_space() {
            return;
        }
        let cpu = system.cpu(0);
        let _ = unhook_tables(system, &cpu).0.poll();
        if self == Self::Reap {
            retire(system, &cpu);
        }
        // Interrupts CPU 1. CPU 0 does not wait.
        std::mem::forget(cpu.pin().flush_kernel(page_at(1)));
    }

    fn run<'s>(self, system: &'s System<1>, cpu: &Cpu<'s, 1>) -> SentOperation<'s> {
        let machine = system.machine();
        match self {
            Self::Page => SentOperation::flush(system.unmap(cpu, 0), &[Freed::Page]),
            Self::Kernel => SentOperation::flush(unmap_kernel(system, cpu), &[Freed::KernelPage]),
            Self::KernelAndPage => {
                let mut pending = unmap_kernel(system, cpu);
                pending.join(system.unmap(cpu, 0));
                SentOperation::flush(pending, &[Freed::KernelPage, Freed::Page])
            }
            Self::Tables => {
                machine.unhook_tables(&system.a);
                let extent = page_at(0).freeing_tables();
                SentOperation::flush(cpu.pin().flush(&system.a, extent), &[Freed::Tables])
            }
            Self::QuarantinedTables => {
                let (pending, flush, cleared) = unhook_tables(system, cpu);
                SentOperation::flush(pending, if cleared >= flush { &[Freed::Tables] } else { &[] })
            }
            Self::FlushWalkers => {
                let (mut pending, flush, cleared) = unhook_tables(system, cpu);
                let flushed = cpu.pin().flush_walkers(&system.a);
                let horizon = flushed.horizon();
                pending.join(flushed);
                let is_clear = cleared.max(horizon.cleared()) >= flush;
                SentOperation::flush(pending, if is_clear { &[Freed::Tables] } else { &[] })
            }
            Self::Batch => {
                let batch = Box::leak(Box::new(Batch::new()));
                let entry = batch.space(machine, &&system.a).unwrap();
                assert!(machine.try_unmap(&system.a, 0));
                let _ = entry.unmapped(&cpu.pin(), page_at(0), StaleWrites::Impossible).poll();
                SentOperation { sent: Sent::Batch(batch.send(&cpu.pin())), frees: &[Freed::Page] }
            }
            Self::Reuse => {
                let sent = Box::leak(Box::new(defer(system, cpu))).reuse(&cpu.pin());
                SentOperation { sent: Sent::Batch(sent), frees: &[Freed::Page] }
            }
            Self::Retire => {
                retire(system, cpu);
                SentOperation::flush(Pending::done(&system.engine), &[Freed::Space])
            }
            Self::Reap => {
                SentOperation { sent: Sent::Reap(cpu.pin().reap()), frees: &[Freed::Space] }
            }
        }
    }
}

impl Action {
    const ALL: [Self; 26] = [
        Self::FirstSwitch,
        Self::Switch,
        Self::SwitchBack,
        Self::Resume,
        Self::ResumeAndIdle,
        Self::EnterLazy,
        Self::SwitchAway,
        Self::SwitchAwayFromLazy,
        Self::Leave,
        Self::LeaveFromLazy,
        Self::TakeInterrupt,
        Self::StopAndReturn,
        Self::StopAndReturnWhileLazy,
        Self::TakeInterruptWhileLazy,
        Self::Poll,
        Self::PollFromLazy,
        Self::Flush,
        Self::FlushKernel,
        Self::Trim,
        Self::GoOffline,
        Self::GoOfflineFromLazy,
        Self::Stop,
        Self::StopWhileLazy,
        Self::GoOnline,
        Self::EnterUser,
        Self::EnterKernel,
    ];

    /// Returns `true` if CPU 1 is lazy on the space at the beginning, and does not use it again.
    const fn stays_lazy(self) -> bool {
        matches!(
            self,
            Self::ResumeAndIdle
                | Self::SwitchAwayFromLazy
                | Self::LeaveFromLazy
                | Self::TakeInterruptWhileLazy
                | Self::StopAndReturnWhileLazy
                | Self::PollFromLazy
                | Self::GoOfflineFromLazy
                | Self::StopWhileLazy
        )
    }

    const fn starts_active(self) -> bool {
        matches!(
            self,
            Self::EnterLazy
                | Self::SwitchAway
                | Self::Leave
                | Self::TakeInterrupt
                | Self::StopAndReturn
                | Self::Poll
                | Self::GoOffline
                | Self::Stop
                | Self::EnterUser
                | Self::EnterKernel
        )
    }

    const fn is_stopped(self) -> bool {
        matches!(self, Self::StopAndReturn | Self::StopAndReturnWhileLazy)
    }

    const fn stops(self) -> bool {
        matches!(self, Self::Stop | Self::StopWhileLazy)
    }

    const fn goes_offline(self) -> bool {
        matches!(self, Self::GoOffline | Self::GoOfflineFromLazy) || self.stops()
    }

    /// Does on CPU 1 what the action requires before it.
    fn prepare(self, system: &System<1>, cpu: &Cpu<'_, 1>) {
        assert_eq!(cpu.touch_kernel(0), Touch::Ok);
        if matches!(self, Self::FirstSwitch | Self::Flush | Self::FlushKernel | Self::Trim) {
            return;
        }
        switch(cpu, &system.a);
        assert_eq!(cpu.touch(0), Touch::Ok);
        match self {
            Self::Switch => cpu.pin().leave_space(),
            Self::SwitchBack => switch(cpu, &system.b),
            Self::GoOnline => cpu.pin().offline(),
            Self::Resume => cpu.pin().enter_lazy(),
            Self::EnterKernel => cpu.pin().enter_user(),
            _ if self.stays_lazy() => cpu.pin().enter_lazy(),
            _ => {}
        }
    }

    fn run(self, system: &System<1>, cpu: &Cpu<'_, 1>) {
        if self.starts_active() {
            assert_ne!(cpu.touch(0), Touch::Stale);
        }
        if !matches!(self, Self::GoOnline | Self::EnterKernel) {
            assert_ne!(cpu.touch_kernel(0), Touch::Stale);
        }
        match self {
            Self::FirstSwitch | Self::Switch | Self::SwitchBack | Self::Resume => {
                switch(cpu, &system.a);
                assert_ne!(cpu.touch(0), Touch::Stale);
            }
            Self::ResumeAndIdle => {
                // Returns `false` if the space has been retired.
                if cpu.pin().resume(system.a.id()) {
                    cpu.speculate();
                    cpu.pin().enter_lazy();
                }
            }
            Self::EnterLazy => cpu.pin().enter_lazy(),
            Self::SwitchAway | Self::SwitchAwayFromLazy => switch(cpu, &system.b),
            Self::Leave | Self::LeaveFromLazy => cpu.pin().leave_space(),
            Self::TakeInterrupt => {
                cpu.interrupt_point();
                assert_ne!(cpu.touch(0), Touch::Stale);
            }
            Self::TakeInterruptWhileLazy => cpu.interrupt_point(),
            Self::StopAndReturn => {
                cpu.stop();
                cpu.resume();
                assert_ne!(cpu.touch(0), Touch::Stale);
            }
            Self::StopAndReturnWhileLazy => {
                cpu.stop();
                cpu.resume();
            }
            Self::Poll | Self::PollFromLazy => cpu.pin().handle_flush_ipi(),
            // The CPUs that were rung answer by the end of `run`.
            Self::Flush => std::mem::forget(system.unmap(cpu, 1)),
            Self::FlushKernel => {
                system.machine().unmap_kernel(1);
                std::mem::forget(cpu.pin().flush_kernel(page_at(1)));
            }
            Self::Trim => {
                cpu.pin().trim_cpumask(&system.a);
            }
            Self::GoOffline | Self::GoOfflineFromLazy => return cpu.pin().offline(),
            Self::Stop | Self::StopWhileLazy => return stop(system, cpu),
            Self::EnterUser => return cpu.pin().enter_user(),
            Self::EnterKernel => cpu.pin().enter_kernel(),
            Self::GoOnline => {
                cpu.pin().online();
                assert_ne!(cpu.touch_kernel(0), Touch::Stale);
                switch(cpu, &system.a);
                assert_ne!(cpu.touch(0), Touch::Stale);
            }
        }
        assert_ne!(cpu.touch_kernel(0), Touch::Stale);
        cpu.speculate();
    }
}

/// Memory that CPU 0 frees when its operation is done.
#[derive(Clone, Copy)]
enum Freed {
    Page,
    KernelPage,
    Tables,
    /// The page tables that were in quarantine when the space was retired, if it is reclaimed.
    Space,
}

/// A flush that CPU 0 has sent, and the memory that it frees when the flush is done.
struct SentOperation<'e> {
    sent: Sent<'e>,
    frees: &'static [Freed],
}

enum Sent<'e> {
    Flush(Pending<'e, Machine<1>>),
    Batch(SentBatch<'e, 'e, Machine<1>, &'e Space<Machine<1>>, Vec<usize>, 2>),
    Reap(Reaping<'e, Machine<1>>),
}

impl<'e> SentOperation<'e> {
    const fn flush(pending: Pending<'e, Machine<1>>, frees: &'static [Freed]) -> Self {
        Self { sent: Sent::Flush(pending), frees }
    }

    /// Frees the memory if the flush is done. Returns `self` otherwise.
    fn try_finish(mut self, system: &System<1>) -> Option<Self> {
        let is_done = match &mut self.sent {
            Sent::Flush(pending) => pending.poll(),
            Sent::Batch(batch) => batch.poll(),
            Sent::Reap(reaping) => reaping.poll(),
        };
        if !is_done {
            return Some(self);
        }
        drop(self.sent);
        for freed in self.frees {
            freed.free(system);
        }
        None
    }
}

impl Freed {
    fn free(self, system: &System<1>) {
        let machine = system.machine();
        match self {
            Self::Page => machine.free(&system.a, 0),
            Self::KernelPage => machine.free_kernel(0),
            Self::Tables => machine.free_tables(&system.a),
            Self::Space => {
                if !machine.take_reclaimed().is_empty() {
                    machine.free_tables(&system.a);
                }
            }
        }
    }
}

/// Unhooks page tables of `a` and sends a flush for which they are quarantined. Returns the flush,
/// its number, and the number up to which tables can be freed.
fn unhook_tables<'e>(system: &System<1>, cpu: &Cpu<'e, 1>) -> (Pending<'e, Machine<1>>, u64, u64) {
    system.machine().unhook_tables(&system.a);
    let mut extents = ExtentSet::new();
    extents.add(page_at(0).freeing_tables());
    let pending = cpu.pin().flush_gathered(&system.a, &extents);
    let horizon = pending.horizon();
    (pending, horizon.flush(), horizon.cleared())
}

/// Runs the operation on CPU 0, which frees memory as soon as the flush is done, while CPU 1 runs
/// the action.
fn run(operation: Operation, action: Action, config: Config) {
    let cpus = if action.stops() { SURVIVOR + 1 } else { config.cpus };
    let system = System::<1>::new(Config { is_guest: action.is_stopped(), cpus, ..config });
    if action.stops() {
        system.cpu(SURVIVOR).pin().offline();
    }
    action.prepare(&system, &system.cpu(1));
    operation.prepare(&system);
    let unfinished = system.race(
        move |system, cpu| action.run(system, cpu),
        |cpu| operation.run(&system, cpu).try_finish(&system),
    );
    if !action.goes_offline() {
        system.cpu(1).interrupt_point();
    }
    // The rest is on CPU 0, which must complete its broadcast.
    system.cpu(0).interrupt_point();
    let _ = system.cpu(0).pin();
    if let Some(sent) = unfinished.and_then(|sent| sent.try_finish(&system)) {
        // A drop would wait.
        std::mem::forget(sent);
        panic!("no CPU is left to answer");
    }
    let cpu = system.cpu(1);
    if action.goes_offline() {
        cpu.pin().online();
    }
    if action == Action::EnterUser {
        cpu.pin().enter_kernel();
    }
    cpu.speculate();
    assert_ne!(cpu.touch_kernel(0), Touch::Stale);
    if operation.ends_space() {
        cpu.pin().leave_space();
        assert!(system.machine().take_reclaimed().len() <= 1);
    } else {
        switch(&cpu, &system.a);
        assert_ne!(cpu.touch(0), Touch::Stale);
        cpu.speculate();
    }
    assert_eq!(system.machine().freed_table_walks(), 0);
    assert_eq!(system.machine().stale_nmis(), 0);
}

/// One half of the pairs of operations and actions. An operation has its actions in both halves in
/// turn, and so has an action its operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Half {
    First,
    Second,
}

/// Searches of half of all pairs of an operation and an action, with witnesses and up to two
/// preemptions. Under `cargo xtask soak`, of all pairs, with and without witnesses, and with up to
/// three preemptions, which take minutes.
///
/// The two taggings with broadcasts or global tags have one half each, and so have the other two.
/// So every pair is searched with two taggings.
fn searches(half: Half, config: Config) -> Vec<NamedSearch> {
    let kinds: &[_] = if soaking() {
        &[Search::Bounded(3), Search::Witnessed(3)]
    } else {
        &[Search::Witnessed(2)]
    };
    let mut searches = Vec::new();
    let halves = [Half::First, Half::Second];
    for (index, operation) in Operation::ALL.into_iter().enumerate() {
        let halves = (0..2).cycle().skip(index % 2).map(|half| halves[half]);
        let actions = Action::ALL.into_iter().zip(halves).filter(|(action, its)| {
            (*its == half || soaking()) && (!operation.ends_space() || action.stays_lazy())
        });
        for (action, _) in actions {
            for &search in kinds {
                let program = move || run(operation, action, config);
                searches.push(NamedSearch::new((operation, action), search, program));
            }
        }
    }
    searches
}

#[test]
fn every_operation_passes_with_tags_per_cpu() {
    assert_all_pass(searches(Half::First, Config::default()));
}

#[test]
fn every_operation_passes_with_broadcasts() {
    assert_all_pass(searches(Half::First, Config::default().with_broadcasts(6)));
}

#[test]
fn every_operation_passes_with_global_tags() {
    let config = Config { broadcast: None, ..Config::default().with_broadcasts(6) };
    assert_all_pass(searches(Half::Second, config));
}

#[test]
fn every_operation_passes_with_renamed_tags() {
    let config = Config { tagging: Tagging::Renamed, tags: 3, ..Config::default() };
    assert_all_pass(searches(Half::Second, config));
}

/// CPUs answer before they invalidate pages, and take an NMI in between.
#[test]
fn every_operation_passes_with_early_answers() {
    let config = Config { answers: Answers::EarlyWithNmis, ..Config::default() };
    let actions = [
        Action::TakeInterrupt,
        Action::Poll,
        Action::Flush,
        Action::StopAndReturn,
        Action::SwitchAway,
        Action::GoOffline,
    ];
    assert_all_pass(searches_of(actions, config));
}

/// The actions against broadcasts of other kinds than to every CPU.
const AGAINST_BROADCASTS: [Action; 6] = [
    Action::TakeInterrupt,
    Action::Resume,
    Action::SwitchBack,
    Action::SwitchAway,
    Action::GoOffline,
    Action::GoOnline,
];

/// The machine refuses each broadcast.
#[test]
fn every_operation_passes_with_refused_broadcasts() {
    let config = Config { refuses_each: 1, ..Config::default().with_broadcasts(6) };
    assert_all_pass(searches_of(AGAINST_BROADCASTS, config));
}

/// Broadcasts reach the CPUs that are present, and no other CPU.
#[test]
fn every_operation_passes_with_broadcasts_in_domains() {
    assert_all_pass(searches_of(AGAINST_BROADCASTS, Config::default().with_domains(6)));
}

/// Searches of these actions with each operation that does not end the space.
fn searches_of(actions: [Action; 6], config: Config) -> Vec<NamedSearch> {
    let search = if soaking() { Search::Witnessed(3) } else { Search::Witnessed(2) };
    let operations = Operation::ALL.into_iter().filter(|operation| !operation.ends_space());
    let pairs = operations.flat_map(|operation| actions.map(|action| (operation, action)));
    let named = |(operation, action)| {
        NamedSearch::new((operation, action), search, move || run(operation, action, config))
    };
    pairs.map(named).collect()
}

/// Shows that the matrix detects the removal of rules: without each of these, one combination
/// fails.
#[test]
fn matrix_fails_without_each_of_these_rules() {
    let broadcasts = Config::default().with_broadcasts(6);
    let early = Config { answers: Answers::EarlyWithNmis, ..Config::default() };
    let default = Config::default();
    let cases = [
        (Rule::LeaveOnlineRelease, Operation::Kernel, Action::GoOffline, default),
        (Rule::OnlineSync, Operation::KernelAndPage, Action::GoOnline, default),
        (Rule::EnterUserRelease, Operation::Kernel, Action::EnterUser, default),
        (Rule::EnterKernelFence, Operation::Kernel, Action::EnterKernel, default),
        (Rule::LeaveRelease, Operation::Batch, Action::SwitchAway, default),
        (Rule::CountUnflushed, Operation::Reuse, Action::Resume, default),
        (Rule::SwitchFence, Operation::Page, Action::SwitchBack, default),
        (Rule::ResumeFence, Operation::Page, Action::Resume, default),
        (Rule::RingLazy, Operation::Tables, Action::TakeInterruptWhileLazy, default),
        (Rule::QuarantineTables, Operation::QuarantinedTables, Action::LeaveFromLazy, default),
        (Rule::InterruptWalkers, Operation::FlushWalkers, Action::PollFromLazy, default),
        (Rule::HazardRelease, Operation::Retire, Action::TakeInterruptWhileLazy, default),
        (Rule::OrphanRelease, Operation::Reap, Action::TakeInterruptWhileLazy, default),
        (Rule::CompleteBroadcasts, Operation::Page, Action::TakeInterrupt, broadcasts),
        (Rule::StopRelease, Operation::Kernel, Action::StopAndReturn, default),
        (Rule::ReturnAcquire, Operation::Page, Action::StopAndReturn, default),
        (Rule::LeaveOnlineRelease, Operation::Kernel, Action::Stop, default),
        (Rule::AnswerTablesLate, Operation::Tables, Action::TakeInterrupt, early),
        (Rule::DenyNmi, Operation::Page, Action::TakeInterrupt, early),
        (Rule::HazardRelease, Operation::QuarantinedTables, Action::StopWhileLazy, default),
    ];
    let mut undetected = Vec::new();
    for (rule, operation, action, config) in cases {
        let config = Config { broken: Some(rule), ..config };
        let result = explore(Search::Witnessed(2), move || run(operation, action, config));
        println!("{operation:?} against {action:?} without {rule:?}: {result:?}");
        if result.is_ok() {
            undetected.push(rule);
        }
    }
    assert_eq!(undetected, []);
}
