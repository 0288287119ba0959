"""Writes cases of random shapes and attributes in the form of `generate_cases.py`, with the results of onnx's reference.

Usage: python conformance/generate_random_cases.py DIR [SEED]        (needs what fixtures/requirements.txt pins)

Each case has two data sets, of different sizes where the inputs have symbolic dimensions.
"""

import pathlib
import sys

import generate_random_arrays
import generate_random_edges
import generate_random_forms
import generate_random_images
import generate_random_layers
import generate_random_sequences
import generate_random_types
import numpy as np
from generate_random_case import Case


def attention(draw):
    dtype = np.float32 if draw.random() < 0.8 else np.float64
    heads, group = int(draw.integers(1, 4)), int(draw.choice([1, 1, 2, 3]))
    size, value = int(draw.integers(1, 9)), int(draw.integers(1, 9))
    three = draw.random() < 0.4
    past = draw.random() < 0.4
    opset = int(draw.choice([23, 24]))
    attributes = {"is_causal": int(draw.integers(0, 2))}
    if draw.random() < 0.3:
        attributes["softcap"] = float(draw.uniform(0.5, 3))
    if draw.random() < 0.3:
        attributes["scale"] = float(draw.uniform(0.1, 2))
    if three:
        attributes |= {"q_num_heads": heads * group, "kv_num_heads": heads}
    outputs = 1
    if past:
        outputs = 3
    if draw.random() < 0.2:
        outputs = 4
        attributes["qk_matmul_output_mode"] = int(draw.choice([0, 2, 3]))
        # With a cap, the reference shows mode 0 after it, which the standard does not say.
        attributes.pop("softcap", None)
    case = Case(draw, "Attention", opset, outputs, **attributes)
    case.symbol("b", 1, 3).symbol("s", 1, 6).symbol("p", 0, 5)
    case.symbol("t", 6, 9)
    keys = "s" if past else "t"

    def of(length, heads, size):
        return ["b", length, heads * size] if three else ["b", heads, length, size]

    case.input(of("s", heads * group, size), dtype)
    case.input(of(keys, heads, size), dtype).input(of(keys, heads, value), dtype)
    kind = draw.choice(["none", "bool", "float"])
    total = (lambda z: z["p"] + z["s"]) if past else (lambda z: z["t"])
    lead = draw.choice([0, 1, 2])

    def mask(shape, sizes):
        lengths = [[], [heads * group], [sizes["b"], 1]][lead] + [sizes["s"], total(sizes)]
        if kind == "bool":
            return draw.random(lengths) < 0.6
        return draw.standard_normal(lengths).astype(dtype)

    if kind == "none":
        case.missing()
    else:
        dims = [[], ["h"], ["mb", "mh"]][lead] + ["ms", "mt"]
        case.input(dims, np.bool_ if kind == "bool" else dtype, mask)
    if past:
        case.input(["b", heads, "p", size], dtype).input(["b", heads, "p", value], dtype)
    return case


def rotary(draw):
    heads, half = int(draw.integers(1, 4)), int(draw.integers(1, 5))
    rest = int(draw.choice([0, 0, 2]))
    three = draw.random() < 0.5
    attributes = {"interleaved": int(draw.integers(0, 2))}
    if three:
        attributes["num_heads"] = heads
    if rest:
        attributes["rotary_embedding_dim"] = 2 * half
    case = Case(draw, "RotaryEmbedding", 23, **attributes).symbol("b", 1, 3).symbol("s", 1, 5)
    size = 2 * half + rest
    case.input(["b", "s", heads * size] if three else ["b", heads, "s", size], np.float32)
    if draw.random() < 0.5:
        case.input([9, half], np.float32).input([9, half], np.float32)
        case.input(["b", "s"], np.int64, lambda shape, _: draw.integers(0, 9, shape))
    else:
        case.input(["b", "s", half], np.float32).input(["b", "s", half], np.float32)
    return case


