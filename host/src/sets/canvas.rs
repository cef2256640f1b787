// SPDX-License-Identifier: GPL-2.0-only
//! Something to draw on: areas, lines, and letters of 5 by 7 pixels.

use std::io::{self, Write};

/// Indices of the palette.
pub const PAPER: u8 = 0;
pub const INK: u8 = 1;
pub const PALE: u8 = 2;
pub const MARK: u8 = 3;
/// From here on shades, from hardly any to full.
const SHADE: u8 = 4;
pub const SHADES: u8 = 16;

/// Red, green and blue of each.
fn palette() -> Vec<[u8; 3]> {
    let mut all = vec![[255; 3], [40, 40, 40], [222, 222, 222], [200, 40, 40]];
    // From nearly white to a dark blue.
    all.extend((0..SHADES).map(|n| {
        let part = f64::from(n) / f64::from(SHADES - 1);
        [(236.0, 18.0), (243.0, 66.0), (252.0, 140.0)].map(|(from, to)| (from + (to - from) * part) as u8)
    }));
    all
}

/// The shade of that part of the most, 0 to 1.
pub fn shade(part: f64) -> u8 {
    SHADE + (part.clamp(0.0, 1.0) * f64::from(SHADES - 1)).round() as u8
}

/// What is written on a colour.
pub fn on(colour: u8) -> u8 {
    if colour >= SHADE + SHADES / 2 {
        PAPER
    } else {
        INK
    }
}

pub const GLYPH_WIDTH: usize = 6;
pub const GLYPH_HEIGHT: usize = 7;

pub fn text_width(text: &str, scale: usize) -> usize {
    (text.chars().count() * GLYPH_WIDTH).saturating_sub(1) * scale
}

#[cfg_attr(test, derive(Clone))]
pub struct Canvas {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
}

impl Canvas {
    pub fn new(width: usize, height: usize) -> Self {
        Self { width, height, pixels: vec![PAPER; width * height] }
    }

    /// What is beyond the edges is left out.
    pub fn fill(&mut self, x: usize, y: usize, width: usize, height: usize, colour: u8) {
        let (from, to) = (x.min(self.width), (x + width).min(self.width));
        for row in y.min(self.height)..(y + height).min(self.height) {
            self.pixels[row * self.width + from..row * self.width + to].fill(colour);
        }
    }

    /// A line of two pixels around an area, outside it.
    pub fn frame(&mut self, x: usize, y: usize, width: usize, height: usize, colour: u8) {
        let (left, top) = (x.saturating_sub(2), y.saturating_sub(2));
        self.fill(left, top, width + 4, 2, colour);
        self.fill(left, y + height, width + 4, 2, colour);
        self.fill(left, top, 2, height + 4, colour);
        self.fill(x + width, top, 2, height + 4, colour);
    }

    pub fn text(&mut self, x: usize, y: usize, scale: usize, colour: u8, text: &str) {
        for (index, letter) in text.chars().enumerate() {
            for (row, bits) in glyph(letter).into_iter().enumerate() {
                for column in (0..5).filter(|column| bits >> (4 - column) & 1 == 1) {
                    let left = x + (index * GLYPH_WIDTH + column) * scale;
                    self.fill(left, y + row * scale, scale, scale, colour);
                }
            }
        }
    }

    #[cfg(test)]
    pub fn size(&self) -> (usize, usize) {
        (self.width, self.height)
    }

    #[cfg(test)]
    pub fn at(&self, x: usize, y: usize) -> u8 {
        self.pixels[y * self.width + x]
    }
}

/// The file of pictures below one another, by widths and heights; of none one pixel, since a file has some.
/// A host may have thousands of VMs: `draw` makes one picture at a time, of the size that was said, and no
/// other is in memory meanwhile.
pub fn stacked_png(sizes: &[(usize, usize)], draw: impl Fn(usize) -> Canvas) -> io::Result<Vec<u8>> {
    let width = sizes.iter().map(|(width, _)| *width).max().unwrap_or(1);
    let height = sizes.iter().map(|(_, height)| *height).sum::<usize>();
    let paper = vec![PAPER; width];
    let pixels = |length: usize| u32::try_from(length.max(1)).map_err(io::Error::other);
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, pixels(width)?, pixels(height)?);
    encoder.set_color(png::ColorType::Indexed);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_palette(palette().concat());
    // Each row as its difference from the one above: little changes downwards.
    encoder.set_filter(png::Filter::Up);
    let mut writer = encoder.write_header()?;
    let mut rows = writer.stream_writer()?;
    for at in 0..sizes.len() {
        let canvas = draw(at);
        for row in canvas.pixels.chunks(canvas.width.max(1)) {
            rows.write_all(row)?;
            rows.write_all(&paper[row.len()..])?;
        }
    }
    if height == 0 {
        rows.write_all(&paper)?;
    }
    rows.finish()?;
    writer.finish()?;
    Ok(file)
}

