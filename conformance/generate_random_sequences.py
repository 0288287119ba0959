"""Random cases of sequences and optional values of which the data decide how many tensors they hold, or whether they hold any."""

import numpy as np
import onnx.parser
import onnxruntime
from generate_cases import write_case

TYPES = {np.float32: "float", np.float64: "double", np.int64: "int64"}


class Graph:
    """A case whose model is a text. ONNX Runtime computes the results: onnx's reference inserts nothing into an empty sequence at
    a position, and takes an optional value that holds nothing for a list."""

    def __init__(self, head, body, data):
        self.model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]>\ng {head} {{\n{body}\n}}')
        self.data = data

    def results(self, inputs):
        """The outputs on inputs in their order."""
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        evaluator = onnxruntime.InferenceSession(self.model.SerializeToString(), options)
        names = [value.name for value in self.model.graph.input]
        return evaluator.run(None, dict(zip(names, inputs)))

    def write(self, root, name):
        sets = []
        for _ in range(2):
            inputs = [np.asarray(value) for value in self.data()]
            sets.append((inputs, self.results(inputs)))
        write_case(root / name, self.model, sets)


def loop(draw):
    """A loop that appends a tensor of another size in each iteration."""
    dtype = draw.choice(list(TYPES))
    of = TYPES[dtype]
    front, repeat = bool(draw.random() < 0.3), int(draw.integers(1, 4))
    rows = int(draw.integers(1, 4))
    place = ", zero" if front else ""
    body = f"""
    yes = Constant <value: tensor = bool {{1}}> ()
    zero = Constant <value: tensor = int64 {{0}}> ()
    one = Constant <value: tensor = int64 {{1}}> ()
    first = Constant <value: tensor = int64[1] {{0}}> ()
    axes = Constant <value: tensor = int64[1] {{1}}> ()
    lead = Constant <value: tensor = int64[1] {{0}}> ()
    empty = SequenceEmpty <dtype: int = {onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))}> ()
    s = Loop (n, yes, empty) <body: graph = body (int64 i, bool goes_on, seq({of}[]) before) => (bool again, seq({of}[]) after) {{
        width = Identity (x)
        next = Add (i, one)
        end = Unsqueeze (next, lead)
        part = Slice (width, first, end, axes)
        after = SequenceInsert (before, part{place})
        again = Identity (goes_on)
    }}>
    y = ConcatFromSequence <axis: int = {draw.choice([1, -1])}> (s)
    length = SequenceLength (s)
    minus = Constant <value: tensor = int64 {{-1}}> ()
    last = SequenceAt (s, minus)
    """
    head = f"(int64 n, {of}[{rows}, c] x) => (seq({of}[]) s, {of}[a, b] y, int64 length, {of}[d, e] last)"

    def data():
        count = int(draw.integers(1, 2 + 2 * repeat))
        return [np.int64(count), (draw.standard_normal((rows, int(draw.integers(1, 6)))) * 9).astype(dtype)]

    return Graph(head, body, data)


def whiles(draw):
    """A loop that the data end, which carries a number besides the sequence."""
    limit = float(draw.uniform(3, 9))
    new = int(draw.integers(0, 2))
    body = f"""
    limit = Constant <value: tensor = float {{{limit}}}> ()
    start = ReduceSum <keepdims: int = 0> (x)
    yes = Constant <value: tensor = bool {{1}}> ()
    first = SequenceConstruct (x)
    none = Constant <value: tensor = int64 {{64}}> ()
    sum, s = Loop (none, yes, start, first) <body: graph = body (int64 i, bool goes_on, float sum_in, seq(float[]) before) => (bool again, float sum_out, seq(float[]) after) {{
        zero = Constant <value: tensor = int64 {{0}}> ()
        x0 = SequenceAt (before, zero)
        number = Cast <to: int = 1> (i)
        more = Add (x0, number)
        after = SequenceInsert (before, more)
        added = ReduceSum <keepdims: int = 0> (more)
        sum_out = Add (sum_in, added)
        again = Less (sum_out, limit)
    }}>
    y = ConcatFromSequence <axis: int = 0, new_axis: int = {new}> (s)
    """
    dims = "a, b, c" if new else "a, b"
    head = f"(float[2, n] x) => (float sum, float[{dims}] y)"
    return Graph(head, body, lambda: [draw.random((2, int(draw.integers(1, 4)))).astype(np.float32)])


