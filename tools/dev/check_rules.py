#!/usr/bin/env python3
"""The rules of docs/architecture.md as a script: layers, where intrinsics and CUDA may stand, what the library never does.

Prints one line per violation and exits 1 if there is one.
"""
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

LAYERS = {"format": 1, "device": 1, "tensor": 2, "kernels": 3, "dispatch": 4, "ops": 5, "calibrate": 6, "io": 6, "methods": 7, "model": 7,
          "report": 8, "c_api": 9}
C_HEADERS = {"stddef.h", "stdint.h"}  # what the interface in C may include
SOURCE = {".h", ".cc", ".cu", ".cuh", ".inl"}
LONGEST_FILE = 600

INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^">]+)[">]', re.M)
INTRINSICS = re.compile(r"\b(immintrin|xmmintrin|arm_neon|x86intrin)\.h\b")
CUDA_HEADER = re.compile(r"^\s*#\s*include\s+[<\"](cuda|cublas|cusolver|cub/|mma\.h|cooperative_groups)", re.M)
NEVER_IN_LIBRARY = re.compile(r"\b(getenv|abort|std::terminate|printf|puts|std::cout|std::cerr|assert|exit)\s*\(|\bstd::(cout|cerr)\b")
NO_WAY_OUT = re.compile(r"(?<![.\w>:])(socket|connect|getaddrinfo|dlopen|system|popen|execvp?e?|v?fork|posix_spawnp?|mmap)\s*\(")
# The libraries that are opened by name where they are installed: NVIDIA's cuBLASLt and cuSOLVER, beside the driver that is loaded the same way.
OPENS_A_LIBRARY = ("src/kernels/cuda/library_product.cc", "src/kernels/cuda/gptq/solver.cc")
MACRO = re.compile(r"^\s*#\s*define\s+(\w+)", re.M)
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|root|home|farm)/\w")


def tracked():
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def without_comments(text):
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)


def check_layers(path, text, problems):
    folder = path.relative_to(ROOT / "src").parts[0]
    for included in INCLUDE.findall(text):
        top = included.split("/")[0]
        if top in LAYERS and top != folder and LAYERS[top] >= LAYERS[folder]:
            problems.append(f"{path.relative_to(ROOT)}: {folder} (layer {LAYERS[folder]}) includes {included} (layer {LAYERS[top]})")


def check_library(path, text, problems):
    name = str(path.relative_to(ROOT))
    code = without_comments(text)
    if INTRINSICS.search(code) and not name.startswith(("src/kernels/cpu/", "src/device/float_environment.h")):
        problems.append(f"{name}: intrinsics belong to src/kernels/cpu")
    if CUDA_HEADER.search(code) and not name.startswith(("src/kernels/cuda/", "src/device/cuda/")):
        problems.append(f"{name}: CUDA headers belong to src/kernels/cuda and src/device/cuda")
    if found := NEVER_IN_LIBRARY.search(re.sub(r"static_assert\s*\(", "", code)):
        problems.append(f"{name}: the library never uses {found.group(0).strip('( ')}")
    if re.search(r"#\s*if(def)?\s+.*NARROW_CUDA", code):
        problems.append(f"{name}: a build without CUDA links a stub; no #ifdef")


def check_format(problems):
    """Other versions of clang-format lay some lines out in another way, so that Debian 12's alone is asked."""
    version = subprocess.run(["clang-format", "--version"], capture_output=True, text=True).stdout if shutil.which("clang-format") else ""
    if "version 14." not in version:
        return
    sources = [str(path) for path in tracked() if path.suffix in SOURCE]
    for line in subprocess.run(["clang-format", "--dry-run", *sources], cwd=ROOT, capture_output=True, text=True).stderr.splitlines():
        if found := re.match(r"(.*?:\d+):\d+: warning", line):
            problems.append(f"{pathlib.Path(found.group(1)).relative_to(ROOT)}: not as `make format` lays it out")


def main():
    problems, macros = [], set()
    check_format(problems)
    for path in tracked():
        name = str(path.relative_to(ROOT))
        if path.suffix in {".safetensors", ".png", ".bin"} or "/corpus/" in name or name.startswith("examples/docs-"):
            continue
        text = path.read_text(errors="replace")
        if name != "tools/dev/check_rules.py" and (found := MACHINE_PATH.search(text)):
            problems.append(f"{name}: a path of one machine: {found.group(0)}...")
        if path.suffix not in SOURCE:
            continue
        if text.count("\n") > LONGEST_FILE:
            problems.append(f"{name}: {text.count(chr(10))} lines; more than {LONGEST_FILE} is more than one idea")
        if name.startswith(("src/", "include/")):
            macros.update(macro for macro in MACRO.findall(text) if macro.startswith("NARROW_"))
            check_library(path, text, problems)
        if name.startswith(("src/", "include/")) and (found := NO_WAY_OUT.search(without_comments(text))) and not (
            name in OPENS_A_LIBRARY and found.group(1) == "dlopen"
        ):
            problems.append(f"{name}: the library has no network, other program, plugin or mapped file: {found.group(1)}")
        if name.startswith("src/"):
            check_layers(path, text, problems)
        if name.startswith("include/"):
            for included in INCLUDE.findall(text):
                if included not in C_HEADERS and not included.startswith("narrow/") and ("." in included or "/" in included):
                    problems.append(f"{name}: public headers include std and narrow alone, not {included}")
    if len(macros) > 3:
        problems.append(f"macros: {', '.join(sorted(macros))}; three at most")
    for problem in problems:
        print(problem)
    print(f"rules: {len(problems)} violations")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
