//! The cells of a sweep on the cores of this host.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::rows::{Rows, Shard};
use super::{Sweep, SweepError};
use crate::error::CannotRun;
use crate::progress;

/// A run of the cells of a sweep that have no row yet.
#[derive(Debug)]
pub(crate) struct Local<'s> {
    pub(crate) sweep: &'s Sweep,
    pub(crate) shard: Shard,
    /// Number of cores, or 0 for all.
    pub(crate) jobs: usize,
}

/// The reason why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Every cell has a row.
    Complete,
    /// A signal asked to stop. The field is the number of cells without a row.
    Stopped(usize),
}

/// The time between two lines of progress, if standard error is not a terminal.
const PERIOD: Duration = Duration::from_secs(30);

/// The file and the progress, which one thread at a time writes.
struct Written<'r> {
    rows: &'r mut Rows,
    failure: Option<SweepError>,
    done: usize,
    errors: usize,
    printed: Instant,
}

impl Local<'_> {
    /// Runs the cells. `rows` gets each row as soon as its cell is finished.
    ///
    /// # Errors
    ///
    /// If the file cannot be written to, or the host cannot start a thread.
    pub(crate) fn run(&self, rows: &mut Rows) -> Result<End, SweepError> {
        let pending = rows.missing_of(self.shard);
        let (total, stop) = (pending.len(), stop_flag()?);
        let bar = progress::bar(
            Some(total as u64),
            "{wide_bar} {human_pos} of {human_len} cells, {elapsed}, about {eta} left{msg}",
        );
        bar.enable_steady_tick(progress::PERIOD);
        let written = Mutex::new(Written {
            rows,
            failure: None,
            done: 0,
            errors: 0,
            printed: Instant::now(),
        });
        let (next, start) = (Mutex::new(pending.into_iter()), Instant::now());
        let work = |_: rayon::BroadcastContext<'_>| {
            while !stop.load(Relaxed) {
                // In the order of cells, so that what is missing after a stop is at the end.
                let Some(cell) = locked(&next).next() else { return };
                let row = self.sweep.run(cell);
                let mut written = locked(&written);
                match row.and_then(|row| written.write(cell, &row)) {
                    Ok(()) => written.report(&bar, total, start),
                    Err(error) => {
                        written.failure.get_or_insert(error);
                        stop.store(true, Relaxed);
                    }
                }
            }
        };
        let pool = rayon::ThreadPoolBuilder::new().num_threads(self.jobs).build();
        let no_threads =
            |error| CannotRun::new(format!("no threads: {error}"), "use fewer threads with --jobs");
        pool.map_err(no_threads)?.broadcast(work);
        bar.finish_and_clear();
        let written = written.into_inner().unwrap_or_else(PoisonError::into_inner);
        match written.failure {
            Some(failure) => Err(failure),
            None if written.done < total => Ok(End::Stopped(total - written.done)),
            None => Ok(End::Complete),
        }
    }
}

impl Written<'_> {
    fn write(&mut self, cell: u64, row: &str) -> Result<(), SweepError> {
        self.rows.append(cell, row)?;
        self.done += 1;
        // A simulation that fails has this as its last member.
        self.errors += usize::from(row.contains(",\"error\":"));
        Ok(())
    }

    fn report(&mut self, bar: &ProgressBar, total: usize, start: Instant) {
        bar.inc(1);
        if self.errors > 0 {
            bar.set_message(format!(", {} errors", self.errors));
        }
        if bar.is_hidden() && self.printed.elapsed() >= PERIOD {
            self.printed = Instant::now();
            let elapsed = start.elapsed();
            let left = elapsed.mul_f64((total - self.done) as f64 / self.done as f64);
            eprintln!(
                "{} of {total} cells, {} errors, {} s, about {} s left",
                self.done,
                self.errors,
                elapsed.as_secs(),
                left.as_secs(),
            );
        }
    }
}

/// Returns a flag that the first signal to stop sets. The second such signal ends the process.
fn stop_flag() -> Result<Arc<AtomicBool>, CannotRun> {
    let failed = |error: io::Error| {
        CannotRun::new(format!("signals: {error}"), "report this with the version of the kernel")
    };
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        let second = i32::from(crate::error::INTERRUPTED);
        signal_hook::flag::register_conditional_shutdown(signal, second, Arc::clone(&flag))
            .map_err(failed)?;
        signal_hook::flag::register(signal, Arc::clone(&flag)).map_err(failed)?;
    }
    Ok(flag)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic of a cell is caught in the cell, so the contents are whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
