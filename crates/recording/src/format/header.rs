//! What a file says before and after its records.

use serde::{Deserialize, Serialize};

use super::records::kinds;
use super::rules::Invalid;
use super::schema::{Kind, Treatment, treatments};
use super::{CPUS_MAX, HEADER_BYTES_MAX};

/// Where a recording comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The program that made it, and its version.
    pub recorder: String,
    /// What that read the events from.
    pub source: Source,
    /// The release of the kernel, such as `6.18.44`.
    pub kernel: String,
    /// The processor's name.
    pub processor: String,
    /// How many CPUs there are: 1 to [`CPUS_MAX`].
    pub cpus: u32,
    /// The recorded command and its arguments.
    pub command: Vec<String>,
}

/// What events were read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The ring buffers of the running kernel.
    Tracefs,
    /// The text of `trace-cmd report`.
    TraceCmd,
    /// The text of `perf script`.
    PerfScript,
}

/// What all records amount to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// How many records there are, those included that a reader skips.
    pub records: u64,
    /// How many events were lost, as far as anybody knows.
    pub lost: u64,
    /// The last record's time.
    pub time_ns: u64,
    /// How the recording ended.
    pub ended: Ended,
}

/// How a recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// The command did, with this status.
    Exited(i32),
    /// The command was killed by this signal.
    Signalled(i32),
    /// The recording was stopped while the command still ran.
    Interrupted,
}

/// A file's header, as JSON.
#[derive(Serialize, Deserialize)]
struct Document {
    recording: Header,
    kinds: Vec<Kind>,
}

/// The header as JSON, unless a reader would refuse it.
pub(super) fn to_json(header: &Header) -> Result<Vec<u8>, Invalid> {
    check(header)?;
    let document = Document { recording: header.clone(), kinds: kinds() };
    let json = serde_json::to_vec(&document).map_err(invalid)?;
    if json.len() > HEADER_BYTES_MAX { Err(Invalid::LongHeader) } else { Ok(json) }
}

/// The header, and what to do with each kind of records.
pub(super) fn of_json(json: &[u8]) -> Result<(Header, Vec<Treatment>), Invalid> {
    let document: Document = serde_json::from_slice(json).map_err(invalid)?;
    check(&document.recording)?;
    Ok((document.recording, treatments(document.kinds)?))
}

/// The parser's own words would quote the file, with whatever control characters it has.
fn invalid(error: serde_json::Error) -> Invalid {
    Invalid::Header { column: error.column() }
}

fn check(header: &Header) -> Result<(), Invalid> {
    match header.cpus {
        1..=CPUS_MAX => Ok(()),
        cpus => Err(Invalid::Cpus(cpus)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::tests::samples;

    #[test]
    fn a_header_is_read_as_it_was_written() {
        let header = samples::header(3);
        assert_eq!(of_json(&to_json(&header).unwrap()).unwrap().0, header);
    }

    #[test]
    fn a_header_without_cpus_or_with_too_many_is_refused_on_both_sides() {
        for cpus in [0, CPUS_MAX + 1, u32::MAX] {
            let header = samples::header(cpus);
            assert_eq!(to_json(&header), Err(Invalid::Cpus(cpus)));
            let json = serde_json::to_vec(&Document { recording: header, kinds: kinds() });
            assert_eq!(of_json(&json.unwrap()).unwrap_err(), Invalid::Cpus(cpus));
        }
        assert!(to_json(&samples::header(CPUS_MAX)).is_ok());
    }

    #[test]
    fn a_command_that_is_too_long_for_a_header_is_refused() {
        let command = vec!["x".repeat(HEADER_BYTES_MAX)];
        let header = Header { command, ..samples::header(1) };
        assert_eq!(to_json(&header), Err(Invalid::LongHeader));
    }

    #[test]
    fn what_is_wrong_with_a_header_is_told_without_quoting_it() {
        let error = of_json(br#"{"recording":{"recorder":"r","source":"\u001b[2J"}}"#).unwrap_err();
        assert_eq!(error.to_string(), "the header has an error in column 49");
        assert!(matches!(of_json(b"[[["), Err(Invalid::Header { .. })));
        assert!(matches!(of_json(&[b'['; 1 << 16]), Err(Invalid::Header { .. })));
    }
}
