"""Problems with known answers: right calls have no wrong element, wrong ones are counted over all ranks."""

import pytest
import torch.distributed as dist

from shardlab.observe.benchmark import BUILT_IN, OPS, problem, time_in_turns
from shardlab.ranks import run_ranks


def solve_all(numel: int) -> dict[str, tuple[int, int]]:
    """Wrong elements after the backend's own call, and after none on rank 0."""
    found = {}
    for op in OPS:
        right, undone = problem(op, numel), problem(op, numel)
        BUILT_IN[op](*right.arguments)
        found[op] = (right.count_wrong(), undone.count_wrong())
    return found


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_backends_collectives_are_right(ranks):
    for found in run_ranks(solve_all, ranks, 12):
        assert all(wrong == 0 for wrong, _ in found.values())
        assert ranks == 1 or all(undone > 0 for _, undone in found.values())


def time_two() -> dict[str, float]:
    return time_in_turns({"one": (dist.barrier, ()), "other": (dist.barrier, ())})


def test_all_ranks_have_the_slowest_ones_time():
    first, second = run_ranks(time_two, 2)
    assert first == second and all(seconds > 0 for seconds in first.values())
