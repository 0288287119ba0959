"""Cases of ONNX Runtime's recurrent layer, whose weights are codes."""

import numpy as np
from contrib_case import INT32, Contrib, small


def dynamic_lstm(draw):
    steps, rows, width, hidden = (int(d) for d in draw.integers(1, 6, 4))
    direction = str(draw.choice(["forward", "reverse", "bidirectional"]))
    directions, dtype = 1 + (direction == "bidirectional"), draw.choice([np.int8, np.uint8])
    by_column, low = draw.random() < 0.5, -64 if dtype == np.int8 else 64
    columns = [4 * hidden] if by_column else []
    case = Contrib(draw, "DynamicQuantizeLSTM", 3, direction=direction, hidden_size=hidden)
    case.symbol("n", 1, steps).input(["n", rows, width], np.float32)
    for inner in (width, hidden):
        case.constant(draw.integers(low, low + 128, [directions, inner, 4 * hidden]).astype(dtype))
    for dims in ([directions, 8 * hidden], None, [directions, rows, hidden], [directions, rows, hidden], None):
        case.maybe(0.6, dims, np.float32, small(draw)) if dims else case.missing()
    for _ in range(2):
        case.constant(draw.uniform(0.005, 0.02, [directions, *columns]).astype(np.float32))
        case.constant(np.full([directions, *columns], low + 64, dtype))
    return case


CELL_ACTIVATIONS = ["Affine", "Elu", "HardSigmoid", "LeakyRelu", "Relu", "ScaledTanh", "Sigmoid", "Softplus", "Softsign",
                    "Tanh", "ThresholdedRelu"]
# Those with a parameter alpha, or beta.
WITH_ALPHA = {"Affine", "Elu", "HardSigmoid", "LeakyRelu", "ScaledTanh", "ThresholdedRelu"}
WITH_BETA = {"Affine", "HardSigmoid", "ScaledTanh"}


def dynamic_lstm_forms(draw):
    """DynamicQuantizeLSTM with sequences of their own lengths, peepholes, bounds and other activations."""
    steps, rows, width, hidden = (int(d) for d in draw.integers(1, 6, 4))
    direction = str(draw.choice(["forward", "reverse", "bidirectional"]))
    directions = 1 + (direction == "bidirectional")
    attributes = {"direction": direction, "hidden_size": hidden, "input_forget": int(draw.integers(0, 2))}
    if draw.random() < 0.5:
        attributes["clip"] = float(np.float32(draw.uniform(0.2, 1)))
    if draw.random() < 0.5:
        # Gates that are not bounded would let the state grow at each step.
        gates, others = ["HardSigmoid", "Sigmoid", "Softsign"], CELL_ACTIVATIONS
        names = [str(name) for _ in range(directions) for name in (draw.choice(gates), *draw.choice(others, 2))]
        attributes["activations"] = names
        for parameter, among in (("alpha", WITH_ALPHA), ("beta", WITH_BETA)):
            values = [float(np.float32(draw.uniform(0.1, 0.5))) for name in names if name in among]
            if values:
                attributes[f"activation_{parameter}"] = values
    outputs = 3 if draw.random() < 0.6 else [1, 2]
    case = Contrib(draw, "DynamicQuantizeLSTM", outputs, **attributes)
    case.symbol("n", steps, steps + 2).input(["n", rows, width], np.float32)
    for inner in (width, hidden):
        case.constant(draw.integers(-64, 64, [directions, inner, 4 * hidden]).astype(np.int8))
    case.maybe(0.6, [directions, 8 * hidden], np.float32, small(draw))
    case.maybe(0.7, [rows], INT32, lambda shape, z: draw.integers(1, z["n"] + 1, shape).astype(INT32))
    for _ in range(2):
        case.maybe(0.6, [directions, rows, hidden], np.float32, small(draw))
    if draw.random() < 0.5:
        case.constant(draw.standard_normal([directions, 3 * hidden]).astype(np.float32))
    else:
        case.missing()
    for _ in range(2):
        case.constant(draw.uniform(0.005, 0.02, [directions]).astype(np.float32))
        case.constant(np.zeros([directions], np.int8))
    return case


FAMILIES = {"dynamic_lstm": (dynamic_lstm, 20), "dynamic_lstm_forms": (dynamic_lstm_forms, 60)}
