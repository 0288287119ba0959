"""A case of an op of ONNX Runtime's own, whose results ONNX Runtime computes."""

import numpy as np
import onnx
import onnxruntime
from generate_random_case import Case
from onnx import helper

HALF = np.float16
INT32, INT64 = np.int32, np.int64


def session(model, level=onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL, written=None):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 4
    # More threads share the rows of a DynamicQuantizeLSTM's state, and quantise each part by itself.
    options.intra_op_num_threads = 1
    if written:
        options.optimized_model_filepath = str(written)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


class Contrib(Case):
    """A node of ONNX Runtime's domain; `outputs` names those that are read, the others are empty."""

    def __init__(self, draw, op, outputs=1, domain="com.microsoft", opset=17, **attributes):
        super().__init__(draw, op, opset, 0, **attributes)
        self.domain = domain
        read = range(outputs) if isinstance(outputs, int) else outputs
        self.outputs = [f"out{i}" if i in read else "" for i in range(max(read) + 1)]
        # Outputs that are written into the memory of an input.
        self.shared = {}

    def results(self, inputs):
        read = self.read()
        # The dtypes of outputs are known after a first run of a model that does not state them.
        model = self.model([np.zeros(0, np.float32) for _ in read])
        del model.graph.output[:]
        for name in read:
            # Only this one's dtype does not follow from the operands.
            known = self.op in ("DecoderMaskedMultiHeadAttention", "MultiHeadAttention") and name == "out3"
            model.graph.output.append(
                helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) if known
                else onnx.ValueInfoProto(name=name)
            )
        if not self.shared:
            return session(model).run(read, inputs)
        run = session(model)
        binding = run.io_binding()
        values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(value.copy()) for name, value in inputs.items()}
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        for name in read:
            if name in self.shared:
                binding.bind_ortvalue_output(name, values[self.shared[name]])
            else:
                binding.bind_output(name)
        run.run_with_iobinding(binding)
        # The arrays are copied, since they may be views of memory that ends with the binding.
        return [value.numpy().copy() for value in binding.get_outputs()]

    def maybe(self, chance, dims, dtype, values=None):
        """An input that is there with some chance; says whether it is."""
        there = self.draw.random() < chance
        self.input(dims, dtype, values) if there else self.missing()
        return there


def floats(draw, doubles=True):
    return draw.choice([np.float32, np.float32, HALF] + ([np.float64] if doubles else []))


def ints_below(draw, most, dtype=INT32):
    return lambda shape, _: draw.integers(0, most, shape).astype(dtype)


def small(draw, dtype=np.float32, by=0.5):
    return lambda shape, _: (draw.standard_normal(shape) * by).astype(dtype)
