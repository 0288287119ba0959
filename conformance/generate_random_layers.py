"""Random cases of layers and of ops that look for something: convolutions, recurrent layers, normalisation by channels,
sampling, boxes, and ops whose results depend on where special numbers lie."""

import numpy as np
from generate_random_arrays import ints, numbers
from generate_random_case import Case
from generate_random_edges import either, extreme, shape, special


def windows(draw, rank):
    """The attributes of windows with padding that is given or follows from the strides."""
    attributes = {"strides": ints(draw, 1, 3, rank), "dilations": ints(draw, 1, 2, rank)}
    if draw.random() < 0.2:
        return attributes | {"auto_pad": str(draw.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])), "dilations": [1] * rank}
    return attributes | {"pads": ints(draw, 0, 2, 2 * rank)}


def conv(draw):
    rank, group = int(draw.integers(1, 4)), int(draw.choice([1, 1, 2, 3]))
    own, made = int(draw.integers(1, 4)), int(draw.integers(1, 4))
    case = Case(draw, "Conv", 22, group=group, **windows(draw, rank)).symbol("n", 1, 3)
    case.by_runtime = True
    case.input(["n", group * own, *ints(draw, 6, 11, rank)], np.float32)
    case.input([group * made, own, *ints(draw, 1, 3, rank)], np.float32)
    return case.input([group * made], np.float32) if draw.random() < 0.5 else case


def conv_transpose(draw):
    rank, group = int(draw.integers(1, 3)), int(draw.choice([1, 1, 2]))
    own, made = int(draw.integers(1, 4)), int(draw.integers(1, 4))
    attributes = windows(draw, rank)
    kernel = ints(draw, 2, 4, rank)
    if "pads" in attributes:
        attributes["pads"] = ints(draw, 0, 1, 2 * rank)
        attributes["output_padding"] = [int(draw.integers(0, s)) for s in attributes["strides"]]
    else:
        # A stride beyond the kernel pads less than nothing, which no two runtimes do alike.
        attributes["strides"] = [min(s, k) for s, k in zip(attributes["strides"], kernel)]
    case = Case(draw, "ConvTranspose", 22, group=group, **attributes).symbol("n", 1, 3)
    case.by_runtime = True
    case.input(["n", group * own, *ints(draw, 2, 6, rank)], np.float32)
    case.input([group * own, made, *kernel], np.float32)
    return case.input([group * made], np.float32) if draw.random() < 0.5 else case


GATES = {"LSTM": (4, 3), "GRU": (3, 2), "RNN": (1, 1)}


def recurrent(draw):
    op = str(draw.choice(list(GATES)))
    gates, functions = GATES[op]
    direction = str(draw.choice(["forward", "reverse", "bidirectional"]))
    ways = 2 if direction == "bidirectional" else 1
    given, hidden = ints(draw, 1, 20, 2)
    attributes = {"direction": direction, "hidden_size": hidden}
    if draw.random() < 0.4:
        attributes["activations"] = [str(a) for a in draw.choice(["Relu", "Tanh", "Sigmoid"], functions * ways)]
    if draw.random() < 0.25:
        attributes["clip"] = float(draw.uniform(0.3, 2))
    if op == "GRU":
        attributes["linear_before_reset"] = int(draw.integers(0, 2))
    lengths, start = draw.random() < 0.5, draw.random() < 0.5
    case = Case(draw, op, 22, 3 if op == "LSTM" else 2, **attributes).symbol("s", 1, 7).symbol("b", 1, 5)
    case.by_runtime = True
    # Small, so that states do not grow beyond all bounds where nothing squashes them.
    small = lambda of, _: (draw.standard_normal(of) * 0.3).astype(np.float32)
    case.input(["s", "b", given], np.float32)
    case.input([ways, gates * hidden, given], np.float32, small).input([ways, gates * hidden, hidden], np.float32, small)
    case.input([ways, 2 * gates * hidden], np.float32) if draw.random() < 0.7 else case.missing()
    # The longest sequence has all steps, as ONNX Runtime asks for.
    lengths_of = lambda of, sizes: np.append(draw.integers(1, sizes["s"] + 1, of[0] - 1), sizes["s"]).astype(np.int32)
    case.input(["b"], np.int32, lengths_of) if lengths else case.missing()
    if start:
        case.input([ways, "b", hidden], np.float32)
    if op == "LSTM" and draw.random() < 0.4:
        if not start:
            case.missing()
        case.input([ways, "b", hidden], np.float32)
        if draw.random() < 0.6:
            case.input([ways, 3 * hidden], np.float32)
    return case


