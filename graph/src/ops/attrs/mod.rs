//! Reads and checks attributes, with their defaults. Shape rules and kernels share this code.

mod activation;
mod cast;
mod learn;
mod position;
mod quantised;
mod random;
mod recurrent;
mod resize;
mod signal;
mod text;
mod vision;
mod window;

pub use activation::Activation;
pub use cast::{CastAttrs, RoundMode};
pub use learn::{Aggregate, TreeAttrs};
pub use position::{RotaryAttrs, RotaryLayout};
pub use quantised::{
    BlockWeightAttrs, Granularity, PackCodesAttrs, ParameterShape, QUANTISED, QuantiseAttrs,
    product_granularity,
};
pub use random::{NormalAttrs, UniformAttrs};
pub use recurrent::{CellActivation, RecurrentAttrs, RecurrentDirection, packed_recurrent_len};
pub use resize::{AspectRatio, BY_SCALE, Coordinates, Interpolation, Nearest, ResizeAttrs};
pub use signal::{DftAttrs, FoldAttrs};
pub use text::{
    CaseChange, GramAttrs, GramMode, NormalizerAttrs, TokenizerAttrs, Tokens, check_pattern,
};
pub use vision::{
    DeformAttrs, GridMode, GridOutside, GridSampleAttrs, PixelFormat, RoiAttrs, unpooled_len,
};
pub use window::{AutoPad, ConvAttrs, PoolAttrs, Window};

use super::error::OpError;
use crate::DType;
use crate::graph::{Attr, Attrs};

/// Makes an error about attribute `attr`.
pub(super) fn bad(attr: &str, reason: impl Into<String>) -> OpError {
    OpError::Attr {
        attr: attr.into(),
        reason: reason.into(),
    }
}

/// `axis` counted from the front, where `-rank <= axis < rank`.
pub fn normalize_axis(axis: i64, rank: usize) -> Result<usize, OpError> {
    let r = rank as i64;
    if axis < -r || axis >= r {
        return Err(OpError::shape(format!(
            "axis {axis} is outside rank {rank}"
        )));
    }
    Ok(if axis < 0 { axis + r } else { axis } as usize)
}

/// `axes` counted from the front, in the order given; none may occur twice.
pub fn normalize_axes(axes: &[i64], rank: usize) -> Result<Vec<usize>, OpError> {
    let mut out: Vec<usize> = Vec::new();
    for a in axes {
        let a = normalize_axis(*a, rank)?;
        if out.contains(&a) {
            return Err(OpError::shape(format!("axis {a} is named twice")));
        }
        out.push(a);
    }
    Ok(out)
}

/// Attribute `axis` counted from the front of `rank`, or `default` where it is absent.
pub fn axis(attrs: &Attrs, default: i64, rank: usize) -> Result<usize, OpError> {
    normalize_axis(attrs.int("axis", default), rank)
}

/// Attribute `axis` as a border between dimensions: `-rank <= axis <= rank`.
pub fn split_axis(attrs: &Attrs, default: i64, rank: usize) -> Result<usize, OpError> {
    match attrs.int("axis", default) {
        a if a == rank as i64 => Ok(rank),
        a => normalize_axis(a, rank),
    }
}

/// The boolean attribute called `name`, which ONNX writes as an integer.
pub fn flag(attrs: &Attrs, name: &str, default: bool) -> bool {
    attrs.int(name, default.into()) != 0
}

/// Whether `Gelu` is the approximation by tanh.
pub fn gelu_tanh(attrs: &Attrs) -> Result<bool, OpError> {
    match attrs.str("approximate", "none") {
        "none" => Ok(false),
        "tanh" => Ok(true),
        other => Err(bad(
            "approximate",
            format!("must be none or tanh, not {other}"),
        )),
    }
}

/// Attribute `epsilon` of the normalisations, 1e-5 where it is absent, for every op.
pub fn epsilon(attrs: &Attrs) -> f32 {
    attrs.float("epsilon", 1e-5)
}

/// Attributes of `Gemm`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GemmAttrs {
    pub alpha: f32,
    pub beta: f32,
    pub trans_a: bool,
    pub trans_b: bool,
}

