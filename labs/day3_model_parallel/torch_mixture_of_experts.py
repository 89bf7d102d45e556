"""A layer of experts by PyTorch's own parts, to compare lesson 3.4 with. Given code.

The path of a token as TorchTitan takes it (its ``ExpertParallel``): counts by an all-to-all, rows by
``all_to_all_single_autograd`` from torch's functional collectives, local experts on sorted rows, and the way back.
Dropless, without auxiliary losses.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed import _functional_collectives as collectives

from shardlab.models import FeedForward


class TorchMoE(nn.Module):
    """Names of parameters as in `ExpertParallelMoE`, so that one loads the other's state.

    Args:
        config: a `MoEConfig`.
        group: the ranks that hold each expert once.
    """

    def __init__(self, config, group: ProcessGroup) -> None:
        super().__init__()
        self.config, self.group = config, group
        self.ranks, own = dist.get_world_size(group), config.experts // dist.get_world_size(group)
        first = dist.get_rank(group) * own
        self.router = nn.Linear(config.hidden, config.experts, bias=False)
        self.experts = nn.ModuleDict({str(expert): FeedForward(config) for expert in range(first, first + own)})
        self.shared = FeedForward(config) if config.shared else None

    def forward(self, x: Tensor) -> Tensor:
        """Args: x [..., hidden]. Returns the same shape."""
        tokens = x.reshape(-1, self.config.hidden)
        logits = self.router(tokens).float()
        if self.config.softmax == "after":
            scores, chosen = logits.topk(self.config.top_k)
            gates = scores.softmax(-1)
        else:
            gates, chosen = logits.softmax(-1).topk(self.config.top_k)
        order = chosen.flatten().argsort(stable=True)
        token = order // self.config.top_k
        counts = torch.bincount(chosen.flatten(), minlength=self.config.experts)
        answers = self.ask(tokens[token], counts)
        weighted = answers * gates.flatten()[order].unsqueeze(-1)
        y = torch.zeros_like(tokens).index_add(0, token, weighted.to(tokens.dtype))
        if self.shared is not None:
            y = y + self.shared(tokens)
        return y.view(x.shape)

    def ask(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Args: rows [S, hidden] sorted by expert, counts [E]. Returns each row's answer, in the order of the rows."""
        if self.ranks == 1:
            return self.run(rows, counts.tolist())
        arriving = collectives.wait_tensor(collectives.all_to_all_single(counts, None, None, self.group))
        send, here = counts.view(self.ranks, -1).sum(1).tolist(), arriving.view(self.ranks, -1)
        receive = here.sum(1).tolist()
        received = collectives.all_to_all_single_autograd(rows, receive, send, self.group)
        expert = torch.arange(len(self.experts), device=rows.device).repeat(self.ranks)
        order = expert.repeat_interleave(here.flatten()).argsort(stable=True)
        sorted_answers = self.run(received[order], here.sum(0).tolist())
        answers = torch.empty_like(sorted_answers).index_copy(0, order, sorted_answers)
        return collectives.all_to_all_single_autograd(answers, send, receive, self.group)

    def run(self, rows: Tensor, counts: list[int]) -> Tensor:
        """Each of this rank's experts on its part of the rows."""
        return torch.cat([expert(part) for expert, part in zip(self.experts.values(), rows.split(counts), strict=True)])
