//! The caches of GroupQueryAttention that hold codes of 8 or 4 bits instead of numbers.
//!
//! ```text
//! K ── * 1 / scale ── round to even ── bounds ──┬── 8 bits: i8 ─────────────────────────────┬── cache
//!                                               └── 4 bits: + 8, two in a byte, first low ──┘
//! cache ── codes ── * scale ── keys that are attended to, in f32
//! ```

use convoke_graph::DType;
use convoke_graph::graph::{Attr, Attrs, ValueId};

use super::super::super::node::{Expansion, ImportFailure, ImportedNode, Made, unsupported};
use super::super::super::quantised::{First, unpacked};

/// How the codes of a node's caches are written.
pub(super) struct Coding {
    /// Whether keys, and whether values, have a scale for each channel of each head. Otherwise all have one.
    by_channel: [bool; 2],
    width: Width,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Width {
    Eight,
    /// Two codes in a byte, which are 8 more than the numbers that they stand for.
    Four,
}

impl Coding {
    /// Takes the attributes; `None` where the caches hold numbers.
    pub fn take(c: &mut ImportedNode) -> Result<Option<Coding>, ImportFailure> {
        let mut by_channel = [None; 2];
        for (kind, attr) in by_channel.iter_mut().zip(["k_quant_type", "v_quant_type"]) {
            *kind = match c.take_name(attr)?.as_deref() {
                None | Some("NONE") => None,
                Some("PER_TENSOR") => Some(false),
                Some("PER_CHANNEL") => Some(true),
                Some(_) => return Err(c.wrong(attr, "NONE, PER_TENSOR or PER_CHANNEL").into()),
            };
        }
        let bits = c.take_int("kv_cache_bit_width")?;
        let by_channel = match by_channel {
            [None, None] => return Ok(None),
            [Some(keys), Some(values)] => [keys, values],
            _ => return Err(unsupported("codes of keys or of values alone")),
        };
        let width = match bits {
            Some(8) => Width::Eight,
            Some(4) => Width::Four,
            _ => return Err(c.wrong("kv_cache_bit_width", "4 or 8").into()),
        };
        Ok(Some(Coding { by_channel, width }))
    }

    /// The codes of the keys (`part` 0) or the values (1), whose new ones are `x` [batch, heads, tokens, size].
    pub fn of(
        &self,
        e: &mut Expansion<'_>,
        part: usize,
        x: ValueId,
    ) -> Result<CodedCache, ImportFailure> {
        let size = e.shape(x)?[3].as_const();
        let size = size.ok_or_else(|| unsupported("heads of a size that is not known"))?;
        if self.width == Width::Four && size % 2 != 0 {
            return Err(e
                .c
                .error("two codes in a byte need heads of an even size")
                .into());
        }
        let stored = match self.width {
            Width::Eight => DType::I8,
            Width::Four => DType::U8,
        };
        if let Some(past) = e.operand(3 + part).map(|past| past.dtype)
            && past != stored
        {
            return Err(unsupported(format!(
                "a cache of {past}, where its codes need {stored}"
            )));
        }
        let scale = e.c.need(12 + part)?;
        let scale = match self.by_channel[part] {
            false => e.reshaped(scale, &[])?,
            true => {
                let heads = e.shape(x)?[1].as_const();
                let heads = heads.ok_or_else(|| unsupported("heads of an unknown number"))?;
                e.reshaped(scale, &[1, heads, 1, size])?
            }
        };
        Ok(CodedCache {
            scale,
            width: self.width,
            size,
        })
    }
}

/// How the codes of keys or of values are made and read.
pub(super) struct CodedCache {
    /// f32, which broadcasts to [batch, heads, tokens, size].
    scale: ValueId,
    width: Width,
    size: i64,
}

impl CodedCache {
    /// The codes of `x` [batch, heads, tokens, size], as a cache holds them.
    pub fn codes(&self, e: &mut Expansion<'_>, x: ValueId) -> Made {
        let (low, high) = match self.width {
            Width::Eight => (-128., 127.),
            Width::Four => (-8., 7.),
        };
        let x = e.cast(x, DType::F32)?;
        // ONNX Runtime multiplies by the inverse, which is 1 where the scale is 0.
        let (zero, one) = (
            e.float("zero", DType::F32, 0.)?,
            e.float("one", DType::F32, 1.)?,
        );
        let is_zero = e.plain("Equal", &[self.scale, zero])?;
        let divisor = e.plain("Where", &[is_zero, one, self.scale])?;
        let inverse = e.plain("Div", &[one, divisor])?;
        let scaled = e.plain("Mul", &[x, inverse])?;
        let whole = e.plain("Round", &[scaled])?;
        let (low, high) = (
            e.float("least", DType::F32, low)?,
            e.float("most", DType::F32, high)?,
        );
        let codes = e.plain("Clip", &[whole, low, high])?;
        if self.width == Width::Eight {
            return e.cast(codes, DType::I8);
        }
        let eight = e.float("eight", DType::F32, 8.)?;
        let codes = e.plain("Add", &[codes, eight])?;
        let codes = e.cast(codes, DType::U8)?;
        let pairs = e.reshaped(codes, &[0, 0, 0, self.size / 2, 2])?;
        let halves = [(0, 1), (1, 2)].map(|(from, to)| {
            let half = e.slice(pairs, 4, from, to, 1)?;
            e.reshaped(half, &[0, 0, 0, self.size / 2])
        });
        let [first, second] = halves;
        let bits = e.int("bits", 4)?;
        let bits = e.cast(bits, DType::U8)?;
        let left = Attrs::default().with("direction", Attr::Str("LEFT".into()));
        let second = e.op("BitShift", left, &[second?, bits])?;
        e.plain("BitwiseOr", &[first?, second])
    }

    /// The numbers that a cache's codes stand for: f32 [batch, heads, tokens, size].
    pub fn numbers(&self, e: &mut Expansion<'_>, codes: ValueId) -> Made {
        let mut numbers = match self.width {
            Width::Eight => codes,
            Width::Four => unpacked(e, codes, 4, First::Low)?,
        };
        numbers = e.cast(numbers, DType::F32)?;
        if self.width == Width::Four {
            let eight = e.float("eight", DType::F32, 8.)?;
            numbers = e.plain("Sub", &[numbers, eight])?;
        }
        e.plain("Mul", &[numbers, self.scale])
    }
}
