"""What `narrow quantize --cluster` hands over to: the request comes as JSON on standard input, the answer goes to standard output."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

from ..errors import CorruptFile, CudaError, Error, InvalidArgument, IoError, Unsupported

#: the exit codes of the command
_EXIT_CODES = {InvalidArgument: 2, CorruptFile: 3, IoError: 4, Unsupported: 5, CudaError: 5}


def _answer(request: dict[str, Any], report: dict[str, Any]) -> str:
    if request["json"]:
        number = lambda value: None if isinstance(value, float) and not math.isfinite(value) else value  # noqa: E731
        tensors = [{"name": name, **{key: number(value) for key, value in fields.items()}} for name, fields in report["tensors"].items()]
        fields = {key: number(value) for key, value in report.items() if key != "tensors"}
        asked = {key: request[key] for key in ("input", "output", "method")}
        return json.dumps({**asked, **fields, "tensors": tensors})
    ratio = report["bytes_before"] / max(1, report["bytes_after"])
    return (
        f"{request['output']}  {len(report['tensors'])} tensors at {report['bits_per_weight']:.3f} bits per weight, "
        f"SQNR {report['sqnr_db']:.2f} dB\n"
        f"{report['bytes_before'] / 1e9:.3f} GB -> {report['bytes_after'] / 1e9:.3f} GB ({ratio:.2f} times smaller), written and "
        f"verified in {report['seconds']:.1f} s by {report['workers']} workers, {report['lost']} lost, {report['duplicates']} doubled"
    )


def main() -> int:
    from . import connect, quantize_checkpoint

    request = json.load(sys.stdin)
    try:
        with connect(request["cluster"], request["cpus"]) as cluster:
            report = quantize_checkpoint(
                request["input"],
                request["output"],
                cluster=cluster,
                recipe=request["recipe"],
                method=request["method"],
                act_order=request["act_order"],
                damping=request["damping"],
                windows=request["windows"],
            )
    except Error as error:
        print(f"narrow: {error}", file=sys.stderr)
        return next(code for kind, code in _EXIT_CODES.items() if isinstance(error, kind))
    except KeyboardInterrupt:
        print("narrow: interrupted; nothing was left behind", file=sys.stderr)
        return 130
    if request["json"] or not request["quiet"]:
        print(_answer(request, report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
