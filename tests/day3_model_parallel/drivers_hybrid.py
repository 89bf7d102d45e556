"""What runs on each rank in the tests of 3.5, around the learner's layout, trainer and search. Everything gives back
plain data."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from types import ModuleType
from unittest import mock

import torch
import torch.distributed as dist
from checks_hybrid import CONFIG, EXPERT_FFN, EXPERTS, LEARNING_RATE, TOP_K, Layout, numbered, part_of
from torch import Tensor, nn

from shardlab.grade.drivers import error_message
from shardlab.models import TransformerConfig
from shardlab.observe import PeakMemory, Traffic
from shardlab.ranks import device

# --- Layout and topology ----------------------------------------------------------------------------------------------


def coordinates_of(lab: ModuleType, cases: Sequence[tuple[Layout, tuple[str, ...]]]) -> list[list[dict[str, int]]]:
    """Coordinates of every rank of each layout."""
    layouts = [lab.ParallelLayout(**layout, order=order) for layout, order in cases]
    return [[dict(layout.coordinates(rank)) for rank in range(layout.ranks)] for layout in layouts]


def ranks_at(lab: ModuleType, cases: Sequence[tuple[Layout, tuple[str, ...], list[dict[str, int]]]]) -> list[list[int]]:
    """The rank at each of some coordinates in each layout."""
    return [
        [lab.ParallelLayout(**layout, order=order).rank_at(**where) for where in places]
        for layout, order, places in cases
    ]


def groups_of(lab: ModuleType, cases: Sequence[tuple[Layout, tuple[str, ...]]], names: Sequence[str]) -> list[dict]:
    """All groups of each name in each layout."""
    layouts = [lab.ParallelLayout(**layout, order=order) for layout, order in cases]
    return [{name: [list(group) for group in layout.groups(name)] for name in names} for layout in layouts]


def layout_errors(lab: ModuleType, layout: Layout, calls: Sequence[tuple[str, tuple, dict]]) -> list[str]:
    """The message of the ValueError of each method call; "" for none."""
    made = lab.ParallelLayout(**layout)
    return [error_message(lambda: getattr(made, name)(*args, **kwargs)) for name, args, kwargs in calls]  # noqa: B023


def made_groups(lab: ModuleType, layouts: Sequence[Layout], seconds: float) -> list[dict]:
    """Members of each process group, the sum of all ranks over it, and the timeouts new_group was called with."""
    found = []
    for layout in layouts:
        timeouts: list[object] = []
        make = dist.new_group

        def noted(*args: object, timeouts: list[object] = timeouts, make=make, **kwargs: object) -> object:
            timeouts.append(kwargs.get("timeout"))
            return make(*args, **kwargs)

        with mock.patch.object(dist, "new_group", noted):
            made = lab.ParallelLayout(**layout).make_groups(datetime.timedelta(seconds=seconds))
        sums = {}
        for name, group in made.items():
            total = torch.tensor(float(dist.get_rank()), device=device())
            dist.all_reduce(total, group=group)
            sums[name] = total.item()
        members = {name: dist.get_process_group_ranks(group) for name, group in made.items()}
        kept = all(each == datetime.timedelta(seconds=seconds) for each in timeouts)
        found.append({"members": members, "sums": sums, "timeouts": kept})
    return found


def wrong_world(lab: ModuleType, layout: Layout) -> str:
    """The message of the ValueError for a layout of another number of ranks."""
    return error_message(lab.ParallelLayout(**layout).make_groups)


def new_cluster(lab: ModuleType, gpus: int, per_node: int, memory_gib: float = 80, **links: float) -> object:
    return lab.LinkedCluster(new_gpu(memory_gib), gpus, per_node, **links)


def new_gpu(memory_gib: float, peak: float = 1e15) -> object:
    from labs.day1_one_gpu_to_many.scaling_math import Gpu

    return Gpu("test GPU", memory_gib, peak)


def placements(lab: ModuleType, cases: Sequence[tuple[Layout, int, int, dict[str, float], float, float]]) -> list[dict]:
    """What place_on_topology says of (layout, GPUs, GPUs per node, traffic, inside, between)."""
    found = []
    for layout, gpus, per_node, traffic, inside, between in cases:
        cluster = new_cluster(lab, gpus, per_node, inside=inside, between=between)
        placed = lab.place_on_topology(lab.ParallelLayout(**layout), cluster, traffic)
        found.append(
            {
                "order": list(placed.layout.order),
                "nodes": dict(placed.nodes),
                "seconds": {name: float(value) for name, value in placed.seconds.items()},
            }
        )
    return found


def placement_error(lab: ModuleType) -> str:
    cluster = new_cluster(lab, 16, 8)
    return error_message(lambda: lab.place_on_topology(lab.ParallelLayout(dp=8), cluster, {"dp": 1.0}))


# --- The trainer ------------------------------------------------------------------------------------------------------


def new_trainer(lab: ModuleType, layout: Layout, tied: bool = True, experts: bool = False, **options: object):
    """A trainer of the small model, by SGD."""
    if experts:
        losses = dict.fromkeys(("balance_coefficient", "z_coefficient"), options.pop("coefficient", 0))
        options["experts"] = lab.MoEConfig(CONFIG.hidden, EXPERT_FFN, EXPERTS, TOP_K, **losses)
    options = {"optimizer_class": torch.optim.SGD, "lr": LEARNING_RATE, **options}
    config = options.pop("config", replace(CONFIG, tied=tied))
    return lab.HybridTrainer(lab.ParallelLayout(**layout), config, **options)


@contextmanager
def without(lab: ModuleType, **methods: object):
    """The trainer with some of its methods replaced: what is not under test need not be written."""
    with mock.patch.multiple(lab.HybridTrainer, **methods):
        yield


def trainer_errors(lab: ModuleType, cases: Sequence[dict]) -> list[str]:
    """The message of the ValueError that each trainer raises; "" for none."""
    return [error_message(lambda: new_trainer(lab, **case)) for case in cases]  # noqa: B023


class NoStage(nn.Module):
    """Stands for a stage that holds nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.chunks = nn.ModuleDict()


