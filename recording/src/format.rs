// SPDX-License-Identifier: GPL-2.0-only
//! Where the parts of a recording are. All numbers are little-endian.
//!
//! ```text
//! 0   magic, version, bytes of a slot, bytes of the header, CRC-32 of these and of the header
//! 24  the header: JSON
//!     slots, all of one size, each: magic, CRC-32 of the rest, number, events dropped so far, how many events, 0, and the events
//!     the end: magic, CRC-32 of the rest, bytes of JSON, and JSON; nothing follows
//! ```
//!
//! The slots are a ring: when the file may not grow further, the next one takes the place of the oldest. Their numbers tell the order.

pub const MAGIC: [u8; 8] = *b"cohort\r\n";
pub const VERSION: u32 = 1;
pub const PREAMBLE_BYTES: usize = 24;
pub const SLOT_MAGIC: u32 = 0x7473_6c63;
pub const SLOT_HEAD_BYTES: usize = 32;
pub const END_MAGIC: u32 = 0x646e_6563;
pub const END_HEAD_BYTES: usize = 12;
/// What the writer uses. A reader takes any within these bounds.
pub const SLOT_BYTES: usize = 256 << 10;
pub const SLOT_BYTES_MIN: usize = SLOT_HEAD_BYTES + super::event::BYTES;
pub const SLOT_BYTES_MAX: usize = 64 << 20;
/// Longer texts are damage.
pub const HEADER_BYTES_MAX: usize = 64 << 20;

/// Of what is before the check sum, and of the header behind it.
pub fn header_crc(before: &[u8], header: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(before);
    crc.update(header);
    crc.finalize()
}
