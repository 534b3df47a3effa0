"""Files that are not what they claim to be, for every reader of narrow.

A case starts from right files (seeds.py), changes some, and names the command that reads them. Classes are those of a malformed-input
catalogue: lying lengths, wrapping shapes, ranges that overlap or lead past the end, unknown types, odd ranks, bad alignments, sizes to be
allocated, names, JSON, paths, sub-byte tails, values, side files, other formats in disguise.
"""
import dataclasses
import json
import os
import struct

import seeds

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


# ---- safetensors ----

def raw(text, data=b""):
    text = text.encode() if isinstance(text, str) else text
    return LITTLE("<Q", len(text)) + text + data


def entry(name, dtype, shape, offsets):
    return f'"{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}'


def broken_safetensors():
    eight = b"x" * 8
    good = entry("a", "F32", "[2]", "[0,8]")
    one = lambda name, member, data=eight: (name, raw("{" + member + "}", data))
    head = lambda name, text, data=b"": (name, raw(text, data))
    yield from disguises()
    for name, length in {"zero": 0, "one": 1, "seven": 7, "beyond": 3, "2_31": 2**31, "2_32": 2**32, "2_62": 2**62, "2_63": 2**63,
                         "all_ones": 2**64 - 1,
                         "wraps": 2**64 - 8, "wraps_by_one": 2**64 - 7, "above_limit": 100_000_001, "at_limit": 100_000_000}.items():
        yield "length_" + name, LITTLE("<Q", length) + b"{}"
    yield "length_only", LITTLE("<Q", 2)
    yield "seven_bytes", b"\x02" * 7
    yield "header_is_zeros", raw(bytes(64))
    for name, shape in {"to_zero": "[4294967296,4294967296]", "to_zero_elements": "[9223372036854775807,2]",
                        "to_eight": "[4611686018427387906,4]",
                        "beside_zero": "[0,9223372036854775807,9223372036854775807]", "2_63": "[9223372036854775808]",
                        "2_64": "[18446744073709551616]",
                        "2_42": "[4398046511105,4194304]"}.items():
        yield one("shape_wraps_" + name, entry("a", "F32", shape, "[0,0]"), b"")
    yield one("shape_wraps_in_bits", entry("a", "F64", "[2305843009213693952]", "[0,0]"), b"")
    for name, shape in {"too_short": "[3]", "too_long": "[1]", "scalar": "[]", "no_elements": "[0]", "other_rank": "[2,2]"}.items():
        yield one("range_" + name, entry("a", "F32", shape, "[0,8]"))
    yield one("half_a_byte", entry("a", "F4", "[1]", "[0,0]"), b"")
    yield one("odd_nibbles", entry("a", "F4", "[3]", "[0,2]"), b"xx")
    yield one("f6_not_whole", entry("a", "F6_E3M2", "[3]", "[0,3]"), b"xxx")
    yield one("past_end", good, b"xxxx")
    yield one("no_data", good, b"")
    for name, offsets in {"huge": "[18446744073709551607,18446744073709551615]", "wrapping": "[18446744073709551612,4]",
                          "backwards": "[8,0]", "one": "[8]",
                          "three": "[0,8,8]", "none": "[]", "negative": "[-8,0]", "minus_zero": "[-0,8]", "texts": '["0","8"]',
                          "fractions": "[0.0,8.0]",
                          "exponents": "[0,8e0]", "null": "null", "object": "{}", "nested": "[[0,8]]",
                          "beyond_2_64": "[0,36893488147419103240]"}.items():
        yield one("offsets_" + name, entry("a", "U8", "[8]", offsets))
    yield one("hole_in_front", entry("a", "U8", "[4]", "[4,8]"))
    yield one("hole_between", entry("a", "U8", "[2]", "[0,2]") + "," + entry("b", "U8", "[4]", "[4,8]"))
    yield one("overlap", entry("a", "U8", "[5]", "[0,5]") + "," + entry("b", "U8", "[4]", "[4,8]"))
    yield one("two_names_one_range", entry("a", "U8", "[8]", "[0,8]") + "," + entry("b", "U8", "[8]", "[0,8]"))
    yield one("one_inside_another", entry("a", "U8", "[8]", "[0,8]") + "," + entry("b", "U8", "[2]", "[2,4]"))
    yield one("trailing_byte", good, eight + b"y")
    yield one("trailing_zip", good, eight + b"PK\x03\x04" + b"z" * 64)
    yield one("many_on_few_bytes", ",".join(entry(f"t{i}", "U8", "[16]", "[0,16]") for i in range(20_000)), b"x" * 16)
    for name, dtype in {"unknown": "F128", "lower_case": "f32", "empty": "", "blank": "F32 ", "long": "F" * 100_000,
                        "python": "torch.float32"}.items():
        yield one("dtype_" + name, entry("a", dtype, "[2]", "[0,8]"))
    for name, dtype in {"number": "3", "null": "null", "array": '["F32"]', "true": "true"}.items():
        yield head("dtype_is_" + name, f'{{"a":{{"dtype":{dtype},"shape":[2],"data_offsets":[0,8]}}}}', eight)
    yield one("rank_65", entry("a", "U8", "[1" + ",1" * 64 + "]", "[0,1]"), b"x")
    yield one("rank_million", entry("a", "U8", "[1" + ",1" * 1_000_000 + "]", "[0,1]"), b"x")
    for name, shape in {"number": "8", "nested": "[[8]]", "null": "null", "text": '"8"', "negative": "[-8]", "fraction": "[8.0]",
                        "exponent": "[8e0]",
                        "huge": "[1e400]", "leading_zero": "[08]", "texts": '["8"]', "trues": "[true]"}.items():
        yield one("shape_" + name, entry("a", "U8", shape, "[0,8]"))
    yield one("name_twice", good + "," + good)
    yield one("empty_name_twice", entry("a", "U8", "[0]", "[0,0]") + "," + entry("a", "F32", "[0]", "[0,0]"), b"")
    yield one("name_twice_by_escape", entry("a", "U8", "[8]", "[0,8]") + "," + entry("\\u0061", "U8", "[0]", "[8,8]"))
    yield one("name_empty", entry("", "U8", "[8]", "[0,8]"))
    yield one("name_with_nul", entry("a\\u0000b", "U8", "[8]", "[0,8]"))
    yield one("name_half_surrogate", entry("\\ud800", "U8", "[8]", "[0,8]"))
    yield one("name_reserved", entry("__metadata__", "U8", "[8]", "[0,8]"))
    yield one("name_long_with_wrong_type", entry("n" * 1_000_000, "U9", "[8]", "[0,8]"))
    yield one("name_of_lines", entry("\\n\\u001b[31mred", "U9", "[8]", "[0,8]"))
    yield "name_bad_utf8", raw(b'{"a\xff":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}', eight)
    yield "name_overlong_utf8", raw(b'{"\xc0\xaf":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}', eight)
    for name, value in {"number": '{"a":1}', "nested": '{"a":{"b":"c"}}', "text": '"pt"', "array": "[]", "null": "null",
                        "key_twice": '{"a":"1","a":"2"}',
                        "null_value": '{"a":null}'}.items():
        yield head("metadata_" + name, f'{{"__metadata__":{value}}}')
    yield head("metadata_twice", '{"__metadata__":{},"__metadata__":{}}')
    for field in ("dtype", "shape", "data_offsets"):
        info = {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}
        del info[field]
        yield head("missing_" + field, json.dumps({"a": info}), eight)
        yield head("twice_" + field, '{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8],"' + field + '":0}}', eight)
    yield head("unknown_field", '{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8],"strides":[1]}}', eight)
    for name, text in {"array": '{"a":[1,2]}', "true": '{"a":true}', "empty": '{"a":{}}', "null": '{"a":null}'}.items():
        yield head("tensor_" + name, text, eight)
    for name, text in broken_json({"a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}):
        if name not in ("empty", "zeros", "ones"):
            yield "json_" + name, raw(text, eight)
    yield head("blanks_alone", " " * 64)
    yield head("blank_in_front_of_nothing", " {")


def safetensors_cases():
    for name, content in broken_safetensors():
        changes = {"model.safetensors": content}
        yield Case("safetensors", name, "", changes, ["quantize", "{in}/model.safetensors", "{out}", "int8:row"])
        yield Case("safetensors", name + "/inspect", "", changes, ["inspect", "{in}/model.safetensors"])
    for name, make in {"fifo": fifo, "directory": directory, "device": link("/dev/zero"), "missing": link("nowhere"),
                       "loop": link("model.safetensors"),
                       "sparse_1_tib": sparse(2**40)}.items():
        yield Case("safetensors", name, "", {"model.safetensors": make}, ["quantize", "{in}/model.safetensors", "{out}", "int8:row"])
    for length in (0, 1, 7, 8, 9, 100, 1000, 4096, 30_000):
        def cut(path, length=length):
            data = path.read_bytes()
            path.write_bytes(data[:length])
        yield Case("safetensors", f"cut_at_{length}", "model", {"model.safetensors": cut}, ["quantize", "{in}", "{out}", "int8:row"])


# ---- index ----

def index_cases(place):
    good = json.loads((place / "sharded/model.safetensors.index.json").read_text())
    first = sorted(good["weight_map"])[0]
    shard = good["weight_map"][first]
    command = ["quantize", "{in}", "{out}", "int8:row"]
    file = "model.safetensors.index.json"
    case = lambda name, content, more={}: Case("index", name, "sharded", {file: content, **more}, command)
    for name, text in broken_json(good):
        yield case("json_" + name, text)
    for name, value in {"absolute": "/etc/passwd", "absolute_tensors": "/srv/model.safetensors", "parent": "../model.safetensors",
                        "inside_out": "a/../../model.safetensors", "hidden": ".model.safetensors",
                        "folder": "sub/model.safetensors", "missing": "model-00009-of-00003.safetensors", "empty": "", "dot": ".",
                        "other_kind": "pytorch_model.bin",
                        "backslash": "..\\model.safetensors", "drive": "C:model.safetensors", "nul": "model\0.safetensors",
                        "newline": "a\n.safetensors", "long": "m" * 300 + ".safetensors",
                        "very_long": "m" * 1_000_000 + ".safetensors", "wrong_shard": sorted(set(good["weight_map"].values()))[-1],
                        "number": 3, "null": None, "array": [shard], "object": {},
                        "case_twin": shard.upper().replace(".SAFETENSORS", ".safetensors"),
                        "url": "https://example.org/model.safetensors"}.items():
        yield case("file_" + name, changed(good, ["weight_map", first], value))
    yield case("tensor_left_out", changed(good, ["weight_map", first], ...))
    yield case("tensor_too_many", changed(good, ["weight_map", "model.layers.9.weight"], shard))
    yield case("no_weight_map", changed(good, ["weight_map"], ...))
    for name, value in {"null": None, "array": [], "text": "x", "number": 1, "empty": {}}.items():
        yield case("weight_map_" + name, changed(good, ["weight_map"], value))
    for name, value in {"array": [], "text": "x", "null": None}.items():
        yield case("metadata_" + name, changed(good, ["metadata"], value))
    def other(path):
        path.write_bytes(path.read_bytes()[:-1])
    yield Case("index", "shard_cut", "sharded", {shard: other}, command)
    for name, make in {"fifo": fifo, "directory": directory, "link_out": link("../../seeds/model/model.safetensors"),
                       "device": link("/dev/zero"), "dangling": link("nowhere")}.items():
        def replace(path, make=make):
            path.unlink()
            make(path)
        yield Case("index", "shard_" + name, "sharded", {shard: replace}, command)
        yield Case("index", "index_" + name, "sharded", {file: replace}, command)
    def twin(path):
        path.write_bytes(seeds.safetensors({first: ("U8", [1], b"x")}))
        text = json.loads((path.parent / file).read_text())
        text["weight_map"]["another"] = path.name
        (path.parent / file).write_text(json.dumps(text))
    yield Case("index", "tensor_in_two_shards", "sharded", {"model-twin.safetensors": twin}, command)
    yield Case("index", "index_too_large", "sharded", {file: sparse(2**28 + 1)}, command)


# ---- config.json of a model ----

def config_cases(place):
    good = json.loads((place / "model/config.json").read_text())
    command = ["eval", "{in}", "--tokens", "{seeds}/tokens.safetensors"]
    case = lambda name, content: Case("config", name, "model", {"config.json": content}, command)
    for name, text in broken_json(good):
        if name != "array":
            yield case("json_" + name, text)
        if name not in ("empty",):
            yield Case("config", "quantize/json_" + name, "model", {"config.json": text}, ["quantize", "{in}", "{out}", "int8:row"])
    sizes = {"zero": 0, "negative": -1, "2_31": 2**31, "2_63": 2**63, "2_64": 2**64, "fraction": 64.5, "text": "64", "array": [64],
             "true": True, "object": {}, "1e308": 1e308}
    for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
                "vocab_size"):
        for name, value in sizes.items():
            yield case(f"{key}_{name}", changed(good, [key], value))
        yield case(f"{key}_large", changed(good, [key], 2**24))
    for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "model_type"):
        yield case(f"no_{key}", changed(good, [key], ...))
    for name, value in sizes.items():
        yield case(f"max_position_embeddings_{name}", changed(good, ["max_position_embeddings"], value))
    for name, value in {"number": 3, "unknown": "mamba", "null": None, "long": "x" * 500_000, "array": ["llama"],
                        "lines": "a\nb"}.items():
        yield case(f"model_type_{name}", changed(good, ["model_type"], value))
    for name, value in {"text": "1e-5", "negative": -1e-5, "array": [1e-5]}.items():
        yield case(f"rms_norm_eps_{name}", changed(good, ["rms_norm_eps"], value))
    for name, value in {"zero": 0, "one": 1, "negative": -1, "text": "x", "array": [], "object": {}}.items():
        yield case(f"rope_theta_{name}", changed(good, ["rope_theta"], value))
    for name, value in {"text": "yarn", "array": [], "unknown": {"rope_type": "spiral", "factor": 2}, "no_factor": {"rope_type": "linear"},
                        "zero_factor": {"rope_type": "linear", "factor": 0},
                        "negative_factor": {"rope_type": "dynamic", "factor": -2}, "llama3_without": {"rope_type": "llama3", "factor": 8},
                        "type_number": {"rope_type": 3},
                        "llama3_crossed": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1},
                        "yarn_zero_length": {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 0},
                        "yarn_huge_length": {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 1e300},
                        "yarn_zero_beta": {"rope_type": "yarn", "factor": 2, "beta_fast": 0},
                        "yarn_negative_beta": {"rope_type": "yarn", "factor": 2, "beta_slow": -1}, "partial": {"rope_type": "default",
                        "partial_rotary_factor": 0.5},
                        "yarn_text": {"rope_type": "yarn", "factor": 2, "mscale": "x"}}.items():
        yield case(f"rope_{name}", changed(good, ["rope_scaling"], value))
    for name, value in {"number": 1, "text": "true", "null_text": "null"}.items():
        yield case(f"tie_word_embeddings_{name}", changed(good, ["tie_word_embeddings"], value))
    for name, value in {"relu": "relu", "number": 1, "array": []}.items():
        yield case(f"hidden_act_{name}", changed(good, ["hidden_act"], value))
    for name, value in {"text": "0", "object": {}, "fractions": [0.5]}.items():
        yield case(f"eos_token_id_{name}", changed(good, ["eos_token_id"], value))
    yield case("uneven_heads", changed(changed_document(good, "num_attention_heads", 3), ["num_key_value_heads"], 2))
    yield case("odd_head_dim", changed(good, ["head_dim"], 31))
    for name, make in {"fifo": fifo, "directory": directory, "link_out": link("../../seeds/sharded/config.json"),
                       "too_large": sparse(2**28 + 1)}.items():
        def replace(path, make=make):
            path.unlink()
            make(path)
        yield Case("config", "file_" + name, "model", {"config.json": replace}, command)
    for name, value in {"text": "gptq", "unknown": {"quant_method": "magic"}, "narrow": {"quant_method": "narrow"}, "array": [1],
                        "number": 4, "method_number": {"quant_method": 4},
                        "method_long": {"quant_method": "x" * 1_000_000}}.items():
        yield Case("config", "quantization_config_" + name, "model", {"config.json": changed({**good, "quantization_config": 0},
                   ["quantization_config"], value)},
                   ["quantize", "{in}", "{out}", "int8:row"])


