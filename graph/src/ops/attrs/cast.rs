//! Attributes of `Cast` and `CastLike`, which matter where the result is a float of eight bits.

use super::{bad, flag};
use crate::graph::Attrs;
use crate::ops::error::OpError;

/// The direction in which a number becomes a power of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoundMode {
    Up,
    Down,
    Nearest,
}

/// Attributes of `Cast` and `CastLike`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CastAttrs {
    /// Whether a number beyond the largest one of the dtype becomes that one.
    pub saturate: bool,
    pub round_mode: RoundMode,
}

impl CastAttrs {
    /// Reads the attributes.
    pub fn new(attrs: &Attrs) -> Result<CastAttrs, OpError> {
        let round_mode = match attrs.str("round_mode", "up") {
            "up" => RoundMode::Up,
            "down" => RoundMode::Down,
            "nearest" => RoundMode::Nearest,
            other => {
                let reason = format!("'{other}' is none of up, down and nearest");
                return Err(bad("round_mode", reason));
            }
        };
        Ok(CastAttrs {
            saturate: flag(attrs, "saturate", true),
            round_mode,
        })
    }
}
