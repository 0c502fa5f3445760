//! What the kernel is to do, as `shootdown boot` puts it into memory: a line `shootdown-load N`
//! with the number of all bytes, this line included; lines of `name=value`; an empty line; and what
//! those are about.

#![expect(unsafe_code, reason = "reads memory that somebody else has filled")]

/// What the first line begins with.
const MAGIC: &[u8] = b"shootdown-load ";

/// What has been put at an address; nothing, if nothing was.
///
/// # Safety
///
/// There must be memory, which stays as it is.
pub(crate) unsafe fn at(address: *const u8) -> &'static [u8] {
    const LINE_MAX: usize = 64;
    // SAFETY: as our caller promises.
    let line = unsafe { core::slice::from_raw_parts(address, LINE_MAX) };
    let length = line.strip_prefix(MAGIC).and_then(|rest| {
        let end = rest.iter().position(|byte| *byte == b'\n')?;
        core::str::from_utf8(&rest[..end]).ok()?.parse().ok()
    });
    // SAFETY: as above, and whoever has put it there knows its length.
    length.map_or(&[], |length| unsafe { core::slice::from_raw_parts(address, length) })
}

/// What `shootdown boot` has put into memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// How many CPUs there are.
    pub(crate) cpus: u32,
    /// What is to be done.
    pub(crate) mode: Mode,
}

/// What the kernel does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Tries what the architecture is to do.
    Smoke,
    /// The same, and then whether faults in the engine would be seen.
    Trials,
}

impl Load {
    /// Reads the lines. What is not said is as in a run by hand, with nothing put into memory.
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let mut load = Self { cpus: 1, mode: Mode::Smoke };
        for line in bytes.split(|byte| *byte == b'\n').take_while(|line| !line.is_empty()) {
            let Some((name, value)) = core::str::from_utf8(line).ok().and_then(|l| l.split_once('='))
            else {
                continue;
            };
            match (name, value) {
                ("cpus", cpus) => load.cpus = cpus.parse().unwrap_or(1),
                ("mode", "trials") => load.mode = Mode::Trials,
                _ => {}
            }
        }
        load
    }
}
