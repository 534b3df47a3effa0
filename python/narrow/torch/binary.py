"""Layers of +-1: trained with straight-through gradients, converted to packed weights whose products are XNOR and popcount."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn

from .. import _core
from .._arrays import borrow_torch
from .._cuda import current_stream, quantize_cuda
from ..errors import InvalidArgument, Unsupported
from ..quantization import QuantizedTensor, prepare, quantize
from .config import places_of, replace_module
from .linear import checked_input
from .ops import TAGS, LayerCache, library, scheme_of


torch.fx.wrap("checked_input")


class _Sign(torch.autograd.Function):
    """+-1 (zero is +1), with the gradient of a clamp to [-1, 1]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.where(x >= 0, 1.0, -1.0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() <= 1)


def binarize(x: Tensor) -> Tensor:
    """The signs of x, with straight-through gradients where |x| <= 1."""
    return _Sign.apply(x)


def binary_weight(weight: Tensor) -> Tensor:
    """sign(w) * mean |w| of each output: int1:row of the flattened weight. Both factors have gradients."""
    mean = weight.abs().flatten(1).mean(1).reshape(-1, *[1] * (weight.dim() - 1))
    return binarize(weight) * mean


def _binarize_input(x: Tensor) -> tuple[Tensor, Tensor]:
    """Signs, and one scale for the tensor: its mean magnitude."""
    return binarize(x), x.detach().abs().mean()


class BinaryLinear(nn.Linear):
    """y = sign(x) sign(W)^T * mean|x| * mean|w_n| + b."""

    def forward(self, x: Tensor) -> Tensor:
        signs, scale = _binarize_input(x)
        return nn.functional.linear(signs, binary_weight(self.weight), None) * scale + (0.0 if self.bias is None else self.bias)

    def to_packed(self) -> PackedBinaryLinear:
        return PackedBinaryLinear(self)


class BinaryConv2d(nn.Conv2d):
    """The same for convolutions: zero padding counts for nothing, dilation is 1."""

    def forward(self, x: Tensor) -> Tensor:
        signs, scale = _binarize_input(x)
        y = nn.functional.conv2d(signs, binary_weight(self.weight), None, self.stride, self.padding, 1, self.groups) * scale
        return y if self.bias is None else y + self.bias.reshape(-1, 1, 1)

    def to_packed(self) -> PackedBinaryConv2d:
        return PackedBinaryConv2d(self)


def _int1(x: Tensor, scheme: str) -> QuantizedTensor:
    return quantize(x.detach().float(), scheme)


def _int1_cuda(x: Tensor) -> tuple[_core.Array, _core.Array]:
    """Codes and the one scale of an input, as the CUDA kernels take them."""
    codes, scale, _, _ = quantize_cuda(x.detach(), "int1:tensor")
    return borrow_torch(codes), borrow_torch(scale)


# ---- operators ----

library.define("binary_linear(Tensor x, Tensor codes, Tensor scales, Tensor? bias) -> Tensor", tags=TAGS)
library.define(
    "binary_conv2d(Tensor x, Tensor codes, Tensor scales, int[] kernel, int[] stride, int[] padding, int groups, int channels) -> Tensor",
    tags=TAGS,
)


def _weight(codes: Tensor, scales: Tensor, k: int) -> tuple[Any, tuple[int, int], Tensor, Tensor]:
    """The parts of a weight [n, k] of signs; through other tensors than the ones whose end drops a prepared layer."""
    return scheme_of("int1:row"), (codes.shape[0], k), codes.detach(), scales.detach()


def _on_device(codes: Tensor, parts: tuple, k: int) -> tuple[Any, ...]:
    """The same for the layers of CUDA."""
    scheme, shape, codes, scales = _weight(codes, parts[0], k)
    return scheme, shape, borrow_torch(codes), borrow_torch(scales)


