// SPDX-License-Identifier: GPL-2.0-only
//! Where samples come from: the probe in this host's kernel, or a file of them.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{sync_channel, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use super::args::Top;
use super::sample::Sample;
use crate::checks::Host;
use crate::probe::{Probe, Reader, Storage};
use crate::run::Stops;
use crate::say::Failure;
use crate::vmname::{printable, printable_path};

/// Longer lines than that are no samples.
const LINE_MAX: usize = 64 << 20;
/// Samples that are read before they are asked for.
const AHEAD: usize = 4;
/// How often who waits for a sample looks whether to stop.
const LOOK_EVERY: Duration = Duration::from_millis(100);

pub enum Source<'obj> {
    Probe { probe: Box<Probe<'obj>>, reader: Box<Reader>, host: &'obj Host },
    Feed(Feed),
}

impl<'obj> Source<'obj> {
    pub fn open(args: &Top, storage: &'obj mut Storage, host: &'obj Host) -> Result<Self, Failure> {
        match &args.feed {
            Some(file) => Ok(Source::Feed(Feed::open(file.clone()))),
            None => Ok(Source::Probe {
                probe: Box::new(Probe::start(storage, host)?),
                reader: Box::default(),
                host,
            }),
        }
    }

    /// What everything is compared with at first.
    pub fn first(&mut self, stops: &Stops) -> Result<Sample, Failure> {
        match self {
            Source::Feed(feed) => feed.next(|| stops.asked()).map(Option::unwrap_or_default),
            Source::Probe { probe, reader, host } => reader.read(probe, host),
        }
    }

    /// The next one: after that time, or from the file at once. None: it is over.
    pub fn next(&mut self, interval: Duration, stops: &Stops) -> Result<Option<Sample>, Failure> {
        match self {
            Source::Feed(feed) => feed.next(|| stops.asked()),
            Source::Probe { .. } if stops.wait(interval) => Ok(None),
            Source::Probe { .. } => self.look(),
        }
    }

    /// The next one, without waiting. None: there is none, yet or any more.
    pub fn look(&mut self) -> Result<Option<Sample>, Failure> {
        match self {
            Source::Probe { probe, reader, host } => reader.read(probe, host).map(Some),
            Source::Feed(feed) => feed.look(),
        }
    }
}

/// Lines that a thread reads, for they may come from another host's `cohort top`, and then keys and signals do not wait for the next one.
pub struct Feed(Receiver<Result<Sample, Failure>>);

impl Feed {
    fn open(file: PathBuf) -> Self {
        Feed::of(move || Lines::open(&file))
    }

    fn of(open: impl FnOnce() -> Result<Lines, Failure> + Send + 'static) -> Self {
        let (send, samples) = sync_channel(AHEAD);
        thread::spawn(move || {
            let mut lines = match open() {
                Ok(lines) => lines,
                Err(failure) => return drop(send.send(Err(failure))),
            };
            while let Some(result) = lines.next().transpose() {
                let failed = result.is_err();
                // Nobody waits any more, or for no more.
                if send.send(result).is_err() || failed {
                    return;
                }
            }
        });
        Feed(samples)
    }

