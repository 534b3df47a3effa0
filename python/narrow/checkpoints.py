"""Checkpoints: safetensors files and Hugging Face directories, plain or quantized by narrow."""

from __future__ import annotations

import copyreg
import dataclasses
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from . import _core
from ._arrays import borrow, dtype_name, to_framework
from .errors import InvalidArgument
from .quantization import QuantizedTensor, Scheme

_PathLike = str | os.PathLike[str]


def _framework_sample(framework: str) -> Any:
    """Something whose framework results take."""
    if framework == "torch":
        import torch

        return torch.empty(0)
    if framework != "numpy":
        raise InvalidArgument(f"values come as arrays of numpy or torch, not of {framework!r}")
    return None


def _assemble(parts: tuple, like: Any) -> QuantizedTensor:
    scheme, shape, codes, scales, zero_points, outer_scale = parts
    arrays = [None if part is None else to_framework(part, like) for part in (codes, scales, zero_points)]
    return QuantizedTensor(scheme, shape, arrays[0], arrays[1], arrays[2], outer_scale)


class Checkpoint:
    """An open checkpoint: every header was checked, values are read when they are asked for.

    framework: "numpy" or "torch", what values come as.
    """

    def __init__(self, path: _PathLike, framework: str = "numpy"):
        self._path, self._core = path, _core.Checkpoint(path)
        self._like = _framework_sample(framework)

    @property
    def is_quantized(self) -> bool:
        """Whether it is narrow's own quantized form."""
        return self._core.is_quantized

    @property
    def config(self) -> str:
        """config.json as text; empty where there is none."""
        return self._core.config

    def names(self) -> list[str]:
        """The tensors of the model, quantized or not."""
        return self._core.names()

    def __contains__(self, name: str) -> bool:
        return name in self._core

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def __getitem__(self, name: str) -> Any:
        """The same as read()."""
        return self.read(name)

    def __repr__(self) -> str:
        return f"Checkpoint({os.fspath(self._path)!r}, {len(self)} tensors{', quantized' if self.is_quantized else ''})"

    def shape(self, name: str) -> tuple[int, ...]:
        return self._core.shape(name)

    def dtype(self, name: str) -> str:
        """The type in safetensors' words; a quantized tensor reports its source's."""
        return self._core.dtype(name)

    def scheme(self, name: str) -> Scheme | None:
        """How a tensor is quantized, or None."""
        return self._core.scheme(name)

    def read(self, name: str) -> Any:
        """The values; a quantized tensor is dequantized to its source's type."""
        return to_framework(self._core.read(name), self._like)

    def read_quantized(self, name: str) -> QuantizedTensor:
        """Codes and scales of a quantized tensor."""
        return _assemble(self._core.read_quantized(name), self._like)


def open_checkpoint(path: _PathLike, framework: str = "numpy") -> Checkpoint:
    """Opens a safetensors file, or a directory with one or with shards and an index."""
    return Checkpoint(path, framework)


def write_safetensors(path: _PathLike, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> None:
    """Writes arrays to one safetensors file, atomically."""
    held = {name: borrow(tensor) for name, tensor in tensors.items()}
    _core.write_safetensors(path, held, dict(metadata or {}))


@dataclasses.dataclass(frozen=True)
class VerifyReport:
    """What verify found: one sentence per problem."""

    tensors: int
    bytes: int
    problems: list[str]


def verify_checkpoint(path: _PathLike) -> VerifyReport:
    """Reads every byte again and checks every hash of the manifest."""
    return VerifyReport(*_core.verify_checkpoint(path))


def quantize_checkpoint(
    input: _PathLike,
    output: _PathLike,
    scheme: str | Scheme,
    *,
    targets: Iterable[str] = (),
    ignore: Iterable[str] = ("lm_head",),
    rules: Mapping[str, str] | None = None,
    method: str = "rtn",
    windows: Any = (),
    on_nonfinite: str = "error",
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """Quantizes a checkpoint to a new directory: streaming, atomic, verified. Gives the error of every tensor.

    scheme: a scheme or a preset. rules: pattern -> scheme, the first that matches replaces it; patterns as in the command. method: rtn,
    or steps joined by +: rotate, smoothquant, awq, correct, gptq, clip, refine, tune; they read `windows` of token ids. on_nonfinite:
    what becomes of a tensor with NaN or infinities that its scheme cannot hold: error, keep (as it is) or nearest (zero, the largest
    value); the result counts them. progress(name, bytes done, bytes total). A pattern that changes nothing is warned of, and stands in
    `idle` of the result.
    """
    report = _core.quantize_checkpoint(
        input,
        output,
        str(scheme),
        list(targets),
        list(ignore),
        list((rules or {}).items()),
        method,
        [[int(token) for token in window] for window in windows],
        on_nonfinite,
        progress,
    )
    for sentence in report["idle"]:
        warnings.warn(f"quantize_checkpoint: {sentence}", stacklevel=2)
    return report


def dequantize_checkpoint(input: _PathLike, output: _PathLike, dtype: Any = "bf16") -> None:
    """The reverse: a plain checkpoint in fp32, bf16 or fp16."""
    _core.dequantize_checkpoint(input, output, dtype_name(dtype))


@dataclasses.dataclass(frozen=True)
class FittedWeight:
    """A weight that a method has quantized; losses are relative squared errors of the layer's output over the calibration text."""

    quantized: QuantizedTensor
    loss_before: float  #: of rounding to nearest
    loss_after: float
    fallback: str  #: why GPTQ did not run; empty where it did or was not asked for


def fit_weight(w: Any, scheme: str | Scheme, second_moment: Any = None, method: str = "gptq") -> FittedWeight:
    """Quantizes one weight [n, k] by rtn, gptq, clip or gptq+clip. second_moment: X^T X of its input, [k, k] in fp64."""
    scheme = scheme if isinstance(scheme, Scheme) else Scheme(scheme)
    parts, before, after, fallback = _core.fit_weight(borrow(w), scheme, None if second_moment is None else borrow(second_moment), method)
    return FittedWeight(_assemble(parts, w), before, after, fallback)


def read_token_windows(path: _PathLike, tensor: str) -> list[list[int]]:
    """A tensor [windows, length] of token ids in a safetensors file."""
    return _core.read_token_windows(path, tensor)


def evaluate(path: _PathLike, windows: Any, scheme: str | Scheme = "", base: _PathLike | None = None) -> dict[str, float]:
    """Perplexity of a model directory on windows of token ids, by narrow's own executor; against `base` also the KL divergence.

    scheme: a scheme or a preset that a plain checkpoint is quantized to as it is read.
    On the CPU, with the bits of `narrow eval --compute fp32`.
    """
    return _core.evaluate(path, [[int(token) for token in window] for window in windows], str(scheme), base)


CalibrationStatistics = _core.CalibrationStatistics


def _statistics_of(content: bytes) -> CalibrationStatistics:
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        file.write(content)
        file.flush()
        return CalibrationStatistics.load(file.name)


def _reduce_statistics(statistics: CalibrationStatistics) -> tuple[Callable, tuple[bytes]]:
    """Pickled and copied as the content of their file."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "statistics.safetensors")
        statistics.save(path)
        with open(path, "rb") as file:
            return _statistics_of, (file.read(),)


copyreg.pickle(CalibrationStatistics, _reduce_statistics)


def calibrate(path: _PathLike, windows: Any, second_moments: bool = False) -> CalibrationStatistics:
    """Statistics of the inputs of a model directory's Linear layers, by narrow's own executor. `.save()` writes the file of `narrow
    calibrate`."""
    return _core.calibrate(path, [[int(token) for token in window] for window in windows], second_moments)
