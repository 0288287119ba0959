"""Models and inputs that the checks in this folder make for themselves."""

import os
import zipfile


def out_of_range(folder):
    """The inputs of the small transformer, with a word that its vocabulary does not have."""
    bad = os.path.join(folder, "bad.npz")
    with zipfile.ZipFile("fixtures/mini_transformer/test.npz") as good, zipfile.ZipFile(bad, "w") as to:
        for name in ("input_ids.npy", "attention_mask.npy"):
            array = good.read(name)
            if name == "input_ids.npy":
                array = array[:-8] + (1 << 40).to_bytes(8, "little")
            to.writestr(name, array)
    return bad


def unlike(folder):
    """The inputs of the model of digits, with an expected output that it does not have."""
    other = os.path.join(folder, "unlike.npz")
    with zipfile.ZipFile("fixtures/digits/test.npz") as good, zipfile.ZipFile(other, "w") as to:
        for name in good.namelist():
            to.writestr(name, good.read(name))
        to.writestr("expected/nothing.npy", good.read("expected/logits.npy"))
    return other


def varint(n):
    return bytes([n]) if n < 0x80 else bytes([n & 0x7F | 0x80]) + varint(n >> 7)


def message(*fields):
    """A message of protobuf: pairs of a field's number and its value, which is a number, text or bytes."""
    done = b""
    for field, value in fields:
        if isinstance(value, int):
            done += varint(field << 3) + varint(value)
        else:
            value = value.encode() if isinstance(value, str) else value
            done += varint(field << 3 | 2) + varint(len(value)) + value
    return done


def large_loop(folder, tables=4, rows=24576, width=1024):
    """A model of one loop that adds a row of each table, of 96 MiB, which is made of a few bytes."""

    def value(name, dtype, *dims):
        shape = message(*[(1, message((1, dim))) for dim in dims])
        return message((1, name), (2, message((1, message((1, dtype), (2, shape))))))

    def weight(name, dtype, values, *dims):
        return message(*[(1, dim) for dim in dims], (2, dtype), (8, name), (9, values))

    def node(op, inputs, output, *attributes):
        given, named = [(1, name) for name in inputs], [(2, output), (3, output), (4, op)]
        return message(*given, *named, *[(5, attribute) for attribute in attributes])

    f32, i64, truth = 1, 7, 9
    weights = [weight("times", i64, rows.to_bytes(8, "little") + (1).to_bytes(8, "little"), 2)]
    outer, inner, x = [], [node("Identity", ["going"], "goes")], "x"
    for i in range(tables):
        weights.append(weight(f"row{i}", f32, bytes([i, 0, 0, 1]) * width, 1, width))
        outer.append(node("Tile", [f"row{i}", "times"], f"table{i}"))
        inner += [node("Gather", [f"table{i}", "i"], f"found{i}"), node("Add", [x, f"found{i}"], f"sum{i}")]
        x = f"sum{i}"
    body = message(
        *[(1, n) for n in inner], (2, "body"), (11, value("i", i64)), (11, value("going", truth)), (11, value("x", f32, width)),
        (12, value("goes", truth)), (12, value(x, f32, width)))  # fmt: skip
    outer.append(node("Loop", ["count", "", "start"], "y", message((1, "body"), (6, body), (20, 5))))
    graph = message(
        *[(1, n) for n in outer], (2, "loop"), *[(5, w) for w in weights], (11, value("count", i64)),
        (11, value("start", f32, width)), (12, value("y", f32, width)))  # fmt: skip
    model = os.path.join(folder, "loop.onnx")
    with open(model, "wb") as file:
        file.write(message((1, 8), (7, graph), (8, message((1, ""), (2, 17)))))
    return model


def long_product(folder, side=3072):
    """The arguments of a run of one node, `square`, that takes a second or more: the square of a matrix of zeros."""
    model, x = os.path.join(folder, "square.onnx"), os.path.join(folder, "x.npy")
    dims = message(*[(1, message((1, side)))] * 2)
    square = message((1, message((1, 1), (2, dims))))
    node = message((1, "x"), (1, "x"), (2, "y"), (3, "square"), (4, "MatMul"))
    graph = message((1, node), (2, "squares"), (11, message((1, "x"), (2, square))), (12, message((1, "y"), (2, square))))
    with open(model, "wb") as file:
        file.write(message((1, 8), (7, graph), (8, message((1, ""), (2, 17)))))
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({side}, {side}), }}".ljust(117) + "\n"
    with open(x, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode() + bytes(side * side * 4))
    return [model, "--input", f"x={x}"]
