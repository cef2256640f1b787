// SPDX-License-Identifier: GPL-2.0-only
//! Whole array maps, read with one system call for many values instead of one for each.

use std::ffi::c_void;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;

use libbpf_rs::MapCore;

/// As much is read at once. A map with values per pCPU may be far larger.
const CHUNK_BYTES: usize = 1 << 20;

/// An array map, as far as reading it goes.
trait Array {
    /// How many values it has.
    fn entries(&self) -> u32;

    /// Bytes of one value; of a map per pCPU, of all its values of one index.
    fn value_len(&self) -> usize;

    /// Read the values that follow index `after`, or the first ones, as many as fit. Return how many, and whether these were the last.
    fn many(&self, after: Option<u32>, keys: &mut [u32], values: &mut [u8]) -> io::Result<(usize, bool)>;

    /// Read one value. Return false if there is none.
    fn one(&self, key: u32, value: &mut [u8]) -> io::Result<bool>;
}

/// As for_each(), up to an end that the value of index 0 tells; to the map's own where it tells none (0).
pub fn for_each_until(
    map: &impl MapCore,
    end: impl FnOnce(&[u8]) -> u32,
    each: impl FnMut(u32, &[u8]),
) -> libbpf_rs::Result<()> {
    let array = InKernel::new(map)?;
    let entries = end_of(&array, end)?;
    Ok(read(&array, entries, CHUNK_BYTES, each)?)
}

/// As for_each(), of the indices below an end that somebody else tells.
pub fn for_each_below(map: &impl MapCore, end: u32, each: impl FnMut(u32, &[u8])) -> libbpf_rs::Result<()> {
    Ok(read_below(&InKernel::new(map)?, end, each)?)
}

/// Call `each` with every index of an array map, in order, and its value. A map per pCPU has a value for each possible pCPU, one behind the other,
/// each padded to 8 bytes.
pub fn for_each(map: &impl MapCore, each: impl FnMut(u32, &[u8])) -> libbpf_rs::Result<()> {
    let array = InKernel::new(map)?;
    Ok(read(&array, array.entries(), CHUNK_BYTES, each)?)
}

/// How many values there are to read by what the first one tells.
fn end_of(array: &impl Array, end: impl FnOnce(&[u8]) -> u32) -> io::Result<u32> {
    let mut first = vec![0; array.value_len()];
    if !array.one(0, &mut first)? {
        return Ok(0);
    }
    Ok(match end(&first) {
        0 => array.entries(),
        told => told.min(array.entries()),
    })
}

/// The values below an end, which may be behind the map's own.
fn read_below(array: &impl Array, end: u32, each: impl FnMut(u32, &[u8])) -> io::Result<()> {
    read(array, end.min(array.entries()), CHUNK_BYTES, each)
}

/// The first so many values.
fn read(
    array: &impl Array,
    entries: u32,
    chunk_bytes: usize,
    mut each: impl FnMut(u32, &[u8]),
) -> io::Result<()> {
    let value_len = array.value_len();
    if value_len == 0 {
        return Ok(());
    }
    let chunk = (chunk_bytes / value_len).clamp(1, entries.max(1) as usize);
    let mut keys = vec![0; chunk];
    let mut values = vec![0; chunk * value_len];
    let (mut last, mut next) = (None, 0);
    // A kernel may not know this for a type of map; the rest is then read one by one, and if that fails too, it says why.
    while next < entries {
        let most = chunk.min((entries - next) as usize);
        let Ok((count, at_end)) = array.many(last, &mut keys[..most], &mut values[..most * value_len]) else {
            break;
        };
        for (key, value) in keys.iter().zip(values.chunks_exact(value_len)).take(count) {
            each(*key, value);
            (last, next) = (Some(*key), *key + 1);
        }
        if at_end {
            return Ok(());
        }
        if count == 0 {
            break;
        }
    }
    for key in next..entries {
        if array.one(key, &mut values[..value_len])? {
            each(key, &values[..value_len]);
        }
    }
    Ok(())
}

/// A map of the kernel's.
struct InKernel<'map, M> {
    map: &'map M,
    value_len: usize,
}

impl<'map, M: MapCore> InKernel<'map, M> {
    fn new(map: &'map M) -> libbpf_rs::Result<Self> {
        let size = map.value_size() as usize;
        let value_len = match map.map_type().is_percpu() {
            true => size.next_multiple_of(8) * libbpf_rs::num_possible_cpus()?,
            false => size,
        };
        Ok(Self { map, value_len })
    }
}

