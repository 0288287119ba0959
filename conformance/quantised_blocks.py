"""Cases of weights that are quantised in blocks."""

import numpy as np
from onnx import TensorProto, numpy_helper
from quantised_case import MS, Node, chance, codes, pick, scale, shape


def n_bits(draw):
    bits = pick(draw, [4, 4, 8, 2])
    block = pick(draw, [16, 32, 64])
    k, n = int(draw.integers(1, 200)), int(draw.integers(1, 40))
    blocks = -(-k // block)
    node = Node("MatMulNBits", MS, K=k, N=n, bits=bits, block_size=block)
    node.input(draw.standard_normal([*shape(draw, 1, 2, 5), k]).astype(np.float32))
    node.constant(codes(draw, [n, blocks, block * bits // 8], np.uint8)).constant(scale(draw, (n * blocks,)))
    kind = pick(draw, ["none", "packed", "numbers"])
    if kind == "packed":
        node.constant(codes(draw, [n * -(-blocks * bits // 8)], np.uint8))
    elif kind == "numbers":
        node.constant(draw.uniform(0, 2**bits - 1, n * blocks).astype(np.float32))
    else:
        node.missing()
    if bits != 2 and kind != "packed" and draw.random() < 0.3:
        # The block of each row, in any order. What would fill the last block may be there too. Packed zero points are left out,
        # since ONNX Runtime's kernel for CPUs ignores them here, against its documentation. It reads 2 bits wrongly.
        order = draw.permutation(np.arange(k) // block)
        filled = np.zeros(-k % block if chance(draw) else 0)
        node.constant(np.concatenate([order, filled]).astype(np.int32))
    else:
        node.missing()
    if chance(draw):
        node.constant(draw.standard_normal(n).astype(np.float32))
    return node


class TwoBits(Node):
    """A node whose codes of 2 bits ONNX Runtime is given as codes of 4 bits."""

    def results(self):
        wider = Node(self.op, self.domain, self.opset, **(self.attributes | {"bits": 4}))
        wider.names, wider.inputs, wider.constants = self.names, self.inputs, list(self.constants)
        packed = numpy_helper.to_array(self.constants[0])
        codes = ((packed[..., None] >> np.arange(0, 8, 2)) & 3).reshape(*packed.shape[:-1], -1)
        codes = (codes[..., 0::2] | codes[..., 1::2] << 4).astype(np.uint8)
        wider.constants[0] = numpy_helper.from_array(codes, self.constants[0].name)
        return Node.results(wider)


def two_bits(draw):
    """MatMulNBits of 2 bits with the block of each row, which ONNX Runtime's own kernel reads wrongly."""
    block = pick(draw, [16, 32, 64])
    k, n = int(draw.integers(1, 200)), int(draw.integers(1, 40))
    blocks = -(-k // block)
    node = TwoBits("MatMulNBits", MS, K=k, N=n, bits=2, block_size=block)
    node.input(draw.standard_normal([*shape(draw, 1, 2, 5), k]).astype(np.float32))
    node.constant(codes(draw, [n, blocks, block // 4], np.uint8)).constant(scale(draw, (n * blocks,)))
    node.constant(draw.uniform(0, 3, n * blocks).astype(np.float32))
    return node.constant(draw.permutation(np.arange(k) // block).astype(np.int32))


def bitsandbytes(draw):
    k, n, block = int(draw.integers(1, 60)), int(draw.integers(1, 20)), pick(draw, [16, 32, 64])
    node = Node("MatMulBnb4", MS, K=k, N=n, block_size=block, quant_type=int(chance(draw)))
    node.input(draw.standard_normal([*shape(draw, 1, 2, 5), k]).astype(np.float32))
    return node.constant(codes(draw, [-(-n * k // 2)], np.uint8)).constant(scale(draw, (-(-n * k // block),)))


def gather_blocks(draw):
    rows, columns = int(draw.integers(2, 9)), 32 * int(draw.integers(1, 4))
    block = pick(draw, [16, 32])
    kind = pick(draw, ["u8x2", "u8x4", "u8x8", "int4", "uint4"])
    blocks = -(-columns // block)
    indices = draw.integers(0, rows, shape(draw, 1, 2, 4)).astype(pick(draw, [np.int32, np.int64]))
    bits = int(kind[-1])
    node = Node("GatherBlockQuantized", MS, block_size=block, gather_axis=0, quantize_axis=1, bits=bits)
    zeros = chance(draw)
    if kind.startswith("u8"):
        node.constant(codes(draw, [rows, columns * bits // 8], np.uint8)).input(indices)
        node.constant(scale(draw, (rows, blocks)))
        if zeros:
            node.constant(codes(draw, [rows, -(-blocks * bits // 8)], np.uint8))
        return node
    signed = kind == "int4"
    dtype, low = (TensorProto.INT4, -8) if signed else (TensorProto.UINT4, 0)
    node.constant(draw.integers(low, low + 16, [rows, columns]), dtype).input(indices)
    node.constant(scale(draw, (rows, blocks)))
    if zeros:
        node.constant(draw.integers(low, low + 16, [rows, blocks]), dtype)
    return node


FLOATS = [TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E5M2FNUZ,
          TensorProto.FLOAT4E2M1]


def gather_floats(draw):
    """GatherBlockQuantized of floats of few bits, whose scales may be fewer than there are rows or blocks."""
    rows, columns, axis = int(draw.integers(2, 9)), 32 * int(draw.integers(1, 4)), int(draw.integers(0, 2))
    block = pick(draw, [0, 16, 32])
    dims = [columns, rows] if axis == 0 else [rows, columns]
    of_scales = list(dims)
    of_scales[axis] = -(-columns // block) if block else 1
    if chance(draw, 0.3):
        of_scales[1 - axis] = 1
    gather = int(draw.integers(0, 2))
    indices = draw.integers(-dims[gather], dims[gather], shape(draw, 1, 2, 4)).astype(pick(draw, [np.int32, np.int64]))
    node = Node("GatherBlockQuantized", MS, block_size=block, gather_axis=gather, quantize_axis=axis)
    node.constant(draw.standard_normal(dims), pick(draw, FLOATS)).input(indices)
    return node.constant(scale(draw, tuple(of_scales)).astype(pick(draw, [np.float32, np.float16])))
