//! The types that an op definition consists of.

use super::cost::{Cost, per_element};
use super::error::OpError;
use super::kind::{Op, UnaryOp};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::{Attr, Attrs, TensorType};
use crate::tensor::{Shape, Tensor};

/// The memory in which an op expects an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// On the device that runs the op.
    Device,
    /// In host memory: shapes, axes, indices that decide the form of the result.
    Host,
}

/// An operand of an op.
#[derive(Debug, Clone, Copy)]
pub struct OperandDef {
    pub name: &'static str,
    pub memory: Memory,
    pub optional: bool,
    /// Whether the operand may repeat, which only the last one may.
    pub variadic: bool,
    /// The dtypes that the op accepts for the operand.
    pub dtypes: &'static [DType],
    /// Operands of one class other than 0 must agree in dtype; so must the repetitions of a variadic operand in such a
    /// class.
    pub class: u8,
}

/// Makes a required operand in device memory, of dtype class 0; the methods of the result change that.
pub const fn operand(name: &'static str, dtypes: &'static [DType]) -> OperandDef {
    let (memory, optional, variadic, class) = (Memory::Device, false, false, 0);
    OperandDef {
        name,
        memory,
        optional,
        variadic,
        dtypes,
        class,
    }
}

impl OperandDef {
    /// Places the operand in host memory.
    pub const fn host(mut self) -> OperandDef {
        self.memory = Memory::Host;
        self
    }
    /// Allows the operand to be left out.
    pub const fn optional(mut self) -> OperandDef {
        self.optional = true;
        self
    }
    /// Allows the operand to repeat.
    pub const fn variadic(mut self) -> OperandDef {
        self.variadic = true;
        self
    }
    /// Demands the dtype of the other operands of `class`.
    pub const fn class(mut self, class: u8) -> OperandDef {
        self.class = class;
        self
    }
}

/// The type of an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttrKind {
    Int,
    Float,
    Str,
    Ints,
    Floats,
    Strs,
    Tensor,
    DType,
    Function,
}

impl AttrKind {
    /// The kind of `attr`.
    pub fn of(attr: &Attr) -> AttrKind {
        match attr {
            Attr::Int(_) => AttrKind::Int,
            Attr::Float(_) => AttrKind::Float,
            Attr::Str(_) => AttrKind::Str,
            Attr::Ints(_) => AttrKind::Ints,
            Attr::Floats(_) => AttrKind::Floats,
            Attr::Strs(_) => AttrKind::Strs,
            Attr::Tensor(_) => AttrKind::Tensor,
            Attr::DType(_) => AttrKind::DType,
            Attr::Function(_) => AttrKind::Function,
        }
    }
}

/// An attribute of an op. The shape rule and the kernel read it through the same accessor, which has its default.
#[derive(Debug, Clone, Copy)]
pub struct AttrDef {
    pub name: &'static str,
    pub kind: AttrKind,
    pub required: bool,
}

/// Makes an optional attribute.
pub const fn attr(name: &'static str, kind: AttrKind) -> AttrDef {
    AttrDef {
        name,
        kind,
        required: false,
    }
}

/// Makes a required attribute.
pub const fn required(name: &'static str, kind: AttrKind) -> AttrDef {
    AttrDef {
        name,
        kind,
        required: true,
    }
}

/// The elements of a small integer or bool tensor, as dimensions, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct HostValue {
    pub shape: Vec<usize>,
    pub elements: Vec<Dim>,
}

impl HostValue {
    /// The elements as integers; `None` unless all are known.
    pub fn ints(&self) -> Option<Vec<i64>> {
        self.elements.iter().map(Dim::as_const).collect()
    }
}

/// One operand, as far as a shape rule knows it.
#[derive(Debug, Clone, Copy)]
pub struct Operand<'a> {
    pub ty: &'a TensorType,
    /// The operand's elements, where they are known.
    pub value: Option<&'a HostValue>,
    /// The operand's tensor, where it is at hand: an inline literal, or a host operand at run time.
    pub tensor: Option<&'a Tensor>,
}

