"""Random cases of ops that move, choose and combine the elements of arrays."""

import numpy as np
from generate_random_case import Case
from onnx import helper


def ints(draw, least, most, count):
    return [int(v) for v in draw.integers(least, most + 1, count)]


def some(draw, rank):
    """Some of the axes, some of them counted from the end."""
    axes = draw.permutation(rank)[: draw.integers(1, rank + 1)]
    return [int(a) - (rank if draw.random() < 0.5 else 0) for a in axes]


def numbers(draw, dtype, least=-9, most=9):
    """A maker of small numbers, of which many are equal."""
    return lambda shape, _: draw.integers(max(least, np.iinfo(np.int8).min), most + 1, shape).astype(dtype)


def resize(draw):
    mode = str(draw.choice(["nearest", "linear", "cubic"]))
    attributes = {
        "mode": mode,
        "coordinate_transformation_mode": str(
            draw.choice(["half_pixel", "half_pixel_symmetric", "asymmetric", "align_corners", "pytorch_half_pixel"])
        ),
    }
    if mode == "nearest":
        attributes["nearest_mode"] = str(draw.choice(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]))
    if mode == "cubic":
        attributes["exclude_outside"] = int(draw.integers(0, 2))
        attributes["cubic_coeff_a"] = float(draw.choice([-0.75, -0.5]))
    lengths = ints(draw, 2, 7, 2)
    case = Case(draw, "Resize", 19, axes=[2, 3], **attributes).symbol("n", 1, 2)
    # The reference rounds lengths that the standard does not round in one of these, and has another place for a length
    # of 1 in the other.
    case.by_runtime = attributes["coordinate_transformation_mode"] in ("half_pixel_symmetric", "pytorch_half_pixel")
    case.input(["n", 2, *lengths], np.float32).missing()
    if draw.random() < 0.5:
        # Halves and quarters are exact, so that no place lies next to a border by rounding.
        return case.constant(np.array(draw.choice([0.5, 0.75, 1.25, 1.5, 2, 3.5], 2), np.float32))
    return case.missing().constant(np.array(ints(draw, 1, 12, 2), np.int64))


def pool(draw):
    op = str(draw.choice(["MaxPool", "AveragePool", "LpPool"]))
    rank = int(draw.integers(1, 4))
    kernel, strides, dilations = ints(draw, 1, 3, rank), ints(draw, 1, 3, rank), ints(draw, 1, 2, rank)
    attributes = {"kernel_shape": kernel, "strides": strides, "dilations": dilations}
    attributes["ceil_mode"] = int(draw.integers(0, 2))
    if draw.random() < 0.25:
        attributes["auto_pad"] = str(draw.choice(["SAME_UPPER", "SAME_LOWER", "VALID"]))
        attributes["ceil_mode"] = 0
        # ONNX Runtime leaves dilations out of what it pads, and refuses windows that need no padding at all.
        attributes["dilations"] = [1] * rank
        attributes["strides"] = [min(pair) for pair in zip(strides, kernel)]
    else:
        attributes["pads"] = [int(draw.integers(0, k)) for k in kernel * 2]
    if op == "AveragePool":
        attributes["count_include_pad"] = int(draw.integers(0, 2))
    if op == "LpPool":
        attributes["p"] = int(draw.integers(1, 4))
    case = Case(draw, op, 22, **attributes).symbol("n", 1, 2)
    # The reference fails for some dilations and paddings.
    case.by_runtime = True
    return case.input(["n", int(draw.integers(1, 4)), *ints(draw, 6, 10, rank)], np.float32)


def gather(draw):
    op = str(draw.choice(["Gather", "GatherElements", "GatherND"]))
    rank = int(draw.integers(1, 5))
    shape = ints(draw, 1, 5, rank)
    dtype = draw.choice([np.float32, np.float16, np.int8, np.int64, np.bool_])
    kind = draw.choice([np.int32, np.int64]) if op != "GatherND" else np.int64
    axis = int(draw.integers(0, rank))
    if op == "GatherND":
        batch = int(draw.integers(0, rank))
        last = int(draw.integers(1, rank - batch + 1))
        case = Case(draw, op, 13, batch_dims=batch)
        within = np.array(shape[batch : batch + last])
        dims = [*shape[:batch], *ints(draw, 1, 3, int(draw.integers(0, 2))), last]
    else:
        case = Case(draw, op, 13, axis=axis - (rank if draw.random() < 0.5 else 0))
        within = shape[axis]
        if op == "Gather":
            dims = ints(draw, 0, 3, int(draw.integers(0, 3)))
        else:
            dims = [int(draw.integers(1, d + 1)) for d in shape]
            dims[axis] = int(draw.integers(1, 7))
            # The reference wants all other dimensions to be those of the data.
            case.by_runtime = True
    case.input(shape, dtype, numbers(draw, dtype))
    return case.input(dims, kind, lambda shape, _: draw.integers(-within, within, shape).astype(kind))


