"""narrow on a Ray cluster: checkpoints that are too large for one machine, quantized and calibrated with the bytes of one process.

    from narrow.ray import quantize_checkpoint
    quantize_checkpoint("model/", "small/", "int4:block128", cluster="ray://head:10001")   # or local:4, auto

Ray comes with `pip install narrow[ray]`. Machines share a file system, or the paths are URLs that fsspec knows.
"""

from .calibration import calibrate
from .cluster import Cluster, connect
from .quantization import quantize_checkpoint
from .schedule import Policy

__all__ = ["Cluster", "Policy", "calibrate", "connect", "quantize_checkpoint"]
