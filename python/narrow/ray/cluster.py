"""The connection to Ray, and its workers as a pool of the scheduler."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from ..errors import InvalidArgument, IoError, Unsupported
from .schedule import WorkerLost


def _ray() -> Any:
    if importlib.util.find_spec("ray") is None:
        raise Unsupported("a cluster needs Ray, which this Python does not have: pip install 'narrow[ray]'")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would report its use to its makers
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # processes without a GPU keep their variables as they are
    import ray

    return ray


class Cluster:
    """A cluster that tasks are sent to. As a context manager it leaves the cluster as it found it.

    address: local:N starts N workers on this machine; ray://HOST:PORT, HOST:PORT and auto join a cluster that runs; current is the one
    that this process is connected to already. cpus: of one task; each uses as many threads.
    """

    def __init__(self, address: str, cpus: int = 1):
        if cpus < 1:
            raise InvalidArgument("a task needs at least one CPU")
        self.ray, self.address, self.cpus = _ray(), address, cpus
        self._is_ours = address != "current"
        if address == "current":
            if not self.ray.is_initialized():
                raise InvalidArgument("this process is not connected to Ray; name an address")
        elif address.startswith("local:"):
            self._start(address.removeprefix("local:"))
        else:
            self._join(address)

    def _start(self, count: str) -> None:
        if not count.isdigit() or not 1 <= int(count) <= 4096:
            raise InvalidArgument(f"local:{count} is no cluster; local:4 starts four workers on this machine")
        self.ray.init(
            address="local",
            num_cpus=int(count) * self.cpus,
            include_dashboard=False,
            logging_level="error",
            log_to_driver=False,
            _node_ip_address="127.0.0.1",
        )

    def _join(self, address: str) -> None:
        host = address.rpartition(":")[0]
        place = {"_node_ip_address": host} if host.startswith("127.") else {}  # a cluster on the loopback device is joined there
        try:
            self.ray.init(address=address, logging_level="error", log_to_driver=False, **place)
        except (ConnectionError, RuntimeError, ValueError) as why:
            reason = str(why).strip().split("\n")[0].rstrip(".")
            raise IoError(f"the cluster {address} does not answer: {reason}") from None

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._is_ours:
            self.ray.shutdown()

    def slots(self) -> int:
        return int(self.ray.cluster_resources().get("CPU", 0)) // self.cpus

    def pool(self, work: Callable[..., Any], arguments: Callable[[int, int], tuple]) -> RayPool:
        """work(*arguments(task, attempt)) on the workers."""
        return RayPool(self, work, arguments)


class RayPool:
    """Tasks of Ray, one process each at a time; retries are the scheduler's."""

    def __init__(self, cluster: Cluster, work: Callable[..., Any], arguments: Callable[[int, int], tuple]):
        self._cluster, self._arguments = cluster, arguments
        self._work = cluster.ray.remote(num_cpus=cluster.cpus, max_retries=0)(work)  # Ray gives it as many threads as CPUs

    def slots(self) -> int:
        return self._cluster.slots()

    def submit(self, task: int, attempt: int) -> Any:
        return self._work.remote(*self._arguments(task, attempt))

    def wait(self, handles: Sequence[Any], seconds: float) -> list[Any]:
        return self._cluster.ray.wait(list(handles), num_returns=1, timeout=seconds)[0]

    def result(self, handle: Any) -> Any:
        errors = self._cluster.ray.exceptions
        try:
            return self._cluster.ray.get(handle)
        except errors.RayTaskError as raised:
            if isinstance(raised.cause, RuntimeError) and "failed to import on the worker" in str(raised.cause):
                raise Unsupported("the workers of the cluster lack the package narrow; install the driver's version there") from None
            raise raised.cause from None
        except (errors.WorkerCrashedError, errors.NodeDiedError, errors.ObjectLostError, errors.RaySystemError) as lost:
            raise WorkerLost(str(lost).strip().split("\n")[0]) from None

    def cancel(self, handle: Any) -> None:
        self._cluster.ray.cancel(handle, force=True)

    def now(self) -> float:
        return time.monotonic()


def connect(address: str, cpus: int = 1) -> Cluster:
    """A cluster by its address: local:N, ray://HOST:PORT, HOST:PORT, auto or current."""
    return Cluster(address, cpus)
