"""Writes cases of ops on quantised numbers in the form of `generate_cases.py`; ONNX Runtime computes the results.

Usage: python conformance/generate_quantised_cases.py DIR [SEED]     (needs what fixtures/requirements.txt pins)

ONNX Runtime requantises some ops with other roundings than a conversion to numbers and back has. Names of their cases begin
with `quantised_near_`: their codes may differ by one.
"""

import pathlib
import sys

import numpy as np
from onnx import TensorProto
from quantised_blocks import bitsandbytes, gather_blocks, gather_floats, n_bits, two_bits
from quantised_case import BYTES, MS, Node, chance, codes, granular, pick, scale, shape, weights


def quantize(draw):
    dims = shape(draw, 1, 4)
    of, attributes = granular(draw, dims)
    dtype = pick(draw, [np.uint8, np.int8, np.uint16, np.int16])
    float_type = pick(draw, [np.float32, np.float32, np.float16])
    node = Node("QuantizeLinear", **attributes).input((draw.standard_normal(dims) * 8).astype(float_type))
    node.constant(scale(draw, of).astype(float_type))
    return node.constant(codes(draw, of, dtype))


def dequantize(draw):
    dims = shape(draw, 1, 4)
    of, attributes = granular(draw, dims)
    dtype = pick(draw, [np.uint8, np.int8, np.uint16, np.int16, np.int32])
    float_type = pick(draw, [np.float32, np.float32, np.float16])
    node = Node("DequantizeLinear", **attributes).input(codes(draw, dims, dtype))
    node.constant(scale(draw, of).astype(float_type))
    if chance(draw, 0.7):
        node.constant(codes(draw, of, dtype) if dtype != np.int32 else np.zeros(of, np.int32))
    return node


def four_bits(draw):
    dims = shape(draw, 1, 3)
    of, attributes = granular(draw, dims)
    signed = chance(draw)
    dtype = TensorProto.INT4 if signed else TensorProto.UINT4
    zeros = draw.integers(-8, 8, of) if signed else draw.integers(0, 16, of)
    values = draw.integers(-8, 8, dims) if signed else draw.integers(0, 16, dims)
    node = Node("DequantizeLinear", **attributes).constant(values, dtype)
    return node.input(scale(draw, of)).constant(zeros, dtype)


def dynamic(draw):
    return Node("DynamicQuantizeLinear", outputs=3).input(
        (draw.standard_normal(shape(draw, 1, 3)) * draw.uniform(0.1, 30) + draw.uniform(-5, 5)).astype(np.float32)
    )


def matmul_shapes(draw):
    m, k, n = (int(d) for d in draw.integers(1, 40, 3))
    if chance(draw, 0.2):
        k = int(draw.integers(300, 900))
    batch = shape(draw, 0, 2, 4)
    return [*batch, m, k], [*(batch if chance(draw) else []), k, n]


def zero_of(draw, dtype, dims=()):
    return codes(draw, dims, dtype)


def matmul_integer(draw):
    left, right = matmul_shapes(draw)
    a, b = pick(draw, [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8), (np.int8, np.uint8)])
    node = Node("MatMulInteger").input(codes(draw, left, a)).input(weights(draw, right, b, a))
    if chance(draw, 0.7):
        node.constant(zero_of(draw, a))
        if chance(draw, 0.7):
            node.constant(zero_of(draw, b, (right[-1],) if chance(draw) and len(right) == 2 else ()))
    return node


def qlinear_matmul(draw):
    left, right = matmul_shapes(draw)
    a, b = pick(draw, [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)])
    columns = (right[-1],) if chance(draw) and len(right) == 2 else ()
    node = Node("QLinearMatMul").input(codes(draw, left, a)).constant(scale(draw)).constant(zero_of(draw, a))
    node.input(weights(draw, right, b, a)).constant(scale(draw, columns)).constant(zero_of(draw, b, columns))
    return node.constant(scale(draw) * np.float32(200)).constant(zero_of(draw, a))


