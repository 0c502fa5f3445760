//! `shootdown export`: the TLB shootdowns of all programs as OpenMetrics, for Prometheus.
//!
//! In reading order: `tally` sums flushes by cause and control group, `metrics` is their text, and
//! `server` answers requests for it.

mod metrics;
mod server;
mod tally;

use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;

use crate::commands::record::{Flushes, RecordError, Signals, StopRequest};
use crate::error::{Failure, bad_input, cannot_run, user_errors};
use crate::selection;

use tally::{Tally, cgroup};

pub(crate) const EXAMPLES: &str = include_str!("../../../help/export.txt").trim_ascii_end();

/// The options of `shootdown export`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Export {
    /// The address and the port at which the metrics are read
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9785")]
    listen: SocketAddr,
    /// The largest number of call stacks per second and CPU, which tell causes apart
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    stack_rate: u32,
    /// Stop after this time: 10s, 500ms, 2m
    #[arg(long, value_name = "TIME", value_parser = selection::parse_time)]
    duration: Option<Duration>,
}

impl Export {
    /// Answers requests until the user ends this.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let listener = TcpListener::bind(self.listen)
            .map_err(|error| ExportError::Address { address: self.listen, error })?;
        let system = |error| ExportError::Record(RecordError::System { what: "metrics", error });
        let address = listener.local_addr().map_err(system)?;
        let mut signals = Signals::listen().map_err(system)?;
        let flushes = Flushes::start(self.stack_rate).map_err(ExportError::Record)?;
        let tally = Arc::new(Mutex::new(Tally::default()));
        server::start(listener, Arc::clone(&tally)).map_err(system)?;
        // If standard error is closed, only the note is lost.
        let _ = writeln!(io::stderr(), "metrics: http://{address}/metrics");
        let end = self.duration.map(|time| Instant::now() + time);
        let watched = flushes.watch(|event| match event {
            Some(event) => {
                let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
                tally.add(event, cgroup);
                true
            }
            None => {
                let is_over = end.is_some_and(|end| Instant::now() >= end);
                !is_over && signals.stop_request() == StopRequest::None
            }
        });
        Ok(watched.map_err(ExportError::Record)?)
    }
}

user_errors! {
    #[derive(Debug, thiserror::Error)]
    enum ExportError {
        #[error("{address}: {error}")]
        Address { address: SocketAddr, error: io::Error } =>
            bad_input("choose a free address with --listen ADDRESS:PORT"),
        #[error(transparent)]
        Record(error: RecordError) => cannot_run(error.help().remedy),
    }
}
