//! What the registry does not say: names that are not made from the op's, attributes that are left out, what
//! attributes mean and what they default to.

use convoke_graph::DType;
use convoke_graph::graph::{Attr, Attrs};
use convoke_graph::ops::attrs::{
    ConvAttrs, GemmAttrs, LrnAttrs, NormalAttrs, ReduceAttrs, UniformAttrs, epsilon,
};
use convoke_graph::ops::{self, Op, OpDef};

/// The title of a family of the registry.
pub fn title(family: &str) -> &'static str {
    match family {
        "binary" => "Elementwise ops of several tensors, broadcast",
        "conv" => "Convolution",
        "function" => "Functions of one float",
        "index" => "Gathering and scattering by indices",
        "learn" => "Trees, and encodings by tables",
        "matmul" => "Products of matrices",
        "movement" => "Elements in another order",
        "norm" => "Normalisations",
        "pool" => "Pooling over windows",
        "position" => "Positions of tokens in sequences",
        "quantised" => "Quantised numbers",
        "random" => "Random numbers that follow from a seed alone",
        "recurrent" => "Recurrent layers",
        "reduce" => "Reductions along axes",
        "resize" => "Other lengths by interpolation",
        "scan" => "Running sums and products, and the greatest elements",
        "shape" => "Shapes, and tensors of a shape",
        "signal" => "Transforms of signals, and sums of overlapping blocks",
        "slice" => "Parts of tensors, and tensors of parts",
        "text" => "Strings",
        "unary" => "Other elementwise ops of one tensor",
        "vision" => "Ops of vision models",
        other => panic!("no words for the family {other}"),
    }
}

/// Ops that programs do not issue: forms that optimisation makes of other ops, whose layouts belong to the kernels; the
/// ops by which traced functions read and make handles; and control flow, whose functions take closures.
pub const INTERNAL: &[&str] = &[
    "FusedAttention",
    "FusedConv",
    "FusedGemm",
    "HandleIn",
    "HandleOut",
    "If",
    "Loop",
    "MatMulNBitsInt8",
    "PackCodes",
    "PackConvW",
    "PackGemmB",
    "PackRecurrent",
    "Scan",
];

/// Attributes that models have and that decide nothing here: those of training, hints, the dtype of statistics (f32),
/// and a number that the call gives anyway; and those that optimisation or the importer alone sets.
pub const WITHOUT_EFFECT: &[(&str, &str)] = &[
    ("BatchNormalization", "momentum"),
    ("BatchNormalization", "training_mode"),
    ("Cast", "round_mode"),
    ("Cast", "saturate"),
    ("CastLike", "round_mode"),
    ("CastLike", "saturate"),
    ("Concat", "grows"),
    ("Dropout", "seed"),
    ("GRU", "hidden_size"),
    ("GRU", "packed_input_size"),
    ("GroupNormalization", "stash_type"),
    ("LayerNormalization", "stash_type"),
    ("LSTM", "hidden_size"),
    ("LSTM", "packed_input_size"),
    ("MatMulNBits", "accuracy_level"),
    ("MatMulNBits", "packed"),
    ("RMSNormalization", "stash_type"),
    ("RNN", "hidden_size"),
    ("RNN", "packed_input_size"),
    ("Split", "num_outputs"),
    ("Squeeze", "kept"),
    ("TopK", "sorted"),
];

/// Attributes that the methods by numpy's names set, as `max` does.
pub const BY_NUMPYS_NAMES: &[(&str, &str)] =
    &[("ReduceMax", "refuse_empty"), ("ReduceMin", "refuse_empty")];

/// Elementwise ops and similar ones, whose operands are brought to one dtype and may be numbers of the program; with
/// the index of the first operand that takes part.
pub const JOINT: &[(&str, usize)] = &[
    ("Add", 0),
    ("And", 0),
    ("BitShift", 0),
    ("BitwiseAnd", 0),
    ("BitwiseOr", 0),
    ("BitwiseXor", 0),
    ("Clip", 0),
    ("Concat", 0),
    ("Div", 0),
    ("Equal", 0),
    ("Greater", 0),
    ("GreaterOrEqual", 0),
    ("Less", 0),
    ("LessOrEqual", 0),
    ("Max", 0),
    ("Mean", 0),
    ("Min", 0),
    ("Mod", 0),
    ("Mul", 0),
    ("Or", 0),
    ("PRelu", 0),
    ("Pad", 0),
    ("Pow", 0),
    ("Sub", 0),
    ("Sum", 0),
    ("Where", 1),
    ("Xor", 0),
];