def changed_document(document, key, value):
    return {**document, key: value}


# ---- tokenizer.json ----

def tokenizer_cases(place):
    good = json.loads((place / "model/tokenizer.json").read_text())
    command = ["tokenize", "{in}", "{seeds}/text.txt"]
    case = lambda name, content: Case("tokenizer", name, "model", {"tokenizer.json": content}, command)
    for name, text in broken_json(good):
        yield case("json_" + name, text)
    for path in (["model"], ["model", "vocab"], ["model", "merges"]):
        for name, value in {"gone": ..., "null": None, "number": 5, "text": "x", "true": True}.items():
            yield case("_".join(path) + "_" + name, changed(good, path, value))
    for name, value in {"negative": -1, "2_24": 2**24, "almost_2_24": 2**24 - 1, "2_31": 2**31, "2_32": 2**32 + 5, "2_63": 2**63,
                        "2_64": 2**64, "fraction": 1.5, "text": "7", "null": None, "array": [7],
                        "1e300": 1e300}.items():
        yield case("token_number_" + name, changed(good, ["model", "vocab", "the"], value))
        yield case("added_number_" + name, changed(good, ["added_tokens", 0, "id"], value))
    for name, value in {"no_blank": ["th"], "unknown_left": ["qq e"], "unknown_result": ["e t"], "number": [3], "null": [None],
                        "single": [["t"]], "numbers": [[1, 2]], "letters": [["t", "\u4e2d"]],
                        "object": [{}], "empty": [""], "blank": [" "]}.items():
        yield case("merge_" + name, changed(good, ["model", "merges"], value))
    for name, value in {"wordpiece": "WordPiece", "unigram": "Unigram", "number": 1, "null": None}.items():
        yield case("model_type_" + name, changed(good, ["model", "type"], value))
    yield case("byte_fallback", changed(changed_model(good, "byte_fallback", True), ["version"], "1"))
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        yield case(key, changed(changed_model(good, key, "##"), ["version"], "1"))
    yield case("ignore_merges_text", changed(changed_model(good, "ignore_merges", "yes"), ["version"], "1"))
    for part in ("normalizer", "pre_tokenizer", "decoder", "post_processor"):
        for name, value in {"number": 1, "text": "x", "no_type": {}, "type_number": {"type": 1}, "unknown": {"type": "Magic"}, "array": [1],
                            "long": {"type": "M" * 1_000_000}}.items():
            yield case(f"{part}_{name}", changed(good, [part], value))
    nested = lambda kind, key, depth: {"type": kind, key: [nested(kind, key, depth - 1)] if depth else []}
    yield case("no_pre_tokenizer", changed(good, ["pre_tokenizer"], None))
    yield case("normalizers_nested", changed(good, ["normalizer"], nested("Sequence", "normalizers", 40)))
    for name, value in {"no_pattern": {"type": "Split"}, "number": {"type": "Split", "pattern": 1}, "other": {"type": "Split",
                        "pattern": {"Regex": "(a+)+$"}}, "string": {"type": "Split", "pattern": {"String": "x"}},
                        "removed": {"type": "Split", "pattern": {"Regex": "'s"}, "behavior": "Removed"}}.items():
        yield case("split_" + name, changed(good, ["pre_tokenizer"], {"type": "Sequence", "pretokenizers": [value, {"type": "ByteLevel"}]}))
    yield case("pretokenizers_text", changed(good, ["pre_tokenizer"], {"type": "Sequence", "pretokenizers": "x"}))
    for name, value in {"no_single": {"type": "TemplateProcessing"}, "unknown_token": {"type": "TemplateProcessing",
                        "single": [{"SpecialToken": {"id": "<x>"}}], "special_tokens": {}},
                        "single_number": {"type": "TemplateProcessing", "single": [1]}, "ids_text": {"type": "TemplateProcessing",
                        "single": [{"SpecialToken": {"id": "a"}}], "special_tokens": {"a": {"ids": ["x"]}}},
                        "ids_beyond": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "a"}}],
                        "special_tokens": {"a": {"ids": [99_999_999]}}},
                        "ids_negative": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "a"}}],
                        "special_tokens": {"a": {"ids": [-1]}}},
                        "ids_huge": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "a"}}],
                        "special_tokens": {"a": {"ids": [2**40 + 3]}}}}.items():
        yield case("template_" + name, changed(good, ["post_processor"], value))
    for name, value in {"text": "x", "number": 1, "strings": ["<s>"], "no_id": [{"content": "x"}], "no_content": [{"id": 5}],
                        "empty_content": [{"id": 5, "content": ""}],
                        "content_number": [{"id": 5, "content": 5}], "special_text": [{"id": 5, "content": "x", "special": "yes"}]}.items():
        yield case("added_" + name, changed(good, ["added_tokens"], value))
    for name, make in {"fifo": fifo, "directory": directory, "missing": link("nowhere"), "too_large": sparse(2**28 + 1)}.items():
        def replace(path, make=make):
            path.unlink()
            make(path)
        yield Case("tokenizer", "file_" + name, "model", {"tokenizer.json": replace}, command)
    def bad_text(path):
        path.write_bytes(b"abc \xff\xfe def")
    yield Case("tokenizer", "text_not_utf8", "model", {"text.txt": bad_text}, ["tokenize", "{in}", "{in}/text.txt"])


