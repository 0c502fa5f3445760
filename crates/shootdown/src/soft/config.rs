//! Size and properties of a software machine.

use core::panic::Location;

use crate::base::costs::NotifyCosts;
use crate::base::rules::Rule;
use crate::state::broadcaster::Reach;
use crate::state::machine::Tagging;

/// Size and properties of a [`Soft`](super::Soft) machine.
#[derive(Clone, Copy, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "properties of hardware that do not exclude others"
)]
pub struct Config {
    /// Number of CPUs.
    pub cpus: u32,
    /// Number of page tables, each for one space at a time.
    pub tables: usize,
    /// Number of pages of 4 KiB that each table maps, from address 0 on.
    pub pages: usize,
    /// Number of tags: at most 6 if they are per CPU, and below 64 if they are global or renamed.
    pub tags: usize,
    /// The way in which spaces get tags.
    pub tagging: Tagging,
    /// The CPUs that a broadcast reaches; `None` if the machine cannot broadcast.
    pub broadcast: Option<Reach>,
    /// Number of domains, which are CPUs, that a broadcast names at most. Only with
    /// [`Reach::Domains`], under which a broadcast to every CPU costs 1 ns, and one in domains 0.
    pub domains_max: usize,
    /// See [`Broadcast::completes_at_issue`](crate::Broadcast::completes_at_issue).
    pub completes_at_issue: bool,
    /// Number of broadcasts of which the machine refuses the last, again and again; 0 for never.
    pub refuses_each: u64,
    /// The costs of notifying other CPUs, from which the engine chooses how to do it.
    pub costs: NotifyCosts,
    /// Number of reads of [`costs`](Self::costs) after which the costs of interrupts and broadcasts
    /// are swapped, again and again; 0 for never.
    pub costs_swap_after: u64,
    /// `true` if a hypervisor may [stop](super::OnCpu::stop) CPUs, so that flushes ask for CPUs
    /// that are [away](crate::Machine::is_away).
    pub is_guest: bool,
    /// See [`Machine::traps_stale_writes`](crate::Machine::traps_stale_writes).
    pub traps_stale_writes: bool,
    /// See [`Machine::tolerates_mixed_sizes`](crate::Machine::tolerates_mixed_sizes).
    pub tolerates_mixed_sizes: bool,
    /// `true` if the device completes no command before it is
    /// [released](super::Soft::release_device).
    pub holds_device: bool,
    /// When a CPU that is interrupted answers.
    pub answers: Answers,
    /// See [`Machine::catch_up_ceiling`](crate::Machine::catch_up_ceiling). The default is 33, not
    /// 8, because a CPU that drops a whole tag hides a mistake in catching up.
    pub catch_up_ceiling: usize,
    /// A page of the kernel that CPUs [use on entry](crate::Machine::is_used_on_entry).
    pub entry_page: Option<usize>,
    /// A rule that the engine breaks on this machine; `None` for none.
    pub broken: Option<Rule>,
    /// A rule that the engine breaks at one place of its source only; `None` for none.
    pub broken_site: Option<Site>,
    /// A function that is called at each place that follows a rule, for tests that list these
    /// places.
    pub note_site: Option<fn(Site)>,
}

/// When a CPU that is interrupted answers: see
/// [`Machine::answers_early`](crate::Machine::answers_early).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// After it has invalidated.
    Late,
    /// Before it invalidates pages, if no page table was freed.
    Early,
    /// As `Early`. The CPU takes an NMI before each invalidation of pages, which touches all pages
    /// of the loaded space, if [it may](crate::Shootdown::nmi_may_touch_user).
    EarlyWithNmis,
}

/// A place in the engine's source that follows a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Site {
    /// The rule.
    pub rule: Rule,
    /// The place that names the rule.
    pub location: &'static Location<'static>,
}

impl Default for Config {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Config {
    /// Two CPUs, two page tables of four pages, six tags for each CPU, nothing broken.
    pub const DEFAULT: Self = Self {
        cpus: 2,
        tables: 2,
        pages: 4,
        tags: 6,
        tagging: Tagging::PerCpu,
        broadcast: None,
        domains_max: 2,
        completes_at_issue: false,
        refuses_each: 0,
        costs: NotifyCosts {
            interrupt_ns: 1,
            interrupt_each_ns: 0,
            broadcast_ns: 0,
            broadcast_each_ns: 0,
            operation_ns: 0,
        },
        costs_swap_after: 0,
        is_guest: false,
        traps_stale_writes: true,
        tolerates_mixed_sizes: false,
        holds_device: false,
        answers: Answers::Late,
        catch_up_ceiling: 33,
        entry_page: None,
        broken: None,
        broken_site: None,
        note_site: None,
    };

    /// This machine, with `tags` global tags, and broadcasts that reach every CPU at no cost.
    #[must_use]
    pub const fn with_broadcasts(self, tags: usize) -> Self {
        Self { tags, tagging: Tagging::Global, broadcast: Some(Reach::Everyone), ..self }
    }

    /// This machine, with `tags` global tags, and broadcasts that reach up to two CPUs alone, as
    /// domains, or every CPU.
    #[must_use]
    pub const fn with_domains(self, tags: usize) -> Self {
        let costs = NotifyCosts { broadcast_ns: 1, interrupt_ns: 9, ..self.costs };
        Self { broadcast: Some(Reach::Domains), costs, ..self.with_broadcasts(tags) }
    }
}