/// The input of a shape rule.
pub struct Infer<'a> {
    pub attrs: &'a Attrs,
    pub inputs: &'a [Option<Operand<'a>>],
    /// How many outputs the node declares.
    pub outputs: usize,
    /// Makes a symbol for a dimension that only data decides: `fresh(output, axis)`.
    pub fresh: &'a dyn Fn(usize, usize) -> Dim,
}

impl<'a> Infer<'a> {
    /// Operand `i`. Fails where it is left out.
    pub fn required(&self, i: usize) -> Result<Operand<'a>, OpError> {
        let given = self.inputs.get(i).copied().flatten();
        given.ok_or_else(|| OpError::OperandCount {
            expected: format!("at least {}", i + 1),
            got: self.inputs.len(),
        })
    }
}

/// The result of a shape rule for one output.
#[derive(Debug, Clone, PartialEq)]
pub struct InferredOutput {
    pub ty: TensorType,
    /// The output's elements, where they follow from the operands' shapes and known elements.
    pub value: Option<HostValue>,
}

impl InferredOutput {
    /// An output of this type, with unknown elements.
    pub fn of(dtype: DType, shape: Vec<Dim>) -> InferredOutput {
        InferredOutput {
            ty: TensorType::new(dtype, shape),
            value: None,
        }
    }
}

/// One operand of an op about to run.
#[derive(Debug, Clone, Copy)]
pub struct ConcreteOperand<'a> {
    pub dtype: DType,
    pub shape: &'a [usize],
    /// The operand's tensor, for host operands.
    pub host: Option<&'a Tensor>,
}

/// Dtype and shape of each output of an op about to run.
pub type ConcreteOutputs = smallvec::SmallVec<[(DType, Shape); 1]>;

