"""CUDA arrays of frameworks other than torch (cupy, jax, and whatever speaks DLPack): borrowed where they lie.

Results are memory of narrow, given to the framework through DLPack: cupy and jax arrays where the input was one, else an array that speaks
DLPack. Work is on cupy's current stream; other frameworks do not name theirs, so that the default stream is used and waited for.
"""

from __future__ import annotations

import sys
from typing import Any

from . import _core
from ._arrays import SCALE_NAMES

CUDA = 2  #: DLPack's device type
DEFAULT_STREAM = 1  #: DLPack's and CUDA's name for the default stream of a device


def is_device_array(x: Any) -> bool:
    """Whether x is on a CUDA device, in another framework than torch."""
    if type(x).__module__ == "numpy" or not hasattr(x, "__dlpack_device__"):
        return False
    torch = sys.modules.get("torch")
    return (torch is None or not isinstance(x, torch.Tensor)) and x.__dlpack_device__()[0] == CUDA


def _framework(x: Any) -> str:
    return type(x).__module__.partition(".")[0]


class _Work:
    """One operation on the device of x: inputs that are ready when it starts, results that are ready when it ends."""

    def __init__(self, x: Any):
        self.device, self.framework, self.stream = x.__dlpack_device__()[1], _framework(x), DEFAULT_STREAM
        if self.framework == "cupy":
            self.stream = sys.modules["cupy"].cuda.get_current_stream().ptr or DEFAULT_STREAM

    def borrow(self, x: Any, name: str = "") -> _core.Array:
        """The producer makes our stream wait for what it has still to write."""
        if isinstance(x, _core.Array):
            return x
        return _core.Array(x.__dlpack__(stream=self.stream), name)

    def maybe_borrow(self, x: Any) -> _core.Array | None:
        return None if x is None else self.borrow(x)

    def empty(self, shape: tuple[int, ...], name: str) -> _core.Array:
        return _core.Array.empty(shape, name, self.device)

    def give(self, array: _core.Array | None) -> Any:
        if array is None:
            return None
        if self.framework == "cupy":
            return sys.modules["cupy"].from_dlpack(array)
        _core.cuda_synchronize(self.stream)
        if self.framework in ("jax", "jaxlib"):
            import jax.dlpack

            return jax.dlpack.from_dlpack(array)
        return array


def quantize_device(x: Any, scheme: _core.Scheme, *, rounding: str, seed: int, scales: Any, zero_points: Any, outer_scale: Any) -> tuple:
    """Codes, scales, zero points and outer scale of x, on its device; None for parts that the scheme does not have."""
    work, shape = _Work(x), tuple(x.shape)
    grid, rows = scheme.grid(shape), 1
    for size in shape[:-1]:
        rows *= size
    parts = (
        work.empty((rows, scheme.row_bytes(shape[-1])), "U8"),
        work.empty(grid, SCALE_NAMES[scheme.scale.name]) if scheme.has_scales else None,
        work.empty(grid, "U8") if scheme.asymmetric else None,
        work.empty((1,), "F32") if scheme.has_outer_scale else None,
    )
    _core.cuda_quantize(
        work.borrow(x),
        scheme,
        *parts,
        work.stream,
        rounding=rounding,
        seed=seed,
        given_scales=work.maybe_borrow(scales),
        given_zero_points=work.maybe_borrow(zero_points),
        given_outer_scale=work.maybe_borrow(outer_scale),
    )
    return tuple(map(work.give, parts))


def dequantize_device(q: Any, name: str) -> Any:
    """The values of a quantized tensor whose parts are on a device."""
    work = _Work(q.codes)
    y = work.empty(q.shape, name)
    outer = q.outer_scale if q.scheme.has_outer_scale else None
    parts = work.borrow(q.codes), work.maybe_borrow(q.scales), work.maybe_borrow(q.zero_points), work.maybe_borrow(outer)
    _core.cuda_dequantize(q.scheme, q.shape, *parts, y, work.stream)
    return work.give(y)