/// Ops that have one operand, in host memory, which is nevertheless the data.
pub const HOST_DATA: &[&str] = &["NonZero"];

/// Names other than the op's in snake case. An op whose plain name means something else to numpy's users ends in
/// `_op`.
const NAMES: &[(&str, &str)] = &[
    ("Col2Im", "col2im"),
    ("IsNaN", "is_nan"),
    ("MatMul", "matmul"),
    ("MatMulInteger", "matmul_integer"),
    ("MatMulNBits", "matmul_n_bits"),
    ("Max", "max_op"),
    ("Mean", "mean_op"),
    ("Min", "min_op"),
    ("Mod", "mod_"),
    ("NonZero", "nonzero"),
    ("OneHot", "one_hot_op"),
    ("PRelu", "prelu"),
    ("QLinearMatMul", "q_linear_matmul"),
    ("Reshape", "reshape_op"),
    ("Shape", "shape_op"),
    ("Size", "size_op"),
    ("Sum", "sum_op"),
    ("Where", "where_"),
];

/// Ops with outputs that may be left out: which numbers of outputs have a method, and how its name ends.
const OUTPUTS: &[(&str, &[(usize, &str)])] = &[
    ("Dropout", &[(1, ""), (2, "_with_mask")]),
    ("GRU", &[(2, "")]),
    ("LSTM", &[(3, "")]),
    ("LayerNormalization", &[(1, ""), (3, "_with_statistics")]),
    ("MaxPool", &[(1, ""), (2, "_with_indices")]),
    ("RNN", &[(2, "")]),
    ("TopK", &[(2, "")]),
    ("TreeEnsemble", &[(1, ""), (2, "_with_reached")]),
    ("Unique", &[(1, ""), (4, "_with_indices")]),
];

/// Attributes whose integers are truth values.
const FLAGS: &[&str] = &[
    "align_corners",
    "allowzero",
    "antialias",
    "ceil_mode",
    "center_point_box",
    "count_include_pad",
    "detect_negative",
    "detect_positive",
    "exclude_outside",
    "exclusive",
    "fmod",
    "input_forget",
    "interleaved",
    "inverse",
    "is_case_sensitive",
    "keepdims",
    "largest",
    "layout",
    "linear_before_reset",
    "mark",
    "noop_with_empty_axes",
    "onesided",
    "reverse",
    "saturate",
    "select_last_index",
    "sorted",
    "storage_order",
    "transA",
    "transB",
    "upper",
    "zeros",
];

pub fn is_flag(attr: &str) -> bool {
    FLAGS.contains(&attr)
}

/// `MaxPool` as `max_pool`, `TopK` as `top_k`, `LRN` as `lrn`.
pub fn snake(name: &str) -> String {
    let chars: Vec<char> = name.chars().collect();
    let mut out = String::new();
    for (i, c) in chars.iter().enumerate() {
        let after_lower = i > 0 && (chars[i - 1].is_lowercase() || chars[i - 1].is_ascii_digit());
        let before_lower = i > 0 && chars.get(i + 1).is_some_and(|c| c.is_lowercase());
        let begins = after_lower || before_lower && chars[i - 1].is_uppercase();
        if c.is_uppercase() && begins {
            out.push('_');
        }
        out.extend(c.to_lowercase());
    }
    out
}

/// The name of an op's method.
pub fn method(op: &str) -> String {
    let named = NAMES.iter().find(|(o, _)| *o == op);
    named.map_or_else(|| snake(op), |(_, name)| (*name).to_owned())
}

/// The methods of an op: how many outputs each gives, and its name.
pub fn methods(op: &OpDef) -> Vec<(usize, String)> {
    let name = method(op.name);
    match OUTPUTS.iter().find(|(o, _)| *o == op.name) {
        Some((_, forms)) => forms
            .iter()
            .map(|(n, end)| (*n, format!("{name}{end}")))
            .collect(),
        None => {
            let (least, most) = op.outputs;
            assert!(
                least == most || most == usize::MAX,
                "{} has optional outputs",
                op.name
            );
            vec![(most, name)]
        }
    }
}

