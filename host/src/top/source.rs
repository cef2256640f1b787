// SPDX-License-Identifier: GPL-2.0-only
//! Where samples come from: the probe in this host's kernel, or a file of them.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::time::Duration;

use super::args::Top;
use super::sample::Sample;
use crate::checks::Host;
use crate::probe::{Probe, Reader, Storage};
use crate::run::Stops;
use crate::say::Failure;

/// Longer lines than that are no samples.
const LINE_MAX: usize = 64 << 20;

pub enum Source<'obj> {
    Probe { probe: Box<Probe<'obj>>, reader: Box<Reader>, host: &'obj Host },
    Feed(Feed),
}

impl<'obj> Source<'obj> {
    pub fn open(args: &Top, storage: &'obj mut Storage, host: &'obj Host) -> Result<Self, Failure> {
        match &args.feed {
            Some(file) => Ok(Source::Feed(Feed::open(file)?)),
            None => Ok(Source::Probe {
                probe: Box::new(Probe::start(storage, host)?),
                reader: Box::default(),
                host,
            }),
        }
    }

    /// What everything is compared with at first.
    pub fn first(&mut self) -> Result<Sample, Failure> {
        match self {
            Source::Feed(feed) => feed.next().map(Option::unwrap_or_default),
            Source::Probe { probe, reader, host } => reader.read(probe, host),
        }
    }

    /// The next one: after that time, or from the file at once. None: it is over.
    pub fn next(&mut self, interval: Duration, stops: &Stops) -> Result<Option<Sample>, Failure> {
        match self {
            Source::Feed(_) if stops.asked() => Ok(None),
            Source::Feed(feed) => feed.next(),
            Source::Probe { .. } if stops.wait(interval) => Ok(None),
            Source::Probe { .. } => self.look(),
        }
    }

    /// The next one, without waiting.
    pub fn look(&mut self) -> Result<Option<Sample>, Failure> {
        match self {
            Source::Probe { probe, reader, host } => reader.read(probe, host).map(Some),
            Source::Feed(feed) => feed.next(),
        }
    }
}

pub struct Feed {
    name: String,
    lines: Box<dyn BufRead>,
    number: usize,
}

impl Feed {
    fn open(file: &Path) -> Result<Self, Failure> {
        let name = file.display().to_string();
        if name == "-" {
            return Ok(Feed::of("stdin".into(), Box::new(BufReader::new(io::stdin()))));
        }
        let opened = File::open(file)
            .map_err(|e| Failure::refused(format!("--feed {name}: cannot be opened: {e}")))?;
        Ok(Feed::of(name, Box::new(BufReader::new(opened))))
    }

    fn of(name: String, lines: Box<dyn BufRead>) -> Self {
        Feed { name, lines, number: 0 }
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
            let sample: Sample = serde_json::from_str(&line)
                .map_err(|e| wrong(format!("no sample of `cohort top --batch --json`: {e}")))?;
            return Ok(Some(sample));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(text: &'static str) -> Feed {
        Feed::of("x".into(), Box::new(BufReader::new(text.as_bytes())))
    }

    #[test]
    fn a_feed_gives_its_samples_one_after_the_other() {
        let mut feed = feed("{\"clock_ns\":1}\n\n{\"clock_ns\":2,\"new\":[]}\n");
        assert_eq!(feed.next().unwrap().unwrap().clock_ns, 1);
        assert_eq!(feed.next().unwrap().unwrap().clock_ns, 2);
        assert_eq!(feed.next().unwrap(), None);
    }

    #[test]
    fn what_is_no_sample_is_named_by_its_line() {
        let mut feed = feed("{}\n{\"vms\":7}\n");
        feed.next().unwrap();
        let failure = feed.next().unwrap_err();
        assert_eq!(failure.status, 2);
        assert!(
            failure.line.starts_with("--feed x: line 2: no sample") && !failure.line.contains('\n'),
            "{failure:?}"
        );
    }
}
