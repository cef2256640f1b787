// SPDX-License-Identifier: GPL-2.0-only
//! As much of HTTP as a scrape needs: one request, one answer, and the connection is over.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Longer requests are not read to their end.
const REQUEST_MAX: usize = 8 << 10;
/// So many are answered at once.
pub const PLACES: usize = 64;

/// Who is being answered, in the order in which they came.
#[derive(Default)]
pub struct Places {
    taken: Mutex<VecDeque<Arc<TcpStream>>>,
    /// Somebody has left.
    left: Condvar,
}

/// A place of one who asks. Dropped, it is another's.
pub struct Place {
    of: Arc<Places>,
    stream: Arc<TcpStream>,
}

impl Place {
    /// Where all are taken, who came first loses its own: whoever holds them all, again and again, keeps nobody out.
    pub fn take(of: &Arc<Places>, stream: TcpStream) -> Self {
        let stream = Arc::new(stream);
        let taken = of.taken.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(first) = taken.front().filter(|_| taken.len() >= PLACES) {
            // Whatever is waited for there ends with that, unless it has ended already.
            let _ = first.shutdown(Shutdown::Both);
        }
        let is_full = |taken: &mut VecDeque<Arc<TcpStream>>| taken.len() >= PLACES;
        let mut taken = of.left.wait_while(taken, is_full).unwrap_or_else(|e| e.into_inner());
        taken.push_back(Arc::clone(&stream));
        Place { of: Arc::clone(of), stream }
    }

    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.of.taken.lock().unwrap_or_else(|e| e.into_inner());
        taken.retain(|stream| !Arc::ptr_eq(stream, &self.stream));
        self.of.left.notify_one();
    }
}

/// A connection that is over at a time, whatever trickles through it: nobody has one of the few places for longer.
struct Brief<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

impl Brief<'_> {
    /// What a call to the kernel may still take. Not 0, which would have no end.
    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        Ok(left)
    }
}

impl Read for Brief<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(bytes)
    }
}

impl Write for Brief<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Who asks has this long for the question, and for taking the answer, all together.
pub fn answer(stream: &TcpStream, page: &Mutex<Arc<str>>, patience: Duration) -> io::Result<()> {
    let is_of_this_host = stream.local_addr()?.ip().is_loopback();
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
    let text = String::from_utf8_lossy(&request);
    let mut words = text.split_whitespace();
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (status, kind, body): (_, _, Arc<str>) = match (method, path.split('?').next().unwrap_or_default()) {
        _ if is_of_this_host && !hosts(&text).all(is_loopback) => (
            "403 Forbidden",
            "text/plain",
            Arc::from("ask for localhost or a loopback address: that is what Host: has to say here\n"),
        ),
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

/// What a request's `Host:` lines say; HTTP/1.0 has none.
fn hosts(request: &str) -> impl Iterator<Item = &str> {
    let headers = request.lines().skip(1).take_while(|line| !line.is_empty());
    let fields = headers.filter_map(|line| line.split_once(':'));
    fields.filter(|(name, _)| name.trim().eq_ignore_ascii_case("host")).map(|(_, host)| host.trim())
}

/// Does that name lead to this host whoever is asked? A web page's own name may be made to lead here as
/// well (DNS rebinding). The browser of who looks at that page then lets it read what is answered, but says
/// that name.
fn is_loopback(host: &str) -> bool {
    // An IPv6 address is in brackets, for it has colons itself.
    let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, port)) => (address, port),
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = port.is_empty() || port.starts_with(':');
    let is_here = name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    // Who has no name to say says nothing.
    host.is_empty() || is_port && is_here
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
            thread::spawn(move || answer(&stream, &Mutex::new(Arc::from("")), Duration::from_millis(100)));
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
        let answers = thread::spawn(move || answer(&stream, &page, Duration::from_millis(100)));
        asks.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut part = [0; 64 << 10];
        while !answers.is_finished() {
            assert!(asks.read(&mut part).unwrap() > 0, "all of it was taken");
            thread::sleep(Duration::from_millis(10));
        }
        assert!(answers.join().unwrap().is_err());
    }

    /// What is answered to that request, the first line and the last.
    fn told(request: &str) -> (String, String) {
        let (mut asks, stream) = pair();
        asks.write_all(request.as_bytes()).unwrap();
        answer(&stream, &Mutex::new(Arc::from("secret\n")), Duration::from_secs(60)).unwrap();
        drop(stream);
        let mut text = String::new();
        asks.read_to_string(&mut text).unwrap();
        let line = |line: Option<&str>| line.unwrap_or_default().to_string();
        (line(text.lines().next()), line(text.lines().last()))
    }

    #[test]
    fn a_page_whose_name_leads_here_reads_nothing() {
        let ok = ("HTTP/1.1 200 OK".to_string(), "secret".to_string());
        assert_eq!(told("GET /metrics HTTP/1.0\r\n\r\n"), ok);
        assert_eq!(told("GET /metrics HTTP/1.1\r\nAccept: a\r\nhost:LocalHost:9479\r\n\r\n"), ok);
        let asked = |host: &str| told(&format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        for host in ["", "localhost", "127.0.0.1:9479", "127.0.0.1", "127.8.0.9:1", "[::1]:9479", "[::1]"] {
            assert_eq!(asked(host), ok, "{host}");
        }
        for host in [
            "rebound.example:9479",
            "localhost.rebound.example",
            "127.0.0.1.rebound.example:9479",
            "[::1].rebound.example",
            "[::1",
            "192.0.2.7:9479",
            "[2001:db8::7]:9479",
            "localhost:9479\r\nHost: rebound.example:9479",
        ] {
            let (status, line) = asked(host);
            assert_eq!(status, "HTTP/1.1 403 Forbidden", "{host}");
            assert!(line.contains("localhost") && !line.contains("secret"), "{host}: {line}");
        }
    }

    #[test]
    fn a_request_that_is_too_long_is_not_read() {
        let (mut asks, stream) = pair();
        asks.write_all(&[b'x'; REQUEST_MAX + 1]).unwrap();
        answer(&stream, &Mutex::new(Arc::from("")), Duration::from_secs(60)).unwrap();
        drop(stream);
        let mut text = String::new();
        // It is gone, with what it did not read.
        assert!(asks.read_to_string(&mut text).is_err() || text.is_empty());
    }

    #[test]
    fn who_came_first_makes_room_when_all_places_are_taken() {
        let places = Arc::new(Places::default());
        let take = || {
            let (asks, stream) = pair();
            (asks, Place::take(&places, stream))
        };
        let (_asks, first) = take();
        let page = Mutex::new(Arc::from(""));
        let answers = thread::spawn(move || answer(first.stream(), &page, Duration::from_secs(20)));
        let others: Vec<_> = (0..PLACES).map(|_| take()).collect();
        assert_eq!(places.taken.lock().unwrap().len(), PLACES, "no more are answered at once");
        // Its time was not over.
        assert!(answers.join().unwrap().is_ok());
        drop(others);
        assert!(places.taken.lock().unwrap().is_empty());
    }
}
