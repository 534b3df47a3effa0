"""The right files that the torture tests start from: a tiny Llama, its tokens, and what the command makes of them."""
import json
import pathlib
import struct
import subprocess

HIDDEN, INTERMEDIATE, VOCABULARY = 64, 96, 264

BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "U8": 1, "I8": 1, "F8_E4M3": 1}


def values(count, seed):
    """Bytes of bf16 numbers between -1 and 1 that look random and are the same everywhere."""
    state, out = seed * 2654435761 % 2**32 or 1, bytearray()
    for _ in range(count):
        state = (state * 1664525 + 1013904223) % 2**32
        out += struct.pack("<f", (state >> 8) / 2**23 - 1.0)[2:]
    return bytes(out)


def safetensors(tensors, metadata=None):
    """A file of {name: (dtype, shape, bytes)}."""
    header, data = {}, b""
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def read_safetensors(path):
    raw = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + size])
    metadata = header.pop("__metadata__", None)
    cut = lambda info: raw[8 + size + info["data_offsets"][0] : 8 + size + info["data_offsets"][1]]
    return {name: (info["dtype"], info["shape"], cut(info)) for name, info in header.items()}, metadata


def model_tensors(layers=1):
    shapes = {"model.embed_tokens.weight": [VOCABULARY, HIDDEN], "model.norm.weight": [HIDDEN], "lm_head.weight": [VOCABULARY, HIDDEN]}
    for i in range(layers):
        prefix = f"model.layers.{i}."
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            shapes[prefix + f"self_attn.{name}.weight"] = [HIDDEN, HIDDEN]
        shapes[prefix + "mlp.gate_proj.weight"] = shapes[prefix + "mlp.up_proj.weight"] = [INTERMEDIATE, HIDDEN]
        shapes[prefix + "mlp.down_proj.weight"] = [HIDDEN, INTERMEDIATE]
        shapes[prefix + "input_layernorm.weight"] = shapes[prefix + "post_attention_layernorm.weight"] = [HIDDEN]
    count = lambda shape: shape[0] * (shape[1] if len(shape) > 1 else 1)
    return {name: ("BF16", shape, values(count(shape), seed)) for seed, (name, shape) in enumerate(sorted(shapes.items()), 1)}


def config(layers=1):
    return {"model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE, "num_hidden_layers": layers,
            "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": VOCABULARY, "max_position_embeddings": 128,
            "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu", "bos_token_id": 0,
            "eos_token_id": 1}


def tokenizer():
    printable = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    letters = [chr(b) for b in printable] + [chr(256 + i) for i in range(256 - len(printable))]
    vocab = {letter: i + 2 for i, letter in enumerate(letters)}
    vocab.update({"<s>": 0, "</s>": 1, "th": 258, "the": 259})
    special = lambda number, text: {"id": number, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
                                    "normalized": False, "special": True}
    return {"version": "1.0", "added_tokens": [special(0, "<s>"), special(1, "</s>")], "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
            "decoder": {"type": "ByteLevel"}, "post_processor": None,
            "model": {"type": "BPE", "vocab": vocab, "merges": ["t h", "th e"]}}


def write_model(place, shards=1, layers=1):
    place.mkdir()
    (place / "config.json").write_text(json.dumps(config(layers)))
    (place / "tokenizer.json").write_text(json.dumps(tokenizer()))
    tensors = model_tensors(layers)
    if shards == 1:
        (place / "model.safetensors").write_bytes(safetensors(tensors, {"format": "pt"}))
        return
    names, weight_map = sorted(tensors), {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        own = names[i * len(names) // shards : (i + 1) * len(names) // shards]
        (place / file).write_bytes(safetensors({name: tensors[name] for name in own}, {"format": "pt"}))
        weight_map.update({name: file for name in own})
    total = sum(len(content) for _, _, content in tensors.values())
    (place / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))


# How each quantized form of the model is made: arguments of `narrow quantize`.
FORMS = {"narrow": ["int4:block32:asym"], "ct": ["int4:block32", "--export", "ct"], "ct_int8": ["int8:row", "--export", "ct"],
         "ct_fp8": ["fp8_e4m3:row", "--export", "ct"], "ct_nvfp4": ["nvfp4", "--export", "ct"],
         "gptq": ["int4:block32", "--export", "gptq"], "awq": ["int4:block32:asym", "--export", "awq"],
         "fp8": ["fp8_e4m3:128x128", "--export", "fp8-block"], "modelopt": ["nvfp4", "--export", "modelopt"],
         "modelopt_fp8": ["fp8_e4m3:tensor", "--export", "modelopt"]}


def make(place, command):
    """Everything in the folder `place`; the command is narrow's."""
    write_model(place / "model")
    write_model(place / "sharded", shards=3, layers=2)
    (place / "text.txt").write_text("the cat and the hat\n")
    tokens = b"".join(struct.pack("<i", i * 7 % VOCABULARY) for i in range(64))
    (place / "tokens.safetensors").write_bytes(safetensors({"eval": ("I32", [4, 16], tokens), "calib": ("I32", [4, 16], tokens)}))
    (place / "recipe.yaml").write_text("scheme: int8:row\nignore: [lm_head]\n")
    run = lambda *words: subprocess.run([command, "--quiet", *map(str, words)], check=True)
    run("calibrate", place / "model", "--tokens", place / "tokens.safetensors", "--second-moments", "-o", place / "stats.safetensors")
    for form, arguments in FORMS.items():
        run("quantize", place / "model", place / form, *arguments)
