"""narrow's own manifest, damaged or forged with a right hash."""
import json

from .kit import Case, broken_json, changed, directory, fifo, sparse


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
