"""Calls take turns, the slowest rank's time counts, and only the first ranks measure."""

import datetime
import time

import torch.distributed as dist

from shardlab.observe.turns import on_each_size, slowest_medians, time_repeats
from shardlab.ranks import run_ranks


def take_turns():
    heard = []
    calls = {name: lambda repeat, name=name: heard.append((name, repeat)) for name in ("mine", "torch")}
    return heard, sorted(time_repeats(calls, 3))


def test_calls_take_turns_and_know_their_repeat():
    for heard, names in run_ranks(take_turns, 2):
        assert heard == [(name, repeat) for repeat in range(3) for name in ("mine", "torch")]
        assert names == ["mine", "torch"]


def test_the_slowest_rank_of_each_repeat_counts_and_the_first_warms_up():
    uneven = {"first": [90.0, 2.0, 4.0], "second": [1.0, 2.0, 3.0]}
    assert run_ranks(slowest_medians, 1, uneven)[0] == {"first": 3.0, "second": 2.5}
    assert run_ranks(of_two_ranks, 2) == [{"call": 3.0}, {"call": 3.0}]


def of_two_ranks():
    return slowest_medians({"call": [7.0, [1.0, 3.0][dist.get_rank()], [3.0, 2.0][dist.get_rank()]]})


def slow_on_one():
    return time_repeats({"call": lambda _: time.sleep(0.05 * dist.get_rank())}, 2)["call"]


def test_every_rank_gets_the_time_of_the_slowest():
    assert all(seconds >= 0.05 for seconds in run_ranks(slow_on_one, 2))


def on_sizes():
    groups = {ranks: dist.new_group(range(ranks), timeout=datetime.timedelta(seconds=30)) for ranks in (1, 2, 3)}
    return on_each_size(groups, "sizes", lambda ranks: [{"ranks": ranks, "of": dist.get_world_size(groups[ranks])}])


def test_only_the_ranks_of_a_size_measure_it():
    for rank, records in enumerate(run_ranks(on_sizes, 3)):
        assert records == [{"ranks": ranks, "of": ranks} for ranks in (1, 2, 3) if rank < ranks]
