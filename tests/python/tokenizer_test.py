"""The tokenizer beside the `tokenizers` package: one megabyte of text, every kind of pre-tokenizer, special tokens, decoding."""
import json
import pathlib
import random
import subprocess
import unicodedata

import pytest

tokenizers = pytest.importorskip("tokenizers")
from safetensors.numpy import load_file  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples/docs-llama-13m/tokenizer.json"

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": [*steps, BYTES]}


def split(regex):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


KINDS = {
    "gpt2": {},
    "prefix": {"pre_tokenizer": {**BYTES, "use_regex": True, "add_prefix_space": True}},
    "llama3": {"pre_tokenizer": sequence(split(LLAMA3)), "ignore_merges": True},
    "qwen2": {"pre_tokenizer": sequence(split(QWEN2)), "normalizer": {"type": "NFC"}},
    "digits": {"pre_tokenizer": sequence({"type": "Digits", "individual_digits": True}, split(QWEN2))},
}


def texts():
    """Documentation of this project, then words, numbers, signs and spaces of many scripts in random order: one megabyte in all."""
    random.seed(5)
    plain = "".join(path.read_text() for path in sorted(ROOT.glob("docs/**/*.md")) + sorted(ROOT.glob("src/**/*.cc"))[:60])[:500_000]
    scripts = [(0x20, 0x7E), (0xA0, 0x17F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x5D0, 0x5EA), (0x600, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F),
               (0x1100, 0x11FF), (0x1E00, 0x1EFF), (0x2000, 0x206F), (0x2070, 0x218F), (0x3000, 0x30FF), (0x4E00, 0x4FFF), (0xAC00, 0xACFF), (0x1F300, 0x1F64F)]
    words = ["'s", "'S", "'ll", "'RE", "'x", " don't", "\n", "\r\n", "  ", "\t", " \n \n", "123456", " 42", "½²", "...", " !?", "it'\u017f", "e\u0301", "\u1100\u1161\u11a8"]
    parts, size = [], 0
    while size < 1_050_000 - len(plain.encode()):
        if random.random() < 0.4:
            part = random.choice(words)
        else:
            low, high = random.choice(scripts)
            part = "".join(chr(random.randint(low, high)) for _ in range(random.randint(1, 9)))
            part = "".join(c for c in part if unicodedata.category(c) not in ("Cn", "Cs"))
        parts.append(part)
        size += len(part.encode())
    return plain + "".join(parts)


@pytest.fixture(scope="module")
def text():
    return texts()


@pytest.fixture(scope="module")
def encode(bin_dir, tmp_path_factory):
    tool = bin_dir / "narrow"
    if not tool.exists():
        pytest.skip(f"{tool} is not built")
    folder = tmp_path_factory.mktemp("tokens")

    def run(tokenizer, content):
        (folder / "text.txt").write_bytes(content.encode())
        done = subprocess.run([tool, "tokenize", tokenizer, folder / "text.txt", "-o", folder / "out.safetensors", "--json"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), load_file(folder / "out.safetensors")["eval"][0].tolist()

    return run


def variant(folder, kind):
    fields = dict(KINDS[kind])
    description = json.loads(EXAMPLE.read_text())
    description["model"]["ignore_merges"] = fields.pop("ignore_merges", False)
    description.update(fields)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(description))
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_one_megabyte_is_the_same_tokens(encode, tmp_path, text, kind):
    assert len(text.encode()) >= 1_000_000
    path = variant(tmp_path, kind)
    reference = tokenizers.Tokenizer.from_file(str(path))
    expected = reference.encode(text, add_special_tokens=False).ids
    answer, tokens = encode(path, text)
    if tokens != expected:
        place = next(i for i, (a, b) in enumerate(zip(tokens, expected)) if a != b)
        pytest.fail(f"token {place}: {[reference.decode([t]) for t in tokens[place:place + 4]]} instead of {[reference.decode([t]) for t in expected[place:place + 4]]}, "
                    f"after {reference.decode(expected[max(0, place - 8):place])!r}")
    assert answer["round_trip"] == (kind not in ("qwen2", "prefix"))


def test_special_tokens_are_cut_out(encode, tmp_path):
    description = json.loads(EXAMPLE.read_text())
    size = len(description["model"]["vocab"])
    for i, (content, fields) in enumerate({"<|user|>": {}, "<|user|>!": {}, "[pad]": {"lstrip": True}, "[end]": {"rstrip": True}, "né": {"normalized": True, "special": False}}.items()):
        description["added_tokens"].append({"id": size + i, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True, **fields})
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(description))
    content = "<s>Hello<|user|> there<|user|>! a  [pad] b[end] \n c</s> né <| <s"
    reference = tokenizers.Tokenizer.from_file(str(path))
    assert encode(path, content)[1] == reference.encode(content, add_special_tokens=False).ids


@pytest.mark.parametrize("change, word", [({"model": {"type": "WordPiece"}}, "WordPiece"), ({"pre_tokenizer": {"type": "Metaspace"}}, "Metaspace"),
                                          ({"pre_tokenizer": sequence(split(r"\w+"))}, "w+"), ({"normalizer": {"type": "NFKC"}}, "NFKC")])
def test_what_is_not_there_is_named(bin_dir, tmp_path, change, word):
    description = {**json.loads(EXAMPLE.read_text()), **change}
    (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    (tmp_path / "text").write_text("a text")
    done = subprocess.run([bin_dir / "narrow", "tokenize", tmp_path, tmp_path / "text"], capture_output=True, text=True)
    assert done.returncode == 5 and word in done.stderr and len(done.stderr.strip().splitlines()) == 1
