#!/usr/bin/env python3
"""Runs the code blocks of the docs: `sh`, `python`, `cpp` and `c` blocks run unless their info string says why not.

    ```sh                             runs under bash -e, in the order of the page
    ```python no-run: needs a GPU     does not, and says why
    ```sh fails: 2                    its last command ends with this exit code; a last line "# narrow: ..." is what it must say
    <!-- before: ... -->              hidden lines that come before the next block of the page (Python, C or C++)
    ```cpp show                       a declaration, not a program (made pages alone)

The blocks of a page share a folder with a small model (model/, llama/), tokens.safetensors, docs_tokens.safetensors, book.txt and
stats.safetensors; the Python blocks of a page share their names. C++ and C blocks without a main() become the body of one.

    snippets.py --narrow build/release/bin/narrow --library build/release/src/libnarrow.a --python-path build/python [page.md ...]
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[2]
LANGUAGES = {"sh", "bash", "python", "cpp", "c"}
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$|^<!-- before:\n(.*?)^-->$", re.M | re.S)


def pages():
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "examples/README.md", *sorted((ROOT / "docs").rglob("*.md"))]


class Block:
    def __init__(self, page, line, language, info, code, before):
        self.page, self.line, self.language, self.code, self.before = page, line, language, code, before
        reason = re.match(r"\s*no-run:\s*(.+)", info)
        fails = re.match(r"\s*fails:\s*(\d+)", info)
        self.reason = reason.group(1).strip() if reason else None
        self.exit_code = int(fails.group(1)) if fails else 0
        if info.strip() and not reason and not fails:
            raise SystemExit(f"{self}: the info string '{info.strip()}' is neither 'no-run: REASON' nor 'fails: CODE'")

    def __str__(self):
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page):
    text = page.read_text()
    before = ""
    for found in FENCE.finditer(text):
        if found.group(4) is not None:
            before = found.group(4)
        elif found.group(1) in LANGUAGES:
            yield Block(page, text.count("\n", 0, found.start()) + 1, found.group(1), found.group(2), found.group(3), before)
            before = ""


def cut_tokens(source, target, windows):
    """The first windows of every tensor of a token file: enough to run a block, not to judge a model."""
    data = source.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header, body, cut = json.loads(data[8 : 8 + size]), data[8 + size :], b""
    header.pop("__metadata__", None)
    for entry in header.values():
        begin, end = entry["data_offsets"]
        kept = body[begin : begin + (end - begin) // entry["shape"][0] * windows]
        entry.update(shape=[windows, *entry["shape"][1:]], data_offsets=[len(cut), len(cut) + len(kept)])
        cut += kept
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    target.write_bytes(len(text).to_bytes(8, "little") + text + cut)


def prepare(folder, narrow):
    """What the blocks of every page find: made once, copied by links."""
    model = ROOT / "examples/docs-llama-13m"
    for name in ("model", "llama"):
        (folder / name).symlink_to(model)
    for name in ("tokens.safetensors", "docs_tokens.safetensors", "examples/docs_tokens.safetensors"):
        (folder / name).parent.mkdir(exist_ok=True)
        cut_tokens(ROOT / "examples/docs_tokens.safetensors", folder / name, 2)
    (folder / "examples/docs-llama-13m").symlink_to(model)
    (folder / "build").mkdir()
    words = " ".join(re.findall(r"[A-Za-z ,.\n]+", (ROOT / "docs/quantization.md").read_text()))
    (folder / "book.txt").write_text(words[:4000])
    subprocess.run(
        [
            narrow,
            "calibrate",
            folder / "model",
            "--tokens",
            folder / "tokens.safetensors",
            "--second-moments",
            "-o",
            folder / "stats.safetensors",
            "--quiet",
        ],
        check=True,
    )


def run_shell(block, folder, environment):
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", block.code], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode != block.exit_code:
        return f"exit code {done.returncode} instead of {block.exit_code}: {done.stderr[-600:]}"
    expected = block.code.rstrip().split("\n")[-1]
    if expected.startswith("# narrow:") and expected[2:] != done.stderr.strip().split("\n")[-1]:
        return f"it said: {done.stderr.strip()}"
    return None


def run_python(blocks, folder, environment):
    """All blocks of a page in one process: they share names, as on the page."""
    program = "\n".join(f"# {block}\n{block.before}{block.code}" for block in blocks)
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True)
    return None if done.returncode == 0 else done.stderr[-1500:]


def program_of(block):
    code = block.before + block.code
    if re.search(r"\bint main\(", code):
        return code
    lines = code.split("\n")
    includes = [line for line in lines if line.startswith("#include")]
    body = [line for line in lines if not line.startswith("#include")]
    using = "using namespace narrow;\n" if block.language == "cpp" and "narrow::" not in block.code else ""
    common = (
        ["#include <stdio.h>", "#include <narrow/c.h>"]
        if block.language == "c"
        else ["#include <fmt/format.h>", "#include <narrow/narrow.h>"]
    )
    return "\n".join([*common, *includes]) + f"\n{using}int main(void) {{\n{textwrap.indent(chr(10).join(body), '  ')}\n}}\n"


def run_compiled(block, folder, environment, library):
    suffix = {"cpp": ".cc", "c": ".c"}[block.language]
    source, program = folder / f"block{block.line}{suffix}", folder / f"block{block.line}"
    source.write_text(program_of(block))
    include = ["-I", ROOT / "include"]
    compiler = ["g++", "-std=c++20", "-O0", "-DFMT_HEADER_ONLY"] if block.language == "cpp" else ["gcc", "-std=c11", "-O0"]
    made = subprocess.run([*compiler, *include, "-c", source, "-o", f"{program}.o"], capture_output=True, text=True)
    if made.returncode == 0:
        made = subprocess.run(["g++", f"{program}.o", *library, "-o", program], capture_output=True, text=True)
    if made.returncode != 0:
        return made.stderr[-1500:]
    done = subprocess.run([program], cwd=folder, env=environment, capture_output=True, text=True)
    return None if done.returncode == 0 else f"exit code {done.returncode}: {done.stderr[-600:]}"


def run_page(page, template, options, environment):
    """(blocks run, blocks left out, problems) of a page."""
    found = list(blocks_of(page))
    active = [block for block in found if block.reason is None]
    problems = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "page"
        shutil.copytree(template, folder, symlinks=True)
        python = [block for block in active if block.language == "python"]
        for block in active:
            problem = None
            if block.language in ("sh", "bash"):
                problem = run_shell(block, folder, environment)
            elif block.language in ("c", "cpp"):
                problem = run_compiled(block, folder, environment, options.library.split())
            elif block is python[0]:
                problem = run_python(python, folder, environment)
            if problem:
                problems.append(f"{block}: {problem}")
    return len(active), len(found) - len(active), problems


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--narrow", default=ROOT / "build/release/bin/narrow", type=pathlib.Path)
    arguments.add_argument(
        "--library", default="build/release/src/libnarrow.a -fopenmp -lyaml-cpp", help="what C and C++ blocks are linked with"
    )
    arguments.add_argument("--python-path", default=ROOT / "build/python", type=pathlib.Path)
    arguments.add_argument("pages", nargs="*", type=pathlib.Path)
    options = arguments.parse_args()
    environment = {
        **os.environ,
        "PATH": f"{options.narrow.resolve().parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(options.python_path.resolve()),
        "OMP_WAIT_POLICY": "passive",
        "TOKENIZERS_PARALLELISM": "false",
    }
    ran = left = 0
    problems = []
    with tempfile.TemporaryDirectory() as name:
        template = pathlib.Path(name) / "template"
        template.mkdir()
        prepare(template, options.narrow.resolve())
        for page in [path.resolve() for path in options.pages] or pages():
            counts = run_page(page, template, options, environment)
            ran, left, problems = ran + counts[0], left + counts[1], problems + counts[2]
    for problem in problems:
        print(problem)
    print(f"snippets: {ran} blocks run, {left} left out with a reason, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
