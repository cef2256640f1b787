// SPDX-License-Identifier: GPL-2.0-only
//! The file that `cohort record` writes, and that `cohortlab import` reads. docs/record.md says what it holds.
//!
//! | module | what it is |
//! |---|---|
//! | [`event`] | what happened to a vCPU: 16 bytes |
//! | [`about`] | what else is known: the host, the VMs, what was counted |
//! | [`format`] | where the file's parts are |
//! | [`writer`] | writes one, never more than so many bytes: a ring of slots |
//! | [`reader`] | reads one; whatever the bytes, an error is one line |
//! | [`tracecmd`] | the same from the text of `trace-cmd report` |
//! | [`tasks`] | what guests ran, if they were traced as well |

pub mod about;
pub mod event;
pub mod format;
pub mod reader;
pub mod tasks;
pub mod tracecmd;
pub mod writer;

pub use about::{End, Header, Pcpu, VcpuAbout, VmAbout};
pub use event::{Event, Kind};
pub use reader::{read, Recording};
pub use writer::Writer;
