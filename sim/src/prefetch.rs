// SPDX-License-Identifier: GPL-2.0-only
//! Hints to the processor which memory will be needed. In a simulation larger than its caches most of the time goes into waiting for memory; what the
//! next events are is known, so it can be on its way before they are handled. Nothing that happens depends on a hint.

/// How many days of the calendar ahead a day's events are looked at, a step on each: what a pointer leads to is only known when the pointer is there.
pub const STEPS: usize = 5;

const LINE: usize = 64;

/// Fetch a value's own memory, not what it points to.
#[inline]
pub fn fetch<T>(value: &T) {
    let start = std::ptr::from_ref(value).cast::<i8>();
    for offset in (0..size_of::<T>()).step_by(LINE) {
        fetch_line(start.wrapping_add(offset));
    }
    fetch_line(start.wrapping_add(size_of::<T>().saturating_sub(1)));
}

/// Fetch a list's memory around this place, whether there is something or something will be put there.
#[inline]
pub fn fetch_place<T>(list: &[T], at: usize) {
    fetch_line(list.as_ptr().wrapping_add(at).cast());
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn fetch_line(at: *const i8) {
    use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
    // SAFETY: PREFETCHT0 reads no value and faults at no address; every x86-64 processor has it.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at) };
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn fetch_line(_at: *const i8) {}
