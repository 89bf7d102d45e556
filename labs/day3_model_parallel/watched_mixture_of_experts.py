"""A small mixture of experts, trained on real text and watched: losses, load per expert, what the experts like.

Given code, shared by the script and the notebook of lesson 3.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from labs.day3_model_parallel.mixture_of_experts import MoEConfig, auxiliary_loss, average_gradients, use_experts
from shardlab.data import tokenizer
from shardlab.models import Transformer, TransformerConfig, build, next_token_loss
from shardlab.ranks import device


@dataclass
class Run:
    """What was seen while training. The same on every rank of the group.

    Attributes:
        model: as it ended; this rank's experts.
        losses: cross-entropy of the global batch in nats, by step.
        asked: claims for each expert, [layers, E] int64, by step.
        drops: fraction of claims dropped, mean over the layers, by step.
    """

    model: Transformer
    losses: list[float] = field(default_factory=list)
    asked: list[Tensor] = field(default_factory=list)
    drops: list[float] = field(default_factory=list)

    def imbalance(self, last: int) -> float:
        """Claims for the busiest expert over the mean, over the last steps, mean over the layers."""
        recent = torch.stack(self.asked[-last:]).sum(0).double()
        return (recent.amax(1) / recent.mean(1)).mean().item()


def train(
    shape: TransformerConfig,
    config: MoEConfig,
    batches: Iterable[Tensor],
    group: ProcessGroup | None = None,
    rate: float = 3e-3,
    after_step: Callable[[], None] = lambda: None,
) -> Run:
    """Train with AdamW, every rank of the group with its rows of each batch and its share of the experts.

    Args:
        batches: [rows, sequence], the same on every rank; the ranks divide the rows.
    """
    model = use_experts(build(shape).to(device()), config, group)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, eps=1e-6)
    run, rank, ranks = Run(model), dist.get_rank(group), dist.get_world_size(group)
    for batch in batches:
        rows = batch.chunk(ranks)[rank]
        loss = next_token_loss(model(rows), rows)
        (loss + auxiliary_loss(model)).backward()
        average_gradients(model, group, None)
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean, group=group)
        run.losses.append(mean.item() / ranks)
        loads = [block.mlp.load for block in model.blocks]
        run.asked.append(torch.stack([load.asked for load in loads]))
        run.drops.append(sum(load.drop_rate for load in loads) / len(loads))
        after_step()
    return run


@torch.no_grad()
def favourites(model: Transformer, batches: Iterable[Tensor], layer: int, most: int = 6) -> dict[int, list[str]]:
    """For each expert of a layer the tokens that it gets most beyond its share, written out; of those seen ten times.

    Call it on every rank of the model's group, with the same batches: every rank routes all of them.
    """
    vocab, moe = model.config.vocab, model.blocks[layer].mlp
    experts, caught = moe.config.experts, []
    hook = moe.router.register_forward_hook(lambda _module, _inputs, routing: caught.append(routing.experts))
    counts = torch.zeros(vocab, experts, device=device())
    for batch in batches:
        model(batch)
        pairs = batch.flatten().unsqueeze(1) * experts + caught.pop()
        counts += torch.bincount(pairs.flatten(), minlength=vocab * experts).view(vocab, experts)
    hook.remove()
    seen = counts.sum(1) / moe.config.top_k
    lift = counts / seen.clamp(min=1).unsqueeze(1) * (seen >= 10).unsqueeze(1)
    words = tokenizer(vocab)
    best = {expert: lift[:, expert].topk(most).indices.tolist() for expert in range(experts)}
    return {
        expert: [repr(words.decode([token])) for token in tokens if lift[token, expert] > 0]
        for expert, tokens in best.items()
    }