/// A letter's rows, from the top; the highest of five bits is the left one. Small letters that are not here are drawn as large ones, and others as a question mark.
fn glyph(letter: char) -> [u8; GLYPH_HEIGHT] {
    let find = |wanted: char| GLYPHS.iter().find(|(known, _)| *known == wanted).map(|(_, rows)| *rows);
    find(letter).or_else(|| find(letter.to_ascii_uppercase())).or_else(|| find('?')).unwrap_or_default()
}

const GLYPHS: &[(char, [u8; GLYPH_HEIGHT])] = &[
    (' ', [0; 7]),
    ('0', [0x0e, 0x11, 0x13, 0x15, 0x19, 0x11, 0x0e]),
    ('1', [0x04, 0x0c, 0x04, 0x04, 0x04, 0x04, 0x0e]),
    ('2', [0x0e, 0x11, 0x01, 0x06, 0x08, 0x10, 0x1f]),
    ('3', [0x0e, 0x11, 0x01, 0x06, 0x01, 0x11, 0x0e]),
    ('4', [0x02, 0x06, 0x0a, 0x12, 0x1f, 0x02, 0x02]),
    ('5', [0x1f, 0x10, 0x1e, 0x01, 0x01, 0x11, 0x0e]),
    ('6', [0x06, 0x08, 0x10, 0x1e, 0x11, 0x11, 0x0e]),
    ('7', [0x1f, 0x01, 0x02, 0x04, 0x08, 0x08, 0x08]),
    ('8', [0x0e, 0x11, 0x11, 0x0e, 0x11, 0x11, 0x0e]),
    ('9', [0x0e, 0x11, 0x11, 0x0f, 0x01, 0x02, 0x0c]),
    ('A', [0x0e, 0x11, 0x11, 0x1f, 0x11, 0x11, 0x11]),
    ('B', [0x1e, 0x11, 0x11, 0x1e, 0x11, 0x11, 0x1e]),
    ('C', [0x0e, 0x11, 0x10, 0x10, 0x10, 0x11, 0x0e]),
    ('D', [0x1e, 0x11, 0x11, 0x11, 0x11, 0x11, 0x1e]),
    ('E', [0x1f, 0x10, 0x10, 0x1e, 0x10, 0x10, 0x1f]),
    ('F', [0x1f, 0x10, 0x10, 0x1e, 0x10, 0x10, 0x10]),
    ('G', [0x0e, 0x11, 0x10, 0x17, 0x11, 0x11, 0x0f]),
    ('H', [0x11, 0x11, 0x11, 0x1f, 0x11, 0x11, 0x11]),
    ('I', [0x0e, 0x04, 0x04, 0x04, 0x04, 0x04, 0x0e]),
    ('J', [0x07, 0x02, 0x02, 0x02, 0x02, 0x12, 0x0c]),
    ('K', [0x11, 0x12, 0x14, 0x18, 0x14, 0x12, 0x11]),
    ('L', [0x10, 0x10, 0x10, 0x10, 0x10, 0x10, 0x1f]),
    ('M', [0x11, 0x1b, 0x15, 0x15, 0x11, 0x11, 0x11]),
    ('N', [0x11, 0x19, 0x15, 0x13, 0x11, 0x11, 0x11]),
    ('O', [0x0e, 0x11, 0x11, 0x11, 0x11, 0x11, 0x0e]),
    ('P', [0x1e, 0x11, 0x11, 0x1e, 0x10, 0x10, 0x10]),
    ('Q', [0x0e, 0x11, 0x11, 0x11, 0x15, 0x12, 0x0d]),
    ('R', [0x1e, 0x11, 0x11, 0x1e, 0x14, 0x12, 0x11]),
    ('S', [0x0f, 0x10, 0x10, 0x0e, 0x01, 0x01, 0x1e]),
    ('T', [0x1f, 0x04, 0x04, 0x04, 0x04, 0x04, 0x04]),
    ('U', [0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x0e]),
    ('V', [0x11, 0x11, 0x11, 0x11, 0x11, 0x0a, 0x04]),
    ('W', [0x11, 0x11, 0x11, 0x15, 0x15, 0x1b, 0x11]),
    ('X', [0x11, 0x11, 0x0a, 0x04, 0x0a, 0x11, 0x11]),
    ('Y', [0x11, 0x11, 0x0a, 0x04, 0x04, 0x04, 0x04]),
    ('Z', [0x1f, 0x01, 0x02, 0x04, 0x08, 0x10, 0x1f]),
    ('d', [0x01, 0x01, 0x0d, 0x13, 0x11, 0x13, 0x0d]),
    ('e', [0x00, 0x00, 0x0e, 0x11, 0x1f, 0x10, 0x0e]),
    ('k', [0x10, 0x10, 0x12, 0x14, 0x18, 0x14, 0x12]),
    ('s', [0x00, 0x00, 0x0f, 0x10, 0x0e, 0x01, 0x1e]),
    ('t', [0x08, 0x08, 0x1c, 0x08, 0x08, 0x09, 0x06]),
    ('v', [0x00, 0x00, 0x11, 0x11, 0x11, 0x0a, 0x04]),
    ('=', [0x00, 0x00, 0x1f, 0x00, 0x1f, 0x00, 0x00]),
    ('.', [0x00, 0x00, 0x00, 0x00, 0x00, 0x0c, 0x0c]),
    (',', [0x00, 0x00, 0x00, 0x00, 0x0c, 0x04, 0x08]),
    (':', [0x00, 0x0c, 0x0c, 0x00, 0x0c, 0x0c, 0x00]),
    ('-', [0x00, 0x00, 0x00, 0x1f, 0x00, 0x00, 0x00]),
    ('_', [0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x1f]),
    ('/', [0x01, 0x01, 0x02, 0x04, 0x08, 0x10, 0x10]),
    ('(', [0x02, 0x04, 0x08, 0x08, 0x08, 0x04, 0x02]),
    (')', [0x08, 0x04, 0x02, 0x02, 0x02, 0x04, 0x08]),
    ('?', [0x0e, 0x11, 0x01, 0x06, 0x04, 0x00, 0x04]),
];

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn what_is_beyond_the_edges_is_left_out() {
        let mut canvas = Canvas::new(8, 8);
        canvas.fill(6, 6, 9, 9, INK);
        canvas.frame(0, 0, 20, 20, MARK);
        canvas.text(5, 5, 3, INK, "WIDE");
        assert_eq!((canvas.at(7, 7), canvas.at(3, 3)), (INK, PAPER));
    }

    #[test]
    fn letters_are_where_they_belong() {
        let mut canvas = Canvas::new(20, 10);
        canvas.text(1, 1, 1, INK, "Il");
        // The I has its stem in the middle; an l is drawn as an L.
        assert_eq!(
            (canvas.at(3, 4), canvas.at(1, 4), canvas.at(7, 4), canvas.at(11, 7)),
            (INK, PAPER, INK, INK)
        );
        assert_eq!(text_width("Il", 1), 11);
    }

    /// A file's width, height and pixels.
    fn decoded(file: &[u8]) -> (u32, u32, Vec<u8>) {
        let mut decoder = png::Decoder::new(Cursor::new(file));
        decoder.set_transformations(png::Transformations::IDENTITY);
        let mut reader = decoder.read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let frame = reader.next_frame(&mut pixels).unwrap();
        assert_eq!(frame.color_type, png::ColorType::Indexed);
        assert_eq!(reader.info().palette.as_deref(), Some(palette().as_flattened()));
        (frame.width, frame.height, pixels)
    }

    #[test]
    fn a_file_holds_the_picture() {
        let mut canvas = Canvas::new(300, 7);
        for x in 0..300 {
            canvas.fill(x, 1, 1, 5, (x % 20) as u8);
        }
        canvas.frame(5, 3, 9, 2, MARK);
        let (width, height, pixels) = decoded(&stacked_png(&[(300, 7)], |_| canvas.clone()).unwrap());
        assert_eq!((width, height), (300, 7));
        assert_eq!(pixels, canvas.pixels);
    }

    #[test]
    fn much_of_one_colour_is_a_small_file() {
        let file = stacked_png(&[(1_000, 1_000)], |_| Canvas::new(1_000, 1_000)).unwrap();
        assert!(file.len() < 5_000);
        let none = stacked_png(&[], |_| unreachable!("nothing to draw")).unwrap();
        assert_eq!(decoded(&none), (1, 1, vec![PAPER]));
    }

    #[test]
    fn parts_are_below_one_another() {
        let sizes = [(4, 2), (2, 3)];
        let draw = |at: usize| {
            let (width, height) = sizes[at];
            let mut canvas = Canvas::new(width, height);
            canvas.fill(0, 0, width, height, [MARK, INK][at]);
            canvas
        };
        let (width, height, pixels) = decoded(&stacked_png(&sizes, draw).unwrap());
        assert_eq!((width, height), (4, 5));
        let above = [MARK; 8];
        let below = [INK, INK, PAPER, PAPER].repeat(3);
        assert_eq!(pixels, [above.as_slice(), below.as_slice()].concat());
    }
}