EQUATIONS = [
    "ij,jk->ik", "ij,kj->ki", "bij,bjk->bik", "bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd", "ij->", "ij->j", "ii->i", "ii",
    "iij->ji", "i,i->", "i,j->ji", "ij,ij->ij", "ij,jk,kl->il", "ijk,jil->kl", "abc,cd->abd", "...i->...", "...ij->...ji",
    "...ij,...jk->...ik", "b...,b...->...", "...,...", "ab,b", "a,a,a->a", "aab,bcc->ac", "i,->i", "bsd,dhe->bshe",
]


def einsum(draw):
    equation = str(draw.choice(EQUATIONS))
    case = Case(draw, "Einsum", 12, equation=equation)
    unnamed = int(draw.integers(0, 3))
    # numpy rounds each partial sum of f16.
    dtype = draw.choice([np.float32, np.float32, np.float64, np.int32])
    for letter in set(equation) - set(",.->"):
        case.symbol(letter, 1, 5)
    for term in equation.split("->")[0].split(","):
        dims = []
        for part in term.replace("...", "."):
            dims += [f"u{i}" for i in range(unnamed)] if part == "." else [part]
        draw_ints = (lambda shape, _: draw.integers(-9, 9, shape).astype(np.int32)) if dtype == np.int32 else None
        case.input(dims, dtype, draw_ints)
    for i in range(unnamed):
        case.symbol(f"u{i}", 1, 4)
    return case


def dft(draw):
    rank = int(draw.integers(2, 5))
    axis = int(draw.integers(0, rank - 1))
    inverse, one_sided = int(draw.integers(0, 2)), int(draw.integers(0, 2))
    parts = 2 if inverse or (not one_sided and draw.random() < 0.5) else 1
    case = Case(draw, "DFT", 20, inverse=inverse, onesided=one_sided)
    case.symbol("n", 2, 40)
    dims = [int(d) for d in draw.integers(1, 4, rank - 1)]
    dims[axis] = "n"
    # Sums of many numbers that cancel have no three exact digits in f32.
    case.input([*dims, parts], np.float64)
    if draw.random() < 0.5:
        case.constant(np.int64(draw.integers(2, 40)))
    else:
        case.missing()
    return case.constant(np.int64(axis))


def stft(draw):
    frame, step = int(draw.integers(2, 12)), int(draw.integers(1, 6))
    case = Case(draw, "STFT", 17, onesided=1).symbol("n", 12, 40).symbol("b", 1, 3)
    case.input(["b", "n", 1], np.float64).constant(np.int64(step))
    if draw.random() < 0.5:
        case.input([frame], np.float64)
    else:
        case.missing()
    return case.constant(np.int64(frame))


