"""Cases of ONNX Runtime's ops of attention."""

import numpy as np
from contrib_case import HALF, INT32, INT64, Contrib, ints_below, small


def mask_of(case, queries, keys, form):
    """An input that masks keys, of which each row keeps the first."""
    draw = case.draw

    def raw(shape, _):
        mask = draw.integers(0, 2, shape).astype(INT32)
        mask[..., 0] = 1
        return mask

    def total(sizes):
        return sum(sizes[k] for k in keys)

    if form == "ends":
        return case.input(["b"], INT32, lambda shape, z: draw.integers(1, total(z) + 1, shape).astype(INT32))
    if form == "both":
        def bounds(_, sizes):
            ends = draw.integers(1, total(sizes) + 1, sizes["b"])
            return np.concatenate([ends, draw.integers(0, ends)]).astype(INT32)
        return case.input(["twice"], INT32, bounds)
    if form == "keys":
        return case.input(["b", "all"], INT32, lambda _, z: raw([z["b"], total(z)], z))
    if form == "queries":
        return case.input(["b", queries, "all"], INT32, lambda _, z: raw([z["b"], z[queries], total(z)], z))
    return case.missing()


def bias_of(case, heads, queries, keys, chance=0.4, beams=False):
    # Beside beams, ONNX Runtime finds the wrong rows of a term with a batch.
    leads = [[1, 1], [1, heads]] if beams else [[1, 1], ["b", 1], [1, heads], ["b", heads]]
    lead = leads[case.draw.integers(0, len(leads))]

    def values(_, z):
        shape = [z.get(d, d) for d in lead] + [z[queries], sum(z[k] for k in keys)]
        return case.draw.standard_normal(shape).astype(np.float32)

    return case.maybe(chance, [*lead, queries, "all"], np.float32, values)


def attention(draw):
    heads, size = int(draw.integers(1, 4)), int(draw.integers(1, 6))
    columns = int(draw.integers(1, 7))
    past = draw.random() < 0.4
    value = size if past or draw.random() < 0.6 else int(draw.integers(1, 6))
    attributes = {"num_heads": heads, "unidirectional": int(draw.integers(0, 2))}
    # A query that sees padding alone has weights that differ by what is lost beside the large number for padding.
    forms = ["none", "ends", "keys", "queries"] + ([] if attributes["unidirectional"] else ["both"])
    if value != size or draw.random() < 0.2:
        attributes["qkv_hidden_sizes"] = [heads * size, heads * size, heads * value]
    if draw.random() < 0.3:
        attributes["scale"] = float(draw.uniform(0.1, 1))
    case = Contrib(draw, "Attention", 2 if past else 1, **attributes)
    case.symbol("b", 1, 3).symbol("s", 1, 5).symbol("p", 1, 4)
    keys = ["p", "s"] if past else ["s"]
    width = heads * (2 * size + value)
    case.input(["b", "s", columns], np.float32).input([columns, width], np.float32, small(draw))
    case.input([width], np.float32, small(draw))
    mask_of(case, "s", keys, str(draw.choice(forms)))
    case.input([2, "b", heads, "p", size], np.float32) if past else case.missing()
    if not past:
        bias_of(case, heads, "s", keys)
    return case


