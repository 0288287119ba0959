//! JPEG files of eight bits, baseline and progressive, decoded to the bit as libjpeg-turbo does it: ONNX's `ImageDecoder`
//! prescribes its way of making colours as fine as brightness.
//!
//! ```text
//! file ──markers──> tables and scans ──entropy──> coefficients of blocks ──idct──> planes ──colour──> pixels
//! ```
//!
//! Invariants
//! 1. Beside tables and a row, nothing is allocated: the caller gives the memory, of the sizes that the header tells.
//! 2. No file causes a panic. A file that ends too early is refused.
//! 3. All computing is done with integers, so that pixels are the same everywhere.

mod colour;
mod entropy;
mod idct;

use crate::exec::{Cancelled, Exec};

use entropy::{Bits, Huffman, Scan};

/// The most scans of a file. Each may go over the whole image; encoders write about ten.
const MOST_SCANS: usize = 100;

/// The most segments before the frame, and between it and the end.
const MOST_SEGMENTS: usize = 10_000;

/// The positions of a block's coefficients, in the order of a file.
const ZIGZAG: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20,
    13, 6, 7, 14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59,
    52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
];

/// The reason why a file has no pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JpegError {
    /// The step was cancelled.
    Cancelled,
    /// The fault of the file.
    File(&'static str),
}

impl From<Cancelled> for JpegError {
    fn from(_: Cancelled) -> JpegError {
        JpegError::Cancelled
    }
}

const TOO_MANY: JpegError = JpegError::File("the JPEG file has too many segments");
const TRUNCATED: JpegError = JpegError::File("the JPEG file is truncated");

/// One of the planes that a picture is made of.
#[derive(Debug, Clone, Copy, Default)]
struct Component {
    id: u8,
    /// How fine it is along each axis, beside the other components.
    h: usize,
    v: usize,
    table: usize,
    /// Samples of it, without those that fill up blocks.
    width: usize,
    height: usize,
    /// Blocks of a row and of a column, with those that fill up the last group of blocks.
    across: usize,
    down: usize,
    /// The place of its first block, counted in blocks.
    begin: usize,
    /// The factors of its coefficients, from its first scan on.
    factors: Option<[u16; 64]>,
}

impl Component {
    fn blocks(&self) -> usize {
        self.across * self.down
    }
}

/// How the numbers of a pixel are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Colours {
    Grey,
    Rgb,
    YCbCr,
}

/// A file whose header has been read.
pub struct Jpeg<'f> {
    file: &'f [u8],
    /// The place from which the next marker is looked for.
    at: usize,
    width: usize,
    height: usize,
    progressive: bool,
    components: [Component; 3],
    count: usize,
    /// The finest of the components along each axis.
    finest: (usize, usize),
    factors: [Option<[u16; 64]>; 4],
    /// The tables of first coefficients, and those of the others.
    huffman: [[Option<Huffman>; 4]; 2],
    restart: usize,
    jfif: bool,
    /// The transformation that an Adobe marker names.
    adobe: Option<u8>,
}

