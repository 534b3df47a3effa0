"""A cluster on paper: the scheduler that runs on Ray, against machines whose time only passes in numbers.

A discrete-event simulation of quantizing: machines read shards from a store they share, quantize and write; they are slow, they die, they
come back. And the bill: bytes, seconds, dollars.

    python -m narrow.ray.simulation --machines 1000 --parameters 1e12
"""

from __future__ import annotations

import argparse
import dataclasses
import heapq
import random
from collections.abc import Sequence
from typing import Any

from .schedule import Policy, Summary, WorkerLost, run_tasks

_EPSILON = 1e-6


@dataclasses.dataclass(frozen=True)
class Machine:
    """What one machine does in a second, and costs in an hour. The rate of a worker is measured (docs/scaling.md), the rest is a choice."""

    workers: int = 16  #: tasks side by side, one core each
    quantize: float = 0.30e9  #: bytes of input that one worker quantizes, writes and verifies
    network: float = 3.1e9  #: bytes in and out, for all workers together: 25 Gbit/s
    start_seconds: float = 60.0  #: until it takes its first task
    dollars: float = 0.8  #: per hour


@dataclasses.dataclass(frozen=True)
class Conditions:
    """What goes wrong."""

    store: float = float("inf")  #: bytes per second that the shared store gives to all machines together
    death_per_hour: float = 0.0  #: of one worker; another takes its place after start_seconds
    slow_share: float = 0.0  #: of the workers
    slow_factor: float = 5.0  #: how much slower those are
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Job:
    """A checkpoint: its shards in bytes, and what remains of them."""

    shards: tuple[float, ...]
    ratio: float = 3.76  #: bytes before / after: 16 bits to int4:block128 with fp16 scales is 16 / 4.25

    @classmethod
    def of(cls, parameters: float, shard_bytes: float = 5e9, bytes_per_parameter: float = 2.0, ratio: float = 3.76) -> Job:
        total = parameters * bytes_per_parameter
        count = max(1, round(total / shard_bytes))
        return cls((total / count,) * count, ratio)


def seconds_of(size: float, ratio: float, machine: Machine, store_share: float = float("inf")) -> float:
    """One shard by one worker: read, quantize and write, one after the other."""
    wire = min(machine.network / machine.workers, store_share)
    return size / wire + size / machine.quantize + size / ratio / wire


class SimulatedPool:
    """Machines as a Pool of the scheduler. wait() lets the time pass."""

    def __init__(self, job: Job, machines: int, machine: Machine, conditions: Conditions):
        self.job, self.machine, self.conditions = job, machine, conditions
        self.random = random.Random(conditions.seed)
        self.time = 0.0
        self.events: list[tuple[float, int, str, Any]] = []
        self.count = 0
        self.free: list[float] = []  # factors of workers that wait for work
        self.running: dict[int, float] = {}  # handle -> its worker's factor
        self.finished: dict[int, bool] = {}  # handle -> whether it came to its end
        self.busy_seconds = 0.0
        for _ in range(machines * machine.workers):
            self._push(machine.start_seconds, "ready", self._factor())

    def _factor(self) -> float:
        return self.conditions.slow_factor if self.random.random() < self.conditions.slow_share else 1.0

    def _push(self, delay: float, kind: str, value: Any) -> int:
        self.count += 1
        heapq.heappush(self.events, (self.time + delay, self.count, kind, value))
        return self.count

    def slots(self) -> int:
        return len(self.free) + len(self.running)

    def submit(self, task: int, attempt: int) -> int:
        while not self.free:  # the scheduler asks for one slot even where none is up: time passes until one is
            self._pass_moment()
        factor = heapq.heappop(self.free)  # the fastest
        share = self.conditions.store / (len(self.running) + 1)
        duration = seconds_of(self.job.shards[task], self.job.ratio, self.machine, share) * factor
        death = self.random.expovariate(self.conditions.death_per_hour / 3600) if self.conditions.death_per_hour else float("inf")
        handle = self._push(min(duration, death), "end", (duration <= death, duration, death))
        self.running[handle] = factor
        return handle

    def _step(self) -> None:
        moment, number, kind, value = heapq.heappop(self.events)
        self.time = max(self.time, moment)
        if kind == "ready":
            heapq.heappush(self.free, value)
        elif number in self.running:
            factor = self.running.pop(number)
            came, duration, death = value
            self.finished[number] = came
            self.busy_seconds += min(duration, death)
            if came:
                heapq.heappush(self.free, factor)
            else:
                self._push(self.machine.start_seconds, "ready", self._factor())

    def _pass_moment(self) -> None:
        """The next event, and all of the same moment."""
        self._step()
        while self.events and self.events[0][0] <= self.time:
            self._step()

    def wait(self, handles: Sequence[int], seconds: float) -> list[int]:
        until, before = self.time + seconds, self.slots()
        while self.slots() <= before and not any(handle in self.finished for handle in handles):
            if not self.events or self.events[0][0] > until:
                self.time = until
                break
            self._pass_moment()
        ready = [handle for handle in handles if handle in self.finished]
        return ready

    def result(self, handle: int) -> None:
        if not self.finished[handle]:
            raise WorkerLost("the machine died")

    def cancel(self, handle: int) -> None:
        if handle in self.running:
            heapq.heappush(self.free, self.running.pop(handle))

    def now(self) -> float:
        return self.time


