"""The operators torch.ops.narrow.*: registered through torch.library, so that they trace, compile and dispatch by device.

    linear(x, weight parts, bias, scheme, inputs)   the product of a QuantizedLinear
    quantize, dequantize, fake_quantize             as in the package
    fake_quantize_learned                           with given scales and zero points; gradients of LSQ and LSQ+

Each has a CPU and a CUDA implementation and one for fake tensors. Parts of a quantized tensor travel as tensors; a scheme as its string.
What a call costs beside its kernel is Python and torch's dispatcher: CUDA implementations pass addresses, and a call that needs no gradient
passes through the dispatcher once.
"""

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any, Callable, NamedTuple

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack as from_capsule

from .. import _core
from .._arrays import borrow_bytes, borrow_torch, torch_dtype_name
from .._cuda import (
    current_stream,
    dequantize_cuda,
    empty_on,
    exchange,
    parts_of,
    plain_rows,
    quantize_cuda,
    raw_stream,
    scheme_of,
)
from ..errors import InvalidArgument, Unsupported


def _some_require_grad(*arguments: Any) -> bool:
    return any(isinstance(argument, Tensor) and argument.requires_grad for argument in arguments)


_any_requires_grad = getattr(torch._C, "_any_requires_grad", _some_require_grad)  # torch 2.6 has none


class _Library(torch.library.Library):
    """torch's library, whose autograd kernels step aside where they have nothing to do.

    torch.library.register_autograd sends every call through the dispatcher a second time, which costs more than a small kernel. Where no
    argument needs a gradient, and nothing below autograd waits for the call but a device, that device's implementation is called at once.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._kernels: dict[str, dict[str, Callable]] = {}

    def impl(self, op_name: Any, fn: Callable, dispatch_key: str = "", **options: Any) -> None:
        if dispatch_key == "Autograd":
            fn = self._stepping_aside(fn, self._kernels.get(op_name, {}))
        else:
            self._kernels.setdefault(op_name, {})[dispatch_key] = fn
        super().impl(op_name, fn, dispatch_key, **options)

    @staticmethod
    def _stepping_aside(autograd: Callable, kernels: dict[str, Callable]) -> Callable:
        chosen: dict[int, Callable | None] = {}  # by what waits for a call

        def call(keys, *arguments):
            waiting = keys.raw_repr()
            if waiting not in chosen:
                chosen[waiting] = kernels.get(_device_alone(keys))
            kernel = chosen[waiting]
            if kernel is None or (torch.is_grad_enabled() and _any_requires_grad(*arguments)):
                return autograd(keys, *arguments)
            return kernel(*arguments)

        return call


def _device_alone(keys: torch._C.DispatchKeySet) -> str:
    """The one device that a call waits for below autograd; empty where a mode (tracing, fake tensors) or a kind of tensor comes first."""
    below = keys & torch._C._after_autograd_keyset
    for passed in (torch._C.DispatchKey.ADInplaceOrView, torch._C.DispatchKey.BackendSelect):  # operators without aliases fall through both
        below = below.remove(passed)
    name = below.highestPriorityTypeId().name
    return name if name in ("CPU", "CUDA") else ""


library = _Library("narrow", "DEF")
TAGS = (torch.Tag.pt2_compliant_tag,)

library.define(
    "linear(Tensor x, Tensor codes, Tensor? scales, Tensor? zero_points, Tensor? outer_scale, Tensor? bias, str scheme, "
    "str inputs, Tensor? input_scale, Tensor? input_zero_point) -> Tensor",
    tags=TAGS,
)
library.define("quantize(Tensor x, str scheme, Tensor? scales, Tensor? zero_points) -> (Tensor, Tensor, Tensor, Tensor)", tags=TAGS)
library.define(
    "dequantize(Tensor codes, Tensor? scales, Tensor? zero_points, Tensor? outer_scale, str scheme, SymInt[] shape, "
    "ScalarType dtype) -> Tensor",
    tags=TAGS,
)
library.define("fake_quantize(Tensor x, str scheme, str rounding, int seed) -> Tensor", tags=TAGS)
library.define("fake_quantize_learned(Tensor x, Tensor scales, Tensor? zero_points, str scheme, float factor) -> Tensor", tags=TAGS)


@functools.lru_cache(maxsize=None)
def split_inputs(inputs: str) -> tuple[str, bool]:
    """An activation scheme's own scheme, and whether it is static."""
    scheme, _, kind = inputs.rpartition(":")
    if kind in ("static", "dynamic"):
        return scheme, kind == "static"
    return inputs, False


