//! Convolutions of codes of eight bits whose groups have few filters, such as depthwise ones.
//!
//! A block of the outputs of one group is computed from a *window*: the part of the padded input that the block reads, as
//! unsigned bytes. An output is a sum over *steps*, each of which multiplies a few neighbouring taps of one row:
//!
//! ```text
//! sum of (x - zx) * (w - zw)  =  sum of x * (w - zw)  -  zx * (sum of w - zw)
//!                                steps                   once a filter
//! ```
//!
//! A signed code of the input is moved by 128, as is its zero point, which is also the code of the padding.
//!
//! Invariants
//! 1. All arithmetic is that of whole numbers modulo 2^32, so that each form of steps gives the same bits, and none
//!    saturates.
//! 2. A block of outputs belongs to one tile of work.
//! 3. A thread holds one window of scratch memory, whatever the sizes.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;
#[cfg(test)]
mod tests;

use std::ops::Range;

use super::bytes::{Bytes, DEEPEST, Destination, Zeros};
use super::requantise::{Requantisation, RowCoding};
use crate::Exec;
use crate::conv::ConvShape;
use crate::error::Result;
use crate::gemm::scratch::with_scratch;
#[cfg(target_arch = "x86_64")]
use crate::isa::Isa;

/// Most filters of a group for which this algorithm is faster than unfolded patches.
const FEW_FILTERS: usize = 3;
/// Bytes of a window: with the outputs of a block they mostly stay in a level-1 cache.
const WINDOW: usize = 20 << 10;
/// Bytes after a window that are read, or written, with its last ones.
const SLACK: usize = 128;
/// Widest block of output columns.
const MAX_COLS: usize = 1024;
/// Most taps of a filter.
const MAX_TAPS: usize = 512;
/// Multiply-adds of a tile of work: some microseconds.
const TILE_WORK: usize = 1 << 18;

/// How taps become steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Four taps of eight bits, by AVX-512 VNNI.
    #[cfg(target_arch = "x86_64")]
    Quads,
    /// Two taps of sixteen bits, by AVX2.
    #[cfg(target_arch = "x86_64")]
    Pairs,
    /// One tap.
    Single,
}

impl Form {
    const ALL: &[Form] = &[
        #[cfg(target_arch = "x86_64")]
        Form::Quads,
        #[cfg(target_arch = "x86_64")]
        Form::Pairs,
        Form::Single,
    ];

    fn taps(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Form::Quads => 4,
            #[cfg(target_arch = "x86_64")]
            Form::Pairs => 2,
            Form::Single => 1,
        }
    }

    /// Whether the processor has the form, and its vectors reach the inputs of neighbouring outputs. `centred` tells that
    /// no filter has a zero point, as signed codes.
    fn serves(self, s: &ConvShape, centred: bool) -> bool {
        #[cfg(target_arch = "x86_64")]
        let reach = |outputs: usize, taps: usize| {
            let most = |n: usize, step: usize| n.saturating_mul(step);
            most(outputs - 1, s.stride[2]).saturating_add(most(taps - 1, s.dilation[2]))
        };
        match self {
            #[cfg(target_arch = "x86_64")]
            Form::Quads => {
                centred
                    && s.kernel[2] <= 4 * avx512::STEPS
                    && reach(avx512::LANES, 4) < 64
                    && Isa::Avx512.available()
                    && is_x86_feature_detected!("avx512vnni")
                    && is_x86_feature_detected!("avx512vbmi")
            }
            #[cfg(target_arch = "x86_64")]
            Form::Pairs => reach(avx2::LANES / 2, 2) < 16 && Isa::Avx2Fma.available(),
            Form::Single => true,
        }
    }

    /// Whether the form reads a window; the others read the input in place.
    fn copies(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Form::Quads => false,
            _ => true,
        }
    }

    /// Bits of a tap in a step.
    fn bits(self) -> u32 {
        32 / self.taps() as u32
    }
}

/// How a convolution is cut into blocks.
#[derive(Debug, Clone, Copy)]
pub struct GroupedConv {
    shape: ConvShape,
    /// Output rows and columns of a block.
    rows: usize,
    cols: usize,
    /// Bytes of a row of a window.
    pitch: usize,
}

