"""Quantization-aware training: fake-quantize with straight-through gradients, learned scales (LSQ) and zero points (LSQ+).

prepare_qat_(model, "int4:row", learned=True)   # train as ever
convert_(model)                                 # QuantizedLinear layers with the numbers of training
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.ao.quantization import FakeQuantizeBase

from ..errors import InvalidArgument
from ..quantization import quantize
from .config import QuantizeConfig, checked_layers, places_of, replace_conv1d, replace_module
from .linear import QuantizedLinear
from .ops import rounded_zero_points, scheme_of, split_inputs


class FakeQuantize(FakeQuantizeBase):
    """y = dequantize(quantize(x)) with gradients. Three ways to a scale:

    - from each tensor itself (default): every scheme, gradients straight through;
    - `learned`: one per cell of the scale grid, started from the first tensor's own scales and trained by LSQ; asymmetric schemes learn
      their zero points too (LSQ+). The parameter is the scale's logarithm: a step of an optimizer is then a share of the scale, whatever
      its size, and no step makes it negative. Schemes with fp32 scales;
    - `observer`: any observer of torch.ao.quantization or of narrow, whose scale and zero point are used.

    It has the interface of torch.ao.quantization.FakeQuantize, and works in a QConfig.
    """

    def __init__(self, scheme: str = "int8:tensor", learned: bool = False, observer: Any = None, **observer_arguments: Any):
        super().__init__()
        form = scheme_of(scheme)
        self.scheme, self.learned, self.asymmetric, self.largest = str(form), learned, form.asymmetric, form.element.largest
        if (learned or observer is not None) and (form.scale.name != "fp32" or not form.has_scales or form.has_outer_scale):
            raise InvalidArgument(f"scales of {self.scheme} are not fp32 numbers that can be learned or observed; let them follow the data")
        if learned and observer is not None:
            raise InvalidArgument("a scale is learned or observed, not both")
        self.activation_post_process = observer(**observer_arguments) if observer is not None else None
        self.is_enabled = True
        self.log_scale: Any = nn.UninitializedParameter() if learned else None
        self.zero_point: Any = nn.UninitializedParameter() if learned and form.asymmetric else None

    @property
    def is_ready(self) -> bool:
        """Whether a learned scale has its start."""
        return not isinstance(self.log_scale, nn.UninitializedParameter)

    def enable_fake_quant(self, enabled: bool = True) -> None:
        """torch's switch, also as a plain value: a branch over a tensor's value would not compile into one graph."""
        super().enable_fake_quant(enabled)
        self.is_enabled = enabled

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self.is_enabled = bool(self.fake_quant_enabled[0])

    @torch.no_grad()
    def start(self, x: Tensor) -> None:
        """Starts learned scales where rounding to nearest has them."""
        _, scales, zero_points, _ = torch.ops.narrow.quantize(x.detach(), self.scheme, None, None)
        self.log_scale.materialize(scales.shape, device=x.device, dtype=torch.float32)
        self.log_scale.copy_(scales.log())
        if self.zero_point is not None:
            self.zero_point.materialize(zero_points.shape, device=x.device, dtype=torch.float32)
            self.zero_point.copy_(zero_points)

    def calculate_qparams(self, **_: Any) -> tuple[Tensor, Tensor]:
        """Scales and zero points as they are used; of a learned or observed quantizer."""
        if self.learned and self.is_ready:
            scale = self.log_scale.detach().exp()
            return scale, torch.zeros_like(scale, dtype=torch.uint8) if self.zero_point is None else rounded_zero_points(
                self.zero_point, self.scheme
            )
        if self.activation_post_process is not None:
            scale, zero = self.activation_post_process.calculate_qparams()
            return scale.float().reshape(-1, 1), zero.clamp_min(0).to(torch.uint8).reshape(-1, 1)
        raise InvalidArgument("the scales follow each tensor; there are none to calculate beforehand")

    def forward(self, x: Tensor) -> Tensor:
        if self.activation_post_process is not None and self.observer_enabled[0] == 1:
            self.activation_post_process(x.detach())
        if self.learned and not self.is_ready:
            self.start(x)
        if not self.is_enabled:
            return x
        if self.learned or self.activation_post_process is not None:
            return self._with_scales(x)
        return torch.ops.narrow.fake_quantize(x, self.scheme, "nearest_even", 0)

    def _with_scales(self, x: Tensor) -> Tensor:
        if self.learned:
            scale, zero_point = self.log_scale.exp(), self.zero_point
            # LSQ's own: the gradient of a step grows with the elements it serves, and with the codes.
            factor = (scale.numel() / (x.numel() * self.largest)) ** 0.5
        else:
            scale, zero_point = (part.to(x.device) for part in self.calculate_qparams())
            zero_point, factor = zero_point.float() if self.asymmetric else None, 1.0
        return torch.ops.narrow.fake_quantize_learned(x, scale, zero_point, self.scheme, factor)

    def extra_repr(self) -> str:
        return self.scheme + (", learned" if self.learned else "")


class QATLinear(nn.Linear):
    """A Linear layer that sees its weight, and its input where that is rounded too, as inference will."""

    def __init__(self, linear: nn.Linear, scheme: str, inputs: str = "", learned: bool = False):
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias, self.inputs = linear.weight, linear.bias, inputs
        self.weight_quantizer = FakeQuantize(scheme, learned)
        if learned:
            self.weight_quantizer.start(self.weight)
        rounding, is_static = split_inputs(inputs)
        self.input_quantizer = FakeQuantize(rounding, learned=is_static) if inputs else None
        self.train(linear.training)

    def forward(self, x: Tensor) -> Tensor:
        if self.input_quantizer is not None:
            x = self.input_quantizer(x)
        return nn.functional.linear(x, self.weight_quantizer(self.weight), self.bias)

    def to_quantized(self) -> QuantizedLinear:
        """The layer for inference: the same codes, the same scales."""
        quantizer, weight, q = self.weight_quantizer, self.weight.detach(), None
        if quantizer.learned:
            scales, zero_points = quantizer.calculate_qparams()
            q = quantize(weight, quantizer.scheme, scales=scales, zero_points=zero_points if quantizer.zero_point is not None else None)
        input_scale = None
        if self.input_quantizer is not None and self.input_quantizer.learned:
            if not self.input_quantizer.is_ready:
                raise InvalidArgument("convert_: a static input has seen nothing yet; run the model on some input first")
            scale, zero = self.input_quantizer.calculate_qparams()
            input_scale = (float(scale), int(zero))
        return QuantizedLinear.from_linear(self, quantizer.scheme, self.inputs, input_scale, q)


def prepare_qat_(model: nn.Module, config: Any, learned: bool = False) -> nn.Module:
    """Makes the Linear layers of a model ready for training, in place. config as in quantize_; learned: scales are parameters (LSQ).

    A static input always learns its scale, which starts at the first batch's. Call it before the optimizer collects parameters; inputs
    that are static get theirs with the first forward pass.
    """
    how = QuantizeConfig.of(config)
    replace_conv1d(model, how)
    places = places_of(model)
    for _, module, scheme in checked_layers("prepare_qat_", model, how):
        replace_module(places, module, QATLinear(module, scheme.weights, scheme.inputs, learned))
    return model


def convert_(model: nn.Module) -> nn.Module:
    """Turns the layers of prepare_qat_ into QuantizedLinear, in place."""
    layers = [module for module in model.modules() if isinstance(module, QATLinear)]
    if not layers:
        raise InvalidArgument("convert_: the model has no layer of prepare_qat_")
    places = places_of(model)
    with torch.no_grad():
        for module in layers:
            replace_module(places, module, module.to_quantized())
    return model
