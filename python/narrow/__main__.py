"""The command `narrow`: the program that lies in this package, with these arguments; `narrow onnx` is Python's own."""

import os
import pathlib
import sys


def main() -> None:
    if sys.argv[1:2] == ["onnx"]:
        from .onnx.__main__ import main as onnx_main

        sys.exit(onnx_main(sys.argv[2:]))
    program = pathlib.Path(__file__).parent / "bin" / "narrow"
    if not program.exists():
        sys.exit("narrow: this build of the package has no command; build it with NARROW_BUILD_TOOLS=ON")
    os.execv(program, ["narrow", *sys.argv[1:]])


if __name__ == "__main__":
    main()