def changed_model(document, key, value):
    copy = json.loads(json.dumps(document))
    copy["model"][key] = value
    return copy


# ---- recipes ----

def recipe_cases():
    command = ["plan", "{seeds}/model", "--recipe", "{in}/recipe.yaml"]
    texts = dict(disguises())
    texts.update({"list": b"- int8:row\n", "text": b"int8:row\n", "number": b"7\n", "null": b"null\n", "no_scheme": b"ignore: [lm_head]\n",
                  "scheme_twice": b"scheme: int8:row\nscheme: int4:row\n",
                  "unknown_key": b"scheme: int8:row\nmagic: 1\n", "scheme_list": b"scheme: [int8:row]\n", "scheme_map": b"scheme: {a: b}\n",
                  "scheme_null": b"scheme:\n", "scheme_unknown": b"scheme: int77:row\n",
                  "scheme_long": b"scheme: " + b"x" * 500_000 + b"\n", "scheme_block_0": b"scheme: int4:block0\n",
                  "scheme_block_huge": b"scheme: int4:block99999999999999999999\n", "scheme_negative": b"scheme: int4:block-32\n",
                  "targets_map": b"scheme: int8:row\ntargets: {a: b}\n", "targets_nested": b"scheme: int8:row\ntargets: [[a]]\n",
                  "rules_text": b"scheme: int8:row\nrules: x\n", "rule_no_scheme": b"scheme: int8:row\nrules: [{match: a}]\n",
                  "rule_three": b"scheme: int8:row\nrules: [{match: a, scheme: int4:row, x: y}]\n",
                  "rule_text": b"scheme: int8:row\nrules: [abc]\n", "rule_bad_scheme": b"scheme: int8:row\nrules: ['a=int99']\n",
                  "rule_number": b"scheme: int8:row\nrules: [[1]]\n", "regex_open": b"scheme: int8:row\nignore: ['re:(']\n",
                  "regex_star": b"scheme: int8:row\nignore: ['re:*']\n",
                  "regex_backreference": b"scheme: int8:row\nignore: ['re:(a)\\1']\n",
                  "regex_counts": b"scheme: int8:row\nignore: ['re:((a{999}){999}){999}']\n",
                  "regex_long": b"scheme: int8:row\nignore: ['re:" + b"a?" * 300 + b"']\n",
                  "regex_groups": b"scheme: int8:row\nignore: ['re:" + b"(" * 250 + b")" * 249 + b"']\n",
                  "pattern_empty": b"scheme: int8:row\nignore: ['']\n", "tab": b"scheme: int8:row\n\tignore: x\n",
                  "open_quote": b"scheme: 'int8:row\n",
                  "open_list": b"scheme: int8:row\nignore: [a\n", "unknown_alias": b"scheme: *x\n",
                  "unknown_tag": b"scheme: !!python/object:os.system {a: b}\n",
                  "deep_lists": b"scheme: int8:row\nignore: " + b"[" * 100_000,
                  "deep_maps": b"scheme: int8:row\nignore: " + b"{a: " * 50_000, "deep_lines": b"- " * 100_000 + b"\n",
                  "billion_laughs": b"scheme: int8:row\na: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\nignore: *c\n",
                  "self_alias": b"scheme: int8:row\nignore: &x [*x]\n", "two_documents": b"---\nignore: [a]\n---\nscheme: int8:row\n",
                  "bad_utf8": b"scheme: int8:row\n\xff\xfe: 1\n", "nul": b"scheme: int8:row\0\n",
                  "complex_key": b"? [a, b]\n: c\nscheme: int8:row\n", "merge_key": b"scheme: int8:row\n<<: 3\n",
                  "directive": b"%YAML 9.9\n---\nscheme: int8:row\nx: 1\n", "colon_only": b":\n", "wide_scheme": b"scheme: fp32\n"})
    for name, text in texts.items():
        yield Case("recipe", name, "", {"recipe.yaml": text}, command)
        yield Case("recipe", name + "/quantize", "", {"recipe.yaml": text}, ["quantize", "{seeds}/model", "{out}", "--recipe",
                   "{in}/recipe.yaml"])
    for name, make in {"fifo": fifo, "directory": directory, "missing": link("nowhere"), "too_large": sparse(2**20 + 1),
                       "device": link("/dev/zero")}.items():
        yield Case("recipe", "file_" + name, "", {"recipe.yaml": make}, command)


