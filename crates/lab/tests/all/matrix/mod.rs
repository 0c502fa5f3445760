//! The engine against the newest Linux of each architecture: on every machine, with 2 to 192 CPUs
//! and with both kinds of tags, it sends no more interrupts and takes no more time, except for the
//! cases in [`NAMED`].

use core::ops::RangeInclusive;

use shootdown_designs::Design;
use shootdown_run::Classes;

use crate::common::is_soak;
use crate::designs::machine;
use load::{Cost, Load};
use named::{AMD, ARM, ICE_LAKE, LAPTOP, NAMED, POWER, RISC_V, XEON, named};

mod load;
mod named;

pub(crate) use load::loops;

/// The names of the cases of all loops together: see [`Place::check`].
const ALL: &str = "all loops";
const WAITS: &str = "waits";
/// The names of the cases of [`rate_has_no_step_between_sizes`].
const STEPS: [&str; 2] = ["page-discards step", "file-discards step"];

/// A machine of the matrix, and the newest Linux for it.
struct Place {
    machine: &'static str,
    cpus: usize,
    linux: Design,
}

/// The largest time, relative to Linux.
const TIME_MAX: f64 = 1.01;

impl Place {
    fn of(machine: &'static str, cpus: usize) -> Self {
        let linux = match machine {
            AMD => Design::LINUX_INVLPGB,
            ARM => Design::ARM64,
            RISC_V => Design::RISCV,
            POWER => Design::POWERPC_SHOOT,
            _ => Design::LINUX_7_0,
        };
        Self { machine, cpus, linux }
    }

    /// The CPUs of the small machines, all cases of which CI runs.
    const SMALL: usize = 8;

    /// Returns `true` if CI runs a case. On large machines, CI runs the cases on both sides of each
    /// number of CPUs at which something changes: the words of CPU sets, the slots of flushes, the
    /// sockets, and, where all CPUs share tags, their allocator.
    fn is_in_ci(&self, workload: &str) -> bool {
        let is_tagged_by_cpu = self.linux == Design::LINUX_7_0;
        match workload {
            _ if self.cpus <= Self::SMALL => {
                let is_crowd = self.cpus < Self::SMALL && Self::is_crowd(workload);
                (self.machine, self.cpus) != (LAPTOP, 4) && !is_crowd
            }
            "page-discards" => is_tagged_by_cpu,
            "file-discards" => is_tagged_by_cpu && matches!(self.cpus, 64 | 66 | 72),
            "process-starts" => !is_tagged_by_cpu || self.cpus == 96,
            "thread-starts" | "fork-server" => self.cpus == 32,
            "fork-of-threads" => matches!(self.cpus, 64 | 128),
            _ => false,
        }
    }

    /// Returns `true` if interrupts are compared. Where the hardware or the firmware flushes other
    /// CPUs, Linux sends none, and only the time is compared.
    fn interrupts_count(&self) -> bool {
        let machine = machine(self.machine, self.cpus);
        machine.broadcast.is_none() && machine.remote_fence.is_none()
    }

    /// Returns `true` for a loop with the largest number of tasks for each CPU.
    fn is_crowd(workload: &str) -> bool {
        workload.ends_with("-x8")
    }

    /// Returns the number of seeds over which a case is summed.
    ///
    /// A simulation is chaotic where threads compete: the waiting threads, the idle CPU that is
    /// found, and the depth of its sleep depend on nanoseconds. Threads that only wake each other
    /// differ by 4 % over three seeds, and by 0.4 % over 24. A few threads that take turns at one
    /// lock synchronise, either with or without sleep. The two patterns differ by 30 % and last for
    /// the whole run.
    fn seeds(&self, workload: &str) -> u64 {
        match workload {
            _ if Self::is_crowd(workload) => 1,
            name if name.starts_with("mmap") && self.cpus <= 4 => 48,
            name if name.starts_with("context-switch") && self.cpus <= 64 => 12,
            _ if self.cpus <= 64 => 3,
            _ => 1,
        }
    }

