"""ONNX files that are not what they claim to be: every one is refused with one sentence, quickly, and nothing is written."""

import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip("narrow")
onnx = pytest.importorskip("onnx")
from narrow.onnx.__main__ import main  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402


def model(nodes=None, constants=None, opset=18, **changes):
    """x [2, 4] -> MatMul w -> y, or other nodes."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])] if nodes is None else nodes
    constants = {"w": np.ones((4, 3), np.float32)} if constants is None else constants
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
        [value if isinstance(value, TensorProto) else numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def external(**entries):
    """w, whose bytes lie in another file; None leaves an entry out."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4, 3], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": "weights.bin", "offset": "0", "length": "48", **entries}.items():
        if value is not None:
            tensor.external_data.add(key=key, value=value)
    return model(constants={"w": tensor})


def foreign(inputs, outputs=("y",), **attributes):
    """An operator that onnx's checker does not know."""
    made = model(nodes=[helper.make_node("MatMulNBits", inputs, list(outputs), domain="com.microsoft", **attributes)])
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return made


def tensor(**changes):
    made = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4, 3], raw_data=bytes(48))
    for name, value in changes.items():
        if name == "dims":
            del made.dims[:]
            made.dims.extend(value)
        else:
            setattr(made, name, value)
    return model(constants={"w": made})


