//! The entropy-coded part of a JPEG file: bits, Huffman codes, and the coefficients of a block.

use super::{JpegError, TRUNCATED, ZIGZAG};

/// Bits of a code that are looked up at once.
const LOOK: u32 = 9;

const BAD_CODE: JpegError = JpegError::File("a JPEG code is meaningless");

/// A table of Huffman codes.
pub(super) struct Huffman {
    /// By the next [`LOOK`] bits, the length of the code that they begin with, and its value; length 0 for longer codes.
    short: Vec<(u8, u8)>,
    /// By length, one more than the last code, aligned to 16 bits; 0 where there is none.
    ends: [u32; 17],
    /// By length, what is added to a code to find its value.
    offsets: [i32; 17],
    values: Vec<u8>,
}

impl Huffman {
    /// The table with this number of codes of each length, and their values.
    pub fn new(counts: &[u8; 16], values: &[u8]) -> Result<Huffman, JpegError> {
        let mut table = Huffman {
            short: vec![(0, 0); 1 << LOOK],
            ends: [0; 17],
            offsets: [0; 17],
            values: values.to_vec(),
        };
        let (mut code, mut at) = (0u32, 0usize);
        for (len, count) in (1u32..).zip(counts) {
            table.offsets[len as usize] = at as i32 - code as i32;
            for _ in 0..*count {
                if code >= 1 << len {
                    return Err(BAD_CODE);
                }
                if len <= LOOK {
                    let first = (code << (LOOK - len)) as usize;
                    let value = values.get(at).copied().ok_or(TRUNCATED)?;
                    table.short[first..first + (1 << (LOOK - len))].fill((len as u8, value));
                }
                code += 1;
                at += 1;
            }
            if *count > 0 {
                table.ends[len as usize] = code << (16 - len);
            }
            code <<= 1;
        }
        Ok(table)
    }
}

/// Reads the bits of a scan. Zeros follow what there is, but they may not be consumed.
pub(super) struct Bits<'d> {
    data: &'d [u8],
    at: usize,
    /// Bits that were read and not consumed, the next one on top.
    ready: u64,
    count: u32,
    /// How many of the ready bits are zeros behind the data.
    beyond: u32,
}

impl<'d> Bits<'d> {
    pub fn new(data: &'d [u8]) -> Bits<'d> {
        Bits {
            data,
            at: 0,
            ready: 0,
            count: 0,
            beyond: 0,
        }
    }

    /// The end of the scan's data: a marker, or the end of the file.
    pub fn read(&self) -> usize {
        self.at
    }

    #[inline]
    fn fill(&mut self) {
        while self.count <= 48 {
            let byte = match self.data.get(self.at..) {
                Some([0xFF, 0, ..]) => {
                    self.at += 2;
                    0xFF
                }
                Some([byte, ..]) if *byte != 0xFF => {
                    self.at += 1;
                    *byte
                }
                _ => {
                    self.beyond += 8;
                    0
                }
            };
            self.ready |= u64::from(byte) << (56 - self.count);
            self.count += 8;
        }
    }

    /// The next 16 bits, which are not consumed.
    #[inline]
    fn peek(&mut self) -> u32 {
        if self.count < 16 {
            self.fill();
        }
        (self.ready >> 48) as u32
    }

    #[inline]
    fn skip(&mut self, n: u32) -> Result<(), JpegError> {
        self.ready <<= n;
        self.count -= n;
        if self.beyond > self.count {
            return Err(TRUNCATED);
        }
        Ok(())
    }

    /// The next `n` bits, at most 16.
    #[inline]
    fn take(&mut self, n: u32) -> Result<u32, JpegError> {
        if n == 0 {
            return Ok(0);
        }
        let bits = self.peek() >> (16 - n);
        self.skip(n)?;
        Ok(bits)
    }

    /// A number of `n` bits whose first bit tells its sign.
    #[inline]
    fn number(&mut self, n: u32) -> Result<i32, JpegError> {
        let bits = self.take(n)? as i32;
        Ok(match n > 0 && bits < 1 << (n - 1) {
            true => bits - (1 << n) + 1,
            false => bits,
        })
    }

    #[inline]
    fn value(&mut self, table: &Huffman) -> Result<u8, JpegError> {
        let next = self.peek();
        if let Some((len @ 1.., value)) = table.short.get((next >> (16 - LOOK)) as usize) {
            self.skip(u32::from(*len))?;
            return Ok(*value);
        }
        let longer = (LOOK as usize + 1..=16).find(|len| next < table.ends[*len]);
        let len = longer.ok_or(BAD_CODE)?;
        let at = (next >> (16 - len)) as i32 + table.offsets[len];
        self.skip(len as u32)?;
        let value = usize::try_from(at).ok().and_then(|at| table.values.get(at));
        value.copied().ok_or(BAD_CODE)
    }

    /// Goes on behind the next restart marker.
    pub fn restart(&mut self) -> Result<(), JpegError> {
        let rest = self.data.get(self.at..).unwrap_or_default();
        let found = rest
            .windows(2)
            .position(|w| w[0] == 0xFF && !matches!(w[1], 0 | 0xFF));
        let begin = self.at + found.ok_or(TRUNCATED)?;
        if !matches!(self.data[begin + 1], 0xD0..=0xD7) {
            return Err(TRUNCATED);
        }
        *self = Bits {
            at: begin + 2,
            ..Bits::new(self.data)
        };
        Ok(())
    }
}

/// The state that blocks hand on to those behind them.
#[derive(Default)]
pub(super) struct State {
    /// The latest first coefficient of each component of the scan.
    latest: [i32; 3],
    /// Blocks that have no more coefficients in this band.
    empty: u32,
}

/// The coefficients that a scan has, and those of their bits.
pub(super) struct Scan {
    first: usize,
    last: usize,
    /// Whether bits are added to coefficients that earlier scans began.
    refines: bool,
    /// The lowest bit that the scan tells.
    low: u32,
    sequential: bool,
}

impl Scan {
    /// All bits of all coefficients.
    pub fn sequential() -> Scan {
        Scan {
            first: 0,
            last: 63,
            refines: false,
            low: 0,
            sequential: true,
        }
    }