fn ceil(n: usize, d: usize) -> usize {
    n.div_ceil(d.max(1))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<usize> {
    let pair = bytes.get(at..)?.first_chunk::<2>()?;
    Some(u16::from_be_bytes(*pair).into())
}

impl<'f> Jpeg<'f> {
    /// Reads a file up to the sizes of its planes.
    pub fn open(file: &'f [u8]) -> Result<Jpeg<'f>, JpegError> {
        let mut jpeg = Jpeg {
            file,
            at: 0,
            width: 0,
            height: 0,
            progressive: false,
            components: [Component::default(); 3],
            count: 0,
            finest: (1, 1),
            factors: [None; 4],
            huffman: Default::default(),
            restart: 0,
            jfif: false,
            adobe: None,
        };
        for _ in 0..MOST_SEGMENTS {
            match jpeg.marker()? {
                (0xC0..=0xC2, _) => return Ok(jpeg),
                (0xDA, _) => return Err(JpegError::File("a scan comes before the frame")),
                (0xD9, _) => return Err(JpegError::File("the JPEG file has no frame")),
                _ => {}
            }
        }
        Err(TOO_MANY)
    }

    pub fn width(&self) -> usize {
        self.width
    }

    pub fn height(&self) -> usize {
        self.height
    }

    /// Numbers of a pixel: 1 or 3.
    pub fn channels(&self) -> usize {
        self.count
    }

    /// How many coefficients there are, and how many samples of planes.
    pub fn coefficients(&self) -> usize {
        let blocks: usize = self.components().iter().map(Component::blocks).sum();
        blocks * 64
    }

    fn components(&self) -> &[Component] {
        self.components.get(..self.count).unwrap_or_default()
    }

    /// Reads the next marker and what belongs to it, which is used as far as it is understood.
    fn marker(&mut self) -> Result<(u8, &'f [u8]), JpegError> {
        let rest = self.file.get(self.at..).ok_or(TRUNCATED)?;
        // Bytes between segments are skipped, as other decoders do.
        let found = rest
            .windows(2)
            .position(|w| w[0] == 0xFF && !matches!(w[1], 0 | 0xFF));
        let begin = self.at + found.ok_or(TRUNCATED)?;
        let marker = self.file[begin + 1];
        self.at = begin + 2;
        if matches!(marker, 0x01 | 0xD0..=0xD9) {
            return Ok((marker, &[]));
        }
        let len = u16_at(self.file, self.at).ok_or(TRUNCATED)?;
        let body = self
            .file
            .get(self.at + 2..self.at + len.max(2))
            .ok_or(TRUNCATED)?;
        self.at += len.max(2);
        match marker {
            0xC0..=0xC2 => self.frame(marker, body)?,
            0xC4 => self.huffman_tables(body)?,
            0xC3 | 0xC5..=0xC7 | 0xC9..=0xCB | 0xCD..=0xCF => {
                return Err(JpegError::File(
                    "lossless, hierarchical and arithmetically coded JPEG files are not decoded",
                ));
            }
            0xDB => self.factor_tables(body)?,
            0xDD => self.restart = u16_at(body, 0).ok_or(TRUNCATED)?,
            0xE0 => self.jfif |= body.starts_with(b"JFIF\0"),
            0xEE if body.starts_with(b"Adobe") => self.adobe = body.get(11).copied(),
            _ => {}
        }
        Ok((marker, body))
    }

    fn frame(&mut self, marker: u8, body: &[u8]) -> Result<(), JpegError> {
        if self.count > 0 {
            return Err(JpegError::File("the JPEG file has two frames"));
        }
        let [bits, _, _, _, _, count, all @ ..] = body else {
            return Err(TRUNCATED);
        };
        if *bits != 8 {
            return Err(JpegError::File("JPEG samples must have 8 bits"));
        }
        self.height = u16_at(body, 1).ok_or(TRUNCATED)?;
        self.width = u16_at(body, 3).ok_or(TRUNCATED)?;
        if self.width == 0 || self.height == 0 {
            return Err(JpegError::File("the JPEG file has no pixels"));
        }
        self.progressive = marker == 0xC2;
        match count {
            1 | 3 => {}
            4 => {
                return Err(JpegError::File(
                    "JPEG colours are CMYK; save the image as RGB",
                ));
            }
            _ => return Err(JpegError::File("JPEG files must have 1 or 3 components")),
        }
        let count = usize::from(*count);
        let all = all.get(..3 * count).ok_or(TRUNCATED)?;
        for (c, given) in self.components.iter_mut().zip(all.chunks_exact(3)) {
            (c.id, c.h, c.v) = (given[0], (given[1] >> 4).into(), (given[1] & 15).into());
            c.table = usize::from(given[2]);
            if !(1..=4).contains(&c.h) || !(1..=4).contains(&c.v) || c.table > 3 {
                return Err(JpegError::File("a JPEG component has meaningless sizes"));
            }
        }
        self.count = count;
        let all = self.components();
        let h = all.iter().map(|c| c.h).max().unwrap_or(1);
        let v = all.iter().map(|c| c.v).max().unwrap_or(1);
        if all.iter().any(|c| h % c.h != 0 || v % c.v != 0) {
            return Err(JpegError::File(
                "JPEG planes must be a whole number of times coarser",
            ));
        }
        self.finest = (h, v);
        let (across, down) = (ceil(self.width, 8 * h), ceil(self.height, 8 * v));
        let (width, height) = (self.width, self.height);
        let mut begin = 0;
        for c in self.components.iter_mut().take(count) {
            (c.width, c.height) = (ceil(width * c.h, h), ceil(height * c.v, v));
            (c.across, c.down) = (across * c.h, down * c.v);
            c.begin = begin;
            begin += c.blocks();
        }
        Ok(())
    }

    fn factor_tables(&mut self, mut body: &[u8]) -> Result<(), JpegError> {
        while let [kind, rest @ ..] = body {
            let width = if kind >> 4 == 0 { 1 } else { 2 };
            let given = rest.get(..64 * width).ok_or(TRUNCATED)?;
            let mut table = [0u16; 64];
            for (bytes, at) in given.chunks_exact(width).zip(ZIGZAG) {
                let wide = bytes.iter().fold(0, |n, b| n << 8 | u16::from(*b));
                table[usize::from(at)] = wide;
            }
            let place = self.factors.get_mut(usize::from(kind & 15));
            *place.ok_or(JpegError::File("there are at most 4 JPEG tables"))? = Some(table);
            body = &rest[64 * width..];
        }
        Ok(())
    }

    fn huffman_tables(&mut self, mut body: &[u8]) -> Result<(), JpegError> {
        while let [kind, rest @ ..] = body {
            let counts = rest.first_chunk::<16>().ok_or(TRUNCATED)?;
            let len: usize = counts.iter().map(|n| usize::from(*n)).sum();
            let values = rest.get(16..16 + len).ok_or(TRUNCATED)?;
            let kinds = self.huffman.get_mut(usize::from(kind >> 4));
            let place = kinds.and_then(|kind_of| kind_of.get_mut(usize::from(kind & 15)));
            *place.ok_or(JpegError::File("there are at most 4 JPEG tables"))? =
                Some(Huffman::new(counts, values)?);
            body = &rest[16 + len..];
        }
        Ok(())
    }

    /// Decodes the file. `coefficients` and `planes` are memory to work in, both of [`Jpeg::coefficients`] elements; `out`
    /// has the numbers of all pixels.
    pub fn decode(
        mut self,
        exec: &Exec<'_>,
        coefficients: &mut [i16],
        planes: &mut [u8],
        out: &mut [u8],
    ) -> Result<(), JpegError> {
        let len = self.coefficients();
        let sizes = (coefficients.len(), planes.len(), out.len());
        if sizes != (len, len, self.width * self.height * self.count) {
            return Err(JpegError::File(
                "the memory for a JPEG file has another size",
            ));
        }
        for part in coefficients.chunks_mut(1 << 16) {
            exec.check()?;
            part.fill(0);
        }
        let (mut scans, mut segments) = (0, 0);
        loop {
            segments += 1;
            if segments > MOST_SEGMENTS {
                return Err(TOO_MANY);
            }
            exec.check()?;
            match self.marker() {
                Ok((0xDA, body)) => {
                    scans += 1;
                    if scans > MOST_SCANS {
                        return Err(JpegError::File("the JPEG file has too many scans"));
                    }
                    self.scan(exec, body, coefficients)?;
                }
                Ok((0xD9, _)) => break,
                // The pixels of a file without an end are all there, unless more scans were to refine them.
                Err(_) if !self.progressive && self.complete() => break,
                other => drop(other?),
            }
        }
        if !self.complete() {
            return Err(TRUNCATED);
        }
        for c in self.components() {
            let of = c.begin * 64..(c.begin + c.blocks()) * 64;
            let factors = c.factors.as_ref().ok_or(TRUNCATED)?;
            let (from, to) = (coefficients.get(of.clone()), planes.get_mut(of));
            let (from, to) = from.zip(to).ok_or(TRUNCATED)?;
            let rows = from
                .chunks_exact(64 * c.across)
                .zip(to.chunks_exact_mut(64 * c.across));
            for (blocks, rows) in rows {
                exec.check()?;
                for (x, block) in blocks.as_chunks::<64>().0.iter().enumerate() {
                    idct::block(block, factors, rows, 8 * c.across, 8 * x);
                }
            }
        }
        self.paint(exec, planes, out)
    }

    /// Whether each component was in a scan.
    fn complete(&self) -> bool {
        self.components().iter().all(|c| c.factors.is_some())
    }

    fn colours(&self) -> Colours {
        if self.count == 1 {
            return Colours::Grey;
        }
        let ids = self.components.map(|c| c.id);
        match self.adobe {
            _ if self.jfif => Colours::YCbCr,
            Some(0) => Colours::Rgb,
            None if ids == *b"RGB" => Colours::Rgb,
            _ => Colours::YCbCr,
        }
    }

    /// Reads one scan.
    fn scan(
        &mut self,
        exec: &Exec<'_>,
        body: &[u8],
        coefficients: &mut [i16],
    ) -> Result<(), JpegError> {
        let bad = JpegError::File("a JPEG scan is meaningless");
        let (count, rest) = body.split_first().ok_or(TRUNCATED)?;
        let count = usize::from(*count);
        let (chosen, band) = rest.split_at_checked(2 * count).ok_or(TRUNCATED)?;
        let [first, last, bits, ..] = *band else {
            return Err(TRUNCATED);
        };
        let mut members = [(0, 0, 0); 3];
        let places = members
            .get_mut(..count)
            .filter(|m| !m.is_empty())
            .ok_or(bad)?;
        for (place, given) in places.iter_mut().zip(chosen.chunks_exact(2)) {
            let component = self.components().iter().position(|c| c.id == given[0]);
            let (dc, ac) = ((given[1] >> 4).into(), (given[1] & 15).into());
            *place = (component.ok_or(bad)?, dc, ac);
        }
        let members = &members[..count];
        if members
            .iter()
            .enumerate()
            .any(|(i, m)| members[..i].iter().any(|o| o.0 == m.0))
        {
            return Err(bad);
        }
        for (component, ..) in members {
            let c = self.components.get_mut(*component).ok_or(bad)?;
            let table = self.factors.get(c.table).copied().flatten();
            if c.factors.is_none() {
                c.factors = Some(table.ok_or(JpegError::File("a JPEG table is missing"))?);
            }
        }
        let scan = match self.progressive {
            false => Scan::sequential(),
            true => Scan::progressive(first.into(), last.into(), bits, count).ok_or(bad)?,
        };
        let data = self.file.get(self.at..).ok_or(TRUNCATED)?;
        let mut bits = Bits::new(data);
        self.blocks(exec, &scan, members, &mut bits, coefficients)?;
        self.at += bits.read();
        Ok(())
    }

    /// Reads all blocks of a scan.
    fn blocks(
        &self,
        exec: &Exec<'_>,
        scan: &Scan,
        members: &[(usize, usize, usize)],
        bits: &mut Bits<'_>,
        coefficients: &mut [i16],
    ) -> Result<(), JpegError> {
        let [dc, ac] = &self.huffman;
        let component = |i: usize| self.components.get(i).copied().unwrap_or_default();
        // One component goes block by block; several go in groups that cover the same part of the picture.
        let alone = members.len() == 1;
        let (across, down) = match members {
            [(i, ..)] => {
                let c = component(*i);
                (ceil(c.width, 8), ceil(c.height, 8))
            }
            _ => {
                let (h, v) = self.finest;
                (ceil(self.width, 8 * h), ceil(self.height, 8 * v))
            }
        };
        let mut state = entropy::State::default();
        let mut group = 0;
        for y in 0..down {
            exec.check()?;
            for x in 0..across {
                if self.restart > 0 && group > 0 && group % self.restart == 0 {
                    bits.restart()?;
                    state = entropy::State::default();
                }
                group += 1;
                for (slot, (i, dc_table, ac_table)) in members.iter().enumerate() {
                    let c = component(*i);
                    let tables = [dc.get(*dc_table), ac.get(*ac_table)];
                    let tables = tables.map(|t| t.and_then(Option::as_ref));
                    let (h, v) = if alone { (1, 1) } else { (c.h, c.v) };
                    for (dy, dx) in (0..v).flat_map(|dy| (0..h).map(move |dx| (dy, dx))) {
                        let at = c.begin + (y * v + dy) * c.across + x * h + dx;
                        let block = coefficients.get_mut(64 * at..).ok_or(TRUNCATED)?;
                        let block = block.first_chunk_mut::<64>().ok_or(TRUNCATED)?;
                        scan.block(bits, tables, &mut state, slot, block)?;
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
