//! What decides the sizes of an op's results: the shapes of its operands, and the values of its host operands.

use convoke_graph::ops::{Memory, OpDef};
use convoke_graph::{Shape, Tensor};
use smallvec::SmallVec;

/// Whether an operand of an op is a host operand.
pub(crate) fn is_host(def: &OpDef, operand: usize) -> bool {
    let variadic = def.operands.last().filter(|o| o.variadic);
    def.operands
        .get(operand)
        .or(variadic)
        .is_some_and(|o| o.memory == Memory::Host)
}

/// The properties of operands that may decide sizes: their shapes, and the values of host operands.
pub(crate) struct SizeKey {
    shapes: SmallVec<[Option<Shape>; 2]>,
    /// The bytes of the host operands, concatenated.
    host: SmallVec<[u8; 32]>,
}

impl SizeKey {
    /// The key of these operands; each comes with whether its value may decide sizes.
    pub fn of<'t>(operands: impl Iterator<Item = (Option<&'t Tensor>, bool)>) -> SizeKey {
        let (mut shapes, mut host) = (SmallVec::new(), SmallVec::new());
        for (t, is_host) in operands {
            shapes.push(t.map(|t| t.shape().into()));
            if let Some(t) = t.filter(|_| is_host) {
                host.extend_from_slice(t.bytes());
            }
        }
        SizeKey { shapes, host }
    }

    /// The operands' shapes.
    pub fn shapes(&self) -> impl Iterator<Item = Option<&[usize]>> {
        self.shapes.iter().map(Option::as_deref)
    }

    /// Whether these operands have the key's shapes; for ops where no value decides sizes.
    #[inline]
    pub fn has_shapes(&self, operands: &[Option<&Tensor>]) -> bool {
        let same = |(shape, t): (&Option<Shape>, &Option<&Tensor>)| match (shape, t) {
            (None, None) => true,
            (Some(shape), Some(t)) => shape.as_slice() == t.shape(),
            _ => false,
        };
        self.shapes.len() == operands.len() && self.shapes.iter().zip(operands).all(same)
    }

    /// Whether these operands have this key.
    pub fn matches<'t>(&self, operands: impl Iterator<Item = (Option<&'t Tensor>, bool)>) -> bool {
        let (mut shapes, mut host) = (self.shapes.iter(), &self.host[..]);
        for (t, is_host) in operands {
            match (shapes.next(), t) {
                (Some(None), None) => {}
                (Some(Some(shape)), Some(t)) if shape.as_slice() == t.shape() => {
                    if !is_host {
                        continue;
                    }
                    match host.split_at_checked(t.byte_len()) {
                        Some((own, rest)) if own == t.bytes() => host = rest,
                        _ => return false,
                    }
                }
                _ => return false,
            }
        }
        shapes.next().is_none()
    }
}