impl<M: MapCore> Array for InKernel<'_, M> {
    fn entries(&self) -> u32 {
        self.map.max_entries()
    }

    fn value_len(&self) -> usize {
        self.value_len
    }

    fn many(&self, after: Option<u32>, keys: &mut [u32], values: &mut [u8]) -> io::Result<(usize, bool)> {
        assert_eq!(self.map.key_size() as usize, size_of::<u32>(), "the index of an array map");
        let mut count = keys.len().min(values.len() / self.value_len) as u32;
        let (mut from, mut to) = (after.unwrap_or_default(), 0u32);
        let from = after.map_or(ptr::null_mut(), |_| (&raw mut from).cast::<c_void>());
        // SAFETY: the kernel writes at most `count` keys of 4 bytes and as many values of `value_len` bytes, which is what it takes for the
        // value of this map (for a map per pCPU: see new()); both slices hold that many. It reads and writes the 4 bytes of `from`, if
        // any, and of `to`, and those of `count`; all live across the call. No options are passed.
        let result = unsafe {
            libbpf_sys::bpf_map_lookup_batch(
                self.map.as_fd().as_raw_fd(),
                from,
                (&raw mut to).cast(),
                keys.as_mut_ptr().cast(),
                values.as_mut_ptr().cast(),
                &raw mut count,
                ptr::null(),
            )
        };
        if result == 0 {
            return Ok((count as usize, false));
        }
        let error = io::Error::last_os_error();
        // No more entries: `count` of them were read.
        if error.raw_os_error() == Some(libc::ENOENT) {
            return Ok((count as usize, true));
        }
        Err(error)
    }

    fn one(&self, key: u32, value: &mut [u8]) -> io::Result<bool> {
        assert_eq!(value.len(), self.value_len);
        // SAFETY: the kernel reads the 4 bytes of `key` and writes `value_len` bytes to `value`, which has as many; see many().
        let result = unsafe {
            libbpf_sys::bpf_map_lookup_elem(
                self.map.as_fd().as_raw_fd(),
                (&raw const key).cast(),
                value.as_mut_ptr().cast(),
            )
        };
        if result == 0 {
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ENOENT) => Ok(false),
            _ => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libbpf_rs::{MapFlags, MapHandle, MapType};
    use std::cell::Cell;

    /// Index 3 holds the bytes 3, 3; index 4 holds 4, 4; and so on.
    struct Fake {
        entries: u32,
        /// After so many batches reading by batches fails.
        batches: Cell<u32>,
        /// So many were read one by one; so many in batches.
        singles: Cell<u32>,
        copied: Cell<u32>,
    }

    impl Array for Fake {
        fn entries(&self) -> u32 {
            self.entries
        }

        fn value_len(&self) -> usize {
            2
        }

        fn many(&self, after: Option<u32>, keys: &mut [u32], values: &mut [u8]) -> io::Result<(usize, bool)> {
            let Some(left) = self.batches.get().checked_sub(1) else {
                return Err(io::Error::from_raw_os_error(libc::EINVAL));
            };
            self.batches.set(left);
            let rest = after.map_or(0, |after| after + 1)..self.entries;
            // As the kernel does it: the end is told by the call that finds less than asked for.
            let (count, at_end) = (rest.len().min(keys.len()), rest.len() < keys.len());
            for (i, key) in rest.take(count).enumerate() {
                keys[i] = key;
                values[2 * i..2 * i + 2].fill(key as u8);
            }
            self.copied.set(self.copied.get() + count as u32);
            Ok((count, at_end))
        }

        fn one(&self, key: u32, value: &mut [u8]) -> io::Result<bool> {
            self.singles.set(self.singles.get() + 1);
            value.fill(key as u8);
            Ok(key < self.entries)
        }
    }

    fn fake(entries: u32, batches: u32) -> Fake {
        Fake { entries, batches: Cell::new(batches), singles: Cell::new(0), copied: Cell::new(0) }
    }

    /// All indices in order, each with its own value; and how many were read one by one.
    fn singles_of(entries: u32, batches: u32) -> u32 {
        let fake = fake(entries, batches);
        let mut next = 0;
        // Three values at a time.
        let each = |key: u32, value: &[u8]| {
            assert_eq!((key, value), (next, [key as u8; 2].as_slice()));
            next += 1;
        };
        read(&fake, entries, 6, each).unwrap();
        assert_eq!(next, entries);
        fake.singles.get()
    }

    #[test]
    fn every_value_once_and_in_order() {
        for entries in 0..10 {
            assert_eq!(singles_of(entries, u32::MAX), 0, "{entries} entries");
        }
    }

    #[test]
    fn what_cannot_be_read_at_once_is_read_one_by_one() {
        assert_eq!(singles_of(8, 0), 8);
        assert_eq!(singles_of(8, 1), 5);
        assert_eq!(singles_of(8, 2), 2);
    }

    #[test]
    fn what_is_read_ends_where_the_first_value_says() {
        for (told, wanted) in
            [(0, 20), (1, 1), (2, 2), (3, 3), (7, 7), (19, 19), (20, 20), (21, 20), (5000, 20)]
        {
            for batches in [u32::MAX, 2, 1, 0] {
                let fake = fake(20, batches);
                let entries =
                    end_of(&fake, |first| if first == [0, 0] { told } else { unreachable!() }).unwrap();
                let mut keys = Vec::new();
                read(&fake, entries, 6, |key, _| keys.push(key)).unwrap();
                assert!(keys.into_iter().eq(0..wanted), "told {told}");
                // The first, to know the end; and nothing behind the end, which would be copied for nobody.
                assert_eq!(fake.singles.get() + fake.copied.get(), 1 + wanted, "told {told}");
            }
        }
        assert_eq!(end_of(&fake(0, 1), |_| unreachable!()).unwrap(), 0);
    }

    #[test]
    fn nothing_behind_the_end_is_read() {
        for (end, wanted) in [(0, 0), (1, 1), (7, 7), (20, 20), (5000, 20)] {
            for batches in [u32::MAX, 0] {
                let fake = fake(20, batches);
                let mut keys = Vec::new();
                read_below(&fake, end, |key, _| keys.push(key)).unwrap();
                assert!(keys.into_iter().eq(0..wanted), "end {end}");
                assert_eq!(fake.singles.get() + fake.copied.get(), wanted, "end {end}");
            }
        }
    }

    #[test]
    fn a_map_that_ends_earlier_than_was_said_is_no_fault() {
        for batches in [u32::MAX, 2, 1, 0] {
            let mut keys = Vec::new();
            read(&fake(7, batches), 12, 6, |key, _| keys.push(key)).unwrap();
            assert!(keys.into_iter().eq(0..7));
        }
    }

    /// A map in the kernel, or None where this user may not have one.
    fn real(map_type: MapType, value_size: u32, entries: u32) -> Option<MapHandle> {
        let opts = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
            ..Default::default()
        };
        match MapHandle::create(map_type, None::<&str>, 4, value_size, entries, &opts) {
            Ok(map) => Some(map),
            Err(error) if error.kind() == libbpf_rs::ErrorKind::PermissionDenied => None,
            Err(error) => panic!("{error:#}"),
        }
    }

    #[test]
    fn maps_of_the_kernel_are_read_whole() {
        let Some(map) = real(MapType::Array, 12, 1000) else { return };
        for key in [0u32, 7, 999] {
            map.update(&key.to_ne_bytes(), &[key as u8; 12], MapFlags::ANY).unwrap();
        }
        let each_time = |chunk_bytes| {
            let mut keys = Vec::new();
            read(&InKernel::new(&map).unwrap(), 1000, chunk_bytes, |key, value| {
                let wanted = if [0, 7, 999].contains(&key) { key as u8 } else { 0 };
                assert_eq!(value, [wanted; 12]);
                keys.push(key);
            })
            .unwrap();
            assert!(keys.into_iter().eq(0..1000), "in chunks of {chunk_bytes} bytes");
        };
        [1, 12, 120, 999 * 12, 1000 * 12, CHUNK_BYTES].into_iter().for_each(each_time);
        let mut value = [1; 12];
        let array = InKernel::new(&map).unwrap();
        assert!(array.one(7, &mut value).unwrap());
        assert_eq!(value, [7; 12]);
        assert!(!array.one(1000, &mut value).unwrap(), "behind the end");
    }

    #[test]
    fn a_map_of_the_kernel_is_read_up_to_the_end_that_its_first_value_tells() {
        let Some(map) = real(MapType::Array, 12, 1000) else { return };
        for (told, read) in [(0, 1000), (1, 1), (2, 2), (700, 700), (1000, 1000), (5000, 1000)] {
            let mut keys = Vec::new();
            for_each_until(&map, |_| told, |key, _| keys.push(key)).unwrap();
            assert!(keys.into_iter().eq(0..read), "told {told}");
        }
    }

    #[test]
    fn a_map_per_pcpu_has_a_padded_value_for_each() {
        let Some(map) = real(MapType::PercpuArray, 12, 5) else { return };
        let cpus = libbpf_rs::num_possible_cpus().unwrap();
        let values: Vec<Vec<u8>> = (0..cpus).map(|cpu| vec![cpu as u8 + 1; 12]).collect();
        map.update_percpu(&3u32.to_ne_bytes(), &values, MapFlags::ANY).unwrap();
        let check = |key: u32, value: &[u8]| {
            assert_eq!(value.len(), 16 * cpus);
            for (cpu, value) in value.chunks_exact(16).enumerate() {
                assert_eq!(value[..12], [if key == 3 { cpu as u8 + 1 } else { 0 }; 12]);
            }
        };
        let mut count = 0;
        for_each(&map, |key, value| {
            check(key, value);
            count += 1;
        })
        .unwrap();
        assert_eq!(count, 5);
        let mut value = vec![1; 16 * cpus];
        assert!(InKernel::new(&map).unwrap().one(3, &mut value).unwrap());
        check(3, &value);
    }
}
