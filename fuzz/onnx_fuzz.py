"""An ONNX file from any bytes: a graph that every rule of the linter can look at and that is quantized, or an Error of one sentence.

onnx_fuzz.py (--seconds S | --runs N) [--start SEED] [--keep FOLDER] [--coverage] [FILE ...]

Mutates models where their structure is: a number, a text, a list, a message of any depth. Inputs that reach new lines of the reader become
seeds; --keep stores them. One that breaks the rule is left as crash-*, and the exit code is 1. FILEs alone are run once each. The inputs
follow from the start and the number of runs alone.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import pathlib
import random
import re
import sys
import tempfile
import time

import numpy as np
import onnx
from google.protobuf.message import DecodeError, Message
from narrow import errors
from narrow.onnx import QuantizeConfig, quantize
from narrow.onnx import graph as reader
from onnx import TensorProto, helper, numpy_helper

linter = sys.modules["narrow.onnx.lint"]  # the package has a function of that name

WEIGHT_ONLY = QuantizeConfig(weights="int8:row", activations=None)
SLOWEST = 2.0  #: seconds that one input may take
READERS = {module.__file__ for module in (reader, linter)}
NUMBERS = (*range(5), *range(7, 12), 13, *range(16, 25), 31, 32, 64, 99, 128, 255, 256, 65536, 2**31 - 1, 2**40, 2**63 - 1)
TEXTS = (
    "", "x", "w", "y", "s", "z", "q", "d", "a", "MatMul", "Gemm", "Conv", "ConvTranspose", "Add", "Concat", "Relu", "Constant", "Identity",
    "If", "Transpose", "BatchNormalization", "QuantizeLinear", "DequantizeLinear", "MatMulNBits", "com.microsoft", "ai.onnx", "axis",
    "block_size", "output_dtype", "bits", "N", "K", "value", "value_float", "transB", "perm", "epsilon", "location", "offset", "length",
    "weights.bin", "../weights.bin", "48", "-1", "nul\0", "\x1b[31m",
)  # fmt: skip


def _model(nodes, constants, opset=21, **imports) -> onnx.ModelProto:
    tensors = [
        value if isinstance(value, TensorProto) else numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()
    ]
    graph = helper.make_graph(nodes, "g", [_value("x")], [_value("y")], tensors)
    domains = [helper.make_opsetid(domain.replace("_", "."), version) for domain, version in imports.items()]
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), *domains], ir_version=10)


def _value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["m", "n"])


def seeds() -> list[onnx.ModelProto]:
    """A graph for each thing that the reader and the rules look at."""
    node, f32 = helper.make_node, np.float32
    matrix, filters = np.ones((4, 3)), np.ones((3, 4, 1, 1))
    product = {"MatMul": matrix, "Gemm": matrix, "Conv": filters, "ConvTranspose": np.moveaxis(filters, 0, 1)}
    found = [_model([node(kind, ["x", "w"], ["y"])], {"w": weight.astype(f32)}, 18) for kind, weight in product.items()]
    for kind, weight in product.items():
        found.append(
            _model(
                [
                    node("QuantizeLinear", ["x", "s", "z"], ["q"]),
                    node("DequantizeLinear", ["q", "s", "z"], ["d"]),
                    node("DequantizeLinear", ["w", "ws", "wz"], ["dw"], axis=1 if kind != "Conv" else 0),
                    node("DequantizeLinear", ["b", "s"], ["db"]),
                    node(kind, ["d", "dw", *(["db"] if kind != "MatMul" else [])], ["r"]),
                    node("Relu", ["r"], ["a"]),
                    node("QuantizeLinear", ["a", "s", "z"], ["qa"]),
                    node("DequantizeLinear", ["qa", "s", "z"], ["da"]),
                    node("Add", ["da", "x"], ["sum"]),
                    node("Concat", ["sum", "da"], ["y"], axis=0),
                ],
                {"s": f32(0.1), "z": np.int8(0), "w": weight.astype(np.int8), "ws": np.ones(3, f32), "wz": np.zeros(3, np.int8)}
                | {"b": np.zeros(3, np.int32)},
            )
        )
    skip = [
        node("QuantizeLinear", ["x", "s"], ["q"]),
        node("DequantizeLinear", ["q", "s"], ["d"]),
        node("Conv", ["d", "w"], ["c"]),
        node("Add", ["c", "x"], ["y"]),
    ]
    found.append(_model(skip, {"s": f32(0.1), "w": np.ones((3, 3, 1, 1), f32)}))
    between = [
        node("Conv", ["x", "w"], ["c"]),
        node("QuantizeLinear", ["c", "s"], ["q"], output_dtype=TensorProto.INT8),
        node("DequantizeLinear", ["q", "s"], ["d"]),
        node("Relu", ["d"], ["y"]),
    ]
    found.append(_model(between, {"s": f32(0.1), "w": np.ones((3, 3, 1, 1), f32)}))
    folded = [
        node("Transpose", ["w"], ["t"], perm=[0, 1, 3, 2]),
        node("Identity", ["t"], ["i"]),
        node("Conv", ["x", "i"], ["c"]),
        node("BatchNormalization", ["c", "o", "o", "o", "o"], ["y"], epsilon=1e-3),
    ]
    found.append(_model(folded, {"w": np.ones((3, 3, 1, 1), f32), "o": np.ones(3, f32)}, 12))
    for kind in (TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT4E2M1):
        bits = 8 if kind == TensorProto.FLOAT8E4M3FN else 4
        codes = TensorProto(name="w", data_type=kind, dims=[64, 2], raw_data=bytes(128 * bits // 8))
        nodes = [node("DequantizeLinear", ["w", "s"], ["d"], axis=0, block_size=64), node("MatMul", ["x", "d"], ["y"])]
        found.append(_model(nodes, {"w": codes, "s": np.ones((1, 2), f32)}, 23))
    packed = node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", bits=4, block_size=16, N=2, K=32)
    found.append(_model([packed], {"w": np.zeros((2, 2, 8), np.uint8), "s": np.ones(4, f32)}, com_microsoft=1))
    found.append(_model([node("Constant", [], ["c"], value=numpy_helper.from_array(np.ones(3, f32))), node("Add", ["x", "c"], ["y"])], {}))
    external = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4, 3], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": "weights.bin", "offset": "0", "length": "48"}.items():
        external.external_data.add(key=key, value=value)
    found.append(_model([node("MatMul", ["x", "w"], ["y"])], {"w": external}))
    typed = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2, 1], float_data=[1.0, 2.0])
    found.append(_model([node("MatMul", ["x", "w"], ["y"])], {"w": typed}))
    inner = helper.make_graph([node("Identity", ["x"], ["i"])], "i", [], [_value("i")])
    found.append(_model([node("If", ["b"], ["y"], then_branch=inner, else_branch=inner)], {"b": np.bool_(True)}))
    return found


class Mutator:
    def __init__(self, start: int):
        self.random = random.Random(start)

    def __call__(self, data: bytes, other: bytes) -> bytes:
        """Some parts changed; one time of eight bytes, so that what is no model is seen too."""
        pick = self.random
        if pick.random() < 0.125:
            return self._bytes(data)
        try:
            model, donor = onnx.ModelProto.FromString(data), onnx.ModelProto.FromString(other)
        except DecodeError:
            return self._bytes(data)
        for _ in range(pick.choice((1, 1, 1, 2, 3))):
            self._change(model, donor)
        return model.SerializeToString()

    def _bytes(self, data: bytes) -> bytes:
        pick, changed = self.random, bytearray(data)
        for _ in range(1 + pick.randrange(4)):
            place = pick.randrange(len(changed) + 1)
            match pick.randrange(4):
                case 0:
                    changed[place : place + 1] = bytes([pick.randrange(256)])
                case 1:
                    del changed[place : place + pick.randrange(1, 9)]
                case 2:
                    changed[place:place] = pick.randbytes(pick.randrange(1, 9))
                case _:
                    changed[place:] = changed[pick.randrange(len(changed) + 1) :]
        return bytes(changed[:65536])

    def _change(self, model: onnx.ModelProto, donor: onnx.ModelProto) -> None:
        pick = self.random
        message = pick.choice(list(_messages(model)))
        there = [field for field, _ in message.ListFields()]
        field = pick.choice(there if there and pick.random() < 0.8 else message.DESCRIPTOR.fields)
        value = getattr(message, field.name)
        if field.message_type is not None:
            self._change_message(message, field, [found for found in _messages(donor) if found.DESCRIPTOR is field.message_type])
        elif not isinstance(value, (int, float, str, bytes)):  # a list of scalars
            self._change_list(value, field)
        elif pick.random() < 0.1:
            message.ClearField(field.name)
        else:
            self._assign(message, field, self._scalar(field, value))

    def _change_message(self, message: Message, field, others: list[Message]) -> None:
        pick, value = self.random, getattr(message, field.name)
        if isinstance(value, Message):
            if others and pick.random() < 0.7:
                value.CopyFrom(pick.choice(others))
            else:
                message.ClearField(field.name)
        elif len(value) == 0 or (others and pick.random() < 0.4):
            (value.add().CopyFrom(pick.choice(others)) if others else value.add())
        elif pick.random() < 0.5:
            del value[pick.randrange(len(value))]
        else:
            value.add().CopyFrom(pick.choice(list(value)))

    def _change_list(self, value, field) -> None:
        pick = self.random
        place = pick.randrange(len(value) + 1)
        if place == len(value) or pick.random() < 0.2:
            self._try(lambda: value.append(self._scalar(field, value[0] if value else None)))
        elif pick.random() < 0.3:
            del value[place]
        elif pick.random() < 0.3 and len(value) > 1:
            self._try(lambda: value.__setitem__(place, value[pick.randrange(len(value))]))
        else:
            self._try(lambda: value.__setitem__(place, self._scalar(field, value[place])))

    def _scalar(self, field, old):
        pick = self.random
        if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
            return pick.choice((0.0, -0.0, 1.0, -1.0, 1e30, float("inf"), float("nan"), 1e-40))
        if field.type == field.TYPE_BYTES:
            return self._bytes(old or b"")
        if field.cpp_type == field.CPPTYPE_STRING:
            return pick.choice(TEXTS)
        number = pick.choice(NUMBERS) if pick.random() < 0.7 or not isinstance(old, int) else old + pick.choice((-1, 1))
        return -number if pick.random() < 0.1 else number

    def _assign(self, message: Message, field, value) -> None:
        self._try(lambda: setattr(message, field.name, value))

    @staticmethod
    def _try(change) -> None:
        """A number that the field's type has not changes nothing."""
        try:
            change()
        except (ValueError, TypeError):
            pass


