"""Completions of the command in the shells themselves: bash always, zsh and fish where they are installed."""

import os
import pty
import shutil
import subprocess
import time

import pytest

# A line as far as it is typed, and every whole word that must be offered for its end.
LINES = {
    "narrow qua": {"quantize"},
    "narrow --threads 2 qua": {"quantize"},
    "narrow quantize --act": {"--activations", "--activation-rule", "--act-order"},
    "narrow --threads 2 eval --kv": {"--kv-cache"},
    "narrow --cpu sca": {"scalar"},
    "narrow quantize model out int4:block128:a": {"int4:block128:asym", "int4:block128:asym:scale=bf16"},
    "narrow quantize model --method gptq out mxint": {"mxint8"},
    "narrow quantize model out int8:row --rounding st": {"stochastic"},
    "narrow quantize model out int8:row --rounding=st": {"stochastic"},
    "narrow eval model --scheme W4A": {"W4A16", "W4A16_ASYM", "W4A8"},
    "narrow search model --menu int8:row mxint": {"mxint8"},
    "narrow compare model mxint": {"mxint8"},
    "narrow compare model int8:row mxint": {"mxint8"},
    "narrow convert model out --to mod": {"modelopt"},
    "narrow formats fp6_e3": {"fp6_e3m2"},
    "narrow layout col32_": {"col32_2r_4r4"},
    "narrow manual comp": {"compare", "completion"},
    "narrow completion z": {"zsh"},
    "narrow bench --model llama-2": {"llama-2-7b"},
    "narrow inspect mod": {"model/"},
    "narrow eval model --tokens to": {"tokens.safetensors"},
}
# Fish offers options by single values alone.
NOT_IN_FISH = {"narrow search model --menu int8:row mxint"}


@pytest.fixture(scope="module")
def script(bin_dir):
    return lambda shell: subprocess.run([bin_dir / "narrow", "completion", shell], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "tokens.safetensors").write_text("")
    return tmp_path


def require(shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")


def expect(line, offered):
    wanted = LINES[line]
    assert {word.rstrip("/ ") for word in offered} == {word.rstrip("/") for word in wanted}, line


def bash_offers(folder, line):
    program = 'source ./narrow.bash; COMP_POINT=${#COMP_LINE}; _narrow; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", program], cwd=folder, capture_output=True, text=True, env={**os.environ, "COMP_LINE": line})
    assert done.returncode == 0 and not done.stderr, (line, done.stderr)
    return done.stdout.split()


def test_bash(script, folder):
    (folder / "narrow.bash").write_text(script("bash"))
    for line in LINES:
        # Bash holds what stands before a colon or an equals sign for a word of its own.
        last = line.split()[-1].removeprefix("--rounding=")
        before = last[: last.rfind(":") + 1]
        expect(line, {before + word for word in bash_offers(folder, line)})


def test_what_is_offered_is_accepted(script, folder, bin_dir):
    """A wrong value would be wrong usage (2); with these words the command goes on, to its end or to a file that is not there (4)."""
    (folder / "narrow.bash").write_text(script("bash"))
    quantize = ["quantize", "missing", "out", "int8:row"]
    uses = {
        "formats": (["formats"], 0),
        "kernels": (["kernels"], 0),
        "layout": (["layout", "2", "2"], 0),
        "search m --method": (["search", "missing", "--bits", "4", "--tokens", "missing", "--method"], 4),
        "quantize m o int8:row --rounding": ([*quantize, "--rounding"], 4),
        "quantize m o int8:row --on-nonfinite": ([*quantize, "--on-nonfinite"], 4),
        "quantize m o int8:row --range": ([*quantize, "--activations", "int8:row:dynamic", "--range"], 4),
        "quantize m o int8:row --activations": ([*quantize, "--activations"], 4),
        "quantize m o int8:row --export": ([*quantize, "--export"], 4),
        "convert m o --to": (["convert", "missing", "out", "--to"], 4),
        "plan m": (["plan", "missing"], 4),
    }
    for line, (words, code) in uses.items():
        offered = bash_offers(folder, f"narrow {line} ")
        assert len(offered) >= 3, line
        for word in offered:
            given = [words[0], word, *words[1:]] if words[0] == "layout" else [*words, word]
            done = subprocess.run([bin_dir / "narrow", "--quiet", *given], cwd=folder, capture_output=True, text=True)
            assert done.returncode == code, (given, done.stderr)


def test_fish(script, folder):
    require("fish")
    (folder / "narrow.fish").write_text(script("fish"))
    for line in LINES.keys() - NOT_IN_FISH:
        done = subprocess.run(
            ["fish", "--no-config", "-c", f"source narrow.fish; complete -C '{line}'"], cwd=folder, capture_output=True, text=True
        )
        assert done.returncode == 0 and not done.stderr, (line, done.stderr)
        expect(line, {offer.split("\t")[0].removeprefix("--rounding=") for offer in done.stdout.splitlines()})


# Writes what is offered for the line that was typed to a file.
ZSH = """
autoload -Uz compinit && compinit -u -D
compdef -d narrow; source ./narrow.zsh
compadd() {
  [[ " ${@[1,(i)(-|--)]} " == *" "-[a-zA-Z0-9]#[OAD]" "* ]] && { builtin compadd "$@"; return }
  local -a hits
  builtin compadd -A hits "$@"
  print -rl -- $hits >> offered
  builtin compadd "$@"
}
setopt extendedglob
LISTMAX=10000
"""


def test_zsh(script, folder):
    """Typed on a terminal: completion exists in zsh's line editor alone."""
    require("zsh")
    (folder / "narrow.zsh").write_text(script("zsh"))
    (folder / "setup.zsh").write_text(ZSH)
    master, slave = pty.openpty()
    shell = subprocess.Popen(
        ["zsh", "-f", "-i"], cwd=folder, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, env={**os.environ, "TERM": "dumb"}
    )
    os.close(slave)
    os.set_blocking(master, False)
    answers = folder / "offered"

    def type_and_wait(text, mark):
        """Sends keys and reads the terminal until a file appears."""
        os.write(master, text.encode())
        end = time.monotonic() + 120
        while not mark.exists():
            assert time.monotonic() < end and shell.poll() is None, text
            try:
                os.read(master, 65536)
            except BlockingIOError:
                time.sleep(0.01)
        mark.unlink()

    try:
        type_and_wait("source ./setup.zsh; : > ready\n", folder / "ready")
        for line in LINES:
            answers.write_text("")
            os.write(master, f"{line}\t".encode())
            type_and_wait("\x15: > ready\n", folder / "ready")  # ctrl-U: the line is not run
            expect(line, answers.read_text().split())
        type_and_wait("\x15source ./narrow.zsh && : > ready\n", folder / "ready")
    finally:
        shell.kill()
        shell.wait()
        os.close(master)