def _maybe(x: Tensor | None) -> _core.Array | None:
    return None if x is None else borrow_torch(x)


def _part(x: Tensor | None) -> _core.Array | None:
    """A part of a quantized tensor that it may not have."""
    return None if x is None or not x.numel() else borrow_bytes(x)


# ---- quantize and dequantize ----


def _present(x: Tensor) -> Tensor | None:
    return x if x.numel() else None


@torch.library.impl(library, "quantize", "CPU")
def _quantize_cpu(x, scheme, scales, zero_points):
    form = scheme_of(scheme)
    codes, out_scales, out_zero_points, outer = _quantize_fake(x, scheme, scales, zero_points)
    value = _core.quantize_into(
        borrow_torch(x),
        form,
        borrow_bytes(codes),
        _part(out_scales),
        _part(out_zero_points),
        nonfinite="saturate",
        given_scales=_maybe(scales),
        given_zero_points=_maybe(zero_points),
    )
    if form.has_outer_scale:
        outer.fill_(value)
    return codes, out_scales, out_zero_points, outer


@torch.library.impl(library, "quantize", "CUDA")
def _quantize_cuda(x, scheme, scales, zero_points):
    return quantize_cuda(x, scheme, scales, zero_points)


@torch.library.register_fake("narrow::quantize", lib=library)
def _quantize_fake(x, scheme, scales, zero_points):
    return tuple(x.new_empty(shape, dtype=dtype) for shape, dtype in parts_of(scheme, x.shape))


def _assemble(codes, scales, zero_points, outer_scale, scheme, shape) -> _core.Quantized:
    return _core.Quantized(
        scheme_of(scheme), shape, borrow_bytes(codes), _part(scales), _part(zero_points), 1.0 if outer_scale is None else float(outer_scale)
    )


@torch.library.impl(library, "dequantize", "CPU")
def _dequantize_cpu(codes, scales, zero_points, outer_scale, scheme, shape, dtype):
    y = codes.new_empty(shape, dtype=dtype)
    _core.dequantize_into(_assemble(codes, scales, zero_points, outer_scale, scheme, shape), borrow_torch(y))
    return y


torch.library.impl(library, "dequantize", "CUDA")(dequantize_cuda)


@torch.library.register_fake("narrow::dequantize", lib=library)
def _dequantize_fake(codes, scales, zero_points, outer_scale, scheme, shape, dtype):
    return codes.new_empty(shape, dtype=dtype)


# ---- fake-quantize ----


@torch.library.impl(library, "fake_quantize", "CPU")
def _fake_quantize_cpu(x, scheme, rounding, seed):
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    _core.fake_quantize_into(borrow_torch(x), scheme_of(scheme), borrow_torch(y), rounding=rounding, seed=seed, nonfinite="saturate")
    return y


@torch.library.impl(library, "fake_quantize", "CUDA")
def _fake_quantize_cuda(x, scheme, rounding, seed):
    x, index = plain_rows(x), x.get_device()
    y = empty_on(index, x.shape, x.dtype)
    strides = () if x.is_contiguous() else x.stride()
    name, stream = torch_dtype_name(x.dtype), raw_stream(index)
    _core.cuda_fake_quantize_at(x.data_ptr(), y.data_ptr(), name, x.shape, strides, index, scheme_of(scheme), stream, rounding, seed)
    return y


@torch.library.register_fake("narrow::fake_quantize", lib=library)
def _fake_quantize_fake(x, scheme, rounding, seed):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


# Straight through: scales follow the data, so that (almost) nothing lies beyond the range.
torch.library.register_autograd("narrow::fake_quantize", lambda context, gradient: (gradient, None, None, None), lib=library)


@torch.library.impl(library, "fake_quantize_learned", "CPU")
def _fake_quantize_learned_cpu(x, scales, zero_points, scheme, factor):
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    _core.fake_quantize_into(
        borrow_torch(x),
        scheme_of(scheme),
        borrow_torch(y),
        nonfinite="saturate",
        given_scales=borrow_torch(scales.contiguous()),
        given_zero_points=_maybe(None if zero_points is None else rounded_zero_points(zero_points, scheme)),
    )
    return y


@torch.library.impl(library, "fake_quantize_learned", "CUDA")
def _fake_quantize_learned_cuda(x, scales, zero_points, scheme, factor):
    x = plain_rows(x)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    _core.cuda_fake_quantize(
        borrow_torch(x),
        borrow_torch(y),
        scheme_of(scheme),
        current_stream(x),
        given_scales=borrow_torch(scales.contiguous()),
        given_zero_points=_maybe(None if zero_points is None else rounded_zero_points(zero_points, scheme)),
    )
    return y


