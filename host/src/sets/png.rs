// SPDX-License-Identifier: GPL-2.0-only
//! A picture of few colours as a PNG file (W3C, "Portable Network Graphics", third edition). Pictures here are large areas of one colour, so that of deflate (RFC 1951) runs
//! are enough, with its fixed codes: a library would be a hundred times longer.

/// Red, green, blue.
pub type Colour = [u8; 3];

/// The file: `pixels` are indices of `palette`, row by row.
pub fn encode(width: usize, pixels: &[u8], palette: &[Colour]) -> Vec<u8> {
    let height = pixels.len() / width.max(1);
    let mut header = Vec::new();
    header.extend((width as u32).to_be_bytes());
    header.extend((height as u32).to_be_bytes());
    // 8 bits for each pixel, by palette; deflate, the usual filters, not interlaced.
    header.extend([8, 3, 0, 0, 0]);
    let rows = filtered(width, pixels);
    let mut data = vec![0x78, 0x01];
    data.extend(deflate(&rows));
    data.extend(adler32(&rows).to_be_bytes());
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    chunk(&mut file, *b"IHDR", &header);
    chunk(&mut file, *b"PLTE", palette.as_flattened());
    chunk(&mut file, *b"IDAT", &data);
    chunk(&mut file, *b"IEND", &[]);
    file
}

/// Each row as its difference from the one above (filter 2): where nothing changes downwards that is a run of zeroes.
fn filtered(width: usize, pixels: &[u8]) -> Vec<u8> {
    let mut rows = Vec::with_capacity(pixels.len() + pixels.len() / width.max(1));
    let mut above = vec![0; width];
    for row in pixels.chunks(width.max(1)) {
        rows.push(2);
        rows.extend(row.iter().zip(&above).map(|(here, above)| here.wrapping_sub(*above)));
        above.copy_from_slice(row);
    }
    rows
}

fn chunk(file: &mut Vec<u8>, name: [u8; 4], data: &[u8]) {
    file.extend((data.len() as u32).to_be_bytes());
    let start = file.len();
    file.extend(name);
    file.extend(data);
    let sum = crc32(&file[start..]);
    file.extend(sum.to_be_bytes());
}

fn crc32(data: &[u8]) -> u32 {
    !data.iter().fold(!0, |crc, byte| {
        (0..8)
            .fold(crc ^ u32::from(*byte), |crc: u32, _| crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 })
    })
}

fn adler32(data: &[u8]) -> u32 {
    let (a, b) = data.iter().fold((1, 0), |(a, b): (u32, u32), byte| {
        let a = (a + u32::from(*byte)) % 65_521;
        (a, (b + a) % 65_521)
    });
    b << 16 | a
}

/// Bits, the first in the lowest place of a byte.
#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    used: u32,
}

impl Bits {
    fn push(&mut self, bit: u32) {
        if self.used % 8 == 0 {
            self.bytes.push(0);
        }
        if let Some(last) = self.bytes.last_mut() {
            *last |= (bit as u8 & 1) << (self.used % 8);
        }
        self.used += 1;
    }

    /// A code of so many bits, its highest first.
    fn code(&mut self, code: u32, bits: u32) {
        (0..bits).rev().for_each(|at| self.push(code >> at));
    }

    /// A literal (below 256), the end (256), or a length, in deflate's fixed code.
    fn symbol(&mut self, symbol: u32) {
        match symbol {
            0..=143 => self.code(0x30 + symbol, 8),
            144..=255 => self.code(0x190 + symbol - 144, 9),
            256..=279 => self.code(symbol - 256, 7),
            _ => self.code(0xc0 + symbol - 280, 8),
        }
    }

    /// Once more the last byte, so many times: 3 to 10, or 258, lengths that need no more bits. The distance is 1, whose code is 0.
    fn again(&mut self, times: usize) {
        self.symbol(if times == 258 { 285 } else { 254 + times as u32 });
        self.code(0, 5);
    }
}

/// One block of literals and runs.
fn deflate(data: &[u8]) -> Vec<u8> {
    let mut bits = Bits::default();
    // The last block; fixed codes.
    [1, 1, 0].into_iter().for_each(|bit| bits.push(bit));
    for run in data.chunk_by(|a, b| a == b) {
        let byte = u32::from(run[0]);
        bits.symbol(byte);
        let mut rest = run.len() - 1;
        while rest >= 3 {
            let times = if rest >= 258 { 258 } else { rest.min(10) };
            bits.again(times);
            rest -= times;
        }
        (0..rest).for_each(|_| bits.symbol(byte));
    }
    bits.symbol(256);
    bits.bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is in a block of fixed codes, with lengths that have no more bits and the distance 1.
    fn inflate(bytes: &[u8]) -> Vec<u8> {
        let mut at = 0;
        let mut bit = || {
            at += 1;
            u32::from(bytes[(at - 1) / 8] >> ((at - 1) % 8) & 1)
        };
        assert_eq!([bit(), bit(), bit()], [1, 1, 0]);
        let mut out = Vec::new();
        loop {
            let mut code = (0..7).fold(0, |code, _| code << 1 | bit());
            let symbol = if code < 24 {
                256 + code
            } else {
                code = code << 1 | bit();
                match code {
                    0x30..=0xbf => code - 0x30,
                    0xc0..=0xc7 => 280 + code - 0xc0,
                    _ => 144 + (code << 1 | bit()) - 0x190,
                }
            };
            match symbol {
                0..=255 => out.push(symbol as u8),
                256 => return out,
                _ => {
                    let times = if symbol == 285 { 258 } else { symbol - 254 };
                    assert_eq!((0..5).fold(0, |code, _| code << 1 | bit()), 0, "the distance is 1");
                    (0..times).for_each(|_| out.push(*out.last().unwrap()));
                }
            }
        }
    }

    #[test]
    fn what_is_packed_can_be_unpacked() {
        let mut data = Vec::new();
        for times in (1..30).chain([257, 258, 259, 260, 261, 262, 517, 5_000]) {
            data.extend(vec![(times * 37 % 256) as u8; times]);
        }
        data.extend(0..=255);
        assert_eq!(inflate(&deflate(&data)), data);
        assert!(deflate(&vec![7; 100_000]).len() < 1_000);
        assert!(inflate(&deflate(&[])).is_empty());
    }

    #[test]
    fn sums_are_those_of_the_standards() {
        assert_eq!(crc32(b"IEND"), 0xae42_6082);
        assert_eq!(adler32(b"Wikipedia"), 0x11e6_0398);
    }

    #[test]
    fn a_file_has_its_parts_in_order() {
        let file = encode(3, &[0, 1, 1, 0, 1, 1], &[[255; 3], [0; 3]]);
        assert_eq!(&file[..8], b"\x89PNG\r\n\x1a\n");
        assert_eq!(file[16..24], [0, 0, 0, 3, 0, 0, 0, 2]);
        let mut at = 8;
        let mut names = Vec::new();
        while at < file.len() {
            let length = u32::from_be_bytes(file[at..at + 4].try_into().unwrap()) as usize;
            names.push(String::from_utf8(file[at + 4..at + 8].to_vec()).unwrap());
            if names.last().unwrap() == "IDAT" {
                // The second row is as the first.
                assert_eq!(inflate(&file[at + 10..at + 4 + length]), [2, 0, 1, 1, 2, 0, 0, 0]);
            }
            at += 12 + length;
        }
        assert_eq!(names, ["IHDR", "PLTE", "IDAT", "IEND"]);
    }
}
