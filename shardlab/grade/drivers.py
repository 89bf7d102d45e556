"""What the drivers of several lessons' tests share: they run inside ranks, beside the learner's code."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn


def own_group(groups: Sequence[Sequence[int]] | None, seconds: float = 30) -> dist.ProcessGroup | None:
    """Every rank makes all groups, in the same order, and keeps its own; None without groups, or if it is in none.

    Args:
        seconds: timeout of the groups.
    """
    if groups is None:
        return None
    limit = datetime.timedelta(seconds=seconds)
    made = [dist.new_group(list(ranks), timeout=limit) for ranks in groups]
    return next((group for group, ranks in zip(made, groups, strict=True) if dist.get_rank() in ranks), None)


def error_message(call: Callable[[], object], kind: type[Exception] = ValueError) -> str:
    """The message of the error that ``call`` raises; "" if it raises none."""
    try:
        call()
    except kind as error:
        return str(error)
    return ""


def summed_token_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Sum over the next-token losses of ``tokens`` [1, T]: T - 1 of them."""
    return F.cross_entropy(model(tokens)[0, :-1], tokens[0, 1:], reduction="sum")


def seeded_linear(width: int, seed: int) -> nn.Linear:
    """Square, without bias, its weights from the seed alone."""
    layer = nn.Linear(width, width, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(width, width, generator=torch.Generator().manual_seed(seed)) / width**0.5)
    return layer
