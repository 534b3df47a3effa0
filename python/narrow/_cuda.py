"""CUDA tensors of torch: memory of torch's allocator, work on torch's current stream."""

from __future__ import annotations

from typing import Any

import torch

from . import _core
from ._arrays import borrow_torch


def current_stream(x: torch.Tensor) -> int:
    return torch._C._cuda_getCurrentRawStream(x.device.index)


def _maybe(x: torch.Tensor | None) -> _core.Array | None:
    return None if x is None else borrow_torch(x)


def quantize_cuda(
    x: torch.Tensor, q: Any, *, rounding: str, seed: int, given_scales: Any, given_zero_points: Any, given_outer_scale: Any
) -> None:
    """Codes and scales of x into q, whose parts are on x's device."""
    x = x.detach()
    if x.dim() > 1 and x.stride(-1) != 1:
        x = x.contiguous()
    if q.scheme.has_outer_scale:
        q.outer_scale = torch.empty(1, dtype=torch.float32, device=x.device)
        if given_outer_scale is not None:
            given_outer_scale = torch.as_tensor(given_outer_scale, dtype=torch.float32, device=x.device).reshape(1)
    _core.cuda_quantize(
        borrow_torch(x),
        q.scheme,
        borrow_torch(q.codes),
        _maybe(q.scales),
        _maybe(q.zero_points),
        _maybe(q.outer_scale if q.scheme.has_outer_scale else None),
        current_stream(x),
        rounding=rounding,
        seed=seed,
        given_scales=given_scales,
        given_zero_points=given_zero_points,
        given_outer_scale=_maybe(given_outer_scale),
    )


def dequantize_cuda(q: Any, y: torch.Tensor) -> None:
    outer = q.outer_scale if q.scheme.has_outer_scale else None
    if outer is not None and not isinstance(outer, torch.Tensor):
        outer = torch.tensor([outer], dtype=torch.float32, device=y.device)
    _core.cuda_dequantize(
        q.scheme, q.shape, borrow_torch(q.codes), _maybe(q.scales), _maybe(q.zero_points), _maybe(outer), borrow_torch(y), current_stream(y)
    )
