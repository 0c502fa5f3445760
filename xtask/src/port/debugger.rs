//! QEMU's port for debuggers: stops a guest at a function, and replaces code of its kernel.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// The longest wait for QEMU and for the guest on a busy host.
const PATIENCE: Duration = Duration::from_secs(300);

/// A connection, in the remote protocol of GDB.
#[derive(Debug)]
pub(super) struct Debugger(UnixStream);

impl Debugger {
    /// Connects to the socket of a guest that has not begun.
    pub(super) fn connect(socket: &Path) -> io::Result<Self> {
        let begin = Instant::now();
        let stream = loop {
            match UnixStream::connect(socket) {
                Err(error) if begin.elapsed() > PATIENCE => return Err(error),
                Err(_) => thread::sleep(Duration::from_millis(100)),
                Ok(stream) => break stream,
            }
        };
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self(stream))
    }

    /// Sends a packet, and returns the reply.
    fn ask(&mut self, packet: &str) -> io::Result<String> {
        let sum = packet.bytes().fold(0_u8, u8::wrapping_add);
        write!(self.0, "${packet}#{sum:02x}")?;
        let (mut reply, mut byte) = (Vec::new(), [0]);
        while !reply.ends_with(b"#") {
            self.0.read_exact(&mut byte)?;
            match byte[0] {
                b'$' => reply.clear(),
                other => reply.push(other),
            }
        }
        let mut sum = [0; 2];
        self.0.read_exact(&mut sum)?;
        self.0.write_all(b"+")?;
        reply.pop();
        let reply = String::from_utf8_lossy(&reply).into_owned();
        match reply.starts_with('E') {
            true => Err(io::Error::other(format!("QEMU refuses {packet}: {reply}"))),
            false => Ok(reply),
        }
    }

    /// Runs the guest until a CPU is at the address.
    pub(super) fn run_to(&mut self, address: u64) -> io::Result<()> {
        self.ask(&format!("Z1,{address:x},1"))?;
        self.ask("c")?;
        self.ask(&format!("z1,{address:x},1")).map(drop)
    }

    /// Replaces the first place with the code `old` in the bytes from `address` on. Both are
    /// hexadecimal. Without `old`, the first bytes are replaced.
    pub(super) fn replace(&mut self, address: u64, (old, new): (&str, &str)) -> io::Result<()> {
        const BYTES: usize = 0x200;
        let code = self.ask(&format!("m{address:x},{BYTES:x}"))?;
        let found = code.match_indices(old).map(|(at, _)| at).find(|at| at % 2 == 0);
        let at = found.ok_or_else(|| io::Error::other(format!("there is no code {old}")))?;
        let (address, len) = (address + at as u64 / 2, new.len() / 2);
        self.ask(&format!("M{address:x},{len:x}:{new}"))?;
        let now = self.ask(&format!("m{address:x},{len:x}"))?;
        if now == new { Ok(()) } else { Err(io::Error::other("the code was not replaced")) }
    }

    /// Lets the guest run.
    pub(super) fn leave(mut self) -> io::Result<()> {
        self.ask("D").map(drop)
    }
}
