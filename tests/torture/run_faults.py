#!/usr/bin/env python3
"""Makes every system call of every command that writes fail in every way, one at a time, and prints the matrix.

After each fault the output must be absent, old, or complete and verified; an error is one sentence and leaves nothing behind; the same
command, run again, gives the same bytes as without a fault; the input is never changed.
"""
import argparse
import collections
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import seeds

WRITE_KINDS = {"create": ["ENOSPC", "EIO", "EROFS", "EINTR", "kill"], "mkdir": ["ENOSPC", "EIO", "EROFS", "kill", "kill-after"],
               "pwrite": ["ENOSPC", "EIO", "EDQUOT", "EINTR", "short", "kill", "kill-after"], "write": ["ENOSPC", "EIO", "EINTR", "short",
               "kill"],
               "fsync": ["ENOSPC", "EIO", "kill", "kill-after"], "ftruncate": ["ENOSPC", "EIO", "kill"],
               "rename": ["ENOSPC", "EIO", "kill", "kill-after"], "close": ["ENOSPC", "EIO", "EINTR", "kill"]}
READ_KINDS = {"open": ["EIO", "EINTR"], "pread": ["EIO", "EINTR", "short", "cut", "change"], "read": ["EIO", "EINTR", "short"]}
RETRIED = {"EINTR", "short"}  # of these the command recovers by itself
PREFLIGHT_SECONDS = 2.0

# The command's words, the seed that is read, and whether an old file lies where the output goes.
COMMANDS = {"quantize": (["quantize", "{in}", "{out}", "int4:block32"], "sharded", False),
            "export": (["quantize", "{in}", "{out}", "int4:block32", "--export", "ct"], "sharded", False),
            "gptq": (["quantize", "{in}", "{out}", "int4:block32", "--method", "gptq", "--tokens", "{seeds}/tokens.safetensors"], "model",
            False),
            "convert": (["convert", "{in}", "{out}", "--to", "narrow"], "gptq", False),
            "gguf": (["convert", "{in}", "{out}", "--to", "gguf:q8_0"], "model", False),
            "dequantize": (["dequantize", "{in}", "{out}"], "narrow", False),
            "calibrate": (["calibrate", "{in}", "--tokens", "{seeds}/tokens.safetensors", "-o", "{out}"], "model", True),
            "tokenize": (["tokenize", "{in}", "{seeds}/text.txt", "-o", "{out}"], "model", True)}


def digest(path):
    """A text that stands for a file or folder and all that is in it; None where there is nothing."""
    if not path.exists():
        return None
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    total = hashlib.sha256()
    for file in files:
        total.update(str(file.relative_to(path)).encode() + b"\0" + (file.read_bytes() if file.is_file() else b""))
    return total.hexdigest()


