"""Layers of +-1: trained with straight-through gradients, converted to packed weights whose products are XNOR and popcount."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .. import _core
from .._arrays import borrow_torch
from .._cuda import current_stream, quantize_cuda
from ..errors import InvalidArgument
from ..quantization import QuantizedTensor, prepare, quantize
from .config import places_of, replace_module
from .ops import scheme_of


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


_prepared: weakref.WeakKeyDictionary[nn.Module, tuple[tuple, Any]] = weakref.WeakKeyDictionary()


def _prepare_once(module: nn.Module, make: Callable[[], Any]) -> Any:
    """What a packed layer's kernels read; made anew where its codes or scales have changed."""
    stamp = (module.codes.data_ptr(), module.codes._version, module.scales.data_ptr(), module.scales._version)
    found = _prepared.get(module)
    if found is None or found[0] != stamp:
        found = _prepared[module] = (stamp, make())
    return found[1]


class PackedBinaryLinear(nn.Module):
    """BinaryLinear for inference: one bit per weight, sums by XNOR and popcount, or by the tensor cores' products of bits."""

    def __init__(self, layer: BinaryLinear):
        super().__init__()
        q = _int1(layer.weight, "int1:row")
        self.register_buffer("codes", q.codes)
        self.register_buffer("scales", q.scales)
        self.bias, self.in_features, self.out_features = layer.bias, layer.in_features, layer.out_features

    def _forward_cuda(self, x: Tensor) -> Tensor:
        shape, stream = (self.out_features, self.in_features), current_stream(x)
        weight = _prepare_once(
            self, lambda: _core.CudaBinaryLinear(scheme_of("int1:row"), shape, borrow_torch(self.codes), borrow_torch(self.scales), stream)
        )
        codes, scale = _int1_cuda(x.reshape(-1, x.shape[-1]))
        y = x.new_empty((*x.shape[:-1], self.out_features))
        bias = None if self.bias is None else borrow_torch(self.bias.detach().float())
        weight.run(codes, scale, bias, borrow_torch(y.view(-1, self.out_features)), stream)
        return y

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda:
            return self._forward_cuda(x)
        shape = (self.out_features, self.in_features)
        weight = _prepare_once(self, lambda: prepare(QuantizedTensor(scheme_of("int1:row"), shape, self.codes, self.scales)))
        rows = _int1(x.reshape(-1, x.shape[-1]), "int1:tensor")
        y = torch.from_dlpack(
            _core.matmul_codes(rows.core(), weight._core, bias=None if self.bias is None else borrow_torch(self.bias.detach().float()))
        )
        return y.reshape(*x.shape[:-1], self.out_features).to(x.dtype)


class PackedBinaryConv2d(nn.Module):
    """BinaryConv2d for inference."""

    def __init__(self, layer: BinaryConv2d):
        super().__init__()
        if layer.padding_mode != "zeros" or tuple(layer.dilation) != (1, 1) or isinstance(layer.padding, str):
            raise InvalidArgument("BinaryConv2d: packed convolutions have numeric zero padding and no dilation")
        # The kernels' order: row and column of the kernel, then the channel.
        flat = layer.weight.permute(0, 2, 3, 1).flatten(1)
        q = _int1(flat, "int1:row")
        self.register_buffer("codes", q.codes)
        self.register_buffer("scales", q.scales)
        self.bias, self.flat_shape = layer.bias, tuple(flat.shape)
        self.geometry = (tuple(layer.kernel_size), tuple(layer.stride), tuple(layer.padding), layer.groups)

    def _forward_cuda(self, x: Tensor) -> Tensor:
        stream, parts = current_stream(x), (borrow_torch(self.codes), borrow_torch(self.scales))
        weight = _prepare_once(
            self, lambda: _core.CudaBinaryConv2d(scheme_of("int1:row"), self.flat_shape, *parts, *self.geometry, stream)
        )
        images = x.permute(0, 2, 3, 1).contiguous()
        codes, scale = _int1_cuda(images)
        y = x.new_empty(weight.shape(images.shape))
        weight.run(images.shape, codes, scale, borrow_torch(y), stream)
        return y.permute(0, 3, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda:
            y = self._forward_cuda(x)
            return y if self.bias is None else y + self.bias.to(y.dtype).reshape(-1, 1, 1)
        prepared = _prepare_once(
            self,
            lambda: _core.prepare_binary_conv2d(
                QuantizedTensor(scheme_of("int1:row"), self.flat_shape, self.codes, self.scales).core(), *self.geometry
            ),
        )
        images = _int1(x.permute(0, 2, 3, 1).contiguous(), "int1:tensor")
        y = torch.from_dlpack(_core.binary_conv2d(images.core(), prepared)).permute(0, 3, 1, 2).to(x.dtype)
        return y if self.bias is None else y + self.bias.reshape(-1, 1, 1)


def pack_binary_(model: nn.Module) -> nn.Module:
    """Turns a model's binary layers into packed ones, in place."""
    layers = [module for module in model.modules() if isinstance(module, (BinaryLinear, BinaryConv2d))]
    if not layers:
        raise InvalidArgument("pack_binary_: the model has no binary layer")
    places = places_of(model)
    for module in layers:
        replace_module(places, module, module.to_packed())
    return model
