// SPDX-License-Identifier: GPL-2.0-only
//! What was written is read again; what was damaged is one line, and never a panic.
//!
//! `PROPTEST_CASES=1000000 PROPTEST_RNG_SEED=1 cargo test --release -p cohort-recording --test damage` tries a million damaged recordings.

#![allow(clippy::unwrap_used, reason = "a test's helpers may fail as the test does")]

use std::io::Cursor;

use cohort_recording::event::{Event, Kind};
use cohort_recording::format::{header_crc, PREAMBLE_BYTES, SLOT_HEAD_BYTES};
use cohort_recording::reader::Owners;
use cohort_recording::{read, End, Header, Pcpu, Recording, VcpuAbout, VmAbout, Writer};
use proptest::prelude::*;

mod cases;

const SLOT_BYTES: usize = SLOT_HEAD_BYTES + 4 * 16;

fn header() -> Header {
    let pcpu = |cpu| Pcpu { cpu, core: cpu, ..Pcpu::default() };
    Header {
        kernel: "7.3".into(),
        scheduler: "fair".into(),
        pcpus: vec![pcpu(0), pcpu(1)],
        ..Header::default()
    }
}

fn end() -> End {
    let vcpu = |slot: u16| VcpuAbout { slot, vcpu: slot.into(), ..VcpuAbout::default() };
    let vm = VmAbout { name: "a".into(), weight: 100.0, vcpus: vec![vcpu(0), vcpu(1)], ..VmAbout::default() };
    End { vms: vec![vm], dropped: 3, ..End::default() }
}

fn event(number: u64) -> Event {
    let kind = Kind::ALL[number as usize % Kind::ALL.len()];
    Event { time_ns: number * 1_000, cpu: (number % 2) as u16, vcpu: (number % 3) as u16, kind, a: 1, b: 1 }
}

/// A recording of so many events in at most so many slots of four.
fn bytes(events: u64, slots_max: u64) -> Vec<u8> {
    let mut writer = Writer::new(Cursor::new(Vec::new()), &header(), SLOT_BYTES, slots_max).unwrap();
    for number in 0..events {
        writer.event(event(number)).unwrap();
    }
    let (to, length) = writer.finish(end()).unwrap();
    let bytes = to.into_inner();
    assert_eq!(bytes.len() as u64, length);
    bytes
}

#[test]
fn what_was_written_is_read_again() {
    for events in [0, 1, 4, 5, 40] {
        let recording = read(&bytes(events, 100)).unwrap();
        let slots = (0, events.div_ceil(4));
        assert_eq!((recording.header, recording.end), (header(), End { slots, ..end() }));
        assert_eq!(recording.events, (0..events).map(event).collect::<Vec<_>>());
    }
}

#[test]
fn a_full_file_keeps_the_newest_and_says_how_many_are_gone() {
    for events in 9..40 {
        let recording = read(&bytes(events, 2)).unwrap();
        let kept = recording.events.len() as u64;
        assert_eq!(recording.end.overwritten + kept, events);
        assert!((5..=8).contains(&kept), "{kept} of {events}");
        assert_eq!(recording.events, (events - kept..events).map(event).collect::<Vec<_>>());
    }
    assert_eq!(bytes(2_000, 2).len(), bytes(3_000, 2).len(), "it does not grow");
}

#[test]
fn a_slot_is_whoever_had_it_at_that_time() {
    let mut recording = Recording { end: end(), ..Recording::default() };
    let again = VcpuAbout { slot: 1, from_ns: 500, ..VcpuAbout::default() };
    recording.end.vms.push(VmAbout { vcpus: vec![again], ..VmAbout::default() });
    let owners = Owners::of(&recording);
    assert_eq!(owners.at(1, 499), Some((0, 1)));
    assert_eq!(owners.at(1, 500), Some((1, 0)));
    assert_eq!(owners.at(2, 500), None);
    // The first one was gone at 300, and who came at 400 is not known.
    recording.end.unowned = vec![(1, 301), (1, 400), (1, 500), (1, 600)];
    let owners = Owners::of(&recording);
    let seen = [300, 301, 499, 500, 599, 600].map(|time_ns| owners.at(1, time_ns));
    assert_eq!(seen, [Some((0, 1)), None, None, Some((1, 0)), Some((1, 0)), None]);
    assert_eq!(owners.at(0, 600), Some((0, 0)), "another slot");
}

#[test]
fn each_cut_is_one_line() {
    let whole = bytes(9, 100);
    for length in 0..whole.len() {
        let error = read(&whole[..length]).unwrap_err();
        assert!(!error.contains('\n') && !error.is_empty(), "{length}: {error}");
    }
    let mut longer = whole;
    longer.push(0);
    assert!(read(&longer).unwrap_err().contains("something follows"));
}

/// All of the bytes count: one that is wrong is noticed.
#[test]
fn each_wrong_byte_is_one_line() {
    let whole = bytes(9, 100);
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x41;
        let error = read(&damaged).unwrap_err();
        assert!(!error.contains('\n') && !error.is_empty(), "{at}: {error}");
    }
}

/// Put right the check sums of a damaged recording, so that what is behind them is tried as well.
fn mended(mut bytes: Vec<u8>) -> Vec<u8> {
    let word =
        |bytes: &[u8], at: usize| bytes.get(at..at + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let Some(length) = word(&bytes, 16).map(|n| n as usize) else { return bytes };
    let Some(header) = bytes.get(PREAMBLE_BYTES..PREAMBLE_BYTES.saturating_add(length)) else { return bytes };
    let crc = header_crc(&bytes[..20], header);
    bytes[20..24].copy_from_slice(&crc.to_le_bytes());
    let mut at = PREAMBLE_BYTES + length;
    while let Some(slot) = bytes.get_mut(at..at + SLOT_BYTES) {
        if slot[..4] != cohort_recording::format::SLOT_MAGIC.to_le_bytes() {
            break;
        }
        let crc = crc32fast::hash(&slot[8..]);
        slot[4..8].copy_from_slice(&crc.to_le_bytes());
        at += SLOT_BYTES;
    }
    if let Some(tail) = bytes.get_mut(at..).filter(|tail| tail.len() > 12) {
        let crc = crc32fast::hash(&tail[8..]);
        tail[4..8].copy_from_slice(&crc.to_le_bytes());
    }
    bytes
}

proptest! {
    #![proptest_config(cases::cases())]

    #[test]
    fn damage_never_panics(
        events in 0u64..40,
        slots in 1u64..6,
        wrong in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        cut in prop::option::of(any::<prop::sample::Index>()),
        twice in prop::option::of((any::<prop::sample::Index>(), any::<prop::sample::Index>())),
        mend in any::<bool>(),
    ) {
        let whole = bytes(events, slots);
        let mut damaged = whole.clone();
        for (at, value) in &wrong {
            let at = at.index(damaged.len());
            damaged[at] = *value;
        }
        if let Some(cut) = cut {
            damaged.truncate(cut.index(damaged.len() + 1));
        }
        if let Some((from, to)) = twice.filter(|_| !damaged.is_empty()) {
            let (from, to) = (from.index(damaged.len()), to.index(damaged.len()));
            let part = damaged[from..].to_vec();
            damaged.splice(to.., part);
        }
        if mend {
            damaged = mended(damaged);
        }
        match read(&damaged) {
            Ok(recording) => prop_assert!(mend || damaged == whole, "damage was not noticed: {recording:?}"),
            Err(error) => prop_assert!(!error.contains('\n') && !error.is_empty(), "{error}"),
        }
    }
}