class Matrix:
    def __init__(self, programs, folder, every):
        self.programs, self.folder, self.every = programs, folder, every
        self.seeds = folder / "seeds"
        self.seeds.mkdir()
        seeds.make(self.seeds, programs / "narrow")
        self.counts, self.violations = collections.Counter(), []

    def run(self, command, seed, side, at, kind, work, log=""):
        words = [word.format(**{"in": work / "in", "out": work / "o/out", "seeds": self.seeds}) for word in command]
        environment = {**os.environ, "LD_PRELOAD": str(self.programs / "libfault.so"), "NARROW_FAULT_AT": str(at),
                       "NARROW_FAULT_KIND": kind,
                       "NARROW_FAULT_SIDE": side, "NARROW_FAULT_LOG": str(log), "OMP_NUM_THREADS": "1",
                       "NARROW_FAULT_UNDER": str(work / ("o" if side == "write" else "in")),
                       "NARROW_FAULT_VICTIM": str(sorted((work / "in").glob("*.safetensors"))[0])}
        return subprocess.run([self.programs / "narrow", "--quiet", *words], env=environment, capture_output=True, text=True, timeout=120)

    def place(self, seed, has_old):
        work = self.folder / "work"
        shutil.rmtree(work, ignore_errors=True)
        (work / "o").mkdir(parents=True)
        shutil.copytree(self.seeds / seed, work / "in")
        if has_old:
            (work / "o/out").write_bytes(b"old")
        return work

    def expect(self, holds, label, why):
        if not holds:
            self.violations.append(label)
            print(f"violation: {label}: {why}")

    def check(self, name, side, at, call, kind, right):
        command, seed, has_old = COMMANDS[name]
        work = self.place(seed, has_old)
        before, label = digest(work / "in"), f"{name}: {kind} at {side} call {at} ({call})"
        old = digest(work / "o/out")
        done = self.run(command, seed, side, at, kind, work)
        out, killed = digest(work / "o/out"), done.returncode < 0
        self.counts[(name, call, kind)] += 1
        rest = [path.name for path in (work / "o").iterdir() if path.name != "out"]
        if kind in RETRIED:
            self.expect(done.returncode == 0 and out == right, label, f"exit code {done.returncode}, not recovered: {done.stderr.strip()}")
        if kind.startswith("kill"):
            self.expect(killed, label, "not killed")
            self.expect(out in (old, right), label, "neither absent, old nor complete")
        elif done.returncode == 0:
            self.expect(out == right or kind == "change", label, "exit code 0 and another output")
            if out != right:  # the input was changed before it was read: the output must be that of the changed input
                shutil.rmtree(work / "o")
                (work / "o").mkdir()
                self.run(command, seed, side, 0, "", work)
                self.expect(digest(work / "o/out") == out, label, "neither the output of the old nor of the changed input")
        else:
            complete_but_not_durable = out == right and side == "write"  # the last fsync, of the folder, failed
            self.expect(2 <= done.returncode <= 5, label, f"exit code {done.returncode}")
            self.expect(done.stderr.startswith("narrow: ") and done.stderr.count("\n") == 1, label, f"no sentence: {done.stderr[:200]!r}")
            self.expect(out == old or complete_but_not_durable, label, "the output is there")
            self.expect(not rest, label, f"left behind: {rest}")
        if kind not in ("cut", "change"):
            self.expect(digest(work / "in") == before, label, "the input changed")
            if out != right:
                again = self.run(command, seed, side, 0, "", work)
                self.expect(again.returncode == 0 and digest(work / "o/out") == right, label,
                            f"run again: exit code {again.returncode} {again.stderr.strip()}")

    def faults(self, name):
        command, seed, has_old = COMMANDS[name]
        for side, kinds in (("write", WRITE_KINDS), ("read", READ_KINDS)):
            work = self.place(seed, has_old)
            log = self.folder / "log"
            log.unlink(missing_ok=True)
            done = self.run(command, seed, side, 0, "", work, log)
            right = digest(work / "o/out")
            if done.returncode != 0 or right is None:
                raise SystemExit(f"{name} fails without a fault: {done.stderr}")
            calls = log.read_text().split()
            for at, call in enumerate(calls, 1):
                for i, kind in enumerate(kinds[call]):
                    if (at + i) % self.every == 0:
                        self.check(name, side, at, call, kind, right)

    # ---- before the first byte ----

    def refused(self, label, words, shell=None, in_time=True):
        begin = time.monotonic()
        done = subprocess.run(shell or [self.programs / "narrow", "--quiet", *map(str, words)], capture_output=True, text=True)
        seconds = time.monotonic() - begin
        self.counts[("preflight", label, "")] += 1
        self.expect(2 <= done.returncode <= 5 and done.stderr.startswith("narrow: ") and done.stderr.count("\n") == 1, label,
                    f"exit code {done.returncode}: {done.stderr[:200]!r}")
        self.expect(seconds < PREFLIGHT_SECONDS or not in_time, label, f"{seconds:.2f} s")

    def preflight(self):
        for name, (command, seed, has_old) in COMMANDS.items():
            if has_old:
                continue
            def attempt(label, prepare, out):
                work = self.place(seed, False)
                prepare(work)
                before = digest(work)
                self.refused(f"{name}: {label}", [word.format(**{"in": work / "in", "out": out(work),
                                                  "seeds": self.seeds}) for word in command])
                self.expect(digest(work) == before, f"{name}: {label}", "something was written")
            nothing = lambda work: None
            attempt("output is the input", nothing, lambda work: work / "in")
            attempt("output is the input by another name", nothing, lambda work: work / "o/../in")
            attempt("output is a link to the input", lambda work: (work / "o/out").symlink_to("../in"), lambda work: work / "o/out")
            attempt("output lies in the input", nothing, lambda work: work / "in/out")
            attempt("output is not empty", lambda work: ((work / "o/out").mkdir(), (work / "o/out/x").write_text("x")),
                    lambda work: work / "o/out")
            attempt("output's folder is missing", nothing, lambda work: work / "nowhere/out")
            attempt("output's folder is a file", lambda work: (work / "file").write_text("x"), lambda work: work / "file/out")
            for label, options in {"read-only place": "ro,size=64m", "full disk": "size=16k"}.items():
                work = self.place(seed, False)
                words = [word.format(**{"in": work / "in", "out": work / "o/out", "seeds": self.seeds}) for word in command]
                script = f'mount -t tmpfs -o {options} none "$1" && shift && exec "$@"'
                shell = ["unshare", "-rm", "sh", "-c", script, "sh", work / "o", self.programs / "narrow", "--quiet", *words]
                probe = subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "none", work / "o"], capture_output=True)
                if probe.returncode != 0:
                    print(f"note: {name}: {label} needs unshare -rm, which this system refuses")
                    continue
                self.refused(f"{name}: {label}", [], shell)
            work = self.place(seed, False)
            words = [word.format(**{"in": work / "in", "out": work / "o/out", "seeds": self.seeds}) for word in command]
            self.refused(f"{name}: files may have 1 KiB (RLIMIT_FSIZE)", [], ["sh", "-c", 'ulimit -f 1; exec "$@"', "sh",
                         self.programs / "narrow", "--quiet", *words], in_time=False)
            self.expect(not list((work / "o").iterdir()), f"{name}: RLIMIT_FSIZE", "something was left behind")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin-dir", type=pathlib.Path, default=pathlib.Path("build/release/bin"))
    parser.add_argument("--every", type=int, default=1, help="take one fault of so many")
    parser.add_argument("--only", default="", help="one command")
    arguments = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="narrow-torture-") as folder:
        matrix = Matrix(arguments.bin_dir.resolve(), pathlib.Path(folder), arguments.every)
        for name in COMMANDS:
            if arguments.only in name:
                matrix.faults(name)
        if not arguments.only:
            matrix.preflight()
    columns = list(dict.fromkeys(kind for kinds in (*WRITE_KINDS.values(), *READ_KINDS.values()) for kind in kinds))
    print("  " + f"{'':10}" + "".join(f"{kind:>11}" for kind in columns))
    for call in (*WRITE_KINDS, *READ_KINDS):
        numbers = [sum(count for (_, *fault), count in matrix.counts.items() if fault == [call, kind]) for kind in columns]
        if any(numbers):
            print("  " + f"{call:10}" + "".join(f"{number or '-':>11}" for number in numbers))
    checks = sum(count for (name, _, _), count in matrix.counts.items() if name == "preflight")
    print(f"faults: {sum(matrix.counts.values()) - checks} faults, {checks} checks before the first byte, "
          f"{len(matrix.violations)} violations ({time.monotonic() - begin:.0f} s)")
    return 1 if matrix.violations else 0


if __name__ == "__main__":
    sys.exit(main())
