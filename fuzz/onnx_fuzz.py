"""An ONNX file from any bytes: a graph that every rule of the linter can look at and that is quantized, or an Error of one sentence.

onnx_fuzz.py (--seconds S | --runs N) [--start SEED] [--keep FOLDER] [--coverage] [--every SECONDS] [FILE ...]

Mutates models where their structure is: a number, a text, a list, a message of any depth. Inputs that reach new lines of the reader become
seeds; --keep stores them. One that breaks the rule is left as crash-*, and the exit code is 1; one that ends the process, or is still
running after minutes or when it is interrupted, is left as last-START. FILEs alone are run once each. The inputs follow from the start,
the seeds and the number of runs alone.

A file is the input's own memory, and is written where constants lie in a file beside it, and one time of 256. onnx takes 10 ms to convert
an opset below 13, fifty times as long as for all else: of such models one in 64 is kept.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import hashlib
import inspect
import mmap
import os
import pathlib
import random
import re
import signal
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Iterator, Sequence

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
LONGEST = 65536  #: bytes of an input
READERS = {module.__file__ for module in (reader, linter)}
NUMBERS = (*range(5), *range(7, 12), 13, *range(16, 25), 31, 32, 64, 99, 128, 255, 256, 65536, 2**31 - 1, 2**40, 2**63 - 1)
TEXTS = (
    "", "x", "w", "y", "s", "z", "q", "d", "a", "MatMul", "Gemm", "Conv", "ConvTranspose", "Add", "Concat", "Relu", "Constant", "Identity",
    "If", "Transpose", "BatchNormalization", "QuantizeLinear", "DequantizeLinear", "MatMulNBits", "com.microsoft", "ai.onnx", "axis",
    "block_size", "output_dtype", "bits", "N", "K", "value", "value_float", "transB", "perm", "epsilon", "location", "offset", "length",
    "weights.bin", "../weights.bin", "48", "-1", "nul\0", "\x1b[31m",
)  # fmt: skip


def _model(nodes, constants, opset=21, rank=2, **imports) -> onnx.ModelProto:
    tensors = [
        value if isinstance(value, TensorProto) else numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()
    ]
    graph = helper.make_graph(nodes, "g", [_value("x", rank)], [_value("y", rank)], tensors)
    domains = [helper.make_opsetid(domain.replace("_", "."), version) for domain, version in imports.items()]
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), *domains], ir_version=10)


def _value(name: str, rank: int = 2) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * rank)


def seeds() -> list[onnx.ModelProto]:
    """A graph for each thing that the reader and the rules look at."""
    node, f32 = helper.make_node, np.float32
    matrix, filters = np.ones((4, 3)), np.ones((3, 4, 1, 1))
    product = {"MatMul": matrix, "Gemm": matrix, "Conv": filters, "ConvTranspose": np.moveaxis(filters, 0, 1)}
    found = [_model([node(kind, ["x", "w"], ["y"])], {"w": weight.astype(f32)}, 18, weight.ndim) for kind, weight in product.items()]
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
                rank=weight.ndim,
            )
        )
    skip = [
        node("QuantizeLinear", ["x", "s"], ["q"]),
        node("DequantizeLinear", ["q", "s"], ["d"]),
        node("Conv", ["d", "w"], ["c"]),
        node("Add", ["c", "x"], ["y"]),
    ]
    found.append(_model(skip, {"s": f32(0.1), "w": np.ones((3, 3, 1, 1), f32)}, rank=4))
    between = [
        node("Conv", ["x", "w"], ["c"]),
        node("QuantizeLinear", ["c", "s"], ["q"], output_dtype=TensorProto.INT8),
        node("DequantizeLinear", ["q", "s"], ["d"]),
        node("Relu", ["d"], ["y"]),
    ]
    found.append(_model(between, {"s": f32(0.1), "w": np.ones((3, 3, 1, 1), f32)}, rank=4))
    folded = [
        node("Transpose", ["w"], ["t"], perm=[0, 1, 3, 2]),
        node("Identity", ["t"], ["i"]),
        node("Conv", ["x", "i"], ["c"]),
        node("BatchNormalization", ["c", "o", "o", "o", "o"], ["y"], epsilon=1e-3),
    ]
    found += [_model(folded, {"w": np.ones((3, 3, 1, 1), f32), "o": np.ones(3, f32)}, opset, 4) for opset in (12, 21)]
    both = [node("MatMul", ["x", "w"], ["m"]), node("Relu", ["m"], ["r"]), node("Gemm", ["r", "v", "b"], ["y"], transB=1)]
    found.append(_model(both, {"w": np.ones((4, 3), f32), "v": np.ones((2, 3), f32), "b": np.ones(2, f32)}))
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
    branches = node("If", ["b"], ["y"], then_branch=inner, else_branch=inner)
    found.append(_model([branches], {"b": np.bool_(True)}))
    found.append(_model([branches, node("MatMul", ["y", "w"], ["z"])], {"b": np.bool_(True), "w": matrix.astype(f32)}))
    return found


class Seed:
    """An input with what mutations of it look up: the names of its tensors, the places of its messages, and the messages by their type."""

    def __init__(self, data: bytes):
        self.data = data
        self.cost = len(data) + (1024 if b"location" in data else 0)  #: roughly, in bytes: a file beside it takes as long
        try:
            self.model = onnx.ModelProto.FromString(data)
        except DecodeError:
            self.model, self.places, self.messages = None, [], {}
            return
        self.is_old = _is_old(self.model)
        graph = self.model.graph
        made = (name for node in graph.node for name in (*node.input, *node.output))
        self.names = list(dict.fromkeys((*(tensor.name for tensor in graph.initializer), *made)))
        self.places: list[tuple] = []
        self.messages: dict[str, list[Message]] = {}
        for place, message in _messages(self.model):
            self.places.append(place)
            self.messages.setdefault(message.DESCRIPTOR.name, []).append(message)


def _is_old(model: onnx.ModelProto) -> bool:
    return next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0) < 13


class Random(random.Random):
    """With a quicker choice."""

    def choice(self, sequence):
        return sequence[int(self.random() * len(sequence))]


class Pool:
    """What is mutated: seeds and finds, and at most a third of the time what came from them and could be read."""

    def __init__(self, pick: random.Random):
        self.pick, self.seeds, self.others = pick, [], []

    def add(self, data: bytes) -> None:
        self.seeds.append(Seed(data))

    def add_other(self, data: bytes) -> None:
        """Takes the place of any other where there are 4096 already."""
        if len(self.others) < 4096:
            self.others.append(Seed(data))
        else:
            self.others[self.pick.randrange(4096)] = Seed(data)

    def any(self) -> Seed:
        share = min(1 / 3, len(self.others) / (len(self.seeds) + len(self.others)))
        return self.pick.choice(self.others if self.pick.random() < share else self.seeds)

    def quicker(self) -> Seed:
        """Of two mostly the one that takes less time."""
        seed = self.any()
        return seed if self.pick.random() < 0.25 else min(seed, self.any(), key=lambda each: each.cost)


class Mutator:
    def __init__(self, pick: random.Random):
        self.random = pick

    def __call__(self, seed: Seed, donor: Seed) -> bytes | None:
        """Some parts changed; one time of eight bytes, so that what is no model is seen too. None for most models of old opsets, and
        for what is too long."""
        pick = self.random
        if seed.model is None:
            return self._bytes(seed.data)
        if pick.random() < 0.125:
            return None if seed.is_old and pick.random() >= 1 / 64 else self._bytes(seed.data)
        model = onnx.ModelProto.FromString(seed.data)
        self.added: list[Message] = []  # by the changes of this input
        self.names = seed.names
        for _ in range(pick.choice((1, 1, 1, 2, 3))):
            self._change(model, seed.places, donor.messages)
        if _is_old(model) and pick.random() >= 1 / 64:
            return None
        data = model.SerializeToString()
        return data if len(data) <= LONGEST else None

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
        return bytes(changed[:LONGEST])

    def _any_message(self, model: onnx.ModelProto, places: list[tuple]) -> Message:
        while True:
            index = int(self.random.random() * (len(places) + len(self.added)))
            if index >= len(places):
                return self.random.choice([message for _, message in _messages(self.added[index - len(places)])])
            message = model
            try:
                for name, number in places[index]:
                    message = getattr(message, name)
                    if number is not None:
                        message = message[number]
            except IndexError:  # a change before took it away
                continue
            return message

    def _change(self, model: onnx.ModelProto, places: list[tuple], others: dict[str, list[Message]]) -> None:
        pick = self.random
        message = self._any_message(model, places)
        there = [field for field, _ in message.ListFields()]
        field = pick.choice(there if there and pick.random() < 0.8 else message.DESCRIPTOR.fields)
        value = getattr(message, field.name)
        if field.message_type is not None:
            self._change_message(message, field, others.get(field.message_type.name, ()))
        elif not isinstance(value, (int, float, str, bytes)):  # a list of scalars
            self._change_list(value, field)
        elif pick.random() < 0.1:
            message.ClearField(field.name)
        else:
            self._assign(message, field, self._scalar(field, value))

    def _change_message(self, message: Message, field, others: Sequence[Message]) -> None:
        pick, value = self.random, getattr(message, field.name)
        if isinstance(value, Message):
            if others and pick.random() < 0.7:
                self._copy(value, pick.choice(others))
            else:
                message.ClearField(field.name)
        elif len(value) == 0 or (others and pick.random() < 0.4):
            self._copy(value.add(), pick.choice(others) if others else None)
        elif pick.random() < 0.5:
            del value[pick.randrange(len(value))]
        else:
            self._copy(value.add(), pick.choice(value))

    def _copy(self, message: Message, source: Message | None) -> None:
        if source is not None:
            message.CopyFrom(source)
        self.added.append(message)

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
            is_name = field.name in ("input", "output", "name") and self.names
            return pick.choice(self.names if is_name and pick.random() < 0.75 else TEXTS)
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


def _messages(root: Message, place: tuple = ()) -> Iterator[tuple[tuple, Message]]:
    """The message and all in it, each with its place: a field and, of a list, the number there, for every step from the root."""
    yield place, root
    for field, value in root.ListFields():
        if field.message_type is None:
            continue
        if isinstance(value, Message):
            yield from _messages(value, (*place, (field.name, None)))
        else:
            for number, inner in enumerate(value):
                yield from _messages(inner, (*place, (field.name, number)))


class Lines:
    """The lines of the reader that were run. A line that was seen costs nothing from Python 3.12 on; before, all inputs are traced at
    first, then one of 16."""

    def __init__(self):
        self.seen: set[tuple[str, int]] = set()
        self.count = 0
        self.monitoring = getattr(sys, "monitoring", None)
        if self.monitoring:
            tool, events = self.monitoring.COVERAGE_ID, self.monitoring.events
            self.monitoring.use_tool_id(tool, "onnx_fuzz")
            self.monitoring.register_callback(tool, events.LINE, self._seen)
            for function in [each for each in gc.get_objects() if isinstance(each, types.FunctionType)]:
                if function.__code__.co_filename in READERS:
                    for code in _codes(function.__code__):
                        self.monitoring.set_local_events(tool, code, events.LINE)

    def __enter__(self):
        self.count += 1
        if not self.monitoring and (self.count < 20000 or self.count % 16 == 0):
            sys.settrace(self._frame)

    def __exit__(self, *_):
        if not self.monitoring:
            sys.settrace(None)

    def _seen(self, code, line):
        self.seen.add((code.co_filename, line))
        return self.monitoring.DISABLE

    def _frame(self, frame, event, argument):
        return self._line if frame.f_code.co_filename in READERS else None

    def _line(self, frame, event, argument):
        if event == "line":
            self.seen.add((frame.f_code.co_filename, frame.f_lineno))
        return self._line


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code and all in it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _codes(inner)


def _lines_of(code: types.CodeType) -> set[int]:
    """Every line within functions: what runs at import needs no input."""
    functions = [inner for inner in _codes(code) if inner.co_flags & inspect.CO_NEWLOCALS]  # not classes
    return {line for inner in functions for _, _, line in inner.co_lines() if line and line != inner.co_firstlineno}


class File(os.PathLike):
    """A file that is written when somebody asks for its path."""

    def __init__(self, path: pathlib.Path, data: bytes):
        self.path, self.data = str(path), data

    def __fspath__(self) -> str:
        if self.data is not None:
            with open(self.path, "wb", buffering=0) as file:
                file.write(self.data)
            self.data = None
        return self.path

    def __str__(self) -> str:
        return self.path


class Last:
    """A file that holds the input of this moment, whatever becomes of the process: eight bytes of length, and the input."""

    def __init__(self, path: pathlib.Path):
        self.path = path
        path.write_bytes(bytes(8 + LONGEST))
        with open(path, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), 0)

    def put(self, data: bytes) -> None:
        self.map[: 8 + len(data)] = len(data).to_bytes(8, "little") + data

    @staticmethod
    def get(path: pathlib.Path) -> bytes:
        content = path.read_bytes()
        return content[8:][: int.from_bytes(content[:8], "little")] if path.name.startswith("last-") else content


class Target:
    """Runs inputs, and counts what became of them."""

    def __init__(self, place: pathlib.Path):
        (place / "weights.bin").write_bytes(bytes(48))
        self.path = place / "model.onnx"
        self.count = self.read = self.quantized = 0
        self.begin = time.perf_counter()  #: of the last input

    def run(self, data: bytes) -> str | None:
        """What an input breaks, or None."""
        self.count += 1
        self.begin = time.perf_counter()
        broken = self._run(data)
        if broken is None and time.perf_counter() - self.begin > SLOWEST:  # or another process was in the way
            begin = time.process_time()
            broken = self._run(data)
            if time.process_time() - begin > SLOWEST:
                return f"{time.process_time() - begin:.1f} s"
        return broken

    def _run(self, data: bytes) -> str | None:
        file = File(self.path, data)
        try:
            if self.count % 256 == 0:  # as users call them
                model = os.fspath(file)
                for target in linter.RULES:
                    linter.lint(model, target)
            else:
                model = reader.parse(data, file)
                graph = linter.LintedGraph(model)
                for target in linter.RULES:
                    linter.findings(graph, target)
            self.read += 1
            quantize(model, WEIGHT_ONLY)
            self.quantized += 1
        except errors.Error as error:
            text = str(error)
            if not text or not text.isprintable() or len(text) > 1200:
                return f"a message that is not one sentence: {text!r}"
        except Exception as error:  # anything else is what is looked for
            return f"{type(error).__name__}: {error}"
        return None


class Search:
    """Inputs from inputs, until something ends it."""

    def __init__(self, arguments: argparse.Namespace, place: pathlib.Path):
        self.arguments, self.random, self.lines, self.target = arguments, Random(arguments.start), Lines(), Target(place)
        self.pool, self.mutate, self.crashes, self.known = Pool(self.random), Mutator(self.random), {}, set()
        self.last = Last(arguments.crashes / f"last-{arguments.start}")
        self.begin = time.monotonic()

    def go_on(self) -> None:
        arguments, target = self.arguments, self.target
        for model in seeds():
            self.known.add(hash(data := model.SerializeToString()))
            self._run(data, is_seed=True)
        for file in sorted(arguments.keep.glob("*.onnx")) if arguments.keep else []:
            self._run(file.read_bytes()[:LONGEST])
        told = self.begin
        while target.count < arguments.runs and (now := time.monotonic()) - self.begin < arguments.seconds:
            faulthandler.dump_traceback_later(300, exit=True)
            for _ in range(min(1024, int(min(arguments.runs, 1e18)) - target.count)):
                self._run(self._next())
            if now - told >= arguments.every:
                told = now
                print(self, flush=True)

    def _next(self) -> bytes:
        """An input that is none of the last half a million."""
        while (data := self.mutate(self.pool.quicker(), self.pool.any())) is None or hash(data) in self.known:
            pass
        if len(self.known) == 2**19:
            self.known.clear()
        self.known.add(hash(data))
        return data

    def _run(self, data: bytes, is_seed: bool = False) -> None:
        arguments, target = self.arguments, self.target
        reached, read = len(self.lines.seen), target.read
        self.last.put(data)
        with self.lines:
            why = target.run(data)
        if why:
            kind = re.sub(r"[^A-Za-z ]+", "", why)[:40]
            if kind not in self.crashes:
                self.crashes[kind] = why
                file = arguments.crashes / f"crash-{hashlib.sha256(data).hexdigest()[:16]}.onnx"
                file.write_bytes(data)
                print(f"{file}: {why}", flush=True)
        elif is_seed or len(self.lines.seen) > reached:
            self.pool.add(data)
            if arguments.keep and not is_seed:
                (arguments.keep / f"{hashlib.sha256(data).hexdigest()[:16]}.onnx").write_bytes(data)
        elif target.read > read and len(data) < 2048 and self.random.random() < 1 / 128:
            self.pool.add_other(data)  # some mutations of mutations

    def __str__(self) -> str:
        target, seconds = self.target, time.monotonic() - self.begin
        return (
            f"{target.count} executions, {target.count / seconds:.0f} per second, {target.read} read, {target.quantized} quantized, "
            f"{len(self.crashes)} kinds of crashes"
        )

    def coverage(self) -> Iterator[str]:
        for file in sorted(READERS):
            wanted = _lines_of(compile(pathlib.Path(file).read_text(), file, "exec"))
            reached = {line for name, line in self.lines.seen if name == file} & wanted
            yield f"{pathlib.Path(file).name:12} {100 * len(reached) / len(wanted):5.1f} % of lines; not: {sorted(wanted - reached)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--runs", type=float, default=float("inf"))
    parser.add_argument("--start", type=int, default=1)
    parser.add_argument("--keep", type=pathlib.Path, default=None, help="where finds are stored, and read from first")
    parser.add_argument("--crashes", type=pathlib.Path, default=pathlib.Path("."))
    parser.add_argument("--coverage", action="store_true", help="the share of the reader's lines that were reached")
    parser.add_argument("--every", type=float, default=float("inf"), metavar="SECONDS", help="says how far it is")
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        if arguments.files:
            target = Target(pathlib.Path(place))
            broken = [(file, why) for file in arguments.files if (why := target.run(Last.get(file)))]
            print(*(f"{file}: {why}" for file, why in broken), sep="\n")
            return 1 if broken else 0
        search, code = Search(arguments, pathlib.Path(place)), 0
        warnings.simplefilter("error")  # what numpy would say on the way is none of a user's business
        signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start what runs in the background without it
        try:
            search.go_on()
        except KeyboardInterrupt:
            code = 130
        faulthandler.cancel_dump_traceback_later()
        print(search, flush=True)
        if (seconds := time.perf_counter() - search.target.begin) > 10 * SLOWEST:
            print(f"{search.last.path}: still running after {seconds:.0f} s")
            return 1
        search.last.path.unlink()
        if arguments.coverage:
            print(*search.coverage(), sep="\n")
    return 1 if search.crashes else code


if __name__ == "__main__":
    sys.exit(main())
