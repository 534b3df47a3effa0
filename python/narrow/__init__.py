"""Numbers of 1 to 16 bits: quantize with them, store them, multiply with them.

    import narrow
    q = narrow.quantize(weight, "fp6_e3m2:row")     # numpy, torch, anything that speaks DLPack
    y = narrow.matmul(x, narrow.prepare(q))

`narrow.torch` holds the PyTorch side; it is imported when it is asked for.
"""

from ._core import version as __version__
from .checkpoints import (
    CalibrationStatistics,
    Checkpoint,
    FittedWeight,
    VerifyReport,
    calibrate,
    dequantize_checkpoint,
    evaluate,
    fit_weight,
    open_checkpoint,
    quantize_checkpoint,
    read_token_windows,
    verify_checkpoint,
    write_safetensors,
)
from .errors import CorruptFile, CudaError, Error, InvalidArgument, IoError, Unsupported, WrongType
from .quantization import (
    Format,
    PreparedWeight,
    Preset,
    QuantizedTensor,
    Scheme,
    as_quantized,
    compare,
    dequantize,
    explain_matmul,
    fake_quantize,
    format_of,
    formats,
    matmul,
    prepare,
    presets,
    quantize,
    requantize,
    schemes,
)

__all__ = [
    "CalibrationStatistics",
    "Checkpoint",
    "CorruptFile",
    "CudaError",
    "Error",
    "FittedWeight",
    "Format",
    "InvalidArgument",
    "IoError",
    "PreparedWeight",
    "Preset",
    "QuantizedTensor",
    "Scheme",
    "Unsupported",
    "VerifyReport",
    "WrongType",
    "__version__",
    "as_quantized",
    "calibrate",
    "compare",
    "dequantize",
    "dequantize_checkpoint",
    "evaluate",
    "explain_matmul",
    "fake_quantize",
    "fit_weight",
    "format_of",
    "formats",
    "matmul",
    "open_checkpoint",
    "prepare",
    "presets",
    "quantize",
    "quantize_checkpoint",
    "read_token_windows",
    "requantize",
    "schemes",
    "verify_checkpoint",
    "write_safetensors",
]
