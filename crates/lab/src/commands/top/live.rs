//! The recording that is being written, analysed record by record.

use std::collections::HashMap;
use std::fs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shootdown_explain::{Analysis, Analyst, Costs, Explanation, Remedies, Suffered, Sum};
use shootdown_recording::raw::Tid;
use shootdown_recording::record::{FlushReason, SpaceId};
use shootdown_recording::{Event, Header, Observer, Record};

use super::sums::{Key, Process, Site, Sums};
use crate::commands::explain::{caller, shown_frame};
use crate::commands::record::Watch;

/// An analysis that the writing thread extends, and the thread of the display reads.
#[derive(Clone, Debug, Default)]
pub(super) struct Live(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// `None` before the recording begins.
    analyst: Option<Analyst>,
    processes: HashMap<SpaceId, Process>,
    /// The recorded name of the first thread of each space.
    names: HashMap<SpaceId, String>,
}

impl Watch for Live {
    fn begin(&mut self, header: &Header) -> Observer {
        self.state().analyst = Some(Analyst::new(header.clone(), Costs::MODEL));
        let live = self.clone();
        Observer::new(move |record, thread| live.state().record(record, thread))
    }
}

impl Live {
    /// Returns `true` after the recording has begun.
    pub(super) fn has_begun(&self) -> bool {
        self.state().analyst.is_some()
    }

    /// Returns the sums of all flushes so far, by process and call site.
    pub(super) fn sums(&self, remedies: &Remedies) -> Sums {
        let state = self.state();
        match &state.analyst {
            None => Sums::default(),
            Some(analyst) => sums(analyst.so_far(), &state.processes, remedies),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn record(&mut self, record: &Record, thread: Option<Tid>) {
        let Some(analyst) = &mut self.analyst else { return };
        match &record.event {
            Event::Task { space, name, .. }
            | Event::Spawn { space, name, .. }
            | Event::Exec { space, name } => {
                self.names.entry(*space).or_insert_with(|| name.clone());
            }
            Event::Flush { reason: FlushReason::Request, .. } => {
                if let Some(space) = analyst.space_on(record.cpu)
                    && let Some(Tid(thread)) = thread
                {
                    // A process is looked up at its first flush, when it probably lives.
                    let process = self.processes.entry(space);
                    process.or_insert_with(|| process_of(thread, self.names.get(&space)));
                }
            }
            _ => {}
        }
        analyst.record(record);
    }
}

/// Returns the process of a thread. If it has ended, its number is the thread's, and its name the
/// recorded one.
fn process_of(thread: u32, recorded: Option<&String>) -> Process {
    let read = |path: String| fs::read_to_string(path).unwrap_or_default();
    let status = read(format!("/proc/{thread}/status"));
    let number = status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok());
    let pid = number.unwrap_or(thread);
    let name = match read(format!("/proc/{pid}/comm")).trim_end() {
        "" => recorded.cloned().unwrap_or_default(),
        name => name.to_owned(),
    };
    Process { pid, name }
}

fn sums(analysis: &Analysis, processes: &HashMap<SpaceId, Process>, remedies: &Remedies) -> Sums {
    let costs = Costs::MODEL;
    let explanation = Explanation::of(analysis, costs);
    let mut by_site: HashMap<(Option<SpaceId>, usize), Sum> = HashMap::new();
    for (flush, site) in explanation.flushes(analysis) {
        by_site.entry((flush.space, site)).or_default().add(flush, costs);
    }
    let mut sums = Sums { lost: analysis.lost, ..Sums::default() };
    for ((space, index), sum) in by_site {
        let process = space.and_then(|space| processes.get(&space).cloned()).unwrap_or_default();
        let site = &explanation.sites[index];
        let cause = analysis.causes.name(site.cause).to_owned();
        let frames = site.frames.iter().map(shown_frame).collect();
        let key = Key { process, site: Site { cause: cause.clone(), frames } };
        sums.add(key, sum, || {
            let advice = remedies.of(&cause, &site.frames);
            (
                caller(&site.frames).map(shown_frame),
                advice.first().map(|remedy| remedy.change.clone()),
            )
        });
    }
    // Other programs have rows of their own if they are selected.
    for Suffered { cause, sender, sum, .. } in explanation.suffered.iter().filter(|it| it.is_kernel)
    {
        let name = sender.clone().unwrap_or_else(|| "kernel".to_owned());
        let process = Process { pid: 0, name };
        let cause = analysis.causes.name(*cause).to_owned();
        let key = Key { process, site: Site { cause, frames: Vec::new() } };
        sums.add(key, *sum, || (None, None));
    }
    sums
}
