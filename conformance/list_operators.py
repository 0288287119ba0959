"""Writes the operators of the installed `onnx` package: conformance/operators.tsv.

Usage: python conformance/list_operators.py > conformance/operators.tsv

The first line is the version of the package. Each other line is an operator: its domain (`ai.onnx` is ONNX's own), its name,
and the versions of the operator set in which its definition changed, without those that only withdraw it.
"""

import collections

import onnx


def main():
    versions = collections.defaultdict(list)
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.deprecated:
            versions[(schema.domain or "ai.onnx", schema.name)].append(schema.since_version)
    print(onnx.__version__)
    for (domain, name), since in sorted(versions.items()):
        print(domain, name, ",".join(map(str, sorted(since))), sep="\t")


if __name__ == "__main__":
    main()
