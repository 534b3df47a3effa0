"""Files of tokens."""
import seeds

from .kit import Case, LITTLE, directory, disguises, fifo, link


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
