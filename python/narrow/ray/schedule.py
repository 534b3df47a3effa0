"""Which task runs when: largest first, lost ones again, slow ones twice. Knows neither Ray nor files: a simulation runs the same."""

from __future__ import annotations

import bisect
import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..errors import Error, IoError


class WorkerLost(Exception):
    """A worker went away with its task; the task itself may be fine."""


class Pool(Protocol):
    """Workers that take tasks. A handle is whatever submit gives."""

    def slots(self) -> int:
        """How many tasks run side by side now; machines may come and go."""

    def submit(self, task: int, attempt: int) -> Any: ...

    def wait(self, handles: Sequence[Any], seconds: float) -> list[Any]:
        """Those that are finished, after at most so many seconds."""

    def result(self, handle: Any) -> Any:
        """The task's result; raises WorkerLost, or what the task raised."""

    def cancel(self, handle: Any) -> None:
        """Gives up a task that nobody waits for any more."""

    def now(self) -> float: ...


@dataclasses.dataclass(frozen=True)
class Policy:
    """What is done about workers that are lost or slow."""

    attempts: int = 4  #: of one task, failed ones; then the run fails
    straggler_factor: float = 3.0  #: a task that takes so much longer than its size says is started a second time where a worker is free
    straggler_seconds: float = 10.0  #: but not before it has run this long
    timeout_seconds: float = float("inf")  #: an attempt that takes longer is given up and tried anew


@dataclasses.dataclass
class Summary:
    """What a run of tasks took."""

    results: list[Any]
    attempts: int = 0  #: started
    lost: int = 0  #: with their worker
    failed: int = 0  #: reading or writing failed
    timeouts: int = 0
    duplicates: int = 0  #: started beside a slow one


@dataclasses.dataclass
class _Running:
    task: int
    started: float
    handle: Any


def run_tasks(
    pool: Pool,
    sizes: Sequence[float],
    policy: Policy = Policy(),
    finished: Callable[[int, Any], None] | None = None,
) -> Summary:
    """Runs every task once, and more than once where it must. finished(task, result) hears of each as it comes, once.

    sizes: the work of each task, in any unit. A task's own error (bad input) ends the run; a failure of reading or writing is tried again.
    """
    return _Run(pool, sizes, policy, finished).go()


class _Run:
    def __init__(self, pool: Pool, sizes: Sequence[float], policy: Policy, finished: Callable[[int, Any], None] | None):
        self.pool, self.sizes, self.policy, self.finished = pool, list(sizes), policy, finished
        self.queue = collections.deque(sorted(range(len(sizes)), key=lambda task: (-self.sizes[task], task)))
        self.running: dict[Any, _Running] = {}  # by handle
        self.copies = [0] * len(self.sizes)  # attempts that run
        self.failures = [0] * len(self.sizes)
        self.done = [False] * len(self.sizes)
        self.left = len(self.sizes)
        self.rates: list[float] = []  # seconds per unit of size, of finished tasks, in order
        self.summary = Summary([None] * len(self.sizes))

    def go(self) -> Summary:
        try:
            while self.left > 0:
                self._start()
                self._collect()
        finally:
            for handle in self.running:
                self.pool.cancel(handle)
        return self.summary

    def _submit(self, task: int) -> None:
        handle = self.pool.submit(task, self.summary.attempts)
        self.summary.attempts += 1
        self.copies[task] += 1
        self.running[handle] = _Running(task, self.pool.now(), handle)

    def _start(self) -> None:
        while self.queue and self._free() > 0:
            self._submit(self.queue.popleft())
        if not self.queue:
            for attempt in self._stragglers()[: max(0, self._free())]:
                self.summary.duplicates += 1
                self._submit(attempt.task)

    def _free(self) -> int:
        """Workers without a task; one is asked for even where none is up."""
        return max(1, self.pool.slots()) - len(self.running)

    def _limit(self, task: int) -> float:
        """The seconds after which a task is slow."""
        if not self.rates:
            return float("inf")
        expected = self.rates[len(self.rates) // 2] * max(self.sizes[task], 1e-9)
        return max(self.policy.straggler_seconds, self.policy.straggler_factor * expected)

    def _stragglers(self) -> list[_Running]:
        """Attempts that are slow and stand alone, the slowest first."""
        now = self.pool.now()
        slow = [r for r in self.running.values() if self.copies[r.task] == 1 and now - r.started > self._limit(r.task)]
        return sorted(slow, key=lambda r: (r.started, r.task))

    def _next_check(self) -> float:
        """Until when nothing changes but by a result: seconds."""
        now = self.pool.now()
        moments = [r.started + min(self.policy.timeout_seconds, self._limit(r.task)) for r in self.running.values()]
        waiting = min((moment - now for moment in moments if moment > now), default=float("inf"))
        return min(1.0, waiting + 1e-3)

    def _collect(self) -> None:
        for handle in self.pool.wait(list(self.running), self._next_check()):
            if handle in self.running:  # not given up because its twin was first
                self._take(self.running[handle])
        for attempt in [r for r in self.running.values() if self.pool.now() - r.started > self.policy.timeout_seconds]:
            self.summary.timeouts += 1
            self._drop(attempt)
            self.pool.cancel(attempt.handle)
            self._retry(attempt.task, IoError(f"task {attempt.task} took longer than {self.policy.timeout_seconds:g} seconds"))

    def _take(self, attempt: _Running) -> None:
        self._drop(attempt)
        try:
            result = self.pool.result(attempt.handle)
        except WorkerLost as lost:
            self.summary.lost += 1
            return self._retry(attempt.task, lost)
        except IoError as failure:
            self.summary.failed += 1
            return self._retry(attempt.task, failure)
        bisect.insort(self.rates, (self.pool.now() - attempt.started) / max(self.sizes[attempt.task], 1e-9))
        self.done[attempt.task] = True
        self.left -= 1
        self.summary.results[attempt.task] = result
        if self.copies[attempt.task] > 0:
            for twin in [r for r in self.running.values() if r.task == attempt.task]:
                self._drop(twin)
                self.pool.cancel(twin.handle)
        if self.finished is not None:
            self.finished(attempt.task, result)

    def _drop(self, attempt: _Running) -> None:
        del self.running[attempt.handle]
        self.copies[attempt.task] -= 1

    def _retry(self, task: int, why: Exception) -> None:
        if self.done[task] or self.copies[task] > 0:
            return  # its twin goes on
        self.failures[task] += 1
        if self.failures[task] >= self.policy.attempts:
            raise why if isinstance(why, Error) else IoError(f"task {task} was lost {self.failures[task]} times with its worker: {why}")
        self.queue.appendleft(task)