def plain_names(trainer: object) -> dict[str, nn.Parameter]:
    """The rank's parameters by their names in the whole model."""
    return {
        re.sub(r"^chunks\.\d+\.(module\.)?", "", name): parameter
        for name, parameter in trainer.stage.named_parameters()
    }


def held_parameters(lab: ModuleType, cases: Sequence[dict]) -> list[dict]:
    """After build_stage: parameters, and on the first rank of a pipeline the positions of 4 tokens of its own."""
    found = []
    with without(lab, sort_parameters=lambda self: [], synchronise=lambda self: None):
        for case in cases:
            trainer = new_trainer(lab, **case)
            seen: list[Tensor] = []
            for module in trainer.stage.modules():
                if hasattr(module, "rope_theta"):
                    module.register_forward_pre_hook(lambda module, args, seen=seen: seen.append(args[1].clone()))
            with torch.no_grad():
                own = next(iter(trainer.stage.chunks.values()))
                first = hasattr(own, "embedding")
                x = torch.zeros(1, 4, dtype=torch.int64) if first else torch.zeros(1, 4, CONFIG.hidden)
                own(x.to(device()))
            values = {name: each.detach().clone() for name, each in plain_names(trainer).items()}
            everything = sum(each.numel() for each in trainer.stage.parameters())
            found.append({"values": values, "numel": everything, "positions": seen[0] if seen else None})
            trainer.close()
    return found


