//! Elementwise ops that have a bias, and the activations that other fused ops apply to their result.

use convoke_graph::graph::{Attr, Attrs, ValueId};

use super::super::super::builder::Builder;
use super::super::node::{
    Expansion, ImportFailure, ImportedNode, Made, Outputs, axis_of, unsupported,
};
use super::super::{operands, softmax};

/// The activation that a fused op applies to its result.
pub(super) enum Activation {
    Identity,
    /// An op without further operands.
    Op(&'static str, Attrs),
    /// Bounds on the result.
    Clip(f32, f32),
}

impl Activation {
    /// Takes the attributes of a convolution: a name, and a list of parameters.
    pub(super) fn of_conv(c: &mut ImportedNode) -> Result<Activation, ImportFailure> {
        let name = c.take_name("activation")?;
        let parameters = match c.take("activation_params") {
            None => vec![],
            Some(Attr::Floats(v)) => v,
            Some(_) => return Err(c.wrong("activation_params", "a list of floats").into()),
        };
        let parameter = |i: usize| parameters.get(i).copied();
        match (name.as_deref(), parameter(0), parameter(1)) {
            (Some("Clip"), Some(low), Some(high)) => Ok(Activation::Clip(low, high)),
            (Some("Clip"), ..) => Err(c
                .wrong("activation_params", "the two bounds of Clip")
                .into()),
            (name, alpha, beta) => Activation::named(name, [alpha, beta, None]),
        }
    }

    /// Takes the attributes of a product of matrices: a name, and parameters by their names.
    pub(super) fn of_product(c: &mut ImportedNode) -> Result<Activation, ImportFailure> {
        let name = c.take_name("activation")?;
        let parameters = [
            c.take_float("activation_alpha")?,
            c.take_float("activation_beta")?,
            c.take_float("activation_gamma")?,
        ];
        Activation::named(name.as_deref(), parameters)
    }

    /// The activation of a name, with parameters alpha, beta and gamma, where they are given.
    fn named(
        name: Option<&str>,
        parameters: [Option<f32>; 3],
    ) -> Result<Activation, ImportFailure> {
        let (op, attrs): (_, &[&str]) = match name {
            None | Some("") => return Ok(Activation::Identity),
            Some("Relu") => ("Relu", &[]),
            Some("Sigmoid") => ("Sigmoid", &[]),
            Some("Tanh") => ("Tanh", &[]),
            Some("Softplus") => ("Softplus", &[]),
            Some("Softsign") => ("Softsign", &[]),
            Some("Celu") => ("Celu", &["alpha"]),
            Some("Elu") => ("Elu", &["alpha"]),
            Some("LeakyRelu") => ("LeakyRelu", &["alpha"]),
            Some("ThresholdedRelu") => ("ThresholdedRelu", &["alpha"]),
            Some("HardSigmoid") => ("HardSigmoid", &["alpha", "beta"]),
            Some("Selu") => ("Selu", &["alpha", "", "gamma"]),
            Some("HardSwish") => ("HardSwish", &[]),
            Some("Gelu") => ("Gelu", &[]),
            Some("Silu") => ("Swish", &[]),
            Some(other) => return Err(unsupported(format!("the activation {other}"))),
        };
        let given = attrs.iter().zip(parameters);
        let attrs = given.fold(Attrs::default(), |attrs, (name, v)| match v {
            Some(v) if !name.is_empty() => attrs.with(name, Attr::Float(v)),
            _ => attrs,
        });
        Ok(Activation::Op(op, attrs))
    }

    /// Adds the last nodes of an expansion: `op` on operands, then the activation.
    pub(super) fn after(
        self,
        e: &mut Expansion<'_>,
        op: &str,
        attrs: Attrs,
        operands: &[ValueId],
    ) -> Made {
        match self {
            Activation::Identity => e.last(0, op, attrs, operands),
            activation => {
                let x = e.op(op, attrs, operands)?;
                activation.last(e, x)
            }
        }
    }

