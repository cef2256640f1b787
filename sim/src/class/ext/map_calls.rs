// SPDX-License-Identifier: GPL-2.0-only
//! The helpers for maps and storage that native.h names, with what it found out about each map's definition.

use super::cgroup::KernCgroup;
use super::costs::Cost;
use super::ffi::{Cgroup, NativeArray, TaskStruct};
use super::maps::{Shape, HASH};
use super::ops::{counted, with};
use super::task::KernTask;

const CREATE: u64 = 1;

fn shape(map: usize, kind: u32, key_size: u32, value_size: u32, max_entries: u32) -> Shape {
    Shape { map, kind, key_size, value_size, max_entries }
}

fn lookup_cost(kind: u32) -> Cost {
    if kind == HASH {
        Cost::Hash
    } else {
        Cost::Array
    }
}

/// # Safety
/// `key` is a key of this map.
#[no_mangle]
pub unsafe extern "C" fn native_map_lookup(
    map: usize,
    kind: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    key: *const u8,
) -> *mut u8 {
    // SAFETY: the caller's promise.
    counted(lookup_cost(kind), |core, ext| unsafe {
        ext.maps.lookup(shape(map, kind, key_size, value_size, max_entries), key, core.this_cpu.index())
    })
}

/// # Safety
/// `array` is this thread's, and nobody else's meanwhile.
#[no_mangle]
unsafe extern "C" fn native_array_find(
    map: usize,
    kind: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    array: *mut NativeArray,
) {
    let found = with(|_, ext| ext.maps.find(shape(map, kind, key_size, value_size, max_entries)));
    // SAFETY: the caller's promise.
    unsafe { array.write(found) };
}

/// # Safety
/// `key` and `value` are those of this map.
#[no_mangle]
unsafe extern "C" fn native_map_update(
    map: usize,
    kind: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    key: *const u8,
    value: *const u8,
    flags: u64,
) -> i64 {
    // SAFETY: the caller's promise.
    counted(Cost::Hash, |_, ext| unsafe {
        ext.maps.update(shape(map, kind, key_size, value_size, max_entries), key, value, flags)
    })
}

/// # Safety
/// `key` is a key of this map.
#[no_mangle]
unsafe extern "C" fn native_map_delete(
    map: usize,
    kind: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    key: *const u8,
) -> i64 {
    // SAFETY: the caller's promise.
    counted(Cost::Hash, |_, ext| unsafe {
        ext.maps.delete(shape(map, kind, key_size, value_size, max_entries), key)
    })
}

/// # Safety
/// `owner` is a task of the model's.
#[no_mangle]
unsafe extern "C" fn native_task_storage(
    map: usize,
    owner: *mut TaskStruct,
    value_size: u32,
    flags: u64,
) -> *mut u8 {
    if owner.is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: the caller's promise: it is the first field of a KernTask, whose storages nobody else uses while the scheduler runs.
    counted(Cost::Storage, |_, _| unsafe {
        (*owner.cast::<KernTask>()).storages.get(map, value_size, flags & CREATE != 0)
    })
}

/// # Safety
/// `owner` is a cgroup of the model's.
#[no_mangle]
unsafe extern "C" fn native_cgrp_storage(
    map: usize,
    owner: *mut Cgroup,
    value_size: u32,
    flags: u64,
) -> *mut u8 {
    if owner.is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: the caller's promise: it is the first field of a KernCgroup, whose storages nobody else uses while the scheduler runs.
    counted(Cost::Storage, |_, _| unsafe {
        (*owner.cast::<KernCgroup>()).storages.get(map, value_size, flags & CREATE != 0)
    })
}

#[no_mangle]
extern "C" fn native_percpu_sum(
    map: usize,
    kind: u32,
    key_size: u32,
    value_size: u32,
    max: u32,
    key: u32,
) -> u64 {
    with(|_, ext| ext.maps.percpu_sum(shape(map, kind, key_size, value_size, max), key))
}
