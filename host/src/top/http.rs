// SPDX-License-Identifier: GPL-2.0-only
//! As much of HTTP as a scrape needs: one request, one answer, and the connection is over.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Longer requests are not read to their end.
const REQUEST_MAX: usize = 8 << 10;

/// A connection that is over at a time, whatever trickles through it: nobody has one of the few places for longer.
struct Brief {
    stream: TcpStream,
    until: Instant,
}

impl Brief {
    /// What a call to the kernel may still take. Not 0, which would have no end.
    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        Ok(left)
    }
}

impl Read for Brief {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(bytes)
    }
}

impl Write for Brief {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Who asks has this long for the question, and for taking the answer, all together.
pub fn answer(stream: TcpStream, page: &Mutex<Arc<str>>, patience: Duration) -> io::Result<()> {
    let mut stream = Brief { stream, until: Instant::now() + patience };
    let mut request = Vec::new();
    let mut part = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let n = stream.read(&mut part)?;
        if n == 0 || request.len() + n > REQUEST_MAX {
            return Ok(());
        }
        request.extend_from_slice(&part[..n]);
    }
    let line = String::from_utf8_lossy(&request);
    let mut words = line.split_whitespace();
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (status, kind, body) = match (method, path.split('?').next().unwrap_or_default()) {
        ("GET" | "HEAD", "/metrics") => {
            ("200 OK", CONTENT_TYPE, Arc::clone(&page.lock().unwrap_or_else(|e| e.into_inner())))
        }
        ("GET" | "HEAD", _) => ("404 Not Found", "text/plain", Arc::from("see /metrics\n")),
        _ => ("405 Method Not Allowed", "text/plain", Arc::from("GET /metrics\n")),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    if method != "HEAD" {
        stream.write_all(body.as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Both ends of a connection.
    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let asks = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (asks, listener.accept().unwrap().0)
    }

    #[test]
    fn who_asks_byte_by_byte_does_not_keep_others_waiting() {
        let (mut asks, stream) = pair();
        let answers =
            thread::spawn(move || answer(stream, &Mutex::new(Arc::from("")), Duration::from_millis(100)));
        // Each byte comes long before the time is over. Once nobody listens, writing fails.
        let sent = (0..1000).take_while(|_| {
            thread::sleep(Duration::from_millis(10));
            asks.write_all(b"x").is_ok()
        });
        assert!(sent.count() < 1000, "it listened on");
        assert!(answers.join().unwrap().is_err());
    }

    #[test]
    fn who_takes_the_answer_byte_by_byte_does_not_either() {
        let (mut asks, stream) = pair();
        // More than the kernel keeps for both ends.
        let page = Mutex::new(Arc::from("x".repeat(64 << 20)));
        let answers = thread::spawn(move || answer(stream, &page, Duration::from_millis(100)));
        asks.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut part = [0; 64 << 10];
        while !answers.is_finished() {
            assert!(asks.read(&mut part).unwrap() > 0, "all of it was taken");
            thread::sleep(Duration::from_millis(10));
        }
        assert!(answers.join().unwrap().is_err());
    }

    #[test]
    fn a_request_that_is_too_long_is_not_read() {
        let (mut asks, stream) = pair();
        asks.write_all(&[b'x'; REQUEST_MAX + 1]).unwrap();
        answer(stream, &Mutex::new(Arc::from("")), Duration::from_secs(60)).unwrap();
        let mut text = String::new();
        // It is gone, with what it did not read.
        assert!(asks.read_to_string(&mut text).is_err() || text.is_empty());
    }
}