    fn next(&mut self, asked: impl Fn() -> bool) -> Result<Option<Sample>, Failure> {
        while !asked() {
            match self.0.recv_timeout(LOOK_EVERY) {
                Ok(result) => return result.map(Some),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        Ok(None)
    }

    fn look(&mut self) -> Result<Option<Sample>, Failure> {
        self.0.try_recv().map_or(Ok(None), |result| result.map(Some))
    }
}

struct Lines {
    name: String,
    lines: Box<dyn BufRead>,
    number: usize,
}

impl Lines {
    fn open(file: &Path) -> Result<Self, Failure> {
        let name = file.display().to_string();
        if name == "-" {
            return Ok(Lines::of("stdin".into(), Box::new(BufReader::new(io::stdin()))));
        }
        let opened = File::open(file)
            .map_err(|e| Failure::refused(format!("--feed {name}: cannot be opened: {e}")))?;
        Ok(Lines::of(name, Box::new(BufReader::new(opened))))
    }

    fn of(name: String, lines: Box<dyn BufRead>) -> Self {
        Lines { name, lines, number: 0 }
    }

    fn next(&mut self) -> Result<Option<Sample>, Failure> {
        loop {
            self.number += 1;
            let mut line = String::new();
            let wrong =
                |why: String| Failure::refused(format!("--feed {}: line {}: {why}", self.name, self.number));
            let read = io::Read::take(&mut self.lines, LINE_MAX as u64).read_line(&mut line);
            match read {
                Ok(0) => return Ok(None),
                Ok(_) if line.trim().is_empty() => continue,
                Ok(_) => {}
                Err(error) => return Err(wrong(format!("cannot be read: {error}"))),
            }
            // Whoever wrote the file: what it says goes to a terminal, and a word that is wrong stands in the error.
            let mut sample: Sample = serde_json::from_str(&line).map_err(|e| {
                wrong(format!("no sample of `cohort top --batch --json`: {}", printable(&e.to_string())))
            })?;
            // Any other object would be a sample of a host on which no VM runs.
            if sample.clock_ns == 0 {
                return Err(wrong("no sample of `cohort top --batch --json`: it has no clock_ns".into()));
            }
            let names = sample.vms.iter_mut().map(|vm| &mut vm.name);
            names.chain([&mut sample.kernel, &mut sample.scheduler]).for_each(|text| *text = printable(text));
            sample.notes.iter_mut().for_each(|note| *note = printable_path(note));
            return Ok(Some(sample));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(text: &'static str) -> Feed {
        Feed::of(move || Ok(Lines::of("x".into(), Box::new(BufReader::new(text.as_bytes())))))
    }

    #[test]
    fn a_feed_gives_its_samples_one_after_the_other() {
        let mut feed = feed("{\"clock_ns\":1}\n\n{\"clock_ns\":2,\"new\":[]}\n");
        assert_eq!(feed.next(|| false).unwrap().unwrap().clock_ns, 1);
        assert_eq!(feed.next(|| false).unwrap().unwrap().clock_ns, 2);
        assert_eq!(feed.next(|| false).unwrap(), None);
        assert_eq!(feed.look().unwrap(), None);
    }

    #[test]
    fn who_waits_for_a_line_can_be_stopped() {
        // No line ever comes, and no end.
        let (reader, _writer) = std::os::unix::net::UnixStream::pair().unwrap();
        let lines = Box::new(BufReader::new(reader));
        let mut feed = Feed::of(move || Ok(Lines::of("x".into(), lines)));
        assert_eq!(feed.look().unwrap(), None);
        let looks = std::cell::Cell::new(0);
        let asked = || looks.replace(looks.get() + 1) == 2;
        assert_eq!(feed.next(asked).unwrap(), None);
    }

    #[test]
    fn a_file_gives_a_terminal_no_commands() {
        let mut feed = feed(
            r#"{"clock_ns": 1, "vms": [{"name": "a\u001b[31m"}], "kernel": "\u0007", "scheduler": "x\n", "notes": ["\u001bc"]}"#,
        );
        let sample = feed.next(|| false).unwrap().unwrap();
        assert_eq!((sample.vms[0].name.as_str(), sample.notes[0].as_str()), ("a?[31m", "?c"));
        assert_eq!((sample.kernel.as_str(), sample.scheduler.as_str()), ("?", "x?"));
    }

    #[test]
    fn nor_does_what_is_said_of_a_file_that_is_wrong() {
        let mut feed = feed(r#"{"clock_ns": 1, "vms": [{"vcpus": [{"state": "a\u001b[31m\nb"}]}]}"#);
        let failure = feed.next(|| false).unwrap_err();
        assert!(
            failure.line.contains("`a?[31m?b`") && !failure.line.contains(char::is_control),
            "{failure:?}"
        );
    }

    #[test]
    fn what_is_no_sample_is_named_by_its_line() {
        let mut feed = feed("{\"clock_ns\":1}\n{\"vms\":7}\n");
        feed.next(|| false).unwrap();
        let failure = feed.next(|| false).unwrap_err();
        assert_eq!(failure.status, 2);
        assert!(
            failure.line.starts_with("--feed x: line 2: no sample") && !failure.line.contains('\n'),
            "{failure:?}"
        );
    }

    #[test]
    fn an_object_of_another_kind_is_no_sample_of_a_host_without_vms() {
        // What `cohort run --json` prints while there is no VM.
        let statistics = r#"{"time_s": 1.5, "total": {"switches": 9}, "vms": [], "taken": {}}"#;
        for line in ["{}", statistics] {
            let failure = feed(line).next(|| false).unwrap_err();
            assert!(failure.status == 2 && failure.line.ends_with("it has no clock_ns"), "{failure:?}");
        }
    }
}
