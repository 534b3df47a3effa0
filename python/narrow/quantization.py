"""Quantized tensors: quantize, dequantize, requantize, fake-quantize, and products with them."""

from __future__ import annotations

import dataclasses
from typing import Any

from . import _core
from ._arrays import (
    FORMATS,
    SCALE_NAMES,
    borrow,
    bytes_array,
    bytes_of,
    dtype_name,
    empty,
    float32,
    framework_name,
    is_torch,
    maybe_borrow,
    to_framework,
    torch_dtype,
    values,
)
from ._device import dequantize_device, is_device_array, quantize_device
from .errors import InvalidArgument, WrongType

Format = _core.Format
Scheme = _core.Scheme


def _scheme(scheme: str | Scheme) -> Scheme:
    if isinstance(scheme, Scheme):
        return scheme
    try:
        return Scheme(scheme if isinstance(scheme, str) else format_of(scheme).name)
    except InvalidArgument:
        preset = next((preset for preset in presets() if preset.name == scheme), None)
        if preset is None:
            raise
        raise InvalidArgument(
            f"{scheme} is a preset, for whole models (narrow.torch.quantize_, quantize_checkpoint); its weights are {preset.weights}"
        ) from None


def format_of(dtype: Any) -> Format:
    """The format of a dtype of ml_dtypes, numpy or torch: torch.float8_e4m3fn, ml_dtypes.float4_e2m1fn, torch.float4_e2m1fn_x2, ..."""
    name = FORMATS.get(framework_name(dtype))
    if name is None:
        raise InvalidArgument(f"dtype {dtype!r} is none of narrow's formats; those that are: {', '.join(FORMATS)}")
    return Format(name)


def _on_cuda(x: Any) -> bool:
    return is_torch(x) and x.is_cuda


def _rows(shape: tuple[int, ...]) -> int:
    rows = 1
    for size in shape[:-1]:
        rows *= size
    return rows


@dataclasses.dataclass(eq=False, repr=False)
class QuantizedTensor:
    """A tensor in narrow form: the canonical bytes, the same on every device and in files.

    real = scale * outer_scale * (decode(code) - zero_point). The parts are arrays of the framework that was quantized (numpy or torch).
    """

    scheme: Scheme
    shape: tuple[int, ...]  #: of the values
    codes: Any  #: uint8 [rows, row bytes]: packed along the last dimension, element 0 in the lowest bits
    scales: Any = None  #: one per cell of the scale grid, in the scheme's own scale format
    zero_points: Any = None  #: uint8, of asymmetric schemes
    outer_scale: Any = 1.0  #: of nvfp4: one fp32 for the tensor (a float on the CPU, a tensor on CUDA)

    def __post_init__(self) -> None:
        self.scheme, self.shape = _scheme(self.scheme), tuple(self.shape)

    @property
    def byte_size(self) -> int:
        """Bytes of codes, scales, zero points and outer scale."""
        return self.scheme.byte_size(self.shape)

    @property
    def bits_per_value(self) -> float:
        """Bits that a value takes, with its share of scales, zero points and outer scale."""
        return 8 * self.byte_size / max(_rows(self.shape) * self.shape[-1], 1)

    def __repr__(self) -> str:
        return f"QuantizedTensor({self.scheme}, {self.shape}, {self.byte_size} bytes, {self.bits_per_value:.2f} bits per value)"

    def __eq__(self, other: object) -> bool:
        """The same bytes: scheme, shape, codes, scales, zero points and outer scale."""
        if not isinstance(other, QuantizedTensor):
            return NotImplemented
        if self.scheme != other.scheme or self.shape != other.shape or float(self.outer_scale) != float(other.outer_scale):
            return False
        pairs = ((self.codes, other.codes), (self.scales, other.scales), (self.zero_points, other.zero_points))
        return all(a is b or bytes_of(a) == bytes_of(b) for a, b in pairs)

    __hash__ = None  # type: ignore[assignment]

    def dequantize(self, dtype: Any = "fp32") -> Any:
        """The values; see :func:`dequantize`."""
        return dequantize(self, dtype)

    def core(self) -> _core.Quantized:
        """The same tensor as the library sees it. It keeps the arrays alive."""
        return _core.Quantized(
            self.scheme, self.shape, borrow(self.codes), maybe_borrow(self.scales), maybe_borrow(self.zero_points), float(self.outer_scale)
        )


