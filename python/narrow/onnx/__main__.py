"""narrow onnx quantize | lint | compare | export: the ONNX side from a shell."""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import sys
from collections.abc import Iterator

import numpy as np

from ..errors import CorruptFile, CudaError, Error, InvalidArgument, Unsupported

PLACES = {
    "input": "an ONNX file; of export, a Hugging Face directory",
    "output": "the ONNX file to write",
    "quantized": "the ONNX file that was quantized",
}
EXAMPLES = """examples:
  narrow onnx export model/ model.onnx
  narrow onnx quantize model.onnx int8.onnx --data one.npz two.npz
  narrow onnx lint int8.onnx --target tensorrt
  narrow onnx compare model.onnx int8.onnx --data one.npz --html errors.html

An .npz file is one example: arrays by the names of the graph's inputs (numpy.savez). Exit codes are those of `narrow --help`."""


def _read_examples(paths: list[str]) -> Iterator[dict[str, np.ndarray]]:
    """Each .npz file is one example: arrays by the names of the graph's inputs."""
    for path in paths:
        with np.load(path, allow_pickle=False) as arrays:
            if not isinstance(arrays, np.lib.npyio.NpzFile):
                raise InvalidArgument(f"{path} is no .npz file with the graph's inputs by name")
            yield dict(arrays)


def _quantize(arguments: argparse.Namespace) -> int:
    from . import QuantizeConfig, quantize

    config = QuantizeConfig(
        weights=arguments.weights,
        activations=None if arguments.activations == "none" else arguments.activations,
        ranges=arguments.range,
        target=arguments.target,
        n_bits=arguments.n_bits,
        ignore=tuple(arguments.ignore),
    )
    model = quantize(arguments.input, config, _read_examples(arguments.data), arguments.output)
    counts = {
        kind: sum(node.op_type == kind for node in model.graph.node) for kind in ("QuantizeLinear", "DequantizeLinear", "MatMulNBits")
    }
    print(
        json.dumps({"output": arguments.output, **counts})
        if arguments.json
        else f"{arguments.output}: " + ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    )
    return 0


def _lint(arguments: argparse.Namespace) -> int:
    from . import lint

    findings = lint(arguments.input, arguments.target)
    if arguments.json:
        print(json.dumps({"target": arguments.target, "findings": [vars(finding) for finding in findings]}))
    else:
        for finding in findings:
            print(finding)
        print(f"{arguments.input}: {len(findings)} findings for {arguments.target}")
    return 1 if any(finding.severity == "error" for finding in findings) else 0


def _compare(arguments: argparse.Namespace) -> int:
    from . import compare, write_report

    errors = compare(arguments.input, arguments.quantized, _read_examples(arguments.data))
    if arguments.html:
        write_report(arguments.html, errors, f"{pathlib.Path(arguments.quantized).name} beside {pathlib.Path(arguments.input).name}")
    if arguments.json:  # JSON has no infinities
        number = lambda value: value if math.isfinite(value) else None  # noqa: E731
        print(json.dumps({"tensors": [vars(error) | {"sqnr_db": number(error.sqnr_db)} for error in errors]}))
    else:
        for error in errors[: arguments.worst]:
            print(f"{error.sqnr_db:8.2f} dB  {error.operator:20} {error.tensor}")
    return 0


def _export(arguments: argparse.Namespace) -> int:
    from . import export_causal_lm

    export_causal_lm(arguments.input, arguments.length, arguments.output)
    print(json.dumps({"output": arguments.output}) if arguments.json else arguments.output)
    return 0


def _exit_code(error: Exception) -> int:
    """As of the command: 2 wrong usage, 3 a file is not what it claims to be, 4 reading or writing failed, 5 not possible here."""
    if isinstance(error, CorruptFile):
        return 3
    if isinstance(error, (Unsupported, CudaError, ImportError)):
        return 5
    return 4 if isinstance(error, OSError) else 2


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "narrow onnx",
        description="Quantize ONNX graphs, check them for a runtime, compare them.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run, text: str, *places: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        for place in places:
            sub.add_argument(place, help=PLACES[place])
        sub.add_argument("--json", action="store_true", help="one JSON object")
        sub.set_defaults(run=run)
        return sub

    sub = command("quantize", _quantize, "Q/DQ into an fp32 graph", "input", "output")
    sub.add_argument("--weights", default="int8:row", help="int8:row, int8:tensor, fp8_e4m3:row, int4:block128, ...")
    sub.add_argument("--activations", default="int8:tensor", help="int8:tensor, fp8_e4m3:tensor, or none: weight-only")
    sub.add_argument("--range", default="minmax", help="minmax, average, percentile[=P], entropy or mse")
    sub.add_argument("--target", default="tensorrt", help="tensorrt or ort")
    sub.add_argument("--n-bits", action="store_true", help="MatMulNBits of onnxruntime for weight-only products")
    sub.add_argument("--ignore", nargs="*", default=[], help="nodes or weights to leave alone: names, or re:REGEX")
    sub.add_argument("--data", nargs="*", default=[], help=".npz files with example inputs by name")
    sub = command("lint", _lint, "What a runtime would refuse or run in float", "input")
    sub.add_argument("--target", default="tensorrt", help="tensorrt or ort")
    sub = command("compare", _compare, "Signal-to-noise ratio of every node, worst first", "input", "quantized")
    sub.add_argument("--data", nargs="+", required=True, help=".npz files with example inputs by name")
    sub.add_argument("--html", help="also write a page with every node's error here")
    sub.add_argument("--worst", type=int, default=20, help="how many to show")
    sub = command("export", _export, "A Hugging Face decoder as an fp32 graph", "input", "output")
    sub.add_argument("--length", type=int, default=512, help="tokens of the graph's input")
    arguments = parser.parse_args(argv)
    try:
        return arguments.run(arguments)
    except (Error, OSError, ValueError, ImportError) as error:
        known = isinstance(error, OSError) and error.filename is not None
        print(f"narrow onnx: {f'{error.filename}: {error.strerror}' if known else error}", file=sys.stderr)
        return _exit_code(error)


if __name__ == "__main__":
    sys.exit(main())