# ---- scheme strings of the command line ----

def scheme_cases():
    for i, text in enumerate(["", ":", "int8:", "int8:row:row", "int0:row", "int-4:row", "int99", "fp8_e9m9", "fp99999999999_e1m1",
                              "int4:block", "int4:block0", "int4:block-1", "int4:block1e9", "int4:0x0",
                              "int4:99999999999999999999x1", "int4:block32:scale=", "int4:block32:scale=nope", "nvfp4:block3",
                              "fp6_e3m2:row:asym", "x" * 100_000, "int8:row\n", "int8:row\x1b[31m", "../../etc/passwd",
                              "%s%s%n", "{}", "int4:block32:asym:asym", "int4:block32:scale=fp16:scale=fp16"]):
        yield Case("scheme", f"text_{i}", "model", {}, ["quantize", "{in}", "{out}", text])


# ---- GGUF ----

def gguf_string(text):
    data = text.encode() if isinstance(text, str) else text
    return LITTLE("<Q", len(data)) + data


def gguf(pairs=(), tensors=(), magic=b"GGUF", version=3, tensor_count=None, pair_count=None, data=b"", alignment=32):
    out = magic + LITTLE("<I", version) + LITTLE("<q", len(tensors) if tensor_count is None else tensor_count) + LITTLE("<q",
            len(pairs) if pair_count is None else pair_count)
    out += b"".join(pairs) + b"".join(tensors)
    return out + bytes(-len(out) % alignment) + data


def gguf_pair(key, kind, value):
    return gguf_string(key) + LITTLE("<I", kind) + value


def gguf_tensor(name="t", shape=(32,), kind=0, offset=0, dimensions=None):
    return gguf_string(name) + LITTLE("<I", len(shape) if dimensions is None else dimensions) + b"".join(LITTLE("<q",
            n) for n in shape) + LITTLE("<IQ", kind, offset)


