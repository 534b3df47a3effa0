"""A method's codes on a cluster: blocks in order, the text and the weights of one block in parallel, the bytes of one process.

Walkers read the text side by side, each some of its chunks, layer by layer. At every input they stop; the driver adds their sums in the
order of the text (text_chunks), workers fit the weights that read this input, one each, into the journal, and the walkers go on with them.
A walker that is lost starts anew and finds in the journal what was decided.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import queue
import threading
from typing import Any

import numpy as np

from .. import _core
from .._arrays import borrow
from ..errors import IoError
from .cluster import Cluster
from .schedule import Policy, run_tasks

Sums = tuple[int, Any, Any, Any]  #: channels, X^T X and, for the step correct, two cross moments; flat fp64


@dataclasses.dataclass(frozen=True)
class Fit:
    """A method, and the journal that its codes go to."""

    method: str
    act_order: bool = False
    damping: float = 0.01
    directory: str = ""
    fingerprint: str = ""

    def at(self, directory: str, fingerprint: str, windows: list[list[int]]) -> Fit:
        everything = json.dumps([fingerprint, self.method, self.act_order, self.damping, windows])
        return dataclasses.replace(self, directory=directory, fingerprint=hashlib.sha256(everything.encode()).hexdigest()[:16])

    def journal(self) -> _core.FittedJournal:
        return _core.FittedJournal(self.directory, self.fingerprint, self.method, self.act_order, self.damping)


def _owned(sums: Sums) -> Sums:
    """Arrays that outlive the call that shows them."""
    channels, *parts = sums
    return (channels, *(None if part is None else np.array(np.from_dlpack(part)) for part in parts))


def add_in_order(chunks: list[Sums]) -> Sums:
    """The sums of a text from those of its chunks: one addition after the other, as one process adds them."""
    total: list[Any] = list(chunks[0])
    for _, *parts in chunks[1:]:
        for i, part in enumerate(parts, start=1):
            total[i] = part if total[i] is None else total[i] + part if part is not None else total[i]
    return tuple(total)


class Walker:
    """Reads some chunks of the text; stops at every input until it is told to go on. An actor of Ray."""

    def __init__(self, input: str, recipe: str, fingerprint: str, fit: Fit, windows: list[list[int]]):
        from .quantization import open_run

        self._seen: queue.Queue = queue.Queue()
        self._go = threading.Event()
        run = open_run(input, recipe, fingerprint)
        self._thread = threading.Thread(target=self._walk, args=(run, fit, windows), daemon=True)
        self._thread.start()

    def _walk(self, run: _core.ShardedQuantize, fit: Fit, windows: list[list[int]]) -> None:
        try:
            run.walk(windows, fit.journal(), self._visit)
            self._seen.put(None)
        except BaseException as error:  # shown to the driver
            self._seen.put(error)

    def _visit(self, modules: list[str], chunks: list[Sums]) -> None:
        self._go.clear()
        self._seen.put((modules, [_owned(chunk) for chunk in chunks]))
        self._go.wait()

    def next(self) -> tuple[list[str], list[Sums]] | None:
        """The next modules that share an input, with the sums of each chunk; None at the end."""
        seen = self._seen.get()
        if isinstance(seen, BaseException):
            raise seen
        return seen

    def resume(self) -> None:
        self._go.set()


class _Walkers:
    """All walkers, in the order of the text; those that are lost are started anew."""

    def __init__(self, cluster: Cluster, arguments: tuple, parts: list[list[list[int]]], attempts: int):
        self.ray, self.arguments, self.parts, self.attempts = cluster.ray, arguments, parts, attempts
        self.kind = cluster.ray.remote(num_cpus=0, max_restarts=0)(Walker)
        self.actors = [self._start(i) for i in range(len(parts))]
        self.failures = 0

    def _start(self, i: int) -> Any:
        return self.kind.remote(*self.arguments, self.parts[i])

    def next(self) -> list[tuple[list[str], list[Sums]] | None]:
        asked = [actor.next.remote() for actor in self.actors]
        return [self._get(i, handle) for i, handle in enumerate(asked)]

    def _get(self, i: int, handle: Any) -> Any:
        while True:
            try:
                return self.ray.get(handle)
            except self.ray.exceptions.RayTaskError as raised:
                raise raised.cause from None
            except self.ray.exceptions.RayActorError as lost:
                self.failures += 1
                if self.failures >= self.attempts:
                    raise IoError(f"walkers were lost {self.failures} times: {str(lost).strip().splitlines()[0]}") from None
                self.actors[i] = self._start(i)
                handle = self.actors[i].next.remote()

    def resume(self) -> None:
        for actor in self.actors:
            actor.resume.remote()

    def stop(self) -> None:
        for actor in self.actors:
            self.ray.kill(actor)


def fit_tensor(input: str, recipe: str, fingerprint: str, tensor: str, sums: Sums, fit: Fit) -> dict[str, Any]:
    """What a worker does: one weight into the journal."""
    from .quantization import open_run

    channels, *parts = sums
    moments = (channels, *(None if part is None else borrow(np.ascontiguousarray(part)) for part in parts))
    fitted = open_run(input, recipe, fingerprint).fit(tensor, moments, fit.journal())
    return dict(zip(("module", "scheme", "loss_before", "loss_after", "fallback"), fitted, strict=True))


def split_text(windows: list[list[int]], parts: int) -> list[list[list[int]]]:
    """Runs of whole chunks, as even as they can be; no more than there are chunks."""
    chunks = _core.text_chunks(windows)
    parts = max(1, min(parts, len(chunks)))
    cuts = [len(chunks) * i // parts for i in range(parts + 1)]
    return [windows[chunks[a][0] : chunks[b - 1][1]] for a, b in zip(cuts, cuts[1:])]


def fit_weights(
    cluster: Cluster, run: _core.ShardedQuantize, input: str, recipe: str, fit: Fit, windows: list[list[int]], policy: Policy
) -> list[dict[str, Any]]:
    """Every planned weight into the journal; what became of each, in order."""
    shared = (input, recipe, run.fingerprint)
    modules: list[dict[str, Any]] = []
    left = set(run.planned())

    def fit_all(tensors: list[str], sums: Sums) -> None:
        stored = cluster.ray.put(sums)
        pool = cluster.pool(fit_tensor, lambda task, _: (*shared, tensors[task], stored, fit))
        modules.extend(run_tasks(pool, [1.0] * len(tensors), policy).results)
        left.difference_update(tensors)

    if windows:
        walkers = _Walkers(cluster, (*shared, fit), split_text(windows, cluster.slots()), policy.attempts)
        try:
            while (seen := walkers.next())[0] is not None:
                fit_all(run.planned(seen[0][0]), add_in_order([chunk for _, chunks in seen for chunk in chunks]))
                walkers.resume()
        finally:
            walkers.stop()
    if left:
        fit_all(sorted(left), (0, None, None, None))
    return modules
