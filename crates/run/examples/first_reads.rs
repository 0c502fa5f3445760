//! What it costs and saves to give an anonymous page that is first read a page of its own: for each
//! recording that is named, the interrupts and the pages of three policies, without and with upper
//! page tables for each CPU.
//!
//! ```text
//! cargo run --release -p shootdown-run --example first_reads -- traces/*.shootdown
//! ```

#![expect(clippy::print_stdout, reason = "an example prints")]

use std::error::Error;
use std::fs::File;

use shootdown_designs::Engine;
use shootdown_designs::engine::POLICY;
use shootdown_recording::Reader;
use shootdown_run::replay::{Survey, replay};
use shootdown_sim::Machine;
use shootdown_vm::{Policy, Replication, Stats, ZeroPage};

const FRAMES: usize = 1 << 20;

fn policies() -> impl Iterator<Item = (ZeroPage, Replication)> {
    let first_reads = [ZeroPage::Shared, ZeroPage::Predicted, ZeroPage::Separate];
    first_reads.into_iter().flat_map(|zero_page| {
        [Replication::Never, Replication::IfWorth].map(|replication| (zero_page, replication))
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    println!(
        "recording: first reads, replicas, interrupts, pages predicted, in vain, written after a \
         first read"
    );
    for path in std::env::args().skip(1) {
        let open = || Ok::<_, Box<dyn Error>>(Reader::open(File::open(&path)?)?);
        let survey = Survey::of(open()?, |_| {})?;
        for (zero_page, replication) in policies() {
            let text = include_str!("../../../machines/emerald-rapids-kvm.toml");
            let reader = open()?;
            let cpus = reader.header().cpus as usize;
            let machine = Machine::from_toml(text)?.with_cpus(cpus)?;
            let policy = Policy { zero_page, replication, ..POLICY };
            let design = |sim| Engine::<1>::new(sim).with_policy(policy);
            let outcome = replay(machine, FRAMES, reader, &survey, |_| {}, design)?;
            let Stats { predicted, predicted_in_vain, written_after_read, .. } = outcome.memory;
            println!(
                "{path}: {zero_page:?}, {replication:?}, {}, {predicted}, {predicted_in_vain}, \
                 {written_after_read}",
                outcome.counts.interrupts_sent
            );
        }
    }
    Ok(())
}
