// SPDX-License-Identifier: GPL-2.0-only
//! Packets: tracks, events, and the strings that they share, which are written once.

use std::collections::BTreeMap;

use crate::time::Ns;
use crate::trace::protobuf::Message;

use super::fields::{descriptor, event, packet, ANNOTATIONS, CATEGORIES, NAMES};

pub const SEQUENCE: u64 = 1;
const STATE_CLEARED: u64 = 1;
const NEEDS_STATE: u64 = 2;

/// What an event carries beside its place.
#[derive(Clone, Copy, Default)]
pub struct About<'a> {
    pub category: &'a str,
    pub name: &'a str,
    pub value: Option<(&'a str, u64)>,
    pub flow: Option<u64>,
    pub flows_end: &'a [u64],
}

#[derive(Default)]
pub struct Writer {
    out: Vec<u8>,
    interned: BTreeMap<(u32, String), u64>,
    // Kept to be used again.
    event: Message,
    packet: Message,
}

impl Writer {
    /// One sequence of packets, whose strings begin with nothing.
    pub fn new() -> Self {
        let mut writer = Self::default();
        writer.packet.uint(packet::SEQUENCE_FLAGS, STATE_CLEARED);
        writer.flush();
        writer
    }

    pub fn len(&self) -> usize {
        self.out.len()
    }

    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    pub fn process(&mut self, uuid: u64, pid: u64, name: &str) {
        let (mut process, mut track) = (Message::default(), Message::default());
        process.uint(descriptor::PROCESS_PID, pid);
        process.text(descriptor::PROCESS_NAME, name);
        track.uint(descriptor::UUID, uuid);
        track.message(descriptor::PROCESS, &process);
        track.uint(descriptor::CHILD_ORDERING, descriptor::EXPLICIT);
        self.packet.clear();
        self.packet.message(packet::TRACK_DESCRIPTOR, &track);
        self.flush();
    }

    pub fn track(&mut self, uuid: u64, parent: u64, name: &str, rank: u64) {
        let mut track = Message::default();
        track.uint(descriptor::UUID, uuid);
        track.text(descriptor::NAME, name);
        track.uint(descriptor::PARENT, parent);
        track.uint(descriptor::RANK, rank);
        self.packet.clear();
        self.packet.message(packet::TRACK_DESCRIPTOR, &track);
        self.flush();
    }

    /// Write the packet out: field 1 of the trace.
    fn flush(&mut self) {
        self.packet.uint(packet::SEQUENCE_ID, SEQUENCE);
        let mut trace = Message { bytes: std::mem::take(&mut self.out) };
        trace.message(1, &self.packet);
        self.out = trace.bytes;
    }

    /// The number of a string; the first time, it goes into the packet that needs it.
    fn intern(&mut self, table: u32, text: &str, fresh: &mut Message) -> u64 {
        // A key without a copy of the text would need a map by borrowed pairs; traces are not the hot path.
        if let Some(iid) = self.interned.get(&(table, text.to_string())) {
            return *iid;
        }
        let iid = self.interned.len() as u64 + 1;
        self.interned.insert((table, text.to_string()), iid);
        let mut entry = Message::default();
        entry.uint(1, iid);
        entry.text(2, text);
        fresh.message(table, &entry);
        iid
    }

    pub fn put(&mut self, now_ns: Ns, kind: u64, track: u64, about: About<'_>) {
        let mut fresh = Message::default();
        let mut event = std::mem::take(&mut self.event);
        event.clear();
        event.uint(event::TYPE, kind);
        event.uint(event::TRACK, track);
        if !about.name.is_empty() {
            event.uint(event::CATEGORY, self.intern(CATEGORIES, about.category, &mut fresh));
            event.uint(event::NAME, self.intern(NAMES, about.name, &mut fresh));
        }
        if let Some((name, value)) = about.value {
            let mut annotation = Message::default();
            annotation.uint(event::ANNOTATION_NAME, self.intern(ANNOTATIONS, name, &mut fresh));
            annotation.uint(event::ANNOTATION_UINT, value);
            event.message(event::ANNOTATION, &annotation);
        }
        if let Some(flow) = about.flow {
            event.fixed64(event::FLOW, flow);
        }
        for flow in about.flows_end {
            event.fixed64(event::FLOW_END, *flow);
        }
        self.packet.clear();
        self.packet.uint(packet::TIMESTAMP, now_ns);
        self.packet.uint(packet::SEQUENCE_FLAGS, NEEDS_STATE);
        if !fresh.bytes.is_empty() {
            self.packet.message(packet::INTERNED_DATA, &fresh);
        }
        self.packet.message(packet::TRACK_EVENT, &event);
        self.flush();
        self.event = event;
    }
}
