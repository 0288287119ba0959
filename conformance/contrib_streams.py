"""Cases of ONNX Runtime's gates and hyper-connections, whose residual is several streams."""

import numpy as np
from contrib_case import HALF, INT64, Contrib, floats, ints_below


def gated_norm(draw):
    columns, groups = int(draw.integers(1, 9)), int(draw.integers(1, 4))
    dtype = floats(draw, False)
    case = Contrib(draw, "GatedRMSNorm", activation=str(draw.choice(["silu", "swish", "sigmoid"])), epsilon=1e-5)
    case.symbol("b", 1, 3).symbol("s", 0, 5)
    shape = ["b", "s", groups * columns]
    return case.input(shape, dtype).input([columns], dtype).input(shape, dtype)


def attention_gate(draw):
    heads, dtype, both = int(draw.integers(1, 5)), floats(draw, False), draw.random() < 0.6
    case = Contrib(draw, "LinearAttentionGate", 2 if both else 1).symbol("b", 1, 3).symbol("s", 0, 5)
    case.input(["b", "s", heads], dtype).input([heads], np.float32).input([heads], np.float32)
    return case.input(["b", "s", heads], dtype) if both else case


def scaled_silu(draw):
    case = Contrib(draw, "ScaledSiLU", alpha=float(np.float32(draw.uniform(0.2, 2)))).symbol("b", 1, 4).symbol("n", 1, 6)
    case.input(["b", "n"], floats(draw, False))
    return case.input([], draw.choice([np.float32, HALF])) if draw.random() < 0.5 else case


def streams_of(draw, op, **attributes):
    """A case whose first operand is streams, grouped or flattened."""
    count, columns, flat = int(draw.integers(1, 4)), int(draw.integers(2, 7)), draw.random() < 0.5
    if flat:
        attributes["num_branches"] = count
    case = Contrib(draw, op, **attributes).symbol("b", 1, 3).symbol("s", 0, 4)
    case.input(["b", "s", count * columns] if flat else ["b", "s", count, columns], floats(draw, False))
    return case, count, columns, flat


def gate_of(case, count, columns, flat):
    forms = [["b", "s", count], ["b", "s", count, 1], ["b", "s", count, columns]]
    if flat:
        forms.append(["b", "s", count * columns])
    return case.input(forms[case.draw.integers(0, len(forms))], case.draw.choice([np.float32, HALF]))


def branchwise_norm(draw):
    case, count, columns, _ = streams_of(draw, "BranchwiseRMSNorm", epsilon=1e-5)
    if draw.random() < 0.7:
        forms = [[count * columns], [count, columns], [columns]]
        case.input(forms[draw.integers(0, 3)], draw.choice([np.float32, HALF]))
    return case


def pre_mix(draw):
    scale = float(draw.choice([1.0, 0.25]))
    return gate_of(*streams_of(draw, "HyperConnectionPreMix", reduction_scale=scale))


def post_mix(draw):
    case, count, columns, _ = streams_of(draw, "HyperConnectionPostMix")
    dtype = case.inputs[0][2]
    case.input(["b", "s", columns], dtype)
    gate_of(case, count, columns, False)
    if draw.random() < 0.6:
        # The mixing matrix has the gates' dtype.
        case.input(["b", "s", count, count], case.inputs[2][2])
    return case


def sectioned_rotary(draw):
    sections = [int(s) for s in draw.integers(0, 4, 3)]
    alternating, four, heads = draw.random() < 0.5, draw.random() < 0.5, int(draw.integers(1, 4))
    if alternating:
        sections = [[2, 2, 2], [4, 1, 1], [3, 2, 1], [1, 1, 0]][draw.integers(0, 4)]
    sections[0] += 1
    half, rest = sum(sections), int(draw.choice([0, 2]))
    size = 2 * half + rest
    attributes = {"mrope_section": sections, "mrope_layout": int(alternating), "interleaved": int(draw.integers(0, 2))}
    if rest or not four:
        attributes |= {"num_heads": heads, "rotary_embedding_dim": 2 * half}
    dtype = np.float32 if draw.random() < 0.8 else HALF
    case = Contrib(draw, "MRotaryEmbedding", **attributes).symbol("b", 1, 3).symbol("s", 0, 5)
    case.input(["b", heads, "s", size] if four else ["b", "s", heads * size], dtype)
    case.input([3, "b", "s"], INT64, ints_below(draw, 9, INT64))
    return case.input([9, half], dtype).input([9, half], dtype)


def unfold(draw):
    rank = int(draw.integers(1, 4))
    dims = [int(d) for d in draw.integers(3, 7, rank)]
    axis = int(draw.integers(-rank, rank))
    case = Contrib(draw, "UnfoldTensor", dim=axis, size=int(draw.integers(1, 4)), step=int(draw.integers(1, 4)))
    case.symbol("n", 3, 8)
    dims[axis] = "n"
    dtype = draw.choice([np.float32, INT64])
    return case.input(dims, dtype, ints_below(draw, 50, dtype))


def sample(draw):
    return Contrib(draw, "SampleOp").symbol("n", 1, 5).input(["n", 3], np.float32)


FAMILIES = {
    "gated_norm": (gated_norm, 15), "attention_gate": (attention_gate, 10), "scaled_silu": (scaled_silu, 8),
    "branchwise_norm": (branchwise_norm, 15), "pre_mix": (pre_mix, 15), "post_mix": (post_mix, 20),
    "sectioned_rotary": (sectioned_rotary, 25), "unfold": (unfold, 15), "sample": (sample, 2),
}
