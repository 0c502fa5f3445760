//! The server of the metrics: one request on each connection.

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::metrics;
use super::tally::{Tally, cgroup};
use crate::commands::record::now_ns;

/// The largest request in bytes, and the longest time that a client may take.
const REQUEST_BYTES_MAX: usize = 8 << 10;
const PATIENCE: Duration = Duration::from_secs(2);
/// The age of a flush that is complete: no CPU waits for longer.
const SETTLED_NS: u64 = 1_000_000_000;

const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Starts the thread that answers requests.
///
/// # Errors
///
/// If there is no thread.
pub(super) fn start(listener: TcpListener, tally: Arc<Mutex<Tally>>) -> io::Result<()> {
    let answer = move || {
        for mut stream in listener.incoming().flatten() {
            let limits =
                [stream.set_read_timeout(Some(PATIENCE)), stream.set_write_timeout(Some(PATIENCE))];
            let is_limited = limits.iter().all(Result::is_ok);
            if let Some(path) = request(&mut stream).filter(|_| is_limited) {
                // A client that has gone misses the answer.
                let _ = stream.write_all(respond(&path, &tally).as_bytes());
            }
        }
    };
    thread::Builder::new().name("server".to_owned()).spawn(answer).map(drop)
}

/// Reads a request to the end of its head. Returns its path, which is empty if it is not a GET.
fn request(stream: &mut impl Read) -> Option<String> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 1024]);
    while !bytes.windows(4).any(|end| end == b"\r\n\r\n") {
        let count = stream.read(&mut buffer).ok().filter(|count| *count > 0)?;
        bytes.extend_from_slice(&buffer[..count]);
        if bytes.len() > REQUEST_BYTES_MAX {
            return None;
        }
    }
    let head = String::from_utf8_lossy(&bytes);
    let path = head.strip_prefix("GET ").and_then(|rest| rest.split([' ', '?']).next());
    Some(path.unwrap_or_default().to_owned())
}

fn respond(path: &str, tally: &Mutex<Tally>) -> String {
    let (status, kind, body) = match path {
        "/metrics" => {
            let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
            tally.settle(now_ns().saturating_sub(SETTLED_NS), cgroup);
            ("200 OK", TEXT, metrics::text(&tally))
        }
        _ => ("404 Not Found", "text/plain", "try:   /metrics\n".to_owned()),
    };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: \
         close\r\n\r\n{body}",
        body.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_path_of_a_get_is_answered() {
        let path = |text: &str| request(&mut text.as_bytes());
        assert_eq!(
            path("GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n").as_deref(),
            Some("/metrics")
        );
        assert_eq!(path("POST /metrics HTTP/1.1\r\n\r\n").as_deref(), Some(""));
        assert_eq!(path("GET /metrics HTTP/1.1\r\n"), None, "cut");
        let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(REQUEST_BYTES_MAX));
        assert_eq!(path(&long), None);
        let tally = Mutex::new(Tally::default());
        assert!(respond("/metrics", &tally).ends_with("# EOF\n"));
        assert!(respond("/", &tally).starts_with("HTTP/1.1 404"));
    }
}
