"""Observers with the interface of torch.ao.quantization: narrow's range methods in a QConfig, and torch's observers in narrow's
fake-quantize."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.ao.quantization import ObserverBase

from ..checkpoints import CalibrationStatistics
from ..errors import InvalidArgument
from .._arrays import borrow_torch
from .ops import scheme_of


class StatisticsObserver(ObserverBase):
    """The scale of a static scheme (int8:tensor, fp8_e4m3:tensor, int8:tensor:asym) from what it has seen.

    method: minmax, average, percentile[=P], entropy or mse: the range methods of `narrow calibrate`, over the same histograms.
    """

    def __init__(self, scheme: str = "int8:tensor", method: str = "minmax", dtype: torch.dtype = torch.qint8, **_: Any):
        super().__init__(dtype=dtype)
        self.scheme, self.method = str(scheme_of(scheme)), method
        self.qscheme = torch.per_tensor_affine if scheme_of(scheme).asymmetric else torch.per_tensor_symmetric
        self.statistics = CalibrationStatistics()

    def forward(self, x: Tensor) -> Tensor:
        rows = x.detach().reshape(-1, x.shape[-1]).float().cpu().contiguous()
        if rows.numel():
            self.statistics.add(["x"], borrow_torch(rows))
        return x

    def calculate_qparams(self, **_: Any) -> tuple[Tensor, Tensor]:
        """scale and zero point, as torch's observers give them."""
        if not self.statistics.modules:
            raise InvalidArgument("an observer that has seen nothing knows no scale; run the model on some input first")
        scale, zero_point = self.statistics.static_scale("x", scheme_of(self.scheme), self.method)
        return torch.tensor([scale]), torch.tensor([zero_point], dtype=torch.int32)

    def reset_min_max_vals(self) -> None:
        self.statistics = CalibrationStatistics()

    def __deepcopy__(self, memo: dict) -> StatisticsObserver:
        twin = StatisticsObserver(self.scheme, self.method, self.dtype)
        twin.statistics.merge(self.statistics)
        return twin

    def extra_repr(self) -> str:
        return f"{self.scheme}, {self.method}"
