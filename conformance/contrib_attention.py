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


def bias_of(case, heads, queries, keys, chance=0.4):
    lead = [[1, 1], ["b", 1], [1, heads], ["b", heads]][case.draw.integers(0, 4)]

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
    form = str(draw.choice(["self", "cross", "past", "given"]))
    value = size if form in ("past", "given") or draw.random() < 0.6 else int(draw.integers(1, 6))
    attributes = {"num_heads": heads}
    causal = form in ("self", "past") and draw.random() < 0.4
    if causal:
        attributes["unidirectional"] = 1
    if draw.random() < 0.3:
        attributes["scale"] = float(draw.uniform(0.1, 1))
    shown = draw.random() < 0.2
    if form == "given":
        outputs = 1
    else:
        outputs = 3 if form == "past" or draw.random() < 0.3 else 1
    if shown and outputs == 3:
        outputs = 4
    case = Contrib(draw, "MultiHeadAttention", outputs, **attributes)
    case.symbol("b", 1, 3).symbol("s", 1, 5).symbol("t", 1, 6).symbol("p", 1, 4)
    own = "t" if form in ("cross", "given") else "s"
    keys = ["p", "s"] if form == "past" else [own]
    case.input(["b", "s", heads * size], np.float32)
    if form == "given":
        case.input(["b", heads, "t", size], np.float32).input(["b", heads, "t", value], np.float32).missing()
    else:
        case.input(["b", own, heads * size], np.float32).input(["b", own, heads * value], np.float32)
        case.maybe(0.5, [heads * (2 * size + value)], np.float32)
    mask_of(case, "s", keys, str(draw.choice(["none", "none", "ends", "keys", "queries"])))
    bias_of(case, heads, "s", keys)
    if form == "past":
        case.input(["b", heads, "p", size], np.float32).input(["b", heads, "p", value], np.float32)
    return case


def decoder_masked(draw):
    heads, size = int(draw.integers(1, 4)), int(draw.integers(1, 6))
    cross = draw.random() < 0.4
    attributes = {"num_heads": heads}
    if not cross:
        attributes["past_present_share_buffer"] = 1
    case = Contrib(draw, "DecoderMaskedMultiHeadAttention", 1 if cross else 3, **attributes)
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
    bias_of(case, heads, "one", ["p", "one"])
    case.input(["b", heads, "m", size], np.float32).input(["b", heads, "m", size], np.float32)
    case.shared = {"out1": case.inputs[-2][0], "out2": case.inputs[-1][0]}
    case.input([1], INT32, lambda _, z: np.array([z["p"]], INT32))
    if draw.random() < 0.5:
        case.missing().missing().input([3 * heads * size], np.float32)
    return case


def group_query(draw):
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
    case = Contrib(draw, "GroupQueryAttention", 3, **attributes)
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
            # written.
            padded = form.endswith("prompt") and "local_window_size" not in attributes
            least = min(2, most) if form.endswith("step") else 1 if padded else most
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


def windowed(draw):
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

    def total(_, z):
        most = np.array(ends(z).max(), INT32)
        drawn.clear()
        return most

    case.input([], INT32, total)
    if rotary:
        case.input([40, size // 2], dtype).input([40, size // 2], dtype)
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
