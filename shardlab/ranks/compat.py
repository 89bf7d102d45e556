"""One name for the flat all-gather and reduce-scatter over the releases of torch the course runs on.

torch 2.13 deprecates ``all_gather_into_tensor`` and ``reduce_scatter_tensor`` for ``*_single`` names that 2.11 lacks.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def all_gather_single(
    output: torch.Tensor, input: torch.Tensor, group: dist.ProcessGroup | None = None, async_op: bool = False
) -> dist.Work | None:
    """Fill `output` (N times `input`'s elements) with every rank's `input`, in rank order."""
    return _all_gather(output, input, group=group, async_op=async_op)


def reduce_scatter_single(
    output: torch.Tensor,
    input: torch.Tensor,
    op: dist.ReduceOp = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> dist.Work | None:
    """Reduce `input` over the ranks and leave this rank's block of it in `output` (an N-th of the elements)."""
    return _reduce_scatter(output, input, op=op, group=group, async_op=async_op)
