"""tokenizer.json."""
import json

from .kit import Case, broken_json, changed, directory, fifo, link, sparse


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
