// SPDX-License-Identifier: GPL-2.0-only
//! What the user reads on stderr, one line each: `cohort: message field=value`. And the log of libbpf, kept for when a load fails.

use std::fmt;
use std::io;
use std::sync::Mutex;

use libbpf_rs::PrintLevel;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Why the program ends without having done its job: one line and the exit status.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    pub status: u8,
    pub line: String,
}

impl Failure {
    /// Bad input, or a host on which the scheduler must not run: the user has to change something first.
    pub fn refused(line: impl Into<String>) -> Self {
        Failure { status: 2, line: line.into() }
    }

    /// It was tried, and went wrong.
    pub fn failed(line: impl Into<String>) -> Self {
        Failure { status: 1, line: line.into() }
    }
}

struct Line;

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        ctx: &FmtContext<'_, S, N>,
        mut out: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let level = *event.metadata().level();
        let label = match level {
            Level::WARN => "warning: ",
            Level::DEBUG | Level::TRACE => "debug: ",
            Level::INFO | Level::ERROR => "",
        };
        write!(out, "cohort: {label}")?;
        ctx.field_format().format_fields(out.by_ref(), event)?;
        writeln!(out)
    }
}

/// Send log events to stderr, and libbpf's messages among them.
pub fn start_log(verbose: u8) {
    let level = if verbose > 0 { Level::DEBUG } else { Level::INFO };
    // Fails only if a log was started before, which then serves as well.
    let _ = tracing_subscriber::fmt()
        .with_ansi(false)
        .log_internal_errors(false)
        .event_format(Line)
        .with_max_level(level)
        .with_writer(io::stderr)
        .try_init();
    keep_libbpf_quiet();
}

/// What libbpf says goes to the log, if there is one, and not to stderr by itself.
pub fn keep_libbpf_quiet() {
    libbpf_rs::set_print(Some((PrintLevel::Debug, on_libbpf)));
}

/// The first messages of libbpf at level warning, which say why a load failed.
static LIBBPF_WARNINGS: Mutex<String> = Mutex::new(String::new());
const LIBBPF_WARNINGS_MAX: usize = 1 << 20;

fn on_libbpf(level: PrintLevel, message: String) {
    if level == PrintLevel::Warn {
        keep(&mut LIBBPF_WARNINGS.lock().unwrap_or_else(|e| e.into_inner()), &message);
    }
    for line in message.lines() {
        tracing::debug!("{line}");
    }
}

/// Of a message that is too long, as a verifier's log may be, the beginning is kept: it says whose it is. What libbpf says of it afterwards has room, too.
fn keep(kept: &mut String, message: &str) {
    let room = LIBBPF_WARNINGS_MAX.saturating_sub(kept.len());
    if message.len() <= room {
        kept.push_str(message);
        return;
    }
    let mut end = room / 2;
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    kept.push_str(&message[..end]);
    // The next one begins a line.
    if end > 0 {
        kept.push('\n');
    }
}

/// libbpf's warnings since the last call.
pub fn take_libbpf_warnings() -> String {
    std::mem::take(&mut *LIBBPF_WARNINGS.lock().unwrap_or_else(|e| e.into_inner()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_log_that_is_too_long_the_beginning_is_kept_and_what_follows_it() {
        let mut kept = String::new();
        let begin = "libbpf: prog 'a': -- BEGIN PROG LOAD LOG --\n";
        let log = format!("{begin}{}-- END PROG LOAD LOG --\n", "0: ä\n".repeat(LIBBPF_WARNINGS_MAX));
        let failed = "libbpf: prog 'a': failed to load: -EINVAL\n";
        let mut lines = Vec::new();
        for message in [failed, &log, failed, &log, failed] {
            keep(&mut kept, message);
            lines.push(message.lines().next().unwrap_or_default());
        }
        assert!(kept.len() <= LIBBPF_WARNINGS_MAX, "{}", kept.len());
        let said: Vec<&str> = kept.lines().filter(|line| line.starts_with("libbpf: ")).collect();
        assert_eq!(said, lines);
        assert!(kept.ends_with(failed));
        // Nothing is left, and nothing goes wrong.
        (0..100).for_each(|_| keep(&mut kept, &log));
        assert!(kept.len() <= LIBBPF_WARNINGS_MAX, "{}", kept.len());
    }
}
