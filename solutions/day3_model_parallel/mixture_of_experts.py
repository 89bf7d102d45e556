"""Lesson 3.4: mixture of experts, feed-forward networks of which a token meets only a few, shared by the ranks.

A router scores every token against E experts and sends it to the k best: the model has E networks' parameters and does
k networks' arithmetic. The experts are shared out among the ranks (expert parallelism), so a token travels to its
experts and back: two all-to-alls in forward, two in backward. Who sends how much to whom is decided by the data, anew
in every layer and step: ranks have unequal counts, experts can starve or drown, and nothing may depend on how many
ranks there are. Two losses keep the load even and the router's numbers small.

Work from top to bottom: the router and its two losses, who goes where (`dispatch`, `combine`, `share_capacity`), the
exchange, the layer, then which ranks belong together and whose gradients are whose.

Words: a *claim* is one choice of one token, T tokens make T k claims. The *batch group* are the ranks whose tokens make
up the global batch, each token once, in rank order; the *group* of a layer are those that hold each expert once and
exchange tokens. The first is the second, or several of them: then each expert has *replicas*. `group=None` means the
default group; without any, this process alone. A group of one makes no call. Any number of ranks from 1 up, gloo/CPU
and NCCL/CUDA alike. Everything that computes has to be called on every rank of its group, in the same order, also by
one that has no token.

Sources:
    Shazeer et al. 2017, "Outrageously large neural networks", arXiv:1701.06538: top-k of a softmax.
    Lepikhin et al. 2020, "GShard", arXiv:2006.16668: experts on other ranks, capacity, order of claims.
    Fedus et al. 2021, "Switch Transformers", arXiv:2101.03961: sections 2.1, 2.2 (equations 4 to 6) and 2.4 (float32).
    Zoph et al. 2022, "ST-MoE", arXiv:2202.08906: section 3, the router z-loss.
    Jiang et al. 2024, "Mixtral of experts", arXiv:2401.04088: section 2.1, softmax after top-k.
    Dai et al. 2024, "DeepSeekMoE", arXiv:2401.06066: shared experts.
"""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from shardlab.models import FeedForward, Transformer
from shardlab.models.build import initial_value
from shardlab.ranks import all_gather_single

NEW_GROUP_TIMEOUT = datetime.timedelta(seconds=60)  # `new_group` would not take over the timeout of the default group


@dataclass(frozen=True)
class MoEConfig:
    """Shape of a layer of experts. Given.

    Args:
        hidden: width of the tokens.
        ffn: inner width of each expert, a SwiGLU network as in the dense model.
        experts: how many there are in all.
        top_k: experts per token, 1 ... experts.
        capacity_factor: an expert takes at most this many times the mean number of claims; None: it takes all
            (dropless).
        shared: add one more expert that every token meets.
        softmax: "after" top-k, over the chosen logits alone: gates sum to 1. "before", over all logits: gates are the
            chosen probabilities as they are.
        balance_coefficient, z_coefficient: of the two losses in `auxiliary_loss`; 0 leaves one out.

    Raises:
        ValueError: a field that cannot be.
    """

    hidden: int
    ffn: int
    experts: int
    top_k: int = 2
    capacity_factor: float | None = None
    shared: bool = False
    softmax: Literal["before", "after"] = "after"
    balance_coefficient: float = 0.01
    z_coefficient: float = 0.001

    def __post_init__(self) -> None:
        for name in ("hidden", "ffn", "experts", "top_k"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)}")
        if self.top_k > self.experts:
            raise ValueError(f"top_k {self.top_k} is more than there are experts: {self.experts}")
        if self.softmax not in ("before", "after"):
            raise ValueError(f'softmax must be "before" or "after" top-k, got {self.softmax!r}')
        if self.capacity_factor is not None and not 0 < self.capacity_factor < math.inf:
            raise ValueError(f"capacity_factor must be a positive number or None, got {self.capacity_factor}")
        if min(self.balance_coefficient, self.z_coefficient) < 0:
            raise ValueError("balance_coefficient and z_coefficient must be 0 or more")

    def capacity(self, claims: int) -> int | None:
        """Claims that each expert takes, of ``claims`` in the whole batch; None: all. Example: factor 1.25, 10 claims,
        4 experts: 4."""
        return None if self.capacity_factor is None else math.ceil(self.capacity_factor * claims / self.experts)


