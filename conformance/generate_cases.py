"""Writes ONNX's own node test cases to files: NAME/model.onnx, NAME/test_data_set_0/{input,output}_N.pb.

Usage: python conformance/generate_cases.py DIR        (needs what fixtures/requirements.txt pins)

The `onnx` wheel carries the cases as Python code and the data of its model tests as files; this turns the former
into the form of the latter, as onnx's own `backend-test-tools generate-data` does for model tests.
"""

import pathlib
import sys

import onnx
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases


def proto(value, info):
    """The protobuf of one input or output."""
    kind = info.type.WhichOneof("value")
    if kind == "sequence_type":
        return numpy_helper.from_list(value, info.name)
    if kind == "optional_type":
        return numpy_helper.from_optional(value, info.name)
    if kind == "map_type":
        return numpy_helper.from_dict(value, info.name)
    return value if isinstance(value, onnx.TensorProto) else numpy_helper.from_array(value, info.name)


def main():
    root = pathlib.Path(sys.argv[1])
    cases = collect_testcases()
    for case in cases:
        home = root / case.name
        home.mkdir(parents=True, exist_ok=True)
        (home / "model.onnx").write_bytes(case.model.SerializeToString(deterministic=True))
        for number, (inputs, outputs) in enumerate(case.data_sets):
            data = home / f"test_data_set_{number}"
            data.mkdir(exist_ok=True)
            graph = case.model.graph
            for what, values, infos in (("input", inputs, graph.input), ("output", outputs, graph.output)):
                for index, (value, info) in enumerate(zip(values, infos)):
                    (data / f"{what}_{index}.pb").write_bytes(proto(value, info).SerializeToString())
    print(f"{len(cases)} cases in {root}")


if __name__ == "__main__":
    main()
