// SPDX-License-Identifier: GPL-2.0-only
//! Writes a recording that never has more than so many slots.

use std::collections::VecDeque;
use std::io::{self, Seek, SeekFrom, Write};

use serde::Serialize;

use crate::about::{End, Header};
use crate::event::{Event, BYTES};
use crate::format::{
    header_crc, END_HEAD_BYTES, END_MAGIC, MAGIC, PREAMBLE_BYTES, SLOT_BYTES_MIN, SLOT_HEAD_BYTES,
    SLOT_MAGIC, VERSION,
};

pub struct Writer<W> {
    to: W,
    slots_at: u64,
    slot_bytes: usize,
    slots_max: u64,
    /// Slots begun so far, overwritten ones included.
    number: u64,
    slot: Vec<u8>,
    dropped: u64,
    written: u64,
    overwritten: u64,
    /// When the first event was of each slot that the file has.
    begins_ns: VecDeque<u64>,
}

impl<W: Write + Seek> Writer<W> {
    /// `slots_max`: at least 1.
    pub fn new(mut to: W, header: &Header, slot_bytes: usize, slots_max: u64) -> io::Result<Self> {
        let slot_bytes = slot_bytes.max(SLOT_BYTES_MIN);
        let text = json(header)?;
        let mut preamble = Vec::with_capacity(PREAMBLE_BYTES);
        preamble.extend_from_slice(&MAGIC);
        for number in [VERSION, slot_bytes as u32, text.len() as u32] {
            preamble.extend_from_slice(&number.to_le_bytes());
        }
        let crc = header_crc(&preamble, &text);
        preamble.extend_from_slice(&crc.to_le_bytes());
        to.write_all(&preamble)?;
        to.write_all(&text)?;
        let slots_at = (PREAMBLE_BYTES + text.len()) as u64;
        let mut writer = Self {
            to,
            slots_at,
            slot_bytes,
            slots_max: slots_max.max(1),
            number: 0,
            slot: Vec::with_capacity(slot_bytes),
            dropped: 0,
            written: 0,
            overwritten: 0,
            begins_ns: VecDeque::new(),
        };
        writer.slot.resize(SLOT_HEAD_BYTES, 0);
        Ok(writer)
    }

    /// Events so far, overwritten ones included.
    pub fn written(&self) -> u64 {
        self.written
    }

    pub fn overwritten(&self) -> u64 {
        self.overwritten
    }

    /// When the oldest slot begins that has not been overwritten; None: no slot was.
    pub fn oldest_ns(&self) -> Option<u64> {
        self.begins_ns.front().copied().filter(|_| self.overwritten > 0)
    }

    /// How many events the kernel had no room for so far.
    pub fn dropped(&mut self, dropped: u64) {
        self.dropped = dropped;
    }

    pub fn put(&mut self, event: &[u8; BYTES]) -> io::Result<()> {
        if self.slot.len() + BYTES > self.slot_bytes {
            self.flush()?;
        }
        self.slot.extend_from_slice(event);
        self.written += 1;
        Ok(())
    }

    pub fn event(&mut self, event: Event) -> io::Result<()> {
        self.put(&event.to_bytes())
    }

    fn events_per_slot(&self) -> u64 {
        ((self.slot_bytes - SLOT_HEAD_BYTES) / BYTES) as u64
    }

    /// Write the slot out, the last one padded to the size of the others.
    fn flush(&mut self) -> io::Result<()> {
        let count = ((self.slot.len() - SLOT_HEAD_BYTES) / BYTES) as u32;
        if count == 0 {
            return Ok(());
        }
        if self.number >= self.slots_max {
            // Only the last slot is ever not full.
            self.overwritten += self.events_per_slot();
            self.begins_ns.pop_front();
        }
        self.begins_ns.extend(first_of(&self.slot));
        self.slot[8..16].copy_from_slice(&self.number.to_le_bytes());
        self.slot[16..24].copy_from_slice(&self.dropped.to_le_bytes());
        self.slot[24..28].copy_from_slice(&count.to_le_bytes());
        self.slot.resize(self.slot_bytes, 0);
        let crc = crc32fast::hash(&self.slot[8..]);
        self.slot[..4].copy_from_slice(&SLOT_MAGIC.to_le_bytes());
        self.slot[4..8].copy_from_slice(&crc.to_le_bytes());
        let at = self.slots_at + (self.number % self.slots_max) * self.slot_bytes as u64;
        self.to.seek(SeekFrom::Start(at))?;
        self.to.write_all(&self.slot)?;
        self.number += 1;
        self.slot.clear();
        self.slot.resize(SLOT_HEAD_BYTES, 0);
        Ok(())
    }

    /// The recording is over. Return how many bytes it has.
    pub fn finish(mut self, mut end: End) -> io::Result<(W, u64)> {
        self.flush()?;
        let kept = self.number.min(self.slots_max);
        end.overwritten = self.overwritten;
        end.slots = (self.number - kept, kept);
        let text = json(&end)?;
        let mut bytes = Vec::with_capacity(END_HEAD_BYTES + text.len());
        bytes.extend_from_slice(&END_MAGIC.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&(text.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&text);
        let crc = crc32fast::hash(&bytes[8..]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        let at = self.slots_at + kept * self.slot_bytes as u64;
        self.to.seek(SeekFrom::Start(at))?;
        self.to.write_all(&bytes)?;
        self.to.flush()?;
        Ok((self.to, at + bytes.len() as u64))
    }
}

/// When the first event of a slot was.
fn first_of(slot: &[u8]) -> Option<u64> {
    slot.get(SLOT_HEAD_BYTES..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

fn json(value: &impl Serialize) -> io::Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(io::Error::from)
}
