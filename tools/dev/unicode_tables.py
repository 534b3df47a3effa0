#!/usr/bin/env python3
"""Writes src/model/tokenizer/unicode_classes.inl and unicode_composition.inl from Python's unicodedata: what tokenizers ask of a code point, and canonical composition."""
import pathlib
import sys
import unicodedata

LAST = 0x110000
FOLDER = pathlib.Path(__file__).resolve().parents[2] / "src/model/tokenizer"


def ranges(belongs):
    found, begin = [], None
    for code in range(LAST + 1):
        inside = code < LAST and belongs(chr(code))
        if inside and begin is None:
            begin = code
        if not inside and begin is not None:
            found.append((begin, code - 1))
            begin = None
    return found


def table(name, kind, rows):
    cells = [", ".join(f"0x{value:X}" for value in row) for row in rows]
    lines, line = [], "  "
    for cell in cells:
        if len(line) + len(cell) + 4 > 138:
            lines.append(line.rstrip())
            line = "  "
        line += "{" + cell + "}, "
    lines.append(line.rstrip())
    return f"inline constexpr {kind} {name}[] = {{\n" + "\n".join(lines) + "\n};\n"


def canonical(character):
    """The canonical decomposition by one step, or nothing."""
    text = unicodedata.decomposition(character)
    return [int(part, 16) for part in text.split()] if text and not text.startswith("<") else []


def main():
    letters = ranges(lambda c: unicodedata.category(c)[0] == "L")
    numbers = ranges(lambda c: unicodedata.category(c)[0] == "N")
    full, classes, pairs = [], [], []
    for code in range(LAST):
        character = chr(code)
        if 0xAC00 <= code <= 0xD7A3 or 0xD800 <= code <= 0xDFFF:
            continue
        if unicodedata.combining(character):
            classes.append((code, unicodedata.combining(character)))
        parts = canonical(character)
        if parts:
            full.append((code, parts[0], parts[1] if len(parts) > 1 else 0))
        if len(parts) == 2 and unicodedata.normalize("NFC", chr(parts[0]) + chr(parts[1])) == character:
            pairs.append((parts[0], parts[1], code))
    pairs.sort()
    head = f"// Made by tools/dev/unicode_tables.py from Unicode {unicodedata.unidata_version}; do not edit.\n// clang-format off\n\n"
    text = head + "/// Code points of general category L (letters) and N (numbers): first and last of each run.\n"
    text += table("kLetters", "CodeRange", letters) + "\n" + table("kNumbers", "CodeRange", numbers) + "\n"
    text += "/// Canonical combining classes other than 0.\n" + table("kCombining", "CombiningClass", classes)
    (FOLDER / "unicode_classes.inl").write_text(text)
    text = head + "/// Canonical decompositions by one step; the second is 0 where there is none. Hangul is computed.\n" + table("kDecompositions", "Decomposition", full) + "\n"
    text += "/// Pairs that compose, ordered; exclusions left out.\n" + table("kCompositions", "Composition", pairs)
    (FOLDER / "unicode_composition.inl").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
