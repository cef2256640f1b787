// SPDX-License-Identifier: GPL-2.0-only
//! BPF maps: memory that starts as zeroes and stays where it is, found by the address of the map's definition.

use std::alloc::{alloc_zeroed, dealloc, handle_alloc_error, Layout};
use std::collections::HashMap;
use std::ptr::{self, NonNull};

const HASH: u32 = 1;
const ARRAY: u32 = 2;
const PERCPU_ARRAY: u32 = 6;
const NOEXIST: u64 = 1;
const CREATE: u64 = 1;
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
struct Memory {
    at: NonNull<u8>,
    layout: Layout,
}

impl Memory {
    fn new(size: usize) -> Self {
        let layout = Layout::from_size_align(size.max(1), 64).expect("a map of a size that a machine has");
        // SAFETY: the size is not zero.
        let at = unsafe { alloc_zeroed(layout) };
        Self { at: NonNull::new(at).unwrap_or_else(|| handle_alloc_error(layout)), layout }
    }

    fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.layout.size());
        // SAFETY: inside the allocation, as just asserted.
        unsafe { self.at.as_ptr().add(offset) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.at.as_ptr(), self.layout) }
    }
}

#[derive(Default)]
pub struct Maps {
    arrays: HashMap<usize, Memory>,
    hashes: HashMap<usize, HashMap<Vec<u8>, Memory>>,
    storages: HashMap<(usize, usize), Memory>,
    sizes: HashMap<usize, u32>,
    nr_cpus: usize,
}

impl Maps {
    pub fn new(nr_cpus: usize) -> Self {
        Self { nr_cpus, ..Self::default() }
    }

    /// Give a map another size than its definition's, as user space may before loading.
    pub fn resize(&mut self, map: usize, max_entries: u32) {
        self.sizes.insert(map, max_entries);
    }

    fn array_value(&mut self, shape: Shape, key: u32, cpu: usize) -> *mut u8 {
        let entries = self.sizes.get(&shape.map).copied().unwrap_or(shape.max_entries) as usize;
        let stride = (shape.value_size as usize).next_multiple_of(8);
        let copies = if shape.kind == PERCPU_ARRAY { self.nr_cpus } else { 1 };
        if key as usize >= entries {
            return ptr::null_mut();
        }
        let memory = self.arrays.entry(shape.map).or_insert_with(|| Memory::new(entries * stride * copies));
        let copy = if copies > 1 { cpu } else { 0 };
        memory.at((copy * entries + key as usize) * stride)
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
                let known = self.hashes.entry(shape.map).or_default().get(&key);
                known.map_or(ptr::null_mut(), |memory| memory.at(0))
            }
            kind => unreachable!("map type {kind} is not modelled"),
        }
    }

    /// # Safety
    /// `key` and `value` point to a key and a value of the map's sizes.
    pub unsafe fn update(&mut self, shape: Shape, key: *const u8, value: *const u8, flags: u64) -> i64 {
        assert_eq!(shape.kind, HASH, "the model updates hash maps only");
        let table = self.hashes.entry(shape.map).or_default();
        // SAFETY: the caller's promise.
        let key = unsafe { bytes(key, shape.key_size) };
        if table.contains_key(&key) && flags == NOEXIST {
            return -EEXIST;
        }
        if !table.contains_key(&key) && table.len() >= shape.max_entries as usize {
            return -E2BIG;
        }
        let memory = table.entry(key).or_insert_with(|| Memory::new(shape.value_size as usize));
        // SAFETY: the caller's promise; the memory is of the value's size and nobody else's.
        unsafe { ptr::copy_nonoverlapping(value, memory.at(0), shape.value_size as usize) };
        0
    }

    /// # Safety
    /// `key` points to a key of the map's size.
    pub unsafe fn delete(&mut self, shape: Shape, key: *const u8) -> i64 {
        // SAFETY: the caller's promise.
        let key = unsafe { bytes(key, shape.key_size) };
        match self.hashes.entry(shape.map).or_default().remove(&key) {
            Some(_) => 0,
            None => -ENOENT,
        }
    }

    /// Task and cgroup storage.
    pub fn storage(&mut self, map: usize, owner: usize, value_size: u32, flags: u64) -> *mut u8 {
        if flags & CREATE != 0 {
            self.storages.entry((map, owner)).or_insert_with(|| Memory::new(value_size as usize));
        }
        self.storages.get(&(map, owner)).map_or(ptr::null_mut(), |memory| memory.at(0))
    }

    /// What is stored with an owner goes with it.
    pub fn forget(&mut self, owner: usize) {
        self.storages.retain(|(_, of), _| *of != owner);
    }

    pub fn percpu_sum(&mut self, shape: Shape, key: u32) -> u64 {
        (0..self.nr_cpus)
            .map(|cpu| self.array_value(shape, key, cpu))
            .filter(|value| !value.is_null())
            // SAFETY: a per-pCPU counter of the scheduler, a u64.
            .map(|value| unsafe { value.cast::<u64>().read() })
            .sum()
    }
}

/// # Safety
/// `from` points to `len` readable bytes.
unsafe fn bytes(from: *const u8, len: u32) -> Vec<u8> {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(from, len as usize) }.to_vec()
}