def _messages(root: Message):
    """The message and all in it."""
    yield root
    for field, value in root.ListFields():
        if field.message_type is None:
            continue
        for inner in [value] if isinstance(value, Message) else value:
            yield from _messages(inner)


class Lines:
    """The lines of the reader that were run."""

    def __init__(self):
        self.seen: set[tuple[str, int]] = set()

    def __enter__(self):
        sys.settrace(self._frame)

    def __exit__(self, *_):
        sys.settrace(None)

    def _frame(self, frame, event, argument):
        return self._line if frame.f_code.co_filename in READERS else None

    def _line(self, frame, event, argument):
        if event == "line":
            self.seen.add((frame.f_code.co_filename, frame.f_lineno))
        return self._line


def _lines_of(code) -> set[int]:
    """Every line within functions: what runs at import needs no input."""
    found: set[int] = set()
    for inner in code.co_consts:
        if not hasattr(inner, "co_code"):
            continue
        if inner.co_flags & inspect.CO_NEWLOCALS:  # a function, not a class
            found |= {line for _, _, line in inner.co_lines() if line and line != inner.co_firstlineno}
        found |= _lines_of(inner)
    return found


def run(path: pathlib.Path) -> str | None:
    """What an input breaks, or None."""
    begin = time.process_time()
    try:
        model = reader.load(path)
        for target in linter.RULES:
            linter.lint(model, target)
        quantize(model, WEIGHT_ONLY)
    except errors.Error as error:
        text = str(error)
        if not text or not text.isprintable() or len(text) > 1200:
            return f"a message that is not one sentence: {text!r}"
    except Exception as error:  # anything else is what is looked for
        return f"{type(error).__name__}: {error}"
    seconds = time.process_time() - begin
    return f"{seconds:.1f} s" if seconds > SLOWEST else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--runs", type=float, default=float("inf"))
    parser.add_argument("--start", type=int, default=1)
    parser.add_argument("--keep", type=pathlib.Path, default=None, help="seeds are read from there too")
    parser.add_argument("--crashes", type=pathlib.Path, default=pathlib.Path("."))
    parser.add_argument("--coverage", action="store_true", help="the share of the reader's lines that were reached")
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.files:
        broken = [(file, why) for file in arguments.files if (why := run(file))]
        print(*(f"{file}: {why}" for file, why in broken), sep="\n")
        return 1 if broken else 0

    mutate, lines, pool, crashes, count = Mutator(arguments.start), Lines(), [], {}, 0
    begin = time.monotonic()
    initial = [model.SerializeToString() for model in seeds()]
    if arguments.keep:
        initial += [file.read_bytes() for file in sorted(arguments.keep.glob("*.onnx"))]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        (pathlib.Path(place) / "weights.bin").write_bytes(bytes(48))
        path = pathlib.Path(place) / "model.onnx"
        while count < len(initial) or (count < arguments.runs and time.monotonic() - begin < arguments.seconds):
            is_seed = count < len(initial)
            data = initial[count] if is_seed else mutate(mutate.random.choice(pool), mutate.random.choice(pool))
            path.write_bytes(data)
            before = len(lines.seen)
            with lines:
                why = run(path)
            count += 1
            if why:
                kind = re.sub(r"[^A-Za-z ]+", "", why)[:40]
                if kind not in crashes:
                    crashes[kind] = why
                    file = arguments.crashes / f"crash-{hashlib.sha256(data).hexdigest()[:16]}.onnx"
                    file.write_bytes(data)
                    print(f"{file}: {why}", flush=True)
            elif is_seed or len(lines.seen) > before:
                pool.append(data)
                if arguments.keep and not is_seed:
                    (arguments.keep / f"{hashlib.sha256(data).hexdigest()[:16]}.onnx").write_bytes(data)
            elif len(pool) < 4096 and mutate.random.random() < 0.002:
                pool.append(data)  # some mutations of mutations
    print(f"{count} executions, {count / (time.monotonic() - begin):.0f} per second, {len(crashes)} kinds of crashes")
    if arguments.coverage:
        for file in sorted(READERS):
            wanted = _lines_of(compile(pathlib.Path(file).read_text(), file, "exec"))
            reached = {line for name, line in lines.seen if name == file} & wanted
            print(f"{pathlib.Path(file).name:12} {100 * len(reached) / len(wanted):5.1f} % of lines; not: {sorted(wanted - reached)}")
    return 1 if crashes else 0


if __name__ == "__main__":
    sys.exit(main())
