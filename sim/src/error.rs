// SPDX-License-Identifier: GPL-2.0-only
//! Why a simulation ended early, in one line.

use std::fmt::{self, Write as _};

use crate::time::Ns;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SimError {
    /// The description of the run is wrong: which field, what was wrong with it, what is allowed.
    Config(String),
    /// The scheduler of `bpf/` did what the kernel's verifier or runtime refuses; the kernel would have ejected it.
    Refused { at_ns: Ns, op: &'static str, reason: String },
    /// The run has had as many events as it may have, and would go on.
    Limit(String),
    /// This VM's workload does nothing for ever.
    Endless { vm: String, what: String },
    /// The host schedules for ever and no time passes, which is no workload's doing.
    Hang(String),
    /// Who asked for the run wants it to end early.
    Interrupted(String),
}

impl fmt::Display for SimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Config(what)
            | Self::Limit(what)
            | Self::Endless { what, .. }
            | Self::Hang(what)
            | Self::Interrupted(what) => what,
            Self::Refused { at_ns, op, reason } => {
                &format!("at {at_ns} ns, in ops.{op}: the kernel ejects the scheduler: {reason}")
            }
        };
        // A message repeats what somebody wrote, which may hold anything.
        text.chars().try_for_each(|c| {
            if c.is_control() {
                write!(f, "{}", c.escape_default())
            } else {
                f.write_char(c)
            }
        })
    }
}

impl std::error::Error for SimError {}

/// What a deserializer says, with the range of numbers in place of the type that holds them.
pub(crate) fn in_plain_words(what: &str) -> String {
    let ranges = [
        ("u8", u8::MAX.into()),
        ("u16", u16::MAX.into()),
        ("u32", u32::MAX.into()),
        ("u64", u64::MAX),
        ("usize", usize::MAX as u64),
    ];
    let named = ranges.iter().find(|(name, _)| what.contains(&format!("expected {name}")));
    let Some((name, most)) = named else { return what.to_string() };
    what.replace(&format!("expected {name}"), &format!("expected an integer from 0 to {most}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_out_of_range_is_told_the_range() {
        let told = in_plain_words("invalid value: integer `-5`, expected u32");
        assert_eq!(told, "invalid value: integer `-5`, expected an integer from 0 to 4294967295");
        assert_eq!(
            in_plain_words("invalid type: string, expected u8"),
            "invalid type: string, expected an integer from 0 to 255"
        );
        assert_eq!(in_plain_words("expected a time"), "expected a time");
    }

    #[test]
    fn a_message_is_one_line_whatever_it_repeats() {
        let wrong = SimError::Config("unknown field `mach\ne\u{1b}[2J`; allowed: größe".into());
        assert_eq!(wrong.to_string(), "unknown field `mach\\ne\\u{1b}[2J`; allowed: größe");
    }
}
