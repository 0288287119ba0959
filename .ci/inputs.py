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