# --- The router and its losses ----------------------------------------------------------------------------------------


class Routing(NamedTuple):
    """What the router says of T tokens.

    Attributes:
        experts: [T, k] int64, chosen experts, best first.
        gates: [T, k] float32, what their outputs are multiplied by.
        probabilities: [T, E] float32, softmax over all experts, whatever the gates are.
        logits: [T, E] float32.
    """

    experts: Tensor
    gates: Tensor
    probabilities: Tensor
    logits: Tensor


class TopKRouter(nn.Module):
    """A linear layer that scores experts, and the k best.

    In float32 throughout, also in a bfloat16 model and under autocast: bfloat16 has 8 bits, and a logit of 10 is then
    off by up to 0.03. Rounding there swaps experts (Switch Transformers, section 2.4).

    Args:
        config: its hidden, experts, top_k and softmax.
    """

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(config.experts, config.hidden))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Routing:
        """Args: tokens [T, hidden], any floating dtype; T may be 0.

        Example, logits [log 6, log 3, log 1], k = 2: experts [0, 1]; gates [2/3, 1/3] with the softmax after top-k,
        [0.6, 0.3] with the softmax before.

        Hints:
            1. Two things must be float32, and autocast would undo both: ``torch.autocast(device_type, enabled=False)``.
            2. ``topk`` gives values and indices. Gates must lead gradients back to the weight: which of the two does?
        """
        # BEGIN SOLUTION
        with torch.autocast(tokens.device.type, enabled=False):
            logits = F.linear(tokens.float(), self.weight.float())
            probabilities = logits.softmax(-1)
            chosen, experts = logits.topk(self.config.top_k)
            gates = chosen.softmax(-1) if self.config.softmax == "after" else probabilities.gather(-1, experts)
        return Routing(experts, gates, probabilities, logits)
        # END SOLUTION


class SumOverRanks(torch.autograd.Function):
    """The sum of a tensor over the ranks of a group, where every rank's *own loss* goes on with it.

    Not the sum of tensor parallelism (Megatron-LM's g), whose backward is the identity: there all ranks compute one
    loss together. Here there are N losses, one for each rank, and all of them have this rank's tensor in them.

    Example, 2 ranks have x = 3 and 5, and losses 1 s and 10 s of the sum s: s = 8, the gradient of each x is 11.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: ProcessGroup | None) -> Tensor:
        """Returns a new tensor; ``tensor`` is not changed. Contiguous in both directions."""
        # BEGIN SOLUTION
        ctx.group = group
        total = tensor.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total
        # END SOLUTION

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Args: gradient of this rank's loss. Returns that of the sum of all ranks' losses, and None for the group."""
        # BEGIN SOLUTION
        return SumOverRanks.apply(gradient, ctx.group), None
        # END SOLUTION


