//! The parts of a file before and after its records.

use serde::{Deserialize, Serialize};

use super::records::kinds;
use super::rules::Invalid;
use super::schema::{Kind, Treatment, treatments};
use super::{CPUS_MAX, HEADER_BYTES_MAX};

/// The origin of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The program that wrote the recording, and its version.
    pub recorder: String,
    /// The source that the recorder read events from.
    pub source: Source,
    /// The release of the kernel, such as `6.18.44`.
    pub kernel: String,
    /// Name of the processor.
    pub processor: String,
    /// Number of CPUs: 1 to [`CPUS_MAX`].
    pub cpus: u32,
    /// The recorded command and its arguments.
    pub command: Vec<String>,
}

/// A source of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The ring buffers of the running kernel.
    #[default]
    Tracefs,
    /// The text of `trace-cmd report`.
    TraceCmd,
    /// The text of `perf script`.
    PerfScript,
}

/// A summary of all records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Number of records, including those of kinds that a reader skips.
    pub records: u64,
    /// Number of lost events, as far as they were counted.
    pub lost: u64,
    /// Time of the last record, in nanoseconds since the recording began.
    pub time_ns: u64,
    /// The reason why the recording ended.
    pub ended: Ended,
}

/// The reason why a recording ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// The command exited with this status.
    Exited(i32),
    /// The command was killed by this signal.
    Signalled(i32),
    /// The recording was stopped while the command still ran.
    #[default]
    Interrupted,
}

/// The header of a file, as JSON.
#[derive(Serialize, Deserialize)]
struct Document {
    recording: Header,
    kinds: Vec<Kind>,
}

/// Encodes the header as JSON. Fails if a reader would refuse the header.
pub(super) fn to_json(header: &Header) -> Result<Vec<u8>, Invalid> {
    check(header)?;
    let document = Document { recording: header.clone(), kinds: kinds() };
    let json = serde_json::to_vec(&document).map_err(invalid)?;
    if json.len() > HEADER_BYTES_MAX { Err(Invalid::LongHeader) } else { Ok(json) }
}

/// Decodes the header, and the treatment of each kind of records.
pub(super) fn of_json(json: &[u8]) -> Result<(Header, Vec<Treatment>), Invalid> {
    let document: Document = serde_json::from_slice(json).map_err(invalid)?;
    check(&document.recording)?;
    Ok((document.recording, treatments(document.kinds)?))
}

/// Keeps only the column of an error: the parser's message would quote the file, with its control
/// characters.
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
    fn header_survives_encoding() {
        let header = samples::header(3);
        assert_eq!(of_json(&to_json(&header).unwrap()).unwrap().0, header);
    }

    #[test]
    fn zero_or_excess_cpus_are_refused() {
        for cpus in [0, CPUS_MAX + 1, u32::MAX] {
            let header = samples::header(cpus);
            assert_eq!(to_json(&header), Err(Invalid::Cpus(cpus)));
            let json = serde_json::to_vec(&Document { recording: header, kinds: kinds() });
            assert_eq!(of_json(&json.unwrap()).unwrap_err(), Invalid::Cpus(cpus));
        }
        assert!(to_json(&samples::header(CPUS_MAX)).is_ok());
    }

    #[test]
    fn overlong_command_is_refused() {
        let command = vec!["x".repeat(HEADER_BYTES_MAX)];
        let header = Header { command, ..samples::header(1) };
        assert_eq!(to_json(&header), Err(Invalid::LongHeader));
    }

    #[test]
    fn header_errors_do_not_quote_the_file() {
        let error = of_json(br#"{"recording":{"recorder":"r","source":"\u001b[2J"}}"#).unwrap_err();
        assert_eq!(error.to_string(), "the header has an error in column 49");
        assert!(matches!(of_json(b"[[["), Err(Invalid::Header { .. })));
        assert!(matches!(of_json(&[b'['; 1 << 16]), Err(Invalid::Header { .. })));
    }
}
