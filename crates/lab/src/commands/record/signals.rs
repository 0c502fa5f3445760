//! What the user asks by signals.

use std::io::{self, Read as _};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

use super::error::RecordError;

/// Ctrl-C, and requests to end.
#[derive(Debug)]
pub(super) struct Signals {
    interrupt: UnixStream,
    terminate: UnixStream,
    /// How often Ctrl-C was pressed.
    interrupts: usize,
    terminated: bool,
}

/// How much of a hurry the user is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// None.
    GoOn,
    /// Ctrl-C was pressed once, which the command heard as well: it will end.
    End,
    /// Ctrl-C was pressed again, or someone told us to end.
    EndNow,
}

impl Signals {
    /// From now on, signals are heard, and end nothing by themselves.
    ///
    /// # Errors
    ///
    /// If the kernel does not let us listen.
    pub(super) fn listen() -> Result<Self, RecordError> {
        let listen = || -> io::Result<Self> {
            let (interrupt, interrupts) = UnixStream::pair()?;
            let (terminate, terminates) = UnixStream::pair()?;
            interrupt.set_nonblocking(true)?;
            terminate.set_nonblocking(true)?;
            pipe::register(SIGINT, interrupts)?;
            pipe::register(SIGHUP, terminates.try_clone()?)?;
            pipe::register(SIGTERM, terminates)?;
            Ok(Self { interrupt, terminate, interrupts: 0, terminated: false })
        };
        listen().map_err(RecordError::system("signals"))
    }

    /// Readable when there is something new.
    pub(super) fn fds(&self) -> [impl AsFd + '_; 2] {
        [&self.interrupt, &self.terminate]
    }

    /// What was asked since the last [`Signals::forget`].
    pub(super) fn wish(&mut self) -> Wish {
        let mut bytes = [0; 16];
        // Each signal is a byte; that there is none is an error.
        self.interrupts += self.interrupt.read(&mut bytes).unwrap_or_default();
        self.terminated |= self.terminate.read(&mut bytes).unwrap_or_default() > 0;
        match (self.terminated, self.interrupts) {
            (false, 0) => Wish::GoOn,
            (false, 1) => Wish::End,
            _ => Wish::EndNow,
        }
    }

    /// Has what follows start without an old wish: it was granted.
    pub(super) fn forget(&mut self) {
        self.wish();
        self.interrupts = 0;
        self.terminated = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// One test, for signals are the process's.
    #[test]
    fn one_ctrl_c_is_patient_two_are_not_and_a_request_to_end_is_heard_at_once() {
        let mut signals = Signals::listen().expect("signals");
        assert_eq!(signals.wish(), Wish::GoOn);
        raise(&mut signals, SIGINT, Wish::End);
        raise(&mut signals, SIGINT, Wish::EndNow);
        signals.forget();
        assert_eq!(signals.wish(), Wish::GoOn);
        raise(&mut signals, SIGTERM, Wish::EndNow);
        signals.forget();
        raise(&mut signals, SIGHUP, Wish::EndNow);
        assert_eq!(signals.wish(), Wish::EndNow, "until it is forgotten");
    }

    fn raise(signals: &mut Signals, signal: i32, wish: Wish) {
        signal_hook::low_level::raise(signal).expect("a signal");
        let start = Instant::now();
        while signals.wish() != wish {
            assert!(start.elapsed().as_secs() < 10, "{wish:?}");
        }
    }
}
