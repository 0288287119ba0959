"""Cases of ops that ONNX Runtime has no kernel of for the CPU: it computes the nodes that such an op stands for."""

import numpy as np
import onnx
from contrib_case import Contrib, session
from onnx import helper

MICROSOFT = "com.microsoft"


class Composed(Contrib):
    """A node whose result is that of `parts`, nodes from its operands `in0`, `in1`, ... to `out0`."""

    parts = ()

    def results(self, inputs):
        model = self.model()
        del model.graph.node[:]
        model.graph.node.extend(self.parts)
        del model.graph.output[:]
        model.graph.output.append(onnx.ValueInfoProto(name="out0"))
        return session(model).run(None, inputs)


def bias_split_gelu(draw):
    half = int(draw.integers(1, 9))
    case = Composed(draw, "BiasSplitGelu").symbol("b", 1, 3).symbol("s", 1, 5)
    case.input(["b", "s", 2 * half], np.float32).input([2 * half], np.float32)
    node = helper.make_node
    case.parts = [
        node("Add", ["in0", "in1"], ["sum"]),
        node("Split", ["sum"], ["left", "right"], axis=-1),
        node("Gelu", ["right"], ["gate"], domain=MICROSOFT),
        node("Mul", ["left", "gate"], ["out0"]),
    ]
    return case


def nhwc_conv(draw):
    """A convolution whose operand and result have the channels last: the weights as well, or a residual and an activation."""
    fused = draw.random() < 0.5
    group = int(draw.choice([1, 1, 2, 3]))
    inputs, outputs = group * int(draw.integers(1, 4)), group * int(draw.integers(1, 4))
    kernel = [int(k) for k in draw.integers(1, 4, 2)]
    attributes = {"kernel_shape": kernel, "group": group, "dilations": [int(d) for d in draw.integers(1, 3, 2)],
                  "strides": [int(s) for s in draw.integers(1, 3, 2)], "pads": [int(p) for p in draw.integers(0, 3, 4)]}
    activation = {"activation": "Relu"} if fused and draw.random() < 0.7 else {}
    residual = fused and draw.random() < 0.5
    if residual:
        attributes |= {"strides": [1, 1], "dilations": [1, 1], "pads": [(k - 1) // 2 for k in kernel] + [k // 2 for k in kernel]}
    case = Composed(draw, "NhwcFusedConv" if fused else "NhwcConv", **attributes, **activation)
    case.symbol("b", 1, 3).symbol("h", 5, 9).symbol("w", 5, 9)
    channels = inputs // group
    case.input(["b", "h", "w", inputs], np.float32)
    case.input([outputs, channels, *kernel] if fused else [outputs, *kernel, channels], np.float32)
    bias = case.maybe(0.6, [outputs], np.float32)
    if residual:
        case.input(["b", "h", "w", outputs], np.float32)
    elif not bias:
        case.names.pop()
    node = helper.make_node
    case.parts = [
        node("Transpose", ["in0"], ["first"], perm=[0, 3, 1, 2]),
        node("Identity", ["in1"], ["weights"]) if fused else node("Transpose", ["in1"], ["weights"], perm=[0, 3, 1, 2]),
        node("Conv", ["first", "weights"] + ["in2"] * bias, ["sums"], **attributes),
        node("Transpose", ["sums"], ["last"], perm=[0, 2, 3, 1]),
        node("Add", ["last", "in3"], ["whole"]) if residual else node("Identity", ["last"], ["whole"]),
        node("Relu" if activation else "Identity", ["whole"], ["out0"]),
    ]
    return case


def layer_norm(draw):
    """LayerNormalization of operator sets that do not have it, as ONNX Runtime's optimiser writes it into models of these."""
    rank = int(draw.integers(1, 4))
    axis = int(draw.integers(-rank, rank))
    dims = [int(d) for d in draw.integers(1, 6, rank)]
    outputs = 3 if draw.random() < 0.3 else 1
    dtype = np.float32 if outputs == 3 else draw.choice([np.float32, np.float32, np.float64])
    epsilon = float(draw.choice([1e-12, 1e-5, 1e-3]))
    case = Contrib(draw, "LayerNormalization", outputs, domain="", opset=int(draw.choice([7, 11, 13, 16])), axis=axis, epsilon=epsilon)
    case.symbol("n", 1, 6)
    if axis % rank > 0:
        dims[0] = "n"
    case.input(dims, dtype).input(dims[axis:], dtype)
    return case.input(dims[axis:], dtype) if draw.random() < 0.7 else case


FAMILIES = {"bias_split_gelu": (bias_split_gelu, 8), "nhwc_conv": (nhwc_conv, 30), "layer_norm": (layer_norm, 25)}
