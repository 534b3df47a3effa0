"""What the command says about itself: doctor, --version, bench --report, manual pages, completions. The options are those of --help."""

import json
import re
import shutil
import subprocess

import pytest


@pytest.fixture(scope="module")
def narrow(bin_dir):
    def run(*words, code=0):
        done = subprocess.run([bin_dir / "narrow", *words], capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def options(narrow):
    """{command: options}, read from the help that people read; "" stands for narrow itself."""
    commands = re.findall(r"^  ([a-z]+) {2,}\S", narrow("--help").split("Commands:")[1].split("First steps:")[0], re.M)
    assert {"quantize", "doctor", "bench", "manual", "completion"} <= set(commands)

    def named(text):
        lines = re.findall(r"^  (-\S.*?)(?:\s{2,}|$)", text, re.M)
        return {name for line in lines for name in re.findall(r"(?<![\w-])--?[a-z][\w-]*", line.split("  ")[0])}

    found = {command: named(narrow(command, "--help").split("Example:")[0]) for command in commands}
    found[""] = named(narrow("--help").split("Commands:")[0])
    assert "--method" in found["quantize"] and "-o" in found["search"] and "--threads" in found[""]
    return found


def test_every_option_is_in_the_manual_pages(narrow, options, tmp_path):
    narrow("manual", "--write", str(tmp_path))
    pages = {path.stem: path.read_text().replace(r"\-", "-") for path in (tmp_path / "man/man1").iterdir()}
    assert set(pages) == {f"narrow-{command}" if command else "narrow" for command in options}
    for command, names in options.items():
        page = pages[f"narrow-{command}" if command else "narrow"]
        assert page.startswith(".TH NARROW") and ".SH NAME\n" in page and ".SH SYNOPSIS\n" in page
        for name in names | options[""]:
            assert rf"\fB{name}\fR" in page, (command, name)
        assert not re.search(r"^[.'](?!TH|SH|TP|B |BR|nf|fi)", page, re.M), "a line that roff takes for a request"
    assert narrow("manual", "quantize").replace(r"\-", "-") == pages["narrow-quantize"]
    for command in options:
        assert f"narrow-{command}" in pages["narrow"]
    if shutil.which("man"):
        shown = subprocess.run(["man", "--warnings", "-l", tmp_path / "man/man1/narrow-quantize.1"], capture_output=True, text=True)
        assert shown.returncode == 0 and not shown.stderr and "SYNOPSIS" in shown.stdout
    narrow("manual", "nothing", code=2)


def test_every_option_is_in_the_reference_and_the_completions(narrow, options):
    reference = narrow("manual", "--markdown")
    for command, names in options.items():
        section = reference.split(f"## narrow {command}\n")[1].split("\n## ")[0] if command else reference.split("\n## ")[1]
        for name in names:
            assert re.search(rf"`{name}[ `]", section), (command, name)
    for shell in ("bash", "zsh", "fish"):
        script = narrow("completion", shell)
        for command, names in options.items():
            for name in names:
                if shell == "fish":
                    form = f"-l {name[2:]} " if name.startswith("--") else f"-s {name[1:]} "
                    lines = (
                        [line for line in script.splitlines() if f"seen_subcommand_from {command}'" in line]
                        if command
                        else script.splitlines()
                    )
                    assert any(form in line + " " for line in lines), (shell, command, name)
                else:
                    part = re.search(rf"^ *{command}\) (.*?);;", script, re.M | re.S).group(1) if command else script
                    assert re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", part), (shell, command, name)
    narrow("completion", "tcsh", code=2)


def test_version_names_the_build(narrow):
    lines = narrow("--version").splitlines()
    assert re.fullmatch(r"narrow \d+\.\d+\.\d+", lines[0])
    facts = dict(line.split(None, 1) for line in lines[1:])
    assert set(facts) - {"commit"} == {"compiler", "cpu", "cuda"} and "kernels for " in facts["cpu"]


def test_doctor_tests_every_kernel(narrow):
    found = json.loads(narrow("doctor", "--json"))
    test = found["self_test"]
    assert test["passed"] and test["complete"] and test["seconds"] < 20
    assert all(row["cases"] > 0 and row["failure"] is None for row in test["rows"])
    kernels = json.loads(narrow("kernels", "--json"))["kernels"]
    fast = {(row["op"], row["name"]) for row in kernels if row["runs_here"] and row["isa"] != "scalar"}
    assert {(row["op"], row["kernel"]) for row in test["rows"]} == fast
    assert {use["kernel"] for use in found["kernels"]} <= {row["name"] for row in kernels}
    assert (
        found["cpu"]["threads"] >= 1
        and found["memory"]["bytes"] > 2**20
        and found["roofline"]["read_gb_s"] > 0
        and found["roofline"]["copy_gb_s"] > 0
    )
    assert (found["gpu_reason"] is None) == bool(found["gpus"])


def test_doctor_fits_one_screen_and_fails_when_it_is_cut_short(narrow):
    text = narrow("doctor")
    assert len(text.splitlines()) <= 24 and max(len(line) for line in text.splitlines()) <= 140
    assert "self-test  ok" in text
    assert "self-test  failed" in narrow("doctor", "--seconds", "0", code=1)
    limited = json.loads(narrow("doctor", "--json", "--cpu", "scalar"))
    assert limited["self_test"]["rows"] == [] and limited["cpu"]["instruction_sets"] == []


def test_bench_report_is_one_page(narrow, tmp_path):
    path = tmp_path / "bench.html"
    answer = json.loads(narrow("bench", "--report", str(path), "--seconds", "0.001", "--json"))
    page = path.read_text()
    kernels = {
        row["name"]
        for row in json.loads(narrow("kernels", "--json"))["kernels"]
        if row["runs_here"] and row["isa"] != "scalar" and row["op"] != "binary"
    }
    assert {timing["kernel"] for timing in answer["timings"]} == kernels
    assert all(kernel in page for kernel in kernels) and page.count("<tr><td>") == len(answer["timings"])
    assert all(timing["seconds"] > 0 and timing["bytes"] > 0 for timing in answer["timings"])
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//|<script|@import|url\(", page)
    narrow("bench", "--report", str(tmp_path / "no" / "such" / "place.html"), "--seconds", "0", code=4)
