// SPDX-License-Identifier: GPL-2.0-only
//! Reads a recording. All of it is right, or there is an error of one line: half of the truth would look like all of it.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;

use crate::about::{End, Header, VcpuAbout};
use crate::event::{Event, Kind, BYTES};
use crate::format::{
    header_crc, END_HEAD_BYTES, END_MAGIC, HEADER_BYTES_MAX, MAGIC, PREAMBLE_BYTES, SLOT_BYTES_MAX,
    SLOT_BYTES_MIN, SLOT_HEAD_BYTES, SLOT_MAGIC, VERSION,
};
use crate::tasks::Tasks;

/// pCPUs and slots that the probe can have (bpf/probe/intf.h); so a wrong number does not cost all of the memory.
pub const PCPUS_MAX: u32 = 4096;
pub const VMS_MAX: usize = 1 << 16;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recording {
    pub header: Header,
    pub end: End,
    /// In the order of their times.
    pub events: Vec<Event>,
    /// Empty unless guests were traced, too.
    pub tasks: Tasks,
}

/// The recording in these bytes, or what is wrong with them: one line, without the file's name.
pub fn read(bytes: &[u8]) -> Result<Recording, String> {
    if bytes.len() < MAGIC.len() || bytes[..MAGIC.len()] != MAGIC {
        return Err("is no recording of `cohort record`: it does not begin like one".into());
    }
    let cut = || "is cut off: the recorder did not end, or the file was not copied whole".to_string();
    let number = |at: usize| word(bytes, at).ok_or_else(cut);
    let (version, slot_bytes, header_bytes, crc) = (number(8)?, number(12)?, number(16)?, number(20)?);
    if version != VERSION {
        return Err(format!("is of format {version}; allowed: {VERSION}"));
    }
    let (slot_bytes, header_bytes) = (slot_bytes as usize, header_bytes as usize);
    if !(SLOT_BYTES_MIN..=SLOT_BYTES_MAX).contains(&slot_bytes) || header_bytes > HEADER_BYTES_MAX {
        return Err("is damaged: the sizes at its begin cannot be".into());
    }
    let slots_at = PREAMBLE_BYTES + header_bytes;
    let header = bytes.get(PREAMBLE_BYTES..slots_at).ok_or_else(cut)?;
    if header_crc(&bytes[..PREAMBLE_BYTES - 4], header) != crc {
        return Err("is damaged: its header does not fit its check sum".into());
    }
    let header: Header = parse(header, "header")?;

    let mut slots: BTreeMap<u64, &[u8]> = BTreeMap::new();
    let mut at = slots_at;
    while word(bytes, at).ok_or_else(cut)? == SLOT_MAGIC {
        let slot = at.checked_add(slot_bytes).and_then(|end| bytes.get(at..end)).ok_or_else(cut)?;
        let damaged = |what: &str| format!("is damaged: the slot at byte {at} {what}");
        if word(slot, 4) != Some(crc32fast::hash(&slot[8..])) {
            return Err(damaged("does not fit its check sum"));
        }
        let (Some(sequence), Some(count)) = (long(slot, 8), word(slot, 24)) else { return Err(cut()) };
        let room = (slot_bytes - SLOT_HEAD_BYTES) / BYTES;
        if count as usize > room {
            return Err(damaged(&format!("has {count} events, more than the {room} that fit")));
        }
        let events = &slot[SLOT_HEAD_BYTES..SLOT_HEAD_BYTES + count as usize * BYTES];
        if slots.insert(sequence, events).is_some() {
            return Err(damaged("has another one's number"));
        }
        at += slot_bytes;
    }
    let end = end(bytes, at)?;
    let (first, count) = end.slots;
    let is_next = |(number, place): (&u64, u64)| first.checked_add(place) == Some(*number);
    if slots.len() as u64 != count || !slots.keys().zip(0..).all(is_next) {
        return Err(format!("is damaged: of its {count} slots some are missing"));
    }
    let mut events = Vec::with_capacity(slots.values().map(|slot| slot.len() / BYTES).sum());
    for slot in slots.values() {
        for chunk in slot.chunks_exact(BYTES) {
            let mut bytes = [0; BYTES];
            bytes.copy_from_slice(chunk);
            let kind = bytes[12];
            let event = Event::from_bytes(bytes)
                .ok_or_else(|| format!("is damaged: there is no kind of event {kind}"))?;
            events.push(event);
        }
    }
    check(&header, &end)?;
    // Each pCPU's clock is its own, and who got a place in the ring buffer first need not have looked at the clock first.
    events.sort_by_key(|event| event.time_ns);
    Ok(Recording { header, end, events, tasks: Tasks::default() })
}