    /// Returns the costs of a case under Linux and the engine, over the seeds from `from` on.
    fn add(&self, load: &Load, seeds: RangeInclusive<u64>, costs: &mut [Cost; 2]) {
        let machine = machine(self.machine, self.cpus);
        for seed in seeds {
            for (design, cost) in [self.linux, Design::SHOOTDOWN].into_iter().zip(&mut *costs) {
                load.run(&machine, design, seed, cost);
            }
        }
    }

    /// Returns the costs of a case, and whether the engine is worse. The allowance is one interrupt
    /// in a hundred, and two per CPU and seed for the start, when CPUs have not learned yet to
    /// announce kernel entries. A case that seems to take little more time than it may is decided
    /// by four times as many seeds.
    fn costs(&self, name: &str, load: &Load) -> ([Cost; 2], bool) {
        let mut costs = [Cost::default(), Cost::default()];
        let mut seeds = self.seeds(name);
        self.add(load, 1..=seeds, &mut costs);
        let ratio = |[linux, ours]: &[Cost; 2]| ours.time / linux.time;
        if (TIME_MAX..1.1).contains(&ratio(&costs)) {
            self.add(load, seeds + 1..=4 * seeds, &mut costs);
            seeds *= 4;
        }
        let [linux, ours] = &costs;
        let most = linux.interrupts + linux.interrupts / 100 + 2 * seeds * self.cpus as u64;
        let is_worse =
            self.interrupts_count() && ours.interrupts > most || ratio(&costs) > TIME_MAX;
        println!(
            "{:.4} {name} on {} CPUs of {}: sends {} against {}, bound {}, in vain {}; 99 % of \
             waits end within {} against {} ns{}",
            ratio(&costs),
            self.cpus,
            self.machine,
            ours.interrupts,
            linux.interrupts,
            ours.counts.bound(),
            ours.counts.interrupts_in_vain,
            ours.waits.quantile(0.99).ns(),
            linux.waits.quantile(0.99).ns(),
            if is_worse { "; WORSE" } else { "" },
        );
        (costs, is_worse)
    }

    /// Asserts that the engine is worse than Linux in the named cases alone. On up to 64 CPUs with
    /// tags of their own, two more cases are all loops with one and two tasks for each CPU
    /// together: [`ALL`] is worse if the engine sends more interrupts, or takes more time in the
    /// geometric mean; [`WAITS`] is worse if 99 % of all waits end later.
    fn check(&self) {
        let mut wrong = Vec::new();
        let (mut results, mut log_sum, mut loops) = (Vec::new(), 0.0, 0);
        let (mut all, mut is_whole) = ([Cost::default(), Cost::default()], true);
        for (name, load) in Load::all(self.cpus) {
            if !is_soak() && !self.is_in_ci(&name) {
                is_whole &= Self::is_crowd(&name);
                continue;
            }
            let (costs, is_worse) = self.costs(&name, &load);
            let is_named = named(self.machine, self.cpus, &name).is_some();
            if matches!(load, Load::Loop(_)) && !Self::is_crowd(&name) && !is_named {
                log_sum += (costs[1].time / costs[0].time).ln();
                loops += 1;
                for (all, cost) in all.iter_mut().zip(costs) {
                    all.interrupts += cost.interrupts;
                    all.counts += cost.counts;
                    all.waits.add(&cost.waits);
                }
            }
            results.push((name, is_worse));
        }
        let [linux, ours] = &all;
        let place = format!("{} CPUs of {}", self.cpus, self.machine);
        let classes = Classes::from(&ours.counts);
        println!("{loops} loops on {place}: {} interrupts; {classes:?}", ours.interrupts);
        let percentiles = [ours, linux].map(|cost| cost.waits.quantile(0.99));
        println!("99 % of waits on {place}, and under Linux: {percentiles:?}");
        if is_whole && self.cpus <= 64 && self.linux == Design::LINUX_7_0 {
            let more = self.interrupts_count() && ours.interrupts > linux.interrupts;
            results.push((ALL.to_owned(), log_sum > 0.0 || more));
            results.push((WAITS.to_owned(), percentiles[0] > percentiles[1]));
        }
        for (name, is_worse) in results {
            let named = named(self.machine, self.cpus, &name).map(|named| named.reason);
            match (is_worse, named) {
                (true, None) => wrong.push(format!("{name} is worse, and not in `NAMED`")),
                (false, Some(reason)) => wrong.push(format!("{name} is not worse: {reason}")),
                _ => {}
            }
        }
        assert!(wrong.is_empty(), "on {place}: {wrong:#?}");
    }
}

