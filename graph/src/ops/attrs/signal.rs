//! Attributes of `DFT` and `Col2Im`.

use super::{bad, flag};
use crate::graph::Attrs;
use crate::ops::error::OpError;

/// Attributes of `DFT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DftAttrs {
    pub inverse: bool,
    /// Whether the spectrum of a real signal is given by its first half.
    pub one_sided: bool,
}

impl DftAttrs {
    /// Reads the attributes of a node.
    pub fn new(attrs: &Attrs) -> DftAttrs {
        DftAttrs {
            inverse: flag(attrs, "inverse", false),
            one_sided: flag(attrs, "onesided", false),
        }
    }

    /// Whether the result is a real signal, of half its spectrum.
    pub fn to_real(self) -> bool {
        self.inverse && self.one_sided
    }
}

/// The largest stride, dilation or padding of `Col2Im`. The limit keeps the arithmetic of positions inside an i64.
const MAX_EXTENT: i64 = 1 << 24;

/// Attributes of `Col2Im`; every list has one entry per axis of the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoldAttrs {
    pub strides: Vec<usize>,
    pub dilations: Vec<usize>,
    /// The padding before and after.
    pub pads: Vec<(usize, usize)>,
}

impl FoldAttrs {
    /// Reads and checks the attributes of a node, for images with `rank` axes.
    pub fn new(attrs: &Attrs, rank: usize) -> Result<FoldAttrs, OpError> {
        let list = |name: &str, count: usize, least: i64| -> Result<Vec<usize>, OpError> {
            let Some(given) = attrs.ints(name) else {
                return Ok(vec![least as usize; count]);
            };
            if given.len() != count {
                let got = given.len();
                return Err(bad(name, format!("must have {count} entries, not {got}")));
            }
            let inside = |v: &i64| (least..=MAX_EXTENT).contains(v).then_some(*v as usize);
            let outside = || bad(name, format!("must be {least} to {MAX_EXTENT}"));
            given
                .iter()
                .map(inside)
                .collect::<Option<_>>()
                .ok_or_else(outside)
        };
        let pads = list("pads", 2 * rank, 0)?;
        let (before, after) = pads.split_at(rank);
        Ok(FoldAttrs {
            strides: list("strides", rank, 1)?,
            dilations: list("dilations", rank, 1)?,
            pads: before.iter().copied().zip(after.iter().copied()).collect(),
        })
    }

    /// How many positions a block of these lengths has along each axis of an image.
    pub fn positions(&self, image: &[usize], block: &[usize]) -> Result<Vec<usize>, OpError> {
        let mut all = Vec::with_capacity(image.len());
        for (axis, (image, block)) in image.iter().zip(block).enumerate() {
            let (before, after) = self.pads[axis];
            let padded = *image as i128 + before as i128 + after as i128;
            let extent = self.dilations[axis] as i128 * (*block as i128 - 1) + 1;
            let count = (padded - extent).div_euclid(self.strides[axis] as i128) + 1;
            match usize::try_from(count) {
                Ok(count) if count > 0 && *block > 0 => all.push(count),
                _ => {
                    let reason =
                        format!("a block of {block} does not lie in axis {axis} of {image}");
                    return Err(OpError::shape(reason));
                }
            }
        }
        Ok(all)
    }
}