@torch.library.register_fake("narrow::fake_quantize_learned", lib=library)
def _fake_quantize_learned_fake(x, scales, zero_points, scheme, factor):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def rounded_zero_points(zero_points: Tensor, scheme: str) -> Tensor:
    """A learned zero point is a real number; what is stored is the nearest code."""
    return zero_points.round().clamp(0, scheme_of(scheme).element.max_code).to(torch.uint8).contiguous()


def spread(grid: Tensor, scheme: str, shape: torch.Size) -> Tensor:
    """One value per cell of the scale grid, for every element of a tensor of this shape."""
    if grid.numel() == 1:
        return grid.reshape(()).expand(shape)
    form = scheme_of(scheme)
    rows, cols = form.tile(shape)
    full = grid.reshape(form.grid(shape)).repeat_interleave(cols, 1)[:, : shape[-1]]
    matrix_rows = shape[-2] if len(shape) > 1 else 1
    per_matrix = -(-matrix_rows // rows)
    full = full.reshape(-1, per_matrix, shape[-1]).repeat_interleave(rows, 1)[:, :matrix_rows]
    return full.reshape(shape)


def gather(values: Tensor, scheme: str) -> Tensor:
    """The sum of an element-wise tensor over each cell of the scale grid: the adjoint of spread."""
    form, shape = scheme_of(scheme), values.shape
    grid = form.grid(shape)
    if grid[0] * grid[1] == 1:
        return values.sum().reshape(grid)
    rows, cols = form.tile(shape)
    matrix_rows = shape[-2] if len(shape) > 1 else 1
    matrices = values.reshape(-1, matrix_rows, shape[-1])
    padded = torch.nn.functional.pad(matrices, (0, -shape[-1] % cols, 0, -matrix_rows % rows))
    tiles = padded.reshape(padded.shape[0], padded.shape[1] // rows, rows, padded.shape[2] // cols, cols)
    return tiles.sum((2, 4)).reshape(grid)


def learned_gradients(x, scales, zero_points, scheme, factor, y, gradient):
    """LSQ and LSQ+. With v = x / s (+ z) and the code range [low, high]:

    d y / d x = 1 inside, 0 outside;   d y / d s = (y - x) / s inside, the clamped code (minus z) outside;   d y / d z = 0 inside, -s
    outside.
    """
    form = scheme_of(scheme)
    s = spread(scales, scheme, x.shape)
    wide, g = x.float(), gradient.float()
    v = wide / s
    if zero_points is None:
        inside = v.abs() <= form.element.largest
    else:
        z = spread(rounded_zero_points(zero_points, scheme).float(), scheme, x.shape)
        code = v.round() + z
        inside = (code >= 0) & (code <= form.element.max_code)
    step = torch.where(inside, (y.float() - wide) / s, y.float() / s)
    grad_x = torch.where(inside, g, torch.zeros_like(g)).to(x.dtype)
    grad_scales = (gather(g * step, scheme) * factor).reshape(scales.shape)
    grad_zero_points = None
    if zero_points is not None:
        grad_zero_points = (gather(torch.where(inside, torch.zeros_like(g), -g * s), scheme) * factor).reshape(zero_points.shape)
    return grad_x, grad_scales, grad_zero_points


def _learned_context(ctx, inputs, output):
    x, scales, zero_points, ctx.scheme, ctx.factor = inputs
    ctx.save_for_backward(x, scales, zero_points, output)


def _learned_backward(ctx, gradient):
    x, scales, zero_points, y = ctx.saved_tensors
    return (*learned_gradients(x, scales, zero_points, ctx.scheme, ctx.factor, y, gradient), None, None)


torch.library.register_autograd("narrow::fake_quantize_learned", _learned_backward, setup_context=_learned_context, lib=library)


# ---- products ----


class LayerCache:
    """Prepared weights by the tensors that they were made of: made at the first product, made anew where a part has changed or is another
    one, dropped with the codes. An inference tensor keeps no count of its changes, and is taken not to change."""

    def __init__(self, make: Callable, make_quick: Callable = lambda *_: None) -> None:
        self._make, self._make_quick = make, make_quick
        self.quick: dict[int, Callable] = {}  #: by the identity of codes: calls that look for themselves whether a layer is current
        # By identities: the layer, the codes, their version, the parts with theirs. Identities hold as long as the entry does, which keeps
        # the parts and ends with the codes. None in the place of a tensor that has no version.
        self._layers: dict[tuple, tuple[Any, weakref.ref, int | None, tuple[Tensor | None, ...], list[tuple[Tensor, int]]]] = {}
        self._keys: dict[int, tuple] = {}  # by the codes alone: there is one layer for them

    def layer(self, codes: Tensor, parts: tuple[Tensor | None, ...], scheme: str, inputs: str, k: int) -> Any:
        """What make(codes, parts, scheme, inputs, k) gave."""
        key = (id(codes), *map(id, parts), scheme, inputs, k)
        found = self._layers.get(key)
        if found is not None:
            layer, _, version, _, watched = found
            if version is None or version == codes._version:
                for part, seen in watched:
                    if part._version != seen:
                        break
                else:
                    return layer
        layer = self._make(codes, parts, scheme, inputs, k)
        self._drop(id(codes))
        version = None if codes.is_inference() else codes._version
        watched = [(part, part._version) for part in parts if part is not None and not part.is_inference()]
        self._keys[id(codes)] = key
        self._layers[key] = (layer, weakref.ref(codes, functools.partial(self._drop, id(codes))), version, parts, watched)
        quick = self._make_quick(layer, codes, parts, scheme, inputs)
        if quick is not None:
            self.quick[id(codes)] = quick
        return layer

    def _drop(self, codes: int, _: weakref.ref | None = None) -> None:
        self._layers.pop(self._keys.pop(codes, ()), None)
        self.quick.pop(codes, None)


def _make_cpu_layer(codes, parts, scheme, inputs, k) -> _core.Layer:
    scales, zero_points, outer_scale, input_scale, input_zero_point = parts
    rounding, is_static = split_inputs(inputs)
    if is_static and input_scale is None:
        raise InvalidArgument(f"the input is {inputs}, but no calibration gives its scale; calibrate the model and pass its statistics")
    quantized = _assemble(codes, scales, zero_points, outer_scale, scheme, (codes.shape[0], k))
    return _core.Layer(
        quantized,
        scheme_of(rounding) if inputs else None,
        float(input_scale) if is_static else None,
        int(input_zero_point) if is_static and input_zero_point is not None else 0,
    )


_cpu_layers = LayerCache(_make_cpu_layer)


@torch.library.impl(library, "linear", "CPU")
def _linear_cpu(x, codes, scales, zero_points, outer_scale, bias, scheme, inputs, input_scale, input_zero_point):
    layer = _cpu_layers.layer(codes, (scales, zero_points, outer_scale, input_scale, input_zero_point), scheme, inputs, x.shape[-1])
    if x.numel() == 0:
        return x.new_empty((*x.shape[:-1], codes.shape[0]))
    if bias is not None and bias.dtype != torch.float32:
        bias = bias.float()
    return from_capsule(layer.run(borrow_torch(x), _maybe(bias), torch_dtype_name(x.dtype)).capsule())


class CudaLayer(NamedTuple):
    """Where CUDA kernels of narrow multiply a layer ("weights" by plain inputs, "codes" by codes; none: ""): what they take."""

    n: int
    product: str
    prepared: _core.CudaLayer | None


def _make_cuda_layer(codes, parts, scheme, inputs, k) -> CudaLayer:
    """Codes of weights that meet plain inputs are copied once into the order of the kernels; those that meet codes are shared, through
    another tensor than the one whose end drops the layer."""
    scales, zero_points, outer_scale, bias = parts
    n, form = codes.shape[0], scheme_of(scheme)
    rounding, is_static = split_inputs(inputs)
    rounding_form = scheme_of(rounding) if inputs else None
    product = _core.cuda_layer_product(form, n, k, rounding_form)
    if inputs and not product:  # inputs are rounded, and their values multiplied
        product, rounding_form = _core.cuda_layer_product(form, n, k, None), None
    if not product:
        return CudaLayer(n, "", None)
    arrays = borrow_bytes(codes.detach()), _part(scales), _part(zero_points), _part(outer_scale)
    wide_bias = None if bias is None else borrow_torch(bias.detach().float().contiguous())
    return CudaLayer(n, product, _core.CudaLayer(form, (n, k), *arrays, rounding_form, is_static, wide_bias, current_stream(codes)))


def _version(x: Tensor | None) -> int | None:
    return None if x is None or x.is_inference() else x._version


def _make_quick_call(layer: CudaLayer, codes, parts, scheme, inputs) -> _core.TorchLayer | None:
    """The layer's call as one step; None where this torch has no exchange interface, or Python rounds the inputs first."""
    if exchange is None or layer.prepared is None or (inputs and layer.product != "codes"):
        return None
    watched = [(part, _version(part)) for part in parts]
    return _core.TorchLayer(layer.prepared, codes, _version(codes), watched, scheme, inputs, *exchange)


_cuda_layers = LayerCache(_make_cuda_layer, _make_quick_call)


def _rounded_cuda(rows: Tensor, inputs: str, input_scale: Tensor | None, input_zero_point: Tensor | None) -> Tensor:
    """The values of rounded inputs, in their own type."""
    rounding, is_static = split_inputs(inputs)
    given = input_scale.reshape(1) if is_static and not scheme_of(rounding).has_outer_scale else None
    zero = input_zero_point.reshape(1) if given is not None and scheme_of(rounding).asymmetric else None
    codes, scales, zero_points, outer = quantize_cuda(rows, rounding, given, zero)
    return dequantize_cuda(codes, _present(scales), _present(zero_points), _present(outer), rounding, rows.shape, rows.dtype)


@torch.library.impl(library, "linear", "CUDA")
def _linear_cuda(x, codes, scales, zero_points, outer_scale, bias, scheme, inputs, input_scale, input_zero_point):
    quick = _cuda_layers.quick.get(id(codes))
    if quick is not None:
        y = quick(x, codes, scales, zero_points, outer_scale, bias, scheme, inputs, input_scale, input_zero_point)
        if y is not None:
            return y
    shape, dtype, index = x.shape, x.dtype, x.get_device()
    k = pitch = shape[-1]
    n, product, prepared = _cuda_layers.layer(codes, (scales, zero_points, outer_scale, bias), scheme, inputs, k)
    y = empty_on(index, (*shape[:-1], n), dtype)
    size = y.numel()
    if size == 0:
        return y
    if not x.is_contiguous():
        if x.dim() == 2 and x.stride(1) == 1 and x.stride(0) >= k:
            pitch = x.stride(0)
        else:
            x = x.contiguous()
    m = size // n
    if product == "codes":
        scratch = empty_on(index, (prepared.scratch(m),), torch.uint8)
        scale = 0 if input_scale is None else input_scale.data_ptr()
        zero_point = 0 if input_zero_point is None else input_zero_point.data_ptr()
        where = x.data_ptr(), y.data_ptr(), torch_dtype_name(dtype), m, pitch, scratch.data_ptr(), scale, zero_point
        prepared.run(*where, raw_stream(index))
        return y
    if inputs:
        x, pitch = _rounded_cuda(x, inputs, input_scale, input_zero_point), k
    if product and dtype != torch.float32:
        prepared.run(x.data_ptr(), y.data_ptr(), torch_dtype_name(dtype), m, pitch, 0, 0, 0, raw_stream(index))
        return y
    weight = dequantize_cuda(codes, scales, zero_points, outer_scale, scheme, (n, k), dtype)
    return torch.nn.functional.linear(x, weight, None if bias is None else bias.to(dtype))


def refuse_onnx() -> None:
    """What torch.onnx.export meets as it traces."""
    onnx = sys.modules.get("torch.onnx")  # who exports has it; to import it here would take longer than to trace
    if onnx is not None and onnx.is_in_onnx_export():
        raise Unsupported(
            "ONNX has no operator for a QuantizedLinear; export the plain model with narrow.onnx.export and quantize the graph with "
            "narrow.onnx.quantize, or call narrow.torch.dequantize_(model) before torch.onnx.export"
        )


@torch.library.register_fake("narrow::linear", lib=library)
def _linear_fake(x, codes, scales, zero_points, outer_scale, bias, scheme, inputs, input_scale, input_zero_point):
    refuse_onnx()
    return x.new_empty((*x.shape[:-1], codes.shape[0]))


def _linear_context(ctx, inputs, output):
    x, codes, scales, zero_points, outer_scale, bias, ctx.scheme, _, _, _ = inputs
    ctx.k = x.shape[-1]
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(codes, scales, zero_points, outer_scale)


def _linear_backward(ctx, gradient):
    """The weight is fixed; gradients go through to the input (straight through its rounding) and to the bias."""
    codes, scales, zero_points, outer_scale = ctx.saved_tensors
    weight = torch.ops.narrow.dequantize(codes, scales, zero_points, outer_scale, ctx.scheme, [codes.shape[0], ctx.k], gradient.dtype)
    grad_bias = None if ctx.bias_dtype is None else gradient.reshape(-1, gradient.shape[-1]).sum(0).to(ctx.bias_dtype)
    return gradient @ weight, None, None, None, None, grad_bias, None, None, None, None


torch.library.register_autograd("narrow::linear", _linear_backward, setup_context=_linear_context, lib=library)
