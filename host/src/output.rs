// SPDX-License-Identifier: GPL-2.0-only
//! Statistics on their way to stdout.
//!
//! A thread writes them, so that a reader who stops reading cannot keep the main thread from ending the scheduler when asked to.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{sync_channel, SyncSender};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Intervals that may wait for a slow reader; further ones are left out. Counters are cumulative: nothing is lost but resolution.
const WAITING_MAX: usize = 4;
/// At the end a slow reader gets this long to take what waits.
const FLUSH_MAX: Duration = Duration::from_secs(1);

pub struct Output {
    queue: Option<SyncSender<String>>,
    writer: JoinHandle<()>,
    closed: Arc<AtomicBool>,
}

impl Output {
    pub fn stdout() -> Self {
        Self::new(io::stdout())
    }

    fn new(mut to: impl Write + Send + 'static) -> Self {
        let (queue, waiting) = sync_channel::<String>(WAITING_MAX);
        let closed = Arc::new(AtomicBool::new(false));
        let saw_end = Arc::clone(&closed);
        let writer = thread::spawn(move || {
            for text in waiting {
                if to.write_all(text.as_bytes()).and_then(|()| to.flush()).is_err() {
                    saw_end.store(true, Ordering::Relaxed);
                    return;
                }
            }
        });
        Output { queue: Some(queue), writer, closed }
    }

    pub fn send(&self, text: String) {
        if let Some(queue) = &self.queue {
            // Full or closed: see WAITING_MAX and is_closed().
            let _ = queue.try_send(text);
        }
    }

    /// Nobody can read any more.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Wait, not for long, until everything is written.
    pub fn finish(mut self) {
        self.queue = None;
        let deadline = Instant::now() + FLUSH_MAX;
        while !self.writer.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
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
        output.send("one\n".into());
        output.send("two\n".into());
        output.finish();
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
        output.finish();
    }

    #[test]
    fn a_reader_who_does_not_read_blocks_nobody() {
        let (_reader, writer) = UnixStream::pair().unwrap();
        let output = Output::new(writer);
        for _ in 0..100 {
            output.send("x".repeat(1 << 20));
        }
        output.finish();
    }
}
