//! The right operand: a matrix, or the patches of an image as a matrix.

use std::ops::Range;

use super::PANEL;
use crate::conv::ConvShape;

/// A matrix whose rows are read in parts.
#[derive(Clone, Copy)]
pub(super) enum Columns<'a> {
    /// A row-major matrix that is `n` wide.
    Matrix { codes: &'a [u8], n: usize },
    /// Row `k` is the tap (channel, kd, kh, kw) in the order of the weights; a column is an output position.
    Image {
        shape: &'a ConvShape,
        /// The input of one group of one batch item.
        codes: &'a [u8],
        /// The code of padding.
        padding: u8,
    },
}

/// Consecutive outputs of one output row.
#[derive(Clone, Copy, Default)]
struct Run {
    at: usize,
    len: usize,
    /// The input position of tap (0, 0, 0) for the first output; may be negative in the padding.
    origin: [isize; 3],
}

/// Most taps whose places are worked out once for a panel.
const MOST_TAPS: usize = 64;

/// The columns of one panel, cut at the ends of output rows where it is one of an image.
pub(super) struct Panel<'a> {
    source: Columns<'a>,
    columns: Range<usize>,
    runs: [Run; PANEL],
    count: usize,
    /// How far the inputs of the first taps are from that of tap (0, 0, 0).
    taps: [[isize; 3]; MOST_TAPS],
}

/// How far the input of a tap is from that of tap (0, 0, 0).
fn reach(s: &ConvShape, tap: usize) -> [isize; 3] {
    let [_, kh, kw] = s.kernel;
    let tap = [tap / (kh * kw), tap / kw % kh, tap % kw];
    std::array::from_fn(|d| (tap[d] * s.dilation[d]) as isize)
}

impl<'a> Panel<'a> {
    pub fn new(source: Columns<'a>, columns: Range<usize>) -> Panel<'a> {
        let mut runs = [Run::default(); PANEL];
        let mut count = 0;
        let mut taps = [[0; 3]; MOST_TAPS];
        if let Columns::Image { shape: s, .. } = source {
            let [_, height, width] = s.output;
            for (tap, to) in taps.iter_mut().enumerate().take(s.taps()) {
                *to = reach(s, tap);
            }
            let mut at = columns.start;
            while at < columns.end {
                let (x, y, z) = (at % width, at / width % height, at / width / height);
                let len = (width - x).min(columns.end - at);
                let origin = |d: usize, o: usize| (o * s.stride[d]) as isize - s.pad[d] as isize;
                runs[count] = Run {
                    at: at - columns.start,
                    len,
                    origin: [origin(0, z), origin(1, y), origin(2, x)],
                };
                (at, count) = (at + len, count + 1);
            }
        }
        Panel {
            source,
            columns,
            runs,
            count,
            taps,
        }
    }

    /// Goes on to other columns of a matrix.
    pub fn move_to(&mut self, columns: Range<usize>) {
        debug_assert!(matches!(self.source, Columns::Matrix { .. }));
        self.columns = columns;
    }

    /// Where the codes of row `k` lie: in the matrix, or in `buffer`, to which they are copied.
    #[inline(always)]
    pub fn row<'b>(&'b self, k: usize, buffer: &'b mut [u8; PANEL]) -> &'b [u8] {
        match self.source {
            Columns::Matrix { codes, n } => {
                &codes[k * n + self.columns.start..k * n + self.columns.end]
            }
            Columns::Image {
                shape,
                codes,
                padding,
            } => {
                self.unfold(shape, codes, padding, k, buffer);
                &buffer[..self.columns.len()]
            }
        }
    }

    #[inline(always)]
    fn unfold(&self, s: &ConvShape, codes: &[u8], padding: u8, k: usize, to: &mut [u8; PANEL]) {
        let (channel, tap) = (k / s.taps(), k % s.taps());
        let reach = self.taps.get(tap).copied().unwrap_or_else(|| reach(s, tap));
        *to = [padding; PANEL];
        let plane = &codes[channel * s.in_plane()..(channel + 1) * s.in_plane()];
        let [depth, height, width] = s.input;
        let step = s.stride[2];
        for run in &self.runs[..self.count] {
            let to = &mut to[run.at..run.at + run.len];
            let at = |d: usize| run.origin[d] + reach[d];
            let (z, y, x) = (at(0), at(1), at(2));
            let inside = |v: isize, most: usize| usize::try_from(v).ok().filter(|v| *v < most);
            let (Some(z), Some(y)) = (inside(z, depth), inside(y, height)) else {
                continue;
            };
            let row = &plane[(z * height + y) * width..][..width];
            // The first and one past the last output whose input exists.
            let first = ((-x).max(0) as usize).div_ceil(step).min(run.len);
            let end = ((width as isize - x).max(0) as usize).div_ceil(step);
            let end = end.clamp(first, run.len);
            if first == end {
                continue;
            }
            let from = &row[(x + (first * step) as isize) as usize..];
            let to = &mut to[first..end];
            match step {
                1 => copy_few(&from[..to.len()], to),
                2 => {
                    let (pairs, rest) = from.as_chunks::<2>();
                    let whole = pairs.len().min(to.len());
                    for (to, [code, _]) in to.iter_mut().zip(pairs) {
                        *to = *code;
                    }
                    for (to, code) in to[whole..].iter_mut().zip(rest) {
                        *to = *code;
                    }
                }
                _ => {
                    for (to, from) in to.iter_mut().zip(from.iter().step_by(step)) {
                        *to = *from;
                    }
                }
            }
        }
    }
}

/// Copies at most a panel's width, without the call that a copy of unknown size is.
#[inline(always)]
fn copy_few(from: &[u8], to: &mut [u8]) {
    let n = from.len();
    // Two pieces of one size cover each number of codes up to twice that size.
    macro_rules! pieces {
        ($($size:literal),*) => {$(
            if ($size..=2 * $size).contains(&n) {
                let (first, last) = (from.first_chunk::<$size>(), from.last_chunk::<$size>());
                if let (Some(first), Some(last)) = (first, last) {
                    to[..$size].copy_from_slice(first);
                    to[n - $size..n].copy_from_slice(last);
                }
                return;
            }
        )*};
    }
    pieces!(32, 16, 8, 4);
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
}
