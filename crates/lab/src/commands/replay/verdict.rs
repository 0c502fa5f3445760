//! The result of a replay. Its serialisation is the JSON output.
//!
//! The schema is stable: fields may be added, and no field changes.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use shootdown_designs::Design;
use shootdown_recording::Header;
use shootdown_run::replay::KernelCounts;
use shootdown_run::{Classes, MemoryCosts, Outcome};
use shootdown_sim::{Counts, FlushWaits, TimeByCause};

use super::fidelity::Fidelity;
use crate::error::{Help, UserError, Violations, found, shown};
use crate::render::{displayed, duration, grouped, significant};

/// The schedule of a replay, which decides the CPU and the order of the threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Schedule {
    /// The recorded schedule: every step on its recorded CPU, in the recorded order
    Recorded,
    /// The schedule of the simulated machine, which may have another number of CPUs
    Simulated,
}

impl Schedule {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Recorded => "recorded",
            Self::Simulated => "simulated",
        }
    }

    /// Returns the number of runs, if the user asked for `wanted`. A recorded schedule has one run,
    /// because it has no random choices.
    pub(super) const fn runs(self, wanted: u32) -> u32 {
        match self {
            Self::Recorded => 1,
            Self::Simulated => wanted,
        }
    }
}

/// A recording, replayed under several designs.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Verdict {
    /// The machine of the replay.
    pub(crate) machine: String,
    /// The number of CPUs of that machine.
    pub(crate) machine_cpus: usize,
    /// The seed of random numbers. The recorded schedule uses none.
    pub(crate) seed: u64,
    pub(crate) designs: Vec<DesignRow>,
    /// The counts of the recorded kernel.
    pub(crate) kernel: Kernel,
    /// The counts of the closest model of Linux, divided by those of the recorded kernel.
    pub(crate) fidelity: Fidelity,
    pub(crate) schedule: Schedule,
    /// Number of runs. The numbers of a design are means over the runs, but waits are taken from
    /// all runs, and violations and hazards are sums.
    pub(crate) runs: u32,
    pub(crate) recording: Recording,
}

/// The counts and times of a design.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct DesignRow {
    #[serde(serialize_with = "displayed")]
    pub(crate) design: Design,
    /// Time from the first event of the recording to the end of its last event.
    pub(crate) time_ns: u64,
    pub(crate) ipis_sent: u64,
    /// Number of flush requests to a CPU that needed no interrupt of their own, because an earlier
    /// interrupt was already on its way.
    pub(crate) ipis_coalesced: u64,
    pub(crate) ipis_to_lazy: u64,
    pub(crate) ipis_to_non_users: u64,
    /// Number of flushes of a whole tag, other than `flushes_at_switch`.
    pub(crate) flushes_full: u64,
    /// Number of flushes of single pages, other than `flushes_at_switch`.
    pub(crate) flushes_ranged: u64,
    pub(crate) pages_invalidated: u64,
    pub(crate) tlb_refills: u64,
    pub(crate) switches: u64,
    pub(crate) switches_without_flush: u64,
    /// Time from the start of a flush to the end of the wait for it.
    pub(crate) shootdown_wait_ns: Wait,
    /// Time that all CPUs together spent in flush interrupts.
    pub(crate) interrupted_ns: u64,
    pub(crate) violations: u64,
    pub(crate) hazards: u64,
    /// Number of flushes of either kind by a CPU that loads an address space: it catches up with
    /// missed flushes, or reuses a tag of another address space.
    pub(crate) flushes_at_switch: u64,
    /// The standard error of `time_ns` if that is a mean over several runs; otherwise 0.
    pub(crate) time_error_ns: u64,
    /// Number of steps of the recording that had no effect, because the replay lacked their task or
    /// their address space.
    pub(crate) steps_dropped: u64,
    /// Number of flushes that the memory manager requested.
    pub(crate) requests: u64,
    /// The classes of the interrupts. A recording has the first access to each page and no other,
    /// so useful interrupts are counted as early where only later accesses would show their use.
    #[serde(flatten)]
    pub(crate) classes: Classes,
    /// The time of all CPUs together by its cause. The sum is `time_ns` for each CPU.
    pub(crate) time_by_cause: TimeByCause,
    /// The pages that were discarded in place.
    #[serde(flatten)]
    pub(crate) memory_costs: MemoryCosts,
    /// Number of requests for a lock that another thread had.
    pub(crate) lock_waits: u64,
    /// Time that threads slept for locks.
    pub(crate) lock_sleep_ns: u64,
}

