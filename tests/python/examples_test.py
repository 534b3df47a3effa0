"""The programs of examples/python, on little input: they run, and show what they say they show."""

import pathlib
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("narrow", reason="the Python package is not built")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples" / "python"))


def test_quantize_llama():
    import quantize_llama

    base, results = quantize_llama.main(["int8:row", "nvfp4", "--windows", "2", "--length", "96"])
    assert base == pytest.approx(results["int8:row"], rel=0.01) and results["nvfp4"] > base


def test_quantize_cnn():
    import quantize_cnn

    results = quantize_cnn.main()
    assert results["fp32"] > 0.9 and results["int8, calibrated"] > results["fp32"] - 0.02
    assert results["binary convolution"] > 0.8 and results["the same, packed"] == pytest.approx(results["binary convolution"], abs=0.01)


def test_qat_llama():
    import qat_llama

    base, rounded, trained, recovered = qat_llama.main(["--steps", "8", "--batch", "2", "--length", "128", "--windows", "2"])
    assert base < trained < rounded and recovered > 0.1


def test_fp8_training():
    import fp8_training

    bf16, _, worst = fp8_training.main(["--steps", "12", "--scaling", "delayed"])
    assert bf16[-1] < bf16[0] and worst < 0.01