def conv_of(draw):
    group = pick(draw, [1, 1, 2, 3])
    depth, per = int(draw.integers(1, 5)), int(draw.integers(1, 4))
    rank = pick(draw, [1, 2, 2, 3])
    kernel = [int(k) for k in draw.integers(1, 4, rank)]
    dilations = [int(d) for d in draw.integers(1, 3, rank)]
    data = [int(k) + 8 for k in draw.integers(0, 5, rank)]
    attributes = {
        "group": group,
        "dilations": dilations,
        "strides": [int(d) for d in draw.integers(1, 3, rank)],
        "kernel_shape": kernel,
    }
    if chance(draw, 0.3):
        attributes["auto_pad"] = pick(draw, ["SAME_UPPER", "SAME_LOWER", "VALID"])
        attributes["dilations"] = [1] * rank
    else:
        attributes["pads"] = [int(p) for p in draw.integers(0, 3, 2 * rank)]
    return [int(draw.integers(1, 3)), depth * group, *data], [per * group, depth, *kernel], attributes


def conv_integer(draw):
    x, w, attributes = conv_of(draw)
    dtype = pick(draw, BYTES)
    node = Node("ConvInteger", **attributes).input(codes(draw, x, np.uint8)).input(weights(draw, w, dtype, np.uint8))
    if chance(draw, 0.8):
        node.constant(zero_of(draw, np.uint8))
        if chance(draw, 0.8):
            node.constant(zero_of(draw, dtype))
    return node


def qlinear_conv(draw):
    x, w, attributes = conv_of(draw)
    a, b = pick(draw, [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)])
    filters = (w[0],) if chance(draw) else ()
    zeros = np.full(filters, zero_of(draw, b), b)
    node = Node("QLinearConv", **attributes).input(codes(draw, x, a)).constant(scale(draw)).constant(zero_of(draw, a))
    node.constant(weights(draw, w, b, a)).constant(scale(draw, filters)).constant(zeros)
    node.constant(scale(draw) * np.float32(60)).constant(zero_of(draw, a))
    if chance(draw):
        node.constant(draw.integers(-3000, 3000, w[0]).astype(np.int32))
    return node


def conv_last(draw):
    """A convolution whose operand and result have the channels as their last axis."""
    x, w, attributes = conv_of(draw)
    a, b = pick(draw, [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)])
    filters = (w[0],) if chance(draw) else ()
    zeros = np.full(filters, zero_of(draw, b), b)
    node = Node("QLinearConv", MS, channels_last=1, **attributes).input(codes(draw, [x[0], *x[2:], x[1]], a))
    node.constant(scale(draw)).constant(zero_of(draw, a))
    node.constant(weights(draw, w, b, a)).constant(scale(draw, filters)).constant(zeros)
    node.constant(scale(draw) * np.float32(60)).constant(zero_of(draw, a))
    if chance(draw):
        node.constant(draw.integers(-3000, 3000, w[0]).astype(np.int32))
    return node


def where(draw):
    dims, dtype = shape(draw, 1, 4), pick(draw, BYTES)
    other = [d if chance(draw, 0.8) else 1 for d in dims][int(draw.integers(len(dims))) :]
    node = Node("QLinearWhere", MS).input(draw.random(dims) < 0.5)
    one = scale(draw), zero_of(draw, dtype)
    for of in (dims, other):
        own = one if chance(draw) else (scale(draw), zero_of(draw, dtype))
        node.input(codes(draw, of, dtype)).constant(own[0]).constant(own[1])
    return node.constant(one[0]).constant(one[1])


def binary(op):
    def make(draw):
        dims, dtype = shape(draw, 1, 4), pick(draw, BYTES)
        other = [d if chance(draw, 0.8) else 1 for d in dims][int(draw.integers(len(dims))) :]
        node = Node(op, MS)
        for of in (dims, other):
            node.input(codes(draw, of, dtype)).constant(scale(draw)).constant(zero_of(draw, dtype))
        return node.constant(scale(draw) * np.float32(4)).constant(zero_of(draw, dtype))

    return make


def unary(op, **fixed):
    def make(draw):
        dtype = pick(draw, BYTES)
        attributes = {name: value(draw) for name, value in fixed.items()}
        node = Node(op, MS, **attributes).input(codes(draw, shape(draw, 1, 4), dtype))
        node.constant(scale(draw)).constant(zero_of(draw, dtype))
        to = np.float32(1 / 256) if op in ("QLinearSigmoid", "QLinearSoftmax") else scale(draw)
        return node.constant(to).constant(zero_of(draw, dtype))

    return make


