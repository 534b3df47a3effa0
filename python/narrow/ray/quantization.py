"""Quantizing a checkpoint on a cluster: the driver plans, workers make shards, the driver commits. The bytes are those of one process.

plan      tensor -> output shard, from the input's headers and the recipe alone: every process computes the same (a fingerprint says so)
shards    whoever is free takes the largest that is left, writes it in a place of its own, reads it back and reports its hashes
commit    index, config, side files and, last, the manifest; a local directory takes its name by one rename
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .. import _core, stores
from ..errors import InvalidArgument
from ..quantization import Scheme
from .cluster import Cluster, connect
from .fitting import Fit, fit_weights
from .schedule import Policy, run_tasks

_PathLike = str | os.PathLike[str]


class _Source:
    """The input as this process sees it: a local path, or a mirror of a remote one."""

    def __init__(self, input: str, recipe: str):
        self.remote, self._scratch = None, None
        if stores.is_url(input):
            self._scratch = tempfile.TemporaryDirectory(prefix="narrow-input-")
            self.remote = stores.RemoteInput(input, pathlib.Path(self._scratch.name))
        self.path = self._scratch.name if self._scratch else input
        self.run = _core.ShardedQuantize(self.path, recipe)

    def write(self, shard: int, place: str, fitted: Any) -> str:
        file = self.run.shards()[shard][0]
        if self.remote is not None:
            self.remote.fill(file)
        try:
            return self.run.write(shard, place, fitted)
        finally:
            if self.remote is not None:
                self.remote.drop(file)


@functools.lru_cache(maxsize=2)
def _source(input: str, recipe: str) -> _Source:
    return _Source(input, recipe)


def open_run(input: str, recipe: str, fingerprint: str) -> _core.ShardedQuantize:
    """The plan as a worker computes it; it must be the driver's."""
    run = _source(input, recipe).run
    if run.fingerprint != fingerprint:
        raise InvalidArgument(
            f"a worker sees another checkpoint at {input}, or has another version of narrow, than the driver; use one of each"
        )
    return run


def write_shard(input: str, recipe: str, fingerprint: str, shard: int, place: str, url: str, fitted: Fit | None) -> tuple[str, str]:
    """What a worker does: one shard into `place`, or by way of a local one to `url`. Returns its report and where it lies."""
    open_run(input, recipe, fingerprint)
    source = _source(input, recipe)
    journal = fitted.journal() if fitted is not None else None
    if not url:
        return source.write(shard, place, journal), place
    with tempfile.TemporaryDirectory(prefix="narrow-shard-") as scratch:
        report = source.write(shard, scratch, journal)
        stores.publish(pathlib.Path(scratch) / source.run.shards()[shard][0], url)
    return report, url


def quantize_checkpoint(
    input: _PathLike,
    output: _PathLike,
    scheme: str | Scheme = "",
    *,
    cluster: str | Cluster = "local:2",
    targets: Iterable[str] = (),
    ignore: Iterable[str] = ("lm_head",),
    rules: Mapping[str, str] | None = None,
    recipe: str = "",
    method: str = "rtn",
    act_order: bool = False,
    damping: float = 0.01,
    windows: Any = (),
    policy: Policy = Policy(),
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """narrow.quantize_checkpoint on a cluster: the same bytes for any number of workers, and for workers that are lost on the way.

    input, output: paths that all machines see, or URLs of fsspec. cluster: an address (local:N, ray://HOST:PORT, auto) or a Cluster.
    recipe: all of it as JSON, in place of scheme, targets, ignore and rules. method: rtn, or steps of correct, gptq, clip and refine joined by +.
    The result has also `workers`, `attempts`, `lost` and `duplicates`. progress(file, bytes done, bytes total).
    """
    text = recipe or _core.recipe_json(str(scheme), list(targets), list(ignore), list((rules or {}).items()))
    source, target = _absolute(input), _absolute(output)
    if stores.is_url(source) and json.loads(text)["on_nonfinite"] == "keep":
        raise InvalidArgument("to keep tensors with NaN the plan reads all values, which a remote input has not here; use a path, or nearest")
    begin = time.monotonic()
    planned = _source(source, text)
    if not stores.is_url(target):
        planned.run.check_output(target)
    fit = Fit(method, act_order, damping) if method != "rtn" else None
    texts = [[int(token) for token in window] for window in windows]
    if fit is not None:
        if stores.is_url(source) or stores.is_url(target):
            raise InvalidArgument(f"the method {method} keeps a journal that all machines see; use paths, not URLs")
        planned.run.check_fit(_core.FittedJournal("", "", method, act_order, damping), bool(texts))
    with tempfile.TemporaryDirectory(prefix="narrow-driver-") as scratch:
        store = stores.RemoteOutput(target, pathlib.Path(scratch)) if stores.is_url(target) else stores.LocalOutput(target)
        try:
            report = _run(planned.run, source, text, store, cluster, policy, fit, texts, progress)
            store.commit()
        except BaseException:
            store.discard()
            raise
    report["seconds"] = time.monotonic() - begin
    return report


def _absolute(path: _PathLike) -> str:
    return os.fspath(path) if stores.is_url(path) else os.path.abspath(path)


def _run(
    run: _core.ShardedQuantize,
    source: str,
    recipe: str,
    store: Any,
    cluster: str | Cluster,
    policy: Policy,
    fit: Fit | None,
    windows: list[list[int]],
    progress: Callable[[str, int, int], None] | None,
) -> dict[str, Any]:
    """Everything between the plan and the commit."""
    shards = run.shards()
    opened = connect(cluster) if isinstance(cluster, str) else cluster
    modules: list[dict[str, Any]] = []
    try:
        if fit is not None:
            fit = fit.at(f"{store.attempts}/journal", run.fingerprint, windows)
            modules = fit_weights(opened, run, source, recipe, fit, windows, policy)
        done = 0

        def take(shard: int, result: tuple[str, str]) -> None:
            nonlocal done
            file, _, bytes_before, _ = shards[shard]
            store.accept(result[1], file)
            done += bytes_before
            if progress is not None:
                progress(file, done, run.bytes_before)

        url = store.url if isinstance(store, stores.RemoteOutput) else ""
        pool = opened.pool(
            write_shard, lambda shard, attempt: (source, recipe, run.fingerprint, shard, store.attempt(attempt), url, fit)
        )
        summary = run_tasks(pool, [shard[2] for shard in shards], policy, take)
        report = run.finish(store.stage, [result[0] for result in summary.results])
        report.update(
            workers=opened.slots(), attempts=summary.attempts, lost=summary.lost, duplicates=summary.duplicates, modules=modules
        )
    finally:
        if isinstance(cluster, str):
            opened.close()
    if fit is not None:
        shutil.rmtree(fit.directory, ignore_errors=True)
    return report
