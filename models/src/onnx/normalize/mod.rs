//! Rewriting of older forms of ops to the newest form.
//!
//! Invariants
//! 1. A rewritten node computes what the op computes in the version of its own operator set.
//! 2. The last node of a rewriting has the name and the outputs of the original node `NAME`. Nodes before it are named
//!    `NAME/Op`, and operands that were attributes `NAME/attribute`.
//! 3. A form that cannot be expressed is reported as unsupported, never approximated.

mod attention;
mod composed;
mod contrib;
mod early;
mod einsum;
mod expansion;
mod grams;
mod learn;
mod operands;
mod qlinear_matmul;
mod quantised;
mod random;
mod scatter;
mod signal;
mod strings;
mod vision;

use convoke_graph::DType;
use convoke_graph::graph::{Attr, Attrs, ValueId};

use self::composed::{losses, softmax};
use self::vision::{center_crop_pad, conv_transpose, grid, resize};
use super::builder::Builder;
use crate::error::ModelError;

/// A node to import, with resolved operands.
pub(super) struct ImportedNode {
    pub name: String,
    pub op: String,
    pub inputs: Vec<Option<ValueId>>,
    pub attrs: Attrs,
    /// The names of the outputs, of which there is at least one. An output with an empty name is never read.
    pub outputs: Vec<String>,
    /// The version of the operator set of the op's domain.
    pub opset: i64,
}

/// Why a node cannot be imported.
pub(super) enum ImportFailure {
    /// The node is not supported, for this reason, which is empty where the op itself is unknown. It is reported
    /// together with all other such nodes.
    Unsupported(String),
    /// The type of an operand is not known, because the node that makes it was refused. It is that node which is reported.
    Consequence,
    /// The model is wrong, which ends the import.
    Error(ModelError),
}

impl From<ModelError> for ImportFailure {
    fn from(e: ModelError) -> ImportFailure {
        ImportFailure::Error(e)
    }
}

/// The outputs of an imported node.
pub(super) type Outputs = Result<Vec<ValueId>, ImportFailure>;

fn unsupported(reason: impl Into<String>) -> ImportFailure {
    ImportFailure::Unsupported(reason.into())
}

impl ImportedNode {
    /// A node that the importer expands by itself.
    pub(super) fn of_expansion(name: &str, outputs: Vec<String>) -> ImportedNode {
        ImportedNode {
            name: name.into(),
            op: String::new(),
            inputs: vec![],
            attrs: Attrs::default(),
            outputs,
            opset: 0,
        }
    }

    /// Operand `i`; `None` where it is left out.
    fn input(&self, i: usize) -> Option<ValueId> {
        self.inputs.get(i).copied().flatten()
    }

    /// Operand `i`. Fails where it is left out.
    fn need(&self, i: usize) -> Result<ValueId, ModelError> {
        self.input(i)
            .ok_or_else(|| self.error(format!("operand {i} is missing")))
    }

    /// Sets operand `i`.
    fn set(&mut self, i: usize, id: Option<ValueId>) {
        if self.inputs.len() <= i {
            self.inputs.resize(i + 1, None);
        }
        self.inputs[i] = id;
    }

    /// Removes and returns an attribute.
    fn take(&mut self, attr: &str) -> Option<Attr> {
        self.attrs.0.remove(attr)
    }

    /// Removes and returns an attribute that must be a list of integers.
    fn take_ints(&mut self, attr: &str) -> Result<Option<Vec<i64>>, ModelError> {
        match self.take(attr) {
            None => Ok(None),
            Some(Attr::Ints(v)) => Ok(Some(v)),
            Some(_) => Err(self.wrong(attr, "a list of integers")),
        }
    }

    /// Removes and returns an attribute that must be an integer.
    fn take_int(&mut self, attr: &str) -> Result<Option<i64>, ModelError> {
        match self.take(attr) {
            None => Ok(None),
            Some(Attr::Int(v)) => Ok(Some(v)),
            Some(_) => Err(self.wrong(attr, "an integer")),
        }
    }

    /// Removes and returns an attribute that must be a float.
    fn take_float(&mut self, attr: &str) -> Result<Option<f32>, ModelError> {
        match self.take(attr) {
            None => Ok(None),
            Some(Attr::Float(v)) => Ok(Some(v)),
            Some(_) => Err(self.wrong(attr, "a float")),
        }
    }

    fn wrong(&self, attr: &str, want: &str) -> ModelError {
        ModelError::Attribute {
            node: self.name.clone(),
            op: self.op.clone(),
            attr: attr.into(),
            reason: format!("must be {want}"),
        }
    }

    pub(super) fn error(&self, reason: impl Into<String>) -> ModelError {
        ModelError::Node {
            node: self.name.clone(),
            op: self.op.clone(),
            reason: reason.into(),
        }
    }

    /// The name of a node or value that is added for this node.
    fn sub(&self, what: &str) -> String {
        format!("{}/{what}", self.name)
    }

    /// Adds a node before the last one, and returns its only output.
    fn before(
        &self,
        b: &mut Builder,
        op: &str,
        attrs: Attrs,
        inputs: Vec<Option<ValueId>>,
    ) -> Result<ValueId, ModelError> {
        let name = self.sub(op);
        let output = [name.clone()];
        let out = b.emit(op, &name, attrs, inputs, &output)?;
        out.first()
            .copied()
            .ok_or_else(|| self.error("has no output"))
    }

