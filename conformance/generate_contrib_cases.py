"""Writes cases of ONNX Runtime's own ops, and of the ops of classical models, in the form of `generate_cases.py`;
ONNX Runtime computes the results.

Usage: python conformance/generate_contrib_cases.py DIR [SEED]       (needs what fixtures/requirements.txt pins)

Each case has two data sets, of different sizes where the inputs have symbolic dimensions.
"""

import contrib_composed
import contrib_learned
import contrib_recurrent
import contrib_streams
import numpy as np
from contrib_attention import (
    attention, coded, decoder_masked, group_query, group_query_shown, multi_head, packed_multi_head, rotary, windowed,
    windowed_biased,
)
from contrib_blocked import Blocked
from contrib_case import HALF, INT32, INT64, Contrib, floats, ints_below, small
from generate_random_cases import causal_conv, linear_attention, write_families


def skip_layer_norm(draw):
    simplified = draw.random() < 0.5
    op = "SkipSimplifiedLayerNormalization" if simplified else "SkipLayerNormalization"
    dtype, columns = floats(draw, False), int(draw.integers(1, 20))
    outputs = [0, 3] if draw.random() < 0.6 else 1
    case = Contrib(draw, op, outputs, epsilon=float(draw.choice([1e-12, 1e-5, 1e-3])))
    case.symbol("b", 1, 3).symbol("s", 1, 5)
    case.input(["b", "s", columns], dtype)
    case.input([["b", "s", columns], [1, "s", columns], ["s", columns]][draw.integers(0, 3)], dtype)
    case.input([columns], dtype)
    if not simplified:
        case.maybe(0.7, [columns], dtype)
    case.maybe(0.5, [columns], dtype)
    return case


def simplified_layer_norm(draw):
    dtype = floats(draw)
    rank = int(draw.integers(1, 4))
    axis = int(draw.integers(-rank, rank))
    dims = [int(d) for d in draw.integers(1, 6, rank)]
    case = Contrib(draw, "SimplifiedLayerNormalization", 1, domain="", axis=axis, epsilon=1e-5)
    case.symbol("n", 1, 6)
    if axis % rank > 0:
        dims[0] = "n"
    return case.input(dims, dtype).input(dims[axis:], dtype)


def embed_layer_norm(draw):
    columns = int(draw.integers(1, 12))
    masked = draw.random() < 0.5
    case = Contrib(draw, "EmbedLayerNormalization", 3 if masked else [0, 2], epsilon=1e-5)
    case.symbol("b", 1, 3).symbol("s", 1, 6)
    case.input(["b", "s"], INT32, ints_below(draw, 9))
    segments = case.maybe(0.6, ["b", "s"], INT32, ints_below(draw, 2))
    case.input([9, columns], np.float32).input([8, columns], np.float32)
    case.input([2, columns], np.float32) if segments else case.missing()
    case.input([columns], np.float32).input([columns], np.float32)
    case.input(["b", "s"], INT32, ints_below(draw, 2)) if masked else case.missing()
    if draw.random() < 0.4:
        case.input(["b", "s"], INT32, ints_below(draw, 8))
    return case


def fused_matmul(draw):
    op = "FusedMatMul" if draw.random() < 0.8 else "TransposeMatMul"
    rank = int(draw.integers(2, 5))
    attributes = {"transA": int(draw.integers(0, 2)), "transB": int(draw.integers(0, 2))}
    if draw.random() < 0.6:
        attributes["alpha"] = float(draw.uniform(0.1, 2))
    batched = op == "FusedMatMul" and rank > 2 and draw.random() < 0.5
    if batched:
        attributes |= {"transBatchA": int(draw.integers(0, 2)), "transBatchB": int(draw.integers(0, 2))}
    dtype = np.float64 if op == "FusedMatMul" and draw.random() < 0.2 else np.float32
    case = Contrib(draw, op, **attributes).symbol("m", 1, 5).symbol("k", 1, 5).symbol("n", 1, 5)
    batch = [int(d) for d in draw.integers(1, 4, rank - 2)]

    def dims(rows, columns, which):
        last = [columns, rows] if attributes["trans" + which] else [rows, columns]
        if attributes.get("transBatch" + which):
            return [last[0], *batch, last[1]]
        return [*batch, *last]

    return case.input(dims("m", "k", "A"), dtype).input(dims("k", "n", "B"), dtype)


