//! What a replay found, as JSON has it. The schema is stable: fields may be added, none changes.

use clap::ValueEnum;
use serde::Serialize;
use shootdown_designs::Design;
use shootdown_run::Outcome;
use shootdown_run::replay::KernelCounts;
use shootdown_sim::{Counts, FlushWaits};

use crate::error::Violations;
use crate::render::{displayed, duration, grouped, significant};

/// What decides which thread runs where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Schedule {
    /// The recorded kernel's: every step on its recorded CPU, in the recorded order
    Recorded,
    /// The simulated machine's, which may have other CPUs
    Simulated,
}

impl Schedule {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Recorded => "recorded",
            Self::Simulated => "simulated",
        }
    }

    /// The number of runs, if the user wants that many: one of a recorded schedule, which leaves
    /// nothing to chance.
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
    /// The recording's file.
    pub(crate) trace: String,
    /// The machine that it was replayed on.
    pub(crate) machine: String,
    /// Where random numbers began; those of the recorded schedule are none.
    pub(crate) seed: u64,
    pub(crate) designs: Vec<DesignRow>,
    /// What the recorded kernel really did.
    pub(crate) kernel: Kernel,
    /// How `linux-7.0` compares with it.
    pub(crate) fidelity: Fidelity,
    pub(crate) schedule: Schedule,
    /// How many runs the numbers are the mean of; waits are those of all of them, and violations
    /// and hazards their sum.
    pub(crate) runs: u32,
    /// What was recorded.
    pub(crate) recording: Recording,
}

/// What a design did.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct DesignRow {
    #[serde(serialize_with = "displayed")]
    pub(crate) design: Design,
    /// From the recording's first event to the end of its last.
    pub(crate) time_ns: u64,
    pub(crate) ipis_sent: u64,
    /// How often a CPU was told without an interrupt of its own.
    pub(crate) ipis_coalesced: u64,
    pub(crate) ipis_to_lazy: u64,
    pub(crate) ipis_to_absent: u64,
    /// Flushes of a whole tag, other than `flushes_at_switch`.
    pub(crate) flushes_full: u64,
    /// Flushes of single pages, other than `flushes_at_switch`.
    pub(crate) flushes_ranged: u64,
    pub(crate) pages_invalidated: u64,
    pub(crate) tlb_refills: u64,
    pub(crate) switches: u64,
    pub(crate) switches_without_flush: u64,
    /// From the beginning of a flush to the end of waiting for it.
    pub(crate) shootdown_wait_ns: Wait,
    /// What all CPUs together spent in flush interrupts.
    pub(crate) interrupted_ns: u64,
    pub(crate) violations: u64,
    pub(crate) hazards: u64,
    /// Flushes, of either kind, by a CPU that loads a space or comes back to one: what it missed
    /// meanwhile, or a tag that another space had.
    pub(crate) flushes_at_switch: u64,
    /// The standard error of `time_ns`, where that is a mean; else 0.
    pub(crate) time_error_ns: u64,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Wait {
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) max: u64,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Kernel {
    pub(crate) ipis_sent: u64,
    pub(crate) flushes_full: u64,
    pub(crate) flushes_ranged: u64,
}

/// What `linux-7.0` did, divided by what the kernel did; `None` if it was not asked, or if the
/// kernel did nothing of the kind and it did.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Fidelity {
    pub(crate) ipis_ratio: Option<f64>,
    pub(crate) flushes_ratio: Option<f64>,
}

/// What was recorded.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Recording {
    pub(crate) command: Vec<String>,
    pub(crate) kernel: String,
    pub(crate) processor: String,
    pub(crate) cpus: u32,
    pub(crate) threads: usize,
    pub(crate) spaces: usize,
    pub(crate) records: u64,
    pub(crate) lost: u64,
    pub(crate) time_ns: u64,
    pub(crate) faults: u64,
    pub(crate) calls: u64,
    /// Flush interrupts to the program's CPUs that none of its threads asked for.
    pub(crate) ipis_by_others: u64,
}