def col2im(draw):
    rank = int(draw.integers(1, 4))
    image, block = draw.integers(4, 9, rank), draw.integers(1, 4, rank)
    strides, dilations = draw.integers(1, 4, rank), draw.integers(1, 2, rank)
    pads = draw.integers(0, 3, 2 * rank)
    count = [
        (image[i] + pads[i] + pads[rank + i] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1 for i in range(rank)
    ]
    attributes = {name: [int(v) for v in value] for name, value in
                  (("strides", strides), ("dilations", dilations), ("pads", pads))}
    case = Case(draw, "Col2Im", 18, **attributes).symbol("n", 1, 3)
    case.input(["n", int(np.prod(block)) * int(draw.integers(1, 4)), int(np.prod(count))], np.float32)
    return case.constant(image.astype(np.int64)).constant(block.astype(np.int64))


def tensor_scatter(draw):
    mode = str(draw.choice(["linear", "circular"]))
    rank = int(draw.integers(2, 5))
    axis = int(draw.integers(1, rank))
    length = int(draw.integers(3, 8))
    case = Case(draw, "TensorScatter", 24, mode=mode, axis=axis - (rank if draw.random() < 0.5 else 0))
    case.symbol("b", 1, 3).symbol("s", 1, 3)
    rest = [int(d) for d in draw.integers(1, 4, rank)]
    dtype = draw.choice([np.float32, np.float16, np.int8, np.int64])

    def values(shape, _):
        return (draw.standard_normal(shape) * 9).astype(dtype)

    whole, part = ["b", *rest[1:]], ["b", *rest[1:]]
    whole[axis], part[axis] = length, "s"
    case.input(whole, dtype, values).input(part, dtype, values)
    most = 3 * length if mode == "circular" else length - 3
    return case.input(["b"], np.int64, lambda shape, _: draw.integers(0, most + 1, shape))


def cum_prod(draw):
    rank = int(draw.integers(1, 4))
    axis = int(draw.integers(-rank, rank))
    attributes = {"exclusive": int(draw.integers(0, 2)), "reverse": int(draw.integers(0, 2))}
    case = Case(draw, "CumProd", 26, **attributes).symbol("n", 1, 6)
    dims = [int(d) for d in draw.integers(1, 4, rank)]
    dims[axis] = "n"
    if draw.random() < 0.5:
        case.input(dims, np.float32)
    else:
        case.input(dims, np.int64, lambda shape, _: draw.integers(-5, 5, shape))
    return case.constant(np.int64(axis))


def center_crop_pad(draw):
    rank = int(draw.integers(1, 4))
    axes = [int(a) for a in draw.permutation(rank)[: draw.integers(1, rank + 1)]]
    case = Case(draw, "CenterCropPad", 18, axes=axes)
    for axis in range(rank):
        case.symbol(f"d{axis}", 1, 9)
    case.input([f"d{axis}" for axis in range(rank)], np.float32)
    return case.constant(draw.integers(1, 9, len(axes)))


def linear_attention(draw):
    rule = str(draw.choice(["linear", "gated", "delta", "gated_delta"]))
    heads, group = int(draw.integers(1, 3)), int(draw.choice([1, 2]))
    size, value = int(draw.integers(1, 6)), int(draw.integers(1, 6))
    attributes = {"update_rule": rule, "q_num_heads": heads * group, "kv_num_heads": heads}
    case = Case(draw, "LinearAttention", 27, 2, **attributes).symbol("b", 1, 3).symbol("t", 1, 5)

    def small(shape, _):
        return (draw.standard_normal(shape) * 0.5).astype(np.float32)

    for columns in (heads * group * size, heads * size, heads * value):
        case.input(["b", "t", columns], np.float32, small)
    if draw.random() < 0.6:
        case.input(["b", heads, size, value], np.float32, small)
    else:
        case.missing()
    if "gated" in rule:
        case.input(["b", "t", heads * (size if draw.random() < 0.5 else 1)], np.float32, small)
    else:
        case.missing()
    if "delta" in rule:
        case.input(["b", "t", heads if draw.random() < 0.5 else 1], np.float32, small)
    return case


def causal_conv(draw):
    channels, length = int(draw.integers(1, 5)), int(draw.integers(1, 5))
    case = Case(draw, "CausalConvWithState", 27, 2, activation=str(draw.choice(["none", "silu"])))
    case.symbol("b", 1, 3).symbol("n", 1, 7)
    case.input(["b", channels, "n"], np.float32).input([channels, 1, length], np.float32)
    if draw.random() < 0.5:
        case.input([channels], np.float32)
    else:
        case.missing()
    if draw.random() < 0.5:
        case.input(["b", channels, length - 1], np.float32)
    return case


FAMILIES = {
    "attention": (attention, 60), "rotary": (rotary, 20), "einsum": (einsum, 80), "dft": (dft, 40), "stft": (stft, 15),
    "col2im": (col2im, 25), "tensor_scatter": (tensor_scatter, 25), "cum_prod": (cum_prod, 15),
    "center_crop_pad": (center_crop_pad, 25), "linear_attention": (linear_attention, 25),
    "causal_conv": (causal_conv, 15), **generate_random_arrays.FAMILIES, **generate_random_edges.FAMILIES,
    **generate_random_forms.FAMILIES, **generate_random_images.FAMILIES, **generate_random_layers.FAMILIES,
    **generate_random_sequences.FAMILIES, **generate_random_types.FAMILIES,
}


def write_families(kind, families):
    """Writes the cases of all families into the folder that the command line names."""
    root = pathlib.Path(sys.argv[1])
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 7
    total = 0
    for family, (make, count) in families.items():
        draw = np.random.default_rng([seed, *family.encode()])
        for number in range(count):
            make(draw).write(root, f"{kind}_{family}_{number}")
            total += 1
    print(f"{total} cases in {root}")


if __name__ == "__main__":
    write_families("random", FAMILIES)