def gguf_cases():
    u32 = lambda value: LITTLE("<I", value)
    files = dict(disguises())
    data = bytes(128)
    good = gguf([gguf_pair("general.architecture", 8, gguf_string("llama"))], [gguf_tensor()], data=data)
    for length in (1, 4, 8, 12, 16, 20, 24, 28, 40, 70, 100, 130):
        files[f"cut_at_{length}"] = good[:length]
    files["magic"] = gguf(magic=b"GGUX")
    for version in (0, 1, 4, 3 << 24, 2**32 - 1):
        files[f"version_{version}"] = gguf(version=version)
    for count in (-1, 1, 2**31, 2**62, 2**63 - 1, -(2**63)):
        files[f"tensor_count_{count}"] = gguf(tensor_count=count)
        files[f"pair_count_{count}"] = gguf(pair_count=count)
    for length in (2**30, 2**62, 2**63, 2**64 - 1, 2**64 - 24):
        files[f"key_length_{length}"] = gguf([LITTLE("<Q", length) + b"abc"])
        files[f"string_length_{length}"] = gguf([gguf_string("k") + u32(8) + LITTLE("<Q", length)])
        files[f"name_length_{length}"] = gguf(tensors=[LITTLE("<Q", length) + b"abc"])
        files[f"array_length_{length}"] = gguf([gguf_string("k") + u32(9) + u32(0) + LITTLE("<Q", length)])
    for kind in (13, 99, 2**32 - 1):
        files[f"value_type_{kind}"] = gguf([gguf_pair("k", kind, bytes(8))])
        files[f"array_type_{kind}"] = gguf([gguf_pair("k", 9, u32(kind) + LITTLE("<Q", 1) + bytes(8))])
    files["array_of_arrays"] = gguf([gguf_pair("k", 9, (u32(9) + LITTLE("<Q", 1)) * 10_000)])
    files["key_empty"] = gguf([gguf_pair("", 4, u32(1))])
    files["key_twice"] = gguf([gguf_pair("k", 4, u32(1))] * 2)
    for alignment in (0, 3, 5, 33, 2**31 + 1):
        files[f"alignment_{alignment}"] = gguf([gguf_pair("general.alignment", 4, u32(alignment))], [gguf_tensor()], data=data)
    files["alignment_2_31"] = gguf([gguf_pair("general.alignment", 4, u32(2**31))], [gguf_tensor()], data=data)
    files["alignment_text"] = gguf([gguf_pair("general.alignment", 8, gguf_string("32"))], [gguf_tensor()], data=data)
    files["alignment_64_bits"] = gguf([gguf_pair("general.alignment", 10, LITTLE("<Q", 32))], [gguf_tensor()], data=data)
    for dimensions in (0, 5, 2**31, 2**32 - 1):
        files[f"dimensions_{dimensions}"] = gguf(tensors=[gguf_tensor(dimensions=dimensions)], data=data)
    for name, shape in {"negative": (-32,), "wraps": (2**62, 4), "wraps_to_zero": (2**32, 2**32), "beside_zero": (0, 2**62, 2**62),
                        "2_42": (2**42 + 1, 2**22), "huge": (2**55,), "odd": (31,)}.items():
        files["shape_" + name] = gguf(tensors=[gguf_tensor(shape=shape, kind=8 if name == "odd" else 0)], data=data)
    for kind in (4, 5, 31, 99, 2**32 - 1):
        files[f"type_{kind}"] = gguf(tensors=[gguf_tensor(kind=kind)], data=data)
    for name, offset in {"one": 1, "beyond": 4096, "2_63": 2**63, "all_ones": 2**64 - 1, "wraps": 2**64 - 96}.items():
        files["offset_" + name] = gguf(tensors=[gguf_tensor(offset=offset)], data=data)
    files["no_data"] = gguf(tensors=[gguf_tensor()])
    files["name_empty"] = gguf(tensors=[gguf_tensor("")], data=data)
    files["name_64"] = gguf(tensors=[gguf_tensor("n" * 64)], data=data)
    files["name_twice"] = gguf(tensors=[gguf_tensor(), gguf_tensor(offset=128)], data=data * 2)
    files["overlap"] = gguf(tensors=[gguf_tensor("a"), gguf_tensor("b")], data=data)
    files["gap"] = gguf(tensors=[gguf_tensor("a"), gguf_tensor("b", offset=256)], data=data * 3)
    files["name_of_lines"] = gguf(tensors=[gguf_tensor("a\n\x1b[31m", offset=5)], data=data)
    files["name_bad_utf8"] = gguf(tensors=[gguf_tensor(b"\xff\xfe", offset=5)], data=data)
    for name, content in files.items():
        yield Case("gguf", name, "", {"model.gguf": content}, ["{in}/model.gguf"], program="read_gguf")
        yield Case("gguf", name + "/convert", "", {"model.gguf": content}, ["convert", "{in}/model.gguf", "{out}", "--to", "narrow"])


# ---- tokens ----

def token_cases():
    command = ["eval", "{seeds}/model", "--tokens", "{in}/tokens.safetensors"]
    i32 = lambda *numbers: b"".join(LITTLE("<i", n) for n in numbers)
    make = lambda dtype, shape, data, name="eval": seeds.safetensors({name: (dtype, shape, data)})
    files = dict(disguises())
    files.update({"no_tensor": make("I32", [1, 2], i32(1, 2), "calib"), "nothing": seeds.safetensors({}), "rank_0": make("I32", [], i32(1)),
                  "rank_1": make("I32", [2], i32(1, 2)), "rank_3": make("I32", [1, 1, 2], i32(1, 2)),
                  "floats": make("F32", [1, 2], bytes(8)), "bytes": make("U8", [1, 2], bytes(2)), "bools": make("BOOL", [1, 2], bytes(2)),
                  "negative": make("I32", [1, 2], i32(1, -1)), "beyond_vocabulary": make("I32", [1, 2], i32(1, 264)),
                  "largest": make("I32", [1, 2], i32(1, 2**31 - 1)), "i64_huge": make("I64", [1, 2], LITTLE("<qq", 1, 2**40)),
                  "i64_negative": make("I64", [1, 2], LITTLE("<qq", 1, -(2**63))),
                  "u32_huge": make("U32", [1, 2], LITTLE("<II", 1, 2**32 - 1)), "no_windows": make("I32", [0, 16], b""),
                  "no_length": make("I32", [4, 0], b""), "length_1": make("I32", [4, 1], i32(1, 2, 3, 4)),
                  "many_empty_windows": make("I32", [100_000_000, 0], b""), "most_empty_windows": make("I32", [2**40, 0], b""),
                  "quantized": make("F8_E4M3", [1, 2], b"xx")})
    for name, content in files.items():
        yield Case("tokens", name, "", {"tokens.safetensors": content}, command)
        yield Case("tokens", name + "/calibrate", "", {"tokens.safetensors": content.replace(b'"eval"',
                                                       b'"calib"') if b'"eval"' in content else content}
                   if name not in ("no_tensor", "nothing") else {"tokens.safetensors": seeds.safetensors({})},
                   ["calibrate", "{seeds}/model", "--tokens", "{in}/tokens.safetensors", "-o", "{out}"]) if name != "length_1" else None
    for name, maker in {"fifo": fifo, "directory": directory, "missing": link("nowhere"), "device": link("/dev/zero")}.items():
        yield Case("tokens", "file_" + name, "", {"tokens.safetensors": maker}, command)


