// SPDX-License-Identifier: GPL-2.0-only
//! Why the kernel ended the scheduler, as it says.

use std::fmt;
use std::ptr;

use crate::bpf::CohortSkel;
use crate::vmname::printable_path;

/// How the kernel says that a scheduler's time is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    pub kind: i32,
    pub code: i64,
    pub reason: String,
    pub message: String,
}

/// Set in an exit code when the scheduler should be loaded again, as after a change of the set of CPUs.
const SCX_ECODE_ACT_RESTART: i64 = 1 << 48;
/// Somebody has pressed SysRq-S.
const SCX_EXIT_SYSRQ: i32 = 67;
/// Exit kinds from here on are errors.
const SCX_EXIT_ERROR: i32 = 1024;

impl Ending {
    pub(super) fn read(skel: &CohortSkel<'_>) -> Option<Ending> {
        let bss = skel.maps.bss_data.as_ref()?;
        // SAFETY: bss points to the map's memory, mapped as long as skel lives. The kernel writes it at any time, hence volatile; any bytes
        // are a valid value of these integers and arrays. The scheduler writes exit_kind last.
        let (kind, code, reason, message) = unsafe {
            (
                ptr::read_volatile(&bss.exit_kind),
                ptr::read_volatile(&bss.exit_code),
                ptr::read_volatile(&bss.exit_reason),
                ptr::read_volatile(&bss.exit_msg),
            )
        };
        (kind != 0).then(|| Ending { kind, code, reason: c_text(&reason), message: c_text(&message) })
    }

    pub fn wants_restart(&self) -> bool {
        self.kind < SCX_EXIT_ERROR && self.code & SCX_ECODE_ACT_RESTART != 0
    }

    /// Somebody at the host wants no scheduler but the kernel's own.
    pub fn is_by_hand(&self) -> bool {
        self.kind == SCX_EXIT_SYSRQ
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.reason.as_str(), self.message.as_str()) {
            ("", "") => write!(f, "exit kind {}", self.kind)?,
            (reason, "") => f.write_str(reason)?,
            ("", message) => f.write_str(message)?,
            (reason, message) => write!(f, "{reason}: {message}")?,
        }
        if self.code != 0 {
            write!(f, " (code {:#x})", self.code)?;
        }
        Ok(())
    }
}

/// Text from C: up to the first NUL, on one line.
fn c_text(bytes: &[i8]) -> String {
    let bytes: Vec<u8> = bytes.iter().take_while(|b| **b != 0).map(|b| *b as u8).collect();
    // It may have the name of a task, which is anybody's.
    printable_path(&String::from_utf8_lossy(&bytes).trim().replace('\n', "; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ending(kind: i32, code: i64, reason: &str, message: &str) -> Ending {
        Ending { kind, code, reason: reason.into(), message: message.into() }
    }

    #[test]
    fn hotplug_asks_for_a_restart_and_an_error_does_not() {
        assert!(ending(66, (1 << 48) | (1 << 32), "unregistered", "").wants_restart());
        assert!(!ending(66, 1 << 32, "", "").wants_restart());
        assert!(!ending(1024, 1 << 48, "", "").wants_restart());
    }

    #[test]
    fn sysrq_s_is_by_hand() {
        assert!(ending(67, 0, "disabled by sysrq-S", "").is_by_hand());
        assert!(!ending(66, 0, "", "").is_by_hand() && !ending(1024, 0, "", "").is_by_hand());
    }

    #[test]
    fn an_ending_reads_as_one_line() {
        assert_eq!(
            ending(1026, 0, "runnable task stall", "a waited 10 s").to_string(),
            "runnable task stall: a waited 10 s"
        );
        assert_eq!(ending(64, 0, "", "").to_string(), "exit kind 64");
        assert_eq!(ending(66, 16, "gone", "").to_string(), "gone (code 0x10)");
        let mut text = [0i8; 16];
        for (to, from) in text.iter_mut().zip(b"two\nlines\0rest") {
            *to = *from as i8;
        }
        assert_eq!(c_text(&text), "two; lines");
        assert_eq!(c_text(&b"a\x1b[2J".map(|byte| byte as i8)), "a?[2J");
    }
}
