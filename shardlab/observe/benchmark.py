"""Collectives with known answers, and their time: what every script with a bandwidth table does.

`problem` makes the arguments of one call and knows what must come out, `BUILT_IN` is torch's call for each operation,
`time_in_turns` times several ways to do it. `parse_bytes` and `sizes_between` say for which sizes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from shardlab.observe.turns import seconds_of, slowest_medians
from shardlab.ranks.compat import all_gather_single, reduce_scatter_single
from shardlab.ranks.device import device

BUILT_IN: dict[str, Callable[..., object]] = {
    "all_reduce": dist.all_reduce,
    "broadcast": dist.broadcast,
    "reduce_scatter": reduce_scatter_single,
    "all_gather": all_gather_single,
    "all_to_all": dist.all_to_all,
}
OPS = tuple(BUILT_IN)
OPS_ON_BLOCKS = OPS[2:]  # one block per rank: N must divide the tensor
SUFFIXES = {"K": 2**10, "M": 2**20, "G": 2**30}
SECONDS_PER_SIZE = 2.0  # of measuring; a round of all calls that takes longer still gets its two repeats
REPEATS = range(2, 21)


@dataclass(frozen=True)
class Problem:
    """Arguments for one call on this rank, and what it should make of them.

    Attributes:
        arguments: tensors, and the source for a broadcast.
        result: the tensor that the call fills or changes, whole or as one per rank.
        expected: what should stand in it.
    """

    arguments: tuple
    result: Sequence[torch.Tensor]
    expected: torch.Tensor

    def count_wrong(self) -> int:
        """Elements that are not as expected, over all ranks."""
        got = torch.cat([tensor.flatten() for tensor in self.result])
        wrong = (got != self.expected).sum()
        dist.all_reduce(wrong)
        return int(wrong)


def problem(op: str, numel: int) -> Problem:
    """Small whole numbers, so that sums are exact in any order.

    Args:
        op: one of `OPS`; the arguments are those of `BUILT_IN`, a broadcast comes from rank 0.
        numel: of the full tensor, float32; for `OPS_ON_BLOCKS` a multiple of the number of ranks.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    pattern = torch.arange(numel, device=device()).remainder_(7).float()
    own = pattern + rank
    blocks = slice(rank * numel // size, (rank + 1) * numel // size)
    total = size * pattern + sum(range(size))
    match op:
        case "all_reduce":
            return Problem((own,), [own], total)
        case "broadcast":
            return Problem((own, 0), [own], pattern)
        case "reduce_scatter":
            output = torch.empty_like(pattern[blocks])
            return Problem((output, own), [output], total[blocks])
        case "all_gather":
            output = torch.empty_like(pattern)
            return Problem((output, pattern[blocks].clone()), [output], pattern)
        case "all_to_all":
            outputs = [torch.empty_like(pattern[blocks]) for _ in range(size)]
            expected = torch.cat([pattern[blocks] + source for source in range(size)])
            return Problem((outputs, list(own.tensor_split(size))), outputs, expected)
    raise ValueError(f"unknown operation {op!r}: choose one of {', '.join(OPS)}")


def time_in_turns(calls: dict[str, tuple[Callable, tuple]]) -> dict[str, float]:
    """Median over repeats of the slowest rank's seconds, by name. What else the machine does meets all calls alike."""
    bound = {name: partial(call, *arguments) for name, (call, arguments) in calls.items()}
    start = time.perf_counter()
    times = {name: [seconds_of(call)] for name, call in bound.items()}
    repeats = torch.tensor(SECONDS_PER_SIZE / max(time.perf_counter() - start, 1e-9), device=device())
    dist.broadcast(repeats, 0)  # the ranks' clocks differ, their number of repeats must not
    for _ in range(min(max(int(repeats), REPEATS[0]), REPEATS[-1])):
        for name, call in bound.items():
            times[name].append(seconds_of(call))
    return slowest_medians(times)


def parse_bytes(text: str) -> int:
    """``"64M"`` as 67,108,864, as nccl-tests reads it; for argparse."""
    number, unit = (text[:-1], SUFFIXES[text[-1].upper()]) if text[-1:].upper() in SUFFIXES else (text, 1)
    if not number.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write bytes, or a number with K, M or G")
    return int(number) * unit


def sizes_between(smallest: int, largest: int, factor: int = 4) -> list[int]:
    """smallest, smallest x factor, ... up to largest."""
    sizes = [smallest]
    while sizes[-1] * factor <= largest:
        sizes.append(sizes[-1] * factor)
    return sizes
