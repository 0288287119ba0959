//! Sliding windows: what convolutions and pools have in common.

use smallvec::SmallVec;

use super::{bad, flag};
use crate::Dim;
use crate::graph::Attrs;
use crate::ops::error::OpError;

/// The largest kernel extent, stride, dilation or padding. The limit keeps the arithmetic of windows inside an i64.
const MAX_EXTENT: i64 = 1 << 24;

/// How padding is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AutoPad {
    /// Attribute `pads` gives the padding.
    NotSet,
    /// The padding is such that there are ceil(input / stride) outputs; an odd element is added at the end.
    SameUpper,
    /// As `SameUpper`, but an odd element is added at the beginning.
    SameLower,
    /// There is no padding.
    Valid,
}

/// A window over the spatial axes; every list has one entry per spatial axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    pub kernel: SmallVec<[usize; 3]>,
    pub strides: SmallVec<[usize; 3]>,
    pub dilations: SmallVec<[usize; 3]>,
    pub auto_pad: AutoPad,
    /// Explicit padding, before and after; zero unless `auto_pad` is `NotSet`.
    explicit: SmallVec<[(usize, usize); 3]>,
    pub ceil_mode: bool,
}

/// Reads a list of `rank` integers of at least `least`; `default` is repeated where the attribute is absent.
fn list(
    attrs: &Attrs,
    name: &str,
    rank: usize,
    least: i64,
    default: usize,
) -> Result<SmallVec<[usize; 3]>, OpError> {
    let Some(given) = attrs.ints(name) else {
        return Ok(SmallVec::from_elem(default, rank));
    };
    if given.len() != rank {
        return Err(bad(
            name,
            format!("must have {rank} entries, not {}", given.len()),
        ));
    }
    let checked = given.iter().map(|v| {
        let inside = (least..=MAX_EXTENT).contains(v);
        inside
            .then_some(*v as usize)
            .ok_or_else(|| bad(name, format!("{v} is outside {least} to {MAX_EXTENT}")))
    });
    checked.collect()
}

impl Window {
    /// Reads a window over `rank` spatial axes. `kernel` is its shape where the op's weight gives it; otherwise,
    /// attribute `kernel_shape` is required.
    pub fn new(attrs: &Attrs, rank: usize, kernel: Option<&[usize]>) -> Result<Window, OpError> {
        if kernel.is_none() && attrs.ints("kernel_shape").is_none() {
            return Err(bad("kernel_shape", "is required"));
        }
        let mut shape = list(attrs, "kernel_shape", rank, 1, 1)?;
        if let Some(k) = kernel {
            if attrs.ints("kernel_shape").is_some() && shape.as_slice() != k {
                let shape = shape.as_slice();
                return Err(bad(
                    "kernel_shape",
                    format!("is {shape:?}, but the weight has {k:?}"),
                ));
            }
            if k.len() != rank || k.iter().any(|k| *k == 0 || *k > MAX_EXTENT as usize) {
                return Err(OpError::shape(format!(
                    "a kernel of extents {k:?} is not possible"
                )));
            }
            shape = k.into();
        }
        let auto_pad = match attrs.str("auto_pad", "NOTSET") {
            "NOTSET" | "" => AutoPad::NotSet,
            "SAME_UPPER" => AutoPad::SameUpper,
            "SAME_LOWER" => AutoPad::SameLower,
            "VALID" => AutoPad::Valid,
            other => return Err(bad("auto_pad", format!("'{other}' is unknown"))),
        };
        let pads = list(attrs, "pads", rank * 2, 0, 0)?;
        let pads = (0..rank).map(|i| match auto_pad {
            AutoPad::NotSet => (pads[i], pads[rank + i]),
            _ => (0, 0),
        });
        Ok(Window {
            kernel: shape,
            strides: list(attrs, "strides", rank, 1, 1)?,
            dilations: list(attrs, "dilations", rank, 1, 1)?,
            auto_pad,
            explicit: pads.collect(),
            ceil_mode: flag(attrs, "ceil_mode", false),
        })
    }

    /// Extent of the kernel along spatial axis `axis`, with the gaps of its dilation.
    pub fn extent(&self, axis: usize) -> usize {
        (self.kernel[axis] - 1) * self.dilations[axis] + 1
    }

    fn same(&self) -> bool {
        matches!(self.auto_pad, AutoPad::SameUpper | AutoPad::SameLower)
    }

    /// Padding before and after spatial axis `axis` of length `input`.
    pub fn pads(&self, axis: usize, input: usize) -> (usize, usize) {
        if !self.same() {
            return self.explicit[axis];
        }
        let stride = self.strides[axis];
        let covered = input
            .div_ceil(stride)
            .saturating_sub(1)
            .saturating_mul(stride);
        let total = covered
            .saturating_add(self.extent(axis))
            .saturating_sub(input);
        match self.auto_pad {
            AutoPad::SameLower => (total - total / 2, total / 2),
            _ => (total / 2, total - total / 2),
        }
    }

    /// Number of windows along spatial axis `axis` of length `input`.
    pub fn output(&self, axis: usize, input: usize) -> Result<usize, OpError> {
        let stride = self.strides[axis];
        if self.same() {
            return Ok(input.div_ceil(stride));
        }
        let (before, after) = self.explicit[axis];
        let padded = input.saturating_add(before + after);
        let extent = self.extent(axis);
        let Some(room) = padded.checked_sub(extent) else {
            return Err(OpError::shape(format!(
                "a kernel of extent {extent} does not fit in {padded} on spatial axis {axis}"
            )));
        };
        if !self.ceil_mode {
            return Ok(room / stride + 1);
        }
        let n = room.div_ceil(stride) + 1;
        // A last window that begins in the padding behind the input is left out.
        Ok(n.min(input.saturating_add(before).saturating_sub(1) / stride + 1))
    }