/// A dtype and shape rule: it gives the types of the outputs.
pub type InferFn = fn(&Infer<'_>) -> Result<Vec<InferredOutput>, OpError>;

/// A faster dtype and shape rule for concrete operands only; `None` leaves the case to the general rule.
pub type QuickFn = fn(&[Option<ConcreteOperand<'_>>]) -> Option<ConcreteOutputs>;

/// A cost rule, for concrete operand and output types (every dimension a constant).
pub type CostFn = fn(&Attrs, &[Option<&TensorType>], &[&TensorType]) -> Cost;

/// The definition of an op.
pub struct OpDef {
    /// The op as a variant, for code that treats ops differently.
    pub op: Op,
    pub name: &'static str,
    /// One sentence on what the op computes, with shapes.
    pub doc: &'static str,
    pub operands: &'static [OperandDef],
    pub attrs: &'static [AttrDef],
    /// The least and the most outputs that a node may have.
    pub outputs: (usize, usize),
    /// The rule for dtypes and shapes of the outputs. It is called after operand count, dtypes and attribute kinds were
    /// checked.
    pub infer: InferFn,
    /// A shortcut of `infer` for run time, where the op has one.
    pub quick: Option<QuickFn>,
    /// The rule for the work of one execution.
    pub cost: CostFn,
    /// Whether equal operands give equal results, and the op has no other effect.
    pub pure_op: bool,
    /// Whether the elements of operands on the device decide sizes of outputs, so that only a kernel can tell them.
    pub sized_by_data: bool,
    /// Whether an output of the same size may take over the buffer of its first operand; see [`OpDef::replaces_first`].
    pub in_place: bool,
    /// The version of a custom op, to be raised whenever its results change.
    pub version: u32,
}

impl OpDef {
    /// Defines a pure custom op with one output, no attributes, and the cost of moving its bytes.
    pub const fn new(
        name: &'static str,
        doc: &'static str,
        operands: &'static [OperandDef],
        infer: InferFn,
    ) -> OpDef {
        OpDef::named(Op::Custom, name, doc, operands, infer)
    }
    /// Defines an op of the registry, as [`OpDef::new`] does a custom one.
    pub(super) const fn of(
        op: Op,
        doc: &'static str,
        operands: &'static [OperandDef],
        infer: InferFn,
    ) -> OpDef {
        OpDef::named(op, op.name(), doc, operands, infer)
    }
    const fn named(
        op: Op,
        name: &'static str,
        doc: &'static str,
        operands: &'static [OperandDef],
        infer: InferFn,
    ) -> OpDef {
        OpDef {
            op,
            name,
            doc,
            operands,
            attrs: &[],
            outputs: (1, 1),
            infer,
            quick: None,
            cost: per_element::<0>,
            pure_op: true,
            sized_by_data: false,
            in_place: false,
            version: 0,
        }
    }
    /// Sets the attributes.
    pub const fn attrs(mut self, attrs: &'static [AttrDef]) -> OpDef {
        self.attrs = attrs;
        self
    }
    /// Sets the number of outputs.
    pub const fn outputs(mut self, least: usize, most: usize) -> OpDef {
        self.outputs = (least, most);
        self
    }
    /// Sets the cost rule.
    pub const fn cost(mut self, cost: CostFn) -> OpDef {
        self.cost = cost;
        self
    }
    /// Sets the shortcut for run time.
    pub const fn quick(mut self, quick: QuickFn) -> OpDef {
        self.quick = Some(quick);
        self
    }
    /// Makes the op impure: equal operands may give other results, or the op has another effect.
    pub const fn impure(mut self) -> OpDef {
        self.pure_op = false;
        self
    }
    /// Leaves sizes that the shape rule does not know to the kernel.
    pub(super) const fn sized_by_data(mut self) -> OpDef {
        self.sized_by_data = true;
        self
    }
    /// Allows an output to take over the first operand's buffer.
    pub const fn in_place(mut self) -> OpDef {
        self.in_place = true;
        self
    }
    /// Sets the version.
    pub const fn version(mut self, version: u32) -> OpDef {
        self.version = version;
        self
    }

    /// Whether the kernels of a worker's host replace the elements of the first operand, where its buffer is theirs and the output has
    /// its size, for operands of these dtypes. Plans rely on it.
    pub fn replaces_first(&self, operands: &[Option<DType>]) -> bool {
        let Some(first) = operands.first().copied().flatten() else {
            return false;
        };
        self.in_place
            && match self.op {
                // Operands of several dtypes are converted, and so is the result.
                Op::Binary(_) | Op::Norm(_) => operands.iter().flatten().all(|d| *d == first),
                Op::Unary(UnaryOp::Erf) => first.is_float(),
                // Packed elements are spread to bytes, and strings are tables.
                Op::Index(_) => first.bits() >= 8 && first != DType::Str,
                _ => true,
            }
    }

    /// A hash of all that the definition states, except its documentation and the code of its rules. It is the same in
    /// every process that has the definition.
    pub fn fingerprint(&self) -> u64 {
        let operands: Vec<_> = self
            .operands
            .iter()
            .map(|o| {
                (
                    o.name,
                    o.memory == Memory::Host,
                    o.optional,
                    o.variadic,
                    o.dtypes,
                    o.class,
                )
            })
            .collect();
        let kind = |k: AttrKind| format!("{k:?}");
        let attrs = self
            .attrs
            .iter()
            .map(|a| (a.name, kind(a.kind), a.required));
        let attrs: Vec<_> = attrs.collect();
        let flags = (self.outputs, self.pure_op, self.in_place, self.version);
        let stated = format!("{:?}", (self.name, operands, attrs, flags));
        let [a, b, c, d, e, f, g, h, ..] = *blake3::hash(stated.as_bytes()).as_bytes();
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }
}

impl std::fmt::Debug for OpDef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}
