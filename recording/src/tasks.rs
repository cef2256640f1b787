// SPDX-License-Identifier: GPL-2.0-only
//! What guests' own kernels say: which task runs on which vCPU. Only traces of guests tell it; `cohort record` sees none of it.

/// A guest's kernel goes over to another task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// Of the host's clock.
    pub time_ns: u64,
    /// The vCPU's, as events have it.
    pub slot: u16,
    /// The place of the task's name in [`Tasks::names`], and its number in the guest; none: the guest is idle.
    pub to: Option<(u32, u32)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tasks {
    pub names: Vec<String>,
    /// In the order of their times.
    pub switches: Vec<Switch>,
}
