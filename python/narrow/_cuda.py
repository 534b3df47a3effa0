"""CUDA tensors of torch: memory of torch's allocator, work on torch's current stream, addresses instead of objects at the boundary."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from . import _core
from ._arrays import SCALE_NAMES, borrow_torch, torch_dtype, torch_dtype_name

# What compiled code uses: memory on the current device without the dispatcher, the current stream without an object. A torch without CUDA
# has neither.
_empty_strided_here = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)
_current_device = getattr(torch._C, "_cuda_getDevice", None)
raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def _find_exchange() -> tuple[Any, ...] | None:
    """What _core.TorchLayer needs of torch: DLPack's exchange interface (from 2.10 on), memory, the current device."""
    functions = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if type(functions).__name__ != "PyCapsule" or _empty_strided_here is None or _current_device is None:
        return None
    return functions, _empty_strided_here, _current_device, torch.uint8


exchange = _find_exchange()


def current_stream(x: torch.Tensor) -> int:
    return raw_stream(x.get_device())


@functools.lru_cache(maxsize=4096)
def _contiguous(shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A shape as a plain tuple, and its strides."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(shape), tuple(reversed(strides))


def allocator(index: int) -> Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]:
    """torch.empty_strided on a CUDA device."""
    if _empty_strided_here is not None and index == _current_device():
        return _empty_strided_here
    return lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype, device=index)


def empty_on(index: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return allocator(index)(*_contiguous(shape), dtype)


def parts_of(scheme: str, shape: Any) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
    """Shape and type of codes, scales, zero points and outer scale; a part that the scheme does not have is empty."""
    form = scheme_of(scheme)
    grid, rows = tuple(form.grid(shape)), 1
    for size in shape[:-1]:
        rows *= size
    return (
        ((rows, form.row_bytes(shape[-1])), torch.uint8),
        (grid if form.has_scales else (0,), torch_dtype(SCALE_NAMES[form.scale.name])),
        (grid if form.asymmetric else (0,), torch.uint8),
        ((1,) if form.has_outer_scale else (0,), torch.float32),
    )


@functools.lru_cache(maxsize=None)
def scheme_of(text: str) -> _core.Scheme:
    return _core.Scheme(text)


@functools.lru_cache(maxsize=None)
def _nothing(dtype: torch.dtype, index: int) -> torch.Tensor:
    """A part that a scheme does not have. It has no elements that a caller could change, so that all calls share it."""
    with torch.inference_mode(False):
        return torch.empty(0, dtype=dtype, device=index)


@functools.lru_cache(maxsize=4096)
def _memory_of_parts(scheme: str, shape: torch.Size, index: int) -> tuple[tuple[Any, torch.Tensor | None], ...]:
    """For each part what an allocator takes, or what stands for a part that the scheme does not have."""
    return tuple(
        (None, _nothing(dtype, index)) if part == (0,) else ((*_contiguous(part), dtype), None) for part, dtype in parts_of(scheme, shape)
    )


def plain_rows(x: torch.Tensor) -> torch.Tensor:
    """Contiguous columns and evenly spaced rows: what the CUDA kernels read."""
    return x if x.is_contiguous() or (x.dim() == 2 and x.stride(1) == 1 and x.stride(0) >= x.shape[1]) else x.contiguous()


def _maybe(x: torch.Tensor | None) -> _core.Array | None:
    return None if x is None else borrow_torch(x)


def quantize_cuda(
    x: torch.Tensor,
    scheme: str,
    scales: torch.Tensor | None = None,
    zero_points: torch.Tensor | None = None,
    outer_scale: torch.Tensor | None = None,
    rounding: str = "nearest_even",
    seed: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes, scales, zero points and outer scale of x; a part that the scheme does not have is empty. Some may be known beforehand."""
    x, index = plain_rows(x), x.get_device()
    allocate = allocator(index)
    parts = tuple([nothing if memory is None else allocate(*memory) for memory, nothing in _memory_of_parts(scheme, x.shape, index)])
    stream = raw_stream(index)
    if scales is None and zero_points is None and outer_scale is None:
        codes, made_scales, made_zero_points, outer = parts
        _core.cuda_quantize_at(
            scheme_of(scheme),
            x.shape,
            () if x.is_contiguous() else x.stride(),
            x.data_ptr(),
            torch_dtype_name(x.dtype),
            codes.data_ptr(),
            made_scales.data_ptr(),
            made_zero_points.data_ptr(),
            outer.data_ptr(),
            index,
            stream,
            rounding,
            seed,
        )
        return parts
    _core.cuda_quantize(
        borrow_torch(x),
        scheme_of(scheme),
        *(borrow_torch(part) if part.numel() else None for part in parts),
        stream,
        rounding=rounding,
        seed=seed,
        given_scales=_maybe(scales),
        given_zero_points=_maybe(zero_points),
        given_outer_scale=_maybe(outer_scale),
    )
    return parts


def _memory(x: torch.Tensor | None) -> tuple[int, int]:
    """Address and bytes of a part of a quantized tensor; none where it does not have it. The caller keeps x alive."""
    return (0, 0) if x is None else (x.data_ptr(), x.nbytes)


def dequantize_cuda(
    codes: torch.Tensor,
    scales: torch.Tensor | None,
    zero_points: torch.Tensor | None,
    outer_scale: torch.Tensor | None,
    scheme: str,
    shape: Any,
    dtype: torch.dtype,
) -> torch.Tensor:
    """The values of a quantized tensor."""
    parts = codes, scales, zero_points, outer_scale
    if not all(part is None or part.is_contiguous() for part in parts):
        codes, scales, zero_points, outer_scale = (part if part is None else part.contiguous() for part in parts)
    index, shape = codes.get_device(), tuple(shape)
    y = empty_on(index, shape, dtype)
    _core.cuda_dequantize_at(
        scheme_of(scheme),
        shape,
        _memory(codes),
        _memory(scales),
        _memory(zero_points),
        _memory(outer_scale),
        y.data_ptr(),
        torch_dtype_name(dtype),
        index,
        raw_stream(index),
    )
    return y
