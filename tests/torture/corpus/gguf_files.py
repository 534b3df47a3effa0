"""GGUF files: lengths, counts, alignments, types, ranges."""
from .kit import Case, LITTLE, disguises


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