def multi_head(draw):
    heads, size = int(draw.integers(1, 4)), int(draw.integers(1, 6))
    form = str(draw.choice(["self", "cross", "past", "given"])) if draw.random() < 0.8 else "shared"
    value = size if form in ("past", "given", "shared") or draw.random() < 0.6 else int(draw.integers(1, 6))
    attributes = {"num_heads": heads}
    causal = draw.random() < 0.4
    if causal:
        attributes["unidirectional"] = 1
    if draw.random() < 0.3:
        attributes["scale"] = float(draw.uniform(0.1, 1))
    shown = draw.random() < 0.2
    if form == "given":
        outputs = 1
    else:
        outputs = 3 if form in ("past", "shared") or draw.random() < 0.3 else 1
    if shown and outputs == 3:
        outputs = 4
    case = Contrib(draw, "MultiHeadAttention", outputs, **attributes)
    case.symbol("b", 1, 3).symbol("s", 1, 5).symbol("t", 1, 6).symbol("p", 1, 4)
    own = "t" if form in ("cross", "given") else "s"
    keys = ["p", "s"] if form in ("past", "shared") else [own]
    beams = form == "shared" and draw.random() < 0.5
    if form == "shared":
        # How many tokens the cache has is the same in both data sets, since outputs follow from it.
        before = int(draw.integers(1, 5))
        case.symbol("p", before, before).symbol("m", 10, 12)
    if beams:
        case.symbol("b", 2, 2).symbol("s", 1, 1)
    case.input(["b", "s", heads * size], np.float32)
    if form == "given":
        case.input(["b", heads, "t", size], np.float32).input(["b", heads, "t", value], np.float32).missing()
    else:
        case.input(["b", own, heads * size], np.float32).input(["b", own, heads * value], np.float32)
        case.maybe(0.5, [heads * (2 * size + value)], np.float32)
    # Beside beams, ONNX Runtime finds the wrong rows of masks of the other forms.
    masks = ["none", "keys"] if beams else ["none", "none", "ends", "keys", "queries"]
    mask_of(case, "s", keys, str(draw.choice(masks)))
    bias_of(case, heads, "s", keys, beams=beams)
    if form == "past":
        case.input(["b", heads, "p", size], np.float32).input(["b", heads, "p", value], np.float32)
    if form == "shared":
        case.input(["b", heads, "m", size], np.float32).input(["b", heads, "m", size], np.float32)
        case.shared = {"out1": case.inputs[-2][0], "out2": case.inputs[-1][0]}
        case.input([1], INT32, lambda _, z: np.array([z["p"]], INT32))
    if beams:
        case.input([1, "b", "m"], INT32, ints_below(draw, 2))
    return case


class Packed(Contrib):
    """MultiHeadAttention of packed operands, for which ONNX Runtime has a kernel for GPUs alone: on the CPU, it computes the
    results from the same operands, each by itself."""

    def results(self, inputs):
        parts = Contrib(self.draw, self.op, len(self.outputs), **self.attributes)
        parts.names = list(self.names)
        parts.inputs = [given for given in self.inputs if given[0] not in ("in0", "in1")]
        parts.names[:3] = ["in0", "in1", "in2"]
        feeds = dict(inputs)
        whole = inputs["in0"]
        if whole.ndim == 5:
            arrays = [whole[..., part, :] for part in range(3)]
        elif "in1" in inputs:
            arrays = [whole, *(inputs["in1"][..., part, :] for part in range(2))]
        else:
            arrays = np.split(whole, 3, -1)
        for name, array in zip(parts.names, arrays):
            array = np.ascontiguousarray(array.reshape(*array.shape[:2], -1))
            parts.inputs.append((name, list(array.shape), array.dtype, None))
            feeds[name] = array
        return Contrib.results(parts, feeds)


def packed_multi_head(draw):
    heads, size = int(draw.integers(1, 4)), int(draw.integers(1, 6))
    form = str(draw.choice(["heads", "heads", "keys", "columns"]))
    attributes = {"num_heads": heads}
    if form != "keys" and draw.random() < 0.4:
        attributes["unidirectional"] = 1
    case = Packed(draw, "MultiHeadAttention", 3 if draw.random() < 0.3 else 1, **attributes)
    case.symbol("b", 1, 3).symbol("s", 1, 5).symbol("t", 1, 6)
    if form == "heads":
        case.input(["b", "s", heads, 3, size], np.float32).missing().missing()
    elif form == "columns":
        case.input(["b", "s", 3 * heads * size], np.float32).missing().missing()
    else:
        case.input(["b", "s", heads * size], np.float32).input(["b", "t", heads, 2, size], np.float32).missing()
    if form == "keys":
        case.missing()
    else:
        case.maybe(0.7, [3 * heads * size], np.float32)
    keys = ["t"] if form == "keys" else ["s"]
    mask_of(case, "s", keys, str(draw.choice(["none", "none", "ends", "keys", "queries"])))
    bias_of(case, heads, "s", keys)
    return case


