// SPDX-License-Identifier: GPL-2.0-only
//! The stream of events as others read it.
//!
//! | module | what it writes |
//! |---|---|
//! | [`perfetto`] | TrackEvent protobuf for ui.perfetto.dev, a track for each pCPU and two for each vCPU |
//! | [`ftrace`] | `sched_switch` and its like as text, as `trace-cmd report` writes it and LISA reads it |
//! | [`timeline`] | intervals in columns, to be drawn |
//!
//! All are optional and stop by themselves at a size.

pub mod ftrace;
pub mod perfetto;
mod protobuf;
pub mod timeline;

use std::cell::RefCell;
use std::rc::Rc;

use crate::observe::{Observer, What};
use crate::time::Ns;

/// An observer whose results can be fetched after the run: a simulation is one thread, and lets go of its observers at its end.
pub struct Shared<T>(Rc<RefCell<T>>);

impl<T> Shared<T> {
    pub fn new(observer: T) -> Self {
        Self(Rc::new(RefCell::new(observer)))
    }

    /// Another handle of the same observer: one for the host, one to keep.
    pub fn handle(&self) -> Self {
        Self(Rc::clone(&self.0))
    }

    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut self.0.borrow_mut())
    }
}

impl<T: Observer> Observer for Shared<T> {
    fn record(&mut self, now_ns: Ns, what: &What) {
        self.0.borrow_mut().record(now_ns, what);
    }
}
