"""Writes ONNX's own backend test suite to files: NAME/model.onnx, NAME/test_data_set_0/{input,output}_N.pb.

Usage: python conformance/generate_cases.py DIR        (needs what fixtures/requirements.txt pins)

The `onnx` wheel carries the node cases as Python code; this gives them the form that the wheel's other cases have,
as onnx's own `backend-test-tools generate-data` does. Those others (`simple`, `pytorch-converted`, `pytorch-operator`)
are copied. The `light` models are those of fixtures/oracles/light.py, and the kind `real` has no models in the wheel, but
only their addresses.
"""

import pathlib
import shutil
import sys

import onnx
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.loader import DATA_DIR


def proto(value, info):
    """The protobuf of one input or output."""
    kind = info.type.WhichOneof("value")
    if kind == "sequence_type":
        return numpy_helper.from_list(value, info.name)
    if kind == "optional_type":
        return numpy_helper.from_optional(value, info.name)
    if kind == "map_type":
        return value if isinstance(value, onnx.MapProto) else numpy_helper.from_dict(value, info.name)
    return value if isinstance(value, onnx.TensorProto) else numpy_helper.from_array(value, info.name)


def write_case(home, model, data_sets):
    """Writes a model, and inputs and outputs of each of its data sets."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "model.onnx").write_bytes(model.SerializeToString(deterministic=True))
    for number, (inputs, outputs) in enumerate(data_sets):
        data = home / f"test_data_set_{number}"
        data.mkdir(exist_ok=True)
        for what, values, infos in (("input", inputs, model.graph.input), ("output", outputs, model.graph.output)):
            for index, (value, info) in enumerate(zip(values, infos)):
                (data / f"{what}_{index}.pb").write_bytes(proto(value, info).SerializeToString())


def copy_cases(root):
    """Copies the cases that the wheel has as files; returns how many there are."""
    kinds = ("simple", "pytorch-converted", "pytorch-operator")
    homes = [home for kind in kinds for home in sorted(pathlib.Path(DATA_DIR, kind).iterdir()) if home.is_dir()]
    for home in homes:
        shutil.copytree(home, root / home.name, dirs_exist_ok=True)
    return len(homes)


def main():
    root = pathlib.Path(sys.argv[1])
    cases = collect_testcases()
    for case in cases:
        write_case(root / case.name, case.model, case.data_sets)
    count = len(cases) + copy_cases(root)
    print(f"{count} cases in {root}")


if __name__ == "__main__":
    main()