fn end(bytes: &[u8], at: usize) -> Result<End, String> {
    let cut = || "is cut off: the recorder did not end, or the file was not copied whole".to_string();
    if word(bytes, at) != Some(END_MAGIC) {
        return Err(format!("is damaged: at byte {at} is neither a slot nor its end"));
    }
    let (Some(crc), Some(length)) = (word(bytes, at + 4), word(bytes, at + 8)) else { return Err(cut()) };
    let from = at + END_HEAD_BYTES;
    let text = from.checked_add(length as usize).and_then(|to| bytes.get(from..to)).ok_or_else(cut)?;
    if crc32fast::hash(&bytes[at + 8..from + text.len()]) != crc {
        return Err("is damaged: its end does not fit its check sum".into());
    }
    if bytes.len() > from + text.len() {
        return Err("is damaged: something follows its end".into());
    }
    parse(text, "end")
}

/// What JSON's types do not say.
fn check(header: &Header, end: &End) -> Result<(), String> {
    let pcpus = header.pcpus.len();
    if pcpus == 0 || header.pcpus.iter().any(|pcpu| pcpu.cpu >= PCPUS_MAX) {
        return Err(format!("header: pcpus: has {pcpus}; allowed: 1 or more, numbered below {PCPUS_MAX}"));
    }
    if end.vms.len() > VMS_MAX {
        return Err(format!("end: vms: has {}; allowed: at most {VMS_MAX}", end.vms.len()));
    }
    for vm in &end.vms {
        if !(vm.weight.is_finite() && vm.weight > 0.0) {
            return Err(format!(
                "end: vms: weight {} of {:?}; allowed: a number above 0",
                vm.weight, vm.name
            ));
        }
        if vm.quota_us.is_some_and(|(_, period_us)| period_us == 0) {
            return Err(format!("end: vms: quota_us of {:?} has a period of 0; allowed: 1 or more", vm.name));
        }
    }
    Ok(())
}

fn parse<T: DeserializeOwned>(text: &[u8], what: &str) -> Result<T, String> {
    serde_json::from_slice(text).map_err(|error| format!("{what}: cannot be read: {error}"))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|chunk| u32::from_le_bytes(*chunk))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|chunk| u64::from_le_bytes(*chunk))
}

/// The VM's place in the list and the vCPU's among its own; None: nobody knows.
type Owner = Option<(usize, usize)>;

/// Who a slot is at a time.
#[derive(Clone, Debug, Default)]
pub struct Owners {
    /// By slot: since when, who.
    by_slot: BTreeMap<u16, Vec<(u64, Owner)>>,
}

impl Owners {
    pub fn of(recording: &Recording) -> Self {
        let mut by_slot: BTreeMap<u16, Vec<(u64, Owner)>> = BTreeMap::new();
        for (vm, about) in recording.end.vms.iter().enumerate() {
            for (vcpu, VcpuAbout { slot, from_ns, .. }) in about.vcpus.iter().enumerate() {
                by_slot.entry(*slot).or_default().push((*from_ns, Some((vm, vcpu))));
            }
        }
        for (slot, from_ns) in &recording.end.unowned {
            by_slot.entry(*slot).or_default().push((*from_ns, None));
        }
        // Who is known comes after nobody of the same time, and has it.
        by_slot.values_mut().for_each(|owners| owners.sort_unstable());
        Self { by_slot }
    }

    /// The VM's place in the list and the vCPU's among its own.
    pub fn at(&self, slot: u16, time_ns: u64) -> Owner {
        let owners = self.by_slot.get(&slot)?;
        let next = owners.partition_point(|(from_ns, ..)| *from_ns <= time_ns);
        owners.get(next.checked_sub(1)?)?.1
    }
}

impl Recording {
    /// How often each kind of event is in it.
    pub fn counts(&self) -> BTreeMap<Kind, u64> {
        let mut counts = BTreeMap::new();
        for event in &self.events {
            *counts.entry(event.kind).or_default() += 1;
        }
        counts
    }
}
