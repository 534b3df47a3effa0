"""Checkpoints of other ecosystems: their config.json, their tensors, their scales."""
import json

import seeds

from .kit import Case, LITTLE, changed


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
                           ".weight_global_scale"), "modelopt": (".weight",)}.items():
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
    for form, suffix in {"modelopt": ".weight_scale_2", "modelopt_fp8": ".weight_scale"}.items():
        tensors, metadata = seeds.read_safetensors(place / form / "model.safetensors")
        for name, numbers in {"nan": [float("nan")], "inf": [float("inf")], "two": [1.0, 2.0], **({"zero": [0.0], "negative": [-1.0]}
                              if form == "modelopt" else {})}.items():
            copy = dict(tensors)
            copy["model.layers.0.mlp.up_proj" + suffix] = ("F32", [len(numbers)], LITTLE(f"<{len(numbers)}f", *numbers))
            yield Case("interop", f"{form}/scale_{name}", form, {"model.safetensors": seeds.safetensors(copy, metadata)},
                       ["convert", "{in}", "{out}", "--to", "narrow"])
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
