// SPDX-License-Identifier: GPL-2.0-only
//! The scheduler's map `set_of`, in our memory: an entry is written at once, so that the scheduler never reads half of one.

use std::io;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use libbpf_rs::MapCore;

pub struct Board {
    at: *mut libc::c_void,
    entries: u32,
}

impl Board {
    pub fn open(map: &impl MapCore) -> io::Result<Self> {
        let entries = map.max_entries();
        // SAFETY: a new mapping, at an address of the kernel's choice, of as many bytes as the map has.
        let at = unsafe {
            libc::mmap(
                ptr::null_mut(),
                entries as usize * size_of::<u64>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                map.as_fd().as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { at, entries })
    }

    /// Write an entry; one that is not there is nobody's.
    pub fn put(&self, index: u32, value: u64) {
        if index >= self.entries {
            return;
        }
        // SAFETY: the index is within the mapping, which lives as long as self; it begins at a page, so that its u64s are aligned; only the scheduler,
        // which reads, shares it.
        let entry = unsafe { AtomicU64::from_ptr(self.at.cast::<u64>().add(index as usize)) };
        if entry.load(Ordering::Relaxed) != value {
            entry.store(value, Ordering::Relaxed);
        }
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, of that size, and nothing refers to it any more.
        unsafe { libc::munmap(self.at, self.entries as usize * size_of::<u64>()) };
    }
}
