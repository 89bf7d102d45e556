"""Lesson 3.5: several dimensions at once, and which of them where.

Data, tensor, pipeline, context and expert parallelism each cut something else: the batch, the matrices, the layers, the
sequence, the experts. So they multiply: 2 x 2 x 2 of them make 8 ranks, each with coordinates in a mesh, and each a
member of one group per dimension. Two questions decide everything. Who shares what with whom, and so must add up which
gradient, and count which number how often? And which dimension gets the fast links? Llama 3 405B was trained on 16,384
GPUs with tp 8, pp 16, dp 128 (Grattafiori et al. 2024, table 4). Here you build a trainer for any such layout, out of
the lessons before, and a search that says which can be used, how good they are, and why not the others.

Whatever the layout, the training is the same: one loss, the mean over all valid targets of the batch; one gradient; one
norm. A layout that changes them is wrong, however well it trains.

Work from top to bottom: the layout, its place in the cluster, the trainer, plans and their search, and exports to
frameworks. At the end of the file stands what is given: `LinkedCluster`, `Placement`, `Plan`, `Estimate`, `Rejected`,
`Search`, `stage_parameters`, `Kind`, `Synchronised`, `divisors`, `order_problem` and `command_line`. `HybridTrainer`
uses what you wrote in 2.1, 2.2, 3.1, 3.2, 3.3 and 3.4, planning what you wrote in 1.1.

Sources:
    Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters", arXiv:2104.04473: section 3,
        how tensor, pipeline and data parallelism interact.
    Grattafiori et al. 2024, "The Llama 3 herd of models", arXiv:2407.21783: section 3.3.2, the order TP, CP, PP, DP.
    Liang et al. 2024, "TorchTitan", arXiv:2410.06511.
    Liu et al. 2025, "MoE parallel folding", arXiv:2504.14960: expert parallelism inside the data-parallel ranks.
    Megatron Core, "parallel_state": the order "tp-cp-ep-dp-pp" of ranks.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations, product
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from labs.day1_one_gpu_to_many.scaling_math import (
    RECIPES,
    RECOMPUTE,
    Cluster,
    MemoryBreakdown,
    activation_bytes,
    budget_bytes,
    count_parameters,
    end_bytes,
    hardware_flops,
    in_gib,
    layer_matrices,
    model_state_bytes,
    share,
)
from labs.day2_data_parallel.ddp import DataParallel
from labs.day2_data_parallel.zero import ZeroOptimizer
from labs.day3_model_parallel.context import context_parallel, shard_batch, zigzag_positions
from labs.day3_model_parallel.mixture_of_experts import MoEConfig, is_expert, use_experts
from labs.day3_model_parallel.pipeline import (
    MicroBatch,
    PipelineStage,
    one_forward_one_backward,
    run_schedule,
    transformer_pipeline,
    valid_targets,
)
from labs.day3_model_parallel.tensor_parallel import (
    cuts_of,
    require_divisible,
    shard_transformer,
    vocab_parallel_cross_entropy,
)
from shardlab.models import TransformerConfig, build
from shardlab.ranks import device

DIMENSIONS = ("tp", "cp", "dp", "pp")
"""Innermost first: ranks that are neighbours in tp have neighbouring numbers, and lie on one node."""

ORDERS = tuple(permutations(DIMENSIONS))

GROUPS = ("tp", "cp", "dp", "pp", "data", "ep", "expert_data")
"""Every rank is in one group of each name, see `ParallelLayout.groups`."""

TIMEOUT = datetime.timedelta(seconds=60)  # of a process group: `new_group` would not take over the default group's
EFFICIENCY = 0.5  # our assumption: the share of the peak that matrix products of training reach


# --- The layout -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ParallelLayout:
    """How many ranks each dimension has, and how ranks are numbered.

    Args:
        dp: data parallelism: replicas, each with rows of its own.
        tp: tensor parallelism: ranks that share every matrix.
        pp: pipeline parallelism: stages.
        cp: context parallelism: ranks that share every sequence.
        ep: expert parallelism: ranks that share the experts of a layer. They are some of the dp x cp ranks that have
            the same stage and the same blocks of the matrices, so ep takes no ranks of its own (Liu et al. 2025).
        order: the dimensions, innermost first.

    Raises:
        ValueError: a size that is no integer of 1 or more, ep that does not divide dp * cp, an order that does not name
            each of `DIMENSIONS` once.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    order: tuple[str, ...] = DIMENSIONS

    def __post_init__(self) -> None:
        """Given."""
        for name in (*DIMENSIONS, "ep"):
            size = getattr(self, name)
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise ValueError(f"{name} must be an integer of 1 or more: got {size!r}")
        if self.data % self.ep:
            raise ValueError(f"ep must divide dp * cp, whose ranks share the experts: got ep {self.ep} of {self.data}")
        if sorted(self.order) != sorted(DIMENSIONS):
            raise ValueError(f"order must name each of {', '.join(DIMENSIONS)} once: got {', '.join(self.order)}")

    @property
    def ranks(self) -> int:
        """Number of ranks. Given."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def data(self) -> int:
        """Number of ranks that hold the same parameters and work on other tokens. Given."""
        return self.dp * self.cp

    def __str__(self) -> str:
        """Such as "tp2 pp2 dp2", innermost first; dimensions of 1 left out. Given."""
        sizes = [(name, getattr(self, name)) for name in self.order] + [("ep", self.ep)]
        return " ".join(f"{name}{size}" for name, size in sizes if size > 1) or "one rank"

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank stands along each of `DIMENSIONS`, and along "ep".

        The first dimension of ``order`` counts fastest, as the last digit of a number does. The ep coordinate counts
        the ranks of the rank's "data" group (`groups`), in order: 0 ... ep - 1 are the first ep of them, then the next.

        Raises:
            ValueError: there is no such rank.

        Example, tp 2, cp 2, pp 2, ep 2: rank 6 = 0 + 2 (1 + 2 x 1) is {"tp": 0, "cp": 1, "dp": 0, "pp": 1, "ep": 1}.

        Hints:
            1. ``divmod``, once for each dimension.
            2. A number whose digits are the coordinates along cp and dp, in the order of ``order``: a rank's place in
               its data group.
        """
        # BEGIN SOLUTION
        if not 0 <= rank < self.ranks:
            raise ValueError(f"the layout {self} has ranks 0 ... {self.ranks - 1}: got {rank}")
        found, place, stride = {}, 0, 1
        for name in self.order:
            size = getattr(self, name)
            rank, found[name] = divmod(rank, size)
            if name in ("cp", "dp"):
                place, stride = place + stride * found[name], stride * size
        return {**found, "ep": place % self.ep}
        # END SOLUTION

    def rank_at(self, **coordinates: int) -> int:
        """The rank at these coordinates along `DIMENSIONS`; those not given are 0. The inverse of `coordinates`.

        Raises:
            ValueError: a dimension there is not, or a coordinate outside it.

        Example, tp 2, cp 2, pp 2: ``rank_at(cp=1, pp=1)`` is 6.
        """
        # BEGIN SOLUTION
        for name, place in coordinates.items():
            if name not in DIMENSIONS or not 0 <= place < getattr(self, name):
                raise ValueError(f"the layout {self} has no place {place!r} along {name}")
        rank, stride = 0, 1
        for name in self.order:
            rank += stride * coordinates.get(name, 0)
            stride *= getattr(self, name)
        return rank
        # END SOLUTION

    def groups(self, name: str) -> list[list[int]]:
        """All groups of one of `GROUPS`: every rank is in exactly one.

        - "tp", "cp", "dp", "pp": ranks that differ in this coordinate alone.
        - "data": ranks that differ in cp and dp alone. They hold the same dense parameters and see other tokens.
        - "ep": the data group, cut into runs of ep ranks: together they hold all experts of a layer.
        - "expert_data": the ranks of a data group with the same ep coordinate. They hold the same experts.

        Returns:
            Lists of ranks in ascending order, in ascending order of their first rank.

        Raises:
            ValueError: another name.

        Example, tp 2, dp 4, ep 2: "tp" has [0, 1], [2, 3], ...; "data" and "dp" [0, 2, 4, 6], [1, 3, 5, 7]; "ep"
        [0, 2], [1, 3], [4, 6], [5, 7]; "expert_data" [0, 4], [1, 5], [2, 6], [3, 7].

        Hints:
            1. With ``torch.arange(ranks)`` in the shape of the mesh, outermost dimension first, ``permute`` brings the
               dimensions along which a group extends to the end.
            2. Or: put each rank into a list, by what it has in common with the others of its group.
        """
        if name not in GROUPS:
            raise ValueError(f"groups are named {', '.join(GROUPS)}: got {name!r}")
        # BEGIN SOLUTION
        along = (name,) if name in DIMENSIONS else ("cp", "dp")
        outermost_first = self.order[::-1]
        mesh = torch.arange(self.ranks).view([getattr(self, each) for each in outermost_first])
        inside = [axis for axis, each in enumerate(outermost_first) if each in along]
        outside = [axis for axis in range(mesh.dim()) if axis not in inside]
        lines = mesh.permute(*outside, *inside).flatten(len(outside)).flatten(0, -2)
        if name == "ep":
            lines = lines.reshape(-1, self.ep)
        elif name == "expert_data":
            lines = lines.unflatten(1, (-1, self.ep)).transpose(1, 2).flatten(0, 1)
        return sorted(lines.tolist())
        # END SOLUTION

    def make_groups(self, timeout: datetime.timedelta = TIMEOUT) -> dict[str, ProcessGroup]:
        """This rank's process group of each of `GROUPS`. Called on every rank; also a group of one is a group, because
        ``group=None`` would mean all ranks. Names whose groups have the same members share one.

        Args:
            timeout: of every group.

        Raises:
            ValueError: the default group has another number of ranks; nothing is made.

        Hints:
            1. `dist.new_group` has to be called by all ranks for every group, also by those outside it, in the same
               order.
            2. A dictionary by members.
        """
        # BEGIN SOLUTION
        if dist.get_world_size() != self.ranks:
            raise ValueError(f"the layout {self} is for {self.ranks} ranks, there are {dist.get_world_size()}")
        rank, own = dist.get_rank(), {}
        made: dict[tuple[int, ...], ProcessGroup] = {}
        # By all ranks, not by its members alone (use_local_synchronization): such groups are named after their members,
        # and one that was destroyed and made again hung on gloo (torch 2.13).
        for name in GROUPS:
            for members in map(tuple, self.groups(name)):
                if members not in made:
                    made[members] = dist.new_group(members, timeout=timeout)
                if rank in members:
                    own[name] = made[members]
        return own
        # END SOLUTION