def cases():
    good = model().SerializeToString()
    yield "empty", b""
    yield "zeros", bytes(4096)
    yield "ones", b"\xff" * 4096
    yield "pickle", b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x08builtins\x94\x2e"
    yield "zip", b"PK\x03\x04\x14\x00\x00\x00\x08\x00" + b"z" * 64
    yield "html", b"<!DOCTYPE html><html><body>404</body></html>"
    yield "lfs_pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    yield "safetensors", b"\x08\0\0\0\0\0\0\0{}      "
    yield "gguf", b"GGUF" + bytes(64)
    for length in (1, len(good) // 4, len(good) // 2, len(good) - 1):
        yield f"cut_at_{length}", good[:length]
    yield "length_2_31", b"\x3a\xff\xff\xff\xff\x07" + good
    yield "varint_without_end", b"\x08" + b"\x80" * 64
    yield "deep", b"\x3a\x7e" * 4096
    yield "no_graph", onnx.ModelProto(ir_version=10).SerializeToString()
    yield "no_nodes", model(nodes=[])
    yield "no_opset", onnx.ModelProto(ir_version=10, graph=model().graph).SerializeToString()
    yield "ir_version_0", model(ir_version=0)
    yield "ir_version_huge", model(ir_version=2**62)
    yield "opset_0", model(opset=0)
    yield "opset_huge", model(opset=2**31 - 1)
    yield "unknown_operator", model(nodes=[helper.make_node("Magic", ["x", "w"], ["y"])])
    yield "input_without_source", model(nodes=[helper.make_node("MatMul", ["nowhere", "w"], ["y"])])
    yield "cycle", model(nodes=[helper.make_node("MatMul", ["b", "w"], ["y"]), helper.make_node("Relu", ["y"], ["b"])])
    yield "output_twice", model(nodes=[helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Relu", ["x"], ["y"])])
    yield "too_many_inputs", model(nodes=[helper.make_node("MatMul", ["x", "w", "w"], ["y"])])
    yield "no_inputs", model(nodes=[helper.make_node("MatMul", [], ["y"])])
    yield "unknown_attribute", model(nodes=[helper.make_node("MatMul", ["x", "w"], ["y"], magic=1)])
    reference = helper.make_node("Gemm", ["x", "w"], ["y"], transB=0)
    reference.attribute[0].ref_attr_name = "transB"
    yield "reference_outside_of_a_function", model(nodes=[reference])
    yield "foreign_operator_without_inputs", foreign(["x"], bits=4)
    yield "foreign_operator_without_outputs", foreign(["x", "w", "w"], outputs=[], bits=4)
    yield "foreign_number_is_text", foreign(["x", "w", "w"], bits="four")
    yield "control_characters", model(nodes=[helper.make_node("\x1b[31mred\n", ["x", "w"], ["y"])])
    named = model(nodes=[helper.make_node("MatMul", ["x", "w"], ["y"], name="NAME")]).SerializeToString()
    yield "name_is_no_text", named.replace(b"NAME", b"N\xffME")
    yield "tensor_too_short", tensor(raw_data=bytes(47))
    yield "tensor_too_long", tensor(raw_data=bytes(49))
    yield "tensor_type_unknown", tensor(data_type=99)
    yield "tensor_type_undefined", tensor(data_type=0)
    yield "tensor_negative", tensor(dims=[-4, 3])
    yield "tensor_wraps", tensor(dims=[2**62, 8])
    yield "tensor_huge", tensor(dims=[2**40])
    for name, location in {
        "parent": "../weights.bin",
        "inside_out": "a/../../weights.bin",
        "absolute": "/etc/passwd",
        "missing": "nowhere.bin",
        "directory": ".",
        "empty": "",
        "link": "link.bin",
        "nul": "weights.bin\0.txt",
    }.items():
        yield f"external_{name}", external(location=location)
    yield "external_without_location", external(location=None)
    for name, entries in {
        "offset_negative": {"offset": "-1"},
        "offset_huge": {"offset": str(2**63)},
        "offset_text": {"offset": "x"},
        "offset_behind": {"offset": "4096"},
        "length_negative": {"length": "-48"},
        "length_huge": {"length": str(2**50)},
        "length_short": {"length": "4"},
    }.items():
        yield f"external_{name}", external(**entries)


CASES = dict(cases())


@pytest.mark.parametrize("name", CASES)
def test_is_refused_in_one_sentence(tmp_path, capsys, name):
    place = tmp_path / "in"
    place.mkdir()
    (tmp_path / "weights.bin").write_bytes(bytes(48))
    (place / "weights.bin").write_bytes(bytes(48))
    (place / "link.bin").symlink_to(tmp_path / "weights.bin")
    content = CASES[name]
    (place / "model.onnx").write_bytes(content if isinstance(content, bytes) else content.SerializeToString())
    before = sorted(tmp_path.rglob("*"))
    begin = time.process_time()
    assert main(["lint", str(place / "model.onnx")]) == 2
    assert time.process_time() - begin < 2.0
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("narrow onnx: ") and len(error) < 1200 and error.rstrip("\n").isprintable()
    assert main(["quantize", str(place / "model.onnx"), str(tmp_path / "out.onnx"), "--activations", "none"]) == 2
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        ([helper.make_node("Transpose", ["w"], ["t"], perm=[0, 0]), helper.make_node("MatMul", ["x", "t"], ["y"])], None),
        ([helper.make_node("Conv", ["x", "w"], ["y"])], {"w": np.float32(1.0)}),
        ([helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": np.ones((7, 3), np.float32)}),
    ],
    ids=["order_twice", "filter_without_dimensions", "sizes_differ"],
)
def test_a_graph_that_contradicts_itself_is_not_quantized(tmp_path, capsys, nodes, constants):
    onnx.save(model(nodes, constants), tmp_path / "model.onnx")
    assert main(["quantize", str(tmp_path / "model.onnx"), str(tmp_path / "out.onnx"), "--activations", "none"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.rstrip("\n").isprintable()
    assert not (tmp_path / "out.onnx").exists()


def test_the_first_inputs_of_the_fuzzer_break_nothing(tmp_path):
    fuzzer = pathlib.Path(__file__).parents[2] / "fuzz/onnx_fuzz.py"
    result = subprocess.run([sys.executable, fuzzer, "--runs", "600", "--crashes", tmp_path], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_what_is_no_file_is_not_opened(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe.onnx")
    for path in (tmp_path / "pipe.onnx", tmp_path, tmp_path / "nowhere.onnx"):
        assert main(["lint", str(path)]) == (4 if path.name == "nowhere.onnx" else 2)  # 4: it could not be read at all
        assert capsys.readouterr().err.count("\n") == 1


def test_the_model_that_the_cases_are_made_of_is_right(tmp_path):
    onnx.save(model(), tmp_path / "model.onnx")
    assert main(["lint", str(tmp_path / "model.onnx")]) == 0
    (tmp_path / "weights.bin").write_bytes(bytes(48))
    (tmp_path / "external.onnx").write_bytes(external().SerializeToString())
    assert main(["lint", str(tmp_path / "external.onnx")]) == 0
