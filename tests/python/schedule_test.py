"""The scheduler of a cluster, on machines that exist only in numbers: everything is done once, whatever dies or drags."""
import dataclasses

import pytest

from narrow.errors import InvalidArgument, IoError
from narrow.ray.schedule import Policy, WorkerLost, run_tasks
from narrow.ray.simulation import Conditions, Job, Machine, SimulatedPool, estimate, seconds_of, simulate


class Scripted:
    """Workers that do as they are told: outcomes[task] is a list of what each attempt does: seconds, or an exception after one second."""

    def __init__(self, outcomes, slots=2):
        self.outcomes, self.count, self.time, self.ends, self.log = {t: list(o) for t, o in outcomes.items()}, slots, 0.0, {}, []

    def slots(self):
        return self.count

    def submit(self, task, attempt):
        outcome = self.outcomes[task].pop(0)
        self.log.append((self.time, task))
        self.ends[attempt] = (self.time + (outcome if isinstance(outcome, (int, float)) else 1.0), outcome)
        return attempt

    def wait(self, handles, seconds):
        first = min(self.ends[handle][0] for handle in handles)
        if first > self.time + seconds:
            self.time += seconds
            return []
        self.time = max(self.time, first)
        return [handle for handle in handles if self.ends[handle][0] <= self.time]

    def result(self, handle):
        outcome = self.ends[handle][1]
        if isinstance(outcome, Exception):
            raise outcome
        return handle

    def cancel(self, handle):
        self.log.append((self.time, f"cancel {handle}"))

    def now(self):
        return self.time


def test_the_largest_go_first_and_each_finishes_once():
    heard = []
    summary = run_tasks(Scripted({0: [1], 1: [3], 2: [2]}, slots=1), [1, 3, 2], finished=lambda task, _: heard.append(task))
    assert heard == [1, 2, 0] and summary.attempts == 3


def test_lost_workers_and_failed_writes_are_tried_again():
    pool = Scripted({0: [WorkerLost("gone"), IoError("disk"), 1], 1: [1]})
    summary = run_tasks(pool, [1, 1])
    assert (summary.attempts, summary.lost, summary.failed) == (4, 1, 1)


def test_after_enough_losses_the_run_says_so():
    with pytest.raises(IoError, match="task 0 was lost 3 times with its worker: gone"):
        run_tasks(Scripted({0: [WorkerLost("gone")] * 3}), [1], Policy(attempts=3))
    with pytest.raises(IoError, match="disk"):
        run_tasks(Scripted({0: [IoError("disk")] * 2}), [1], Policy(attempts=2))


def test_a_bad_input_ends_the_run_at_once():
    pool = Scripted({0: [InvalidArgument("NaN")], 1: [100]})
    with pytest.raises(InvalidArgument, match="NaN"):
        run_tasks(pool, [1, 1])
    assert pool.log[-1] == (1.0, "cancel 1")


def test_a_slow_task_gets_a_twin_and_the_first_wins():
    pool = Scripted({0: [10], 1: [10], 2: [1000, 10]}, slots=3)
    summary = run_tasks(pool, [1, 1, 1])
    assert summary.duplicates == 1 and pool.time == pytest.approx(40, abs=1.1)  # three times the median, then ten seconds
    assert pool.log[-1][1] == "cancel 2"
    lonely = Scripted({0: [10], 1: [10], 2: [1000, 10]}, slots=3)
    assert run_tasks(lonely, [1, 1, 1], Policy(straggler_factor=1e9)).duplicates == 0 and lonely.time == 1000


def test_a_twin_that_is_lost_does_not_count_against_the_task():
    pool = Scripted({0: [10], 1: [100, WorkerLost("gone"), WorkerLost("gone"), WorkerLost("gone"), WorkerLost("gone"), 5]}, slots=2)
    assert run_tasks(pool, [1, 1], Policy(attempts=2)).results[1] is not None


def test_an_attempt_that_hangs_is_given_up():
    pool = Scripted({0: [1e9, 5]}, slots=1)
    summary = run_tasks(pool, [1], Policy(timeout_seconds=50))
    assert summary.timeouts == 1 and pool.time == pytest.approx(55, abs=2)


def test_the_simulation_is_the_model_where_nothing_goes_wrong():
    for machines in (1, 7, 100, 1000):
        job, machine = Job.of(1e11, shard_bytes=1e9), Machine(workers=2)
        assert simulate(job, machines, machine).seconds == pytest.approx(estimate(job, machines, machine), rel=1e-6)
    assert seconds_of(1e9, 4.0, Machine(workers=1, quantize=1e9, network=1e9)) == pytest.approx(2.25)


def test_every_shard_is_done_whatever_dies_or_drags():
    job, machine = Job.of(1e12), Machine(workers=1)
    well = simulate(job, 100, machine)
    dying = simulate(job, 100, machine, Conditions(death_per_hour=6.0, seed=1), Policy(attempts=20))
    dragging = simulate(job, 100, machine, Conditions(slow_share=0.05, slow_factor=20.0, seed=2))
    alone = simulate(job, 100, machine, Conditions(slow_share=0.05, slow_factor=20.0, seed=2), Policy(straggler_factor=1e9))
    assert dying.summary.lost > 0 and dying.seconds > well.seconds
    assert dragging.summary.duplicates > 0 and well.seconds < dragging.seconds < alone.seconds
    again = simulate(job, 100, machine, Conditions(death_per_hour=6.0, seed=1), Policy(attempts=20))
    assert dataclasses.replace(again, summary=None) == dataclasses.replace(dying, summary=None)


def test_the_bill_follows_the_machines():
    job, machine = Job.of(1e12), Machine(workers=1)
    one, many, too_many = simulate(job, 1, machine), simulate(job, 400, machine), simulate(job, 1000, machine)
    start = Machine.start_seconds
    assert (one.seconds - start) / (many.seconds - start) == pytest.approx(400)  # the work divides, the start does not
    assert many.dollars / one.dollars == pytest.approx(400 * many.seconds / one.seconds)
    assert too_many.seconds == pytest.approx(many.seconds)  # no more machines work than there are shards
    assert too_many.dollars == pytest.approx(2.5 * many.dollars)
    slow_store = simulate(job, 400, machine, Conditions(store=50e9))
    assert slow_store.seconds >= sum(job.shards) * (1 + 1 / job.ratio) / 50e9 * 0.5


def test_machines_are_waited_for():
    pool = SimulatedPool(Job((1e9,)), 1, Machine(workers=1, start_seconds=30.0), Conditions())
    run_tasks(pool, [1e9])
    assert pool.time > 30.0