# --- Which dimension crosses nodes? -----------------------------------------------------------------------------------


def place_on_topology(
    layout: ParallelLayout,
    cluster: LinkedCluster,
    traffic: Mapping[str, float],
    orders: Sequence[tuple[str, ...]] = ORDERS,
) -> Placement:
    """Number the ranks so that the traffic that matters stays inside nodes: the cheapest order of the dimensions.

    Ranks 0 ... G - 1 are on the first node of G GPUs, the next G on the second, and so on. A group sends at the speed
    of its slowest link: ``cluster.inside`` if all groups of that name lie within a node each, ``cluster.between`` if
    any of them does not. The cost is the sum over the groups of bytes by bandwidth. Among equal costs the first one in
    ``orders`` wins.

    Args:
        layout: for all GPUs of the cluster.
        traffic: for some of `GROUPS`, bytes that a rank sends in it per step.
        orders: of `DIMENSIONS`, to choose from; all there are, the usual one first.

    Returns:
        The layout with that order, how many nodes the groups span (the one that spans most), and the seconds of each.

    Raises:
        ValueError: the cluster has another number of GPUs.

    Example, tp 8, dp 2 on 2 nodes of 8, 100 GB in tp, 1 GB in data; 450 and 50 GB/s: tp inside the nodes costs 100/450
    + 1/50 = 0.24 s. With dp innermost tp would cross: 100/50 + 1/450 = 2.00 s.

    Hints:
        1. ``dataclasses.replace(layout, order=...)``; ``min`` takes the first of equals.
        2. Dimensions of size 1 make no difference: leave out orders that differ in nothing else, or you wait for it.
    """
    # BEGIN SOLUTION
    if layout.ranks != cluster.gpus:
        raise ValueError(f"the layout {layout} is for {layout.ranks} GPUs, the cluster has {cluster.gpus}")
    different: dict[tuple[str, ...], tuple[str, ...]] = {}
    for order in orders:
        different.setdefault(tuple(name for name in order if getattr(layout, name) > 1), order)
    placements = []
    for order in different.values():
        placed = replace(layout, order=order)
        nodes = {
            name: max(len({rank // cluster.gpus_per_node for rank in group}) for group in placed.groups(name))
            for name in traffic
        }
        bandwidth = {name: cluster.inside if spanned == 1 else cluster.between for name, spanned in nodes.items()}
        placements.append(Placement(placed, nodes, {name: traffic[name] / bandwidth[name] for name in traffic}))
    return min(placements, key=lambda placement: placement.cost)
    # END SOLUTION


# --- The trainer ------------------------------------------------------------------------------------------------------


class HybridTrainer:
    """Trains a Transformer on any layout, as one process would on the whole batch.

        trainer = HybridTrainer(ParallelLayout(tp=2, pp=2, dp=2), config, micro_batches=4, max_norm=1.0, lr=1e-3)
        loss, norm = trainer.step(inputs, targets)         # the whole batch, the same on every rank

    Every rank builds the whole model, from a seed, and keeps its part. Micro-batches are the pipeline's, and without a
    pipeline they are plain accumulation.

    One rule carries the gradients: 2.1 and 2.2 *average* over the ranks of a data group, while the mean over all tokens
    needs the *sum* of what ranks with different tokens contribute. So the loss of a rank counts as often as the data
    group has ranks. Experts are averaged over fewer ranks, which `settle_gradients` makes up for.

    Args:
        layout: for all ranks of the default group.
        config: of the model; tied or not. Every rank of a data group draws other dropout masks.
        micro_batches: into which the rows of a replica are cut, at least 1.
        zero: 0, plain data parallelism, or 1: optimiser states sharded over the data group. Stages 2 and 3 send
            gradients, and 3 also parameters, again for every micro-batch; with a pipeline nobody wants that.
        experts: put a layer of experts in the place of every feed-forward network. Their load would depend on how the
            batch is cut, so they have to take all tokens (no ``capacity_factor``), and without the two losses (their
            coefficients 0). Ranks of tp hold the same experts and compute the same.
        max_norm: clip the gradient to this global norm; None: don't.
        optimizer_class: updates elementwise, as AdamW does.
        seed: of parameters and dropout.
        timeout: of the process groups.
        defaults: hyperparameters of the optimiser.

    Attributes:
        coordinates: this rank's. groups: its process groups, by name. stage: what it holds, a `PipelineStage`.
        kinds: its parameters, by who else holds them: see `Kind`.

    Raises:
        ValueError: what cannot be cut, another ``zero``, another number of ranks; before any communication.
    """

    def __init__(
        self,
        layout: ParallelLayout,
        config: TransformerConfig,
        *,
        micro_batches: int = 1,
        zero: int = 0,
        experts: MoEConfig | None = None,
        max_norm: float | None = None,
        optimizer_class: type[Optimizer] = torch.optim.AdamW,
        seed: int = 0,
        timeout: datetime.timedelta = TIMEOUT,
        **defaults: Any,
    ) -> None:
        """Given."""
        if zero not in (0, 1):
            raise ValueError(f"zero must be 0 or 1 here: got {zero!r}; see the docstring for what 2 and 3 would cost")
        require_divisible(config, layout.tp)
        if layout.ep > 1 and (experts is None or experts.experts % layout.ep):
            raise ValueError(f"ep {layout.ep} needs a number of experts that it divides: got {experts}")
        if experts and (experts.capacity_factor or experts.balance_coefficient or experts.z_coefficient):
            raise ValueError(f"experts must take all tokens, without losses of their own, here: got {experts}")
        if layout.pp > config.layers + 2:
            raise ValueError(f"{config.layers} blocks, an embedding and a head cannot make {layout.pp} stages")
        self.layout, self.config, self.experts = layout, config, experts
        self.zero, self.max_norm = zero, max_norm
        self.schedule = one_forward_one_backward(layout.pp, micro_batches)
        self.groups = layout.make_groups(timeout)
        self.coordinates = layout.coordinates(dist.get_rank())
        self.stage = self.build_stage(seed)
        self.kinds = self.sort_parameters()
        if zero == 0:
            self.synchronise()
        self.optimizers = [
            ZeroOptimizer(kind.parameters, optimizer_class, stage=1, group=kind.group, **defaults)
            if zero
            else optimizer_class(kind.parameters, **defaults)
            for kind in self.kinds
        ]

    # what a rank holds

    def build_stage(self, seed: int) -> PipelineStage:
        """Build the whole model, let each of the lessons cut its dimension, and keep this rank's stages.

        Hints:
            1. Which lesson replaces modules that another one looks for? What needs the whole model, what only modules?
            2. `transformer_pipeline` takes ``positions``, a function of a number of tokens: those of a rank's part of a
               sequence stand where `zigzag_positions` says, of a sequence cp times as long.
            3. Streams of dropout have to differ where tokens differ, or layers, but not over tp. A seed for each.
        """
        # BEGIN SOLUTION
        layout, place = self.layout, self.coordinates
        model = build(self.config, seed).to(device())
        dropout_seed = seed * layout.ranks + layout.rank_at(cp=place["cp"], dp=place["dp"], pp=place["pp"])
        shard_transformer(model, self.groups["tp"], dropout_seed)
        if self.experts:
            use_experts(model, self.experts, self.groups["ep"], seed)
        positions = None
        if layout.cp > 1:
            context_parallel(model, self.groups["cp"])

            def positions(tokens: int) -> Tensor:
                return zigzag_positions(tokens * layout.cp, place["cp"], layout.cp)

        return transformer_pipeline(model, self.schedule, self.groups["pp"], positions)
        # END SOLUTION

    def sort_parameters(self) -> list[Kind]:
        """This rank's parameters by who else holds the same: one `Kind` for each number of copies and each group.

        ``copies`` is the number of ranks, of all, that hold the same elements of a parameter:

        - over tp: all, unless the parameter is cut; of one that is cut, the `Cut.replicas` (key and value heads);
        - over the data group: all; of an expert, those of the "expert_data" group, which is its group;
        - over pp: 1, but 2 for a tied weight if first and last stage lie on different ranks.

        Returns:
            Kinds in the order of their first parameter, which on all ranks of a data group is the same.

        Example, tp 2, dp 4, untied: a norm has 8 copies, a column-parallel weight 4.

        Hints:
            1. `cuts_of` and `is_expert` go by name; ``stage.get_parameter``. ``stage.named_parameters()`` yields a tied
               one once.
            2. Where a tied weight is on the ends of a pipeline, ``stage.tied`` has it.
        """
        # BEGIN SOLUTION
        layout = self.layout
        cuts = {self.stage.get_parameter(name): cut for name, cut in cuts_of(self.stage).items()}
        kinds: dict[tuple[int, str], Kind] = {}
        for name, parameter in self.stage.named_parameters():
            group, holders = ("expert_data", layout.data // layout.ep) if is_expert(name) else ("data", layout.data)
            copies = holders * (cuts[parameter].replicas if parameter in cuts else layout.tp)
            if layout.pp > 1 and any(parameter is tied for tied in self.stage.tied):
                copies *= 2
            kind = kinds.setdefault((copies, group), Kind([], self.groups[group], copies))
            kind.parameters.append(parameter)
        return list(kinds.values())
        # END SOLUTION

    def synchronise(self) -> None:
        """Let 2.1's `DataParallel` average the gradients during the last backward of a step. Given.

        One for each group; it takes a module, and a list of parameters is one. `run_schedule` keeps every backward but
        the last inside ``no_sync``.
        """
        by_group: dict[ProcessGroup, list[nn.Parameter]] = {}
        for kind in self.kinds:
            by_group.setdefault(kind.group, []).extend(kind.parameters)
        replicas = [
            DataParallel(nn.ParameterList(parameters), group=group)
            for group, parameters in by_group.items()
            if dist.get_world_size(group) > 1
        ]
        for number, module in self.stage.chunks.items():
            self.stage.chunks[number] = Synchronised(module, replicas)

    # a step

    def local_micro_batches(self, inputs: Tensor, targets: Tensor) -> list[MicroBatch]:
        """This rank's micro-batches of the whole batch: its replica's rows, and of each sequence its cp part.

        A micro-batch's loss is the mean over its own valid targets. Its weight is such that the average over the data
        group, summed over the micro-batches, is the mean over all valid targets of the whole batch.

        Args:
            inputs: [B, T] int64, the same on every rank. Replicas take rows as ``tensor_split`` cuts them.
            targets: [B, T] int64, what is to be predicted at each position, -100 where nothing is.

        Raises:
            ValueError: shapes that differ, a replica with fewer rows than micro-batches, no valid target at all.

        Example, dp 2, no micro-batches, replicas with 5 and 1 valid targets: weights 2 * 5/6 and 2 * 1/6. With mean
        losses 1 and 2 the average of 10/6 and 4/6 is 7/6; the mean of means would be 1.5.

        Hints:
            1. Everybody has the whole batch: who knows the number of all valid targets?
            2. `shard_batch` pads and cuts; the tokens of a cp group are one sequence. Some part may have no target at
               all: its weight is 0.
        """
        # BEGIN SOLUTION
        layout, place = self.layout, self.coordinates
        if inputs.dim() != 2 or inputs.shape != targets.shape or len(inputs) // layout.dp < self.schedule.micro_batches:
            raise ValueError(
                f"need inputs and targets [rows, tokens] with {self.schedule.micro_batches} rows or more for each of "
                f"{layout.dp} replicas: got {list(inputs.shape)} and {list(targets.shape)}"
            )
        total = valid_targets(targets)
        if total == 0:
            raise ValueError("the batch has no valid target: its mean loss is 0/0")
        inputs, targets = (each.tensor_split(layout.dp)[place["dp"]] for each in (inputs, targets))
        if layout.cp > 1:
            inputs, _, targets = shard_batch(inputs, self.groups["cp"], targets)
        pieces = (each.tensor_split(self.schedule.micro_batches) for each in (inputs, targets))
        return [MicroBatch(x, y, layout.data * valid_targets(y) / total) for x, y in zip(*pieces, strict=True)]
        # END SOLUTION

    def settle_gradients(self) -> None:
        """After backward: make the gradients of experts, whole or still to be sharded, those of the whole batch.

        An expert's tokens come from all ranks of its ep group, so its gradient has their contributions already, and the
        average is over ep times fewer ranks: it is ep times too large.

        Hints:
            1. `Kind.group` tells experts. In ZeRO-1 ``.grad`` is this rank's own until the optimiser steps.
        """
        # BEGIN SOLUTION
        for kind in self.kinds:
            if kind.group is self.groups["expert_data"]:
                for parameter in kind.parameters:
                    parameter.grad /= self.layout.ep
        # END SOLUTION

    def gradient_norm(self) -> Tensor:
        """The norm of the whole model's gradient, each parameter once: 0-d float64, the same on every rank.

        The squares of all ranks are summed over *all* ranks, one number in one all-reduce, and what several ranks hold
        must not count several times: divide each kind's by its `Kind.copies`.

        Example, 2 ranks of tp: both have the gradient [3] of a norm, and one half each, [4] and [12], of a matrix. The
        squares are 9/2 + 16 and 9/2 + 144, and the norm 13. Counted on both ranks: 13.3. One rank's own: 5, or 12.4.

        Hints:
            1. `ZeroOptimizer.clip_grad_norm` returns the norm over its group, where only shards are left; with an
               infinite ``max_norm`` it clips nothing. Every rank of the group gets the same number.
            2. A parameter that was not used has no gradient.
        """
        # BEGIN SOLUTION
        total = torch.zeros((), dtype=torch.float64, device=device())
        for kind, optimizer in zip(self.kinds, self.optimizers, strict=True):
            if self.zero:
                norm = optimizer.clip_grad_norm(math.inf)
            else:
                gradients = [parameter.grad for parameter in kind.parameters if parameter.grad is not None]
                norm = nn.utils.get_total_norm(gradients)
            total += norm.double().square() / kind.copies
        dist.all_reduce(total)
        return total.sqrt()
        # END SOLUTION

    def scale_gradients(self, factor: Tensor) -> None:
        """Multiply every gradient, whole or sharded, by ``factor``, 0-d. Given."""
        for optimizer, kind in zip(self.optimizers, self.kinds, strict=True):
            if self.zero:
                gradients = [bucket.gradient for bucket in optimizer.buckets]
            else:
                gradients = [parameter.grad for parameter in kind.parameters]
            for gradient in gradients:
                if gradient is not None:
                    gradient.mul_(factor)

    def step(self, inputs: Tensor, targets: Tensor) -> tuple[float, float]:
        """One step on the whole batch: forward and backward, clip, update.

        Args:
            inputs, targets: see `local_micro_batches`.

        Returns:
            The batch's loss (mean over all valid targets, in nats) and the gradient's norm before clipping, the same on
            every rank.

        Raises:
            ValueError: see `local_micro_batches`; before any communication.

        Hints:
            1. `run_schedule` returns this rank's part of the loss on the ranks of the last stage, weighted as you chose
               the weights. To sum it up over all ranks: who has none, and which ranks have the same?
            2. torch clips by ``max_norm / (norm + 1e-6)``, at most 1.
        """
        batch = self.local_micro_batches(inputs, targets)
        loss_fn = partial(vocab_parallel_cross_entropy, group=self.groups["tp"])
        # BEGIN SOLUTION
        part = run_schedule(self.stage, self.schedule, batch, loss_fn)
        self.settle_gradients()
        norm = self.gradient_norm()
        if self.max_norm is not None:
            self.scale_gradients((self.max_norm / (norm + 1e-6)).clamp(max=1))
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        loss = torch.zeros((), dtype=torch.float64, device=device())
        if part is not None:
            loss += part / (self.layout.data * self.layout.tp)
        dist.all_reduce(loss)
        return loss.item(), norm.item()
        # END SOLUTION

    def close(self) -> None:
        """Give the process groups back. Given."""
        for group in set(self.groups.values()):
            dist.destroy_process_group(group)


# --- Plans: memory, traffic, time -------------------------------------------------------------------------------------


def stage_memory(plan: Plan, stage: int) -> MemoryBreakdown:
    """Bytes on a rank that holds stage ``stage`` of a plan, in mixed precision, with sequence parallelism over tp.

    - States: those of `stage_parameters`, of which tp ranks have a share each. ZeRO shares over the data group, because
      cp ranks hold the same parameters, too.
    - Activations: those of the stage's layers (1/p of all, rounded up) for one sequence, as many times as 1F1B lets the
      stage hold micro-batches: p - stage, or all there are. With full recomputation also *one* layer as it is computed
      again ("selective"), as in 1.1's `memory_per_gpu`. In the last stage also `end_bytes`. cp ranks have a share each
      of all of it.

    Args:
        stage: 0 <= stage < p.

    Example, Llama 3 70B, tp 8, pp 4, dp 2, batch 512, ZeRO-1, selective recomputation: 46.5 GiB on stage 0, of which
    25.3 GiB are activations; 28.0 and 6.8 GiB on stage 3.

    Hints:
        1. `activation_bytes` is of all layers; `share` rounds up; `dataclasses.replace` gives a `MemoryBreakdown` its
           activations.
    """
    # BEGIN SOLUTION
    config, layout = plan.config, plan.layout
    parameters = share(stage_parameters(config, layout.pp, stage), layout.tp)
    states = model_state_bytes(parameters, RECIPES["mixed"], plan.zero, layout.data)
    in_a_layer = {
        recompute: share(activation_bytes(config, 1, recompute, layout.tp, sequence_parallel=True), config.layers)
        for recompute in RECOMPUTE
    }
    in_flight = min(layout.pp - stage, plan.micro_batches)
    activations = in_flight * share(config.layers, layout.pp) * in_a_layer[plan.recompute]
    if plan.recompute == "full":
        activations += in_a_layer["selective"]
    if stage == layout.pp - 1:
        activations += end_bytes(config, 1, layout.tp)
    return replace(states, activations=share(activations, layout.cp))
    # END SOLUTION


def plan_memory(plan: Plan) -> MemoryBreakdown:
    """`stage_memory` of the fullest rank. It is the first stage, with most in flight, or the last, with the logits.
    Given."""
    return max((stage_memory(plan, stage) for stage in (0, plan.layout.pp - 1)), key=lambda memory: memory.total)


def plan_traffic(plan: Plan) -> dict[str, float]:
    """Bytes that a rank in the middle of the pipeline sends per step in each of its groups, all values in 16 bits.

    With m micro-batches of one sequence, A bytes of one activation [1, s / cp, h], L layers in a stage (rounded up):

    - "tp": per layer and micro-batch 2 all-reduces of A in forward and 2 in backward, with full recomputation 2 more.
      By the ring each sends 2 (tp - 1) / tp A. (Sequence parallelism makes two calls of each, and as many bytes.)
    - "cp": per layer and micro-batch, K and V of the rank's tokens, kv_heads * head_dim / tp wide each, go round the
      ring: cp - 1 hops in forward, in full recomputation again; in backward they go round once more, and their
      gradients with them, which also have to get home: (cp - 1) + cp hops.
    - "pp": per micro-batch A forward and A back, of which tp ranks send a share each.
    - "data": W bytes of a stage's parameters (stage 0's, a tp share). ZeRO-0 all-reduces gradients, ZeRO-1 reduces and
      gathers: 2 journeys. ZeRO-2 reduces once per micro-batch: m + 1. ZeRO-3 gathers twice and reduces once per
      micro-batch: 3 m. A journey sends (n - 1) / n W over n ranks.

    Returns:
        For "tp", "cp", "pp" and "data"; 0 where the group has one rank.

    Example: hidden 8, 4 heads, 2 kv_heads, 4 layers, sequence 16; tp 2, batch 3, selective: A is 256 bytes, "tp" 3 x 4
    x 4 x 256 = 12,288 bytes.
    """
    # BEGIN SOLUTION
    config, layout, m = plan.config, plan.layout, plan.micro_batches
    layers, again = share(config.layers, layout.pp), plan.recompute == "full"
    tokens = config.sequence / layout.cp
    activation = 2 * tokens * config.hidden
    key_and_value = 2 * 2 * tokens * config.kv_heads * config.head_dim / layout.tp
    hops = (layout.cp - 1) * (1 + again) + (layout.cp - 1) + layout.cp
    weights = 2 * share(stage_parameters(config, layout.pp, 0), layout.tp)
    journeys = {0: 2, 1: 2, 2: m + 1, 3: 3 * m}[plan.zero]
    return {
        "tp": m * layers * (4 + 2 * again) * 2 * (layout.tp - 1) / layout.tp * activation,
        "cp": m * layers * hops * key_and_value if layout.cp > 1 else 0,
        "pp": 2 * m * activation / layout.tp if layout.pp > 1 else 0,
        "data": journeys * (layout.data - 1) / layout.data * weights,
    }
    # END SOLUTION


def plan_seconds(plan: Plan, cluster: LinkedCluster, traffic_seconds: Mapping[str, float]) -> float:
    """How long a step takes, roughly: good enough to rank plans.

    - Computing: `hardware_flops` of the batch, on all GPUs at `EFFICIENCY` of their peak.
    - In the way of every micro-batch: the messages of tp and pp; and of the ring what attention does not hide, half of
      whose FLOPs a causal ring computes: 6 layers hidden sequence per token, of all those of the batch.
    - The pipeline's bubble: m micro-batches take the time of m + p - 1.
    - Gradients travel during backward, two thirds of the computing; what is longer than that adds up.

    Args:
        traffic_seconds: for "tp", "cp", "pp" and "data", how long a step's messages take: `Placement.seconds`.

    Example: computing 6 s, 1 s of it in a causal ring, tp 1, pp 0.5, cp 3, data 5; m = 4, p = 2: (6 + 1.5 + 2) x 5/4
    + 1 = 12.9 s.
    """
    # BEGIN SOLUTION
    config, layout = plan.config, plan.layout
    tokens, speed = plan.batch * config.sequence, layout.ranks * cluster.gpu.peak_flops * EFFICIENCY
    computing = hardware_flops(config, tokens, plan.recompute) / speed
    attention = 6 * config.layers * config.hidden * config.sequence * tokens / speed
    busy = computing + traffic_seconds["tp"] + traffic_seconds["pp"] + max(0, traffic_seconds["cp"] - attention)
    filled = (plan.micro_batches + layout.pp - 1) / plan.micro_batches
    return busy * filled + max(0, traffic_seconds["data"] - computing * 2 / 3)
    # END SOLUTION


def why_not(plan: Plan, cluster: LinkedCluster) -> str:
    """Why this plan cannot be used on this cluster, in a sentence; "" if it can. The first of these that holds:

    - tp ranks do not divide heads, ffn or vocab, or kv_heads cannot be shared (`require_divisible`);
    - tp is larger than a node: every layer would wait for the network;
    - there are more stages than layers;
    - 2 cp does not divide the sequence (the zig-zag);
    - dp does not divide the batch;
    - fewer micro-batches than stages: more than half of the pipeline would be bubble;
    - ZeRO-2 or 3 in a pipeline: gradients and parameters would travel for every micro-batch;
    - the fullest rank needs more than `budget_bytes` of its GPU. The sentence has both numbers, by `in_gib`.

    Hints:
        1. `require_divisible` says why itself: ``str(error)``.
    """
    # BEGIN SOLUTION
    config, layout = plan.config, plan.layout
    try:
        require_divisible(config, layout.tp)
    except ValueError as error:
        return str(error)
    if layout.tp > cluster.gpus_per_node:
        return f"tp {layout.tp} would leave the node of {cluster.gpus_per_node}: every layer would wait for the network"
    if layout.pp > config.layers:
        return f"{config.layers} layers cannot make {layout.pp} stages"
    if config.sequence % (2 * layout.cp):
        return f"a sequence of {config.sequence} cannot be cut into 2 x {layout.cp} parts for cp"
    if plan.batch % layout.dp:
        return f"{plan.batch} sequences cannot be shared out equally among {layout.dp} replicas"
    if plan.micro_batches < layout.pp:
        return f"{plan.micro_batches} micro-batches in {layout.pp} stages: most of the pipeline would wait"
    if plan.zero > 1 and layout.pp > 1:
        return (
            f"ZeRO-{plan.zero} in a pipeline would send gradients again for each of {plan.micro_batches} micro-batches"
        )
    needed, there = plan_memory(plan), budget_bytes(cluster.gpu)
    if needed.total > there:
        return (
            f"needs {in_gib(needed.total)} per GPU ({in_gib(needed.activations)} of it activations), where "
            f"{in_gib(there)} can be used"
        )
    return ""
    # END SOLUTION


def search(config: TransformerConfig, cluster: LinkedCluster, batch: int = 512) -> Search:
    """All ways to train a dense model on all GPUs of a cluster: those that fit, fastest first, and why not the others.

    Tried are all tp, pp, cp and dp whose product is the number of GPUs, ZeRO stages 0 to 3, and the recomputations
    "selective" (what attention kernels of today do) and "full"; ranks in the order of `DIMENSIONS`, which every
    framework knows.

    Args:
        batch: sequences per step.

    Returns:
        `Estimate` of every plan that `why_not` has nothing against, placed by `place_on_topology`; by `plan_seconds`,
        among equals the one that cuts the model less (tp pp cp), then the one that needs less memory. `Rejected` for
        every other: one for each layout and reason.

    Raises:
        ValueError: ``batch`` < 1.

    Hints:
        1. `divisors`, `itertools.product`. What is left for dp?
        2. One sentence often holds for all ZeRO stages of a layout: a dictionary by (layout, reason) keeps the first.
    """
    if batch < 1:
        raise ValueError(f"batch is a number of sequences, at least 1: got {batch}")
    # BEGIN SOLUTION
    fitting: list[Estimate] = []
    rejected: dict[tuple[ParallelLayout, str], Rejected] = {}
    for tp, pp, cp in product(divisors(cluster.gpus), repeat=3):
        if cluster.gpus % (tp * pp * cp):
            continue
        layout = ParallelLayout(dp=cluster.gpus // (tp * pp * cp), tp=tp, pp=pp, cp=cp)
        for zero, recompute in product(range(4), ("selective", "full")):
            plan = Plan(config, layout, batch, zero, recompute)
            if reason := why_not(plan, cluster):
                rejected.setdefault((layout, reason), Rejected(plan, reason))
                continue
            placement = place_on_topology(layout, cluster, plan_traffic(plan), [DIMENSIONS])
            seconds = plan_seconds(plan, cluster, placement.seconds)
            fitting.append(Estimate(plan, plan_memory(plan), placement, seconds))
    fitting.sort(key=lambda each: (each.seconds, each.plan.layout.ranks // each.plan.layout.dp, each.memory.total))
    return Search(fitting, list(rejected.values()))
    # END SOLUTION


# --- Exports ----------------------------------------------------------------------------------------------------------


def torchtitan_config(plan: Plan) -> dict[str, dict[str, Any]]:
    """The plan for TorchTitan 0.3: fields of its dataclasses ``TrainingConfig`` and ``ParallelismConfig``.

    - ``training``: ``seq_len``; ``global_batch_size``; ``local_batch_size``, what a replica takes at once: all its
      micro-batches in a pipeline, which cuts them itself, else one sequence, and TorchTitan accumulates.
    - ``parallelism``: ``tensor_parallel_degree``, ``pipeline_parallel_degree``, ``context_parallel_degree``,
      ``expert_parallel_degree``; ``pipeline_parallel_schedule`` "1F1B"; ``pipeline_parallel_microbatch_size`` 1;
      ``data_parallel_replicate_degree`` dp for ZeRO-0, with ``data_parallel_shard_degree`` 1; for ZeRO-1 to 3 the
      other way round. ``fsdp_reshard_after_forward`` "always" for ZeRO-3, else "never". (It has no ZeRO-1: sharding
      without resharding is the nearest, and holds no more.)
    - ``activation_checkpoint``: ``policy``, the name of the class in ``torchtitan.distributed.activation_checkpoint``:
      "FullAC" for full recomputation, else None: SDPA keeps no scores anyway.

    Ranks are numbered tp, cp, dp, pp there, innermost first.

    Raises:
        ValueError: another order of ranks (`order_problem`); experts without sharding, which its mesh cannot do.

    Source: torchtitan 0.3.0, torchtitan/config/configs.py. `command_line` makes options of it.
    """
    # BEGIN SOLUTION
    layout = plan.layout
    if problem := order_problem(layout, [DIMENSIONS]):
        raise ValueError(f"TorchTitan {problem}")
    if layout.ep > 1 and plan.zero == 0:
        raise ValueError(f"TorchTitan shares experts among ranks that shard: ep {layout.ep} needs ZeRO-1 or more")
    sharded = plan.zero > 0
    return {
        "training": {
            "seq_len": plan.config.sequence,
            "global_batch_size": plan.batch,
            "local_batch_size": plan.micro_batches if layout.pp > 1 else 1,
        },
        "parallelism": {
            "data_parallel_replicate_degree": 1 if sharded else layout.dp,
            "data_parallel_shard_degree": layout.dp if sharded else 1,
            "fsdp_reshard_after_forward": "always" if plan.zero == 3 else "never",
            "tensor_parallel_degree": layout.tp,
            "pipeline_parallel_degree": layout.pp,
            "pipeline_parallel_schedule": "1F1B",
            "pipeline_parallel_microbatch_size": 1,
            "context_parallel_degree": layout.cp,
            "expert_parallel_degree": layout.ep,
        },
        "activation_checkpoint": {"policy": "FullAC" if plan.recompute == "full" else None},
    }
    # END SOLUTION


def megatron_arguments(plan: Plan) -> list[str]:
    """The plan as arguments of Megatron-LM's ``pretrain_gpt.py``: model, batch, layout, precision.

    - Layout: ``--tensor-model-parallel-size``, ``--pipeline-model-parallel-size``, ``--context-parallel-size``,
      ``--expert-model-parallel-size``; ``--sequence-parallel`` where tp > 1; ``--use-tp-pp-dp-mapping`` for the order
      tp, cp, pp, dp.
    - Batch: ``--micro-batch-size 1``, ``--global-batch-size``, ``--seq-length``, ``--max-position-embeddings``;
      ``--calculate-per-token-loss``, or else every micro-batch counts the same, however few targets it has.
    - Model: ``--num-layers``, ``--hidden-size``, ``--ffn-hidden-size``, ``--num-attention-heads``,
      ``--group-query-attention`` with ``--num-query-groups``, ``--swiglu``, ``--normalization RMSNorm``,
      ``--position-embedding-type rope``, ``--rotary-base`` (an integer), ``--disable-bias-linear``;
      ``--untie-embeddings-and-output-weights`` for an untied head. ``--bf16``.
    - ZeRO-1: ``--use-distributed-optimizer``. ZeRO-2 and 3: also ``--use-megatron-fsdp`` and
      ``--data-parallel-sharding-strategy``, ``optim_grads`` or ``optim_grads_params``.
    - Recomputation: ``--recompute-granularity`` selective or full; full needs ``--recompute-method uniform`` and
      ``--recompute-num-layers 1``.

    Raises:
        ValueError: an order of ranks that Megatron-LM does not know.

    Returns:
        Words for a command line, all of them strings.

    Source: Megatron-LM, megatron/training/arguments.py; Megatron Core 0.16 has most as dataclass fields.
    """
    # BEGIN SOLUTION
    config, layout = plan.config, plan.layout
    if problem := order_problem(layout, [DIMENSIONS, ("tp", "cp", "pp", "dp")]):
        raise ValueError(f"Megatron-LM {problem}")
    values = {
        "tensor-model-parallel-size": layout.tp,
        "pipeline-model-parallel-size": layout.pp,
        "context-parallel-size": layout.cp,
        "expert-model-parallel-size": layout.ep,
        "micro-batch-size": 1,
        "global-batch-size": plan.batch,
        "seq-length": config.sequence,
        "max-position-embeddings": config.sequence,
        "num-layers": config.layers,
        "hidden-size": config.hidden,
        "ffn-hidden-size": config.ffn,
        "num-attention-heads": config.heads,
        "num-query-groups": config.kv_heads,
        "normalization": "RMSNorm",
        "position-embedding-type": "rope",
        "rotary-base": int(config.rope_theta),
        "recompute-granularity": plan.recompute,
    }
    if plan.recompute == "none":
        del values["recompute-granularity"]
    if plan.recompute == "full":
        values |= {"recompute-method": "uniform", "recompute-num-layers": 1}
    if plan.zero > 1:
        values["data-parallel-sharding-strategy"] = {2: "optim_grads", 3: "optim_grads_params"}[plan.zero]
    switches = {
        "group-query-attention": True,
        "swiglu": True,
        "disable-bias-linear": True,
        "bf16": True,
        "calculate-per-token-loss": True,
        "sequence-parallel": layout.tp > 1,
        "use-tp-pp-dp-mapping": bool(order_problem(layout, [DIMENSIONS])),
        "untie-embeddings-and-output-weights": not config.tied,
        "use-distributed-optimizer": plan.zero > 0,
        "use-megatron-fsdp": plan.zero > 1,
    }
    words = [word for name, value in values.items() for word in (f"--{name}", str(value))]
    return words + [f"--{name}" for name, on in switches.items() if on]
    # END SOLUTION


def nemo_recipe(plan: Plan, gpus_per_node: int = 8) -> dict[str, Any]:
    """The plan as changes to a pre-training recipe of NeMo 2.0, such as ``llm.llama31_70b.pretrain_recipe()``.

    Keys are paths into the recipe, as the command line takes them:

    - ``trainer.num_nodes``, ``trainer.devices``;
    - ``trainer.strategy.`` with ``tensor_model_parallel_size``, ``pipeline_model_parallel_size``,
      ``virtual_pipeline_model_parallel_size`` (None: recipes interleave), ``context_parallel_size``,
      ``expert_model_parallel_size``, ``sequence_parallel``, ``use_tp_pp_dp_mapping``;
    - ``data.`` with ``seq_length``, ``micro_batch_size``, ``global_batch_size``; ``model.config.seq_length``;
    - ``optim.config.use_distributed_optimizer``: ZeRO-1;
    - ``model.config.recompute_granularity``: None, "selective" or "full"; with full also ``recompute_method`` "uniform"
      and ``recompute_num_layers`` 1.

    Raises:
        ValueError: an order that NeMo does not know; ZeRO-2 and 3, which are no setting of a recipe; GPUs that do not
            fill nodes.

    Source: NeMo 2.0, nemo/collections/llm/recipes/llama31_70b.py; "Parallelisms" in the NeMo Framework user guide.
    """
    # BEGIN SOLUTION
    config, layout = plan.config, plan.layout
    if problem := order_problem(layout, [DIMENSIONS, ("tp", "cp", "pp", "dp")]):
        raise ValueError(f"NeMo {problem}")
    if plan.zero > 1:
        raise ValueError(f"NeMo's recipes have a distributed optimiser, which is ZeRO-1, and no ZeRO-{plan.zero}")
    nodes, devices = divmod(layout.ranks, gpus_per_node) if layout.ranks > gpus_per_node else (1, 0)
    if layout.ranks > gpus_per_node and devices:
        raise ValueError(f"{layout.ranks} GPUs do not fill nodes of {gpus_per_node}")
    full = plan.recompute == "full"
    return {
        "trainer.num_nodes": nodes,
        "trainer.devices": min(gpus_per_node, layout.ranks),
        "trainer.strategy.tensor_model_parallel_size": layout.tp,
        "trainer.strategy.pipeline_model_parallel_size": layout.pp,
        "trainer.strategy.virtual_pipeline_model_parallel_size": None,
        "trainer.strategy.context_parallel_size": layout.cp,
        "trainer.strategy.expert_model_parallel_size": layout.ep,
        "trainer.strategy.sequence_parallel": layout.tp > 1,
        "trainer.strategy.use_tp_pp_dp_mapping": bool(order_problem(layout, [DIMENSIONS])),
        "data.seq_length": config.sequence,
        "data.micro_batch_size": 1,
        "data.global_batch_size": plan.batch,
        "model.config.seq_length": config.sequence,
        "model.config.recompute_granularity": None if plan.recompute == "none" else plan.recompute,
        **({"model.config.recompute_method": "uniform", "model.config.recompute_num_layers": 1} if full else {}),
        "optim.config.use_distributed_optimizer": plan.zero == 1,
    }
    # END SOLUTION


# --- Given ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LinkedCluster(Cluster):
    """A cluster and the speed of its links, bytes/s that one GPU sends: inside a node and between nodes.

    The defaults are an H100 node's, one direction: NVLink 900 GB/s both ways together (NVIDIA's data sheet), and a
    network card of 400 Gbit/s for each GPU.
    """

    inside: float = 450e9
    between: float = 50e9


@dataclass(frozen=True)
class Placement:
    """Where `place_on_topology` put things.

    Attributes:
        layout: with the order of dimensions that was chosen.
        nodes: for each group, how many nodes it spans.
        seconds: for each group, what its messages take per step, if nothing hides them.
    """

    layout: ParallelLayout
    nodes: dict[str, int]
    seconds: dict[str, float]

    @property
    def cost(self) -> float:
        """Seconds of all groups together."""
        return sum(self.seconds.values())

    @property
    def crossing(self) -> list[str]:
        """Groups that span more than one node, and have something to send."""
        return [name for name, nodes in self.nodes.items() if nodes > 1 and self.seconds[name]]


@dataclass(frozen=True)
class Plan:
    """How to train a dense model: micro-batches are of one sequence.

    Args:
        batch: sequences per step, of all replicas together.
        zero: stage, 0 to 3. recompute: one of 1.1's `RECOMPUTE`.
    """

    config: TransformerConfig
    layout: ParallelLayout
    batch: int
    zero: int = 0
    recompute: str = "selective"

    @property
    def micro_batches(self) -> int:
        """Of a replica."""
        return self.batch // self.layout.dp

    def __str__(self) -> str:
        return f"{self.layout}, {f'ZeRO-{self.zero}' if self.zero else 'no ZeRO'}, {self.recompute} recomputation"


@dataclass(frozen=True)
class Estimate:
    """A plan that fits: memory of the fullest rank, where its dimensions lie, seconds per step."""

    plan: Plan
    memory: MemoryBreakdown
    placement: Placement
    seconds: float


class Rejected(NamedTuple):
    """A plan that cannot be used, and why."""

    plan: Plan
    reason: str


class Search(NamedTuple):
    """What `search` found: plans that fit, fastest first, and those that do not."""

    plans: list[Estimate]
    rejected: list[Rejected]


def stage_parameters(config: TransformerConfig, stages: int, stage: int) -> int:
    """Parameters of a stage: its layers, as many as the fullest has; the first stage's embedding; the last norm and the
    head in the last, where a tied head is a copy."""
    if stages == 1:
        return count_parameters(config)
    ends = config.vocab * config.hidden if stage in (0, stages - 1) else 0
    norm = config.hidden if stage == stages - 1 else 0
    return share(config.layers, stages) * (layer_matrices(config) + 2 * config.hidden) + ends + norm


@dataclass
class Kind:
    """Parameters of a rank that the same ranks hold copies of.

    Attributes:
        group: over which their gradients are averaged.
        copies: how many of all ranks hold the same elements as this one.
    """

    parameters: list[nn.Parameter]
    group: ProcessGroup
    copies: int


class Synchronised(nn.Module):
    """A stage's module with the `no_sync` of those who average its gradients."""

    def __init__(self, module: nn.Module, replicas: Sequence[DataParallel]) -> None:
        super().__init__()
        self.module = module
        self._replicas = tuple(replicas)  # in a tuple: parameters must not get a second name

    def forward(self, x: Tensor) -> Tensor:
        """Args and returns: the module's."""
        return self.module(x)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward inside sends nothing."""
        with ExitStack() as stack:
            for replica in self._replicas:
                stack.enter_context(replica.no_sync())
            yield


def divisors(number: int) -> list[int]:
    """``divisors(12) == [1, 2, 3, 4, 6, 12]``."""
    return [each for each in range(1, number + 1) if number % each == 0]


def order_problem(layout: ParallelLayout, orders: Sequence[Sequence[str]]) -> str:
    """Why none of ``orders`` numbers the ranks as the layout does, as the end of a sentence; "" if one of them does.
    Dimensions of size 1 have no place."""

    def significant(order: Sequence[str]) -> list[str]:
        return [name for name in order if getattr(layout, name) > 1]

    if any(significant(order) == significant(layout.order) for order in orders):
        return ""
    known = " or ".join(", ".join(order) for order in orders)
    return f"numbers ranks in the order {known}, innermost first, and not {', '.join(layout.order)}"


def command_line(config: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Sections of settings as options: ``["--parallelism.tensor_parallel_degree", "8", ...]``; None is left out."""
    return [
        word
        for section, settings in config.items()
        for name, value in settings.items()
        if value is not None
        for word in (f"--{section}.{name}", str(value))
    ]