/// Quantiles of the time that flushes were waited for, in nanoseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Wait {
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) max: u64,
}

/// The counts of the recorded kernel.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Kernel {
    /// Requests to flush a CPU, one for each target, with or without an interrupt of their own.
    /// `None` if the recording lacks them.
    pub(crate) requests: Option<u64>,
    pub(crate) ipis_sent: u64,
    pub(crate) flushes_full: u64,
    pub(crate) flushes_ranged: u64,
}

/// The recording of a replay.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Recording {
    /// The path that the user gave.
    pub(crate) file: String,
    #[serde(flatten)]
    pub(crate) header: Header,
    pub(crate) threads: usize,
    pub(crate) spaces: usize,
    pub(crate) records: u64,
    pub(crate) lost: u64,
    /// The reason why only the beginning of the recording was read, if the file is damaged.
    pub(crate) cut: Option<String>,
    pub(crate) time_ns: u64,
    pub(crate) faults: u64,
    pub(crate) calls: u64,
    /// Number of flush interrupts to CPUs of the program that none of its threads requested.
    pub(crate) ipis_by_others: u64,
    /// Number of calls and faults on CPUs where, according to the recording, no thread of the
    /// program ran.
    pub(crate) unattributed: u64,
    /// The part of the program's time in which two threads of a space ran at once, from 0 to 1.
    pub(crate) parallel_share: f64,
    /// Median of the times from a request to the flush of its target; `None` without requests.
    pub(crate) delivery_ns: Option<u64>,
}

/// The part of the program's time below which its threads hardly ran at once.
const HARDLY: f64 = 0.10;

/// A replay that accounts for less than the program did.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {shortfall}", shown(.file))]
pub(crate) struct Unaccounted {
    file: String,
    pub(crate) shortfall: Shortfall,
}

/// The part that a replay lacks.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Shortfall {
    /// The file is damaged, for this reason.
    #[error("{0}: only the part before was replayed")]
    Cut(String),
    #[error("{} recorded operations were not replayed", grouped(*.0))]
    Dropped(u64),
    #[error("the replay does not repeat the recorded flushes")]
    Flushes,
}

impl UserError for Unaccounted {
    fn help(&self) -> Help {
        found(match self.shortfall {
            Shortfall::Cut(_) => "use these counts for that part only, or record the program again",
            Shortfall::Dropped(_) | Shortfall::Flushes => {
                "do not use these counts: record the program again, from its start, with \
                 `shootdown record`"
            }
        })
    }
}

impl Recording {
    /// Returns `true` if the program has threads to interrupt, but hardly ever ran two at once.
    pub(crate) fn is_hardly_parallel(&self) -> bool {
        self.threads > self.spaces && self.parallel_share < HARDLY
    }
}

impl Verdict {
    /// Returns the rows of shootdown and of `linux-7.0`, if both were replayed.
    pub(crate) fn ours_and_linux(&self) -> Option<(&DesignRow, &DesignRow)> {
        let row = |design| self.designs.iter().find(|row| row.design == design);
        Some((row(Design::SHOOTDOWN)?, row(Design::LINUX_7_0)?))
    }

