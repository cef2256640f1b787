// SPDX-License-Identifier: GPL-2.0-only
//! The statistics of `cohort run --stats`.

use std::time::{Duration, Instant};

use tracing::warn;

use crate::output::Output;
use crate::stats::{Names, Snapshot};

/// Prints statistics when they are due.
pub struct Reporter {
    interval: Duration,
    json: bool,
    due: Instant,
    before: Option<Snapshot>,
    names: Names,
    output: Output,
}

impl Reporter {
    pub fn new(interval: Duration, json: bool) -> Self {
        Self::to(Output::stdout(), interval, json)
    }

    fn to(output: Output, interval: Duration, json: bool) -> Self {
        Reporter { interval, json, due: Instant::now(), before: None, names: Names::default(), output }
    }

    /// The scheduler starts, with all counters 0.
    pub fn start(&mut self) {
        self.before = None;
        self.due = Instant::now();
    }

    pub fn due_in(&self) -> Duration {
        self.due.saturating_duration_since(Instant::now())
    }

    pub fn report(&mut self, read: impl FnOnce(&mut Names) -> libbpf_rs::Result<Snapshot>) {
        let now = Instant::now();
        if now < self.due {
            return;
        }
        // After a pause (SIGSTOP) go on from now instead of catching up.
        self.due += self.interval;
        if self.due <= now {
            self.due = now + self.interval;
        }
        match read(&mut self.names) {
            Ok(snapshot) => {
                if let Some(before) = &self.before {
                    self.output.send(if self.json {
                        snapshot.json() + "\n"
                    } else {
                        snapshot.table(before) + "\n"
                    });
                }
                self.before = Some(snapshot);
            }
            Err(error) => warn!("cannot read the statistics: {error:#}"),
        }
    }

    /// Scheduling has ended. Whether all of it could be written does not change how.
    pub fn finish(self) {
        if let Err(failure) = self.output.finish(|| true) {
            warn!("{}", failure.line);
        }
    }
}

/// Did the reader of the statistics go away, and is that to end the scheduler? Not where systemd has started it (`is_managed`): a service that ends by itself,
/// without a failure, is not started again. Then, and where they cannot be written for any other reason, as on a full disk, that is said once, and there are
/// none from then on: guests have more of the scheduler than of its statistics.
pub fn reader_has_gone(reporter: &mut Option<Reporter>, is_managed: bool) -> bool {
    let Some(closed) = reporter.take_if(|reporter| reporter.output.is_closed()) else { return false };
    // It is over, so that this does not wait.
    match closed.output.finish(|| false) {
        Ok(()) if is_managed => {
            warn!("nobody reads the statistics: scheduling goes on without them");
            false
        }
        Ok(()) => true,
        Err(failure) => {
            warn!("{}: scheduling goes on without statistics", failure.line);
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;
    use crate::stats::tests::snapshot;

    /// One that has tried to print.
    fn printed(output: Output, json: bool) -> Option<Reporter> {
        let mut reporter = Reporter::to(output, Duration::ZERO, json);
        while !reporter.output.is_closed() {
            reporter.report(|_| Ok(snapshot(Instant::now(), 0, vec![])));
            thread::yield_now();
        }
        Some(reporter)
    }

    #[test]
    fn a_full_disk_ends_the_statistics_and_not_the_scheduler() {
        for json in [false, true] {
            let full = File::options().write(true).open("/dev/full").unwrap();
            let mut reporter = printed(Output::new(full), json);
            assert!(!reader_has_gone(&mut reporter, false));
            assert!(reporter.is_none(), "said once, and nothing is read for nobody any more");
            assert!(!reader_has_gone(&mut reporter, false));
        }
    }

    #[test]
    fn a_reader_who_went_away_ends_the_scheduler() {
        let (reader, writer) = UnixStream::pair().unwrap();
        drop(reader);
        assert!(reader_has_gone(&mut printed(Output::new(writer), true), false));
    }

    #[test]
    fn a_reader_who_went_away_does_not_end_a_service() {
        let (reader, writer) = UnixStream::pair().unwrap();
        drop(reader);
        let mut reporter = printed(Output::new(writer), true);
        assert!(!reader_has_gone(&mut reporter, true));
        assert!(reporter.is_none(), "said once, and nothing is read for nobody any more");
        assert!(!reader_has_gone(&mut reporter, true));
    }

    #[test]
    fn a_reader_who_is_there_is_not_gone() {
        let (_reader, writer) = UnixStream::pair().unwrap();
        let mut reporter = Some(Reporter::to(Output::new(writer), Duration::ZERO, true));
        for is_managed in [false, true] {
            assert!(!reader_has_gone(&mut reporter, is_managed) && reporter.is_some());
            assert!(!reader_has_gone(&mut None, is_managed));
        }
    }
}