# ---- calibration statistics ----

def stats_cases(place):
    tensors, metadata = seeds.read_safetensors(place / "stats.safetensors")
    names = sorted(tensors)
    histogram, ranges, channels = (next(n for n in names if n.endswith(s)) for s in (".histogram", ".range", ".channel_max"))
    moment = next(n for n in names if n.endswith(".second_moment"))
    def variant(change, about=None):
        copy = dict(tensors)
        change(copy)
        return seeds.safetensors(copy, metadata if about is None else about)
    def number(index, value):
        def change(copy):
            dtype, shape, data = copy[ranges]
            copy[ranges] = (dtype, shape, data[: 8 * index] + LITTLE("<d", value) + data[8 * index + 8 :])
        return change
    def put(name, dtype, shape, data):
        return lambda copy: copy.__setitem__(name, (dtype, shape, data))
    def edit(name, data_of):
        def change(copy):
            dtype, shape, data = copy[name]
            copy[name] = (dtype, shape, data_of(data))
        return change
    files = dict(disguises())
    files["no_metadata"] = seeds.safetensors(tensors)
    files["other_format"] = seeds.safetensors(tensors, {"format": "pt"})
    files["other_version"] = seeds.safetensors(tensors, {**metadata, "version": "99"})
    files["shares_unknown"] = seeds.safetensors(tensors, {**metadata, "shares.a": "nowhere"})
    files["shares_lines"] = seeds.safetensors(tensors, {**metadata, "shares.a\nb": "no\nwhere"})
    files["shares_long"] = seeds.safetensors(tensors, {**metadata, "shares.a": "x" * 1_000_000})
    for name in (ranges, channels):
        files["without" + name[name.rindex(".") :]] = variant(lambda copy, name=name: copy.pop(name))
    files["histogram_short"] = variant(put(histogram, "I64", [4], bytes(32)))
    files["histogram_type"] = variant(lambda copy: put(histogram, "F64", copy[histogram][1], copy[histogram][2])(copy))
    files["histogram_negative"] = variant(edit(histogram, lambda data: LITTLE("<q", -1) + data[8:]))
    files["histogram_overflow"] = variant(edit(histogram, lambda data: LITTLE("<qq", 2**63 - 1, 2**63 - 1) + data[16:]))
    for index, field in enumerate(("tokens", "batches", "minimum", "maximum", "average_minimum", "average_maximum", "exponent")):
        for name, value in {"nan": float("nan"), "inf": float("inf"), "minus_inf": float("-inf")}.items():
            files[f"{field}_{name}"] = variant(number(index, value))
    for field, index in {"tokens": 0, "batches": 1, "exponent": 6}.items():
        for name, value in {"1e300": 1e300, "minus_1e300": -1e300, "negative": -1.0 if field != "exponent" else -1000.0,
                            "fraction": 0.5}.items():
            files[f"{field}_{name}"] = variant(number(index, value))
    files["crossed"] = variant(number(2, 1e9))
    files["exponent_4000"] = variant(number(6, 4000.0))
    files["channels_empty"] = variant(put(channels, "F32", [0], b""))
    files["channels_rank_0"] = variant(put(channels, "F32", [], bytes(4)))
    files["channels_rank_2"] = variant(put(channels, "F32", [2, 2], bytes(16)))
    files["channels_type"] = variant(put(channels, "I32", [64], bytes(256)))
    files["channels_nan"] = variant(edit(channels, lambda data: LITTLE("<f", float("nan")) + data[4:]))
    files["channels_negative"] = variant(edit(channels, lambda data: LITTLE("<f", -1.0) + data[4:]))
    files["channels_inf"] = variant(edit(channels, lambda data: LITTLE("<f", float("inf")) + data[4:]))
    files["range_short"] = variant(put(ranges, "F64", [2], bytes(16)))
    files["moment_short"] = variant(put(moment, "F64", [2, 2], bytes(32)))
    files["moment_type"] = variant(lambda copy: put(moment, "F32", copy[moment][1], copy[moment][2][: len(copy[moment][2]) // 2])(copy))
    files["moment_nan"] = variant(edit(moment, lambda data: LITTLE("<d", float("nan")) + data[8:]))
    files["moment_negative_diagonal"] = variant(edit(moment, lambda data: LITTLE("<d", -1.0) + data[8:]))
    files["nothing"] = seeds.safetensors({}, metadata={"format": "narrow-calibration", "version": "1"})
    files["model_instead"] = (place / "model/model.safetensors").read_bytes()
    for name, content in files.items():
        yield Case("stats", name, "", {"stats.safetensors": content}, ["calibrate", "{seeds}/model", "--merge", "{in}/stats.safetensors",
                   "-o", "{out}"])
        yield Case("stats", name + "/quantize", "", {"stats.safetensors": content},
                   ["quantize", "{seeds}/model", "{out}", "int8:row", "--activations", "int8:tensor:static", "--stats",
                   "{in}/stats.safetensors"])


# ---- narrow's own manifest ----

def manifest_cases(place):
    file = "narrow_manifest.json"
    text = (place / "narrow" / file).read_text()
    good = json.loads(text)
    name = next(n for n, t in good["tensors"].items() if "scheme" in t)
    plain = next(n for n, t in good["tensors"].items() if "scheme" not in t)
    shard = next(iter(good["files"]))
    command = ["dequantize", "{in}", "{out}"]
    def printed(document):
        document = dict(document)
        tail = document.pop("manifest_xxh3", "0" * 16)
        return (json.dumps(document, indent=1)[:-2] + f',\n "manifest_xxh3": "{tail}"\n}}\n').encode()
    def put(path, value):
        return printed(json.loads(changed(good, path, value)))
    case = lambda label, content, sealed=True: Case("manifest", label, "narrow", {file: content}, command, sealed=sealed)
    for label, content in broken_json(good):
        yield case("json_" + label, content, sealed=False)
    yield case("hash_wrong", printed({**good, "manifest_xxh3": "f" * 16}), sealed=False)
    yield case("edited", text.replace('"BF16"', '"F32"').encode(), sealed=False)
    for key in ("format", "format_version", "narrow_version", "files", "side_files", "tensors"):
        for label, value in {"gone": ..., "null": None, "number": 99, "array": [], "text": "x"}.items():
            if not (key == "narrow_version" and label == "text") and not (key == "side_files" and label == "array") :
                yield case(f"{key}_{label}", put([key], value))
    tensor = ["tensors", name]
    for label, value in {"empty": {}, "null": None, "array": [], "text": "x"}.items():
        yield case("tensor_" + label, put(tensor, value))
    for key in ("shape", "source_dtype", "source_xxh3", "stored"):
        for label, value in {"gone": ..., "null": None, "number": 7, "text": "x", "object": {}}.items():
            yield case(f"{key}_{label}", put(tensor + [key], value))
    for label, value in {"unknown": "int77", "other": "int8:row", "number": 4, "empty": "", "huge_block": "int4:block9223372036854775807",
                         "long": "x" * 500_000}.items():
        yield case("scheme_" + label, put(tensor + ["scheme"], value))
    yield case("scheme_gone", put(tensor + ["scheme"], ...))
    yield case("scheme_on_plain", put(["tensors", plain, "scheme"], "int8:row"))
    for label, value in {"negative": [-1, 64], "fraction": [1.5, 64], "wraps": [2**62, 2**62], "2_63": [2**63, 1], "2_64": [2**64, 1],
                         "zero_beside_huge": [0, 2**62, 2**62], "empty": [], "texts": ["64", "64"], "other": [64, 65],
                         "swapped": [1, 4096], "rank_100000": [1] * 100_000, "nested": [[64]]}.items():
        yield case("shape_" + label, put(tensor + ["shape"], value))
    part = name + ".codes"
    for label, value in {"gone": ..., "null": None, "no_hash": {"file": shard}, "no_file": {"xxh3": "0" * 16}, "bad_hash": {"file": shard,
                         "xxh3": "xyz"}, "other_file": {"file": "other.safetensors", "xxh3": "0" * 16},
                         "path": {"file": "../x.safetensors", "xxh3": "0" * 16}, "upper_hash": {"file": shard, "xxh3": "A" * 16}}.items():
        yield case("part_" + label, put(tensor + ["stored", part], value))
    yield case("part_too_many", put(tensor + ["stored", name + ".more"], {"file": shard, "xxh3": "0" * 16}))
    for label, value in {"bytes_less": {**good["files"][shard], "bytes": 10}, "bytes_huge": {**good["files"][shard], "bytes": 2**63},
                         "bytes_negative": {**good["files"][shard], "bytes": -1}, "bytes_text": {**good["files"][shard], "bytes": "9"},
                         "no_header": {"bytes": 3}}.items():
        yield case("file_" + label, put(["files", shard], value))
    yield case("file_too_many", put(["files", "more.safetensors"], good["files"][shard]))
    yield case("file_parent", put(["files", "../more.safetensors"], good["files"][shard]))
    yield case("side_file_parent", put(["side_files", "../config.json"], {"bytes": 1, "xxh3": "0" * 16}))
    yield case("dtype_of_codes", put(tensor + ["source_dtype"], "U8"))
    yield case("tensor_left_out", put(["tensors", plain], ...))
    for label, make in {"fifo": fifo, "directory": directory, "too_large": sparse(2**28 + 1)}.items():
        def replace(path, make=make):
            path.unlink()
            make(path)
        yield Case("manifest", "file_" + label, "narrow", {file: replace}, command)
    yield Case("manifest", "gone", "narrow", {file: lambda path: path.unlink()}, command)


# ---- other ecosystems ----

def interop_cases(place):
    bad = {"gone": ..., "null": None, "text": "x", "zero": 0, "minus_two": -2, "2_31": 2**31, "2_32_more": 2**32 + 4, "2_63": 2**63,
           "fraction": 4.5, "array": [], "object": {}, "true": True}
    def case(form, name, content):
        return Case("interop", f"{form}/{name}", form, {"config.json": content}, ["convert", "{in}", "{out}", "--to", "narrow"])
    for form in ("gptq", "awq"):
        good = json.loads((place / form / "config.json").read_text())
        q = ["quantization_config"]
        for key in ("bits", "group_size"):
            for name, value in bad.items():
                if (form, key, name) != ("awq", "bits", "gone"):
                    yield case(form, f"{key}_{name}", changed(good, q + [key], value))
            for value in (1, 5, 6, 7, 9, 16, 32, 33):
                if not (key == "group_size" and value in (32, 33)):  # 33: the g_idx says which group
                    yield case(form, f"{key}_{value}", changed(good, q + [key], value))
    good = json.loads((place / "gptq/config.json").read_text())
    q = ["quantization_config"]
    for name, value in {"marlin": "marlin", "number": 2, "null": None}.items():
        yield case("gptq", "checkpoint_format_" + name, changed(good, q + ["checkpoint_format"], value))
    for name, pattern in {"open": "+:(", "star": "+:*", "counts": "+:((a{999}){999}){999}", "groups": "+:" + "(" * 200}.items():
        yield case("gptq", "dynamic_" + name, changed(good, q + ["dynamic"], {pattern: {"bits": 3}}))
    yield case("gptq", "dynamic_other_bits", changed(good, q + ["dynamic"], {"+:.*": {"bits": 8}}))
    yield case("gptq", "dynamic_exponential", changed(good, q + ["dynamic"], {"+:(([a-z0-9._]+)+)+!": {"bits": 4}, "+:.*": {"bits": 8}}))
    good = json.loads((place / "awq/config.json").read_text())
    for name, value in {"gemv": "gemv", "number": 1, "null": None, "long": "x" * 100_000}.items():
        yield case("awq", "version_" + name, changed(good, q + ["version"], value))
    good = json.loads((place / "fp8/config.json").read_text())
    for name, value in {**bad, "zeros": [0, 0], "negative": [-128, 128], "one": [128], "texts": ["128", "128"], "other": [64, 64],
                        "huge": [2**62, 2**62], "2_63": [2**63, 1]}.items():
        yield case("fp8", "weight_block_size_" + name, changed(good, q + ["weight_block_size"], value))
    for form in ("ct", "ct_int8", "ct_fp8", "ct_nvfp4"):
        good = json.loads((place / form / "config.json").read_text())
        group = q + ["config_groups", "group_0"]
        for name, value in {"gone": ..., "null": None, "array": [], "number": 1, "empty": {}}.items():
            yield case(form, "config_groups_" + name, changed(good, q + ["config_groups"], value))
        for name, value in {"gone": ..., "null": None, "number": 1, "text": "Linear", "numbers": [1], "open_regex": ["re:("],
                            "other": ["Conv2d"], "counts": ["re:((a{999}){999}){999}"]}.items():
            yield case(form, "targets_" + name, changed(good, group + ["targets"], value))
        for name, value in {"gone": ..., "null": None, "array": [], "text": "x"}.items():
            yield case(form, "weights_" + name, changed(good, group + ["weights"], value))
    strategies = {"unknown": {"strategy": "magic"}, "number": {"strategy": 4}, "block_without": {"strategy": "block"},
                  "block_zeros": {"strategy": "block", "block_structure": [0, 0]}, "block_text": {"strategy": "block",
                  "block_structure": "0x0"},
                  "block_words": {"strategy": "block", "block_structure": "axb"}, "block_negative": {"strategy": "block",
                  "block_structure": [-1, -1]}, "block_huge": {"strategy": "block", "block_structure": [2**62, 2**62]},
                  "block_one": {"strategy": "block", "block_structure": [128]}, "group_zero": {"strategy": "group", "group_size": 0},
                  "group_none": {"strategy": "group", "group_size": None}, "group_7": {"strategy": "group", "group_size": 7},
                  "group_negative": {"strategy": "group", "group_size": -5}, "group_huge": {"strategy": "group", "group_size": 2**62},
                  "tensor": {"strategy": "tensor"}}
    for form in ("ct_int8", "ct_fp8"):
        good = json.loads((place / form / "config.json").read_text())
        weights = good["quantization_config"]["config_groups"]["group_0"]["weights"]
        for name, change in strategies.items():
            yield case(form, "strategy_" + name, changed(good, q + ["config_groups", "group_0", "weights"], {**weights, **change}))
    good = json.loads((place / "ct/config.json").read_text())
    for name, value in bad.items():
        yield case("ct", f"num_bits_{name}", changed(good, q + ["config_groups", "group_0", "weights", "num_bits"], value))
    for form, suffixes in {"gptq": (".qweight", ".qzeros", ".scales", ".g_idx"), "awq": (".qweight", ".qzeros", ".scales"),
                           "fp8": (".weight_scale_inv",), "ct": (".weight_packed", ".weight_scale", ".weight_shape"),
                           "ct_int8": (".weight_scale",), "ct_fp8": (".weight_scale",), "ct_nvfp4": (".weight_packed", ".weight_scale",
                           ".weight_global_scale")}.items():
        tensors, metadata = seeds.read_safetensors(place / form / "model.safetensors")
        module = "model.layers.0.mlp.up_proj"
        for suffix in suffixes:
            dtype, shape, data = tensors[module + suffix]
            variants = {"gone": None, "type": ("U8", [len(data)], data), "rank": (dtype, [1] + shape, data), "flat": (dtype,
                        [len(data) // seeds.BYTES[dtype]], data) if len(shape) > 1 else (dtype, [1, *shape], data),
                        "empty": (dtype, [0] * len(shape), b"")}
            for name, content in variants.items():
                if name == "gone" and suffix in (".g_idx", ".weight_scale_inv", ".weight_scale",
                                                 ".weight_global_scale") and form != "ct_nvfp4":
                    continue  # without it the module is another, right one
                if name == "gone" and (form, suffix) in (("gptq", ".qweight"), ("awq", ".qweight"), ("ct_nvfp4", ".weight_scale")):
                    continue
                copy = dict(tensors)
                copy.pop(module + suffix)
                if content is not None:
                    copy[module + suffix] = content
                yield Case("interop", f"{form}/tensor{suffix}_{name}", form, {"model.safetensors": seeds.safetensors(copy, metadata)},
                           ["convert", "{in}", "{out}", "--to", "narrow"])
    tensors, metadata = seeds.read_safetensors(place / "gptq/model.safetensors")
    for name, value in {"negative": -1, "beyond": 99, "huge": 2**31 - 1}.items():
        copy = dict(tensors)
        dtype, shape, data = copy["model.layers.0.mlp.up_proj.g_idx"]
        copy["model.layers.0.mlp.up_proj.g_idx"] = (dtype, shape, LITTLE("<i", value) + data[4:])
        yield Case("interop", "gptq/g_idx_" + name, "gptq", {"model.safetensors": seeds.safetensors(copy, metadata)}, ["convert", "{in}",
                   "{out}", "--to", "narrow"])
    copy = dict(tensors)
    long_name = "m" * 300_000
    for suffix in (".qweight", ".qzeros", ".scales", ".g_idx"):
        copy[long_name + suffix] = copy.pop("model.layers.0.mlp.up_proj" + suffix)
    config = json.loads((place / "gptq/config.json").read_text())
    config["quantization_config"]["dynamic"] = {"+:(m|x)*y": {"bits": 3}, "+:.*": {"bits": 8}}
    yield Case("interop", "gptq/regex_on_long_name", "gptq", {"model.safetensors": seeds.safetensors(copy, metadata),
               "config.json": json.dumps(config).encode()}, ["convert", "{in}", "{out}", "--to", "narrow"])
    tensors, metadata = seeds.read_safetensors(place / "ct/model.safetensors")
    for name, value in {"negative": (-96, 64), "zero": (96, 0), "huge": (96, 2**62), "swapped": (64, 96), "more": (96, 65)}.items():
        copy = dict(tensors)
        dtype, shape, data = copy["model.layers.0.mlp.up_proj.weight_shape"]
        copy["model.layers.0.mlp.up_proj.weight_shape"] = (dtype, shape, LITTLE("<qq", *value))
        yield Case("interop", "ct/weight_shape_" + name, "ct", {"model.safetensors": seeds.safetensors(copy, metadata)}, ["convert", "{in}",
                   "{out}", "--to", "narrow"])
    tensors, metadata = seeds.read_safetensors(place / "ct_nvfp4/model.safetensors")
    for name, value in {"zero": 0.0, "nan": float("nan"), "negative": -1.0, "inf": float("inf")}.items():
        copy = dict(tensors)
        copy["model.layers.0.mlp.up_proj.weight_global_scale"] = ("F32", [1], LITTLE("<f", value))
        yield Case("interop", "ct_nvfp4/global_scale_" + name, "ct_nvfp4", {"model.safetensors": seeds.safetensors(copy, metadata)},
                   ["convert", "{in}", "{out}", "--to", "narrow"])


def scale_cases(place):
    """Scales that are no numbers: each form's first one, in its own type."""
    bad = {"inf": float("inf"), "minus_inf": float("-inf"), "nan": float("nan")}
    codes = {"F16": lambda value: LITTLE("<e", value), "F32": lambda value: LITTLE("<f", value),
             "BF16": lambda value: LITTLE("<f", value)[2:]}
    for form, suffix in {"gptq": ".scales", "awq": ".scales", "fp8": ".weight_scale_inv", "ct": ".weight_scale", "ct_int8": ".weight_scale",
                         "ct_fp8": ".weight_scale"}.items():
        tensors, metadata = seeds.read_safetensors(place / form / "model.safetensors")
        name = "model.layers.0.mlp.up_proj" + suffix
        dtype, shape, data = tensors[name]
        for label, value in bad.items():
            first = codes[dtype](value)
            copy = {**tensors, name: (dtype, shape, first + data[len(first) :])}
            yield Case("interop", f"{form}/scale_{label}", form, {"model.safetensors": seeds.safetensors(copy, metadata)},
                       ["convert", "{in}", "{out}", "--to", "narrow"])


def cases(place):
    """Every case; `place` holds the seeds."""
    found = [*safetensors_cases(), *index_cases(place), *config_cases(place), *tokenizer_cases(place), *recipe_cases(), *scheme_cases(),
             *gguf_cases(), *token_cases(), *stats_cases(place), *manifest_cases(place),
             *interop_cases(place), *scale_cases(place)]
    return [case for case in found if case is not None]
