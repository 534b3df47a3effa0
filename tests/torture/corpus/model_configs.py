"""config.json of a model."""
import json

from .kit import Case, broken_json, changed, directory, fifo, link, sparse


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
    for name, value in {"text": "1e-5", "negative": -1e-5, "array": [1e-5], "1e308": 1e308}.items():
        yield case(f"rms_norm_eps_{name}", changed(good, ["rms_norm_eps"], value))
    qwen = {**good, "model_type": "qwen2", "sliding_window": 16, "use_sliding_window": True}
    yield case("max_window_layers_1e300", changed({**qwen, "max_window_layers": 0}, ["max_window_layers"], 1e300))
    for key, values in {"model_type": {"number": 3, "array": ["llama"]}, "hidden_size": {"2_32": 2**32 + 64, "2_64": 2**64 - 1,
                        "text": "64"}, "rms_norm_eps": {"text": "x", "1e308": 1e308}, "rope_theta": {"array": [1e4], "1e308": 1e308},
                        "bos_token_id": {"negative": -1, "2_40": 2**40}, "rope_parameters": {"number": 5, "text": "x"}}.items():
        for name, value in values.items():
            yield Case("config", f"gguf/{key}_{name}", "model", {"config.json": changed({**good, key: 0}, [key], value)},
                       ["convert", "{in}", "{out}", "--to", "gguf"])
    for key in ("hidden_size", "intermediate_size", "vocab_size"):
        for name, value in {"half": good[key] // 2, "double": 2 * good[key], "times_64": 64 * good[key]}.items():
            yield Case("config", f"rotate/{key}_{name}", "model", {"config.json": changed(good, [key], value)},
                       ["quantize", "{in}", "{out}", "int4:block32", "--method", "rotate"])
    yield Case("config", "gguf/json_array", "model", {"config.json": b"[]"}, ["convert", "{in}", "{out}", "--to", "gguf"])
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
