"""Cases of types and ranks that few models have, with the results of whichever oracle computes them.

onnx's reference resizes no strings, convolves only images by deformed filters, and multiplies no float8: those results are
computed here, as the standard has them. Where the reference computes a part of them, both must agree.
"""

import itertools

import ml_dtypes
import numpy as np
from generate_random_case import Case
from onnx.reference import ReferenceEvaluator

WORDS = ["", "a", "b", "ab", "été", "日本", "zz"]


class Computed(Case):
    """A case whose results a function of its operands computes."""

    compute = None

    def results(self, inputs):
        return [self.compute(*inputs.values())]


def words(draw):
    return lambda shape, _: draw.choice(np.array(WORDS, object), shape)


def unique_strings(draw):
    case = Case(draw, "Unique", 11, 4, axis=int(draw.integers(-2, 2)), sorted=int(draw.integers(0, 2)))
    # The reference fails on slices of strings.
    case.by_runtime = True
    few = np.array(WORDS[:2], object)
    return case.symbol("r", 1, 5).symbol("c", 1, 4).input(["r", "c"], object, lambda shape, _: draw.choice(few, shape))


def nonzero_strings(draw):
    return Case(draw, "NonZero", 13).symbol("r", 1, 4).input(["r", 3], object, words(draw))


def upsample_strings(draw):
    scales = draw.integers(1, 4, 2).astype(np.float32)
    return Case(draw, "Upsample", 9, mode="nearest").symbol("r", 1, 4).input(["r", 2], object, words(draw)).constant(scales)


def resize_strings(draw):
    """A string goes where the number of its place goes."""
    mode = str(draw.choice(["half_pixel", "asymmetric", "align_corners"]))
    attributes = {"mode": "nearest", "coordinate_transformation_mode": mode}
    sizes = draw.integers(1, 7, 2)
    case = Computed(draw, "Resize", 19, **attributes).symbol("r", 1, 5)
    case.input(["r", 3], object, words(draw)).missing().missing().constant(sizes)

    def compute(x):
        numbers = Case(draw, "Resize", 19, **attributes).input(x.shape, np.float32).missing().missing().constant(sizes)
        places = np.arange(x.size, dtype=np.float32).reshape(x.shape)
        return x.ravel()[numbers.results({"in0": places})[0].astype(np.int64)]

    case.compute = compute
    return case


def grid_of_types(draw):
    """The nearest elements, of any type."""
    dtype = draw.choice([np.int64, np.uint8, np.int16, np.bool_, object])
    padding = "border" if dtype == object else str(draw.choice(["zeros", "border", "reflection"]))
    opset, rank = (16, 2) if draw.random() < 0.3 else (22, int(draw.integers(1, 5)))
    attributes = {"mode": "nearest", "padding_mode": padding, "align_corners": int(draw.integers(0, 2))}
    case = Case(draw, "GridSample", opset, **attributes).symbol("n", 1, 2).symbol("p", 1, 4)

    def elements(shape, sizes):
        if dtype == object:
            return words(draw)(shape, sizes)
        # More than an f32 can tell apart.
        return draw.integers(0, 2 if dtype == np.bool_ else 2**40, shape).astype(dtype)

    spatial = [int(length) for length in draw.integers(2, 4, rank)]
    case.input(["n", 2, *spatial], dtype, elements)

    def places(shape, _):
        return draw.uniform(-1.4, 1.4, shape).astype(np.float32)

    return case.input(["n", "p", *[2] * (rank - 1), rank], np.float32, places)


def grid_of_ranks(draw):
    mode = str(draw.choice(["linear", "cubic"]))
    rank = int(draw.integers(3, 7 if mode == "linear" else 5))
    padding = str(draw.choice(["zeros", "border", "reflection"]))
    case = Case(draw, "GridSample", 22, mode=mode, padding_mode=padding, align_corners=int(draw.integers(0, 2)))
    case.symbol("p", 1, 3).input([1, 2, *[int(length) for length in draw.integers(2, 4, rank)]], np.float32)

    def places(shape, _):
        return draw.uniform(-1.2, 1.2, shape).astype(np.float32)

    return case.input([1, "p", *[1] * (rank - 1), rank], np.float32, places)


