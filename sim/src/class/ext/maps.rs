// SPDX-License-Identifier: GPL-2.0-only
//! BPF maps: memory that starts as zeroes and stays where it is, found by the address of the map's definition. Each simulation has its own.
//! Nothing here panics: it is called from C.

use std::alloc::{alloc_zeroed, dealloc, handle_alloc_error, Layout};
use std::collections::HashMap;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use super::ffi::NativeArray;

pub const HASH: u32 = 1;
pub const ARRAY: u32 = 2;
const PERCPU_ARRAY: u32 = 6;
const NOEXIST: u64 = 1;
const EINVAL: i64 = 22;
const ENOENT: i64 = 2;
const E2BIG: i64 = 7;
const EEXIST: i64 = 17;

/// What a map's definition says.
#[derive(Clone, Copy)]
pub struct Shape {
    pub map: usize,
    pub kind: u32,
    pub key_size: u32,
    pub value_size: u32,
    pub max_entries: u32,
}

/// Zeroed memory that is aligned as the kernel aligns values at least.
pub struct Memory {
    at: NonNull<u8>,
    layout: Layout,
}

impl Memory {
    pub fn new(size: usize) -> Self {
        let layout = Layout::from_size_align(size.max(1), 64).unwrap_or(Layout::new::<u64>());
        // SAFETY: the size is not zero.
        let at = unsafe { alloc_zeroed(layout) };
        Self { at: NonNull::new(at).unwrap_or_else(|| handle_alloc_error(layout)), layout }
    }

    pub fn at(&self, offset: usize) -> *mut u8 {
        if offset >= self.layout.size() {
            return ptr::null_mut();
        }
        // SAFETY: inside the allocation, as just checked.
        unsafe { self.at.as_ptr().add(offset) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.at.as_ptr(), self.layout) }
    }
}

/// An array map's memory.
struct Array {
    map: usize,
    memory: Memory,
    stride: usize,
    entries: usize,
    copies: usize,
}

#[derive(Default)]
pub struct Maps {
    /// Few: a search through them is faster than a hash.
    arrays: Vec<Array>,
    /// Never walked, so their order does not matter.
    hashes: HashMap<usize, HashMap<Vec<u8>, Memory>>,
    sizes: Vec<(usize, u32)>,
    nr_cpus: usize,
    epoch: u64,
}

/// No two sets of maps in a process have the same number, and none has 0, which those places begin with that know maps.
static EPOCHS: AtomicU64 = AtomicU64::new(1);

impl Maps {
    pub fn new(nr_cpus: usize) -> Self {
        Self { nr_cpus, epoch: EPOCHS.fetch_add(1, Ordering::Relaxed), ..Self::default() }
    }

    /// The number of this set of maps: what is known of them by it stays true, since memory stays where it is.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Give a map another size than its definition's, as user space may before loading.
    pub fn resize(&mut self, map: usize, max_entries: u32) {
        self.sizes.push((map, max_entries));
    }

    fn array(&mut self, shape: Shape) -> &Array {
        let at =
            self.arrays.iter().position(|array| array.map == shape.map).unwrap_or_else(|| self.make(shape));
        &self.arrays[at]
    }

    /// Where the values of an array map are.
    pub fn find(&mut self, shape: Shape) -> NativeArray {
        let epoch = self.epoch;
        let array = self.array(shape);
        let copy = if array.copies > 1 { array.entries * array.stride } else { 0 };
        let [stride, copy, entries] = [array.stride, copy, array.entries].map(|n| n as u64);
        NativeArray { epoch, memory: array.memory.at(0), stride, copy, entries }
    }

    fn array_value(&mut self, shape: Shape, key: u32, cpu: usize) -> *mut u8 {
        let array = self.array(shape);
        if key as usize >= array.entries {
            return ptr::null_mut();
        }
        let copy = if array.copies > 1 { cpu } else { 0 };
        array.memory.at((copy * array.entries + key as usize) * array.stride)
    }

