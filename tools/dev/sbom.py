#!/usr/bin/env python3
"""Prints what a build of narrow contains from others, as CycloneDX JSON: what is compiled in, and what the command links to.

Versions are those of the headers and libraries of this machine.
"""
import hashlib
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Library, licence, the Debian package that holds it, and whether it is compiled in or linked.
PARTS = [("nlohmann-json", "MIT", "nlohmann-json3-dev", "headers"), ("fmt", "MIT", "libfmt-dev", "headers"), ("xxHash", "BSD-2-Clause",
         "libxxhash-dev", "headers"),
         ("Eigen", "MPL-2.0", "libeigen3-dev", "headers"), ("CLI11", "BSD-3-Clause", "libcli11-dev", "headers"), ("yaml-cpp", "MIT",
         "libyaml-cpp-dev", "linked"),
         ("libgomp", "GPL-3.0-or-later WITH GCC-exception-3.1", "libgomp1", "linked"), ("libstdc++",
         "GPL-3.0-or-later WITH GCC-exception-3.1", "libstdc++6", "linked")]


def version_of(package):
    found = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True)
    return found.stdout if found.returncode == 0 else "unknown"


def main():
    project = re.search(r"project\(narrow VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
    components = [{"type": "library", "name": name, "version": version_of(package), "licenses": [{"expression": licence}],
                   "properties": [{"name": "narrow:use", "value": use}, {"name": "narrow:package", "value": package}]} for name, licence,
                   package, use in PARTS]
    program = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else None
    top = {"type": "application", "name": "narrow", "version": project,
           "licenses": [{"license": {"name": (ROOT / "LICENSE").read_text().strip().split("\n")[0].strip()}}]}
    if program:
        top["hashes"] = [{"alg": "SHA-256", "content": hashlib.sha256(program.read_bytes()).hexdigest()}]
    print(json.dumps({"bomFormat": "CycloneDX", "specVersion": "1.5", "metadata": {"component": top}, "components": components}, indent=1))


if __name__ == "__main__":
    main()