    /// Fails if the replay accounts for less than the recording contains.
    pub(crate) fn accounted(&self) -> Result<(), Unaccounted> {
        let dropped = self.designs.iter().map(|row| row.steps_dropped).max().unwrap_or(0);
        let lacking = dropped.saturating_add(self.recording.unattributed);
        let shortfall = if let Some(cut) = &self.recording.cut {
            Shortfall::Cut(cut.clone())
        } else if lacking > 0 {
            Shortfall::Dropped(lacking)
        } else if self.fidelity.is_unusable() {
            Shortfall::Flushes
        } else {
            return Ok(());
        };
        Err(Unaccounted { file: self.recording.file.clone(), shortfall })
    }

    /// Fails if a translation was used after its flush under shootdown.
    pub(crate) fn violated(&self) -> Result<(), Violations> {
        let is_ours = |row: &&DesignRow| row.design.name().starts_with("shootdown");
        let ours = self.designs.iter().filter(is_ours);
        Violations::none_in(ours.map(|row| row.violations))
    }
}

impl DesignRow {
    /// Returns the means over one or more runs.
    pub(crate) fn mean(design: Design, outcomes: &[Outcome]) -> Self {
        let runs = outcomes.len().max(1) as u64;
        let sum = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
        // Means are rounded to the nearest number.
        let mean = |sum: u64| (sum + runs / 2) / runs;
        let count =
            |of: fn(&Counts) -> u64| mean(outcomes.iter().map(|outcome| of(&outcome.counts)).sum());
        let mut waits = FlushWaits::default();
        for outcome in outcomes {
            waits.add(&outcome.waits);
        }
        Self {
            design,
            time_ns: mean(sum(|outcome| outcome.time.ns())),
            ipis_sent: count(|counts| counts.interrupts_sent),
            ipis_coalesced: count(|counts| counts.interrupts_coalesced),
            ipis_to_lazy: count(|counts| counts.interrupts_to_lazy),
            ipis_to_non_users: count(|counts| counts.interrupts_to_absent),
            flushes_full: count(|counts| counts.flushes_full - counts.flushes_full_at_switch),
            flushes_ranged: count(|counts| counts.flushes_ranged - counts.flushes_ranged_at_switch),
            pages_invalidated: count(|counts| counts.pages_invalidated),
            tlb_refills: count(|counts| counts.walks),
            switches: count(|counts| counts.switches),
            switches_without_flush: count(|counts| {
                counts.switches.saturating_sub(counts.flushes_full_at_switch)
            }),
            shootdown_wait_ns: Wait {
                p50: waits.quantile(0.5).ns(),
                p99: waits.quantile(0.99).ns(),
                max: waits.max().ns(),
            },
            interrupted_ns: count(|counts| counts.interrupted.ns()),
            violations: sum(|outcome| outcome.violations),
            hazards: sum(|outcome| outcome.hazards),
            flushes_at_switch: count(|counts| {
                counts.flushes_full_at_switch + counts.flushes_ranged_at_switch
            }),
            time_error_ns: time_error_ns(outcomes),
            steps_dropped: sum(|outcome| outcome.dropped_steps),
            requests: count(Counts::requests),
            classes: Classes::mean(&outcomes.iter().map(|it| it.counts).collect::<Vec<_>>()),
            memory_costs: MemoryCosts::mean(
                &outcomes.iter().map(MemoryCosts::from).collect::<Vec<_>>(),
            ),
            time_by_cause: outcomes
                .iter()
                .flat_map(|outcome| &outcome.causes)
                .sum::<TimeByCause>()
                .mean(runs),
            lock_waits: count(|counts| counts.lock_waits),
            lock_sleep_ns: count(|counts| counts.lock_sleep.ns()),
        }
    }

    pub(crate) const fn flushes(&self) -> u64 {
        self.flushes_full + self.flushes_ranged
    }
}

