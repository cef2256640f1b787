// SPDX-License-Identifier: GPL-2.0-only
//! The scheduler's own variables: there is one set in the process, so one world lives at a time, and each begins with a fresh set.

use std::ptr::{addr_of_mut, slice_from_raw_parts_mut};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::ffi;

static LOCK: Mutex<()> = Mutex::new(());
static FRESH: OnceLock<Vec<u8>> = OnceLock::new();

/// The right to use the scheduler's variables.
pub struct Image {
    _lock: MutexGuard<'static, ()>,
}

impl Image {
    /// Wait for the world before to end, and set every variable to what it was when the process started.
    pub fn fresh(knobs: &Knobs, nr_cpus: usize) -> Self {
        ffi::check_layout();
        // A test that failed in the middle leaves nothing behind that the fresh start does not remove.
        let lock = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the linker's bounds of a writable section that only the scheduler and, under the lock, this function use. Nothing in
        // it points anywhere, so bytes can be copied over it.
        let variables = unsafe {
            let start = addr_of_mut!(ffi::__start_cohort_image);
            let len = addr_of_mut!(ffi::__stop_cohort_image) as usize - start as usize;
            &mut *slice_from_raw_parts_mut(start, len)
        };
        let fresh = FRESH.get_or_init(|| variables.to_vec());
        variables.copy_from_slice(fresh);
        knobs.write(nr_cpus as u32);
        Self { _lock: lock }
    }
}

macro_rules! knobs {
    ($($name:ident: $type:ty),+ $(,)?) => {
        mod symbol {
            extern "C" {
                pub static mut nr_cpus: u32;
                $(pub static mut $name: $type;)+
            }
        }

        /// The scheduler's knobs, as user space would set them before loading it.
        #[derive(Clone, Debug, Default)]
        pub struct Knobs {
            $(pub $name: Option<$type>,)+
        }

        impl Knobs {
            fn write(&self, nr_cpus: u32) {
                // SAFETY: the scheduler's `const volatile` variables of these types, in the section that build.rs made writable; no
                // scheduler code runs now.
                unsafe {
                    addr_of_mut!(symbol::nr_cpus).write_volatile(nr_cpus);
                    $(if let Some(value) = self.$name {
                        addr_of_mut!(symbol::$name).write_volatile(value);
                    })+
                }
            }

            /// Those in force in the present world.
            pub fn in_force() -> Self {
                // SAFETY: as above; reading.
                unsafe { Self { $($name: Some(addr_of_mut!(symbol::$name).read_volatile()),)+ } }
            }
        }
    };
}

knobs! {
    slice_ns: u64,
    boost_slice_ns: u64,
    lag_ns: u64,
    starve_ns: u64,
    wakeup_gran_ns: u64,
    placement: u32,
    fair: u32,
    gang: u32,
    boost: u32,
}