impl GroupedConv {
    /// Plans a convolution; `None` where it has many filters a group, three dimensions, or too large a window.
    pub fn new(s: &ConvShape) -> Option<GroupedConv> {
        let chain = s.group_in().checked_mul(s.taps())?;
        if !s.is_flat() || s.group_out() > FEW_FILTERS || !(1..=MAX_TAPS).contains(&chain) {
            return None;
        }
        let extent = |d: usize| Some((s.kernel[d] - 1).checked_mul(s.dilation[d])? + 1);
        let cols = s.output[2].min(MAX_COLS);
        let pitch = cols.saturating_sub(1).checked_mul(s.stride[2])?;
        let pitch = pitch.checked_add(extent(2)?)?;
        // Each output row after the first one takes as many rows of the input as the stride.
        let row = pitch.checked_mul(s.group_in())?;
        let more = (WINDOW / row).checked_sub(extent(1)?)? / s.stride[1];
        let work = cols * chain * s.group_out();
        let rows = (more + 1).min((TILE_WORK / work.max(1)).max(1));
        Some(GroupedConv {
            shape: *s,
            rows: rows.min(s.output[1].max(1)),
            cols,
            pitch,
        })
    }

    /// Input rows in a window of `rows` output rows.
    fn depth(&self, rows: usize) -> usize {
        let s = &self.shape;
        (rows - 1) * s.stride[1] + (s.kernel[1] - 1) * s.dilation[1] + 1
    }
}

/// The bytes that are copied in the time of a product, roughly.
const BYTES_OF_A_PRODUCT: usize = 16;

/// The steps of a filter: their taps, and where their first inputs lie after that of the first tap.
struct Steps {
    count: usize,
    taps: [i32; MAX_TAPS],
    places: [usize; MAX_TAPS],
}

/// The outputs of one filter in a block.
struct Block<'a> {
    window: *const u8,
    /// The distances of inputs of neighbouring output rows, columns, and taps.
    row: usize,
    stride: usize,
    dilation: usize,
    steps: &'a Steps,
    /// The number that is added to sums.
    constant: i32,
    rows: usize,
    cols: usize,
    out: Rows<'a>,
}

/// The first output of a block, of which `pitch` are a row.
#[derive(Clone, Copy)]
enum Rows<'a> {
    Sums {
        start: *mut i32,
        pitch: usize,
    },
    Codes {
        start: *mut u8,
        pitch: usize,
        how: &'a RowCoding,
    },
}

/// The start of an output.
#[derive(Clone, Copy)]
enum Start<'a> {
    Sums(*mut i32),
    Codes(*mut u8, &'a Requantisation<'a>),
}

// SAFETY: blocks of the output are disjoint (invariant 2).
unsafe impl Sync for Start<'_> {}

