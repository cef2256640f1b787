// SPDX-License-Identifier: GPL-2.0-only
//! The scheduler's own variables. Compiled natively each thread has one set; a simulation brings its own when it runs, and takes it away afterwards,
//! so that simulations share nothing, in one thread or in several.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::slice;
use std::sync::OnceLock;

use crate::error::SimError;

use super::ffi;

/// The knobs by name: where in the image, and how many bytes.
fn knobs() -> &'static [ffi::KnobEntry] {
    // SAFETY: constants of peek.c, initialized by the compiler.
    unsafe { slice::from_raw_parts(&raw const ffi::native_knobs, ffi::native_knobs_len as usize) }
}

fn name_of(knob: &ffi::KnobEntry) -> &'static str {
    // SAFETY: a C string literal of peek.c.
    unsafe { CStr::from_ptr(knob.name) }.to_str().unwrap_or("?")
}

/// A set of the scheduler's variables.
#[derive(Clone)]
pub struct Image(Vec<u64>);

impl Image {
    /// What this thread has now.
    fn of_thread() -> Self {
        // SAFETY: a constant of peek.c; the memory is as large as it says, and aligned for any variable.
        unsafe {
            let mut image = vec![0u64; (ffi::native_image_size as usize).div_ceil(8)];
            ffi::native_image_save(image.as_mut_ptr());
            Self(image)
        }
    }

    /// As the compiler initialized them, with these knobs.
    pub fn fresh(values: &BTreeMap<String, u64>) -> Result<Self, SimError> {
        ffi::check_layout();
        // The process's first simulation is made while none runs, so that the thread has the initial ones.
        static INITIAL: OnceLock<Vec<u64>> = OnceLock::new();
        let mut image = Self(INITIAL.get_or_init(|| Self::of_thread().0).clone());
        for (name, value) in values {
            let knob = knobs().iter().find(|knob| name_of(knob) == name).ok_or_else(|| {
                let known: Vec<&str> = knobs().iter().map(name_of).collect();
                SimError::Config(format!(
                    "policy.knobs.{name}: there is no such knob; allowed: {}",
                    known.join(", ")
                ))
            })?;
            image.set(name, knob, *value)?;
        }
        Ok(image)
    }

    fn set(&mut self, name: &str, knob: &ffi::KnobEntry, value: u64) -> Result<(), SimError> {
        let max = if knob.size >= 8 { u64::MAX } else { (1 << (8 * knob.size)) - 1 };
        if value > max {
            return Err(SimError::Config(format!("policy.knobs.{name}: is {value}; allowed: 0 to {max}")));
        }
        let (offset, size) = (knob.offset as usize, knob.size as usize);
        for (at, byte) in value.to_le_bytes().into_iter().take(size).enumerate() {
            let (word, shift) = ((offset + at) / 8, (offset + at) % 8 * 8);
            self.0[word] = self.0[word] & !(0xff << shift) | u64::from(byte) << shift;
        }
        Ok(())
    }

    /// The value of a knob.
    pub fn get(&self, name: &str) -> Option<u64> {
        let knob = knobs().iter().find(|knob| name_of(knob) == name)?;
        let byte = |at: usize| self.0[at / 8] >> (at % 8 * 8) & 0xff;
        Some((0..knob.size as usize).map(|at| byte(knob.offset as usize + at) << (8 * at)).sum())
    }

    /// Exchange these with the thread's.
    pub fn swap(&mut self) {
        let others = Self::of_thread();
        // SAFETY: an image of that size.
        unsafe { ffi::native_image_load(self.0.as_ptr()) };
        *self = others;
    }
}