def _empty_quantized(x: Any, scheme: Scheme) -> QuantizedTensor:
    shape = tuple(x.shape)
    if not shape:
        raise InvalidArgument("quantize: a scalar has no rows; give it a dimension")
    grid = scheme.grid(shape)
    return QuantizedTensor(
        scheme,
        shape,
        codes=empty((_rows(shape), scheme.row_bytes(shape[-1])), "U8", x),
        scales=empty(grid, SCALE_NAMES[scheme.scale.name], x) if scheme.has_scales else None,
        zero_points=empty(grid, "U8", x) if scheme.asymmetric else None,
    )


def quantize(
    x: Any,
    scheme: str | Scheme,
    *,
    rounding: str = "nearest_even",
    overflow: str = "saturate",
    nonfinite: str = "error",
    seed: int = 0,
    scales: Any = None,
    zero_points: Any = None,
    outer_scale: Any = None,
) -> QuantizedTensor:
    """The codes and scales of `x`: fp32, fp16 or bf16, any strides, of numpy, torch or any DLPack framework.

    rounding: nearest_even, toward_zero or stochastic (drawn from `seed`). overflow: saturate or ieee. nonfinite: error, or saturate NaN to
    zero and infinities to the largest value; on CUDA it always saturates. scales, zero_points: static quantization, one per grid cell.
    outer_scale: of a scheme that has one, known beforehand. CUDA tensors are quantized on torch's current stream.
    """
    scheme, x = _scheme(scheme), values("quantize", x)
    if zero_points is not None and not is_device_array(x):
        zero_points = bytes_array("zero points", zero_points, x)
    if is_device_array(x):
        given = dict(scales=scales, zero_points=zero_points, outer_scale=outer_scale)
        codes, made_scales, made_zero_points, outer = quantize_device(x, scheme, rounding=rounding, seed=seed, **given)
        return QuantizedTensor(scheme, tuple(x.shape), codes, made_scales, made_zero_points, 1.0 if outer is None else outer)
    if _on_cuda(x):
        return _quantize_on_cuda(x, scheme, rounding, seed, scales, zero_points, outer_scale)
    q = _empty_quantized(x, scheme)
    given = dict(given_scales=maybe_borrow(None if scales is None else float32(scales)), given_zero_points=maybe_borrow(zero_points))
    q.outer_scale = _core.quantize_into(
        borrow(x),
        scheme,
        borrow(q.codes),
        maybe_borrow(q.scales),
        maybe_borrow(q.zero_points),
        rounding=rounding,
        overflow=overflow,
        nonfinite=nonfinite,
        seed=seed,
        given_outer_scale=outer_scale,
        **given,
    )
    return q


def _quantize_on_cuda(x: Any, scheme: Scheme, rounding: str, seed: int, scales: Any, zero_points: Any, outer_scale: Any) -> QuantizedTensor:
    from ._cuda import quantize_cuda

    if scales is not None:
        scales = float32(scales)
    if outer_scale is not None:
        outer_scale = as_outer_scale(outer_scale, x)
    codes, made_scales, made_zero_points, outer = quantize_cuda(
        x.detach(), str(scheme), scales, zero_points, outer_scale, rounding=rounding, seed=seed
    )
    return QuantizedTensor(
        scheme,
        tuple(x.shape),
        codes,
        made_scales if scheme.has_scales else None,
        made_zero_points if scheme.asymmetric else None,
        outer if scheme.has_outer_scale else 1.0,
    )


def as_outer_scale(value: Any, like: Any) -> Any:
    """A number, or a tensor of one, as a CUDA tensor of one fp32."""
    import torch

    return torch.as_tensor(value, dtype=torch.float32, device=like.device).reshape(1)