macro_rules! places {
    ($($name:ident: $machine:expr, $cpus:literal;)*) => {
        /// All machines of the matrix.
        const PLACES: &[(&str, usize)] = &[$(($machine, $cpus)),*];
        $(#[test] fn $name() { Place::of($machine, $cpus).check(); })*
    };
}

places! {
    no_worse_on_2_virtual_cpus: LAPTOP, 2;
    no_worse_on_4_virtual_cpus: LAPTOP, 4;
    no_worse_on_2_cpus: XEON, 2;
    no_worse_on_4_cpus: XEON, 4;
    no_worse_on_8_cpus: XEON, 8;
    no_worse_on_16_cpus: XEON, 16;
    no_worse_on_32_cpus: XEON, 32;
    no_worse_on_64_cpus: XEON, 64;
    no_worse_on_65_cpus: XEON, 65;
    no_worse_on_66_cpus: XEON, 66;
    no_worse_on_72_cpus: XEON, 72;
    no_worse_on_96_cpus: XEON, 96;
    no_worse_on_128_cpus: ICE_LAKE, 128;
    no_worse_on_32_cpus_with_invlpgb: AMD, 32;
    no_worse_on_36_cpus_with_invlpgb: AMD, 36;
    no_worse_on_128_cpus_with_invlpgb: AMD, 128;
    no_worse_on_128_cpus_of_arm64: ARM, 128;
    no_worse_on_64_cpus_of_risc_v: RISC_V, 64;
    no_worse_on_192_cpus_of_power8: POWER, 192;
}

/// From one number of CPUs to the next, the engine's rate falls by at most a tenth.
#[test]
fn rate_has_no_step_between_sizes() {
    const SIZES: [usize; 4] = [64, 65, 66, 72];
    let mut wrong = Vec::new();
    for step in STEPS {
        let workload = step.trim_end_matches(" step");
        let rate = |cpus| {
            let (mut cost, machine) = (Cost::default(), machine(XEON, cpus));
            let load = Load::all(cpus).into_iter().find(|(name, _)| name == workload).unwrap().1;
            (1..=3).for_each(|seed| load.run(&machine, Design::SHOOTDOWN, seed, &mut cost));
            1.0 / cost.time
        };
        for (cpus, rates) in SIZES[1..].iter().zip(SIZES.map(rate).windows(2)) {
            let part = rates[1] / rates[0];
            println!("{step} to {cpus} CPUs: {part:.3}");
            if (part < 0.9) != named(XEON, *cpus, step).is_some() {
                wrong.push((step, *cpus, part));
            }
        }
    }
    assert!(wrong.is_empty(), "in `NAMED` and no step, or the reverse: {wrong:?}");
}

/// A case that is renamed would leave a name without a case.
#[test]
fn every_named_case_is_in_the_matrix() {
    for named in NAMED {
        let is_place = |&&(machine, cpus): &&(&str, usize)| {
            machine == named.machine && named.cpus.contains(&cpus)
        };
        let places: Vec<_> = PLACES.iter().filter(is_place).collect();
        let has = |cpus, workload| {
            [ALL, WAITS].contains(&workload)
                || STEPS.contains(&workload)
                || Load::all(cpus).iter().any(|(name, _)| name == workload)
        };
        let has_all =
            |&&(_, cpus): &&(&str, usize)| named.workloads.iter().all(|name| has(cpus, *name));
        assert!(
            !places.is_empty() && places.iter().all(has_all),
            "{:?} on {:?} CPUs of {}: {}",
            named.workloads,
            named.cpus,
            named.machine,
            named.reason
        );
    }
}