def by_channels(draw):
    op = str(draw.choice(["BatchNormalization", "InstanceNormalization", "GroupNormalization", "LRN", "MeanVarianceNormalization"]))
    groups, each = ints(draw, 1, 3, 2)
    channels = groups * each
    # ONNX's LRN has four axes, and so have the default axes of the mean and the variance.
    rank = 2 if op in ("LRN", "MeanVarianceNormalization") else int(draw.integers(1, 4))
    dims = ["n", channels, *ints(draw, 1, 6, rank)]
    if op == "LRN":
        case = Case(draw, op, 13, size=int(draw.choice([1, 3, 5])), alpha=0.3, bias=1.5).symbol("n", 1, 3)
        # The reference fails where the window is larger than the channels are many.
        case.by_runtime = True
        return case.input(dims, np.float32)
    if op == "MeanVarianceNormalization":
        return Case(draw, op, 13).symbol("n", 1, 3).input(dims, np.float32)
    attributes = {"epsilon": 1e-3} | ({"num_groups": groups} if op[0] == "G" else {})
    opset = {"B": 15, "I": 22, "G": 21}[op[0]]
    case = Case(draw, op, opset, **attributes).symbol("n", 1, 3).input(dims, np.float32)
    case.input([channels], np.float32).input([channels], np.float32)
    if op[0] == "B":
        positive = lambda of, _: draw.uniform(0.2, 3, of).astype(np.float32)
        case.input([channels], np.float32).input([channels], np.float32, positive)
    return case


def grid_sample(draw):
    mode = str(draw.choice(["linear", "nearest", "cubic"]))
    rank = 2 if mode == "cubic" else int(draw.integers(2, 4))
    padding = str(draw.choice(["zeros", "border", "reflection"]))
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": int(draw.integers(0, 2))}
    case = Case(draw, "GridSample", 22, **attributes).symbol("n", 1, 3)
    # ONNX Runtime moves the place of a cubic sample to the border, and not those of its neighbours.
    case.by_runtime = mode != "cubic"
    case.input(["n", int(draw.integers(1, 4)), *ints(draw, 2, 6, rank)], np.float32)
    places = lambda of, _: draw.uniform(-1.6, 1.6, of).astype(np.float32)
    return case.input(["n", *ints(draw, 1, 5, rank), rank], np.float32, places)


def boxes(draw, count, limit):
    corners = draw.uniform(0, limit, (count, 2, 2))
    return np.sort(corners, axis=1).reshape(count, 4).astype(np.float32)


def roi_align(draw):
    attributes = {
        "mode": str(draw.choice(["avg", "max"])), "output_height": int(draw.integers(1, 5)),
        "output_width": int(draw.integers(1, 5)), "sampling_ratio": int(draw.integers(0, 4)),
        "spatial_scale": float(draw.choice([0.5, 1.0])),
        "coordinate_transformation_mode": str(draw.choice(["half_pixel", "output_half_pixel"])),
    }  # fmt: skip
    if attributes["mode"] == "max":
        # ONNX Runtime says that it is wrong with more samples.
        attributes["sampling_ratio"] = 1
    case = Case(draw, "RoiAlign", 16, **attributes).symbol("r", 0, 5)
    case.by_runtime = True
    case.input([2, int(draw.integers(1, 4)), *ints(draw, 4, 9, 2)], np.float32)
    case.input(["r", 4], np.float32, lambda of, _: boxes(draw, of[0], 12))
    return case.input(["r"], np.int64, lambda of, _: draw.integers(0, 2, of))


def suppression(draw):
    case = Case(draw, "NonMaxSuppression", 11, center_point_box=int(draw.integers(0, 2))).symbol("n", 1, 20)
    case.by_runtime = True
    batch, classes = ints(draw, 1, 3, 2)
    case.input([batch, "n", 4], np.float32, lambda of, _: np.stack([boxes(draw, of[1], 4) for _ in range(of[0])]))
    case.input([batch, classes, "n"], np.float32, lambda of, _: draw.permutation(int(np.prod(of))).reshape(of).astype(np.float32))
    case.constant(np.int64(draw.integers(0, 6))).constant(np.float32(draw.choice([0.0, 0.3, 0.6])))
    return case.constant(np.float32(draw.integers(0, 10)))


def unique(draw):
    dims = [max(d, 1) for d in shape(draw, 1, 3)]
    attributes = {"sorted": int(draw.integers(0, 2))}
    if draw.random() < 0.5:
        attributes["axis"] = either(draw, int(draw.integers(0, len(dims))), len(dims))
    case = Case(draw, "Unique", 11, 4, **attributes)
    case.by_runtime = True
    dtype = draw.choice([np.float32, np.int64, np.int8])
    return case.input(dims, dtype, numbers(draw, dtype, 0, 3))


def one_hot(draw):
    dims = shape(draw, 1, 3)
    axis = either(draw, int(draw.integers(0, len(dims) + 1)), len(dims) + 1)
    depth = int(draw.integers(1, 6))
    case = Case(draw, "OneHot", 11, axis=axis)
    case.by_runtime = True
    case.input(dims, np.int64, lambda of, _: draw.integers(-depth - 1, depth + 2, of))
    case.constant(np.int64(depth))
    return case.constant(np.array([-1, 2.5], np.float32))