ACTIVATIONS = {
    "Relu": [], "Sigmoid": [], "Tanh": [], "LeakyRelu": [0.2], "HardSigmoid": [0.3, 0.4], "Clip": [-0.5, 0.7],
}


def fused_gemm(draw):
    activation = str(draw.choice(["Relu", "Sigmoid", "Tanh", "LeakyRelu", "Elu", "Softplus", "Softsign", "HardSigmoid",
                                  "ThresholdedRelu", "Selu"]))
    attributes = {"activation": activation, "transA": int(draw.integers(0, 2)), "transB": int(draw.integers(0, 2))}
    if activation in ("LeakyRelu", "Elu", "ThresholdedRelu", "HardSigmoid", "Selu"):
        attributes["activation_alpha"] = float(draw.uniform(0.1, 1))
    if activation == "HardSigmoid":
        attributes["activation_beta"] = 0.3
    if activation == "Selu":
        attributes["activation_gamma"] = 1.2
    if draw.random() < 0.5:
        attributes |= {"alpha": float(draw.uniform(0.1, 2)), "beta": float(draw.uniform(0.1, 2))}
    case = Contrib(draw, "FusedGemm", **attributes).symbol("m", 1, 5).symbol("k", 1, 5).symbol("n", 1, 5)
    case.input(["k", "m"] if attributes["transA"] else ["m", "k"], np.float32)
    case.input(["n", "k"] if attributes["transB"] else ["k", "n"], np.float32)
    if draw.random() < 0.7:
        case.input([["n"], ["m", "n"], [1, "n"], ["m", 1]][draw.integers(0, 4)], np.float32)
    return case


