"""What the cases are made of: the case, files in disguise, broken JSON, and things that are no files."""
import dataclasses
import json
import os
import struct

LITTLE = struct.pack


@dataclasses.dataclass
class Case:
    reader: str
    name: str
    seed: str  # folder of the seeds to copy; "" for none
    changes: dict  # path in the copy -> bytes, or a function that makes something there
    command: list  # words after `narrow`; {in} is the copy, {out} a place that must stay empty, {seeds} the right files
    sealed: bool = False  # the manifest is given a right hash again
    program: str = "narrow"


# ---- what any text file can be instead ----

def disguises():
    yield "empty", b""
    yield "pickle", b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x08builtins\x94\x2e"
    yield "zip", b"PK\x03\x04\x14\x00\x00\x00\x08\x00" + b"z" * 64
    yield "html", b"<!DOCTYPE html><html><body>404</body></html>"
    yield "lfs_pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    yield "zeros", bytes(4096)
    yield "ones", b"\xff" * 4096


def broken_json(good):
    """Texts that are no JSON, or JSON that no reader of ours takes."""
    text = json.dumps(good).encode()
    yield from disguises()
    yield "null", b"null"
    yield "number", b"7"
    yield "string", b'"{}"'
    yield "array", b"[" + text + b"]"
    yield "byte_order_mark", b"\xef\xbb\xbf" + text
    yield "utf16", json.dumps(good).encode("utf-16")
    yield "nul_behind", text + b"\0"
    yield "nul_inside", text[:-1] + b"\0}"
    yield "twice", text + text
    yield "cut_in_half", text[: len(text) // 2]
    yield "cut_by_one", text[:-1]
    yield "trailing_comma", text[:-1] + b",}"
    yield "comment", b"/* x */" + text
    yield "single_quotes", text.replace(b'"', b"'")
    yield "python_words", text[:-1] + b', "x": None, "y": True}'
    yield "not_a_number", text[:-1] + b', "x": NaN}'
    yield "huge_number", text[:-1] + b', "x": 1e400}'
    yield "leading_zero", text[:-1] + b', "x": 01}'
    yield "hexadecimal", text[:-1] + b', "x": 0x10}'
    yield "bad_utf8", text[:-1] + b', "x": "\xff"}'
    yield "overlong_utf8", text[:-1] + b', "x": "\xc0\xaf"}'
    yield "half_surrogate", text[:-1] + b', "x": "\\ud800"}'
    yield "control_in_string", text[:-1] + b', "x": "\n"}'
    yield "bad_escape", text[:-1] + b', "x": "\\q"}'
    yield "key_twice", text[:-1] + b', "zz": 1, "zz": 1}'
    yield "key_twice_by_escape", text[:-1] + b', "zz": 1, "\\u007az": 1}'
    yield "deep_arrays", text[:-1] + b', "x": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    yield "deep_open_arrays", b"[" * 1_000_000
    yield "deep_objects", b'{"a":' * 200_000
    yield "unclosed_string", text[:-1] + b', "x": "' + b"y" * 1_000_000


def sparse(size):
    def make(path):
        with open(path, "wb") as file:
            file.truncate(size)
    return make


def fifo(path):
    os.mkfifo(path)


def directory(path):
    path.mkdir()


def link(target):
    return lambda path: path.symlink_to(target)


def changed(document, path, value):
    """A copy of a JSON document with one value replaced; `...` removes it."""
    copy = json.loads(json.dumps(document))
    place = copy
    for key in path[:-1]:
        place = place[key]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(copy).encode()