impl GemmAttrs {
    /// Reads the attributes of a node.
    pub fn new(attrs: &Attrs) -> GemmAttrs {
        GemmAttrs {
            alpha: attrs.float("alpha", 1.),
            beta: attrs.float("beta", 1.),
            trans_a: flag(attrs, "transA", false),
            trans_b: flag(attrs, "transB", false),
        }
    }
}

/// Attributes of `LRN`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LrnAttrs {
    /// The number of channels in a window.
    pub size: usize,
    pub alpha: f32,
    pub beta: f32,
    pub bias: f32,
}

impl LrnAttrs {
    /// Reads and checks the attributes of a node.
    pub fn new(attrs: &Attrs) -> Result<LrnAttrs, OpError> {
        let size = usize::try_from(attrs.int("size", 0))
            .ok()
            .filter(|s| *s > 0);
        Ok(LrnAttrs {
            size: size.ok_or_else(|| bad("size", "must be above zero"))?,
            alpha: attrs.float("alpha", 1e-4),
            beta: attrs.float("beta", 0.75),
            bias: attrs.float("bias", 1.),
        })
    }
}

/// Attributes of the reductions, `ArgMax` and `ArgMin` included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReduceAttrs {
    /// Whether reduced axes stay, with length one.
    pub keep_dims: bool,
    /// Whether an empty list of axes means no reduction, instead of a reduction over all axes.
    pub noop_with_empty_axes: bool,
    /// Whether `ArgMax` and `ArgMin` take the last of equal elements.
    pub select_last: bool,
}

impl ReduceAttrs {
    /// Reads the attributes of a node.
    pub fn new(attrs: &Attrs) -> ReduceAttrs {
        ReduceAttrs {
            keep_dims: flag(attrs, "keepdims", true),
            noop_with_empty_axes: flag(attrs, "noop_with_empty_axes", false),
            select_last: flag(attrs, "select_last_index", false),
        }
    }

    /// The axes to reduce of an operand of `rank`, ascending. `axes` are the given ones, or empty.
    pub fn axes(&self, axes: &[i64], rank: usize) -> Result<Vec<usize>, OpError> {
        if axes.is_empty() {
            return Ok(if self.noop_with_empty_axes {
                vec![]
            } else {
                (0..rank).collect()
            });
        }
        let mut axes = normalize_axes(axes, rank)?;
        axes.sort_unstable();
        Ok(axes)
    }
}

/// How `ScatterElements` and `ScatterND` combine an update with the element in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// The update replaces the element.
    None,
    Add,
    Mul,
    Max,
    Min,
}

impl Reduction {
    /// Reads attribute `reduction`.
    pub fn new(attrs: &Attrs) -> Result<Reduction, OpError> {
        Ok(match attrs.str("reduction", "none") {
            "none" => Reduction::None,
            "add" => Reduction::Add,
            "mul" => Reduction::Mul,
            "max" => Reduction::Max,
            "min" => Reduction::Min,
            other => return Err(bad("reduction", format!("'{other}' is unknown"))),
        })
    }
}

/// How `Pad` chooses the elements that it adds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PadMode {
    Constant,
    Reflect,
    Edge,
    Wrap,
}

impl PadMode {
    /// Reads attribute `mode`.
    pub fn new(attrs: &Attrs) -> Result<PadMode, OpError> {
        Ok(match attrs.str("mode", "constant") {
            "constant" => PadMode::Constant,
            "reflect" => PadMode::Reflect,
            "edge" => PadMode::Edge,
            "wrap" => PadMode::Wrap,
            other => return Err(bad("mode", format!("'{other}' is unknown"))),
        })
    }
}

/// Whether `mode` of `DepthToSpace` and `SpaceToDepth` is CRD, in which the block is the fastest part of the channels,
/// and not DCR.
pub fn column_row_depth(attrs: &Attrs) -> Result<bool, OpError> {
    match attrs.str("mode", "DCR") {
        "DCR" => Ok(false),
        "CRD" => Ok(true),
        other => Err(bad("mode", format!("must be DCR or CRD, not {other}"))),
    }
}

/// Whether `mode` of `TensorScatter` is circular, in which an update goes on at the beginning of the cache, and not
/// linear.
pub fn circular(attrs: &Attrs) -> Result<bool, OpError> {
    match attrs.str("mode", "linear") {
        "linear" => Ok(false),
        "circular" => Ok(true),
        other => Err(bad(
            "mode",
            format!("must be linear or circular, not {other}"),
        )),
    }
}