/// The meaning of an attribute, for the documentation of methods.
pub fn meaning(op: &str, attr: &str) -> &'static str {
    match (op, attr) {
        ("PhiloxNormal", "scale") => "the standard deviation",
        ("PhiloxNormal", "mean") => "the mean",
        ("MatMulNBits", "K") => "rows of the weights",
        ("MatMulNBits", "N") => "columns of the weights",
        ("MatMulNBits", "bits") => "bits of a weight: 2, 4 or 8",
        ("MatMulNBits", "block_size") => "weights of a column that share a scale",
        (_, "block_size") => "elements along the axis that share a scale; 0 for one scale an index",
        (_, "output_dtype") => "the dtype of the result",
        (_, "precision") => "the dtype of the division",
        (_, "saturate") => "a number beyond the largest float of the dtype becomes that one",
        ("EyeLike", "k") => "the diagonal, above the main one where positive",
        ("LRN", "beta") => "the power",
        ("LRN", "bias") => "what is added to the sum of squares, times alpha",
        ("LRN", "size") => "channels of a window",
        ("ConstantOfShape", "value") => "a tensor of one element",
        ("Constant", "value") => "the tensor",
        (_, "aggregate_function") => "`SUM`, `AVERAGE`, `MIN` or `MAX`",
        (_, "case_change_action") => "`NONE`, `LOWER` or `UPPER`",
        (_, "columns") => "the length of the result's last axis",
        (_, "delimiter") => "what stands between parts; white space where it is empty",
        (_, "pixel_format") => "`RGB`, `BGR` or `Grayscale`",
        (_, "is_case_sensitive") => "stop words are left out only in their own case",
        (_, "locale") => "the language, whose rules of case must be those of Unicode",
        (_, "mark") => {
            "the characters U+0002 and U+0003 stand before and after the tokens of a string"
        }
        (_, "max_gram_length") => "the most items of a gram",
        (_, "max_skip_count") => "the most items between neighbours of a gram",
        (_, "maxsplit") => "the most parts that are cut off",
        (_, "min_gram_length") => "the least items of a gram",
        (_, "mincharnum") => "the fewest characters of a token",
        (_, "n_targets") => "the length of the result's last axis",
        (_, "ngram_counts") => "where grams of one item, of two and so on begin in the pool",
        (_, "pad_value") => "what stands behind the last token of a string",
        (_, "pattern") => "the regular expression",
        (_, "separators") => {
            "regular expressions that are applied in turn; one empty text makes each character a token"
        }
        (_, "stopwords") => "the words to leave out",
        (_, "tokenexp") => "the regular expression of tokens, where there are no separators",
        (_, "zeros") => "an element of no category is no error",
        ("TfIdfVectorizer", "mode") => "`TF`, `IDF` or `TFIDF`",
        ("Pad", "mode") => "`constant`, `reflect`, `edge` or `wrap`",
        ("TensorScatter", "mode") => {
            "`linear`, or `circular` where an update goes on at the beginning"
        }
        ("DepthToSpace" | "SpaceToDepth", "mode") => {
            "`DCR`, or `CRD` where a channel's block is its fastest part"
        }
        ("Slice" | "Shape", "start") => "the first dimension",
        ("Shape", "end") => "the dimension to end before",
        ("Resize", "mode") => "`nearest`, `linear` or `cubic`",
        ("Resize", "axes") => "the axes that scales, sizes and roi are for",
        ("GRU" | "LSTM" | "RNN", "direction") => "`forward`, `reverse` or `bidirectional`",
        ("GRU" | "LSTM" | "RNN", "activations") => "the functions of the gates, for each direction",
        (_, "activation_alpha" | "activation_beta") => "parameters of the functions, in order",
        (_, "clip") => "the bound of what functions are given",
        (_, "input_forget") => "the forget gate is one minus the input gate",
        (_, "layout") => "the batch is the first axis",
        (_, "linear_before_reset") => "the state is multiplied before it is reset",
        ("GridSample", "mode") => "`nearest`, `linear` or `cubic`",
        ("RoiAlign", "mode") => "`avg` or `max`",
        ("RoiAlign", "coordinate_transformation_mode") => "`half_pixel` or `output_half_pixel`",
        (_, "align_corners") => "-1 and 1 are the centres of the outermost elements",
        (_, "padding_mode") => "`zeros`, `border` or `reflection`",
        (_, "center_point_box") => "boxes are given by centre, width and height",
        (_, "offset_group") => "groups of channels with offsets of their own",
        (_, "output_height" | "output_width") => "the extent of the result",
        (_, "pooled_shape") => "height and width of the result",
        (_, "sampling_ratio") => "samples along each axis of a bin; 0 chooses",
        (_, "spatial_scale") => "the factor from coordinates of regions to elements",
        (_, "sorted") => "the result is sorted, and not in the order of first occurrence",
        (_, "antialias") => "weights spread where an axis shrinks",
        (_, "coordinate_transformation_mode") => {
            "`half_pixel`, `half_pixel_symmetric`, `pytorch_half_pixel`, `align_corners`, `asymmetric`, `tf_half_pixel_for_nn` or `tf_crop_and_resize`"
        }
        (_, "cubic_coeff_a") => "the parameter of cubic interpolation",
        (_, "exclude_outside") => "elements outside the operand have no weight",
        (_, "extrapolation_value") => "the value outside a cropped operand",
        (_, "keep_aspect_ratio_policy") => "`stretch`, `not_larger` or `not_smaller`, for sizes",
        (_, "nearest_mode") => {
            "`round_prefer_floor`, `round_prefer_ceil`, `floor`, `ceil`, or `by_scale` for `ceil` where an axis shrinks, else `floor`"
        }
        (_, "allowzero") => "a zero is a dimension of length 0 instead of a copy of the operand's",
        (_, "alpha" | "beta" | "gamma") => "a factor of the formula",
        (_, "approximate") => "`none` or `tanh`",
        (_, "auto_pad") => "`NOTSET`, `SAME_UPPER`, `SAME_LOWER` or `VALID`",
        (_, "axes") => "the axes",
        (_, "axis") => "the axis, from the end where negative",
        (_, "batch_axis") => "the axis of sequences, 0 or 1",
        (_, "batch_dims") => "leading axes that data and indices share",
        (_, "blocksize") => "the length of a block's sides",
        (_, "ceil_mode") => "windows at the end may reach beyond it",
        (_, "count_include_pad") => "padding counts in the mean",
        (_, "detect_negative") => "minus infinity counts",
        (_, "detect_positive") => "plus infinity counts",
        (_, "dilations") => "steps inside a window, one per spatial axis",
        (_, "direction") => "`LEFT` or `RIGHT`",
        (_, "dtype") => "the dtype of the result",
        (_, "epsilon") => "what keeps the division from zero",
        (_, "exclusive") => "an element does not count in its own sum or product",
        (_, "fmod") => "the remainder has A's sign",
        (_, "group") => "groups of channels",
        (_, "high") => "the end of the interval",
        (_, "interleaved") => {
            "the elements of a pair are neighbours, and not half of the rotated elements apart"
        }
        (_, "inverse") => "the inverse transform",
        (_, "keepdims") => "reduced axes stay, with length 1",
        (_, "kernel_shape") => "extents of the window, one per spatial axis",
        (_, "largest") => "the largest instead of the smallest",
        (_, "low") => "the begin of the interval",
        (_, "noop_with_empty_axes") => "no axes means nothing is reduced",
        (_, "num_groups") => "groups of channels",
        (_, "num_heads") => "the heads of an operand of rank 3",
        (_, "onesided") => "the spectrum of a real signal is given by its first half",
        (_, "p") => "the norm",
        (_, "pads") => "padding before every spatial axis, then behind every one",
        (_, "perm") => "which axis of the operand each axis of the result is",
        (_, "reduction") => "`none`, `add`, `mul`, `max` or `min`",
        (_, "reverse") => "sums and products run from the end",
        (_, "rotary_embedding_dim") => "the elements of a head that are rotated",
        (_, "select_last_index") => "among equal elements the last one counts",
        (_, "storage_order") => "indices are those of column-major order",
        (_, "strides") => "steps of the window, one per spatial axis",
        (_, "time_axis") => "the axis of steps, 1 or 0",
        (_, "to") => "the dtype of the result",
        (_, "transA") => "A is transposed first",
        (_, "transB") => "B is transposed first",
        (_, "upper") => "the upper triangle instead of the lower",
        _ => panic!("say what attribute {attr} of {op} means"),
    }
}

