//! Every role of a CPU that flushes, against everything that another CPU does at the same time.
//!
//! [`programs`](crate::programs) shows that each rule is needed. This matrix asks the converse
//! question, whether the rules suffice: it needs no idea of what could go wrong, and it found the
//! ordering that is now [`LeaveOnlineRelease`](shootdown::Rule::LeaveOnlineRelease).

use shootdown::soft::{Config, Touch};
use shootdown::{Batch, ExtentSet, Pending, Reaping, Rule, SentBatch, Space, StaleWrites, Tagging};

use crate::ends::retire;
use crate::system::{Cpu, Machine, System, page_at, switch};
use crate::{Named, Search, all_right, explore, soaking};

/// What CPU 0 does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Flushes a page.
    Page,
    /// Flushes a page of the kernel.
    Kernel,
    /// Flushes a page of the kernel, then a page of the space, and joins the two.
    KernelAndPage,
    /// Frees page tables, for which lazy CPUs are notified.
    Tables,
    /// Frees page tables, which are held back while lazy CPUs can walk them.
    TablesHeldBack,
    /// The same, and then forces lazy CPUs to drop them.
    FlushWalkers,
    /// Takes a page in a batch.
    Batch,
    /// Retires the space, some of whose page tables are held back.
    Retire,
    /// Reaps the space, which it has retired before.
    Reap,
}

/// What CPU 1 does at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Switches in for the first time.
    FirstSwitch,
    /// Switches in again, from the kernel's page table, with a tag that still holds the page.
    Switch,
    /// The same, from another space.
    SwitchBack,
    /// Comes back from lazy.
    Resume,
    /// Comes back from lazy, and goes lazy again.
    ResumeAndIdle,
    /// Stops using the space.
    EnterLazy,
    /// Switches to another space.
    SwitchAway,
    /// The same, from lazy.
    SwitchAwayFromLazy,
    /// Loads the kernel's page table.
    Leave,
    /// The same, from lazy.
    LeaveFromLazy,
    /// Goes on using the space, and takes the interrupt.
    Answer,
    /// Takes the interrupt while it is lazy.
    AnswerFromLazy,
    /// Goes on using the space with interrupts masked, and polls its bell.
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
    /// The same, from lazy.
    GoOfflineFromLazy,
    /// Comes online, with a TLB that kept what it held, and switches in.
    GoOnline,
}

impl Role {
    const ALL: [Self; 9] = [
        Self::Page,
        Self::Kernel,
        Self::KernelAndPage,
        Self::Tables,
        Self::TablesHeldBack,
        Self::FlushWalkers,
        Self::Batch,
        Self::Retire,
        Self::Reap,
    ];

    /// Whether the space is at its end, and no CPU may use it any more.
    const fn ends_space(self) -> bool {
        matches!(self, Self::Retire | Self::Reap)
    }

    /// What CPU 0 has done before.
    fn prepare(self, system: &System<1>) {
        if !self.ends_space() {
            return;
        }
        let cpu = system.cpu(0);
        let _ = unhook_tables(system, &cpu).0.poll();
        if self == Self::Reap {
            retire(system, &cpu);
        }
        // A reason for CPU 1 to answer; CPU 0 does not wait.
        std::mem::forget(cpu.pin().flush_kernel(page_at(1)));
    }

    fn play<'s>(self, system: &'s System<1>, cpu: &Cpu<'s, 1>) -> Act<'s> {
        let machine = system.machine();
        match self {
            Self::Page => Act::flush(system.unmap(cpu, 0), &[Freed::Page]),
            Self::Kernel => Act::flush(unmap_kernel(system, cpu), &[Freed::KernelPage]),
            Self::KernelAndPage => {
                let mut pending = unmap_kernel(system, cpu);
                pending.join(system.unmap(cpu, 0));
                Act::flush(pending, &[Freed::KernelPage, Freed::Page])
            }
            Self::Tables => {
                machine.unhook_tables(&system.a);
                let extent = page_at(0).freeing_tables();
                Act::flush(cpu.pin().flush(&system.a, extent), &[Freed::Tables])
            }
            Self::TablesHeldBack => {
                let (pending, flush, cleared) = unhook_tables(system, cpu);
                Act::flush(pending, if cleared >= flush { &[Freed::Tables] } else { &[] })
            }
            Self::FlushWalkers => {
                let (mut pending, flush, cleared) = unhook_tables(system, cpu);
                let flushed = cpu.pin().flush_walkers(&system.a);
                let horizon = flushed.horizon();
                pending.join(flushed);
                let is_clear = cleared.max(horizon.cleared()) >= flush;
                Act::flush(pending, if is_clear { &[Freed::Tables] } else { &[] })
            }
            Self::Batch => {
                let batch = Box::leak(Box::new(Batch::new()));
                let entry = batch.space(machine, &&system.a).unwrap();
                assert!(machine.try_unmap(&system.a, 0));
                let _ = entry.unmapped(&cpu.pin(), page_at(0), StaleWrites::Impossible).poll();
                Act { sent: Sent::Batch(batch.send(&cpu.pin())), frees: &[Freed::Page] }
            }
            Self::Retire => {
                retire(system, cpu);
                Act::flush(Pending::done(&system.engine), &[Freed::Space])
            }
            Self::Reap => Act { sent: Sent::Reap(cpu.pin().reap()), frees: &[Freed::Space] },
        }
    }
}