def sum_over_ranks(tensor: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """`SumOverRanks`, and in a group of one ``tensor`` itself. Given."""
    return tensor if position(group)[1] == 1 else SumOverRanks.apply(tensor, group)


def load_balancing_loss(probabilities: Tensor, assignment: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """E times the sum over experts of f_e P_e (Switch Transformers, equations 4 to 6): 1 when the load is even.

    f_e is the fraction of all claims that are for expert e, before any is dropped: a number without a gradient.
    P_e is the mean of its probability over all tokens: that is where the gradient flows. Both are taken over the
    *global* batch, and only then multiplied: the mean of each rank's product is another number, and one that depends on
    how the batch is cut.

    Args:
        probabilities: [T, E], softmax over all experts, of this rank's tokens; T may differ between ranks, and be 0.
        assignment: [T, k] int64, chosen experts.
        group: the batch group.

    Returns:
        0-d tensor, the same on every rank. One all-reduce, and one in backward.

    Example, 2 experts, k = 1, each of 2 ranks has a token, with probabilities [0.9, 0.1] and [0.1, 0.9]: each rank by
    itself is unbalanced, 2 (1 * 0.9) = 1.8, the batch is even: 1.0.

    Hints:
        1. Which sums does a rank have to add, to know f, P and the number of tokens? They can travel together.
        2. `sum_over_ranks`; ``torch.bincount`` with ``minlength``; ``torch.cat``. No division by 0 tokens.
    """
    # BEGIN SOLUTION
    tokens, experts = probabilities.shape
    claims = torch.bincount(assignment.flatten(), minlength=experts).to(probabilities.dtype)
    own = torch.cat([claims, probabilities.sum(0), claims.new_tensor([tokens])])
    claims, mass, tokens = sum_over_ranks(own, group).split([experts, experts, 1])
    return experts * (claims / claims.sum().clamp(min=1) * mass / tokens.clamp(min=1)).sum()
    # END SOLUTION


def router_z_loss(logits: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Mean over the tokens of the global batch of (log sum_e exp logit_e)^2 (ST-MoE, equation 5).

    It keeps logits small: a softmax does not change when all logits grow together, rounding does.

    Args:
        logits: [T, E] of this rank's tokens; T may differ between ranks, and be 0.
        group: the batch group.

    Returns:
        0-d tensor, the same on every rank.

    Example, one token with logits [0, 0]: (log 2)^2 = 0.4805.
    """
    # BEGIN SOLUTION
    squares = logits.logsumexp(-1).square().sum()
    total, tokens = sum_over_ranks(torch.stack([squares, squares.new_tensor(len(logits))]), group)
    return total / tokens.clamp(min=1)
    # END SOLUTION


# --- Who goes where ---------------------------------------------------------------------------------------------------


class Dispatched(NamedTuple):
    """Tokens in the order of their experts.

    Attributes:
        rows: [S, hidden], one row for each claim that is kept, sorted by expert; of one expert's rows first all first
            choices, then all second choices and so on, each in the order of the tokens.
        slots: [S] int64: row i answers claim ``slots[i]`` of the T k claims; token t's c-th choice is t k + c.
        counts: [E] int64, rows per expert.
    """

    rows: Tensor
    slots: Tensor
    counts: Tensor


def dispatch(
    tokens: Tensor, assignment: Tensor, capacity: int | None, experts: int, ahead: Tensor | None = None
) -> Dispatched:
    """Copy every token once for each of its claims, sorted by expert; an expert keeps its first ``capacity`` claims.

    The policy, GShard's: first all first choices, in the order of the tokens, then all second choices and so on. So no
    second choice takes the room of a first one. A dropped claim has no row: it gets nothing from that expert, and the
    residual stream around the layer carries the token on.

    Args:
        tokens: [T, hidden]; T may be 0.
        assignment: [T, k] int64, chosen experts.
        capacity: claims that an expert keeps; None: all.
        experts: E.
        ahead: [k, E] int64, how many claims of *other ranks* come before this rank's c-th choices (`share_capacity`);
            None: none.

    Example, tokens a, b, c choose [0, 1], [0, 2], [0, 1]: rows a b c | a c | b, slots 0 2 4 | 1 5 | 3. With capacity 2:
    a b | a c | b. And with 1 first choice for expert 0 ahead: a | a c | b.

    Hints:
        1. Write the claims choice by choice, all first choices first. A *stable* sort by expert keeps that order.
        2. The place of a claim among its expert's is its place in the sorted list minus where that expert begins.
        3. ``argsort(stable=True)``, ``bincount``, ``cumsum``; ``index_select`` has a faster backward than indexing.
    """
    # BEGIN SOLUTION
    count, k = assignment.shape
    claims = assignment.T.flatten()
    order = claims.argsort(stable=True)
    counts = torch.bincount(claims, minlength=experts)
    if capacity is not None:
        of = claims[order]
        place = torch.arange(len(of), device=of.device) - (counts.cumsum(0) - counts)[of]
        if ahead is not None:
            place += ahead[order // count, of]
        kept = place < capacity
        order, counts = order[kept], torch.bincount(of[kept], minlength=experts)
    token, choice = order % count, order // count
    return Dispatched(tokens.index_select(0, token), token * k + choice, counts)
    # END SOLUTION


def combine(rows: Tensor, slots: Tensor, gates: Tensor) -> Tensor:
    """Each token's sum over its choices of gate times the expert's answer; a claim without an answer adds 0.

    Args:
        rows: [S, hidden], the experts' answers, in the order of `dispatch`.
        slots: [S] int64, from `dispatch`.
        gates: [T, k] float32. The product and the sum are computed in float32.

    Returns:
        [T, hidden], dtype of ``rows``. The order of the sum is that of a token's choices, wherever the experts are.

    Example, rows 10, 20, 30 with slots 1, 2, 0, gates [[0.5, 0.5], [1, 0]]: [0.5 * 30 + 0.5 * 10, 1 * 20] = [20, 20].

    Hints:
        1. First put each row back where its claim stands: T k places of zeros, and ``index_copy``.
    """
    # BEGIN SOLUTION
    hidden = rows.shape[-1]
    answers = rows.new_zeros(gates.numel(), hidden).index_copy(0, slots, rows)
    return (answers.view(*gates.shape, hidden) * gates.unsqueeze(-1)).sum(1).to(rows.dtype)
    # END SOLUTION


def share_capacity(claims: Tensor, capacity: int | None) -> tuple[Tensor, Tensor]:
    """Which claims an expert keeps when they come from several ranks: those that one process would keep.

    One process that holds the whole batch sees first all first choices, those of rank 0's tokens before those of rank
    1's and so on, then all second choices. A capacity for each rank by itself would drop other claims on another number
    of ranks.

    Args:
        claims: [N, k, E] int64, of every rank of the batch group, c-th choices for each expert.
        capacity: claims that an expert keeps, of the whole batch; None: all.

    Returns:
        kept: [N, k, E] int64, how many of those claims are kept (the first ones).
        ahead: [N, k, E] int64, claims of *other* ranks that come before the c-th choices of a rank.

    Example, one expert, k = 2, rank 0 has 2 first and 1 second choice, rank 1 has 3 and 0: ahead is [[0], [3]] on rank
    0, [[2], [3]] on rank 1. With capacity 4, kept is [[2], [0]] and [[2], [0]].

    Hints:
        1. In the order (choice, rank) what comes before is an exclusive ``cumsum``. It has this rank's own lower
           choices in it, and `dispatch` counts those by itself.
    """
    # BEGIN SOLUTION
    ranks, k, experts = claims.shape
    in_order = claims.transpose(0, 1).reshape(k * ranks, experts)
    before = (in_order.cumsum(0) - in_order).view(k, ranks, experts).transpose(0, 1)
    kept = claims if capacity is None else (capacity - before).clamp(min=0).minimum(claims)
    own = claims.cumsum(1) - claims
    return kept, before - own
    # END SOLUTION


@dataclass(frozen=True)
class Load:
    """Claims for each expert, of the global batch. The same on every rank.

    Attributes:
        asked: [E] int64, before any is dropped.
        kept: [E] int64.
    """

    asked: Tensor
    kept: Tensor

    @property
    def drop_rate(self) -> float:
        """Fraction of all claims that were dropped; 0 of none."""
        # BEGIN SOLUTION
        asked = self.asked.sum().item()
        return (asked - self.kept.sum().item()) / max(asked, 1)
        # END SOLUTION

    @property
    def imbalance(self) -> float:
        """Claims for the busiest expert over the mean: 1 is even, E is all for one; 1 without claims. It is also the
        capacity factor that would drop nothing.

        Example: asked [6, 2, 0, 0]: 3.0.
        """
        # BEGIN SOLUTION
        total = self.asked.sum().item()
        return self.asked.max().item() * len(self.asked) / total if total else 1.0
        # END SOLUTION


# --- The exchange -----------------------------------------------------------------------------------------------------


class AllToAll(torch.autograd.Function):
    """Rows to the ranks they are for, in parts of unequal size; in backward their gradients the same way back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, send: list[int], receive: list[int], group: ProcessGroup | None) -> Tensor:
        """Args as in `exchange`, which see.

        Hints:
            1. `dist.all_to_all_single` fills an output that you make; a part may be empty, and so may all.
            2. What was received from a rank goes back to it: in backward, which list is which? A gradient need not be
               contiguous.
        """
        # BEGIN SOLUTION
        ctx.send, ctx.receive, ctx.group = send, receive, group
        received = rows.new_empty(sum(receive), *rows.shape[1:])
        dist.all_to_all_single(received, rows.contiguous(), receive, send, group)
        return received
        # END SOLUTION

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        """Args: gradient of the received rows. Returns that of the rows that were sent, and None for the rest."""
        # BEGIN SOLUTION
        return AllToAll.apply(gradient, ctx.receive, ctx.send, ctx.group), None, None, None
        # END SOLUTION


def exchange(rows: Tensor, send: list[int], receive: list[int], group: ProcessGroup | None = None) -> Tensor:
    """Send the first ``send[0]`` rows to rank 0, the next ``send[1]`` to rank 1, ...; return what arrives. Given.

    Args:
        rows: [sum(send), hidden].
        send, receive: rows for and from each rank of the group; what r sends to s is what s receives from r.

    Returns:
        [sum(receive), hidden], in rank order; in a group of one ``rows`` itself.
    """
    return rows if position(group)[1] == 1 else AllToAll.apply(rows, send, receive, group)


# --- The layer --------------------------------------------------------------------------------------------------------


class ExpertParallelMoE(nn.Module):
    """A layer of experts in the place of a feed-forward network; rank r of N holds the r-th E/N of the experts.

    The output is what one process that holds all experts would compute from the global batch, and so are the gradients
    of the tokens. With N losses, one per rank, an expert's gradient is the *sum* over all of them: its tokens came from
    all ranks. Router and shared expert, which every rank holds, have each rank's own part. `average_gradients` makes
    both the gradient of the mean of the losses.

    Expert e is ``experts[str(e)]`` on the rank that has it, whatever N: names are the same in any layout. Weights are
    torch's defaults; `use_experts` gives ones that no layout changes.

    Args:
        config: shape of the layer.
        group: the ranks that hold each expert once.
        batch_group: the ranks whose tokens make up the global batch, for the capacity, the losses and the load; it
            contains ``group``. None: those of ``group``. Where several ranks hold the *same* tokens, as in tensor
            parallelism, only one of them (`expert_layout`).

    Attributes:
        auxiliary: 0-d float32, the two losses of the last forward times their coefficients, see `auxiliary_loss`.
        load: `Load` of the last forward, or None.

    Raises:
        ValueError: ranks that do not divide the experts; a batch group without this layer's ranks.

    Hints:
        1. ``nn.ModuleDict``; `FeedForward` takes any config with ``hidden`` and ``ffn``.
    """

    def __init__(
        self, config: MoEConfig, group: ProcessGroup | None = None, batch_group: ProcessGroup | None = None
    ) -> None:
        super().__init__()
        self.config, self.group, self.batch_group = config, group, batch_group or group
        self.rank, self.ranks = position(group)
        if config.experts % self.ranks:
            raise ValueError(f"{config.experts} experts cannot be shared out equally among {self.ranks} ranks")
        self.members = places_in(self.batch_group, group)  # of the group's ranks in the batch group
        self.auxiliary: Tensor | float = 0.0
        self.load: Load | None = None
        # BEGIN SOLUTION
        own = config.experts // self.ranks
        self.router = TopKRouter(config)
        self.experts = nn.ModuleDict(
            {str(expert): FeedForward(config) for expert in range(self.rank * own, (self.rank + 1) * own)}
        )
        self.shared = FeedForward(config) if config.shared else None
        # END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        """Args: x [..., hidden], this rank's tokens; any number of them, also 0. Returns the same shape.

        In order: route; tell all ranks of the batch group how many claims there are (`gather_claims`, k E numbers);
        share the capacity; dispatch; exchange; let the experts answer (`run_experts`); exchange back; combine.

        Raises:
            ValueError: tokens of another width; before any communication.

        Hints:
            1. From what is kept of everybody's claims a rank knows what each rank of its group sends to each expert:
               [N, E]. Its own row says what it sends, its own columns what it gets.
            2. Lists of sizes are for the host: compute them from counts that are on the CPU.
            3. The losses take the whole batch, so their group is the batch group. One whose coefficient is 0 costs
               nothing.
        """
        config = self.config
        if x.shape[-1] != config.hidden:
            raise ValueError(f"tokens must be [..., {config.hidden}], got a tensor of shape {list(x.shape)}")
        # BEGIN SOLUTION
        tokens = x.reshape(-1, config.hidden)
        routing = self.router(tokens)
        claims = gather_claims(routing.experts, config.experts, self.batch_group)
        capacity = config.capacity(int(claims.sum()))
        kept, ahead = share_capacity(claims, capacity)
        own_ahead = ahead[self.members[self.rank]].to(x.device)
        rows, slots, _ = dispatch(tokens, routing.experts, capacity, config.experts, own_ahead)

        pairs = kept[self.members].sum(1).view(self.ranks, self.ranks, -1)  # [from rank, to rank, its experts]
        send, here = pairs[self.rank].sum(-1).tolist(), pairs[:, self.rank]
        receive = here.sum(-1).tolist()
        answers = self.run_experts(exchange(rows, send, receive, self.group), here)
        y = combine(exchange(answers, receive, send, self.group), slots, routing.gates)
        if self.shared is not None:
            y = y + self.shared(tokens)
        self.auxiliary = self.losses_of(routing)
        self.load = Load(claims.sum((0, 1)), kept.sum((0, 1)))
        return y.view(x.shape)
        # END SOLUTION

    def run_experts(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Every row through its expert.

        Every expert runs, if on no row: its gradient is then 0, and not None, which a reduction would trip over; and a
        rank that got no row still has its part in the exchange of backward.

        Args:
            rows: [S, hidden], rank by rank, and of each rank expert by expert.
            counts: [N, E/N] int64 on the CPU, rows from each rank for each of this rank's experts.

        Returns:
            [S, hidden], in the order of ``rows``.

        Example, 2 ranks, 2 experts here, counts [[1, 2], [3, 0]]: rows 0, 3, 4, 5 are for the first, 1 and 2 for the
        second.

        Hints:
            1. ``split`` by all N E/N counts: which of the parts are expert j's?
            2. Then the same backwards: each expert's answers, split by rank, and put together in the old order.
        """
        # BEGIN SOLUTION
        parts = rows.split(counts.flatten().tolist())
        answers = []
        for j, expert in enumerate(self.experts.values()):
            own = parts[j :: len(self.experts)]
            joined = torch.cat(own) if len(own) > 1 else own[0]  # what one rank sent need not be copied
            answers.append(expert(joined).split(counts[:, j].tolist()))
        return torch.cat([part for of_rank in zip(*answers, strict=True) for part in of_rank])
        # END SOLUTION

    def losses_of(self, routing: Routing) -> Tensor:
        """The two losses of the batch group's tokens, times their coefficients, those that are not 0. Given."""
        config, total = self.config, routing.logits.new_zeros(())
        if config.balance_coefficient:
            balance = load_balancing_loss(routing.probabilities, routing.experts, self.batch_group)
            total = total + config.balance_coefficient * balance
        if config.z_coefficient:
            total = total + config.z_coefficient * router_z_loss(routing.logits, self.batch_group)
        return total


def auxiliary_loss(model: nn.Module) -> Tensor | float:
    """Sum of the auxiliary losses of a model's layers, of their last forward; 0.0 without such layers. Given.

    The same on every rank. Each rank adds it to its own loss *as it is*, and `average_gradients` takes the mean.
    """
    return sum((module.auxiliary for module in model.modules() if isinstance(module, ExpertParallelMoE)), 0.0)


def use_experts(
    model: Transformer,
    config: MoEConfig,
    group: ProcessGroup | None = None,
    seed: int = 0,
    batch_group: ProcessGroup | None = None,
) -> Transformer:
    """Put an `ExpertParallelMoE` in the place of every block's feed-forward network, in place.

    Each new parameter is drawn as `shardlab.models.build` draws them: from a generator of its own, seeded by ``seed``
    and its name, in which the expert's global number is. So its value depends neither on the rank that holds it nor on
    the number of ranks; nothing is sent, and the global random state stays as it was.

    Args:
        model: any whose blocks have a ``mlp``; also with its attention already replaced.
        config: its hidden is that of the model.

    Returns:
        The same object, the new layers on the model's device.

    Raises:
        ValueError: another hidden; what `ExpertParallelMoE` refuses. The model is left as it was.

    Hints:
        1. Under ``torch.device("meta")`` a layer has no memory and draws no number; ``to_empty(device=...)`` gives it
           memory.
        2. ``initial_value(model, name, parameter, seed)`` gives the value; the name is that in the whole *model*.
    """
    if config.hidden != model.config.hidden:
        raise ValueError(f"the experts' hidden {config.hidden} is not the model's: {model.config.hidden}")
    # BEGIN SOLUTION
    device = next(model.parameters()).device
    with torch.device("meta"):
        layers = [ExpertParallelMoE(config, group, batch_group) for _ in model.blocks]
    for index, (block, layer) in enumerate(zip(model.blocks, layers, strict=True)):
        block.mlp = layer.to_empty(device=device)
        for name, parameter in layer.named_parameters(prefix=f"blocks.{index}.mlp"):
            parameter.data.copy_(initial_value(model, name, parameter, seed))
    return model
    # END SOLUTION


# --- Which ranks belong together, and whose gradients are whose -------------------------------------------------------


@dataclass(frozen=True)
class ExpertLayout:
    """Ranks that belong together, each as a tuple of groups of ranks. A rank is in one group of each.

    Attributes:
        expert: exchange tokens: hold each expert once.
        batch: have the global batch's tokens, each once.
        replicas: hold the same experts, and meet different tokens.
    """

    expert: tuple[tuple[int, ...], ...]
    batch: tuple[tuple[int, ...], ...]
    replicas: tuple[tuple[int, ...], ...]


def expert_layout(ranks: int, tensor: int = 1, expert: int = 1, split_tokens: bool = False) -> ExpertLayout:
    """Which ranks exchange tokens, where neighbouring ranks are tensor parallel.

    Ranks r = d * tensor + t: ``tensor`` neighbours share attention's matrices, d counts data-parallel replicas.
    Usually all ``tensor`` neighbours have the same tokens. If they exchanged tokens with one another, each token would
    meet its expert ``tensor`` times: the output is still right, and the experts' gradients are ``tensor`` times too
    large. So tokens go to ranks with the same t. Under sequence parallelism the neighbours have split the tokens
    (``split_tokens``); then all ranks are alike, and those that exchange are the nearest.

    Args:
        ranks: in all.
        tensor: ranks of a tensor-parallel group, neighbours.
        expert: ranks that hold each expert once.
        split_tokens: tensor-parallel neighbours have different tokens, in rank order.

    Raises:
        ValueError: ``tensor`` does not divide the ranks, or ``expert`` not those that have different tokens.

    Example, 8 ranks, tensor 2, expert 2: expert groups (0, 2), (4, 6), (1, 3), (5, 7), batch groups (0, 2, 4, 6) and
    (1, 3, 5, 7), replicas (0, 4), (2, 6), (1, 5), (3, 7). With split tokens: expert groups (0, 1), (2, 3), ..., one
    batch group of all, replicas (0, 2, 4, 6) and (1, 3, 5, 7). Groups in this order.
    """
    # BEGIN SOLUTION
    if min(ranks, tensor, expert) < 1 or ranks % tensor:
        raise ValueError(f"{ranks} ranks cannot form tensor-parallel groups of {tensor}")
    batch = [tuple(range(ranks))] if split_tokens else [tuple(range(t, ranks, tensor)) for t in range(tensor)]
    if len(batch[0]) % expert:
        raise ValueError(f"{len(batch[0])} ranks with different tokens cannot form expert groups of {expert}")
    return ExpertLayout(
        expert=tuple(members[i : i + expert] for members in batch for i in range(0, len(members), expert)),
        batch=tuple(batch),
        replicas=tuple(members[i::expert] for members in batch for i in range(expert)),
    )
    # END SOLUTION


class ExpertGroups(NamedTuple):
    """This rank's process groups of an `ExpertLayout`."""

    expert: ProcessGroup
    batch: ProcessGroup
    replicas: ProcessGroup


def make_groups(layout: ExpertLayout) -> ExpertGroups:
    """Process groups for a layout of all ranks; call it on every rank. Given."""

    def own(groups: tuple[tuple[int, ...], ...]) -> ProcessGroup:
        made = [dist.new_group(list(members), timeout=NEW_GROUP_TIMEOUT) for members in groups]
        return next(group for group, members in zip(made, groups, strict=True) if dist.get_rank() in members)

    return ExpertGroups(own(layout.expert), own(layout.batch), own(layout.replicas))


def is_expert(name: str) -> bool:
    """Whether a parameter, by its name in a model, belongs to an expert that only some ranks hold. Given.

    Example: "blocks.0.mlp.experts.5.up.weight" does; the router and the shared expert do not.
    """
    return "experts" in name.split(".")


def average_gradients(model: nn.Module, batch_group: ProcessGroup | None, replicas: ProcessGroup | None) -> None:
    """After backward on every rank: make each gradient that of the *mean* of the batch group's losses, in place.

    A parameter that every rank holds has the gradient of the rank's own loss: sum over the batch group, divide by its
    size. An expert's gradient has the losses of all ranks of its expert group in it already, the exchange brought them:
    sum over those that hold the same expert, and divide by the same size. Not by the number of replicas: that would
    leave it as many times too large as there are ranks in an expert group.

    Args:
        model: every parameter that requires a gradient has one.
        batch_group: the ranks whose losses are averaged.
        replicas: those among them that hold this rank's experts, from `make_groups`; None: this one alone.

    Example, 4 ranks in expert groups of 2, each rank's loss has gradient 1 for expert 0: after backward expert 0 and
    its replica have 2 each; summed 4, divided by 4: 1.

    Hints:
        1. `add_up`, once for each kind of parameter; `is_expert`.
    """
    # BEGIN SOLUTION
    named = [(name, each.grad) for name, each in model.named_parameters() if each.grad is not None]
    add_up([gradient for name, gradient in named if not is_expert(name)], batch_group)
    if replicas is not None:
        add_up([gradient for name, gradient in named if is_expert(name)], replicas)
    for _, gradient in named:
        gradient /= position(batch_group)[1]
    # END SOLUTION


# --- Given ------------------------------------------------------------------------------------------------------------


def position(group: ProcessGroup | None) -> tuple[int, int]:
    """This rank's number in the group, and the number of ranks in it; (0, 1) where no process group was ever made.

    Raises:
        ValueError: this rank is not in the group.
    """
    if group is None and not dist.is_initialized():
        return 0, 1
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise ValueError(f"rank {dist.get_rank()} is not in this group: only its members may work in it")
    return rank, size


def places_in(batch_group: ProcessGroup | None, group: ProcessGroup | None) -> list[int]:
    """Where the ranks of ``group`` stand in ``batch_group``.

    Raises:
        ValueError: not all of them are in it.
    """
    if batch_group is group:
        return list(range(position(group)[1]))
    members, batch = (dist.get_process_group_ranks(each or dist.group.WORLD) for each in (group, batch_group))
    if not set(members) <= set(batch):
        raise ValueError(f"ranks {members} exchange tokens, but the batch group has only ranks {batch}")
    return [batch.index(member) for member in members]


def add_up(tensors: list[Tensor], group: ProcessGroup | None) -> None:
    """Put the sum over the ranks of the group into each tensor: one all-reduce, of one flat buffer."""
    if not tensors or position(group)[1] == 1:
        return
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat, group=group)
    for tensor, total in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(total.view_as(tensor))


def gather_claims(assignment: Tensor, experts: int, group: ProcessGroup | None = None) -> Tensor:
    """How many c-th choices of every rank are for each expert: [N, k, E] int64, on the CPU, where sizes are needed.

    Args:
        assignment: [T, k] int64, chosen experts, of this rank.
        experts: E.
        group: the batch group.
    """
    k, size = assignment.shape[1], position(group)[1]
    choice = torch.arange(k, device=assignment.device) * experts
    own = torch.bincount((assignment + choice).flatten(), minlength=k * experts)
    if size == 1:
        return own.view(1, k, experts).cpu()
    everyone = own.new_empty(size, k, experts)
    all_gather_single(everyone.view(-1), own, group)
    return everyone.cpu()