    /// As [`Window::output`], for a length that may be symbolic.
    pub fn output_dim(&self, axis: usize, input: &Dim) -> Result<Dim, OpError> {
        if let Some(n) = input.as_const() {
            let n = usize::try_from(n).map_err(|_| OpError::shape("negative dimension"))?;
            return Ok(self.output(axis, n)?.into());
        }
        let stride = Dim::from(self.strides[axis]);
        if self.same() {
            return Ok(input.ceil_div(&stride));
        }
        let (before, after) = self.explicit[axis];
        let one = Dim::Const(1);
        let room = &(input + &Dim::from(before + after)) - &Dim::from(self.extent(axis));
        if !self.ceil_mode {
            return Ok(&room.floor_div(&stride) + &one);
        }
        let n = &room.ceil_div(&stride) + &one;
        // (n - 1) * stride is below room + stride, so the last window begins inside anyway.
        if after + self.strides[axis] <= self.extent(axis) {
            return Ok(n);
        }
        let inside = &(&(input + &Dim::from(before)) - &one).floor_div(&stride) + &one;
        Ok(n.smaller(&inside))
    }
}

/// Attributes of `Conv` and `FusedConv`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConvAttrs {
    pub window: Window,
    pub group: usize,
}

impl ConvAttrs {
    /// Reads and checks the attributes of a node; `kernel` is the weight's spatial shape.
    pub fn new(attrs: &Attrs, kernel: &[usize]) -> Result<ConvAttrs, OpError> {
        let window = Window::new(attrs, kernel.len(), Some(kernel))?;
        Ok(ConvAttrs {
            window,
            group: Self::group(attrs)?,
        })
    }

    /// Attribute `group`, at least one.
    pub fn group(attrs: &Attrs) -> Result<usize, OpError> {
        let group = usize::try_from(attrs.int("group", 1))
            .ok()
            .filter(|g| *g > 0);
        group.ok_or_else(|| bad("group", "must be above zero"))
    }
}

/// Attributes of `MaxPool`, `AveragePool` and `LpPool`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolAttrs {
    pub window: Window,
    /// Whether `AveragePool` counts padding as elements.
    pub count_include_pad: bool,
    /// Whether the indices of `MaxPool` count column-major over the spatial axes.
    pub column_major: bool,
    /// The exponent of the norm of `LpPool`.
    pub p: i64,
}

impl PoolAttrs {
    /// Reads and checks the attributes of a node, for an operand of `spatial` spatial axes.
    pub fn new(attrs: &Attrs, spatial: usize) -> Result<PoolAttrs, OpError> {
        let p = attrs.int("p", 2);
        if p < 1 {
            return Err(bad("p", "must be above zero"));
        }
        Ok(PoolAttrs {
            window: Window::new(attrs, spatial, None)?,
            count_include_pad: flag(attrs, "count_include_pad", false),
            column_major: flag(attrs, "storage_order", false),
            p,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Attr;

    fn window(attrs: &[(&str, &[i64])], rest: &[(&str, Attr)]) -> Result<Window, OpError> {
        let mut a = Attrs::default();
        for (n, v) in attrs {
            a = a.with(n, Attr::Ints(v.to_vec()));
        }
        for (n, v) in rest {
            a = a.with(n, v.clone());
        }
        Window::new(&a, 1, None)
    }

    #[test]
    fn concrete_and_symbolic_sizes_agree() {
        for kernel in 1..4 {
            for stride in 1..4 {
                for pads in [[0, 0], [1, 0], [0, 1], [1, 1], [2, 2], [3, 1]] {
                    for pad in ["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"] {
                        for ceil in [0, 1] {
                            let w = window(
                                &[
                                    ("kernel_shape", &[kernel]),
                                    ("strides", &[stride]),
                                    ("pads", &pads),
                                ],
                                &[
                                    ("auto_pad", Attr::Str(pad.into())),
                                    ("ceil_mode", Attr::Int(ceil)),
                                ],
                            );
                            check_agree(&w.unwrap());
                        }
                    }
                }
            }
        }
    }

    fn check_agree(w: &Window) {
        let symbolic = w.output_dim(0, &Dim::sym("n")).unwrap();
        for n in 3..12usize {
            let bound = symbolic.eval(&[("n".into(), n as i64)].into());
            assert_eq!(bound, Some(w.output(0, n).unwrap() as i64), "{w:?} {n}");
        }
    }

    #[test]
    fn same_padding_splits_the_odd_one() {
        let w = |p: &str| {
            window(
                &[("kernel_shape", &[2])],
                &[("auto_pad", Attr::Str(p.into()))],
            )
            .unwrap()
        };
        assert_eq!(w("SAME_UPPER").pads(0, 5), (0, 1));
        assert_eq!(w("SAME_LOWER").pads(0, 5), (1, 0));
    }

    #[test]
    fn hostile_attributes_are_refused() {
        assert!(window(&[], &[]).is_err());
        for bad in [
            ("strides", &[0][..]),
            ("strides", &[1, 1]),
            ("dilations", &[-1]),
            ("pads", &[1]),
            ("pads", &[-1, 0]),
            ("pads", &[i64::MAX, i64::MAX]),
            ("kernel_shape", &[0]),
            ("kernel_shape", &[]),
        ] {
            let k: (&str, &[i64]) = ("kernel_shape", &[3]);
            assert!(window(&[k, bad], &[]).is_err(), "{bad:?}");
        }
        let w = window(&[("kernel_shape", &[5])], &[]).unwrap();
        assert!(w.output(0, 4).is_err());
    }
}
