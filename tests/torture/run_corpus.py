#!/usr/bin/env python3
"""Runs every case of corpus/ through the command and prints how many files were made and how many rules were broken.

The rules: exit code 2 to 5, one typed sentence, under 50 ms of processor time, at most 16 MiB of memory above the size of the files,
nothing written.
"""
import argparse
import collections
import pathlib
import shutil
import subprocess
import sys
import tempfile

import corpus
import seeds

MOST_MILLISECONDS, LONGEST_WAIT, MOST_KIB, LONGEST_SENTENCE = 50.0, 2000.0, 16 * 1024, 1200
ATTEMPTS = 4  # others use the machine too: the fastest counts


def place_case(case, place, seed_place, seal):
    """Writes the case's files into the empty folder `place`; returns their bytes."""
    if case.seed:
        shutil.copytree(seed_place / case.seed, place, symlinks=True)
    else:
        place.mkdir()
    for name, change in case.changes.items():
        path = place / name
        if callable(change):
            change(path)
        else:
            path.write_bytes(change)
    if case.sealed:
        subprocess.run([seal, place / "narrow_manifest.json"], check=True)
    return sum(path.stat().st_blocks * 512 for path in place.iterdir() if path.is_file() and not path.is_symlink())


def broken_rules(case, place, seed_place, programs, size, work):
    """The rules that the command broke, as texts; and its time and memory."""
    out, report = work / "out", work / "report"
    words = [word.format(**{"in": place, "out": out,
                         "seeds": seed_place}) if "{" in word and word != "{}" else word for word in case.command]
    command = [programs / case.program] + (["--quiet", "--threads", "1"] if case.program == "narrow" else []) + words
    best, peak = float("inf"), 0
    before = sorted(work.rglob("*"))
    wait = 0.0
    for _ in range(ATTEMPTS):
        done = subprocess.run([programs / "measure", report, *command], capture_output=True, stdin=subprocess.DEVNULL, timeout=60)
        code, wall, milliseconds, kib = report.read_text().split()
        report.unlink()
        code, wait, best, peak = int(code), max(wait, float(wall)), min(best, float(milliseconds)), max(peak, int(kib))
        if best < MOST_MILLISECONDS or not 2 <= code <= 5:
            break
    rules = []
    text = done.stderr.decode(errors="replace")
    if not 2 <= code <= 5:
        rules.append(f"exit code {code}")
    if not text.startswith("narrow: ") or text.count("\n") != 1 or len(text) > LONGEST_SENTENCE or "\x1b" in text:
        rules.append(f"no single sentence of at most {LONGEST_SENTENCE} characters ({len(text)}, {text.count(chr(10))} lines)")
    if done.stdout:
        rules.append("output")
    if best >= MOST_MILLISECONDS:
        rules.append(f"{best:.0f} ms")
    if wait >= LONGEST_WAIT:
        rules.append(f"{wait:.0f} ms by the clock")
    if peak > MOST_KIB + size // 1024:
        rules.append(f"{peak / 1024:.1f} MiB for {size / 1048576:.2f} MiB of files")
    if out.exists() or out.is_symlink() or sorted(work.rglob("*")) != before:
        rules.append("something was written")
    return rules, text.strip(), best, peak


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin-dir", type=pathlib.Path, default=pathlib.Path("build/release/bin"))
    parser.add_argument("--only", default="", help="cases whose reader/name contains this text")
    parser.add_argument("--show", action="store_true", help="print every sentence")
    arguments = parser.parse_args()
    programs = arguments.bin_dir.resolve()
    counts, slowest, largest, violations = collections.Counter(), (0.0, ""), (0, ""), []
    with tempfile.TemporaryDirectory(prefix="narrow-torture-") as folder:
        seed_place = pathlib.Path(folder) / "seeds"
        seed_place.mkdir()
        seeds.make(seed_place, programs / "narrow")
        for case in corpus.cases(seed_place):
            label = f"{case.reader}/{case.name}"
            if arguments.only not in label:
                continue
            work = pathlib.Path(folder) / "work"
            work.mkdir()
            size = place_case(case, work / "in", seed_place, programs / "seal")
            rules, text, milliseconds, kib = broken_rules(case, work / "in", seed_place, programs, size, work)
            counts[case.reader] += 1
            slowest, largest = max(slowest, (milliseconds, label)), max(largest, (kib - size // 1024, label))
            if arguments.show:
                print(f"{label}: {text[:200]}")
            if rules:
                violations.append(label)
                print(f"violation: {label}: {'; '.join(rules)}: {text[:160]}")
            shutil.rmtree(work)
    for reader, count in counts.items():
        print(f"  {reader:12} {count:5} files")
    print(f"corpus: {sum(counts.values())} files, {len(violations)} violations; slowest {slowest[0]:.1f} ms ({slowest[1]}), "
          f"most memory above the files {largest[0] / 1024:.1f} MiB ({largest[1]})")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
