"""Safetensors files: lengths, shapes, ranges, types, names, JSON, and things that are no files."""
import json

from .kit import Case, LITTLE, broken_json, directory, disguises, fifo, link, sparse


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