def copies_of(lab: ModuleType, cases: Sequence[dict]) -> list[dict[str, tuple[int, list[int]]]]:
    """For each parameter its copies, and the members of the group that averages it."""
    found = []
    with without(lab, synchronise=lambda self: None):
        for case in cases:
            trainer = new_trainer(lab, **case)
            names = {id(parameter): name for name, parameter in plain_names(trainer).items()}
            found.append(
                {
                    names[id(parameter)]: (kind.copies, dist.get_process_group_ranks(kind.group))
                    for kind in trainer.kinds
                    for parameter in kind.parameters
                }
            )
            trainer.close()
    return found


def norms_of(lab: ModuleType, cases: Sequence[dict], seed: int) -> list[tuple[float, int, int]]:
    """`gradient_norm` of known gradients, how many calls it made, and how many bytes they sent."""
    found = []
    with without(lab, synchronise=lambda self: None):
        for case in cases:
            trainer = new_trainer(lab, **case)
            for name, parameter in plain_names(trainer).items():
                tied = name == "head.weight" and trainer.config.tied
                whole = numbered(seed, "embedding.weight" if tied else name)
                tp, here = trainer.layout.tp, trainer.layout.coordinates(dist.get_rank())["tp"]
                parameter.grad = part_of(whole, name, tp, here).clone().to(device())
            with Traffic() as traffic:
                norm = float(trainer.gradient_norm())
            found.append((norm, len(traffic.calls), max((call.numel for call in traffic.calls), default=0)))
            trainer.close()
    return found


def settled(lab: ModuleType, case: dict) -> dict[str, float]:
    """Gradients of 1 everywhere, after settle_gradients."""
    with without(lab, synchronise=lambda self: None):
        trainer = new_trainer(lab, **case)
        for parameter in trainer.stage.parameters():
            parameter.grad = torch.ones_like(parameter)
        trainer.settle_gradients()
        found = {name: each.grad.flatten()[0].item() for name, each in plain_names(trainer).items()}
        trainer.close()
    return found


def micro_batches_of(lab: ModuleType, cases: Sequence[tuple[Layout, int, Tensor, Tensor]]) -> list[list[tuple]]:
    """(inputs, targets, weight) of the rank's micro-batches, of each (layout, micro-batches, inputs, targets)."""
    found = []
    bare = {"build_stage": lambda self, seed: NoStage(), "sort_parameters": lambda self: []}
    with without(lab, **bare):
        for layout, count, inputs, targets in cases:
            trainer = new_trainer(lab, layout, micro_batches=count)
            with Traffic() as traffic:
                parts = trainer.local_micro_batches(inputs.to(device()), targets.to(device()))
            found.append([(x, y, float(weight)) for x, y, weight in parts])
            assert not traffic.calls, "everybody has the whole batch: nothing has to be sent to count its targets"
            trainer.close()
    return found


def micro_batch_errors(lab: ModuleType, layout: Layout, cases: Sequence[tuple[int, Tensor, Tensor]]) -> list[str]:
    bare = {"build_stage": lambda self, seed: NoStage(), "sort_parameters": lambda self: []}
    found = []
    with without(lab, **bare):
        for count, inputs, targets in cases:
            trainer = new_trainer(lab, layout, micro_batches=count)
            found.append(error_message(lambda: trainer.local_micro_batches(inputs, targets)))  # noqa: B023
            trainer.close()
    return found


def trained(lab: ModuleType, cases: Sequence[dict], batch: tuple[Tensor, Tensor], steps: int) -> list[dict]:
    """Losses and norms of some steps in each layout, and the parameters after them."""
    torch.set_num_threads(1)
    inputs, targets = (each.to(device()) for each in batch)
    found = []
    for case in cases:
        trainer = new_trainer(lab, **case)
        results = [trainer.step(inputs, targets) for _ in range(steps)]
        parameters = {name: each.detach().clone() for name, each in plain_names(trainer).items()}
        losses, norms = zip(*results, strict=True)
        found.append({"losses": list(losses), "norms": list(norms), "parameters": parameters})
        trainer.close()
    return found