/// The value that an absent attribute stands for, as text.
pub fn default(op: &str, attr: &str) -> String {
    if let Some(Op::Unary(function)) = ops::lookup(op).map(|def| def.op)
        && let Some(default) = ops::parameter_default(function, attr)
    {
        return default.to_string();
    }
    let none = Attrs::default();
    let reduce = ReduceAttrs::new(&none);
    match (op, attr) {
        ("Gemm", _) => {
            let g = GemmAttrs::new(&none);
            match attr {
                "alpha" => g.alpha.to_string(),
                "beta" => g.beta.to_string(),
                "transA" => g.trans_a.to_string(),
                _ => g.trans_b.to_string(),
            }
        }
        ("LRN", _) => {
            let l = LrnAttrs::new(&none.with("size", Attr::Int(1))).unwrap();
            match attr {
                "alpha" => l.alpha.to_string(),
                "beta" => l.beta.to_string(),
                _ => l.bias.to_string(),
            }
        }
        (_, "epsilon") => epsilon(&none).to_string(),
        (_, "group") => ConvAttrs::group(&none).unwrap().to_string(),
        (_, "keepdims") => reduce.keep_dims.to_string(),
        (_, "noop_with_empty_axes") => reduce.noop_with_empty_axes.to_string(),
        (_, "select_last_index") => reduce.select_last.to_string(),
        ("PhiloxUniform", _) => {
            let u = UniformAttrs::new(&none.with("dtype", Attr::DType(DType::F32))).unwrap();
            if attr == "low" { u.low } else { u.high }.to_string()
        }
        ("PhiloxNormal", _) => {
            let n = NormalAttrs::new(&none.with("dtype", Attr::DType(DType::F32))).unwrap();
            if attr == "mean" { n.mean } else { n.scale }.to_string()
        }
        (_, "aggregate_function") => "`SUM`".into(),
        (_, "case_change_action") => "`NONE`".into(),
        (_, "delimiter") => "white space".into(),
        (_, "pixel_format") => "`RGB`".into(),
        (_, "locale" | "separators" | "stopwords" | "tokenexp") => "none".into(),
        (_, "max_gram_length" | "min_gram_length") => "1".into(),
        (_, "max_skip_count") => "0".into(),
        (_, "maxsplit") => "all".into(),
        ("TfIdfVectorizer", "mode") => "`TF`".into(),
        ("QuantizeLinear" | "DequantizeLinear", "axis") => "1".into(),
        ("MatMulNBits", "bits") => "4".into(),
        (_, "block_size") => "0".into(),
        ("DequantizeLinear", "output_dtype") => "that of the scales".into(),
        (_, "output_dtype") => "that of the zero points, or u8".into(),
        (_, "precision") => "that of the scales".into(),
        (_, "saturate") => "true".into(),
        ("Resize", "axes") => "all axes".into(),
        ("Resize", "mode") => "`nearest`".into(),
        (_, "coordinate_transformation_mode") => "`half_pixel`".into(),
        ("GRU" | "LSTM" | "RNN", "direction") => "`forward`".into(),
        (_, "activations") => "sigmoid and tanh as the standard has them".into(),
        (_, "activation_alpha" | "activation_beta") => "the functions' own".into(),
        (_, "clip") => "none".into(),
        ("GridSample", "mode") => "`linear`".into(),
        ("RoiAlign", "mode") => "`avg`".into(),
        (_, "padding_mode") => "`zeros`".into(),
        (_, "offset_group" | "output_height" | "output_width" | "spatial_scale") => "1".into(),
        (_, "sampling_ratio") => "0".into(),
        (_, "cubic_coeff_a") => "-0.75".into(),
        (_, "extrapolation_value") => "0".into(),
        (_, "keep_aspect_ratio_policy") => "`stretch`".into(),
        (_, "nearest_mode") => "`round_prefer_floor`".into(),
        ("Compress" | "Unique", "axis") => "all axes flattened".into(),
        ("TensorScatter", "axis") => "-2".into(),
        ("TensorScatter", "mode") => "`linear`".into(),
        ("Flatten", "axis") => "1".into(),
        (
            "ArgMax" | "ArgMin" | "Gather" | "GatherElements" | "ScatterElements" | "Split",
            "axis",
        ) => "0".into(),
        (_, "axis") => "-1".into(),
        (_, "axes") => "all but the second".into(),
        (_, "perm") => "all reversed".into(),
        (_, "num_heads") => "none".into(),
        (_, "rotary_embedding_dim") => "all".into(),
        (_, "p") => "2".into(),
        (_, "approximate" | "reduction") => "`none`".into(),
        ("Pad", "mode") => "`constant`".into(),
        (_, "mode") => "`DCR`".into(),
        (_, "auto_pad") => "`NOTSET`".into(),
        (_, "strides" | "dilations") => "all 1".into(),
        (_, "kernel_shape") => "W's".into(),
        (_, "pads") => "all 0".into(),
        (_, "batch_axis") => "1".into(),
        (_, "time_axis" | "batch_dims" | "start" | "k") => "0".into(),
        (_, "end") => "the rank".into(),
        (_, "dtype") => "the operand's".into(),
        (_, "value") => "f32 zero".into(),
        (_, "detect_negative" | "detect_positive" | "largest" | "sorted" | "upper" | "zeros") => {
            "true".into()
        }
        (_, flag) if is_flag(flag) => "false".into(),
        _ => panic!("say what attribute {attr} of {op} defaults to"),
    }
}