impl Kernel {
    pub(crate) const fn new(counts: &KernelCounts) -> Self {
        Self {
            requests: counts.requests,
            ipis_sent: counts.interrupts_sent,
            flushes_full: counts.flushes_full,
            flushes_ranged: counts.flushes_ranged,
        }
    }

    pub(crate) const fn flushes(&self) -> u64 {
        self.flushes_full + self.flushes_ranged
    }
}

/// Returns the standard error of the mean time, or 0 for a single run.
fn time_error_ns(outcomes: &[Outcome]) -> u64 {
    let count = outcomes.len() as f64;
    if outcomes.len() < 2 {
        return 0;
    }
    let times = || outcomes.iter().map(|outcome| outcome.time.ns() as f64);
    let mean = times().sum::<f64>() / count;
    let variance = times().map(|time| (time - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (variance / count).sqrt().round() as u64
}

/// Returns a comparison of shootdown with `linux-7.0`, as sentences that begin with `shootdown`.
pub(crate) fn sentence(ours: &DesignRow, linux: &DesignRow) -> String {
    let interrupts = if ours.ipis_sent == linux.ipis_sent {
        format!("sends as many interrupts as linux-7.0 ({})", grouped(ours.ipis_sent))
    } else {
        let change = percent(linux.ipis_sent, ours.ipis_sent);
        let direction = if change < 0.0 { "fewer" } else { "more" };
        format!(
            "sends {} interrupts instead of the {} of linux-7.0 ({} % {direction})",
            grouped(ours.ipis_sent),
            grouped(linux.ipis_sent),
            significant(change.abs()),
        )
    };
    let violations = match [ours.violations, linux.violations] {
        [0, 0] => "no violations under either design".to_owned(),
        violations => {
            let [ours, linux] = violations.map(grouped);
            format!("{ours} violations under shootdown and {linux} under linux-7.0")
        }
    };
    let time = time(ours, linux);
    format!("shootdown {interrupts} and {time}. The simulator counted {violations}.")
}

/// Returns the simulated time that shootdown saves, in percent of the time under `linux-7.0`. If
/// the difference is within chance, the result is that chance.
pub(crate) fn saved(ours: &DesignRow, linux: &DesignRow) -> String {
    let chance_ns = chance_ns(ours, linux);
    if chance_ns > 0 && ours.time_ns.abs_diff(linux.time_ns) <= chance_ns {
        return format!("± {:.2} %", percent(linux.time_ns, linux.time_ns + chance_ns));
    }
    // A difference that rounds to 0 is printed without a sign.
    match -percent(linux.time_ns, ours.time_ns) {
        -0.005..0.005 => "0.00 %".to_owned(),
        saved => format!("{saved:.2} %"),
    }
}

fn time(ours: &DesignRow, linux: &DesignRow) -> String {
    let change = percent(linux.time_ns, ours.time_ns);
    let difference_ns = ours.time_ns.abs_diff(linux.time_ns);
    let difference = duration(difference_ns);
    let chance_ns = chance_ns(ours, linux);
    if chance_ns > 0 && difference_ns <= chance_ns {
        return format!("takes the same time (± {})", duration(chance_ns));
    }
    match change {
        -0.005..0.005 => format!("takes the same time (within {difference})"),
        ..0.0 => format!("takes {difference} less ({:.2} %)", -change),
        _ => format!("takes {difference} longer ({change:.2} %)"),
    }
}

/// Returns the difference of the two times that can be chance: two standard errors, which chance
/// exceeds once in twenty comparisons. The result is 0 if there were no random choices.
fn chance_ns(ours: &DesignRow, linux: &DesignRow) -> u64 {
    (2.0 * (ours.time_error_ns as f64).hypot(linux.time_error_ns as f64)) as u64
}

/// Returns the change from `from` to `to`, in percent of `from`. If `from` is 0, it counts as 1.
fn percent(from: u64, to: u64) -> f64 {
    (to as f64 - from as f64) / from.max(1) as f64 * 100.0
}
