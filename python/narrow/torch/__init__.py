"""narrow for PyTorch.

    from narrow.torch import quantize_
    quantize_(model, "fp6_e3m2")     # any scheme, a preset (W8A8, FP8_DYNAMIC), a dict of regular expressions, a QuantizeConfig

The operators are torch.ops.narrow.*; they compile with fullgraph=True.
"""

from . import ops  # noqa: F401  (registers the operators)
from .binary import BinaryConv2d, BinaryLinear, PackedBinaryConv2d, PackedBinaryLinear, binarize, pack_binary_
from .calibration import calibrate
from .compare import LayerError, layer_errors
from .config import LayerScheme, QuantizeConfig
from .direct import (
    MsfpTensor,
    fp8e4m3_matmul,
    fp8e5m2_matmul,
    fp32_to_msfp16,
    fpx_linear,
    int8_linear_dynamic,
    int8_linear_static,
    msfp16_matmul,
    msfp_matmul,
    to_fpx,
    to_int8,
    to_msfp,
)
from .fp8 import FP8Linear, FP8Policy, LossScaler, fp8_training_
from .linear import QuantizedLinear, QuantizedWeight
from .model import dequantize_, load_checkpoint_, quantize_
from .observers import StatisticsObserver
from .optim import StochasticAdamW, stochastic_round_bf16_
from .parallel import ColumnParallelLinear, RowParallelLinear
from .qat import FakeQuantize, QATLinear, convert_, prepare_qat_

__all__ = [
    "BinaryConv2d",
    "BinaryLinear",
    "ColumnParallelLinear",
    "FP8Linear",
    "FP8Policy",
    "FakeQuantize",
    "LayerError",
    "LayerScheme",
    "LossScaler",
    "MsfpTensor",
    "PackedBinaryConv2d",
    "PackedBinaryLinear",
    "QATLinear",
    "QuantizeConfig",
    "QuantizedLinear",
    "QuantizedWeight",
    "RowParallelLinear",
    "StatisticsObserver",
    "StochasticAdamW",
    "binarize",
    "calibrate",
    "convert_",
    "dequantize_",
    "fp32_to_msfp16",
    "fp8_training_",
    "fp8e4m3_matmul",
    "fp8e5m2_matmul",
    "fpx_linear",
    "int8_linear_dynamic",
    "int8_linear_static",
    "layer_errors",
    "load_checkpoint_",
    "msfp16_matmul",
    "msfp_matmul",
    "pack_binary_",
    "prepare_qat_",
    "quantize_",
    "stochastic_round_bf16_",
    "to_fpx",
    "to_int8",
    "to_msfp",
]