def average_pool(draw):
    dtype, rank = pick(draw, BYTES), pick(draw, [1, 2, 2, 3])
    kernel = [int(k) for k in draw.integers(1, 4, rank)]
    pads = [int(draw.integers(0, k)) for k in kernel + kernel]
    dims = [int(draw.integers(1, 3)), int(draw.integers(1, 5)), *(int(d) for d in draw.integers(4, 9, rank))]
    last, ceil, padded = chance(draw, 0.3), *pick(draw, [(0, 0), (0, 1), (1, 0), (1, 1)])
    node = Node(
        "QLinearAveragePool", MS, kernel_shape=kernel, pads=pads, strides=[int(s) for s in draw.integers(1, 3, rank)],
        count_include_pad=padded, ceil_mode=ceil, channels_last=int(last),
    )
    dims = [dims[0], *dims[2:], dims[1]] if last else dims
    node.input(codes(draw, dims, dtype)).constant(scale(draw)).constant(zero_of(draw, dtype))
    return node.constant(scale(draw)).constant(zero_of(draw, dtype))


def global_pool(draw):
    dtype, last = pick(draw, BYTES), chance(draw, 0.3)
    dims = [int(d) for d in draw.integers(1, 9, pick(draw, [3, 4]))]
    node = Node("QLinearGlobalAveragePool", MS, channels_last=int(last)).input(codes(draw, dims, dtype))
    node.constant(scale(draw)).constant(zero_of(draw, dtype))
    return node.constant(scale(draw)).constant(zero_of(draw, dtype))


def concat(draw):
    dtype, dims = pick(draw, BYTES), shape(draw, 2, 3)
    axis = int(draw.integers(len(dims)))
    node = Node("QLinearConcat", MS, axis=axis).constant(scale(draw)).constant(zero_of(draw, dtype))
    for _ in range(int(draw.integers(1, 4))):
        dims[axis] = int(draw.integers(1, 6))
        node.input(codes(draw, dims, dtype)).constant(scale(draw)).constant(zero_of(draw, dtype))
    return node


def softmax(draw):
    # ONNX Runtime's sum over one element overflows, and its result is 0.
    dims, dtype = [int(d) for d in draw.integers(2, 8, draw.integers(2, 4))], pick(draw, BYTES)
    node = Node("QLinearSoftmax", MS)
    node.attributes = {"axis": int(draw.integers(-len(dims), len(dims))), "opset": pick(draw, [11, 13])}
    node.input(codes(draw, dims, dtype)).constant(scale(draw)).constant(zero_of(draw, dtype))
    # A scale by which 1 has a code: ONNX Runtime does not saturate here.
    return node.constant(np.float32(1 / 250)).constant(np.zeros((), dtype) if dtype == np.uint8 else np.int8(-128))


def attention(draw):
    heads, size, batch, steps, wide = (int(d) for d in draw.integers(1, 6, 5))
    hidden, before = heads * size * 2, int(draw.integers(1, 6)) if chance(draw, 0.4) else 0
    node = Node("QAttention", MS, outputs=2 if before else 1, num_heads=heads, unidirectional=int(chance(draw)))
    columns = (3 * hidden,) if chance(draw) else ()
    node.input(codes(draw, [batch, steps, wide], np.uint8))
    node.constant(weights(draw, [wide, 3 * hidden], np.int8, np.uint8))
    node.constant(draw.standard_normal(3 * hidden).astype(np.float32)).constant(scale(draw) / 10)
    node.constant(scale(draw, columns) / 10)
    keys = before + steps
    ends = draw.integers(1, keys + 1, (batch, 1)).astype(np.int32)
    kind = pick(draw, ["none", "keys", "large", "ends", "column"])
    if kind == "none":
        node.missing()
    elif kind == "ends":
        node.input(ends[:, 0])
    elif kind == "column":
        node.input(np.zeros((batch, 1), np.int32) if keys > 1 else np.ones((batch, 1), np.int32))
    else:
        node.input((np.arange(keys) < ends).astype(np.int32) * (7 if kind == "large" else 1))
    node.constant(zero_of(draw, np.uint8)).constant(zero_of(draw, np.int8, columns))
    if before:
        node.input(draw.standard_normal([2, batch, heads, before, 2 * size]).astype(np.float32))
    return node


