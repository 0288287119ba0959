"""Random cases at the edges of what families of ops take: no elements, scalars, axes from the end, NaN, infinities, zeros of
both signs, and the least and greatest integers."""

import numpy as np
from generate_random_case import Case

FLOATS = [np.float32, np.float32, np.float64, np.float16]
INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5]


def special(draw, dtype):
    """A maker of floats of which many are special."""

    def make(shape, _):
        usual = draw.standard_normal(shape) * 3
        return np.where(draw.random(shape) < 0.4, draw.choice(SPECIAL, shape), usual).astype(dtype)

    return make


def extreme(draw, dtype):
    """A maker of integers of which many are near the least and the greatest."""
    limits = np.iinfo(dtype)
    edges = [limits.min, limits.min + 1, 0, 1, limits.max - 1, limits.max]

    def make(shape, _):
        usual = draw.integers(0, 100, shape).astype(dtype)
        edge = np.array(edges, dtype)[draw.integers(0, len(edges), shape)]
        return np.where(draw.random(shape) < 0.5, edge, usual).astype(dtype)

    return make


def shape(draw, least=0, most=4):
    """Dimensions, of which some may be 0, for a rank that may be 0."""
    rank = int(draw.integers(least, most + 1))
    return [int(d) for d in draw.choice([0, 1, 2, 3, 5], rank, p=[0.08, 0.22, 0.3, 0.25, 0.15])]


def broadcast(draw, dims):
    """A shape that stretches to `dims`."""
    kept = dims[int(draw.integers(0, len(dims) + 1)) :]
    return [1 if draw.random() < 0.3 else d for d in kept]


def either(draw, axis, rank):
    """The axis, or the same counted from the end."""
    return axis - rank if draw.random() < 0.5 else axis


UNARY = [
    ("Abs", 13), ("Ceil", 13), ("Floor", 13), ("Round", 11), ("Neg", 13), ("Sign", 13), ("Sqrt", 13), ("Relu", 14),
    ("Reciprocal", 13), ("Identity", 16), ("Elu", 6), ("LeakyRelu", 16), ("HardSigmoid", 6), ("ThresholdedRelu", 10),
    ("Softsign", 1), ("Selu", 6), ("Exp", 13), ("Tanh", 13), ("Sigmoid", 13), ("HardSwish", 14), ("Atan", 7),
]


def unary(draw):
    op, opset = UNARY[int(draw.integers(len(UNARY)))]
    dtype = draw.choice([np.float32, np.float32, np.float64])
    return Case(draw, op, opset).input(shape(draw), dtype, special(draw, dtype))


def unary_integers(draw):
    dtype = draw.choice([np.int8, np.int16, np.int32, np.int64])
    op = str(draw.choice(["Abs", "Neg", "Sign", "BitwiseNot"]))
    return Case(draw, op, 18).input(shape(draw), dtype, extreme(draw, dtype))


def predicate(draw):
    dtype = draw.choice(FLOATS)
    if draw.random() < 0.5:
        return Case(draw, "IsNaN", 20).input(shape(draw), dtype, special(draw, dtype))
    attributes = {"detect_negative": int(draw.integers(0, 2)), "detect_positive": int(draw.integers(0, 2))}
    return Case(draw, "IsInf", 20, **attributes).input(shape(draw), dtype, special(draw, dtype))


def binary(draw):
    op = str(draw.choice(["Add", "Sub", "Mul", "Div"]))
    dtype = draw.choice(FLOATS)
    case, dims = Case(draw, op, 14), shape(draw)
    given = [dims, broadcast(draw, dims)]
    for of in given if draw.random() < 0.5 else reversed(given):
        case.input(of, dtype, special(draw, dtype))
    return case


