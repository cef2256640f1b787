// SPDX-License-Identifier: GPL-2.0-only
//! The little of protobuf's wire format that a trace needs. By hand: no compiler of .proto files at build time, and nothing is copied twice.

/// A message under construction.
#[derive(Clone, Debug, Default)]
pub struct Message {
    pub bytes: Vec<u8>,
}

const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const LENGTH: u32 = 2;

impl Message {
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    fn key(&mut self, field: u32, wire: u32) {
        self.varint(u64::from(field << 3 | wire));
    }

    pub fn uint(&mut self, field: u32, value: u64) {
        self.key(field, VARINT);
        self.varint(value);
    }

    pub fn fixed64(&mut self, field: u32, value: u64) {
        self.key(field, FIXED64);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub fn data(&mut self, field: u32, value: &[u8]) {
        self.key(field, LENGTH);
        self.varint(value.len() as u64);
        self.bytes.extend_from_slice(value);
    }

    pub fn text(&mut self, field: u32, value: &str) {
        self.data(field, value.as_bytes());
    }

    pub fn message(&mut self, field: u32, value: &Message) {
        self.data(field, &value.bytes);
    }
}

/// A field as it is found in bytes; for tests that read back what was written.
#[cfg(test)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Field {
    Number(u64),
    Data(Vec<u8>),
}

/// All fields of a message, in order; `None` if the bytes are no message.
#[cfg(test)]
pub fn decode(mut bytes: &[u8]) -> Option<Vec<(u32, Field)>> {
    fn varint(bytes: &mut &[u8]) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = bytes.split_first()?;
            *bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes)? as u32;
        let value = match key & 7 {
            VARINT => Field::Number(varint(&mut bytes)?),
            FIXED64 => {
                let (value, rest) = bytes.split_at_checked(8)?;
                bytes = rest;
                Field::Number(u64::from_le_bytes(value.try_into().ok()?))
            }
            LENGTH => {
                let length = varint(&mut bytes)? as usize;
                let (value, rest) = bytes.split_at_checked(length)?;
                bytes = rest;
                Field::Data(value.to_vec())
            }
            _ => return None,
        };
        fields.push((key >> 3, value));
    }
    Some(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of the wire format's own documentation.
    #[test]
    fn writes_what_the_format_says() {
        let mut message = Message::default();
        message.uint(1, 150);
        message.text(2, "testing");
        assert_eq!(message.bytes, b"\x08\x96\x01\x12\x07testing");
    }

    #[test]
    fn what_was_written_is_read_again() {
        let (mut inner, mut outer) = (Message::default(), Message::default());
        inner.fixed64(47, u64::MAX - 1);
        outer.uint(100, u64::MAX);
        outer.message(3, &inner);
        let fields = decode(&outer.bytes).unwrap();
        assert_eq!(fields, [(100, Field::Number(u64::MAX)), (3, Field::Data(inner.bytes.clone()))]);
        assert_eq!(decode(&inner.bytes).unwrap(), [(47, Field::Number(u64::MAX - 1))]);
        assert_eq!(decode(b"\x12\x07test"), None);
    }
}