    /// Adds the last node of a rewriting: `op` on `inputs`.
    fn finish(
        self,
        b: &mut Builder,
        op: &str,
        attrs: Attrs,
        inputs: Vec<Option<ValueId>>,
    ) -> Outputs {
        Ok(b.emit(op, &self.name, attrs, inputs, &self.outputs)?)
    }

    /// Adds the node in its current form.
    pub(super) fn emit(self, b: &mut Builder) -> Outputs {
        Ok(b.emit(&self.op, &self.name, self.attrs, self.inputs, &self.outputs)?)
    }

    /// Adds the node with another op.
    fn emit_as(mut self, b: &mut Builder, op: &str) -> Outputs {
        self.op = op.into();
        self.emit(b)
    }

    /// The dtype of operand `i`; f32 where it is not known.
    fn dtype(&self, b: &Builder, i: usize) -> DType {
        self.input(i)
            .and_then(|id| b.ty(id))
            .map_or(DType::F32, |t| t.dtype)
    }
}

/// Imports a node of ONNX's own domain.
pub(super) fn standard(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let v = c.opset;
    if v < 7 {
        early::to_seven(b, &mut c)?;
    }
    match c.op.as_str() {
        "Bernoulli" => random::bernoulli(b, c),
        "Multinomial" => random::multinomial(b, c),
        "RandomNormal" | "RandomNormalLike" | "RandomUniform" | "RandomUniformLike" => {
            random::random(b, c)
        }
        "Softmax" | "LogSoftmax" | "Hardmax" if v < 13 => softmax::flattening(b, c),
        "Squeeze" => operands::squeeze(b, c),
        "Unsqueeze" if v < 13 => operands::axes(b, c),
        "Unsqueeze" => operands::scalar_axes(b, c),
        "ReduceSum" if v < 13 => operands::axes(b, c),
        "ReduceSum" => c.emit(b),
        op if op.starts_with("Reduce") && v < 18 => operands::axes(b, c),
        "Split" => operands::split(b, c),
        "Range" => operands::range(b, c),
        "Pad" if v < 11 => operands::pad(b, c),
        "Slice" if v < 10 => operands::slice(b, c),
        "Clip" if v < 11 => operands::clip(b, c),
        "TopK" if v < 10 => operands::top_k(b, c),
        "Dropout" => operands::dropout(b, c),
        "IsInf" | "IsNaN" => operands::widened(b, c),
        "BatchNormalization" => operands::batch_norm(b, c),
        "ConvTranspose" => conv_transpose::conv_transpose(b, c),
        "LSTM" | "GRU" | "RNN" => operands::recurrent(b, c),
        "NegativeLogLikelihoodLoss" => losses::negative_log_likelihood(b, c),
        "SoftmaxCrossEntropyLoss" => losses::softmax_cross_entropy(b, c),
        "Affine" if v < 10 => early::experimental::affine(b, c),
        "Crop" if v < 10 => early::experimental::crop(b, c),
        "ImageScaler" if v < 10 => early::experimental::image_scaler(b, c),
        "ParametricSoftplus" if v < 10 => early::experimental::scaled(b, c, "Softplus"),
        "Scale" if v < 10 => early::experimental::scale(b, c),
        "ScaledTanh" if v < 10 => early::experimental::scaled(b, c, "Tanh"),
        "AffineGrid" => grid::affine_grid(b, c),
        "Attention" => attention::attention(b, c),
        "CausalConvWithState" => attention::causal_conv(b, c),
        "CenterCropPad" => center_crop_pad::center_crop_pad(b, c),
        "DFT" if v < 20 => operands::dft(b, c),
        "Einsum" => einsum::einsum(b, c),
        "HannWindow" | "HammingWindow" | "BlackmanWindow" => signal::window(b, c),
        "LinearAttention" => attention::linear_attention(b, c),
        "MelWeightMatrix" => signal::mel_weight_matrix(b, c),
        "STFT" => signal::stft(b, c),
        // ONNX Runtime has this op of its own in ONNX's domain.
        "SimplifiedLayerNormalization" => contrib::simplified_layer_norm(b, c),
        "SwiGLU" => composed::swiglu(b, c),
        "Upsample" => resize::upsample(b, c),
        "QuantizeLinear" | "DequantizeLinear" => quantised::linear(b, c),
        "QLinearMatMul" => qlinear_matmul::qlinear_matmul(b, c),
        "Resize" => resize::resize(b, c),
        "Scatter" => c.emit_as(b, "ScatterElements"),
        "ScatterElements" | "ScatterND" => scatter::scatter(b, c),
        "Col2Im" => operands::col2im(b, c),
        "NonZero" => strings::non_zero(b, c),
        "Unique" => strings::unique(b, c),
        "GridSample" if v < 20 => resize::grid_sample(b, c),
        "RoiAlign" if v < 16 => resize::roi_align(b, c),
        "GroupNormalization" if v < 21 => composed::group_norm(b, c),
        "Shrink" => composed::shrink(b, c),
        _ => c.emit(b),
    }
}

pub(super) use attention::{Flex, FlexAttention};
pub use contrib::BlockWidth;
pub(crate) use contrib::EITHER;
pub(super) use contrib::{Block, block_of, blocked, dynamic_lstm, microsoft};
pub(super) use expansion::{Expansion, Made, axis_of, without_axes};
pub(super) use grams::tf_idf;
pub(super) use learn::{learned, of_map};