    #[cold]
    fn make(&mut self, shape: Shape) -> usize {
        let resized = self.sizes.iter().find(|(map, _)| *map == shape.map);
        let entries = resized.map_or(shape.max_entries, |(_, entries)| *entries) as usize;
        let stride = (shape.value_size as usize).next_multiple_of(8);
        let copies = if shape.kind == PERCPU_ARRAY { self.nr_cpus } else { 1 };
        let memory = Memory::new(entries * stride * copies);
        self.arrays.push(Array { map: shape.map, memory, stride, entries, copies });
        self.arrays.len() - 1
    }

    /// Of an array map that has been looked at: the entry that this address is in, its number and where it begins.
    pub fn entry_at(&self, map: usize, at: *const u8) -> Option<(u32, *mut u8)> {
        let array = self.arrays.iter().find(|array| array.map == map && array.copies == 1)?;
        let index = (at as usize).checked_sub(array.memory.at(0) as usize)? / array.stride;
        (index < array.entries).then(|| (index as u32, array.memory.at(index * array.stride)))
    }

    /// # Safety
    /// `key` points to a key of the map's size.
    pub unsafe fn lookup(&mut self, shape: Shape, key: *const u8, cpu: usize) -> *mut u8 {
        match shape.kind {
            ARRAY | PERCPU_ARRAY => {
                // SAFETY: array keys are u32.
                let key = unsafe { key.cast::<u32>().read_unaligned() };
                self.array_value(shape, key, cpu)
            }
            HASH => {
                // SAFETY: the caller's promise.
                let key = unsafe { bytes(key, shape.key_size) };
                let known = self.hashes.get(&shape.map).and_then(|table| table.get(key));
                known.map_or(ptr::null_mut(), |memory| memory.at(0))
            }
            _ => ptr::null_mut(),
        }
    }

    /// # Safety
    /// `key` and `value` point to a key and a value of the map's sizes.
    pub unsafe fn update(&mut self, shape: Shape, key: *const u8, value: *const u8, flags: u64) -> i64 {
        if shape.kind != HASH {
            return -EINVAL;
        }
        let table = self.hashes.entry(shape.map).or_default();
        // SAFETY: the caller's promise.
        let key = unsafe { bytes(key, shape.key_size) };
        let known = table.contains_key(key);
        if known && flags == NOEXIST {
            return -EEXIST;
        }
        if !known && table.len() >= shape.max_entries as usize {
            return -E2BIG;
        }
        let memory = table.entry(key.to_vec()).or_insert_with(|| Memory::new(shape.value_size as usize));
        // SAFETY: the caller's promise; the memory is of the value's size and nobody else's.
        unsafe { ptr::copy_nonoverlapping(value, memory.at(0), shape.value_size as usize) };
        0
    }

    /// # Safety
    /// `key` points to a key of the map's size.
    pub unsafe fn delete(&mut self, shape: Shape, key: *const u8) -> i64 {
        // SAFETY: the caller's promise.
        let key = unsafe { bytes(key, shape.key_size) };
        match self.hashes.get_mut(&shape.map).and_then(|table| table.remove(key)) {
            Some(_) => 0,
            None => -ENOENT,
        }
    }

    pub fn percpu_sum(&mut self, shape: Shape, key: u32) -> u64 {
        let array = self.array(shape);
        let place = |copy: usize| (copy * array.entries + key as usize) * array.stride;
        let copies = if (key as usize) < array.entries { array.copies } else { 0 };
        // SAFETY: a per-pCPU counter of the scheduler, a u64, of a key that there is.
        (0..copies).map(|copy| unsafe { array.memory.at(place(copy)).cast::<u64>().read() }).sum()
    }
}

/// # Safety
/// `from` points to `len` readable bytes, which nobody changes meanwhile.
unsafe fn bytes<'a>(from: *const u8, len: u32) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(from, len as usize) }
}

/// What belongs to one owner, a task or a cgroup.
#[derive(Default)]
pub struct Storages(Vec<(usize, Memory)>);

impl Storages {
    pub fn get(&mut self, map: usize, value_size: u32, create: bool) -> *mut u8 {
        if let Some((_, memory)) = self.0.iter().find(|(of, _)| *of == map) {
            return memory.at(0);
        }
        if !create {
            return ptr::null_mut();
        }
        self.0.push((map, Memory::new(value_size as usize)));
        self.0.last().map_or(ptr::null_mut(), |(_, memory)| memory.at(0))
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}