def decoder_masked(draw):
    heads, size = int(draw.integers(1, 4)), int(draw.integers(1, 6))
    cross = draw.random() < 0.4
    attributes = {"num_heads": heads}
    if not cross:
        attributes["past_present_share_buffer"] = 1
    shown = draw.random() < 0.5
    if shown:
        attributes["output_qk"] = 1
    outputs = ([0] if cross else [0, 1, 2]) + ([3] if shown else [])
    case = Contrib(draw, "DecoderMaskedMultiHeadAttention", outputs, **attributes)
    case.symbol("b", 1, 3).symbol("t", 1, 6).symbol("m", 6, 8).symbol("one", 1, 1)
    # How many tokens the cache has is the same in both data sets, because the first operands follow from it.
    before = int(draw.integers(1, 6))
    case.symbol("p", before, before)
    case.input(["b", 1, heads * size], np.float32)
    if cross:
        case.input(["b", heads, "t", size], np.float32).input(["b", heads, "t", size], np.float32)
        mask_of(case, "one", ["t"], str(draw.choice(["none", "keys"])))
        return case
    case.input(["b", 1, heads * size], np.float32).input(["b", 1, heads * size], np.float32)
    mask_of(case, "one", ["p", "one"], str(draw.choice(["none", "keys"])))
    beams = draw.random() < 0.4
    bias_of(case, heads, "one", ["p", "one"], beams=beams)
    case.input(["b", heads, "m", size], np.float32).input(["b", heads, "m", size], np.float32)
    case.shared = {"out1": case.inputs[-2][0], "out2": case.inputs[-1][0]}
    case.input([1], INT32, lambda _, z: np.array([z["p"]], INT32))
    biased = draw.random() < 0.5
    if beams:
        # Two beams of one or two searches.
        case.symbol("b", 2, 2).symbol("n", 1, 1)
        if draw.random() < 0.5:
            case.symbol("b", 4, 4).symbol("n", 2, 2)
        case.constant(np.array([2], INT32)).input(["n", 2, "m"], INT32, ints_below(draw, 2))
    elif biased:
        case.missing().missing()
    if biased:
        case.input([3 * heads * size], np.float32)
    return case


def group_query_shown(draw):
    """GroupQueryAttention with its fourth output: the scores, or their softmax."""
    return group_query(draw, int(draw.integers(1, 3)))


def group_query(draw, shown=0):
    heads, group = int(draw.integers(1, 3)), int(draw.choice([1, 2, 3]))
    rotary = draw.random() < 0.5
    size = int(draw.choice([16, 32])) if rotary else int(draw.choice([8, 16]))
    dtype = np.float32 if draw.random() < 0.8 else HALF
    form = str(draw.choice(["prompt", "step", "chunk", "shared step", "shared prompt"]))
    packed = draw.random() < 0.3
    attributes = {"num_heads": heads * group, "kv_num_heads": heads}
    if draw.random() < 0.3:
        attributes["local_window_size"] = int(draw.integers(1, 5))
    if draw.random() < 0.3:
        attributes["softcap"] = float(draw.uniform(0.5, 3))
    if draw.random() < 0.3:
        attributes["scale"] = float(draw.uniform(0.05, 0.5))
    sink = draw.random() < 0.2
    if not sink and draw.random() < 0.2:
        attributes["smooth_softmax"] = 1
    if "local_window_size" not in attributes and draw.random() < 0.2:
        attributes["causal"] = 0
    if rotary:
        attributes |= {"do_rotary": 1, "rotary_interleaved": int(draw.integers(0, 2))}
    if shown:
        attributes["qk_output"] = shown
    case = Contrib(draw, "GroupQueryAttention", 4 if shown else 3, **attributes)
    batch = 1 if form == "chunk" else 3
    case.symbol("b", 1, batch).symbol("s", 1, 1).symbol("p", 1, 6)
    if form not in ("step", "shared step"):
        case.symbol("s", 2, 6)
    shared = form.startswith("shared")
    if shared:
        case.symbol("p", 12, 14)

    def columns(count):
        return ["b", "s", count * size]

    if packed:
        case.input(columns(heads * (group + 2)), dtype).missing().missing()
    else:
        case.input(columns(heads * group), dtype).input(columns(heads), dtype).input(columns(heads), dtype)

    # The ends of the rows are drawn with the caches, which are zero behind them.
    drawn = {}

    def total(z):
        if form in ("prompt", "shared prompt"):
            return z["s"]
        if shared:
            return drawn.setdefault("total", int(draw.integers(z["s"], z["p"] + 1)))
        return z["p"] + z["s"]

    def ends(z):
        if "ends" not in drawn:
            most = total(z)
            # Behind the tokens of a prompt there may be padding. With a window, ONNX Runtime reads scores there that it has not
            # written. Where scores are an output, it does not write those behind a row's last token, so there is no padding.
            padded = form.endswith("prompt") and "local_window_size" not in attributes and not shown
            least = most if shown else min(2, most) if form.endswith("step") else 1 if padded else most
            drawn["ends"] = draw.integers(least, most + 1, z["b"])
            drawn["ends"][0] = most
        return drawn["ends"]

    def cache(shape, z):
        past = draw.standard_normal(shape).astype(dtype)
        for row, end in enumerate(ends(z)):
            past[row, :, max(end - z["s"], 0):] = 0
        return past

    if form == "prompt":
        case.missing().missing()
    else:
        case.input(["b", heads, "p", size], dtype, cache).input(["b", heads, "p", size], dtype, cache)

    def last(_, z):
        return (ends(z) - 1).astype(INT32)

    def whole(_, z):
        most = total(z)
        drawn.clear()
        return np.array(most, INT32)

    case.input(["b"], INT32, last)
    given = draw.random() < 0.3 and rotary
    biased = draw.random() < 0.3
    most = {}

    def whole_kept(shape, z):
        most["total"] = total(z)
        return whole(shape, z)

    case.input([], INT32, whole_kept)
    if rotary:
        half = size // 2
        case.input([20, half], dtype).input([20, half], dtype)
    else:
        case.missing().missing()
    if given:
        def places(shape, z):
            first = most["total"] - z["s"]
            return np.tile(np.arange(first, first + z["s"]), (z["b"], 1)).astype(INT64)
        case.input(["b", "s"], INT64, places)
    else:
        case.missing()
    if biased:
        lead = [[1, 1], ["b", 1], [1, heads * group], ["b", heads * group]][draw.integers(0, 4)]

        def values(_, z):
            shape = [z.get(d, d) for d in lead] + [z["s"], most["total"]]
            return draw.standard_normal(shape).astype(dtype)
        case.input([*lead, "s", "all"], dtype, values)
    else:
        case.missing()
    if sink:
        case.input([heads * group], dtype)
    return case