    /// Adds the activation of `x` as the last node.
    pub(super) fn last(self, e: &mut Expansion<'_>, x: ValueId) -> Made {
        match self {
            Activation::Identity => e.last(0, "Identity", Attrs::default(), &[x]),
            Activation::Op(op, attrs) => e.last(0, op, attrs, &[x]),
            Activation::Clip(low, high) => {
                let dtype = e.ty(x)?.dtype;
                let low = e.float("low", dtype, low.into())?;
                let high = e.float("high", dtype, high.into())?;
                e.last(0, "Clip", Attrs::default(), &[x, low, high])
            }
        }
    }
}

/// Imports Gelu of the sum of the operands.
pub(super) fn gelu(b: &mut Builder, c: ImportedNode, approximate: &str) -> Outputs {
    let x = sum(b, &c, c.need(0)?, c.input(1))?;
    let attrs = Attrs::default().with("approximate", Attr::Str(approximate.into()));
    c.finish(b, "Gelu", attrs, vec![Some(x)])
}

/// Imports QuickGelu: `x * sigmoid(alpha * x)`.
pub(super) fn quick_gelu(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let alpha = c.take_float("alpha")?.unwrap_or(1.702);
    c.no_more_attributes()?;
    let x = c.need(0)?;
    let attrs = Attrs::default().with("alpha", Attr::Float(alpha));
    c.finish(b, "Swish", attrs, vec![Some(x)])
}

/// Imports BiasAdd: `x + bias + skip`.
pub(super) fn bias_add(b: &mut Builder, c: ImportedNode) -> Outputs {
    let (x, bias, skip) = (c.need(0)?, c.need(1)?, c.need(2)?);
    let x = sum(b, &c, x, Some(bias))?;
    c.finish(b, "Add", Attrs::default(), vec![Some(x), Some(skip)])
}

/// Imports GatedAdd: `x + y * gate`.
pub(super) fn gated_add(b: &mut Builder, c: ImportedNode) -> Outputs {
    let (x, y, gate) = (c.need(0)?, c.need(1)?, c.need(2)?);
    let y = c.before(b, "Mul", Attrs::default(), vec![Some(y), Some(gate)])?;
    c.finish(b, "Add", Attrs::default(), vec![Some(x), Some(y)])
}

/// Imports BiasSplitGelu: the left half of the columns of `x + bias`, by Gelu of the right half.
pub(super) fn bias_split_gelu(b: &mut Builder, c: ImportedNode) -> Outputs {
    let x = sum(b, &c, c.need(0)?, Some(c.need(1)?))?;
    let columns = b.ty(x).and_then(|ty| ty.shape.last()?.as_const());
    if let Some(columns) = columns.filter(|columns| columns % 2 != 0) {
        return Err(c.error(format!("{columns} columns have no halves")).into());
    }
    let split = axis_of(-1).with("num_outputs", Attr::Int(2));
    let name = c.sub("Split");
    let halves = [format!("{name}.0"), format!("{name}.1")];
    let made = b.emit("Split", &name, split, vec![Some(x)], &halves)?;
    let [left, right] = made[..] else {
        return Err(c.error("has no halves").into());
    };
    let gelu = c.before(b, "Gelu", Attrs::default(), vec![Some(right)])?;
    c.finish(b, "Mul", Attrs::default(), vec![Some(left), Some(gelu)])
}

/// Imports BiasSoftmax: the softmax of `x + bias`, of all axes from `axis` on together.
pub(super) fn bias_softmax(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    // This says along which axes the bias is broadcast, which follows from its shape.
    c.take_int("is_inner_broadcast")?;
    let x = sum(b, &c, c.need(0)?, Some(c.need(1)?))?;
    c.inputs = vec![Some(x)];
    c.op = "Softmax".into();
    softmax::flattening(b, c)
}

/// Imports BiasDropout outside of training: `x + bias + residual`, with a mask of ones.
pub(super) fn bias_dropout(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    c.take_int("seed")?;
    let (x, bias, residual) = (c.need(0)?, c.need(1)?, c.input(2));
    let x = sum(b, &c, x, Some(bias))?;
    let x = sum(b, &c, x, residual)?;
    c.inputs = vec![Some(x), c.input(3), c.input(4)];
    dropout(b, c)
}

/// Imports BitmaskDropout outside of training.
pub(super) fn bitmask_dropout(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    c.take_int("seed")?;
    dropout(b, c)
}

fn dropout(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    if c.op.starts_with("Bitmask") && c.outputs.iter().skip(1).any(|o| !o.is_empty()) {
        return Err(unsupported("a mask of bits"));
    }
    // The form of ONNX's newest operator sets, whose mask is bool.
    c.opset = 13;
    operands::dropout(b, c)
}

/// The sum of `x` and an operand that may be left out.
pub(super) fn sum(b: &mut Builder, c: &ImportedNode, x: ValueId, y: Option<ValueId>) -> Made {
    match y {
        None => Ok(x),
        Some(_) => Ok(c.before(b, "Add", Attrs::default(), vec![Some(x), y])?),
    }
}