def scatter(draw):
    op = str(draw.choice(["ScatterElements", "ScatterND"]))
    rank = int(draw.integers(1, 4))
    shape = ints(draw, 2, 5, rank)
    reduction = str(draw.choice(["none", "add", "mul", "max", "min"]))
    dtype = draw.choice([np.float32, np.int32, np.int64])
    case = Case(draw, op, 18, reduction=reduction)
    axis, last = int(draw.integers(0, rank)), int(draw.integers(1, rank + 1))
    if op == "ScatterElements":
        case.attributes["axis"] = axis - (rank if draw.random() < 0.5 else 0)
        dims = [int(draw.integers(1, d + 1)) for d in shape]
        updates = dims
    else:
        count = int(draw.integers(1, min(4, np.prod(shape[:last]) + 1)))
        dims, updates = [count, last], [count, *shape[last:]]

    def places(of, _):
        # The standard does not say which of several elements for one place stays.
        if op == "ScatterElements":
            one = np.stack([draw.permutation(shape[axis]) for _ in range(max(1, int(np.prod(of)) // of[axis]))])
            one = one[:, : of[axis]].reshape(*of[:axis], *of[axis + 1 :], of[axis])
            chosen = np.moveaxis(one, -1, axis)
            return np.where(draw.random(of) < 0.3, chosen - shape[axis], chosen)
        flat = draw.permutation(int(np.prod(shape[:last])))[: of[0]]
        return np.stack(np.unravel_index(flat, shape[:last]), axis=-1)

    case.input(shape, dtype, numbers(draw, dtype)).input(dims, np.int64, places)
    return case.input(updates, dtype, numbers(draw, dtype))


def top_k(draw):
    rank = int(draw.integers(1, 4))
    axis = int(draw.integers(0, rank))
    case = Case(
        draw, "TopK", 11, 2, axis=axis - (rank if draw.random() < 0.5 else 0), largest=int(draw.integers(0, 2)), sorted=1
    )
    dims = ints(draw, 1, 4, rank)
    dims[axis] = int(draw.integers(3, 40))
    dtype = draw.choice([np.float32, np.float64, np.int32, np.int64])
    # The lower index comes first of equal elements.
    return case.input(dims, dtype, numbers(draw, dtype, -20, 20)).constant(np.array(ints(draw, 1, dims[axis], 1), np.int64))


def pad(draw):
    mode = str(draw.choice(["constant", "reflect", "edge", "wrap"]))
    rank = int(draw.integers(1, 4))
    axes = some(draw, rank)
    case = Case(draw, "Pad", 19, mode=mode)
    least = -1 if mode == "constant" else 0
    dims = ints(draw, 4, 7, rank)
    dtype = draw.choice([np.float32, np.float16, np.int64, np.int8])
    pads = ints(draw, least, 3, 2 * len(axes))
    # The reference fails where elements are removed.
    case.by_runtime = min(pads) < 0
    case.input(dims, dtype, numbers(draw, dtype)).constant(np.array(pads, np.int64))
    if mode == "constant" and draw.random() < 0.6:
        case.constant(np.array(3, dtype))
    else:
        case.missing()
    return case.constant(np.array(axes, np.int64))


def cum_sum(draw):
    rank = int(draw.integers(1, 5))
    axis = int(draw.integers(0, rank))
    case = Case(draw, "CumSum", 14, exclusive=int(draw.integers(0, 2)), reverse=int(draw.integers(0, 2))).symbol("n", 0, 6)
    dims = ints(draw, 1, 4, rank)
    dims[axis] = "n"
    dtype = draw.choice([np.float32, np.float64, np.int32, np.int64])
    case.input(dims, dtype, numbers(draw, dtype))
    return case.constant(np.int64(axis - (rank if draw.random() < 0.5 else 0)))


REDUCTIONS = ["Sum", "Mean", "Prod", "SumSquare", "L1", "L2", "Max", "Min", "LogSum", "LogSumExp"]


def reduce(draw):
    op = str(draw.choice(REDUCTIONS))
    rank = int(draw.integers(0, 5))
    opset = 20 if op in ("Max", "Min") else 18
    # These have results for no elements at all.
    empty = op in ("Sum", "Prod", "SumSquare", "L1", "L2")
    case = Case(draw, f"Reduce{op}", opset, keepdims=int(draw.integers(0, 2))).symbol("n", 0 if empty else 1, 4)
    dims = ints(draw, 1, 4, rank)
    if rank > 0:
        dims[int(draw.integers(0, rank))] = "n"
    positive = op.startswith("Log")
    # The reference sums i32 up to i64.
    dtype = draw.choice([np.float32, np.float64 if positive or op == "Mean" else np.int64])
    case.input(dims, dtype, numbers(draw, dtype, 1 if positive else -5, 5))
    if rank == 0 or draw.random() < 0.2:
        case.attributes["noop_with_empty_axes"] = int(draw.integers(0, 2))
        return case
    return case.constant(np.array(some(draw, rank), np.int64))


def integers(draw):
    """Arithmetic on the least and greatest integers, too."""
    op = str(draw.choice(["Add", "Sub", "Mul", "Div", "Mod", "Pow", "BitShift"]))
    unsigned = [np.uint8, np.uint16, np.uint32, np.uint64]
    signed = [np.int8, np.int16, np.int32, np.int64]
    if op == "Pow":
        dtype = draw.choice([np.int32, np.int64])
    else:
        dtype = draw.choice(unsigned if op == "BitShift" else unsigned + signed)
    least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    attributes = {"direction": str(draw.choice(["LEFT", "RIGHT"]))} if op == "BitShift" else {}
    if op == "Mod":
        attributes["fmod"] = int(draw.integers(0, 2))
    case = Case(draw, op, 15 if op == "Pow" else 14, **attributes) if op != "BitShift" else Case(draw, op, 11, **attributes)
    extremes = np.array([least, least + 1, most, most - 1, 0, 1, 2, 7, most // 2], dtype)
    divisors = [v for v in (least, most, 1, 2, 3, 10, most // 3, least // 2) if v] + ([-1] if least else [])
    divisors = np.array(divisors, dtype)
    if op == "Pow":
        second = np.arange(0, 12, dtype=dtype)
    elif op == "BitShift":
        second = np.arange(0, np.iinfo(dtype).bits, dtype=dtype)
    elif op in ("Div", "Mod"):
        second = divisors
    else:
        second = extremes
    case.symbol("n", 1, 40)
    case.input(["n"], dtype, lambda shape, _: draw.choice(extremes, shape))
    return case.input(["n"], dtype, lambda shape, _: draw.choice(second, shape))


def cast(draw):
    """Conversions that the standard defines: it leaves open what becomes of a float beyond an integer's range."""
    whole = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]
    floats = [np.float16, np.float32, np.float64]
    source, target = draw.choice(whole + floats), draw.choice(whole + floats + [np.bool_])
    case = Case(draw, "Cast", 19, to=int(helper.np_dtype_to_tensor_dtype(np.dtype(target)))).symbol("n", 1, 40)
    if source in whole:
        least, most = int(np.iinfo(source).min), int(np.iinfo(source).max)
        values = np.array([least, most, 0, 1, most - 1, most // 2, most // 3, most // 2 + 1], source)
    elif target in whole:
        values = np.array([0, 0.5, 1, 1.5, 2.5, 100, 126.9, 3.99], source)
    else:
        values = np.array([0, -0.0, 1, -1.5, 1 / 3, 65504, 65519, 1e-7, 6e-8, 2049, np.inf, -np.inf], np.float64).astype(source)
    return case.input(["n"], source, lambda shape, _: draw.choice(values, shape))


def draws(draw):
    """Ops that draw numbers, of which only dtype and shape are compared."""
    op = str(draw.choice(["RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial"]))
    if op == "Multinomial":
        case = Case(draw, op, 7, dtype=6, sample_size=int(draw.integers(1, 9)), seed=1.0).symbol("n", 1, 4)
        case.by_runtime = True
        return case.input(["n", int(draw.integers(1, 6))], np.float32)
    dtype = np.dtype(draw.choice([np.float16, np.float32, np.float64]))
    attributes = {"dtype": int(helper.np_dtype_to_tensor_dtype(dtype)), "seed": 1.0}
    if op.endswith("Like"):
        return Case(draw, op, 22, **attributes).symbol("n", 0, 4).input(["n", 3], np.float32)
    return Case(draw, op, 22, shape=ints(draw, 0, 4, int(draw.integers(1, 4))), **attributes)


def global_pool(draw):
    op = str(draw.choice(["GlobalLpPool", "GlobalMaxPool", "GlobalAveragePool"]))
    attributes = {"p": int(draw.integers(1, 4))} if op == "GlobalLpPool" else {}
    case = Case(draw, op, 2 if op == "GlobalLpPool" else 1, **attributes).symbol("n", 1, 3)
    case.by_runtime = True
    return case.input(["n", 3, *ints(draw, 1, 5, 2)], np.float32)


def max_roi_pool(draw):
    height, width = ints(draw, 4, 9, 2)
    scale = float(draw.choice([0.5, 1.0]))
    case = Case(draw, "MaxRoiPool", 1, pooled_shape=ints(draw, 1, 3, 2), spatial_scale=scale).symbol("r", 1, 4)
    case.by_runtime = True

    def regions(shape, _):
        corners = [np.sort(draw.integers(0, int(size / scale), (shape[0], 2)), axis=1) for size in (width, height)]
        (left, right), (top, bottom) = (pair.T for pair in corners)
        batch = draw.integers(0, 2, shape[0])
        return np.stack([batch, left, top, right, bottom], axis=1).astype(np.float32)

    return case.input([2, 3, height, width], np.float32).input(["r", 5], np.float32, regions)


FAMILIES = {
    "draws": (draws, 15), "global_pool": (global_pool, 10), "max_roi_pool": (max_roi_pool, 10), "resize": (resize, 60), "pool": (pool, 60), "gather": (gather, 35), "scatter": (scatter, 35), "top_k": (top_k, 20),
    "pad": (pad, 40), "cum_sum": (cum_sum, 15), "reduce": (reduce, 45), "integers": (integers, 30), "cast": (cast, 15),
}
