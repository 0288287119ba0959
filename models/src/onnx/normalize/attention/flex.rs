//! FlexAttention, whose scores and weights graphs of the model may change.

use convoke_graph::DType;
use convoke_graph::graph::{Attr, Attrs, ValueId};

use super::super::super::builder::Builder;
use super::super::node::{
    Expansion, ImportFailure, ImportedNode, Outputs, axis_of, to_dtype, unsupported,
};
use super::{sharing, softmax_precision};

/// A FlexAttention between its steps: the model's graphs are imported before and after the softmax.
pub(in super::super::super) struct FlexAttention {
    c: ImportedNode,
    value: ValueId,
    dtype: DType,
    /// The dtype of scores and weights.
    precise: DType,
    /// The heads of Q, and of K where several heads of Q share one of K.
    shared: Option<(i64, i64)>,
    /// The scores of all queries and keys.
    pub scores: ValueId,
}

/// How FlexAttention is imported.
pub(in super::super::super) enum Flex {
    /// All at once.
    Whole(Vec<ValueId>),
    /// Attention with graphs of the model between its steps.
    Steps(Box<FlexAttention>),
}

impl FlexAttention {
    /// Imports the operands, and the scores where `modified` says that a graph changes scores or weights.
    pub(in super::super::super) fn begin(
        b: &mut Builder,
        mut c: ImportedNode,
        modified: bool,
    ) -> Result<Flex, ImportFailure> {
        let scale = c.take_float("scale")?;
        let precise = softmax_precision(&mut c)?;
        c.no_more_attributes()?;
        if c.follows_a_refusal(b) {
            return Ok(Flex::Whole(b.stand_ins(&c.outputs)));
        }
        let (q, k, v) = (c.need(0)?, c.need(1)?, c.need(2)?);
        let mut e = Expansion { b, c: &c };
        for x in [q, k, v] {
            if e.shape(x)?.len() != 4 {
                return Err(c.error("Q, K and V must have rank 4").into());
            }
        }
        let dtype = e.ty(q)?.dtype;
        let precise = precise.unwrap_or(match dtype {
            DType::F64 => DType::F64,
            _ => DType::F32,
        });
        let size = e.shape(q)?[3].as_const();
        let scale = match (scale, size) {
            (Some(scale), _) => f64::from(scale),
            (None, Some(size)) => 1.0 / (size.max(1) as f64).sqrt(),
            (None, None) => return Err(unsupported("heads of a size that is not known")),
        };
        let shared = sharing(&e, q, k)?;
        if !modified && dtype != DType::F64 && precise != DType::F64 {
            let attrs = Attrs::default().with("scale", Attr::Float(scale as f32));
            let y = e.last(0, "FusedAttention", attrs, &[q, k, v])?;
            return Ok(Flex::Whole(vec![y]));
        }
        let scale = e.float("scale", dtype, scale)?;
        let scores = e.scores(q, k, scale, shared)?;
        let scores = e.cast(scores, precise)?;
        Ok(Flex::Steps(Box::new(FlexAttention {
            c,
            value: v,
            dtype,
            precise,
            shared,
            scores,
        })))
    }

    /// The weights of scores, which must have kept their dtype.
    pub(in super::super::super) fn weights(
        &self,
        b: &mut Builder,
        scores: ValueId,
    ) -> Result<ValueId, ImportFailure> {
        let mut e = Expansion { b, c: &self.c };
        let scores = e.cast(scores, self.precise)?;
        e.op("Softmax", axis_of(-1), &[scores])
    }

    /// Imports the product of weights and values.
    pub(in super::super::super) fn finish(self, b: &mut Builder, weights: ValueId) -> Outputs {
        let mut e = Expansion { b, c: &self.c };
        let weights = e.cast(weights, self.precise)?;
        let value = e.cast(self.value, self.precise)?;
        let y = e.mixed(weights, value, self.shared)?;
        Ok(vec![e.last(0, "Cast", to_dtype(self.dtype), &[y])?])
    }
}
