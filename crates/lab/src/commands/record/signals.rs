//! Requests of the user to stop, which arrive as signals.

use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

/// The received signals: SIGINT (Ctrl-C), and SIGTERM or SIGHUP.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: UnixStream,
    terminate: UnixStream,
    /// Number of received SIGINTs since the last reset.
    interrupts: usize,
    terminated: bool,
    /// Keeps pipes open that no handler writes to.
    _unused: Option<UnixStream>,
}

/// Stops a recorder from another thread, also when it is dropped.
#[derive(Debug)]
pub(crate) struct Stopper(UnixStream);

impl Stopper {
    /// Stops the recorder. Its recording is kept.
    pub(crate) fn stop(&mut self) {
        // The recorder may have ended before.
        let _ = self.0.write_all(&[1]);
    }
}

impl Drop for Stopper {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The user's request to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopRequest {
    /// There is no request.
    None,
    /// Ctrl-C was pressed once. The command received SIGINT as well, so it is expected to end.
    Once,
    /// Ctrl-C was pressed twice, or SIGTERM or SIGHUP arrived.
    Now,
}

impl Signals {
    /// Installs handlers. From this call on, the signals do not end the process.
    ///
    /// # Errors
    ///
    /// If the handlers cannot be installed.
    pub(crate) fn listen() -> io::Result<Self> {
        let (interrupt, interrupts) = UnixStream::pair()?;
        let (terminate, terminates) = UnixStream::pair()?;
        interrupt.set_nonblocking(true)?;
        terminate.set_nonblocking(true)?;
        pipe::register(SIGINT, interrupts)?;
        pipe::register(SIGHUP, terminates.try_clone()?)?;
        pipe::register(SIGTERM, terminates)?;
        Ok(Self { interrupt, terminate, interrupts: 0, terminated: false, _unused: None })
    }

    /// Returns requests that only `Stopper` makes. Signals do what they did before.
    ///
    /// # Errors
    ///
    /// If there is no pipe.
    pub(crate) fn of_stopper() -> io::Result<(Self, Stopper)> {
        let (interrupt, unused) = UnixStream::pair()?;
        let (terminate, stop) = UnixStream::pair()?;
        interrupt.set_nonblocking(true)?;
        terminate.set_nonblocking(true)?;
        let (interrupts, terminated, _unused) = (0, false, Some(unused));
        Ok((Self { interrupt, terminate, interrupts, terminated, _unused }, Stopper(stop)))
    }

    /// Returns file descriptors that are readable after a new signal.
    pub(super) fn fds(&self) -> [impl AsFd + '_; 2] {
        [&self.interrupt, &self.terminate]
    }

    /// Returns the request since the last [`Signals::reset`].
    pub(crate) fn stop_request(&mut self) -> StopRequest {
        let mut bytes = [0; 16];
        // Each signal is one byte. A read without any is an error.
        self.interrupts += self.interrupt.read(&mut bytes).unwrap_or_default();
        self.terminated |= self.terminate.read(&mut bytes).unwrap_or_default() > 0;
        match (self.terminated, self.interrupts) {
            (false, 0) => StopRequest::None,
            (false, 1) => StopRequest::Once,
            _ => StopRequest::Now,
        }
    }

    /// Discards earlier signals, which were obeyed.
    pub(super) fn reset(&mut self) {
        self.stop_request();
        self.interrupts = 0;
        self.terminated = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// This is one test, because signals belong to the whole process.
    #[test]
    fn second_ctrl_c_or_sigterm_stops_now() {
        let mut signals = Signals::listen().expect("signals");
        assert_eq!(signals.stop_request(), StopRequest::None);
        raise(&mut signals, SIGINT, StopRequest::Once);
        raise(&mut signals, SIGINT, StopRequest::Now);
        signals.reset();
        assert_eq!(signals.stop_request(), StopRequest::None);
        raise(&mut signals, SIGTERM, StopRequest::Now);
        signals.reset();
        raise(&mut signals, SIGHUP, StopRequest::Now);
        assert_eq!(signals.stop_request(), StopRequest::Now, "until the reset");
    }

    #[test]
    fn stopper_stops_now_and_when_dropped() {
        let (mut signals, mut stopper) = Signals::of_stopper().expect("a pipe");
        assert_eq!(signals.stop_request(), StopRequest::None);
        stopper.stop();
        assert_eq!(signals.stop_request(), StopRequest::Now);
        signals.reset();
        drop(stopper);
        assert_eq!(signals.stop_request(), StopRequest::Now);
    }

    fn raise(signals: &mut Signals, signal: i32, request: StopRequest) {
        signal_hook::low_level::raise(signal).expect("a signal");
        let start = Instant::now();
        while signals.stop_request() != request {
            assert!(start.elapsed().as_secs() < 10, "{request:?}");
        }
    }
}
