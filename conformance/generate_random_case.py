"""A case of one node that other generators fill with random shapes and attributes."""

import numpy as np
import onnxruntime
from generate_cases import write_case
from onnx import ValueInfoProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator


class Case:
    """A node, its constant operands, and inputs with symbolic dimensions whose sizes each data set draws anew."""

    domain, domain_opset = "", 1

    def __init__(self, draw, op, opset, outputs=1, **attributes):
        self.draw, self.op, self.opset, self.attributes = draw, op, opset, attributes
        self.outputs = [f"out{i}" for i in range(outputs)]
        self.names, self.inputs, self.constants, self.symbols = [], [], [], {}
        # Whether ONNX Runtime computes the results, where onnx's reference is known to be wrong.
        self.by_runtime = False
        # Outputs that the node must have, but whose values are not specified.
        self.unread = set()

    def read(self):
        """The names of the outputs that are results."""
        return [name for name in self.outputs if name and name not in self.unread]

    def input(self, dims, dtype, values=None):
        """An input whose dimensions are sizes or names of symbols; `values` makes it of its shape."""
        name = f"in{len(self.names)}"
        self.names.append(name)
        self.inputs.append((name, dims, np.dtype(dtype), values))
        return self

    def constant(self, value):
        name = f"in{len(self.names)}"
        self.names.append(name)
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return self

    def missing(self):
        self.names.append("")
        return self

    def symbol(self, name, least, most):
        self.symbols[name] = (least, most)
        return self

    def model(self, outputs=None):
        """The model, whose outputs have the types of these; without them, none."""
        node = helper.make_node(self.op, self.names, self.outputs, domain=self.domain, **self.attributes)
        info = helper.make_tensor_value_info
        inputs = [info(name, helper.np_dtype_to_tensor_dtype(dtype), dims) for name, dims, dtype, _ in self.inputs]
        if outputs is None:
            results = [ValueInfoProto(name=name) for name in self.read()]
        else:
            results = [
                info(name, helper.np_dtype_to_tensor_dtype(value.dtype), [None] * value.ndim)
                for name, value in zip(self.read(), outputs)
            ]
        graph = helper.make_graph([node], "random", inputs, results, self.constants)
        opsets = [helper.make_opsetid("", self.opset)]
        if self.domain:
            opsets.append(helper.make_opsetid(self.domain, self.domain_opset))
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def data(self):
        sizes = {name: int(self.draw.integers(least, most + 1)) for name, (least, most) in self.symbols.items()}
        values = []
        for _, dims, dtype, make in self.inputs:
            shape = [sizes.get(dim, dim) for dim in dims]
            values.append(make(shape, sizes) if make else self.draw.standard_normal(shape).astype(dtype))
        return values

    def results(self, inputs):
        """The outputs on inputs by name."""
        model = self.model()
        if self.by_runtime:
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 4
            return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, inputs)
        return ReferenceEvaluator(model).run(None, inputs)

    def write(self, root, name):
        sets = []
        for _ in range(2):
            inputs = self.data()
            outputs = self.results({n: v for (n, *_), v in zip(self.inputs, inputs)})
            sets.append((inputs, [np.asarray(o) for o in outputs]))
        write_case(root / name, self.model(sets[0][1]), sets)