def dequantize(q: QuantizedTensor, dtype: Any = "fp32") -> Any:
    """The values in fp32, fp16 or bf16: rounded once to fp32 by the scale, once more to a 16-bit type."""
    if not isinstance(q, QuantizedTensor):
        raise WrongType(f"dequantize: a {type(q).__name__} is no QuantizedTensor; quantize makes one")
    if is_device_array(q.codes):
        return dequantize_device(q, dtype_name(dtype))
    if _on_cuda(q.codes):
        from ._cuda import dequantize_cuda

        outer = as_outer_scale(q.outer_scale, q.codes) if q.scheme.has_outer_scale else None
        return dequantize_cuda(q.codes, q.scales, q.zero_points, outer, str(q.scheme), q.shape, torch_dtype(dtype_name(dtype)))
    y = empty(q.shape, dtype_name(dtype), q.codes)
    _core.dequantize_into(q.core(), borrow(y))
    return y


def as_quantized(x: Any) -> QuantizedTensor:
    """An array of narrow floats (float8, float6 or float4 of ml_dtypes or torch) as a QuantizedTensor without scales, exactly.

    Bytes that are codes already are shared; ml_dtypes keeps one narrower number in a byte, which is packed.
    """
    form = format_of(x.dtype)
    if form.kind == "integer":
        raise InvalidArgument(f"as_quantized: {form.name} has no meaning without a scale; give QuantizedTensor the codes and their scales")
    if not x.shape:
        raise InvalidArgument("as_quantized: a scalar has no rows; give it a dimension")
    scheme = Scheme(f"{form.name}:none")
    if framework_name(x.dtype) == "float4_e2m1fn_x2":  # two in a byte, the first in the lower half: as here
        codes = x.contiguous().view(_torch_bytes())
        return QuantizedTensor(scheme, (*x.shape[:-1], 2 * x.shape[-1]), codes.reshape(-1, codes.shape[-1]))
    if form.bits == 8:
        codes = x.contiguous().view(_torch_bytes()) if is_torch(x) else _contiguous(x).view("uint8")
        return QuantizedTensor(scheme, tuple(x.shape), codes.reshape(_rows(tuple(x.shape)), x.shape[-1]))
    return quantize(float32(x), scheme)


def _contiguous(x: Any) -> Any:
    import numpy

    return numpy.ascontiguousarray(x)


def _torch_bytes() -> Any:
    import torch

    return torch.uint8


def requantize(q: QuantizedTensor, scheme: str | Scheme, **options: Any) -> QuantizedTensor:
    """The same tensor in another scheme, through its exact fp32 values. Options as in :func:`quantize`."""
    return quantize(dequantize(q), scheme, **options)


def fake_quantize(
    x: Any,
    scheme: str | Scheme,
    *,
    rounding: str = "nearest_even",
    overflow: str = "saturate",
    nonfinite: str = "error",
    seed: int = 0,
    scales: Any = None,
    zero_points: Any = None,
    outer_scale: Any = None,
) -> Any:
    """dequantize(quantize(x)) in x's own type: what training with quantization sees. Options as in :func:`quantize`."""
    scheme, x = _scheme(scheme), values("fake_quantize", x)
    if zero_points is not None and not is_device_array(x):
        zero_points = bytes_array("zero points", zero_points, x)
    if _on_cuda(x) or is_device_array(x):
        q = quantize(x, scheme, rounding=rounding, seed=seed, scales=scales, zero_points=zero_points, outer_scale=outer_scale)
        return dequantize(q, x.dtype)
    source = borrow(x)
    y = empty(tuple(x.shape), source.dtype, x)
    _core.fake_quantize_into(
        source,
        scheme,
        borrow(y),
        rounding=rounding,
        overflow=overflow,
        nonfinite=nonfinite,
        seed=seed,
        given_scales=maybe_borrow(None if scales is None else float32(scales)),
        given_zero_points=maybe_borrow(zero_points),
        given_outer_scale=outer_scale,
    )
    return y


def compare(x: Any, y: Any) -> dict[str, float]:
    """How far y is from x: max_absolute, mean_absolute, rms, sqnr_db, cosine, count. Either may be a QuantizedTensor: its values count."""
    x, y = (dequantize(side) if isinstance(side, QuantizedTensor) else side for side in (x, y))
    return _core.compare(borrow(values("compare", x)), borrow(values("compare", y)))


