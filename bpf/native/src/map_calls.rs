// SPDX-License-Identifier: GPL-2.0-only
//! The helpers for maps and storage that native.h names, with what it found out about each map's definition.

use crate::maps::Shape;
use crate::ops::with_world;

fn shape(map: usize, kind: u32, key_size: u32, value_size: u32, max_entries: u32) -> Shape {
    Shape { map, kind, key_size, value_size, max_entries }
}

/// # Safety
/// `key` is a key of this map.
#[no_mangle]
unsafe extern "C" fn native_map_lookup(
    map: usize,
    kind: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    key: *const u8,
) -> *mut u8 {
    // SAFETY: the caller's promise.
    with_world(|w| unsafe {
        w.maps.lookup(shape(map, kind, key_size, value_size, max_entries), key, w.this_cpu)
    })
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
    with_world(|w| unsafe {
        w.maps.update(shape(map, kind, key_size, value_size, max_entries), key, value, flags)
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
    with_world(|w| unsafe { w.maps.delete(shape(map, kind, key_size, value_size, max_entries), key) })
}

#[no_mangle]
extern "C" fn native_storage(map: usize, owner: usize, value_size: u32, flags: u64) -> *mut u8 {
    with_world(|w| w.maps.storage(map, owner, value_size, flags))
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
    with_world(|w| w.maps.percpu_sum(shape(map, kind, key_size, value_size, max), key))
}
