//! The right operand, whose columns are taken in panels: a matrix, or an image.

use std::ops::Range;

use super::image::Image;
use super::runs::{PANEL, Runs, copy_few};

/// How many rows ahead of those that are used rows of a matrix are fetched.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 32;

/// A matrix whose rows are read in parts.
#[derive(Clone, Copy)]
pub(super) enum Columns<'a> {
    /// A row-major matrix that is `n` wide.
    Matrix { codes: &'a [u8], n: usize },
    /// The copy of the input of one group of one batch item, and how it lies there.
    Image { image: &'a Image, codes: &'a [u8] },
}

/// The columns of one panel.
pub(super) struct Panel<'a> {
    source: Columns<'a>,
    columns: Range<usize>,
    /// The parts of a row that are gathered from a plane of the copy, if the row does not lie there as it is.
    gathered: Option<Runs>,
}

/// Where the columns of a gathered row lie.
#[cfg(target_arch = "x86_64")]
pub(super) struct Gathered {
    /// The place of the first column in a row.
    start: usize,
    /// Places from the first column to the last one.
    pub span: usize,
    /// The places of the columns from the first one on.
    pub places: [u8; PANEL],
}

impl<'a> Panel<'a> {
    pub fn new(source: Columns<'a>, columns: Range<usize>) -> Panel<'a> {
        let gathered = match source {
            Columns::Image { image, .. } if image.gathers => Some(image.places(&columns)),
            _ => None,
        };
        Panel {
            source,
            columns,
            gathered,
        }
    }

    /// The codes of row `k`, which may be gathered in `buffer`.
    #[inline(always)]
    pub fn row<'b>(&self, k: usize, buffer: &'b mut [u8; PANEL]) -> &'b [u8]
    where
        'a: 'b,
    {
        let (codes, start) = match self.source {
            Columns::Matrix { codes, n } => (codes, k * n),
            Columns::Image { image, codes } => (codes, image.row(k)),
        };
        let Some(gathered) = &self.gathered else {
            return &codes[start + self.columns.start..start + self.columns.end];
        };
        for run in gathered.as_slice() {
            let from = &codes[start + run.place..][..run.len];
            copy_few(from, &mut buffer[run.at..run.at + run.len]);
        }
        &buffer[..self.columns.len()]
    }

    /// The columns within the lines that rows are gathered from: the place of the first one in a row, how many places the
    /// columns span, and each column's place from the first one on. `None` where rows lie as they are, or span more than two vectors.
    #[cfg(target_arch = "x86_64")]
    pub fn gathered(&self) -> Option<Gathered> {
        let runs = self.gathered.as_ref()?.as_slice();
        let (start, last) = (runs.first()?.place, runs.last()?);
        let span = last.place + last.len - start;
        let mut places = [0; PANEL];
        for run in runs {
            for (i, place) in places[run.at..][..run.len].iter_mut().enumerate() {
                *place = (run.place - start + i) as u8;
            }
        }
        let gathered = Gathered {
            start,
            span,
            places,
        };
        (span <= 2 * PANEL).then_some(gathered)
    }

    /// The codes of the lines that row `k` is gathered from, as many as its columns span.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub fn lines(&self, k: usize, gathered: &Gathered) -> &'a [u8] {
        match self.source {
            Columns::Matrix { .. } => &[],
            Columns::Image { image, codes } => {
                &codes[image.row(k) + gathered.start..][..gathered.span]
            }
        }
    }

    /// Where the codes of a row lie that is used soon after row `k`, which the processor does not expect where rows are far apart.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub fn ahead(&self, k: usize) -> Option<*const u8> {
        match self.source {
            Columns::Matrix { codes, n } => {
                let row = codes.as_ptr().wrapping_add((k + AHEAD) * n);
                Some(row.wrapping_add(self.columns.start))
            }
            Columns::Image { .. } => None,
        }
    }

    /// The panel's columns that the output has.
    pub fn runs(&self) -> Runs {
        match self.source {
            Columns::Image { image, .. } if !image.gathers => image.outputs(&self.columns),
            _ => Runs::one(&self.columns),
        }
    }
}