def _flat_size(kernel: Sequence[int], groups: int, channels: int) -> int:
    return kernel[0] * kernel[1] * (channels // groups)


def _make_cpu_conv(codes, parts, _, geometry, channels) -> Any:
    weight = QuantizedTensor(*_weight(codes, parts[0], _flat_size(geometry[0], geometry[3], channels)))
    return _core.prepare_binary_conv2d(weight.core(), *geometry)


def _make_cuda_conv(codes, parts, _, geometry, channels) -> Any:
    weight = _on_device(codes, parts, _flat_size(geometry[0], geometry[3], channels))
    return _core.CudaBinaryConv2d(*weight, *geometry, current_stream(codes))


# A convolution's geometry stands where other layers have the rounding of their inputs.
_cpu_linears = LayerCache(lambda codes, parts, _, __, k: prepare(QuantizedTensor(*_weight(codes, parts[0], k))))
_cuda_linears = LayerCache(lambda codes, parts, _, __, k: _core.CudaBinaryLinear(*_on_device(codes, parts, k), current_stream(codes)))
_cpu_convs, _cuda_convs = LayerCache(_make_cpu_conv), LayerCache(_make_cuda_conv)


@torch.library.impl(library, "binary_linear", "CPU")
def _binary_linear_cpu(x, codes, scales, bias):
    weight = _cpu_linears.layer(codes, (scales,), "int1:row", "", x.shape[-1])
    rows = _int1(x.reshape(-1, x.shape[-1]), "int1:tensor")
    wide_bias = None if bias is None else borrow_torch(bias.detach().float())
    y = torch.from_dlpack(_core.matmul_codes(rows.core(), weight._core, bias=wide_bias))
    return y.reshape(*x.shape[:-1], codes.shape[0]).to(x.dtype)


@torch.library.impl(library, "binary_linear", "CUDA")
def _binary_linear_cuda(x, codes, scales, bias):
    weight = _cuda_linears.layer(codes, (scales,), "int1:row", "", x.shape[-1])
    x_codes, scale = _int1_cuda(x.reshape(-1, x.shape[-1]))
    y = x.new_empty((*x.shape[:-1], codes.shape[0]))
    wide_bias = None if bias is None else borrow_torch(bias.detach().float())
    weight.run(x_codes, scale, wide_bias, borrow_torch(y.view(-1, codes.shape[0])), current_stream(x))
    return y


@torch.library.register_fake("narrow::binary_linear", lib=library)
def _binary_linear_fake(x, codes, scales, bias):
    return x.new_empty((*x.shape[:-1], codes.shape[0]))


def _images(x: Tensor) -> Tensor:
    """Images [.., channels, height, width] as the kernels take them: [images, height, width, channels]."""
    if x.dim() not in (3, 4):
        raise InvalidArgument(f"binary_conv2d: x is {list(x.shape)}; it must be [images, channels, height, width] or one image")
    return (x if x.dim() == 4 else x[None]).movedim(1, 3).contiguous()


def _as_input(y: Tensor, x: Tensor) -> Tensor:
    """The kernels' results in the order of dimensions that the input has."""
    return (y if x.dim() == 4 else y[0]).movedim(-1, -3)


def _geometry(kernel, stride, padding, groups) -> tuple:
    return tuple(kernel), tuple(stride), tuple(padding), groups


@torch.library.impl(library, "binary_conv2d", "CPU")
def _binary_conv2d_cpu(x, codes, scales, kernel, stride, padding, groups, channels):
    prepared = _cpu_convs.layer(codes, (scales,), "int1:row", _geometry(kernel, stride, padding, groups), channels)
    images = _int1(_images(x), "int1:tensor")
    return _as_input(torch.from_dlpack(_core.binary_conv2d(images.core(), prepared)), x).to(x.dtype)


@torch.library.impl(library, "binary_conv2d", "CUDA")
def _binary_conv2d_cuda(x, codes, scales, kernel, stride, padding, groups, channels):
    weight = _cuda_convs.layer(codes, (scales,), "int1:row", _geometry(kernel, stride, padding, groups), channels)
    images = _images(x)
    x_codes, scale = _int1_cuda(images)
    y = x.new_empty(weight.shape(images.shape))
    weight.run(images.shape, x_codes, scale, borrow_torch(y), current_stream(x))
    return _as_input(y, x)


@torch.library.register_fake("narrow::binary_conv2d", lib=library)
def _binary_conv2d_fake(x, codes, scales, kernel, stride, padding, groups, channels):
    height, width = ((x.shape[i - 2] + 2 * padding[i] - kernel[i]) // stride[i] + 1 for i in (0, 1))
    return x.new_empty((*x.shape[:-3], height, width, codes.shape[0])).movedim(-1, -3)


def _refuse_gradient(context, gradient):
    raise Unsupported("packed binary layers have no gradients; train BinaryLinear and BinaryConv2d, and call pack_binary_ afterwards")


for _name in ("binary_linear", "binary_conv2d"):
    torch.library.register_autograd(f"narrow::{_name}", _refuse_gradient, lib=library)


# ---- layers ----


class _PackedLayer(nn.Module):
    """One bit per weight: the codes and scales of int1:row."""

    codes: Tensor
    scales: Tensor

    def __init__(self, weight: Tensor, bias: nn.Parameter | None):
        super().__init__()
        q = _int1(weight, "int1:row")
        self.register_buffer("codes", q.codes)
        self.register_buffer("scales", q.scales)
        self.bias = bias

    def _apply(self, fn: Any, recurse: bool = True) -> _PackedLayer:
        """model.half() and the like change the type of values; scales stay fp32."""
        before = self.scales
        super()._apply(fn, recurse)
        if self.scales.dtype != before.dtype:
            self.scales = before.to(self.scales.device)
        return self


class PackedBinaryLinear(_PackedLayer):
    """BinaryLinear for inference: one bit per weight, sums by XNOR and popcount, or by the tensor cores' products of bits."""

    def __init__(self, layer: BinaryLinear):
        super().__init__(layer.weight, layer.bias)
        self.in_features, self.out_features = layer.in_features, layer.out_features

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.narrow.binary_linear.default(checked_input(x, self.out_features, self.in_features), self.codes, self.scales, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class PackedBinaryConv2d(_PackedLayer):
    """BinaryConv2d for inference."""

    def __init__(self, layer: BinaryConv2d):
        if layer.padding_mode != "zeros" or tuple(layer.dilation) != (1, 1) or isinstance(layer.padding, str):
            raise InvalidArgument("BinaryConv2d: packed convolutions have numeric zero padding and no dilation")
        # The kernels' order: row and column of the kernel, then the channel.
        super().__init__(layer.weight.permute(0, 2, 3, 1).flatten(1), layer.bias)
        self.geometry = (tuple(layer.kernel_size), tuple(layer.stride), tuple(layer.padding), layer.groups)
        self.in_channels = layer.in_channels

    def forward(self, x: Tensor) -> Tensor:
        y = torch.ops.narrow.binary_conv2d.default(x, self.codes, self.scales, *self.geometry, self.in_channels)
        return y if self.bias is None else y + self.bias.to(y.dtype).reshape(-1, 1, 1)

    def extra_repr(self) -> str:
        kernel, stride, padding, groups = self.geometry
        return f"{self.in_channels}, {self.codes.shape[0]}, kernel_size={kernel}, stride={stride}, padding={padding}, groups={groups}"


def pack_binary_(model: nn.Module) -> nn.Module:
    """Turns a model's binary layers into packed ones, in place."""
    layers = [module for module in model.modules() if isinstance(module, (BinaryLinear, BinaryConv2d))]
    if not layers:
        raise InvalidArgument("pack_binary_: the model has no binary layer")
    places = places_of(model)
    for module in layers:
        replace_module(places, module, module.to_packed())
    return model