impl Verdict {
    /// The engine's row and that of today's Linux, if both are there.
    pub(crate) fn ours_and_linux(&self) -> Option<(&DesignRow, &DesignRow)> {
        let row = |design| self.designs.iter().find(|row| row.design == design);
        Some((row(Design::SHOOTDOWN)?, row(Design::LINUX_7_0)?))
    }

    /// Fails if this engine let a dead translation be used.
    pub(crate) fn violated(&self) -> Result<(), Violations> {
        let is_ours = |row: &&DesignRow| row.design.name().starts_with("shootdown");
        let ours = self.designs.iter().filter(is_ours);
        Violations::none_in(ours.map(|row| row.violations))
    }
}

impl DesignRow {
    /// Of one or more runs.
    pub(crate) fn mean(design: Design, outcomes: &[Outcome]) -> Self {
        let runs = outcomes.len().max(1) as u64;
        let sum = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
        // Rounded to the nearest number.
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
            ipis_to_absent: count(|counts| counts.interrupts_to_absent),
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
        }
    }

    pub(crate) const fn flushes(&self) -> u64 {
        self.flushes_full + self.flushes_ranged
    }
}

impl Kernel {
    pub(crate) const fn new(counts: &KernelCounts) -> Self {
        Self {
            ipis_sent: counts.interrupts_sent,
            flushes_full: counts.flushes_full,
            flushes_ranged: counts.flushes_ranged,
        }
    }

    pub(crate) const fn flushes(&self) -> u64 {
        self.flushes_full + self.flushes_ranged
    }
}

impl Fidelity {
    /// Only a replay in the recorded order on the recorded CPUs can be held against the kernel.
    pub(crate) fn new(schedule: Schedule, designs: &[DesignRow], kernel: &Kernel) -> Self {
        let linux = designs
            .iter()
            .find(|row| schedule == Schedule::Recorded && row.design == Design::LINUX_7_0);
        Self {
            ipis_ratio: linux.and_then(|row| ratio(row.ipis_sent, kernel.ipis_sent)),
            flushes_ratio: linux.and_then(|row| ratio(row.flushes(), kernel.flushes())),
        }
    }
}

/// The standard error of the mean of times.
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

/// How the engine compares with today's Linux, in a sentence that begins with its name.
pub(crate) fn sentence(ours: &DesignRow, linux: &DesignRow) -> String {
    let interrupts = if ours.ipis_sent == linux.ipis_sent {
        format!("sends as many interrupts as linux-7.0 ({})", grouped(ours.ipis_sent))
    } else {
        let change = percent(linux.ipis_sent, ours.ipis_sent);
        let way = if change < 0.0 { "fewer" } else { "more" };
        format!(
            "sends {} interrupts where linux-7.0 sends {} ({} % {way})",
            grouped(ours.ipis_sent),
            grouped(linux.ipis_sent),
            significant(change.abs()),
        )
    };
    let safety = match ours.violations {
        0 => "never lets a dead translation be used".to_owned(),
        violations => format!("lets {} dead translations be used", grouped(violations)),
    };
    format!("shootdown {interrupts}, {}, and {safety}.", time(ours, linux))
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

/// Up to how much two times differ by chance: two standard errors, so that one difference in twenty
/// is taken for one that is none. Zero if nothing was left to chance.
pub(crate) fn chance_ns(ours: &DesignRow, linux: &DesignRow) -> u64 {
    (2.0 * (ours.time_error_ns as f64).hypot(linux.time_error_ns as f64)) as u64
}

/// From one to the other; all of it if there was nothing.
pub(crate) fn percent(from: u64, to: u64) -> f64 {
    (to as f64 - from as f64) / from.max(1) as f64 * 100.0
}

fn ratio(predicted: u64, real: u64) -> Option<f64> {
    match (predicted, real) {
        (0, 0) => Some(1.0),
        (_, 0) => None,
        _ => Some(predicted as f64 / real as f64),
    }
}