def fused_conv(draw):
    rank = int(draw.integers(1, 4))
    group = int(draw.choice([1, 1, 2, 3]))
    inputs, outputs = group * int(draw.integers(1, 4)), group * int(draw.integers(1, 4))
    kernel = [int(k) for k in draw.integers(1, 4, rank)]
    attributes = {
        "kernel_shape": kernel, "group": group, "strides": [int(s) for s in draw.integers(1, 3, rank)],
        "pads": [int(p) for p in draw.integers(0, 2, 2 * rank)],
    }
    residual = rank == 2 and draw.random() < 0.4
    if residual:
        attributes |= {"strides": [1] * rank, "pads": [(k - 1) // 2 for k in kernel] + [k // 2 for k in kernel]}
    activation = str(draw.choice(list(ACTIVATIONS)))
    if not residual or draw.random() < 0.7:
        attributes |= {"activation": activation}
        if ACTIVATIONS[activation]:
            attributes |= {"activation_params": ACTIVATIONS[activation]}
    case = Contrib(draw, "FusedConv", **attributes).symbol("b", 1, 3)
    space = [f"x{i}" for i in range(rank)]
    for name in space:
        case.symbol(name, 4, 8)
    case.input(["b", inputs, *space], np.float32).input([outputs, inputs // group, *kernel], np.float32)
    bias = case.maybe(0.7, [outputs], np.float32)
    if residual:
        case.input(["b", outputs, *space], np.float32)
    elif not bias:
        case.names.pop()
    return case


def conv_transpose(draw):
    case = Contrib(draw, "ConvTransposeWithDynamicPads", strides=[int(s) for s in draw.integers(1, 3, 2)],
                   kernel_shape=[3, 2])
    case.symbol("h", 2, 5).symbol("w", 2, 5)
    case.input([1, 2, "h", "w"], np.float32).input([2, 3, 3, 2], np.float32)
    case.constant(draw.integers(0, 2, 4))
    if draw.random() < 0.5:
        case.input([3], np.float32)
    return case


def crop(draw):
    case = Contrib(draw, "CropAndResize", mode=str(draw.choice(["bilinear", "nearest"])),
                   extrapolation_value=float(draw.choice([0.0, 2.5])))
    case.symbol("h", 2, 6).symbol("w", 2, 6).symbol("r", 1, 4)
    case.input([2, 3, "h", "w"], np.float32)
    whole = draw.random() < 0.3
    if whole:
        # The last of 14 samples of 8 places would lie behind the last place, as f32 rounds.
        case.symbol("h", 8, 8)

    def parts(shape, _):
        if whole:
            return np.tile(np.array([0, 0, 1, 1], np.float32), (shape[0], 1))
        return draw.uniform(-0.2, 1.2, shape).astype(np.float32)

    case.input(["r", 4], np.float32, parts)
    case.input(["r"], INT32, ints_below(draw, 2))
    return case.constant(np.array([14, 3], INT32) if whole else draw.integers(1, 5, 2).astype(INT32))


def activations(draw):
    op = str(draw.choice(["Gelu", "BiasGelu", "FastGelu", "QuickGelu", "GatedAdd"]))
    attributes = {"alpha": float(draw.uniform(0.5, 2))} if op == "QuickGelu" else {}
    case = Contrib(draw, op, **attributes).symbol("b", 1, 4).symbol("n", 1, 6)
    case.input(["b", "n", 5], np.float32)
    if op == "GatedAdd":
        return case.input(["b", "n", 5], np.float32).input(["b", "n", 1], np.float32)
    if op == "BiasGelu" or (op == "FastGelu" and draw.random() < 0.5):
        case.input([5], np.float32)
    return case


def forms(draw):
    op = str(draw.choice(["ExpandDims", "GatherND", "GridSample", "NhwcMaxPool", "Range", "Trilu", "Unique"]))
    if op == "ExpandDims":
        case = Contrib(draw, op).symbol("n", 1, 5)
        return case.input(["n", 3], floats(draw)).constant(INT32(draw.integers(-3, 3)))
    if op == "GatherND":
        dtype = draw.choice([INT32, INT64])
        case = Contrib(draw, op).symbol("n", 1, 5)
        return case.input([3, 4, 2], np.float32).input(["n", int(draw.integers(1, 4))], dtype, ints_below(draw, 2, dtype))
    if op == "GridSample":
        attributes = {"mode": str(draw.choice(["bilinear", "nearest", "bicubic"])),
                      "padding_mode": str(draw.choice(["zeros", "border", "reflection"])),
                      "align_corners": int(draw.integers(0, 2))}
        case = Contrib(draw, op, **attributes).symbol("h", 2, 5).symbol("w", 2, 5)
        case.input([2, 3, "h", "w"], np.float32)
        return case.input([2, "w", "h", 2], np.float32, lambda shape, _: draw.uniform(-1.2, 1.2, shape).astype(np.float32))
    if op == "NhwcMaxPool":
        dtype = draw.choice([np.int8, np.uint8])
        case = Contrib(draw, op, kernel_shape=[2, 3], strides=[1, 2], pads=[0, 1, 1, 1]).symbol("h", 3, 6)
        return case.input([2, "h", 5, 4], dtype, ints_below(draw, 100, dtype))
    if op == "Range":
        dtype = draw.choice([INT32, INT64, np.float32])
        case = Contrib(draw, op)
        shape = [] if draw.random() < 0.5 else [1]
        values = [(lambda at: lambda s, _: np.full(s, at, dtype))(at) for at in (1, 8, 2)]
        for make in values[: 3 if draw.random() < 0.6 else 2]:
            case.input(shape, dtype, make)
        return case
    if op == "Trilu":
        case = Contrib(draw, op, upper=int(draw.integers(0, 2))).symbol("n", 1, 5)
        dtype = draw.choice([np.float32, INT64])
        case.input([2, "n", 4], dtype, ints_below(draw, 50, INT64) if dtype == INT64 else None)
        return case.constant(INT64(draw.integers(-2, 3))) if draw.random() < 0.6 else case
    case = Contrib(draw, op, 3).symbol("n", 1, 9)
    return case.input(["n"], np.float32, ints_below(draw, 4, np.float32))


def distances(draw):
    dtype, columns = draw.choice([np.float32, np.float32, np.float64]), int(draw.integers(3, 9))
    case = Contrib(draw, "CDist", metric=str(draw.choice(["euclidean", "sqeuclidean"]))).symbol("n", 1, 6)
    case.input(["n", columns], dtype)
    rows = draw.standard_normal([int(draw.integers(1, 7)), columns]).astype(dtype)
    return case.constant(rows) if draw.random() < 0.5 else case.input(list(rows.shape), dtype)


def pad(draw):
    mode = str(draw.choice(["constant", "constant", "edge", "reflect"]))
    case = Contrib(draw, "Pad", mode=mode).symbol("n", 3, 6).input(["n", 4], np.float32)
    pads = draw.integers(0, 3, 4)
    case.constant(pads[None] if draw.random() < 0.4 else pads)
    if mode == "constant" and draw.random() < 0.6:
        case.constant(np.float32(1.5) if draw.random() < 0.5 else np.array([1.5], np.float32))
    return case


# Patterns whose longest matches are not what their alternatives say first among them.
SEPARATORS = [[" "], [""], ["[ ,]+"], [",", " +"], ["a|ab|b"], [r"\W+", "é"], ["^a", "b$"], ["x*"], ["東|(?i:naï)"]]
TOKENS = [".", r"\w+", r"\b\w\w+\b", "[a-zé]+", "a|ab|abc", "a+?|b", r"[^\s,]+", "x*", "(?i)NA.|[東京]"]
TEXTS = ["", " ", "a", "ab", "abc ab, ba", "a  b,c", "naïve été", "東京 a", "aaa\nb", "x" * 40, ",a,,b,", "Ä"]


def tokens(draw):
    by = {"separators": SEPARATORS[draw.integers(len(SEPARATORS))]}
    if draw.random() < 0.5:
        by = {"tokenexp": TOKENS[draw.integers(len(TOKENS))]}
    least = 1 if list(by.values())[0] in ([""], ".") else int(draw.integers(1, 4))
    case = Contrib(draw, "Tokenizer", mark=int(draw.integers(0, 2)), mincharnum=least,
                   pad_value=str(draw.choice(["", "#", "東"])), **by)
    case.symbol("n", 1, 4).symbol("c", 1, 4)
    texts = np.array(TEXTS, object)
    if by == {"separators": ["x*"]}:
        # ONNX Runtime reads beyond the end of a text where a separator matches nothing there.
        texts = np.array(["x", "xx"], object)
    dims = ["c"] if draw.random() < 0.4 else ["n", "c"]
    return case.input(dims, object, lambda shape, _: draw.choice(texts, shape))


def inverse(draw):
    # ONNX Runtime rounds halves after each step.
    dtype, rank = draw.choice([np.float32, np.float64]), int(draw.integers(0, 3))
    case = Contrib(draw, "Inverse").symbol("b", 1, 3).symbol("m", 1, 9)

    def matrices(shape, _):
        # None is close to a singular one.
        return (draw.standard_normal(shape) + 8 * np.roll(np.eye(shape[-1]), 1, 0)).astype(dtype)

    return case.input([*["b", 2][:rank], "m", "m"], dtype, matrices)


def moe(draw):
    experts, hidden, inner = int(draw.integers(1, 5)), int(draw.integers(1, 6)), int(draw.integers(1, 6))
    kind = str(draw.choice(["relu", "gelu", "silu", "identity", "swiglu", "swiglu"]))
    attributes = {"activation_type": kind, "k": int(draw.integers(1, experts + 1)),
                  "normalize_routing_weights": int(draw.integers(0, 2))}
    fusion = 1
    if kind == "swiglu":
        fusion = 2
        attributes |= {"swiglu_fusion": 1, "activation_alpha": 1.7, "activation_beta": 1.0}
        if draw.random() < 0.5:
            attributes["swiglu_limit"] = 0.6
    case = Contrib(draw, "MoE", **attributes).symbol("b", 1, 2).symbol("s", 1, 4)
    three = draw.random() < 0.5
    # Without that, ONNX Runtime leaves out the products of halves, and sums the biases alone.
    dtype = HALF if attributes["normalize_routing_weights"] and draw.random() < 0.6 else np.float32
    equal = draw.random() < 0.4

    def logits(_, z):
        shape = (z["b"] * z["s"] if three else z["s"], experts)
        return (draw.integers(0, 2, shape) if equal else draw.standard_normal(shape)).astype(dtype)

    case.input(["b", "s", hidden] if three else ["s", hidden], dtype)
    case.input(["t", experts], dtype, logits)
    # ONNX Runtime rounds products of halves only at the end, which shows where large ones cancel.
    values = small(draw, dtype, 0.3) if dtype == HALF else None
    case.input([experts, fusion * inner, hidden], dtype, values)
    case.maybe(0.5, [experts, fusion * inner], dtype)
    case.input([experts, hidden, inner], dtype, values)
    case.maybe(0.5, [experts, hidden], dtype)
    return case


def qmoe(draw):
    bits = int(draw.choice([2, 4, 4, 8]))
    # By larger blocks of two bits, ONNX Runtime multiplies activations of eight bits.
    block = int(draw.choice([0, 0, 16] if bits == 2 else [0, 0, 16, 32]))
    experts, each = int(draw.integers(1, 5)), block or 8
    zeros = draw.random() < 0.5
    # ONNX Runtime reads zero points of rows of one block as if there were no blocks.
    fewest = 2 if block and zeros else 1
    hidden, inner = each * int(draw.integers(fewest, 4)), each * int(draw.integers(fewest, 4))
    kind = str(draw.choice(["relu", "gelu", "silu", "identity", "swiglu", "swiglu"]))
    attributes = {"activation_type": kind, "k": int(draw.integers(1, experts + 1)),
                  "normalize_routing_weights": int(draw.integers(0, 2)), "expert_weight_bits": bits, "weights_prepacked": 0}
    fusion = 1
    if block:
        attributes["block_size"] = block
    if kind == "swiglu":
        fusion = 2
        attributes |= {"swiglu_fusion": 1, "activation_alpha": 1.7, "activation_beta": 1.0}
        if draw.random() < 0.5:
            attributes["swiglu_limit"] = 0.6
    case = Contrib(draw, "QMoE", **attributes).symbol("b", 1, 2).symbol("s", 1, 4)
    three, dtype = draw.random() < 0.5, draw.choice([np.float32, np.float32, HALF])
    codes = ints_below(draw, 256, np.uint8)

    def logits(_, z):
        return draw.standard_normal((z["b"] * z["s"] if three else z["s"], experts)).astype(dtype)

    def scales(shape, _):
        return (draw.uniform(0.01, 0.06, shape) * 8 / 2**bits).astype(dtype)

    def product(rows, columns):
        blocks = [columns // block] if block else []
        case.input([experts, rows, columns * bits // 8], np.uint8, codes)
        case.input([experts, rows, *blocks], dtype, scales)
        case.maybe(0.5, [experts, rows], dtype)

    case.input(["b", "s", hidden] if three else ["s", hidden], dtype)
    case.input(["t", experts], dtype, logits)
    product(fusion * inner, hidden)
    product(hidden, inner)
    for _ in range(3):
        case.missing()
    if zeros:
        for rows, columns in ((fusion * inner, hidden), (hidden, inner)):
            packed = [rows, -(-(columns // block) * bits // 8)] if block else [-(-rows * bits // 8)]
            case.input([experts, *packed], np.uint8, codes)
        case.missing()
    if draw.random() < 0.3:
        for _ in range(0 if zeros else 3):
            case.missing()
        case.input(["t", experts], dtype, lambda shape, z: abs(logits(shape, z)) + dtype(0.1))
    return case


def codes_embed_layer_norm(draw):
    columns, dtype = int(draw.integers(1, 12)), draw.choice([np.int8, np.uint8])
    masked, segmented = draw.random() < 0.5, draw.random() < 0.6
    case = Contrib(draw, "QEmbedLayerNormalization", 2, epsilon=1e-5)
    case.symbol("b", 1, 3).symbol("s", 1, 6)
    low = -128 if dtype == np.int8 else 0

    def codes(shape, _):
        return np.asarray(draw.integers(low, low + 256, shape), dtype)

    case.input(["b", "s"], INT32, ints_below(draw, 9))
    case.input(["b", "s"], INT32, ints_below(draw, 2)) if segmented else case.missing()
    tables = [[9, columns], [8, columns], [2, columns] if segmented else None, [columns], [columns]]
    for dims in tables:
        case.input(dims, dtype, codes) if dims else case.missing()
    case.input(["b", "s"], INT32, ints_below(draw, 2)) if masked else case.missing()
    for kind, values in ((np.float32, lambda shape, _: np.asarray(draw.uniform(0.01, 0.1, shape), np.float32)), (dtype, codes)):
        for dims in tables:
            case.input([], kind, values) if dims else case.missing()
    return case


def experimental(draw):
    """Ops that ONNX had on trial before operator set 10."""
    op = str(draw.choice(["Affine", "Crop", "ImageScaler", "ParametricSoftplus", "Scale", "ScaledTanh"]))
    opset, attributes = int(draw.integers(7, 10)), {}
    if op in ("Affine", "ParametricSoftplus", "ScaledTanh"):
        attributes = {"alpha": float(draw.uniform(0.1, 2)), "beta": float(draw.uniform(0.1, 2))}
    if op in ("ImageScaler", "Scale"):
        attributes = {"scale": float(draw.uniform(0.1, 2))}
    if op == "ImageScaler":
        attributes["bias"] = [float(v) for v in draw.uniform(-1, 1, 3)]
    if op == "Crop":
        attributes = {"border": [int(v) for v in draw.integers(0, 3, 4)]}
        if draw.random() < 0.5:
            attributes["scale"] = [int(v) for v in draw.integers(1, 4, 2)]
    case = Contrib(draw, op, domain="", opset=opset, **attributes)
    case.symbol("b", 1, 3).symbol("h", 5, 8).symbol("w", 5, 8)
    return case.input(["b", 3, "h", "w"], np.float32)


def resize_ten(draw):
    """Resize of operator set 10, which had no `nearest_mode`."""
    case = Contrib(draw, "Resize", domain="", opset=10, mode=str(draw.choice(["nearest", "nearest", "linear"])))
    case.symbol("h", 2, 9).symbol("w", 2, 9).input([1, 2, "h", "w"], np.float32)
    return case.constant(np.array([1, 1, *draw.uniform(0.5, 2.5, 2)], np.float32))


def linear(draw):
    return of_runtime(linear_attention(draw))


def few_queries(draw):
    """LinearAttention in which several heads of values share one of queries and keys, which ONNX's own has not."""
    queries, size, value = int(draw.integers(1, 3)), int(draw.integers(1, 6)), int(draw.integers(1, 6))
    heads = queries * int(draw.integers(2, 4))
    case = Contrib(draw, "LinearAttention", 2, update_rule="gated_delta", q_num_heads=queries, kv_num_heads=heads)
    case.symbol("b", 1, 3).symbol("t", 1, 5)

    def small(shape, _):
        return (draw.standard_normal(shape) * 0.5).astype(np.float32)

    for shape in (["b", "t", queries * size], ["b", "t", queries * size], ["b", "t", heads * value],
                  ["b", heads, size, value], ["b", "t", heads], ["b", "t", heads]):  # fmt: skip
        case.input(shape, np.float32, small)
    return case


def causal(draw):
    case = of_runtime(causal_conv(draw))
    if draw.random() < 0.6:
        return case
    # The channels behind the sequence, and a distance between the elements under the kernel.
    dilation, length = int(draw.integers(1, 4)), int(draw.integers(1, 4))
    axes = [int(d) for d in draw.integers(1, 4, draw.integers(1, 3))]
    channels = int(np.prod(axes))
    case = Contrib(draw, "CausalConvWithState", 2, dilation=dilation, channels_last=1,
                   activation=str(draw.choice(["none", "silu"])))
    case.symbol("b", 1, 3).symbol("n", 1, 7)
    case.input(["b", "n", *axes], np.float32).input([channels, 1, length], np.float32)
    case.maybe(0.5, [channels], np.float32)
    case.maybe(0.5, ["b", (length - 1) * dilation, *axes], np.float32)
    return case


def of_runtime(case):
    """The case of an op of ONNX that ONNX Runtime has in its own domain."""
    copy = Contrib(case.draw, case.op, len(case.outputs), **case.attributes)
    copy.names, copy.inputs, copy.constants, copy.symbols = case.names, case.inputs, case.constants, case.symbols
    return copy


FAMILIES = {
    "skip_layer_norm": (skip_layer_norm, 40), "simplified_layer_norm": (simplified_layer_norm, 12),
    "embed_layer_norm": (embed_layer_norm, 15), "fused_matmul": (fused_matmul, 40), "fused_gemm": (fused_gemm, 25),
    "fused_conv": (fused_conv, 30), "conv_transpose": (conv_transpose, 4), "crop": (crop, 20), "activations": (activations, 40),
    "experimental": (experimental, 40), "resize_ten": (resize_ten, 24),
    "forms": (forms, 30), "blocked": (Blocked, 40), "attention": (attention, 40), "multi_head": (multi_head, 60),
    "decoder_masked": (decoder_masked, 30), "packed_multi_head": (packed_multi_head, 16),
    "group_query": (group_query, 60), "group_query_shown": (group_query_shown, 40), "windowed": (windowed, 40),
    "windowed_biased": (windowed_biased, 30), "coded": (coded, 60), "rotary": (rotary, 20),
    "distances": (distances, 16), "pad": (pad, 12), "tokens": (tokens, 40), "inverse": (inverse, 10), "moe": (moe, 40), "qmoe": (qmoe, 50), "codes_embed_layer_norm": (codes_embed_layer_norm, 20), "linear_attention": (linear, 30), "few_queries": (few_queries, 15), "causal_conv": (causal, 30),
    **contrib_composed.FAMILIES, **contrib_learned.FAMILIES, **contrib_recurrent.FAMILIES, **contrib_streams.FAMILIES,
}


if __name__ == "__main__":
    write_families("contrib", FAMILIES)