def split(draw):
    """A tensor that is cut where the data say, and whose parts are moved."""
    dtype = draw.choice(list(TYPES))
    of = TYPES[dtype]
    rank = int(draw.integers(1, 4))
    axis = int(draw.integers(0, rank))
    kind = draw.choice(["sizes", "size", "ones", "squeezed"])
    if rank == 1 and kind == "squeezed":
        kind = "ones"
    dims = [str(int(draw.integers(1, 4))) for _ in range(rank)]
    dims[axis] = "n"
    inner = rank - (kind == "squeezed")
    join = int(draw.integers(0, inner)) if kind == "squeezed" else axis
    operands = {"sizes": "x, sizes", "size": "x, size"}.get(kind, "x")
    keep = ", keepdims: int = 0" if kind == "squeezed" else ""
    named = axis - rank if draw.random() < 0.5 else axis
    body = f"""
    s = SplitToSequence <axis: int = {named}{keep}> ({operands})
    a = SequenceAt (s, at)
    t = SequenceErase (s, at)
    u = SequenceInsert (t, a, to)
    length = SequenceLength (u)
    y = ConcatFromSequence <axis: int = {join}> (u)
    """
    shapes = ", ".join(f"d{i}" for i in range(inner))
    sizes = {"sizes": "int64[k] sizes, ", "size": "int64 size, "}.get(kind, "")
    head = (
        f"({of}[{', '.join(dims)}] x, {sizes}int64 at, int64 to) => "
        f"({of}[{shapes}] a, seq({of}[]) u, {of}[{shapes}] y, int64 length)"
    )

    def data():
        length = int(draw.integers(2, 8))
        shape = [length if d == "n" else int(d) for d in dims]
        given = [(draw.standard_normal(shape) * 9).astype(dtype)]
        count = length
        if kind == "sizes":
            cuts = np.sort(draw.integers(0, length + 1, int(draw.integers(1, 5))))
            lengths = np.diff(np.concatenate([[0], cuts, [length]]))
            given.append(lengths.astype(np.int64))
            count = len(lengths)
        if kind == "size":
            size = int(draw.integers(1, length))
            given.append(np.int64(size))
            count = -(-length // size)
        given.append(np.int64(draw.integers(-count, count)))
        given.append(np.int64(draw.integers(1 - count, count)))
        return given

    return Graph(head, body, data)


def branch(draw):
    """Branches that yield sequences of other lengths, and one that yields nothing."""
    body = """
    s = If (c) <then_branch: graph = yes () => (seq(float[]) s_yes) {
        two = Add (x, x)
        s_yes = SequenceConstruct (x, two)
    }, else_branch: graph = no () => (seq(float[]) s_no) {
        axes = Constant <value: tensor = int64[1] {0}> ()
        more = Concat <axis: int = 0> (x, x, x)
        s_no = SequenceConstruct (more)
    }>
    o = If (c) <then_branch: graph = given () => (optional(float[k]) o_yes) {
        o_yes = Optional (x)
    }, else_branch: graph = lacking () => (optional(float[k]) o_no) {
        o_no = Optional <type: type_proto = float[k]> ()
    }>
    has = OptionalHasElement (o)
    z = If (has) <then_branch: graph = there () => (float[k] z_yes) {
        held = OptionalGetElement (o)
        z_yes = Neg (held)
    }, else_branch: graph = away () => (float[k] z_no) {
        z_no = Abs (x)
    }>
    y = ConcatFromSequence <axis: int = 0> (s)
    length = SequenceLength (s)
    """
    head = "(bool c, float[n] x) => (float[m] y, float[k] z, bool has, int64 length)"
    return Graph(head, body, lambda: [np.bool_(draw.random() < 0.5), draw.standard_normal(int(draw.integers(1, 5))).astype(np.float32)])


def mapped(draw):
    """A map over the rows of a matrix, of which the data decide how many there are."""
    body = """
    rows = SplitToSequence <axis: int = 0, keepdims: int = 0> (x)
    s = SequenceMap (rows, k) <body: graph = body (float[n] row, float factor) => (float[m] out) {
        scaled = Mul (row, factor)
        out = Concat <axis: int = 0> (scaled, row)
    }>
    y = ConcatFromSequence <axis: int = 0, new_axis: int = 1> (s)
    """
    head = "(float[r, 3] x, float k) => (float[a, b] y)"

    def data():
        return [draw.standard_normal((int(draw.integers(1, 5)), 3)).astype(np.float32), np.float32(draw.uniform(-2, 2))]

    return Graph(head, body, data)


FAMILIES = {
    "sequence_loop": (loop, 12), "sequence_while": (whiles, 8), "sequence_split": (split, 40), "sequence_branch": (branch, 4),
    "sequence_map": (mapped, 3),
}
