//! The ops of the registry as types, for code that treats ops differently.
//!
//! A `match` on a family's type that leaves out an op does not compile, so a device that lacks a kernel, and a pass
//! that has to decide about every op, are found by the compiler. The definitions of a family's ops are in its file of
//! `families`.

use convoke_functions::float_functions;

/// Declares a family of ops: its type, and the names that its ops have in a graph.
macro_rules! family {
    ($(#[$doc:meta])* $ty:ident in $family:ident { $($op:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        // The variants have the names that ONNX gives them.
        #[allow(missing_docs, clippy::enum_variant_names, clippy::upper_case_acronyms)]
        pub enum $ty { $($op),* }

        impl $ty {
            /// Every op of the family.
            pub const ALL: &'static [$ty] = &[$($ty::$op),*];

            /// The op's name in a graph.
            pub const fn name(self) -> &'static str {
                match self { $($ty::$op => stringify!($op)),* }
            }
        }

        impl From<$ty> for $crate::ops::Op {
            fn from(op: $ty) -> $crate::ops::Op {
                $crate::ops::Op::$family(op)
            }
        }
    };
}

family! {
    /// Elementwise ops of two or more operands.
    BinaryOp in Binary {
        Add, Sub, Mul, Div, Mod, Pow, PRelu, Min, Max, Sum, Mean, And, Or, Xor, Equal, Less, Greater, LessOrEqual,
        GreaterOrEqual, BitShift, BitwiseAnd, BitwiseOr, BitwiseXor, Where,
    }
}

family! {
    /// Ops that run functions.
    ControlOp in Control { If, Loop, Scan }
}

family! {
    /// Convolutions.
    ConvOp in Conv { Conv }
}

family! {
    /// Forms that optimisation makes of other ops.
    FusedOp in Fused {
        PackGemmB, PackConvW, PackRecurrent, PackCodes, FusedAttention, FusedGemm, FusedConv, MatMulNBitsInt8,
    }
}

family! {
    /// Ops by which traced functions read and make a caller's handles.
    HandleOp in Handle { HandleIn, HandleOut }
}

family! {
    /// Ops that gather and scatter by indices.
    IndexOp in Index {
        Gather, GatherElements, GatherND, ScatterElements, ScatterND, TensorScatter, OneHot, NonZero, Compress,
        Unique,
    }
}

family! {
    /// Ops of classical models.
    LearnOp in Learn { LabelEncoder, OneHotEncoder, TreeEnsemble }
}

family! {
    /// Products of matrices, determinants, and inverses.
    MatMulOp in MatMul { Det, Inverse, MatMul, Gemm }
}

family! {
    /// Ops that bring elements into another order.
    MovementOp in Movement { Transpose, Trilu, DepthToSpace, SpaceToDepth, ReverseSequence }
}

family! {
    /// Normalisations.
    NormOp in Norm {
        Softmax, LogSoftmax, Hardmax, LpNormalization, LayerNormalization, RMSNormalization, BatchNormalization,
        InstanceNormalization, GroupNormalization, LRN, MeanVarianceNormalization,
    }
}

family! {
    /// Pooling over windows.
    PoolOp in Pool { MaxPool, AveragePool, LpPool, GlobalAveragePool, GlobalMaxPool, GlobalLpPool }
}

family! {
    /// Ops that tell tokens their positions.
    PositionOp in Position { RotaryEmbedding }
}

family! {
    /// Ops on quantised numbers.
    QuantisedOp in Quantised {
        ConvInteger, DequantizeLinear, DynamicQuantizeLinear, MatMulInteger, MatMulNBits, QLinearConv, QLinearMatMul,
        QuantizeLinear,
    }
}

family! {
    /// Random tensors.
    RandomOp in Random { PhiloxUniform, PhiloxNormal }
}

family! {
    /// Recurrent layers.
    RecurrentOp in Recurrent { GRU, LSTM, RNN }
}

family! {
    /// Reductions along axes.
    ReduceOp in Reduce {
        ReduceSum, ReduceProd, ReduceMax, ReduceMin, ReduceMean, ReduceL1, ReduceL2, ReduceLogSum, ReduceLogSumExp,
        ReduceSumSquare, ArgMax, ArgMin,
    }
}

family! {
    /// Ops that bring tensors to other lengths.
    ResizeOp in Resize { Resize }
}

family! {
    /// Running sums and products, and the greatest elements along an axis.
    ScanOp in Scan { CumProd, CumSum, TopK }
}

family! {
    /// Ops on shapes, and tensors that are made from shapes alone.
    ShapeOp in Shape { Constant, Shape, Size, Reshape, Flatten, Squeeze, Unsqueeze, ConstantOfShape, Range, EyeLike }
}

family! {
    /// Transforms of signals, and sums of overlapping blocks.
    SignalOp in Signal { Col2Im, DFT }
}

family! {
    /// Ops that take tensors apart or put them together.
    SliceOp in Slice { Slice, Split, Concat, Pad, Tile, Expand }
}

family! {
    /// Ops on strings.
    TextOp in Text { RegexFullMatch, StringConcat, StringNormalizer, StringSplit, TfIdfVectorizer, Tokenizer }
}

/// Declares the family of which the functions of one float are a part.
macro_rules! unary {
    ($($cost:literal $name:ident $({ $($parameter:ident = $default:literal),* })? $doc:literal;)*) => {
        family! {
            /// Elementwise ops of one operand, and casts.
            UnaryOp in Unary {
                $($name,)*
                Abs, Neg, Sign, Relu, Not, BitwiseNot, Erf, Gelu, IsNaN, IsInf, Clip, BitCast, Cast, CastLike,
                Identity, Dropout
            }
        }
    };
}
float_functions!(unary);

family! {
    /// Ops of vision models.
    VisionOp in Vision {
        DeformConv, GridSample, ImageDecoder, MaxRoiPool, MaxUnpool, NonMaxSuppression, RoiAlign,
    }
}

macro_rules! families {
    ($($family:ident($ty:ident)),* $(,)?) => {
        /// An op, by family.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs)]
        pub enum Op {
            $($family($ty),)*
            /// An op that a user defines and registers. Its name is in its definition.
            Custom,
        }

        impl Op {
            /// The op's name in a graph; empty for a custom op.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Op::$family(op) => op.name(),)*
                    Op::Custom => "",
                }
            }

            /// Every op of the registry.
            #[cfg(test)]
            pub fn all() -> Vec<Op> {
                let families: &[Vec<Op>] = &[$($ty::ALL.iter().map(|op| Op::from(*op)).collect()),*];
                families.concat()
            }
        }
    };
}
families! {
    Binary(BinaryOp),
    Control(ControlOp),
    Conv(ConvOp),
    Fused(FusedOp),
    Handle(HandleOp),
    Index(IndexOp),
    Learn(LearnOp),
    MatMul(MatMulOp),
    Movement(MovementOp),
    Norm(NormOp),
    Pool(PoolOp),
    Position(PositionOp),
    Quantised(QuantisedOp),
    Random(RandomOp),
    Recurrent(RecurrentOp),
    Reduce(ReduceOp),
    Resize(ResizeOp),
    Scan(ScanOp),
    Shape(ShapeOp),
    Signal(SignalOp),
    Slice(SliceOp),
    Text(TextOp),
    Unary(UnaryOp),
    Vision(VisionOp),
}