def bytes_after_a_step(lab: ModuleType, cases: Sequence[dict], batch: tuple[Tensor, Tensor]) -> list[tuple[int, int]]:
    """Bytes of all live tensors after a step with AdamW, and of the rank's parameters."""
    torch.set_num_threads(1)
    inputs, targets = (each.to(device()) for each in batch)
    found = []
    for case in cases:
        with PeakMemory() as memory:
            trainer = new_trainer(lab, **case, optimizer_class=torch.optim.AdamW, lr=1e-3)
            trainer.step(inputs, targets)
            live = memory.live_bytes
        found.append((live, sum(each.nbytes for each in trainer.stage.parameters())))
        trainer.close()
        del trainer
    return found


# --- Plans ------------------------------------------------------------------------------------------------------------


def new_plan(lab: ModuleType, config: TransformerConfig, layout: Layout, batch: int, zero: int, recompute: str):
    return lab.Plan(config, lab.ParallelLayout(**layout), batch, zero, recompute)


def memory_of(lab: ModuleType, cases: Sequence[tuple], stages: Sequence[int]) -> list[dict]:
    found = [asdict(lab.stage_memory(new_plan(lab, *case), stage)) for case, stage in zip(cases, stages, strict=True)]
    return [{name: float(value) for name, value in each.items()} for each in found]


def traffic_of(lab: ModuleType, cases: Sequence[tuple]) -> list[dict[str, float]]:
    return [{name: float(n) for name, n in lab.plan_traffic(new_plan(lab, *case)).items()} for case in cases]


def seconds_of(lab: ModuleType, cases: Sequence[tuple], times: Sequence[dict[str, float]], peak: float) -> list[float]:
    found = []
    for case, each in zip(cases, times, strict=True):
        plan = new_plan(lab, *case)
        cluster = lab.LinkedCluster(new_gpu(80, peak), plan.layout.ranks)
        found.append(float(lab.plan_seconds(plan, cluster, each)))
    return found


def reasons(lab: ModuleType, cases: Sequence[tuple], per_node: int, memory_gib: float) -> list[str]:
    found = []
    for case in cases:
        plan = new_plan(lab, *case)
        found.append(lab.why_not(plan, new_cluster(lab, plan.layout.ranks, per_node, memory_gib)))
    return found


def searched(
    lab: ModuleType, config: TransformerConfig, gpus: int, per_node: int, memory_gib: float, batch: int
) -> dict[str, list[dict]]:
    """What search found, in plain data."""
    result = lab.search(config, new_cluster(lab, gpus, per_node, memory_gib), batch)
    names = ("dp", "tp", "pp", "cp", "ep")

    def described(plan: object) -> dict:
        layout = {name: getattr(plan.layout, name) for name in names}
        order = list(plan.layout.order)
        return {"layout": layout, "order": order, "batch": plan.batch, "zero": plan.zero, "recompute": plan.recompute}

    plans = [
        {
            **described(each.plan),
            "bytes": float(each.memory.total),
            "seconds": float(each.seconds),
            "nodes": dict(each.placement.nodes),
        }
        for each in result.plans
    ]
    return {"plans": plans, "rejected": [{**described(plan), "reason": reason} for plan, reason in result.rejected]}


def search_error(lab: ModuleType, config: TransformerConfig) -> str:
    return error_message(lambda: lab.search(config, new_cluster(lab, 8, 8), batch=0))


# --- Exports ----------------------------------------------------------------------------------------------------------


def exported(lab: ModuleType, name: str, cases: Sequence[tuple[tuple, dict]]) -> list[object]:
    """What an export says of each plan (with an order of ranks, if named); a string that begins with "refused" for a
    ValueError."""
    found = []
    for case, options in cases:
        options = dict(options)
        plan = new_plan(lab, *case)
        if order := options.pop("order", None):
            plan = replace(plan, layout=replace(plan.layout, order=tuple(order)))
        try:
            found.append(getattr(lab, name)(plan, **options))
        except ValueError as error:
            found.append(f"refused: {error}")
    return found
