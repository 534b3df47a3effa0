"""ONNX: Q/DQ into existing graphs, by TensorRT's or onnxruntime's rules; a linter for both; where a quantized graph differs.

import narrow.onnx
narrow.onnx.quantize("model.onnx", narrow.onnx.QuantizeConfig(), data, output="int8.onnx")
for finding in narrow.onnx.lint("int8.onnx", "tensorrt"):
    print(finding)
"""

from .calibrate import calibrate
from .compare import NodeError, compare
from .export import export, export_causal_lm
from .fold import fold_batch_norms, fold_constants
from .lint import Finding, lint
from .quantize import QuantizeConfig, quantize
from .report import report_html, write_report

__all__ = [
    "Finding",
    "NodeError",
    "QuantizeConfig",
    "calibrate",
    "compare",
    "export",
    "export_causal_lm",
    "fold_batch_norms",
    "fold_constants",
    "lint",
    "quantize",
    "report_html",
    "write_report",
]
