"""Factors on the channels of a layer's input, of SmoothQuant and AWQ: y = (x / s) (W s)^T, the same function with other numbers to round.

The layers that read one input share their factors. The division stays in front of the layer (QuantizedLinear.input_factor), so that any
model can have it, whatever makes its inputs; compiled code fuses it into that.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

STRENGTHS = 20  #: steps of a search from 0 to 1


def usable(s: Tensor) -> Tensor:
    """Numbers that scales can hold: channels that are always zero, or all but, are left alone."""
    return torch.where(s.isfinite() & (s > 1e-5) & (s < 1e5), s, 1.0).float()


def smooth_factors(weights: Sequence[Tensor], channel_max: Tensor, strength: float) -> Tensor:
    """SmoothQuant: s_j = max|x_j|^a / max|w_j|^(1-a). Outliers of the input move into the weights [n, k] that read it."""
    inputs, largest = channel_max.double(), torch.stack([w.abs().amax(0) for w in weights]).amax(0).double()
    s = inputs**strength / largest ** (1.0 - strength)
    return usable(torch.where((inputs > 0) & (largest > 0), s, 1.0))


def awq_factors(weights: Sequence[Tensor], schemes: Sequence[str], second_moment: Tensor) -> Tensor:
    """AWQ: s_j = (mean x_j^2)^(a/2), as it is or over (mean |w_j|)^(1-a), over the geometric mean of its extremes.

    That and a of 0, 0.05, ..., 1 with the least loss of the rounded weights: the sum of tr(E X^T X E^T), E = W - Q(W s) / s.
    """
    energy = second_moment.diagonal().double().clamp_min(1e-8)
    magnitude = sum(w.abs().double().sum(0) for w in weights).clamp_min(1e-8)
    moment = second_moment.float()
    best, least = torch.ones_like(energy, dtype=torch.float32), float("inf")
    candidates = [energy ** (0.5 * step / STRENGTHS) for step in range(STRENGTHS + 1)]
    candidates += [energy ** (0.5 * step / STRENGTHS) / magnitude ** (1.0 - step / STRENGTHS) for step in range(1, STRENGTHS + 1)]
    for wanted in candidates:
        s = usable(wanted / (wanted.min() * wanted.max()).sqrt())
        loss = 0.0
        for w, scheme in zip(weights, schemes):
            error = torch.ops.narrow.fake_quantize(w * s, scheme, "nearest_even", 0) / s - w
            loss += float(((error @ moment) * error).sum(dtype=torch.float64))
        if loss < least:
            best, least = s, loss
    return best