def gemm(draw):
    m, k, n = (int(d) for d in draw.integers(1, 20, 3))
    flip_a, flip_b = int(chance(draw)), int(chance(draw))
    a, b = pick(draw, [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)])
    node = Node("QGemm", MS, transA=flip_a, transB=flip_b, alpha=float(draw.uniform(0.5, 2)))
    node.input(codes(draw, [k, m] if flip_a else [m, k], a)).constant(scale(draw)).constant(zero_of(draw, a))
    columns = (n,) if chance(draw) else ()
    node.constant(weights(draw, [n, k] if flip_b else [k, n], b, a)).constant(scale(draw, columns))
    node.constant(zero_of(draw, b, columns))
    if chance(draw):
        node.constant(draw.integers(-3000, 3000, n).astype(np.int32))
    else:
        node.missing()
    if chance(draw):
        node.constant(scale(draw) * np.float32(40))
        # Without a zero point the results are floats, which are divided by the scale all the same.
        if draw.integers(4):
            node.constant(zero_of(draw, a))
    return node


def to_float(draw):
    left, right = matmul_shapes(draw)
    a, b = pick(draw, [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)])
    columns = (right[-1],) if chance(draw) and len(right) == 2 else ()
    node = Node("MatMulIntegerToFloat", MS).input(codes(draw, left, a)).input(weights(draw, right, b, a))
    node.constant(scale(draw)).constant(scale(draw, columns)).constant(zero_of(draw, a))
    node.constant(zero_of(draw, b, columns))
    if chance(draw):
        node.constant(draw.standard_normal(right[-1]).astype(np.float32))
    return node


def dynamic_matmul(draw):
    left, right = matmul_shapes(draw)
    b = pick(draw, BYTES)
    columns = (right[-1],) if chance(draw) and len(right) == 2 else ()
    node = Node("DynamicQuantizeMatMul", MS).input(draw.standard_normal(left).astype(np.float32))
    node.constant(weights(draw, right, b, np.uint8)).constant(scale(draw, columns))
    if chance(draw):
        node.constant(zero_of(draw, b, columns))
    else:
        node.missing()
    if chance(draw):
        node.constant(draw.standard_normal(right[-1]).astype(np.float32))
    return node


# How many cases of each family, and whether codes may differ by one.
FAMILIES = {
    "quantize": (quantize, 50, False), "dequantize": (dequantize, 50, False), "four_bits": (four_bits, 20, False),
    "dynamic": (dynamic, 20, False), "matmul_integer": (matmul_integer, 40, False),
    "conv_integer": (conv_integer, 50, False), "qlinear_matmul": (qlinear_matmul, 40, False),
    "qlinear_conv": (qlinear_conv, 50, False), "add": (binary("QLinearAdd"), 20, True),
    "mul": (binary("QLinearMul"), 20, True), "sigmoid": (unary("QLinearSigmoid"), 15, True),
    "leaky_relu": (unary("QLinearLeakyRelu", alpha=lambda draw: float(draw.uniform(0, 0.5))), 15, True),
    "average_pool": (average_pool, 30, True), "global_pool": (global_pool, 15, True), "concat": (concat, 20, True),
    "softmax": (softmax, 15, True), "gemm": (gemm, 30, True), "to_float": (to_float, 20, False),
    "conv_last": (conv_last, 30, False), "where": (where, 15, True), "bitsandbytes": (bitsandbytes, 20, False),
    "dynamic_matmul": (dynamic_matmul, 20, False), "n_bits": (n_bits, 40, False), "two_bits": (two_bits, 15, False),
    "gather_blocks": (gather_blocks, 30, False), "gather_floats": (gather_floats, 30, False), "attention": (attention, 45, False),
}


def main():
    root = pathlib.Path(sys.argv[1])
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 7
    total, refused = 0, {}
    for family, (make, count, near) in FAMILIES.items():
        draw = np.random.default_rng([seed, *family.encode()])
        for number in range(count):
            name = f"quantised_near_{family}_{number}" if near else f"quantised_{family}_{number}"
            try:
                make(draw).write(root, name)
                total += 1
            except Exception as error:  # Whatever ONNX Runtime has no kernel for is no case.
                refused.setdefault(family, []).append(str(error).splitlines()[0][:150])
    for family, errors in refused.items():
        print(f"{family}: ONNX Runtime refuses {len(errors)}: {errors[0]}")
    print(f"{total} cases in {root}")


if __name__ == "__main__":
    main()
