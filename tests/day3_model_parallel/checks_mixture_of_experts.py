"""What the tests of 3.4 hold the learner's code against: one process, every expert, token by token and claim by claim.

Slow and plain on purpose: nothing is sorted, sent or shared out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from shardlab.models import FeedForward, Transformer, TransformerConfig, build
from shardlab.models.build import initial_value


class OneProcess(nn.Module):
    """A layer of experts that has the whole batch and all experts. Names of parameters as in the lesson.

    Args:
        options: hidden, ffn, experts, top_k, capacity_factor, shared, softmax, balance_coefficient, z_coefficient.
    """

    def __init__(self, options: dict) -> None:
        super().__init__()
        self.options = options
        shape = TransformerConfig(1, options["hidden"], 1, 1, 1, options["ffn"], 1)
        self.router = nn.Linear(options["hidden"], options["experts"], bias=False)
        self.experts = nn.ModuleDict({str(expert): FeedForward(shape) for expert in range(options["experts"])})
        self.shared = FeedForward(shape) if options["shared"] else None
        self.auxiliary = torch.zeros(())
        self.asked: list[int] = []
        self.kept: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        options, tokens = self.options, x.flatten(0, -2)
        logits = self.router(tokens)
        probabilities = logits.softmax(-1)
        values, chosen = logits.topk(options["top_k"])
        gates = values.softmax(-1) if options["softmax"] == "after" else probabilities.gather(-1, chosen)
        kept = kept_by_the_book(chosen, capacity_of(options, chosen.numel()), options["experts"])
        y = torch.zeros_like(tokens) if self.shared is None else self.shared(tokens)
        for expert, network in self.experts.items():
            weight = (gates * (kept & (chosen == int(expert)))).sum(-1, keepdim=True)
            y = y + weight * network(tokens)
        self.auxiliary = options["balance_coefficient"] * balance(probabilities, chosen) + options[
            "z_coefficient"
        ] * z_loss(logits)
        self.asked = [int((chosen == expert).sum()) for expert in range(options["experts"])]
        self.kept = [int(((chosen == expert) & kept).sum()) for expert in range(options["experts"])]
        return y.view(x.shape)


def capacity_of(options: dict, claims: int) -> int | None:
    """Rounded up, without a quotient of floats: the factors of the tests are quarters."""
    factor = options["capacity_factor"]
    return None if factor is None else -(-int(4 * factor) * claims // (4 * options["experts"]))


def kept_by_the_book(chosen: Tensor, capacity: int | None, experts: int, ahead: Tensor | None = None) -> Tensor:
    """[T, k] bool: claims one after the other, first all first choices, each while there is room.

    Args:
        ahead: [k, E], claims that others make before the c-th choices.
    """
    kept = torch.ones_like(chosen, dtype=torch.bool)
    taken = [0] * experts
    for choice in range(chosen.shape[1]):
        for token in range(chosen.shape[0]):
            expert = int(chosen[token, choice])
            others = 0 if ahead is None else int(ahead[choice, expert])
            kept[token, choice] = capacity is None or taken[expert] + others < capacity
            taken[expert] += 1
    return kept


def balance(probabilities: Tensor, chosen: Tensor) -> Tensor:
    """Switch Transformers, equations 4 to 6, of the whole batch."""
    tokens, experts = probabilities.shape
    if not tokens:
        return probabilities.sum()
    fractions = [(chosen == expert).sum() / chosen.numel() for expert in range(experts)]
    means = probabilities.mean(0)
    return experts * sum(fractions[expert] * means[expert] for expert in range(experts))


def z_loss(logits: Tensor) -> Tensor:
    return logits.logsumexp(-1).square().mean() if len(logits) else logits.sum()


def weights_of(options: dict, seed: int) -> dict[str, Tensor]:
    """Weights of a layer. Feature 0 of every token is 1 (`tokens_of`), so the router's column 0 is a bias: the expert
    before the last one never gets a token, and expert 0 more than its share."""
    generator = torch.Generator().manual_seed(seed)
    layer = OneProcess(options)
    found = {
        name: torch.randn(parameter.shape, generator=generator) / parameter.shape[-1] ** 0.5
        for name, parameter in layer.named_parameters()
    }
    found["router.weight"][:, 0] = 0
    found["router.weight"][0, 0] = 1
    found["router.weight"][-2, 0] = -20
    return found


def tokens_of(options: dict, weights: dict[str, Tensor], count: int, seed: int) -> Tensor:
    """[count, hidden], feature 0 is 1. No two experts of a token are so close that rounding could swap them."""
    generator = torch.Generator().manual_seed(seed)
    found = torch.empty(0, options["hidden"])
    while len(found) < count:
        more = torch.randn(count, options["hidden"], generator=generator)
        more[:, 0] = 1
        best = (more @ weights["router.weight"].T).sort(-1).values
        found = torch.cat([found, more[(best.diff(dim=-1) > 1e-3).all(-1)]])
    return found[:count]


def run_one_process(options: dict, weights: dict[str, Tensor], x: Tensor, upstream: Tensor, units: int) -> dict:
    """Forward and backward of the mean over ``units`` ranks of (output times upstream, summed, plus the auxiliary
    losses), in float64: output, gradient of x, gradients by name, auxiliary, asked, kept."""
    layer = OneProcess(options).double()
    layer.load_state_dict({name: weight.double() for name, weight in weights.items()})
    leaf = x.double().requires_grad_()
    y = layer(leaf)
    ((y * upstream).sum() / units + layer.auxiliary).backward()
    zero = {name: torch.zeros_like(parameter) for name, parameter in layer.named_parameters()}
    found = {name: parameter.grad for name, parameter in layer.named_parameters() if parameter.grad is not None}
    return {
        "output": y.detach(),
        "gradient": leaf.grad,
        "gradients": zero | found,
        "auxiliary": layer.auxiliary.item(),
        "asked": layer.asked,
        "kept": layer.kept,
    }


def model_with_experts(config: TransformerConfig, options: dict, seed: int) -> Transformer:
    """The course's model of ``seed``, every feed-forward network a `OneProcess`, drawn by name as `build` draws."""
    model = build(config, seed)
    for index, block in enumerate(model.blocks):
        block.mlp = OneProcess(options)
        for name, parameter in block.mlp.named_parameters(prefix=f"blocks.{index}.mlp"):
            parameter.data.copy_(initial_value(model, name, parameter, seed))
    return model


def groups_with(rank: int, groups: Sequence[Sequence[int]]) -> Sequence[int]:
    """The group that a rank is in."""
    return next(members for members in groups if rank in members)