def scattered_bools(draw):
    """The reference combines bools as numpy adds and multiplies them."""
    reduction = str(draw.choice(["add", "mul", "max", "min"]))
    bools = lambda shape, _: draw.random(shape) < 0.5
    if draw.random() < 0.5:
        case = Case(draw, "ScatterND", 18, reduction=reduction).input([4, 2], np.bool_, bools)
        case.constant(draw.integers(0, 4, (5, 1))).input([5, 2], np.bool_, bools)
        return case
    case = Case(draw, "ScatterElements", 18, reduction=reduction).input([5, 2], np.bool_, bools)
    return case.constant(draw.integers(0, 5, (4, 2))).input([4, 2], np.bool_, bools)


def folded_bools(draw):
    block = [int(length) for length in draw.integers(1, 3, 2)]
    height, width = (int(length) for length in draw.integers(3, 5, 2))
    positions = (height - block[0] + 1) * (width - block[1] + 1)
    case = Case(draw, "Col2Im", 18).symbol("n", 1, 3)
    case.input(["n", 2 * block[0] * block[1], positions], np.bool_, lambda shape, _: draw.random(shape) < 0.3)
    return case.constant(np.array([height, width])).constant(np.array(block))


def window_of_integers(draw):
    op = str(draw.choice(["BlackmanWindow", "HannWindow", "HammingWindow"]))
    case = Case(draw, op, 17, output_datatype=int(draw.choice([2, 6, 7])), periodic=int(draw.integers(0, 2)))
    return case.input([], np.int32, lambda _, sizes: np.int32(draw.integers(3, 12)))


def linear(x, at):
    """The elements of a map at places between its elements; what lies outside is zero."""
    below = np.floor(at)
    total = np.zeros(at.shape[1:])
    for corner in itertools.product((0, 1), repeat=len(at)):
        step = np.array(corner).reshape(-1, *[1] * (at.ndim - 1))
        index = (below + step).astype(np.int64)
        weight = np.prod(np.where(step == 1, at - below, 1 - (at - below)), axis=0)
        limit = np.array(x.shape).reshape(step.shape)
        inside = np.all((index >= 0) & (index < limit), axis=0)
        index = np.clip(index, 0, limit - 1)
        total += np.where(inside, weight * x[tuple(index)], 0)
    return total


