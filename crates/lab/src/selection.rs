//! The options that select programs that run on this machine: processes, a control group, or all
//! processes.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

/// The running programs to trace, and for how long.
///
/// A command that has these options groups them with its own way to select a program:
/// `ArgGroup::new("selected").args(["pid", "cgroup", "all", "command"])`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Selection {
    /// Select running processes with these numbers, and their descendants
    #[arg(long, value_name = "P,Q", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pid: Vec<u32>,
    /// Select the processes of a control group: a path below /sys/fs/cgroup
    #[arg(long, value_name = "PATH")]
    pub(crate) cgroup: Option<PathBuf>,
    /// Select all processes
    #[arg(long)]
    pub(crate) all: bool,
    /// Stop after this time: 10s, 500ms, 2m
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) duration: Option<Duration>,
}

/// A time beyond which clocks could overflow.
const TIME_MAX: Duration = Duration::from_secs(1 << 32);

/// Parses a time with a unit.
///
/// # Errors
///
/// If the text is not a positive time.
pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let seconds = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err("a time has a unit: 500ms, 10s, 2m or 1h".to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| "a time is a number with a unit".to_owned())?;
    match Duration::try_from_secs_f64(number * seconds) {
        Ok(time) if !time.is_zero() && time < TIME_MAX => Ok(time),
        _ => Err("the time is 0 or a century".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(parse_time("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_time("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_time("250ms"), Ok(Duration::from_millis(250)));
        for bad in [
            "10",
            "s",
            "-1s",
            "0s",
            "1.2.3s",
            "1e99h",
            "1d",
            "99999999h",
            "9999999999999999999999h",
        ] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
    }
}
