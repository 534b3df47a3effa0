"""Statistics of a model's inputs, the text read side by side: histograms and maxima join exactly, sums in the order of the text."""

from __future__ import annotations

import os
import pathlib
import tempfile
from typing import Any

from .. import _core
from ..checkpoints import CalibrationStatistics
from ..errors import InvalidArgument
from .cluster import Cluster, connect
from .fitting import split_text
from .schedule import Policy, run_tasks


def observe(path: str, windows: list[list[int]], second_moments: bool) -> list[bytes]:
    """What a worker does: the statistics of each chunk of its part of the text, as files."""
    files = []
    with tempfile.TemporaryDirectory(prefix="narrow-calibration-") as scratch:
        for i, statistics in enumerate(_core.calibrate_chunks(path, windows, second_moments)):
            file = pathlib.Path(scratch) / f"{i}.safetensors"
            statistics.save(file)
            files.append(file.read_bytes())
    return files


def join(parts: list[list[bytes]]) -> CalibrationStatistics:
    """All chunks in the order of the text."""
    total = CalibrationStatistics()
    with tempfile.TemporaryDirectory(prefix="narrow-calibration-") as scratch:
        file = pathlib.Path(scratch) / "chunk.safetensors"
        for data in (data for part in parts for data in part):
            file.write_bytes(data)
            total.merge(CalibrationStatistics.load(file))
    return total


def calibrate(
    path: str | os.PathLike[str],
    windows: Any,
    second_moments: bool = False,
    *,
    cluster: str | Cluster = "local:2",
    policy: Policy = Policy(),
) -> CalibrationStatistics:
    """narrow.calibrate with the text spread over a cluster: the same statistics to the last bit, for any number of workers."""
    texts = [[int(token) for token in window] for window in windows]
    if not texts:
        raise InvalidArgument("calibrate: there are no windows to read")
    opened = connect(cluster) if isinstance(cluster, str) else cluster
    try:
        parts = split_text(texts, 2 * opened.slots())  # two rounds: a slow worker holds up less
        pool = opened.pool(observe, lambda task, _: (os.path.abspath(path), parts[task], second_moments))
        results = run_tasks(pool, [float(sum(map(len, part))) for part in parts], policy).results
    finally:
        if isinstance(cluster, str):
            opened.close()
    return join(results)