def deformed(x, w, offset, bias, mask, strides, dilations, pads, group, offset_group):
    """DeformConv of any number of spatial axes."""
    kernel, output, axes = w.shape[2:], offset.shape[2:], x.ndim - 2
    taps = list(np.ndindex(*kernel))
    batch, channels = x.shape[:2]
    offset = offset.reshape(batch, offset_group, len(taps), axes, *output)
    mask = mask.reshape(batch, offset_group, len(taps), *output)
    columns = np.zeros((batch, channels, len(taps), *output))
    for n, c, t in np.ndindex(batch, channels, len(taps)):
        of = c // (channels // offset_group)
        start = np.indices(output) * np.reshape(strides, (-1, *[1] * axes))
        tap = np.array(taps[t]) * dilations - np.array(pads[:axes])
        at = start + tap.reshape(-1, *[1] * axes) + offset[n, of, t]
        columns[n, c, t] = linear(x[n, c], at) * mask[n, of, t]
    columns = columns.reshape(batch, group, channels // group, len(taps), *output)
    filters = w.reshape(group, w.shape[0] // group, w.shape[1], len(taps))
    y = np.einsum("gmct,ngct...->ngm...", filters, columns).reshape(batch, w.shape[0], *output)
    return (y + bias.reshape(1, -1, *[1] * axes)).astype(x.dtype)


def deform_conv(draw):
    axes = int(draw.choice([1, 1, 2, 3, 3]))
    group, offset_group = int(draw.integers(1, 3)), int(draw.choice([1, 2]))
    kernel, spatial = draw.integers(1, 4, axes), draw.integers(4, 7, axes)
    strides, dilations = draw.integers(1, 3, axes), draw.integers(1, 3, axes)
    pads = draw.integers(0, 3, 2 * axes)
    reach = (kernel - 1) * dilations + 1
    # A map shorter than the filter is padded.
    pads[axes:] += np.maximum(reach - spatial - pads[:axes] - pads[axes:], 0)
    output = (spatial + pads[:axes] + pads[axes:] - reach) // strides + 1
    taps = offset_group * int(np.prod(kernel))
    lists = {"strides": strides, "dilations": dilations, "pads": pads, "kernel_shape": kernel}
    attributes = {name: [int(v) for v in values] for name, values in lists.items()}
    case = Computed(draw, "DeformConv", 22, group=group, offset_group=offset_group, **attributes).symbol("n", 1, 2)
    channels, filters = 2 * group, 3 * group
    sizes = lambda values: [int(v) for v in values]
    case.input(["n", channels, *sizes(spatial)], np.float32)
    case.input([filters, 2, *sizes(kernel)], np.float32)
    case.input(["n", taps * axes, *sizes(output)], np.float32)
    case.input([filters], np.float32).input(["n", taps, *sizes(output)], np.float32)

    def compute(*operands):
        y = deformed(*operands, strides, dilations, pads, group, offset_group)
        if axes == 2:
            names = {f"in{i}": value for i, value in enumerate(operands)}
            (reference,) = ReferenceEvaluator(case.model()).run(None, names)
            np.testing.assert_allclose(y, reference, rtol=1e-3, atol=1e-4)
        return y

    case.compute = compute
    return case


def parameters_of(draw, rows, of):
    """The shape of parameters: one number, a list, or one for each row or column of each matrix."""
    return [[], [of[-2 if rows else -1]], [*of[:-1], 1] if rows else [*of[:-2], 1, of[-1]]][int(draw.integers(0, 3))]


def product_of_codes(draw):
    """Codes, or float8, with parameters of each row of the left operand and of each column of the right one."""
    left, right, result = (draw.choice([np.int8, np.uint8]) for _ in range(3))
    floats = draw.random() < 0.4
    if floats:
        formats = [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
        left, right, result = (formats[int(draw.integers(0, 2))] for _ in range(3))
    batch = [int(n) for n in draw.integers(1, 4, int(draw.integers(0, 3)))]
    m, k, n = (int(size) for size in draw.integers(2, 6, 3))
    case = Computed(draw, "QLinearMatMul", 21)

    def codes(dtype):
        if floats:
            return lambda shape, _: draw.standard_normal(shape).astype(dtype)
        limits = np.iinfo(dtype)
        return lambda shape, _: draw.integers(limits.min, limits.max + 1, shape).astype(dtype)

    def zeros(dtype):
        return lambda shape, _: np.zeros(shape, dtype) if floats else draw.integers(0, 9, shape).astype(dtype)

    def scales(shape, _):
        return draw.uniform(0.01, 0.1, shape).astype(np.float32)

    def result_scales(shape, _):
        return draw.uniform(1, 3, shape).astype(np.float32) * np.float32(0.01 if floats else 1)

    shapes = [[*batch, m, k], [*batch, k, n], [*batch, m, n]]
    for of, dtype, rows in ((shapes[0], left, True), (shapes[1], right, False)):
        shape = parameters_of(draw, rows, of)
        case.input(of, dtype, codes(dtype)).input(shape, np.float32, scales).input(shape, dtype, zeros(dtype))
    shape = parameters_of(draw, True, shapes[2])
    case.input(shape, np.float32, result_scales).input(shape, result, zeros(result))

    def compute(*operands):
        numbers = [value.astype(np.float64) for value in operands]
        # A list of rows lies along the last axis but one.
        for i in (1, 2, 6, 7):
            if numbers[i].ndim == 1:
                numbers[i] = numbers[i][:, None]
        a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = numbers
        y = np.matmul(a - a_zero, b - b_zero) * (a_scale * b_scale / y_scale)
        limits = ml_dtypes.finfo(result) if floats else np.iinfo(result)
        y = y + y_zero if floats else np.rint(y) + y_zero
        return np.clip(y, float(limits.min), float(limits.max)).astype(np.float32).astype(result)

    case.compute = compute
    return case


FAMILIES = {
    "unique_strings": (unique_strings, 15), "nonzero_strings": (nonzero_strings, 5), "upsample_strings": (upsample_strings, 8),
    "resize_strings": (resize_strings, 15), "grid_of_types": (grid_of_types, 25), "grid_of_ranks": (grid_of_ranks, 15),
    "scattered_bools": (scattered_bools, 12), "folded_bools": (folded_bools, 5), "window_of_integers": (window_of_integers, 8),
    "deform_conv": (deform_conv, 25), "product_of_codes": (product_of_codes, 30),
}
