//! Ops with a state that later operator sets of ONNX have as well, in the form that they share.

use super::super::super::builder::Builder;
use super::super::attention;
use super::super::node::{ImportFailure, ImportedNode, Outputs, unsupported};

/// Imports CausalConvWithState along one axis.
pub(super) fn causal_conv(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    if c.take_int("ndim")?.unwrap_or(1) != 1 {
        return Err(unsupported("more than one spatial axis"));
    }
    let dilation = c.take_int("dilation")?.unwrap_or(1);
    if dilation < 1 {
        return Err(c.wrong("dilation", "above zero").into());
    }
    let form = attention::CausalForm {
        dilation,
        channels_last: c.take_flag("channels_last", false)?,
    };
    without_window(&mut c)?;
    attention::causal_conv_of(b, c, form)
}

/// Imports LinearAttention, which ignores operands that its update rule has no use for.
pub(super) fn linear_attention(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    without_window(&mut c)?;
    let rule = c.attrs.str("update_rule", "gated_delta");
    let unused: &[usize] = match rule {
        "linear" => &[4, 5],
        "gated" => &[5],
        "delta" => &[4],
        _ => &[],
    };
    for i in unused {
        c.set(*i, None);
    }
    attention::linear_attention(b, c)
}

fn without_window(c: &mut ImportedNode) -> Result<(), ImportFailure> {
    match c.take_int("state_window")?.unwrap_or(0) {
        0 => Ok(()),
        _ => Err(unsupported("the states after several tokens")),
    }
}