def blocks(draw):
    size, deep = int(draw.choice([1, 2, 3])), int(draw.integers(1, 4))
    high, wide = ints(draw, 0, 4, 2)
    if draw.random() < 0.5:
        case = Case(draw, "SpaceToDepth", 13, blocksize=size)
        return case.input([2, deep, high * size, wide * size], np.float32)
    case = Case(draw, "DepthToSpace", 13, blocksize=size, mode=str(draw.choice(["DCR", "CRD"])))
    return case.input([2, deep * size * size, high, wide], np.float32)


def reversed_parts(draw):
    first = int(draw.integers(0, 2))
    case = Case(draw, "ReverseSequence", 10, batch_axis=first, time_axis=1 - first).symbol("b", 1, 4).symbol("t", 1, 6)
    case.input(["b", "t", 2] if first == 0 else ["t", "b", 2], np.float32)
    return case.input(["b"], np.int64, lambda of, sizes: draw.integers(0, sizes["t"] + 1, of))


def parts(draw):
    dims = shape(draw, 1)
    at, count = int(draw.integers(0, len(dims))), int(draw.integers(1, 4))
    dtype = draw.choice([np.float32, np.int64, np.bool_])
    values = lambda of, _: draw.integers(0, 100, of).astype(dtype)
    case = Case(draw, "Split", 18, count, axis=either(draw, at, len(dims)))
    if draw.random() < 0.5:
        sizes = ints(draw, 0, 4, count)
        dims[at] = sum(sizes)
        return case.input(dims, dtype, values).constant(np.array(sizes, np.int64))
    case.attributes["num_outputs"] = count
    # All parts but the last are equally long, and the last has something.
    each = int(draw.integers(1, 4))
    dims[at] = each * count - (int(draw.integers(0, each)) if count > 1 else 0)
    if -(-dims[at] // count) != each:
        dims[at] = each * count
    return case.input(dims, dtype, values)


def extrema(draw):
    """Bounds and extrema where numbers are NaN, infinite or zeros of both signs, and where integers are extreme."""
    op = str(draw.choice(["Max", "Min", "Clip"]))
    dtype = draw.choice([np.float32, np.float64, np.int8, np.int32, np.int64, np.uint8, np.uint64])
    make = (special if np.issubdtype(dtype, np.floating) else extreme)(draw, dtype)
    dims = shape(draw)
    case = Case(draw, op, 13).input(dims, dtype, make)
    if op == "Clip":
        return case.constant(np.array(1, dtype)).constant(np.array(50, dtype))
    for _ in range(int(draw.integers(0, 3))):
        case.input(dims, dtype, make)
    return case


def special_reduction(draw):
    """Reductions of NaN and infinities, whose results no order of sums changes."""
    op, dims = str(draw.choice(["Sum", "Max", "Min", "Mean", "L1", "SumSquare", "Prod"])), [max(d, 1) for d in shape(draw, 1)]
    axis = either(draw, int(draw.integers(0, len(dims))), len(dims))
    case = Case(draw, f"Reduce{op}", 20 if op in ("Max", "Min") else 18, keepdims=int(draw.integers(0, 2)))
    return case.input(dims, np.float32, special(draw, np.float32)).constant(np.array([axis], np.int64))


def losses(draw):
    op = str(draw.choice(["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"]))
    classes, places = int(draw.integers(1, 5)), ints(draw, 1, 4, int(draw.integers(0, 3)))
    attributes = {"reduction": str(draw.choice(["none", "sum", "mean"]))}
    if draw.random() < 0.4:
        attributes["ignore_index"] = int(draw.integers(-1, classes))
    case = Case(draw, op, 13, **attributes).symbol("n", 1, 4)
    case.input(["n", classes, *places], np.float32)
    # The first is never ignored, so that a mean is one of something.
    unignored = [c for c in range(classes) if c != attributes.get("ignore_index")] or [0]

    def labels(of, _):
        drawn = draw.integers(0, classes, of)
        drawn[:1] = unignored[0]
        return drawn

    if classes == 1:
        case.attributes.pop("ignore_index", None)
    case.input(["n", *places], np.int64, labels)
    if draw.random() < 0.5:
        case.input([classes], np.float32, lambda of, _: draw.uniform(0.5, 2, of).astype(np.float32))
    return case


FAMILIES = {
    "conv": (conv, 45), "conv_transpose": (conv_transpose, 35), "recurrent": (recurrent, 45), "by_channels": (by_channels, 35),
    "grid_sample": (grid_sample, 35), "roi_align": (roi_align, 15), "suppression": (suppression, 20), "unique": (unique, 20),
    "one_hot": (one_hot, 15), "blocks": (blocks, 15), "reversed_parts": (reversed_parts, 10), "parts": (parts, 25),
    "extrema": (extrema, 35), "special_reduction": (special_reduction, 25), "losses": (losses, 25),
}  # fmt: skip
