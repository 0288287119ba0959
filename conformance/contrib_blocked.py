"""Cases of the blocked layout of ONNX Runtime's optimizer."""

import pathlib
import tempfile

import numpy as np
import onnx
import onnxruntime
from contrib_case import session
from generate_cases import write_case
from onnx import helper, numpy_helper


class Blocked:
    """A model of plain convolutions and pooling as the optimizer's highest level writes it, in blocks of channels."""

    def __init__(self, draw):
        self.draw = draw
        self.nodes, self.constants = [], []

    def weights(self, *shape):
        name = f"w{len(self.constants)}"
        value = (self.draw.standard_normal(shape) * 0.3).astype(np.float32)
        self.constants.append(numpy_helper.from_array(value, name))
        return name

    def add(self, op, inputs, **attributes):
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def conv(self, x, inputs, outputs, group=1):
        kernel = int(self.draw.choice([1, 3]))
        pads = [kernel // 2] * 4
        w = self.weights(outputs, inputs // group, kernel, kernel)
        y = self.add("Conv", [x, w, self.weights(outputs)], kernel_shape=[kernel] * 2, pads=pads, group=group)
        kind = str(self.draw.choice(["none", "Relu", "Sigmoid", "LeakyRelu", "HardSigmoid"]))
        return y if kind == "none" else self.add(kind, [y])

    def write(self, root, name):
        draw = self.draw
        # Blocks have 8 or 16 channels, as wide as the vectors of the machine that the optimizer runs on. It leaves out what is no whole number
        # of blocks. Multiples of 16 give the same nodes on every machine, so that the number of cases of an op does not depend on it.
        # Without convolutions, nothing depends on how wide the blocks are.
        pools = draw.random() < 0.15
        channels = int(draw.choice([16, 32] if pools else [3, 3, 16, 32]))
        steps = ["pool", "average", "upsample"]
        if not pools:
            steps += ["conv", "conv", "depthwise", "grouped", "residual", "concat", "transpose"]
        x, width = "x", channels
        for _ in range(int(draw.integers(1, 4))):
            step = str(draw.choice(steps))
            if step == "conv" or width < 8:
                wider = int(draw.choice([16, 32, 48]))
                x, width = self.conv(x, width, wider), wider
            elif step == "depthwise":
                x = self.conv(x, width, width, width)
            elif step == "grouped" and width % 32 == 0:
                x = self.conv(x, width, width, 2)
            elif step == "residual":
                y = self.conv(x, width, width)
                x = self.add("Relu", [self.add("Add", [x, y])])
            elif step == "pool":
                x = self.add("MaxPool", [x], kernel_shape=[3, 3], pads=[1] * 4)
            elif step == "average":
                include = int(draw.integers(0, 2))
                x = self.add("AveragePool", [x], kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=include)
            elif step == "upsample":
                scales = self.weights(4)
                self.constants[-1] = numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), scales)
                x = self.add("Resize", [x, "", scales], mode="nearest", nearest_mode="floor",
                             coordinate_transformation_mode="asymmetric")
            elif step == "concat":
                y = self.conv(x, width, 16)
                x, width = self.add("Concat", [x, y], axis=1), width + 16
            else:
                x = self.conv(self.add("Relu", [x]), width, 32)
                width = 32
                x = self.add("Transpose", [self.add("Transpose", [x], perm=[0, 2, 3, 1])], perm=[0, 3, 1, 2])
        if width >= 16 and draw.random() < 0.3:
            x = self.add(str(draw.choice(["GlobalAveragePool", "GlobalMaxPool"])), [x])
        # The number of channels of the last convolution decides how wide the blocks are.
        if not pools:
            x = self.conv(x, width, int(draw.choice([8, 24, 40])))
        info = helper.make_tensor_value_info
        inputs = [info("x", onnx.TensorProto.FLOAT, ["b", channels, 7, 6])]
        results = [info(x, onnx.TensorProto.FLOAT, [None] * 4)]
        graph = helper.make_graph(self.nodes, "blocked", inputs, results, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
        plain = session(model)
        with tempfile.TemporaryDirectory() as scratch:
            written = pathlib.Path(scratch) / "model.onnx"
            session(model, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL, written)
            optimised = onnx.load(written)
        sets = []
        for batch in (1, 2):
            values = draw.standard_normal([batch, channels, 7, 6]).astype(np.float32)
            sets.append(([values], plain.run(None, {"x": values})))
        write_case(root / name, optimised, sets)
