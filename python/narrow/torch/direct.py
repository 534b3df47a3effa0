"""Products by one call each, without a module: FPx linear, FP8 and MSFP matmul, int8 linear."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _core
from .._arrays import borrow_torch
from .._cuda import current_stream
from ..errors import InvalidArgument
from ..quantization import Format
from .ops import scheme_of


def _linear(
    x: Tensor,
    codes: Tensor,
    scales: Tensor | None,
    scheme: str,
    bias: Tensor | None = None,
    inputs: str = "",
    input_scale: Tensor | None = None,
) -> Tensor:
    return torch.ops.narrow.linear(x, codes, scales, None, None, bias, scheme, inputs, input_scale, None)


def _fpx(ebits: int, mbits: int) -> str:
    return f"{Format(f'fp{1 + ebits + mbits}_e{ebits}m{mbits}').name}:row"


def to_fpx(weight: Tensor, ebits: int, mbits: int) -> tuple[Tensor, Tensor]:
    """A weight [n, k] as packed codes and one scale per output: FP6 is (3, 2) or (2, 3), FP5 (2, 2) or (3, 1), FP4 (2, 1)."""
    codes, scales, _, _ = torch.ops.narrow.quantize(weight, _fpx(ebits, mbits), None, None)
    return codes, scales


def fpx_linear(ebits: int, mbits: int, act: Tensor, packed: Tensor, scales: Tensor, bias: Tensor | None = None) -> Tensor:
    """y = act W^T of to_fpx's weight; act and y are fp32, fp16 or bf16."""
    return _linear(act, packed, scales, _fpx(ebits, mbits), bias)


_FLOAT8 = {torch.float8_e4m3fn: "fp8_e4m3", torch.float8_e5m2: "fp8_e5m2"}


def _fp8_matmul(
    a: Tensor, b: Tensor, scale_a: Tensor | float, scale_b: Tensor | float, dtype: torch.dtype, expected: torch.dtype
) -> Tensor:
    if a.dtype != expected or b.dtype != expected or a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise InvalidArgument(
            f"fp8 matmul: [m, k] x [k, n] of {expected} is needed, not {tuple(a.shape)} of {a.dtype} x {tuple(b.shape)} of {b.dtype}"
        )
    form = _FLOAT8[expected]
    scale = torch.as_tensor(scale_b, dtype=torch.float32, device=a.device).reshape(1, 1)
    values = torch.ops.narrow.dequantize(
        a.contiguous().view(torch.uint8),
        torch.as_tensor(scale_a, dtype=torch.float32, device=a.device).reshape(1, 1),
        None,
        None,
        f"{form}:tensor",
        list(a.shape),
        dtype,
    )
    return _linear(values, b.t().contiguous().view(torch.uint8), scale, f"{form}:tensor")


def fp8e4m3_matmul(
    a: Tensor, b: Tensor, scale_a: Tensor | float = 1.0, scale_b: Tensor | float = 1.0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """a [m, k] @ b [k, n] of torch.float8_e4m3fn, sums in fp32."""
    return _fp8_matmul(a, b, scale_a, scale_b, dtype, torch.float8_e4m3fn)


def fp8e5m2_matmul(
    a: Tensor, b: Tensor, scale_a: Tensor | float = 1.0, scale_b: Tensor | float = 1.0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """a [m, k] @ b [k, n] of torch.float8_e5m2, sums in fp32."""
    return _fp8_matmul(a, b, scale_a, scale_b, dtype, torch.float8_e5m2)


class MsfpTensor:
    """A matrix in MSFP: boxes of 16 along its last dimension share an exponent. transpose(0, 1) is a view, as matmul's right side takes
    it."""

    def __init__(self, codes: Tensor, scales: Tensor, scheme: str, shape: tuple[int, int], transposed: bool = False):
        self.codes, self.scales, self.scheme, self._shape, self.transposed = codes, scales, scheme, shape, transposed

    @property
    def shape(self) -> tuple[int, int]:
        return self._shape[::-1] if self.transposed else self._shape

    def transpose(self, dim0: int, dim1: int) -> MsfpTensor:
        if {dim0 % 2, dim1 % 2} != {0, 1}:
            raise InvalidArgument(f"transpose: a matrix has the dimensions 0 and 1, not {dim0} and {dim1}")
        return MsfpTensor(self.codes, self.scales, self.scheme, self._shape, not self.transposed)

    @property
    def T(self) -> MsfpTensor:  # noqa: N802
        return self.transpose(0, 1)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        values = torch.ops.narrow.dequantize(self.codes, self.scales, None, None, self.scheme, list(self._shape), dtype)
        return values.t() if self.transposed else values


def to_msfp(x: Tensor, bits: int = 16) -> MsfpTensor:
    """A matrix as msfp11 .. msfp16."""
    codes, scales, _, _ = torch.ops.narrow.quantize(x, f"msfp{bits}", None, None)
    return MsfpTensor(codes, scales, str(scheme_of(f"msfp{bits}")), tuple(x.shape))


def fp32_to_msfp16(x: Tensor) -> MsfpTensor:
    """Boxes of 16 values with a shared exponent of 8 bits, a sign and a magnitude of 7 bits each."""
    return to_msfp(x, 16)


def _operand(x: MsfpTensor) -> tuple[Any, ...]:
    return scheme_of(x.scheme), list(x._shape), borrow_torch(x.codes), borrow_torch(x.scales)


def msfp_matmul(a: MsfpTensor, b: MsfpTensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """a [m, k] @ b [k, n]: boxes lie along k on both sides, so b is the transpose of what was converted."""
    if a.transposed or not b.transposed or a.shape[1] != b.shape[0]:
        raise InvalidArgument(f"msfp matmul: [m, k] x the transpose of [n, k] is needed; the shapes are {a.shape} and {b.shape}")
    if a.codes.is_cuda:
        y = torch.empty((a.shape[0], b.shape[1]), dtype=dtype, device=a.codes.device)
        _core.cuda_msfp_matmul(*_operand(a), *_operand(b), borrow_torch(y), current_stream(y))
        return y
    return _linear(a.dequantize(dtype), b.codes, b.scales, b.scheme, inputs=f"{a.scheme}:dynamic" if dtype == torch.float32 else "")


msfp16_matmul = msfp_matmul


def to_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A weight [n, k] as int8 codes and one scale per output."""
    codes, scales, _, _ = torch.ops.narrow.quantize(weight, "int8:row", None, None)
    return codes, scales


def int8_linear_dynamic(x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None = None) -> Tensor:
    """An int8 product whose input is rounded by a scale per token, taken from the input."""
    return _linear(x, codes, scales, "int8:row", bias, "int8:row:dynamic")


def int8_linear_static(x: Tensor, codes: Tensor, scales: Tensor, input_scale: Tensor | float, bias: Tensor | None = None) -> Tensor:
    """An int8 product whose input is rounded by one scale that calibration found."""
    scale = torch.as_tensor(input_scale, dtype=torch.float32, device=x.device).reshape(1)
    return _linear(x, codes, scales, "int8:row", bias, "int8:tensor:static", scale)
