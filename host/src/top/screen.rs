// SPDX-License-Identifier: GPL-2.0-only
//! The terminal: keys in, the screen out, a sample when one is due.

use std::io::{self, IsTerminal};
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyEventKind};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::app::App;
use super::args::Top;
use super::draw::draw;
use super::sample::Sample;
use super::source::Source;
use crate::run::Stops;
use crate::say::Failure;

/// The first interval is short: nobody wants to look at an empty screen.
const FIRST: Duration = Duration::from_millis(500);
/// How often signals are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);

pub fn run(
    args: &Top,
    source: &mut Source<'_>,
    stops: &Stops,
    show: &mut dyn FnMut(&Sample),
) -> Result<(), Failure> {
    let failed = |e: io::Error| Failure::failed(format!("the terminal cannot be used: {e}"));
    let mut app = App::new(args.columns.as_ref().map(|columns| columns.0.clone()), args.interval);
    app.take(source.first(stops)?);
    let mut due = Instant::now() + FIRST.min(app.every);
    end_with_the_terminal();
    // A panic restores the terminal too.
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let result = loop {
        if let Err(error) = terminal.draw(|frame| draw(frame, &mut app)) {
            break if is_gone(Wait::No) { Ok(()) } else { Err(failed(error)) };
        }
        match event::poll(due.saturating_duration_since(Instant::now()).min(LOOK_EVERY)) {
            Ok(true) => match event::read() {
                Ok(Event::Key(key)) if key.kind == KeyEventKind::Press => {
                    app.key(key);
                    due = sooner(due, Instant::now(), app.every);
                }
                Ok(_) => {}
                Err(error) => break if is_gone(Wait::No) { Ok(()) } else { Err(failed(error)) },
            },
            Ok(false) => {}
            // A signal, for instance that of a changed size.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => break if is_gone(Wait::No) { Ok(()) } else { Err(failed(error)) },
        }
        if app.quit || stops.asked() {
            break Ok(());
        }
        if Instant::now() >= due {
            match source.look() {
                Ok(Some(sample)) => {
                    show(&sample);
                    if !app.paused {
                        app.take(sample);
                    }
                }
                // The end of a file: its last screen stays.
                Ok(None) => {}
                Err(failure) => break Err(failure),
            }
            due = Instant::now() + app.every;
        }
    };
    ratatui::restore();
    result
}

/// When the next look is due after a key, which may have changed how often: who has made a long interval
/// shorter does not wait for the end of the long one. Other keys put nothing off.
fn sooner(due: Instant, now: Instant, every: Duration) -> Instant {
    due.min(now + every)
}

/// Ends this process when its terminal is gone. Who was started with SIGHUP ignored is not told by a signal; what reads the keys
/// then finds an end of file, again and again and for ever, and does not come back.
fn end_with_the_terminal() {
    thread::spawn(|| {
        while !is_gone(Wait::Yes) {}
        // What is shown may be on another terminal than the keys. The kernel takes the probe away with us.
        let _ = ratatui::try_restore();
        process::exit(0); // as by SIGHUP
    });
}

#[derive(PartialEq)]
enum Wait {
    Yes,
    No,
}

/// Is the terminal gone? May wait until it is, or a signal comes.
fn is_gone(wait: Wait) -> bool {
    let stdin = io::stdin();
    // No input is waited for.
    let mut terminal = [PollFd::new(&stdin, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let found = poll(&mut terminal, (wait == Wait::No).then_some(&now));
    match found {
        Ok(_) => !terminal[0].revents().is_empty(),
        Err(error) => error != Errno::INTR,
    }
}

/// Refuse what would fill a file with a terminal's commands.
pub fn check() -> Result<(), Failure> {
    if io::stdout().is_terminal() && io::stdin().is_terminal() {
        return Ok(());
    }
    Err(Failure::refused(
        "stdin and stdout must be a terminal: for scripts use --batch, with --json or --csv, or --listen",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shorter_interval_holds_at_once_and_a_longer_one_from_the_next_on() {
        let now = Instant::now();
        let (hour, minute) = (Duration::from_secs(3600), Duration::from_secs(60));
        assert_eq!(sooner(now + hour, now, minute), now + minute);
        assert_eq!(sooner(now + minute, now, hour), now + minute);
        // A key that changes nothing, half an interval after the last look.
        assert_eq!(sooner(now + minute / 2, now, minute), now + minute / 2);
    }
}
