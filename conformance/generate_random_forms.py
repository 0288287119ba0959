"""Random cases of old forms of ops, and of forms that few exporters write."""

import numpy as np
import onnx.parser
from generate_random_case import Case
from generate_random_sequences import Graph


def scan(draw):
    """A Scan of operator set 8, whose batch entries have lengths of their own."""
    wide = int(draw.integers(1, 4))
    body = onnx.parser.parse_graph(
        f"""body (float[{wide}] s, float[{wide}] a, float b) => (float[{wide}] t, float[{wide}] e, float f) {{
            u = Add (s, a)
            t = Mul (u, b)
            e = Neg (t)
            f = ReduceMax <keepdims: int = 0> (u)
        }}"""
    )
    directions = [int(d) for d in draw.integers(0, 2, 2)]
    case = Case(draw, "Scan", 8, 3, body=body, num_scan_inputs=2, directions=directions)
    # onnx's reference has no such form.
    case.by_runtime = True
    case.symbol("b", 1, 4).symbol("n", 1, 5)
    case.input(["b"], np.int64, lambda shape, sizes: draw.integers(1, sizes["n"] + 1, shape))
    return case.input(["b", wide], np.float32).input(["b", "n", wide], np.float32).input(["b", "n"], np.float32)


def statistics(draw):
    """BatchNormalization with statistics of each element of a row."""
    dims = [int(d) for d in draw.integers(1, 5, int(draw.integers(1, 4)))]
    case = Case(draw, "BatchNormalization", int(draw.choice([7, 8])), spatial=0, epsilon=float(draw.uniform(1e-5, 0.1)))
    # onnx's reference takes no such statistics.
    case.by_runtime = True
    case.symbol("n", 1, 4).input(["n", *dims], np.float32)
    for positive in (False, False, False, True):
        values = draw.uniform(0.1, 2, dims) if positive else draw.standard_normal(dims)
        case.constant(values.astype(np.float32))
    return case


def halves(draw):
    """A Range of halves, which are computed in a wider dtype."""
    case = Case(draw, "Range", 27, stash_type=int(draw.choice([1, 11])))
    start, step = draw.uniform(-9, 9), float(draw.choice([-1, 1])) * draw.uniform(0.05, 2)
    limit = start + step * draw.uniform(0, 40)
    for value in (start, limit, step):
        case.input([], np.float16, lambda of, _, value=value: np.array(value, np.float16))
    return case


def unentered(draw):
    """A loop that carries a sequence and collects rows, and that may have no iteration."""
    wide = int(draw.integers(1, 4))
    known = bool(draw.random() < 0.5)
    count = "most" if known else "m"
    body = f"""
    most = Constant <value: tensor = int64 {{{int(draw.integers(0, 2))}}}> ()
    yes = Constant <value: tensor = bool {{1}}> ()
    empty = SequenceEmpty <dtype: int = 1> ()
    s, rows = Loop ({count}, yes, empty) <body: graph = body (int64 i, bool goes_on, seq(float[]) before) => (bool again, seq(float[]) after, float[{wide}] row) {{
        again = Identity (goes_on)
        after = SequenceInsert (before, x)
        row = Neg (x)
    }}>
    length = SequenceLength (s)
    """
    head = f"(int64 m, float[{wide}] x) => (int64 length, float[k, {wide}] rows)"
    return Graph(head, body, lambda: [np.int64(draw.integers(0, 3)), draw.standard_normal(wide).astype(np.float32)])


class Counted(Graph):
    """Loops with a number of iterations and without a condition. The standard ignores what their bodies yield as one; ONNX Runtime
    obeys it, and onnx's reference does not run them."""

    def __init__(self, draw):
        known = int(draw.integers(1, 5)) if draw.random() < 0.5 else None
        self.count, self.end = known, int(draw.integers(0, 3))
        count = "n" if known is None else "known"
        body = f"""
        known = Constant <value: tensor = int64 {{{known or 0}}}> ()
        y, all = Loop ({count}, , x) <body: graph = twice (int64 i, bool goes_on, float[2] a) => (bool again, float[2] b, float[2] c) {{
            end = Constant <value: tensor = int64 {{{self.end}}}> ()
            again = Less (i, end)
            b = Add (a, a)
            c = Identity (b)
        }}>
        empty = SequenceEmpty <dtype: int = 1> ()
        s = Loop ({count}, , empty) <body: graph = append (int64 j, bool went_on, seq(float[]) before) => (bool more, seq(float[]) after) {{
            last = Constant <value: tensor = int64 {{{self.end}}}> ()
            more = Less (j, last)
            after = SequenceInsert (before, x)
        }}>
        joined = ConcatFromSequence <axis: int = 0> (s)
        """
        head = "(int64 n, float[2] x) => (float[2] y, float[k, 2] all, float[m] joined)"
        data = lambda: [np.int64(draw.integers(1, 5)), draw.standard_normal(2).astype(np.float32)]
        super().__init__(head, body, data)

    def results(self, inputs):
        n, x = inputs
        count = int(n) if self.count is None else self.count
        made = np.stack([x * np.float32(2**i) for i in range(1, count + 1)])
        return [made[-1], made, np.tile(x, count)]


def endless(draw):
    """Loops with neither a number of iterations nor a condition, which only their bodies end."""
    end = int(draw.integers(0, 4))
    body = f"""
    y = Loop (, , x) <body: graph = twice (int64 i, bool goes_on, float[2] a) => (bool again, float[2] b) {{
        end = Constant <value: tensor = int64 {{{end}}}> ()
        again = Less (i, end)
        b = Add (a, a)
    }}>
    empty = SequenceEmpty <dtype: int = 1> ()
    s = Loop (, , empty) <body: graph = append (int64 j, bool went_on, seq(float[]) before) => (bool more, seq(float[]) after) {{
        last = Constant <value: tensor = int64 {{{end}}}> ()
        more = Less (j, last)
        after = SequenceInsert (before, x)
    }}>
    joined = ConcatFromSequence <axis: int = 0> (s)
    """
    head = "(float[2] x) => (float[2] y, float[m] joined)"
    return Graph(head, body, lambda: [draw.standard_normal(2).astype(np.float32)])


FAMILIES = {
    "scan_lengths": (scan, 20), "statistics": (statistics, 16), "range_halves": (halves, 16), "unentered": (unentered, 10),
    "counted": (Counted, 8), "endless": (endless, 4),
}
