// SPDX-License-Identifier: GPL-2.0-only
//! BPF timers: a `struct bpf_timer` in the value of an array map, whose callback runs on the pCPU that started it, with no run queue locked.

use crate::events::{Event, Timer};
use crate::host::Core;
use crate::ids::CpuId;

use super::costs::Cost;
use super::ops::{counted, with, OpKind, NOBODY};
use super::Ext;

pub const CLOCK_MONOTONIC: u64 = 1;
pub const START_ABS: u64 = 1;
pub const START_PINNED: u64 = 2;
const ENOMEM: i64 = 12;
const EINVAL: i64 = 22;
const EBUSY: i64 = 16;
const EDEADLK: i64 = 35;

pub type Callback = extern "C" fn(usize, *mut i32, *mut u8) -> i32;

struct ExtTimer {
    map: usize,
    key: i32,
    value: *mut u8,
    callback: Option<Callback>,
    cpu: CpuId,
    timer: Timer,
}

#[derive(Default)]
pub struct Timers {
    /// By the number in the scheduler's `struct bpf_timer`, less 1.
    known: Vec<ExtTimer>,
    /// Whose callback runs.
    firing: Option<u32>,
}

impl Timers {
    /// The scheduler is gone: none fires any more.
    pub fn clear(&mut self) {
        self.known.clear();
    }
}

impl Ext {
    /// The timer's time has come, unless it was set anew since.
    pub(super) fn timer_fires(&mut self, core: &mut Core, id: u32, generation: u32) {
        let Some(known) = self.timers.known.get_mut(id as usize) else { return };
        if !known.timer.fires(generation) {
            return;
        }
        let (map, value, callback) = (known.map, known.value, known.callback);
        let mut key = known.key;
        // Hotplug moves the timers of a pCPU that goes.
        let cpu = if core.cpu(known.cpu).online { known.cpu } else { core.first_online() };
        core.this_cpu = cpu;
        self.timers.firing = Some(id);
        self.call(core, OpKind::Timer, NOBODY, || {
            callback.map(|callback| callback(map, &raw mut key, value))
        });
        self.timers.firing = None;
    }

    fn timer_init(&mut self, timer: &mut [u64; 2], map: usize, flags: u64) -> i64 {
        if !self.may("bpf_timer_init", &[], true) || flags != CLOCK_MONOTONIC {
            return -EINVAL;
        }
        if timer[0] != 0 {
            return -EBUSY;
        }
        let Some((key, value)) = self.maps.entry_at(map, timer.as_ptr().cast()) else {
            self.refuse("bpf_timer_init: the timer is in no value of this array map");
            return -EINVAL;
        };
        self.timers.known.push(ExtTimer {
            map,
            key: key as i32,
            value,
            callback: None,
            cpu: CpuId(0),
            timer: Timer::default(),
        });
        timer[0] = self.timers.known.len() as u64;
        0
    }

    fn timer_start(&mut self, core: &mut Core, index: usize, ns: u64, flags: u64) -> i64 {
        let now_ns = self.ktime_ns(core);
        let known = &mut self.timers.known[index];
        if known.callback.is_none() || flags & !(START_ABS | START_PINNED) != 0 {
            return -EINVAL;
        }
        if core.now_ns < self.config.no_timers_until_ns {
            return -ENOMEM;
        }
        let in_ns = if flags & START_ABS != 0 { ns.saturating_sub(now_ns) } else { ns };
        known.cpu = core.this_cpu;
        let event = Event::ClassTimer { id: index as u32, generation: known.timer.arm() };
        core.events.push(core.now_ns.saturating_add(in_ns), event);
        0
    }

    fn timer_cancel(&mut self, index: usize) -> i64 {
        // 7.x says -EOPNOTSUPP with interrupts off; 6.18 waits for a callback that may wait for the lock that is held.
        let tracing = self.op.is_some_and(|op| op.kind == OpKind::Tracing);
        if !tracing && !self.may("bpf_timer_cancel", &[], true) {
            return -EINVAL;
        }
        if self.timers.firing == Some(index as u32) {
            return -EDEADLK;
        }
        let timer = &mut self.timers.known[index].timer;
        let armed = timer.is_armed();
        timer.cancel();
        i64::from(armed)
    }
}

/// # Safety
/// `timer` is in a value of a map of the model's.
unsafe fn index_of(timer: *const u64) -> Option<usize> {
    // SAFETY: the caller's promise; values are aligned for u64.
    unsafe { timer.read() }.checked_sub(1).map(|index| index as usize)
}

/// # Safety
/// `timer` is in a value of a map of the model's.
#[no_mangle]
pub unsafe extern "C" fn native_timer_init(timer: *mut [u64; 2], map: usize, flags: u64) -> i64 {
    // SAFETY: the caller's promise.
    with(|_, ext| unsafe { ext.timer_init(&mut *timer, map, flags) })
}

/// # Safety
/// `timer` is in a value of a map of the model's, `callback` a timer's callback.
#[no_mangle]
pub unsafe extern "C" fn native_timer_set_callback(timer: *mut u64, callback: Callback) -> i64 {
    // SAFETY: the caller's promise.
    with(|_, ext| match unsafe { index_of(timer) } {
        // Since 7.1 the callback has the rights of the operation that names it: of one that locks a run queue they would be other ones.
        Some(index) if ext.may("bpf_timer_set_callback", &[], true) => {
            ext.timers.known[index].callback = Some(callback);
            0
        }
        _ => -EINVAL,
    })
}

/// # Safety
/// `timer` is in a value of a map of the model's.
#[no_mangle]
pub unsafe extern "C" fn bpf_timer_start(timer: *mut u64, ns: u64, flags: u64) -> i64 {
    // SAFETY: the caller's promise.
    counted(Cost::TimerStart, |core, ext| match unsafe { index_of(timer) } {
        Some(index) => ext.timer_start(core, index, ns, flags),
        None => -EINVAL,
    })
}

/// # Safety
/// `timer` is in a value of a map of the model's.
#[no_mangle]
pub unsafe extern "C" fn bpf_timer_cancel(timer: *mut u64) -> i64 {
    // SAFETY: the caller's promise.
    counted(Cost::TimerCancel, |_, ext| match unsafe { index_of(timer) } {
        Some(index) => ext.timer_cancel(index),
        None => -EINVAL,
    })
}