/// Axes of `MeanVarianceNormalization`: where the attribute is absent, all axes of [N, C, H, W] except the channels.
pub fn mvn_axes(attrs: &Attrs, rank: usize) -> Result<Vec<usize>, OpError> {
    normalize_axes(attrs.ints("axes").unwrap_or(&[0, 2, 3]), rank)
}

/// Attribute `perm` of `Transpose`: the axes in reverse order where it is absent.
pub fn transpose_perm(attrs: &Attrs, rank: usize) -> Result<Vec<usize>, OpError> {
    let Some(perm) = attrs.ints("perm") else {
        return Ok((0..rank).rev().collect());
    };
    let perm = normalize_axes(perm, rank).map_err(|e| bad("perm", e.to_string()))?;
    match perm.len() == rank {
        true => Ok(perm),
        false => Err(bad(
            "perm",
            format!("must have {rank} entries, not {}", perm.len()),
        )),
    }
}

/// The single element that `ConstantOfShape` repeats: its dtype and little-endian bytes; f32 zero where
/// absent.
pub fn fill_value(attrs: &Attrs) -> Result<(DType, Vec<u8>), OpError> {
    match attrs.get("value") {
        None => Ok((DType::F32, vec![0; 4])),
        Some(Attr::Tensor(t)) if t.dtype() == DType::Str => Err(bad("value", "must be a number")),
        Some(Attr::Tensor(t)) if t.elements() == 1 => Ok((t.dtype(), t.bytes().to_vec())),
        Some(_) => Err(bad("value", "must be a tensor of one element")),
    }
}

/// First index and count of a slice of an axis of length `dim`, in the manner of ONNX: negative bounds
/// count from the end, and bounds outside are clamped. `step` is not zero.
pub fn slice_range(dim: i64, start: i64, end: i64, step: i64) -> (i64, i64) {
    let from_end = |v: i64| if v < 0 { v.saturating_add(dim) } else { v };
    let (start, end) = (from_end(start), from_end(end));
    if step > 0 {
        let (start, end) = (start.clamp(0, dim), end.clamp(0, dim));
        (
            start,
            (end - start)
                .max(0)
                .unsigned_abs()
                .div_ceil(step.unsigned_abs()) as i64,
        )
    } else {
        let (start, end) = (start.clamp(-1, dim - 1), end.clamp(-1, dim - 1));
        (
            start,
            (start - end)
                .max(0)
                .unsigned_abs()
                .div_ceil(step.unsigned_abs()) as i64,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_count_from_both_ends() {
        assert_eq!(normalize_axis(-1, 3), Ok(2));
        assert!(normalize_axis(3, 3).is_err() && normalize_axis(-4, 3).is_err());
        assert!(normalize_axis(i64::MIN, 3).is_err() && normalize_axis(0, 0).is_err());
        assert_eq!(normalize_axes(&[-1, 0], 2), Ok(vec![1, 0]));
        assert!(normalize_axes(&[1, -1], 2).is_err());
    }

    #[test]
    fn slices_clamp() {
        let (min, max) = (i64::MIN, i64::MAX);
        for (dim, start, end, step, want) in [
            (10, 2, 7, 2, (2, 3)),
            (10, -3, max, 1, (7, 3)),
            (10, max, 20, 1, (10, 0)),
            (10, -1, min, -1, (9, 10)),
            (10, 8, 0, -3, (8, 3)),
            (10, 0, 5, max, (0, 1)),
            (10, 9, min, min, (9, 1)),
            (0, 0, max, 1, (0, 0)),
            (0, -1, min, -1, (-1, 0)),
        ] {
            assert_eq!(
                slice_range(dim, start, end, step),
                want,
                "{dim} {start} {end} {step}"
            );
        }
    }

    #[test]
    fn permutations_are_checked() {
        let perm =
            |p: &[i64]| transpose_perm(&Attrs::default().with("perm", Attr::Ints(p.into())), 3);
        assert_eq!(perm(&[0, 2, 1]), Ok(vec![0, 2, 1]));
        assert!(perm(&[0, 1]).is_err() && perm(&[0, 1, 1]).is_err() && perm(&[0, 1, 3]).is_err());
        assert_eq!(transpose_perm(&Attrs::default(), 3), Ok(vec![2, 1, 0]));
    }
}