def binary_integers(draw):
    """Sums and products wrap; quotients are rounded towards zero."""
    op = str(draw.choice(["Add", "Sub", "Mul", "Div", "Mod", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Max", "Min"]))
    dtype = draw.choice([np.int32, np.int64, np.uint32, np.uint64] if op in ("Add", "Sub", "Mul") else INTEGERS)
    case, dims = Case(draw, op, 18), shape(draw)

    def divisor(of, _):
        return draw.integers(1, 100, of).astype(dtype)

    case.input(dims, dtype, extreme(draw, dtype))
    return case.input(broadcast(draw, dims), dtype, divisor if op in ("Div", "Mod") else extreme(draw, dtype))


def comparison(draw):
    op = str(draw.choice(["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"]))
    dtype = draw.choice([*FLOATS, *INTEGERS])
    make = special if np.issubdtype(dtype, np.floating) else extreme
    case, dims = Case(draw, op, 19), shape(draw)
    return case.input(dims, dtype, make(draw, dtype)).input(broadcast(draw, dims), dtype, make(draw, dtype))


def choice(draw):
    dtype = draw.choice([*FLOATS, *INTEGERS])
    make = special if np.issubdtype(dtype, np.floating) else extreme
    dims = shape(draw)
    case = Case(draw, "Where", 16).input(broadcast(draw, dims), np.bool_, lambda of, _: draw.random(of) < 0.5)
    return case.input(dims, dtype, make(draw, dtype)).input(broadcast(draw, dims), dtype, make(draw, dtype))


def logic(draw):
    op = str(draw.choice(["And", "Or", "Xor", "Not"]))
    dims = shape(draw)
    case = Case(draw, op, 7 if op != "Not" else 1)
    for of in [dims] if op == "Not" else [dims, broadcast(draw, dims)]:
        case.input(of, np.bool_, lambda given, _: draw.random(given) < 0.5)
    return case


def product(draw):
    """Products of matrices, rows, columns and stacks of matrices, some without elements."""
    m, k, n = (int(d) for d in draw.choice([0, 1, 2, 3, 7], 3, p=[0.1, 0.25, 0.25, 0.2, 0.2]))
    lead = shape(draw, 0, 2)
    a, b = [*lead, m, k], [*broadcast(draw, lead), k, n]
    if draw.random() < 0.15:
        a = [k]
    if draw.random() < 0.15:
        b = [k]
    if draw.random() < 0.3:
        dtype = draw.choice([np.int32, np.int64, np.uint32, np.uint64])
        small = lambda of, _: draw.integers(0, 1000, of).astype(dtype)
        return Case(draw, "MatMul", 13).input(a, dtype, small).input(b, dtype, small)
    dtype = draw.choice([np.float32, np.float64])
    return Case(draw, "MatMul", 13).input(a, dtype).input(b, dtype)


def gemm(draw):
    m, k, n = (int(d) for d in draw.integers(1, 6, 3))
    swap = [int(s) for s in draw.integers(0, 2, 2)]
    attributes = {"transA": swap[0], "transB": swap[1], "alpha": float(draw.choice([1, 0.5, -2])), "beta": 1.5}
    case = Case(draw, "Gemm", 13, **attributes)
    case.input([k, m] if swap[0] else [m, k], np.float32).input([n, k] if swap[1] else [k, n], np.float32)
    form = int(draw.integers(0, 5))
    return case if form == 4 else case.input([[], [n], [m, 1], [m, n]][form], np.float32)


def soft(draw):
    op = str(draw.choice(["Softmax", "LogSoftmax", "Hardmax"]))
    dims = [max(d, 1) for d in shape(draw, 1)]
    axis = either(draw, int(draw.integers(0, len(dims))), len(dims))
    return Case(draw, op, 13, axis=axis).input(dims, np.float32)


def arrangement(draw):
    """Ops that only move elements, of every dtype."""
    op = str(draw.choice(["Transpose", "Flatten", "Squeeze", "Unsqueeze", "Expand", "Tile", "Reshape", "Trilu"]))
    dtype = draw.choice([*FLOATS, *INTEGERS, np.bool_])

    def values(of, _):
        return draw.integers(0, 100, of).astype(dtype)

    dims = shape(draw, 2 if op == "Trilu" else 0)
    rank = len(dims)
    if op == "Transpose":
        order = {"perm": [int(a) for a in draw.permutation(rank)]} if rank else {}
        return Case(draw, op, 23, **order).input(dims, dtype, values)
    if op == "Flatten":
        return Case(draw, op, 23, axis=int(draw.integers(-rank, rank + 1))).input(dims, dtype, values)
    if op == "Trilu":
        case = Case(draw, op, 14, upper=int(draw.integers(0, 2))).input(dims, dtype, values)
        return case.constant(np.int64(draw.integers(-4, 5)))
    case = Case(draw, op, 23 if op not in ("Expand", "Tile") else 13)
    if op in ("Squeeze", "Unsqueeze"):
        added = int(draw.integers(1, 3))
        places = sorted(int(a) for a in draw.permutation(rank + added)[:added])
        axes = np.array([either(draw, a, rank + added) for a in places], np.int64)
        if op == "Squeeze":
            for place in places:
                dims.insert(place, 1)
        return case.input(dims, dtype, values).constant(axes)
    if op == "Expand":
        return case.input(broadcast(draw, dims), dtype, values).constant(np.array(dims, np.int64))
    if op == "Tile":
        return case.input(dims, dtype, values).constant(np.array(draw.integers(0, 4, rank), np.int64))
    to = [int(d) for d in draw.permutation(dims)]
    if rank and 0 not in dims and draw.random() < 0.6:
        to[int(draw.integers(rank))] = -1
    if 0 in to:
        case.attributes["allowzero"] = 1
    return case.input(dims, dtype, values).constant(np.array(to, np.int64))


def joined(draw):
    dims = shape(draw, 1)
    at = int(draw.integers(0, len(dims)))
    case = Case(draw, "Concat", 13, axis=either(draw, at, len(dims)))
    dtype = draw.choice([np.float32, np.int64, np.bool_, np.uint8])
    for _ in range(int(draw.integers(1, 5))):
        part = list(dims)
        part[at] = int(draw.integers(0, 4))
        case.input(part, dtype, lambda of, _: draw.integers(0, 100, of).astype(dtype))
    return case


def cut(draw):
    """Slices with steps of both signs, and bounds beyond the ends."""
    dims = shape(draw, 1)
    rank = len(dims)
    axes = [int(a) for a in draw.permutation(rank)[: int(draw.integers(1, rank + 1))]]
    case = Case(draw, "Slice", 13).input(dims, np.float32)
    bounds = [-(2**63), -9, -3, -1, 0, 1, 2, 9, 2**63 - 1]
    pick = lambda of: np.array([of[int(i)] for i in draw.integers(0, len(of), len(axes))], np.int64)
    case.constant(pick(bounds)).constant(pick(bounds))
    case.constant(np.array([either(draw, a, rank) for a in axes], np.int64))
    return case.constant(pick([1, 1, 2, 3, -1, -2]))


def greatest(draw):
    op = str(draw.choice(["ArgMax", "ArgMin"]))
    dims = [max(d, 1) for d in shape(draw, 1)]
    axis = either(draw, int(draw.integers(0, len(dims))), len(dims))
    attributes = {"keepdims": int(draw.integers(0, 2)), "select_last_index": int(draw.integers(0, 2))}
    case = Case(draw, op, 13, axis=axis, **attributes)
    dtype = draw.choice([np.float32, np.int32, np.int64, np.uint8])
    return case.input(dims, dtype, lambda of, _: draw.integers(0, 4, of).astype(dtype))


def normalised(draw):
    op = str(draw.choice(["LayerNormalization", "RMSNormalization", "LpNormalization"]))
    dims = [max(d, 1) for d in shape(draw, 2)]
    at = int(draw.integers(0, len(dims)))
    axis = either(draw, at, len(dims))
    if op == "LpNormalization":
        case = Case(draw, op, 1, axis=axis, p=int(draw.integers(1, 3))).input(dims, np.float32)
        # The reference sums numbers with their signs.
        case.by_runtime = True
        return case
    case = Case(draw, op, 23 if op[0] == "R" else 17, axis=axis, epsilon=1e-3).input(dims, np.float32)
    case.input(dims[at:], np.float32)
    return case.input(dims[at:], np.float32) if op[0] == "L" and draw.random() < 0.5 else case


def range_of(draw):
    dtype = draw.choice([np.int32, np.int64, np.float32])
    start, step = draw.integers(-20, 20), int(draw.choice([-3, -1, 1, 2, 7]))
    case = Case(draw, "Range", 11)
    for value in (start, draw.integers(-20, 20), step):
        case.input([], dtype, lambda of, _, value=value: np.array(value, dtype))
    return case


FAMILIES = {
    "unary": (unary, 60), "unary_integers": (unary_integers, 20), "predicate": (predicate, 20), "binary": (binary, 40),
    "binary_integers": (binary_integers, 60), "comparison": (comparison, 40), "choice": (choice, 25), "logic": (logic, 20),
    "product": (product, 45), "gemm": (gemm, 20), "soft": (soft, 20), "arrangement": (arrangement, 70),
    "joined": (joined, 20), "cut": (cut, 40), "greatest": (greatest, 25), "normalised": (normalised, 30),
    "range_of": (range_of, 12),
}  # fmt: skip
