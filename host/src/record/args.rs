// SPDX-License-Identifier: GPL-2.0-only
//! The command line of `cohort record`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args};

const MB: u64 = 1_000_000;

#[derive(Args, Debug)]
pub struct Record {
    /// The file to write; one that is there is replaced when the recording is complete
    #[arg(short, long, value_name = "FILE", default_value = "cohort.rec")]
    pub out: PathBuf,

    /// End after so many seconds [0.1..604800]; without, at SIGINT or SIGTERM
    #[arg(short, long, value_name = "SECS", value_parser = parse_secs)]
    seconds: Option<Duration>,

    /// The file has at most about so many MB [1..1048576]; then the newest events take the place of the oldest
    #[arg(
        short,
        long,
        value_name = "MB",
        default_value_t = 1024,
        value_parser = clap::value_parser!(u64).range(1..=1_048_576)
    )]
    max_size: u64,

    /// Events wait for this program in a buffer of so many kB of the kernel's memory, a power of two [4..1048576]
    #[arg(long, value_name = "KB", default_value_t = 32_768, value_parser = parse_ring)]
    ring_kb: u32,

    /// Print what libbpf does, and the verifier's log when it refuses
    #[arg(short, long, action = ArgAction::Count)]
    pub verbose: u8,
}

impl Record {
    pub fn max_bytes(&self) -> u64 {
        self.max_size * MB
    }

    pub fn ring_bytes(&self) -> u32 {
        self.ring_kb << 10
    }

    /// How long to go on.
    pub fn left(&self, elapsed: Duration) -> Duration {
        self.seconds.map_or(Duration::MAX, |all| all.saturating_sub(elapsed))
    }
}

fn parse_secs(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(secs) if (0.1..=604_800.0).contains(&secs) => Ok(Duration::from_secs_f64(secs)),
        _ => Err("allowed: seconds from 0.1 to 604800".into()),
    }
}

fn parse_ring(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(kb) if (4..=1 << 20).contains(&kb) && kb.is_power_of_two() => Ok(kb),
        _ => Err("allowed: a power of two from 4 to 1048576".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{parse, Command, Stop};

    fn record(args: &str) -> Result<Record, String> {
        let args = ["cohort", "record"].into_iter().chain(args.split_whitespace()).map(Into::into);
        match parse(args) {
            Ok(cli) => match cli.command {
                Command::Record(args) => Ok(args),
                _ => unreachable!(),
            },
            Err(Stop::Failure(failure)) => Err(failure.line),
            Err(Stop::Text(text)) => panic!("{text}"),
        }
    }

    #[test]
    fn without_anything_it_goes_on_until_it_is_stopped() {
        let args = record("").unwrap();
        assert_eq!((args.max_bytes(), args.ring_bytes()), (1_024_000_000, 32 << 20));
        assert_eq!(args.left(Duration::from_secs(1_000_000)), Duration::MAX);
        let args = record("-s 2 -m 5").unwrap();
        assert_eq!(args.left(Duration::from_millis(500)), Duration::from_millis(1_500));
        assert_eq!(args.left(Duration::from_secs(3)), Duration::ZERO);
        assert_eq!(args.max_bytes(), 5_000_000);
    }

    #[test]
    fn what_is_not_allowed_is_named() {
        for (args, flag, allowed) in [
            ("--seconds 0", "--seconds", "from 0.1 to 604800"),
            ("--seconds nan", "--seconds", "from 0.1 to 604800"),
            ("--max-size 0", "--max-size", "1..=1048576"),
            ("--ring-kb 3", "--ring-kb", "a power of two from 4 to 1048576"),
            ("--ring-kb 2097152", "--ring-kb", "a power of two from 4 to 1048576"),
        ] {
            let line = record(args).unwrap_err();
            assert!(line.contains(flag) && line.contains(allowed) && !line.contains('\n'), "{line}");
        }
    }
}