    /// A part of a progressive file; `None` where there is no such part.
    pub fn progressive(first: usize, last: usize, bits: u8, components: usize) -> Option<Scan> {
        let fits = match first {
            0 => last == 0,
            _ => (first..64).contains(&last) && components == 1,
        };
        let low = u32::from(bits & 15);
        (fits && low <= 13).then_some(Scan {
            first,
            last,
            refines: bits >> 4 != 0,
            low,
            sequential: false,
        })
    }

    /// Reads what the scan has of a block.
    #[inline]
    pub fn block(
        &self,
        bits: &mut Bits<'_>,
        [dc, ac]: [Option<&Huffman>; 2],
        state: &mut State,
        slot: usize,
        block: &mut [i16; 64],
    ) -> Result<(), JpegError> {
        let table = |table: Option<_>| table.ok_or(JpegError::File("a JPEG table is missing"));
        if self.sequential {
            block.fill(0);
        }
        if self.first == 0 {
            if self.refines {
                block[0] |= (bits.take(1)? << self.low) as i16;
            } else {
                let len = u32::from(bits.value(table(dc)?)?);
                if len > 15 {
                    return Err(BAD_CODE);
                }
                let latest = state.latest.get_mut(slot).ok_or(BAD_CODE)?;
                *latest = latest.wrapping_add(bits.number(len)?);
                block[0] = (*latest << self.low) as i16;
            }
        }
        if self.last == 0 {
            return Ok(());
        }
        match self.refines {
            false => self.coefficients(bits, table(ac)?, state, block),
            true => self.refinements(bits, table(ac)?, state, block),
        }
    }

    fn coefficients(
        &self,
        bits: &mut Bits<'_>,
        table: &Huffman,
        state: &mut State,
        block: &mut [i16; 64],
    ) -> Result<(), JpegError> {
        if state.empty > 0 {
            state.empty -= 1;
            return Ok(());
        }
        let mut k = self.first.max(1);
        while k <= self.last {
            let code = bits.value(table)?;
            let (run, len) = (u32::from(code >> 4), u32::from(code & 15));
            match (run, len) {
                (15, 0) => k += 16,
                (_, 0) if self.sequential => break,
                (_, 0) => {
                    state.empty = (1 << run) + bits.take(run)? - 1;
                    break;
                }
                _ => {
                    k += run as usize;
                    let at = ZIGZAG.get(k).ok_or(BAD_CODE)?;
                    block[usize::from(*at)] = (bits.number(len)? << self.low) as i16;
                    k += 1;
                }
            }
        }
        Ok(())
    }

    /// Adds a bit to each coefficient that is not zero, and puts new ones between them.
    fn refinements(
        &self,
        bits: &mut Bits<'_>,
        table: &Huffman,
        state: &mut State,
        block: &mut [i16; 64],
    ) -> Result<(), JpegError> {
        let one = 1i16 << self.low;
        let refine = |bits: &mut Bits<'_>, c: &mut i16| -> Result<(), JpegError> {
            if bits.take(1)? == 1 && *c & one == 0 {
                *c = c.wrapping_add(if *c > 0 { one } else { -one });
            }
            Ok(())
        };
        let mut k = self.first;
        while k <= self.last && state.empty == 0 {
            let code = bits.value(table)?;
            let (mut run, len) = (u32::from(code >> 4), code & 15);
            let new = match len {
                0 if run == 15 => 0,
                0 => {
                    state.empty = (1 << run) + bits.take(run)?;
                    break;
                }
                1 if bits.take(1)? == 1 => one,
                1 => -one,
                _ => return Err(BAD_CODE),
            };
            while k <= self.last {
                let c = &mut block[usize::from(ZIGZAG[k])];
                k += 1;
                if *c != 0 {
                    refine(bits, c)?;
                } else if run == 0 {
                    *c = new;
                    break;
                } else {
                    run -= 1;
                }
            }
        }
        if state.empty > 0 {
            for at in ZIGZAG.get(k..=self.last).unwrap_or_default() {
                let c = &mut block[usize::from(*at)];
                if *c != 0 {
                    refine(bits, c)?;
                }
            }
            state.empty -= 1;
        }
        Ok(())
    }
}