/// Computes the convolution with the zero points subtracted before; false where codes are to be made by other than one scale
/// for each filter.
pub fn grouped_conv_of_bytes(
    exec: Exec<'_>,
    plan: &GroupedConv,
    input: (Bytes<'_>, i32),
    weights: (Bytes<'_>, Zeros<'_>),
    out: Destination<'_>,
) -> Result<bool> {
    let s = &plan.shape;
    let moved = |filter: usize| weights.1.at(filter) - if weights.0.signed { 0 } else { 128 };
    let centred = match weights.1 {
        Zeros::One(_) => moved(0) == 0,
        Zeros::Each(_) => (0..s.out_channels).all(|filter| moved(filter) == 0),
    };
    let mut forms = Form::ALL.iter().copied();
    let form = forms.find(|form| form.serves(s, centred));
    conv_by(
        form.unwrap_or(Form::Single),
        exec,
        plan,
        input,
        weights,
        out,
    )
}

fn conv_by(
    form: Form,
    exec: Exec<'_>,
    plan: &GroupedConv,
    (input, zero): (Bytes<'_>, i32),
    (weights, zeros): (Bytes<'_>, Zeros<'_>),
    out: Destination<'_>,
) -> Result<bool> {
    let s = &plan.shape;
    let [_, oh, ow] = s.output;
    assert_eq!(input.codes.len(), s.input_len(), "input of a convolution");
    assert_eq!(
        weights.codes.len(),
        s.weights_len(),
        "weights of a convolution"
    );
    assert_eq!(out.len(), s.output_len(), "output of a convolution");
    assert!(!matches!(zeros, Zeros::Each(all) if all.len() != s.out_channels));
    if out.len() == 0 {
        exec.check()?;
        return Ok(true);
    }
    let zero = zero + if input.signed { 128 } else { 0 };
    assert!((0..=255).contains(&zero), "zero point of the input");
    let flip = if input.signed { 128 } else { 0 };
    let start = match out {
        Destination::Sums(out) => Start::Sums(out.as_mut_ptr()),
        Destination::Codes(out, how) => {
            let chain = s.chain();
            assert!(chain <= DEEPEST, "codes of sums of {chain} products");
            if !how.is_of_rows() {
                return Ok(false);
            }
            Start::Codes(out.as_mut_ptr(), how)
        }
    };
    let col_blocks = ow.div_ceil(plan.cols);
    let blocks = oh.div_ceil(plan.rows) * col_blocks;
    let length = plan.depth(plan.rows) * plan.pitch * s.group_in() + SLACK;
    let products = plan.rows * plan.cols * s.chain() * s.group_out();
    // A window is written however little of it is read.
    let written = if form.copies() { length } else { 0 };
    let work = products + written / BYTES_OF_A_PRODUCT;
    exec.tiles(
        s.batch * s.groups * blocks,
        TILE_WORK.div_ceil(work),
        |items| {
            with_scratch(length.div_ceil(4), |scratch| {
                // SAFETY: every pattern of bits is a byte.
                let (_, window, _) = unsafe { scratch.align_to_mut::<u8>() };
                let mut steps = Steps {
                    count: 0,
                    taps: [0; MAX_TAPS],
                    places: [0; MAX_TAPS],
                };
                #[cfg(target_arch = "x86_64")]
                let row_of_padding = [zero as u8 ^ flip; avx512::PADDING];
                let mut depth = 0;
                for item in items {
                    let (channel, block) = (item / blocks, item % blocks);
                    let (y, x) = (
                        block / col_blocks * plan.rows,
                        block % col_blocks * plan.cols,
                    );
                    let (rows, cols) = (plan.rows.min(oh - y), plan.cols.min(ow - x));
                    if depth != plan.depth(rows) {
                        depth = plan.depth(rows);
                        place(plan, form, depth, &mut steps);
                    }
                    let planes = s.group_in() * s.in_plane();
                    let from = Patch {
                        plan,
                        planes: &input.codes[channel * planes..(channel + 1) * planes],
                        padding: zero as u8,
                        flip,
                        #[cfg(target_arch = "x86_64")]
                        row_of_padding: &row_of_padding,
                        rows: depth,
                        y,
                        x,
                    };
                    if form.copies() {
                        fill(&from, window);
                    }
                    let group = channel % s.groups;
                    for sub in 0..s.group_out() {
                        let filter = group * s.group_out() + sub;
                        let own = &weights.codes[filter * s.chain()..(filter + 1) * s.chain()];
                        let own = Bytes {
                            codes: own,
                            signed: weights.signed,
                        };
                        let sum = taps_of(plan, form, own, zeros.at(filter), &mut steps.taps);
                        let number = channel * s.group_out() + sub;
                        let at = (number * oh + y) * ow + x;
                        let coding;
                        let out = match start {
                            Start::Sums(start) => Rows::Sums {
                                start: start.wrapping_add(at),
                                pitch: ow,
                            },
                            Start::Codes(start, how) => {
                                coding = how.coding(number, how.columns[0]);
                                Rows::Codes {
                                    start: start.wrapping_add(at),
                                    pitch: ow,
                                    how: &coding,
                                }
                            }
                        };
                        let block = Block {
                            window: window.as_ptr(),
                            row: s.stride[1] * plan.pitch,
                            stride: s.stride[2],
                            dilation: s.dilation[2],
                            steps: &steps,
                            constant: sum.wrapping_mul(zero).wrapping_neg(),
                            rows,
                            cols,
                            out,
                        };
                        // SAFETY: the window covers the steps of the block, with its slack; the form serves the processor;
                        // the lengths were checked above, and each block is named once.
                        unsafe {
                            match form {
                                #[cfg(target_arch = "x86_64")]
                                Form::Quads => avx512::block(&from, &block),
                                #[cfg(target_arch = "x86_64")]
                                Form::Pairs => avx2::block(&block),
                                Form::Single => portable::block(&block),
                            }
                        }
                    }
                }
            });
        },
    )?;
    Ok(true)
}

/// Works out where the inputs of the steps lie in a window with `depth` rows for each channel.
fn place(plan: &GroupedConv, form: Form, depth: usize, steps: &mut Steps) {
    let s = &plan.shape;
    let [_, kh, kw] = s.kernel;
    steps.count = 0;
    for channel in 0..s.group_in() {
        for i in 0..kh {
            let row = (channel * depth + i * s.dilation[1]) * plan.pitch;
            for j in (0..kw).step_by(form.taps()) {
                steps.places[steps.count] = row + j * s.dilation[2];
                steps.count += 1;
            }
        }
    }
}

/// Writes the taps of the steps of a filter, less its zero point, and returns the sum of all.
fn taps_of(
    plan: &GroupedConv,
    form: Form,
    weights: Bytes<'_>,
    zero: i32,
    to: &mut [i32; MAX_TAPS],
) -> i32 {
    let (width, bits) = (form.taps(), form.bits());
    let mask = u32::MAX >> (32 - bits);
    let (mut count, mut sum) = (0, 0i32);
    for row in weights.codes.chunks_exact(plan.shape.kernel[2]) {
        for codes in row.chunks(width) {
            let mut step = 0;
            for (i, code) in codes.iter().enumerate() {
                let code = match weights.signed {
                    true => i32::from(*code as i8),
                    false => i32::from(*code),
                };
                let tap = code - zero;
                sum = sum.wrapping_add(tap);
                step |= (tap as u32 & mask) << (bits * i as u32);
            }
            to[count] = step as i32;
            count += 1;
        }
    }
    sum
}

/// The part of the padded input of one group that a block reads.
struct Patch<'a> {
    plan: &'a GroupedConv,
    /// The channels of the group.
    planes: &'a [u8],
    /// The code of the padding, as the window has it.
    padding: u8,
    /// The bits by which a code is moved.
    flip: u8,
    /// Codes of the padding, as the input has them.
    #[cfg(target_arch = "x86_64")]
    row_of_padding: &'a [u8; avx512::PADDING],
    /// Rows of each channel.
    rows: usize,
    /// The first output row and column.
    y: usize,
    x: usize,
}

impl Patch<'_> {
    /// Those of `len` places of the window along dimension `d`, whose first output is `output`, that lie in the input, and the
    /// input of the first one.
    fn inside(&self, d: usize, output: usize, len: usize) -> (Range<usize>, usize) {
        let s = &self.plan.shape;
        let left = output * s.stride[d];
        let low = s.pad[d].saturating_sub(left).min(len);
        let high = (s.input[d] + s.pad[d]).saturating_sub(left);
        let high = high.clamp(low, len);
        (low..high, (left + low).saturating_sub(s.pad[d]))
    }
}

/// Copies a patch to the window.
fn fill(from: &Patch<'_>, window: &mut [u8]) {
    let (s, pitch) = (&from.plan.shape, from.plan.pitch);
    let (columns, first_column) = from.inside(2, from.x, pitch);
    let (rows, first_row) = from.inside(1, from.y, from.rows);
    assert!(from.rows * pitch * s.group_in() + SLACK <= window.len());
    for channel in 0..s.group_in() {
        let mut next = channel * s.in_plane() + first_row * s.input[2] + first_column;
        for row in 0..from.rows {
            let (mut codes, mut inside) = (&[][..], 0..0);
            // Columns that all lie behind the input have no first one.
            if rows.contains(&row) && !columns.is_empty() {
                (codes, inside) = (&from.planes[next..next + columns.len()], columns.clone());
                next += s.input[2];
            }
            let at = (channel * from.rows + row) * pitch;
            let to = &mut window[at..at + pitch];
            to[..inside.start].fill(from.padding);
            to[inside.end..].fill(from.padding);
            for (to, code) in to[inside].iter_mut().zip(codes) {
                *to = code ^ from.flip;
            }
        }
    }
}