def windowed_biased(draw):
    """`windowed` with an attention_bias, which has a column for each token, also of those that were evicted."""
    return windowed(draw, biased=True)


def coded(draw):
    """GroupQueryAttention whose caches hold codes of 8 or 4 bits."""
    heads, group, bits = int(draw.integers(1, 3)), int(draw.choice([1, 2])), int(draw.choice([8, 4]))
    size, dtype = 128 // bits, np.float32 if draw.random() < 0.8 else HALF
    kind = str(draw.choice(["PER_TENSOR", "PER_CHANNEL"]))
    attributes = {
        "num_heads": heads * group, "kv_num_heads": heads, "k_quant_type": kind, "v_quant_type": kind,
        "kv_cache_bit_width": bits,
    }
    rotary, step = draw.random() < 0.4, draw.random() < 0.5
    if rotary:
        attributes |= {"do_rotary": 1, "rotary_interleaved": int(draw.integers(0, 2))}
    if draw.random() < 0.3:
        attributes["softcap"] = float(draw.uniform(0.5, 3))
    window = draw.random()
    if window < 0.4:
        attributes["local_window_size"] = int(draw.integers(1, 5))
    evicting = window < 0.2
    if evicting:
        attributes["sliding_window_cache"] = 1
    shown = int(draw.integers(1, 3)) if not evicting and draw.random() < 0.3 else 0
    if shown:
        attributes["qk_output"] = shown
    sink = draw.random() < 0.2
    if not sink and draw.random() < 0.2:
        attributes["smooth_softmax"] = 1
    case = Contrib(draw, "GroupQueryAttention", 4 if shown else 3, **attributes)
    # Both data sets have as many tokens in the cache, which is full where it evicts.
    before = attributes["local_window_size"] if evicting else int(draw.integers(1, 6))
    case.symbol("b", 1, 3 if step else 1).symbol("s", 1, 1 if step else 5)
    case.input(["b", "s", heads * group * size], dtype)
    for _ in range(2):
        case.input(["b", "s", heads * size], dtype)
    low, high, stored = (-128, 128, np.int8) if bits == 8 else (0, 256, np.uint8)
    for _ in range(2):
        case.input(["b", heads, before, size * bits // 8], stored, lambda shape, _: draw.integers(low, high, shape).astype(stored))
    case.input(["b"], INT32, lambda shape, z: np.full(shape, before + z["s"] - 1, INT32))
    case.input([], INT32, lambda _, z: np.array(before + z["s"], INT32))
    if rotary:
        case.input([20, size // 2], dtype).input([20, size // 2], dtype)
    else:
        case.missing().missing()
    case.missing()
    if draw.random() < 0.3:
        case.input([1, heads * group, "s", "all"], dtype, lambda shape, z: draw.standard_normal(
            [1, heads * group, z["s"], before + z["s"]]).astype(dtype))
    else:
        case.missing()
    case.input([heads * group], dtype) if sink else case.missing()
    channels = [1] if kind == "PER_TENSOR" else [[heads * size], [heads, 1, size]][draw.integers(0, 2)]
    for _ in range(2):
        case.input(channels, np.float32, lambda shape, _: (draw.uniform(0.5, 1, shape) * (0.02 if bits == 8 else 0.3) * (draw.random(shape) < 0.95)).astype(np.float32))
    return case


def windowed(draw, biased=False):
    """GroupQueryAttention whose caches hold a window of the tokens, and evict several at once where they have room for more."""
    heads, group, window = int(draw.integers(1, 3)), int(draw.choice([1, 2])), int(draw.integers(1, 5))
    slack = int(draw.choice([0, 0, 1, 3]))
    capacity, rotary = window + slack, draw.random() < 0.5
    size = 16 if rotary else 8
    prompt = draw.random() < 0.3
    dtype = np.float32 if draw.random() < 0.8 else HALF
    attributes = {"num_heads": heads * group, "kv_num_heads": heads, "local_window_size": window, "sliding_window_cache": 1}
    if rotary:
        attributes |= {"do_rotary": 1, "rotary_interleaved": int(draw.integers(0, 2))}
    # What a cache has behind the tokens that it holds is not specified, so caches are compared where they are full.
    full = not prompt and draw.random() < 0.6
    case = Contrib(draw, "GroupQueryAttention", 3, **attributes)
    case.unread = set() if full else {"out1", "out2"}
    case.symbol("b", 1, 1 if prompt or draw.random() < 0.3 else 3).symbol("s", 1, 1)
    if prompt or case.symbols["b"] == (1, 1):
        case.symbol("s", 1, 7)
    drawn = {}

    def ends(z):
        if "ends" not in drawn:
            if prompt:
                drawn["ends"] = np.full(z["b"], z["s"])
            elif full:
                least = -(-z["s"] // (slack + 1))
                drawn["ends"] = capacity + (slack + 1) * draw.integers(least, least + 4, z["b"])
            else:
                drawn["ends"] = z["s"] + draw.integers(1, 3 * capacity, z["b"])
        return drawn["ends"]

    case.input(["b", "s", heads * group * size], dtype)
    for _ in range(2):
        case.input(["b", "s", heads * size], dtype)
    for _ in range(2):
        case.input(["b", heads, capacity, size], dtype)
    case.input(["b"], INT32, lambda _, z: (ends(z) - 1).astype(INT32))

    most = {}

    def total(_, z):
        most["total"] = ends(z).max()
        drawn.clear()
        return np.array(most["total"], INT32)

    case.input([], INT32, total)
    if rotary:
        case.input([40, size // 2], dtype).input([40, size // 2], dtype)
    elif biased:
        case.missing().missing()
    if biased:
        lead = [[1, 1], ["b", 1], [1, heads * group], ["b", heads * group]][draw.integers(0, 4)]

        def values(_, z):
            shape = [z.get(d, d) for d in lead] + [z["s"], most["total"]]
            return draw.standard_normal(shape).astype(dtype)

        case.missing().input([*lead, "s", "all"], dtype, values)
    return case


def rotary(draw):
    heads, half = int(draw.integers(1, 4)), int(draw.integers(1, 5))
    rest = int(draw.choice([0, 0, 2]))
    four = draw.random() < 0.5
    size = 2 * half + rest
    attributes = {"interleaved": int(draw.integers(0, 2))}
    if rest:
        attributes |= {"num_heads": heads, "rotary_embedding_dim": 2 * half}
    dtype = np.float32 if draw.random() < 0.8 else HALF
    case = Contrib(draw, "RotaryEmbedding", **attributes).symbol("b", 1, 3).symbol("s", 1, 5)
    case.input(["b", heads, "s", size] if four else ["b", "s", heads * size], dtype)
    if draw.random() < 0.5:
        case.input([1], INT64, ints_below(draw, 4, INT64))
    else:
        case.input(["b", "s"], INT64, ints_below(draw, 9, INT64))
    return case.input([9, half], dtype).input([9, half], dtype)
