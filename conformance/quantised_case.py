"""A case of an op on quantised numbers, whose results ONNX Runtime computes."""

import numpy as np
import onnxruntime as ort
from generate_cases import write_case
from onnx import helper, numpy_helper

MS = "com.microsoft"


class Node:
    """A node with constant operands and inputs; ONNX Runtime runs it."""

    def __init__(self, op, domain="", opset=21, outputs=1, **attributes):
        self.op, self.domain, self.opset = op, domain, opset
        self.outputs = [f"out{i}" for i in range(outputs)]
        self.attributes = {k: v for k, v in attributes.items() if v is not None}
        self.names, self.inputs, self.constants = [], [], []

    def input(self, value):
        self.names.append(f"in{len(self.names)}")
        self.inputs.append((self.names[-1], np.asarray(value)))
        return self

    def constant(self, value, dtype=None):
        self.names.append(f"in{len(self.names)}")
        value = np.asarray(value)
        tensor = numpy_helper.from_array(value, self.names[-1])
        if dtype is not None:
            packed = helper.make_tensor(self.names[-1], dtype, value.shape, value.flatten().tolist())
            tensor = packed
        self.constants.append(tensor)
        return self

    def missing(self):
        self.names.append("")
        return self

    def model(self, results=None):
        node = helper.make_node(self.op, self.names, self.outputs, domain=self.domain, **self.attributes)
        info = helper.make_tensor_value_info
        inputs = [info(n, helper.np_dtype_to_tensor_dtype(v.dtype), list(v.shape)) for n, v in self.inputs]
        if results is None:
            outs = [helper.make_empty_tensor_value_info(n) for n in self.outputs]
        else:
            outs = [
                info(n, helper.np_dtype_to_tensor_dtype(v.dtype), [None] * v.ndim) for n, v in zip(self.outputs, results)
            ]
        graph = helper.make_graph([node], "quantised", inputs, outs, self.constants)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid(MS, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def results(self):
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        session = ort.InferenceSession(self.model().SerializeToString(), options, providers=["CPUExecutionProvider"])
        return session.run(self.outputs, dict(self.inputs))

    def write(self, root, name):
        results = self.results()
        write_case(root / name, self.model(results), [([v for _, v in self.inputs], results)])


def codes(draw, shape, dtype):
    info = np.iinfo(dtype)
    return draw.integers(info.min, info.max + 1, shape).astype(dtype)


def weights(draw, shape, dtype, beside):
    """Codes of the right operand of a product, whose left operand has the dtype `beside`.

    Beside u8, codes of i8 have half of their range: ONNX Runtime adds pairs of products in i16 on processors without VNNI,
    and such a sum of any two codes may be beyond i16.
    """
    if beside == np.uint8 and dtype == np.int8:
        return draw.integers(-64, 64, shape).astype(dtype)
    return codes(draw, shape, dtype)


def scale(draw, shape=()):
    return np.asarray(draw.uniform(0.01, 0.2, shape), np.float32)


def shape(draw, least, most, size=9):
    return [int(d) for d in draw.integers(1, size, draw.integers(least, most + 1))]


BYTES = [np.uint8, np.int8]


def pick(draw, options):
    return options[int(draw.integers(len(options)))]


def chance(draw, p=0.5):
    return bool(draw.random() < p)


def granular(draw, dims):
    """The shape of scales for a tensor of these dimensions, and the attributes of it."""
    kind = pick(draw, ["tensor", "axis", "blocks"])
    axis = int(draw.integers(len(dims)))
    if kind == "tensor":
        return (), {}
    if kind == "axis":
        return (dims[axis],), {"axis": axis - (len(dims) if chance(draw) else 0)}
    size = int(draw.integers(1, dims[axis] + 1))
    blocks = list(dims)
    blocks[axis] = -(-dims[axis] // size)
    return tuple(blocks), {"axis": axis, "block_size": size}