class PreparedWeight:
    """A weight [n, k] in the layout of the CPU kernels that multiply it: made once, used for many products."""

    def __init__(self, weight: QuantizedTensor | Any):
        self._core = _core.PreparedWeight(weight.core() if isinstance(weight, QuantizedTensor) else borrow(values("prepare", weight)))

    @property
    def shape(self) -> tuple[int, int]:
        return self._core.n, self._core.k

    @property
    def scheme(self) -> Scheme:
        return self._core.scheme

    @property
    def byte_size(self) -> int:
        return self._core.byte_size

    def __repr__(self) -> str:
        return f"PreparedWeight({self.scheme}, {self.shape}, {self.byte_size} bytes)"

    def __deepcopy__(self, _: Any) -> PreparedWeight:
        return self  # nothing changes it

    def __reduce__(self) -> Any:
        raise WrongType("a PreparedWeight has the layout of this machine's kernels; pickle the QuantizedTensor, and prepare it where it is used")


def prepare(weight: QuantizedTensor | Any) -> PreparedWeight:
    """A quantized or dense weight [n, k] for :func:`matmul`."""
    return PreparedWeight(weight)


def matmul(
    x: Any,
    w: PreparedWeight | QuantizedTensor | Any,
    *,
    bias: Any = None,
    activation: str = "none",
    residual: Any = None,
    dtype: Any = "fp32",
    out_scale: float = 1.0,
    inputs: str | Scheme | None = None,
    input_scales: Any = None,
    input_zero_points: Any = None,
) -> Any:
    """y[..., n] = convert(activate(sum_k x[..., k] * w[n, k] + bias[n]) + residual), on the CPU.

    x: values, or a QuantizedTensor. inputs: a scheme that x is rounded to first, dynamically or with static `input_scales`. activation:
    none, relu, gelu or silu. dtype: fp32, fp16, bf16; int8 and fp8 requantized by `out_scale`; int32 for the exact integer sum.
    """
    weight = w if isinstance(w, PreparedWeight) else prepare(w)
    bias = maybe_borrow(None if bias is None else float32(bias))
    if isinstance(x, QuantizedTensor):
        if activation != "none" or residual is not None or inputs is not None:
            raise InvalidArgument("matmul: activation, residual and inputs go with values, not with quantized inputs")
        return to_framework(_core.matmul_codes(x.core(), weight._core, bias=bias, out=dtype_name(dtype)), x.codes)
    y = _core.matmul(
        borrow(values("matmul", x)),
        weight._core,
        bias=bias,
        activation=activation,
        residual=maybe_borrow(residual),
        out=dtype_name(dtype),
        out_scale=out_scale,
        input=None if inputs is None else _scheme(inputs),
        input_scales=maybe_borrow(None if input_scales is None else float32(input_scales)),
        input_zero_points=maybe_borrow(input_zero_points),
    )
    return to_framework(y, x)


def explain_matmul(m: int, n: int, k: int, weight: str | Scheme, inputs: str | Scheme | None = None) -> list[dict[str, str]]:
    """The rows of the kernel table for a product on this CPU, best first, and why each is taken or refused."""
    if min(m, n, k) < 1:
        raise InvalidArgument(f"explain_matmul: {m} x {n} x {k} is no product; sizes are 1 or more")
    rows = _core.explain_matmul(m, n, k, _scheme(weight), None if inputs is None else _scheme(inputs))
    return [dict(zip(("name", "isa", "state", "reason"), row)) for row in rows]


def formats() -> list[Format]:
    """The named formats. Any other fpN_eEmM is one too."""
    return [Format(name) for name in _core.format_names()]


def schemes() -> list[Scheme]:
    """Every standard scheme once."""
    return [Scheme(name) for name in _core.scheme_names()]


@dataclasses.dataclass(frozen=True)
class Preset:
    """Weights and activations under the name that the field gives them."""

    name: str
    weights: str
    activations: str  #: SCHEME:dynamic or SCHEME:static; empty: weight-only
    meaning: str


def presets() -> list[Preset]:
    """The presets of the command: W8A8, FP8_DYNAMIC, NVFP4, ..."""
    return [Preset(*row) for row in _core.presets()]
