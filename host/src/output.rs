// SPDX-License-Identifier: GPL-2.0-only
//! Statistics on their way to stdout.
//!
//! A thread writes them, so that a reader who stops reading cannot keep the main thread from ending the scheduler when asked to.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{sync_channel, SyncSender, TrySendError};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::say::Failure;
use crate::unless_closed;

/// Intervals that may wait for a slow reader; further ones are left out, or made longer: nothing is lost but resolution.
const WAITING_MAX: usize = 4;
/// Who is asked to stop gives a slow reader this long to take what waits.
const FLUSH_MAX: Duration = Duration::from_secs(1);
/// How often to look whether a slow reader has gone on.
const LOOK_EVERY: Duration = Duration::from_millis(5);

pub struct Output {
    queue: Option<SyncSender<String>>,
    writer: JoinHandle<io::Result<()>>,
    closed: Arc<AtomicBool>,
}

impl Output {
    pub fn stdout() -> Self {
        Self::new(io::stdout())
    }

    pub fn new(mut to: impl Write + Send + 'static) -> Self {
        let (queue, waiting) = sync_channel::<String>(WAITING_MAX);
        let closed = Arc::new(AtomicBool::new(false));
        let saw_end = Arc::clone(&closed);
        let writer = thread::spawn(move || {
            for text in waiting {
                if let Err(error) = write_all(&mut to, text.as_bytes()) {
                    saw_end.store(true, Ordering::Relaxed);
                    return Err(error);
                }
            }
            Ok(())
        });
        Output { queue: Some(queue), writer, closed }
    }

    /// Return false where it is left out: see WAITING_MAX and is_closed().
    pub fn send(&self, text: String) -> bool {
        !self.is_closed() && self.queue.as_ref().is_some_and(|queue| queue.try_send(text).is_ok())
    }

    /// Wait until there is room for it, nobody can read any more, or this is asked to stop. Return false where it is left out.
    pub fn send_all(&self, text: String, asked: impl Fn() -> bool) -> bool {
        let Some(queue) = &self.queue else { return false };
        let mut text = text;
        loop {
            // The writer that saw the end may not have ended yet.
            if self.is_closed() {
                return false;
            }
            match queue.try_send(text) {
                Err(TrySendError::Full(again)) if !asked() => text = again,
                result => return result.is_ok(),
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Nothing can be written any more; finish() says whether that is the reader's doing.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Wait until everything is written; not for long, once this is asked to stop. A reader who left early is no failure.
    pub fn finish(mut self, asked: impl Fn() -> bool) -> Result<(), Failure> {
        self.queue = None;
        let mut deadline = None;
        while !self.writer.is_finished() {
            if asked() && *deadline.get_or_insert_with(|| Instant::now() + FLUSH_MAX) <= Instant::now() {
                return Ok(());
            }
            thread::sleep(LOOK_EVERY);
        }
        // It does not panic.
        self.writer.join().unwrap_or(Ok(())).or_else(unless_closed)
    }
}

/// Whoever shares the terminal, or has made the pipe, may have set O_NONBLOCK: a reader who is slow has not gone.
fn write_all(to: &mut impl Write, mut rest: &[u8]) -> io::Result<()> {
    loop {
        let done = if rest.is_empty() { to.flush().map(|()| 0) } else { to.write(rest) };
        match done {
            Ok(0) if rest.is_empty() => return Ok(()),
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => rest = &rest[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(LOOK_EVERY),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    #[test]
    fn what_is_sent_arrives_in_order() {
        let (mut reader, writer) = UnixStream::pair().unwrap();
        let output = Output::new(writer);
        assert!(output.send("one\n".into()) && output.send("two\n".into()));
        output.finish(|| true).unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "one\ntwo\n");
    }

    #[test]
    fn a_reader_who_left_is_noticed() {
        let (reader, writer) = UnixStream::pair().unwrap();
        drop(reader);
        let output = Output::new(writer);
        output.send("one\n".into());
        while !output.is_closed() {
            thread::yield_now();
        }
        assert!(!output.send("two\n".into()));
        assert!(!output.send_all("two\n".into(), || false));
        output.finish(|| false).unwrap();
    }

    #[test]
    fn what_cannot_be_written_is_a_failure() {
        let output = Output::new(std::fs::File::options().write(true).open("/dev/full").unwrap());
        output.send("one\n".into());
        let failure = output.finish(|| false).unwrap_err();
        assert!(failure.status == 1 && failure.line.contains("cannot write to stdout"), "{failure:?}");
    }

    #[test]
    fn a_slow_reader_gets_all_of_it_where_nobody_is_in_a_hurry() {
        let (mut reader, writer) = UnixStream::pair().unwrap();
        let output = Output::new(writer);
        let reads = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            let mut read = Vec::new();
            reader.read_to_end(&mut read).map(|_| read.len())
        });
        for _ in 0..20 {
            assert!(output.send_all("x".repeat(1 << 20), || false));
        }
        output.finish(|| false).unwrap();
        assert_eq!(reads.join().unwrap().unwrap(), 20 << 20);
    }

    #[test]
    fn a_pipe_that_does_not_block_is_waited_for() {
        let (mut reader, writer) = UnixStream::pair().unwrap();
        writer.set_nonblocking(true).unwrap();
        let output = Output::new(writer);
        assert!(output.send("x".repeat(8 << 20)));
        thread::sleep(Duration::from_millis(20));
        assert!(!output.is_closed());
        let reads = thread::spawn(move || {
            let mut read = Vec::new();
            reader.read_to_end(&mut read).map(|_| read.len())
        });
        output.finish(|| false).unwrap();
        assert_eq!(reads.join().unwrap().unwrap(), 8 << 20);
    }

    #[test]
    fn a_reader_who_does_not_read_blocks_nobody() {
        let (_reader, writer) = UnixStream::pair().unwrap();
        let output = Output::new(writer);
        let sent = (0..100).filter(|_| output.send("x".repeat(1 << 20))).count();
        assert!((1..100).contains(&sent));
        assert!(!output.send_all("x".into(), || true));
        output.finish(|| true).unwrap();
    }
}
