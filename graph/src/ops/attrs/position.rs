//! Attributes of ops that tell tokens their positions.

use super::{bad, flag};
use crate::graph::Attrs;
use crate::ops::error::OpError;

/// Attributes of `RotaryEmbedding`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RotaryAttrs {
    /// The heads that columns are divided into; zero where they are not.
    heads: i64,
    /// The elements of a head that are rotated; zero for all.
    rotated: i64,
    /// Whether the two elements of a pair are neighbours. Else they are half of the rotated elements apart.
    pub interleaved: bool,
}

impl RotaryAttrs {
    /// Reads the attributes.
    pub fn new(attrs: &Attrs) -> Result<RotaryAttrs, OpError> {
        let heads = attrs.int("num_heads", 0);
        if heads < 0 {
            return Err(bad("num_heads", "must not be negative"));
        }
        let rotated = attrs.int("rotary_embedding_dim", 0);
        if rotated < 0 || rotated % 2 != 0 {
            return Err(bad(
                "rotary_embedding_dim",
                "must be even and within a head",
            ));
        }
        Ok(RotaryAttrs {
            heads,
            rotated,
            interleaved: flag(attrs, "interleaved", false),
        })
    }

    /// How many heads the columns of an operand of rank 3 are divided into, at least one.
    pub fn heads_of_columns(&self) -> Result<i64, OpError> {
        match self.heads {
            0 => Err(OpError::shape("an operand of rank 3 needs num_heads")),
            heads => Ok(heads),
        }
    }

    /// How many pairs are rotated in a head of `size` elements.
    pub fn half(&self, size: i64) -> Result<i64, OpError> {
        match self.rotated {
            0 if size % 2 == 0 => Ok(size / 2),
            0 => Err(OpError::shape(format!(
                "a head must have an even size, not {size}"
            ))),
            rotated if rotated <= size => Ok(rotated / 2),
            _ => Err(bad(
                "rotary_embedding_dim",
                "must be even and within a head",
            )),
        }
    }

    /// The axes of an operand of this shape.
    ///
    /// # Errors
    /// Fails where it has no heads of a size that can be rotated.
    pub fn layout(&self, x: &[usize]) -> Result<RotaryLayout, OpError> {
        let int =
            |n: usize| i64::try_from(n).map_err(|_| OpError::shape(format!("{n} is too long")));
        let (batch, tokens, heads, size) = match *x {
            [batch, heads, tokens, size] => (batch, tokens, heads, size),
            [batch, tokens, columns] => {
                let heads = self.heads_of_columns()? as usize;
                if !columns.is_multiple_of(heads) {
                    let why = format!("{heads} does not divide {columns} columns");
                    return Err(bad("num_heads", why));
                }
                (batch, tokens, heads, columns / heads)
            }
            _ => return Err(OpError::shape("X must have rank 3 or 4")),
        };
        Ok(RotaryLayout {
            batch,
            heads,
            tokens,
            size,
            half: self.half(int(size)?)? as usize,
            heads_first: x.len() == 4,
        })
    }
}

/// The axes of the operand of `RotaryEmbedding`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RotaryLayout {
    pub batch: usize,
    pub heads: usize,
    pub tokens: usize,
    /// Elements of a head.
    pub size: usize,
    /// Pairs of a head that are rotated; the elements behind them stay.
    pub half: usize,
    /// Whether the heads are an axis before the tokens, and not behind them.
    pub heads_first: bool,
}

impl RotaryLayout {
    /// Steps from one batch, and from one token, to the next, among the positions, or among the rows of the caches where there
    /// are no positions; `None` where these shapes do not fit the operand.
    pub fn strides(
        &self,
        cos: &[usize],
        sin: &[usize],
        positions: Option<&[usize]>,
    ) -> Option<[usize; 2]> {
        let (batch, tokens, columns) = match (cos, positions) {
            (&[_, columns], Some(&[batch, tokens])) => (batch, tokens, columns),
            (&[batch, tokens, columns], None) => (batch, tokens, columns),
            _ => return None,
        };
        let step = |own: usize, all: usize, step: usize| match own {
            own if own == all => Some(step),
            1 => Some(0),
            _ => None,
        };
        let fits = cos == sin && columns == self.half;
        let steps = [
            step(batch, self.batch, tokens)?,
            step(tokens, self.tokens, 1)?,
        ];
        fits.then_some(steps)
    }
}
