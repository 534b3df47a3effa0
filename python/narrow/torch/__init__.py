"""narrow for PyTorch.

    from narrow.torch import quantize_
    quantize_(model, "fp6_e3m2")             # any scheme, a preset (W8A8, FP8_DYNAMIC, ...), a dict of regular expressions, a QuantizeConfig

The operators are torch.ops.narrow.*; they compile with fullgraph=True.
"""
from . import ops  # noqa: F401  (registers the operators)
from .config import LayerScheme, QuantizeConfig
from .direct import (MsfpTensor, fp8e4m3_matmul, fp8e5m2_matmul, fp32_to_msfp16, fpx_linear, int8_linear_dynamic, int8_linear_static, msfp16_matmul,
                     msfp_matmul, to_fpx, to_int8, to_msfp)
from .linear import QuantizedLinear, QuantizedWeight
from .model import load_checkpoint_, quantize_
from .observers import StatisticsObserver
from .qat import FakeQuantize, QATLinear, convert_, prepare_qat_

__all__ = ["FakeQuantize", "LayerScheme", "MsfpTensor", "QATLinear", "QuantizeConfig", "QuantizedLinear", "QuantizedWeight", "StatisticsObserver",
           "convert_", "fp32_to_msfp16", "fp8e4m3_matmul", "fp8e5m2_matmul",
           "fpx_linear", "int8_linear_dynamic", "int8_linear_static", "load_checkpoint_", "msfp16_matmul", "msfp_matmul", "prepare_qat_", "quantize_", "to_fpx",
           "to_int8", "to_msfp"]