impl Part {
    const ALL: [Self; 20] = [
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
        Self::Answer,
        Self::AnswerFromLazy,
        Self::Poll,
        Self::PollFromLazy,
        Self::Flush,
        Self::FlushKernel,
        Self::Trim,
        Self::GoOffline,
        Self::GoOfflineFromLazy,
        Self::GoOnline,
    ];

    /// Whether CPU 1 is lazy on the space at first, and does not use it again.
    const fn stays_lazy(self) -> bool {
        matches!(
            self,
            Self::ResumeAndIdle
                | Self::SwitchAwayFromLazy
                | Self::LeaveFromLazy
                | Self::AnswerFromLazy
                | Self::PollFromLazy
                | Self::GoOfflineFromLazy
        )
    }

    const fn starts_active(self) -> bool {
        matches!(
            self,
            Self::EnterLazy
                | Self::SwitchAway
                | Self::Leave
                | Self::Answer
                | Self::Poll
                | Self::GoOffline
        )
    }

    const fn goes_offline(self) -> bool {
        matches!(self, Self::GoOffline | Self::GoOfflineFromLazy)
    }

    /// What CPU 1 has done before.
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
            _ if self.stays_lazy() => cpu.pin().enter_lazy(),
            _ => {}
        }
    }

    fn play(self, system: &System<1>, cpu: &Cpu<'_, 1>) {
        if self.starts_active() {
            assert_ne!(cpu.touch(0), Touch::Stale);
        }
        if self != Self::GoOnline {
            assert_ne!(cpu.touch_kernel(0), Touch::Stale);
        }
        match self {
            Self::FirstSwitch | Self::Switch | Self::SwitchBack | Self::Resume => {
                switch(cpu, &system.a);
                assert_ne!(cpu.touch(0), Touch::Stale);
            }
            Self::ResumeAndIdle => {
                // Refused if the space is retired meanwhile.
                if cpu.pin().resume(system.a.id()) {
                    cpu.speculate();
                    cpu.pin().enter_lazy();
                }
            }
            Self::EnterLazy => cpu.pin().enter_lazy(),
            Self::SwitchAway | Self::SwitchAwayFromLazy => switch(cpu, &system.b),
            Self::Leave | Self::LeaveFromLazy => cpu.pin().leave_space(),
            Self::Answer => {
                cpu.interrupt_point();
                assert_ne!(cpu.touch(0), Touch::Stale);
            }
            Self::AnswerFromLazy => cpu.interrupt_point(),
            Self::Poll | Self::PollFromLazy => cpu.pin().handle_flush_ipi(),
            // A CPU that is rung answers in the end.
            Self::Flush => std::mem::forget(system.unmap(cpu, 1)),
            Self::FlushKernel => {
                system.machine().unmap_kernel(1);
                std::mem::forget(cpu.pin().flush_kernel(page_at(1)));
            }
            Self::Trim => {
                cpu.pin().trim_cpumask(&system.a);
            }
            Self::GoOffline | Self::GoOfflineFromLazy => return cpu.pin().offline(),
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

/// What may be freed when the act of CPU 0 is done.
#[derive(Clone, Copy)]
enum Freed {
    Page,
    KernelPage,
    Tables,
    /// The page tables that were held back when the space was retired, if it is reclaimed.
    Space,
}

/// What CPU 0 has sent, and what it frees then.
struct Act<'e> {
    sent: Sent<'e>,
    frees: &'static [Freed],
}

enum Sent<'e> {
    Flush(Pending<'e, Machine<1>>),
    Batch(SentBatch<'e, 'e, Machine<1>, &'e Space<Machine<1>>, Vec<usize>, 2>),
    Reap(Reaping<'e, Machine<1>>),
}

impl<'e> Act<'e> {
    const fn flush(pending: Pending<'e, Machine<1>>, frees: &'static [Freed]) -> Self {
        Self { sent: Sent::Flush(pending), frees }
    }

    /// Frees what the act covers, if it is done; gives it back if it is not.
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

/// Unmaps page 0 of the kernel and sends the flush.
fn unmap_kernel<'e>(system: &System<1>, cpu: &Cpu<'e, 1>) -> Pending<'e, Machine<1>> {
    system.machine().unmap_kernel(0);
    cpu.pin().flush_kernel(page_at(0))
}

/// Unhooks page tables of `a` and sends a flush that holds them back. Returns that, its number, and
/// up to which number tables can be freed.
fn unhook_tables<'e>(system: &System<1>, cpu: &Cpu<'e, 1>) -> (Pending<'e, Machine<1>>, u64, u64) {
    system.machine().unhook_tables(&system.a);
    let mut extents = ExtentSet::new();
    extents.add(page_at(0).freeing_tables());
    let pending = cpu.pin().flush_gathered(&system.a, &extents);
    let horizon = pending.horizon();
    (pending, horizon.flush(), horizon.cleared())
}

/// CPU 0 plays the role, and frees what it may as soon as it may, while CPU 1 plays the part.
fn play(role: Role, part: Part, config: Config) {
    let system = System::<1>::new(config);
    part.prepare(&system, &system.cpu(1));
    role.prepare(&system);
    let unfinished = system.race(
        move |system, cpu| part.play(system, cpu),
        |cpu| role.play(&system, cpu).try_finish(&system),
    );
    if !part.goes_offline() {
        system.cpu(1).interrupt_point();
    }
    // Where it was sent: a broadcast is completed there.
    system.cpu(0).interrupt_point();
    let _ = system.cpu(0).pin();
    if let Some(act) = unfinished.and_then(|act| act.try_finish(&system)) {
        // Dropping it would wait.
        std::mem::forget(act);
        panic!("nobody is left to answer");
    }
    let cpu = system.cpu(1);
    if part.goes_offline() {
        cpu.pin().online();
    }
    cpu.speculate();
    assert_ne!(cpu.touch_kernel(0), Touch::Stale);
    if role.ends_space() {
        cpu.pin().leave_space();
        assert!(system.machine().take_reclaimed().len() <= 1);
    } else {
        switch(&cpu, &system.a);
        assert_ne!(cpu.touch(0), Touch::Stale);
        cpu.speculate();
    }
    assert_eq!(system.machine().freed_table_walks(), 0);
}

/// Searches of every role against every part, with up to two preemptions; with three, which take
/// minutes, if there is time.
fn searches(config: Config) -> Vec<Named> {
    let preemptions = if soaking() { 3 } else { 2 };
    let mut searches = Vec::new();
    for role in Role::ALL {
        let parts = Part::ALL.into_iter().filter(|part| !role.ends_space() || part.stays_lazy());
        for part in parts {
            for search in [Search::Bounded(preemptions), Search::Witnessed(preemptions)] {
                let program = move || play(role, part, config);
                searches.push(Named::new((role, part), search, program));
            }
        }
    }
    searches
}

#[test]
fn every_role_is_right_with_tags_per_cpu() {
    all_right(searches(Config::default()));
}

#[test]
fn every_role_is_right_with_broadcasts() {
    all_right(searches(Config::default().with_broadcasts(6)));
}

#[test]
fn every_role_is_right_with_global_tags() {
    let config = Config { broadcast: None, ..Config::default().with_broadcasts(6) };
    all_right(searches(config));
}

#[test]
fn every_role_is_right_with_renamed_tags() {
    let config = Config { tagging: Tagging::Renamed, tags: 3, ..Config::default() };
    all_right(searches(config));
}

/// The matrix is no better than what it notices: each of these rules broken shows in one place.
#[test]
fn matrix_fails_without_each_of_these_rules() {
    let broadcasts = Config::default().with_broadcasts(6);
    let cases = [
        (Rule::LeaveOnlineRelease, Role::Kernel, Part::GoOffline, Config::default()),
        (Rule::OnlineSync, Role::KernelAndPage, Part::GoOnline, Config::default()),
        (Rule::LeaveRelease, Role::Batch, Part::SwitchAway, Config::default()),
        (Rule::SwitchFence, Role::Page, Part::SwitchBack, Config::default()),
        (Rule::ResumeFence, Role::Page, Part::Resume, Config::default()),
        (Rule::RingLazy, Role::Tables, Part::AnswerFromLazy, Config::default()),
        (Rule::QuarantineTables, Role::TablesHeldBack, Part::LeaveFromLazy, Config::default()),
        (Rule::InterruptWalkers, Role::FlushWalkers, Part::PollFromLazy, Config::default()),
        (Rule::HazardRelease, Role::Retire, Part::AnswerFromLazy, Config::default()),
        (Rule::OrphanRelease, Role::Reap, Part::AnswerFromLazy, Config::default()),
        (Rule::CompleteBroadcasts, Role::Page, Part::Answer, broadcasts),
    ];
    let mut unnoticed = Vec::new();
    for (rule, role, part, config) in cases {
        let config = Config { broken: Some(rule), ..config };
        let result = explore(Search::Witnessed(2), move || play(role, part, config));
        println!("{role:?} against {part:?} without {rule:?}: {result:?}");
        if result.is_ok() {
            unnoticed.push(rule);
        }
    }
    assert_eq!(unnoticed, []);
}
