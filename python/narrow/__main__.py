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
    arguments = ["narrow", *sys.argv[1:]]
    if "--cluster" in arguments and "--python" not in arguments:
        arguments += ["--python", sys.executable]  # the one that has this package
    os.execv(program, arguments)


if __name__ == "__main__":
    main()