@dataclasses.dataclass(frozen=True)
class Bill:
    """What a run comes to."""

    seconds: float
    machine_hours: float
    dollars: float
    bytes_read: float
    bytes_written: float
    utilization: float  #: the share of the machines' time that went into tasks
    summary: Summary


def simulate(
    job: Job, machines: int, machine: Machine = Machine(), conditions: Conditions = Conditions(), policy: Policy = Policy()
) -> Bill:
    """Runs the job; every machine is paid from the start to the end."""
    pool = SimulatedPool(job, machines, machine, conditions)
    summary = run_tasks(pool, job.shards, policy)
    hours = machines * pool.time / 3600
    busy = pool.busy_seconds / max(_EPSILON, machines * machine.workers * pool.time)
    read = sum(job.shards) * summary.attempts / max(1, len(job.shards))
    return Bill(pool.time, hours, hours * machine.dollars, read, sum(job.shards) / job.ratio, min(1.0, busy), summary)


def estimate(job: Job, machines: int, machine: Machine = Machine(), conditions: Conditions = Conditions()) -> float:
    """The model without events: rounds of the largest shard; what the simulation must agree with where nothing goes wrong."""
    workers = machines * machine.workers
    at_once, rounds = min(workers, len(job.shards)), -(-len(job.shards) // workers)
    return machine.start_seconds + rounds * seconds_of(max(job.shards), job.ratio, machine, conditions.store / at_once)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m narrow.ray.simulation", description="Seconds and dollars of quantizing on a cluster")
    parser.add_argument("--parameters", type=float, default=1e12)
    parser.add_argument("--machines", type=int, nargs="+", default=[1, 10, 100, 1000])
    parser.add_argument("--shard-bytes", type=float, default=5e9)
    parser.add_argument("--quantize", type=float, default=Machine.quantize, help="bytes of input per second and worker")
    parser.add_argument("--workers", type=int, default=Machine.workers, help="per machine")
    parser.add_argument("--network", type=float, default=Machine.network)
    parser.add_argument("--dollars", type=float, default=Machine.dollars, help="per machine and hour")
    parser.add_argument("--store", type=float, default=float("inf"), help="bytes per second of the shared store")
    parser.add_argument("--deaths", type=float, default=0.0, help="per worker and hour")
    parser.add_argument("--slow", type=float, default=0.0, help="the share of workers that are five times slower")
    arguments = parser.parse_args()
    machine = Machine(arguments.workers, arguments.quantize, arguments.network, dollars=arguments.dollars)
    conditions = Conditions(arguments.store, arguments.deaths, arguments.slow)
    job = Job.of(arguments.parameters, arguments.shard_bytes)
    print(f"{len(job.shards)} shards, {sum(job.shards) / 1e12:.2f} TB in, {sum(job.shards) / job.ratio / 1e12:.2f} TB out")
    print(f"{'machines':>9} {'seconds':>9} {'hours':>9} {'dollars':>9} {'busy':>6} {'attempts':>9} {'lost':>5} {'twins':>6}")
    for machines in arguments.machines:
        bill = simulate(job, machines, machine, conditions)
        print(
            f"{machines:9d} {bill.seconds:9.0f} {bill.machine_hours:9.2f} {bill.dollars:9.2f} {bill.utilization:6.0%} "
            f"{bill.summary.attempts:9d} {bill.summary.lost:5d} {bill.summary.duplicates:6d}"
        )


if __name__ == "__main__":
    main()
