"""The index over shards: names of files that lead elsewhere, and shards that are something else."""
import json

import seeds

from .kit import Case, broken_json, changed, directory, fifo, link, sparse


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
