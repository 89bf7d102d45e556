"""What runs on each rank in the tests of 3.4, around the learner's functions and layer. Everything gives back plain
data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shardlab.grade.drivers import error_message, own_group
from shardlab.models import TransformerConfig, build, next_token_loss
from shardlab.observe import PeakMemory, Traffic
from shardlab.ranks import device

GROUP_SECONDS = 60
GROUPS = ("expert", "batch", "replicas")


def plain(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().clone()


def number(value: Tensor | float) -> float:
    return value.item() if isinstance(value, Tensor) else float(value)


def gradients_of(module: nn.Module) -> dict[str, Tensor]:
    """Gradients of those parameters that have one."""
    return {name: plain(each.grad) for name, each in module.named_parameters() if each.grad is not None}


def refusal(call: Callable[[], object]) -> tuple[str, int]:
    """The message of the ValueError that ``call`` raises ("" if none), and the calls it made before."""
    with Traffic() as traffic:
        message = error_message(call)
    return message, traffic.count()


# --- Router and losses ------------------------------------------------------------------------------------------------


def route(lab: ModuleType, cases: Sequence[tuple[dict, Tensor, Tensor, Tensor, str]]) -> list[dict]:
    """`TopKRouter` for each (options, weight, tokens, upstream of the gates, how): "float32"; "bfloat16", router and
    tokens; or "autocast", to bfloat16. Gradients are of (gates * upstream).sum() + 0.1 logits.square().sum()."""
    found = []
    for options, weight, tokens, upstream, how in cases:
        router = lab.TopKRouter(lab.MoEConfig(**options)).to(device())
        with torch.no_grad():
            router.weight.copy_(weight)
        dtype = torch.bfloat16 if how == "bfloat16" else torch.float32
        router.to(dtype)
        leaf = tokens.to(dtype).requires_grad_()
        with torch.autocast(device().type, torch.bfloat16, enabled=how == "autocast"):
            routing = router(leaf)
        ((routing.gates * upstream).sum() + 0.1 * routing.logits.square().sum()).backward()
        found.append(
            {name: plain(value) for name, value in routing._asdict().items()}
            | {"tokens_grad": plain(leaf.grad), "weight_grad": plain(router.weight.grad)}
        )
    return found


def sums(lab: ModuleType, own: tuple[Tensor, Tensor]) -> dict[str, Any]:
    """`SumOverRanks` of this rank's (tensor, upstream), given transposed."""
    tensor, upstream = own
    leaf = tensor.mT.contiguous().mT.requires_grad_()
    total = lab.SumOverRanks.apply(leaf, None)
    total.backward(upstream.mT.contiguous().mT)
    return {"sum": plain(total), "gradient": plain(leaf.grad), "tensor": plain(leaf)}


def losses(lab: ModuleType, own: Sequence[tuple[Tensor, Tensor]], factors: Sequence[float], name: str) -> list[dict]:
    """`load_balancing_loss` of (probabilities, assignment) or `router_z_loss` of (logits,), this rank's, for each case.
    Each rank's own loss is its factor times it."""
    found = []
    for first, *others in own:
        leaf = first.clone().requires_grad_()
        with Traffic() as traffic:
            loss = getattr(lab, name)(leaf, *others)
            (factors[dist.get_rank()] * loss).backward()
        found.append({"loss": plain(loss), "gradient": plain(leaf.grad), "traffic": traffic.to_data()})
    return found


# --- Who goes where ---------------------------------------------------------------------------------------------------


def dispatches(lab: ModuleType, cases: Sequence[tuple]) -> list[dict]:
    """`dispatch` of each (tokens, assignment, capacity, experts, ahead); the gradient is of (rows * upstream).sum(),
    upstream being 1, 2, 3, ... for the first, second, third row."""
    found = []
    for tokens, *others in cases:
        leaf = tokens.clone().requires_grad_()
        rows, slots, counts = lab.dispatch(leaf, *others)
        (rows * torch.arange(1, 1 + len(rows), dtype=rows.dtype).unsqueeze(1)).sum().backward()
        made = {"rows": rows, "slots": slots, "counts": counts, "gradient": leaf.grad}
        found.append({name: plain(tensor) for name, tensor in made.items()})
    return found


def combines(lab: ModuleType, cases: Sequence[tuple[Tensor, Tensor, Tensor, Tensor]]) -> list[dict]:
    """`combine` of each (rows, slots, gates, upstream)."""
    found = []
    for rows, slots, gates, upstream in cases:
        leaf, of_gates = rows.clone().requires_grad_(), gates.clone().requires_grad_()
        y = lab.combine(leaf, slots, of_gates)
        y.backward(upstream)
        found.append(
            {"output": plain(y), "rows_grad": plain(leaf.grad), "gates_grad": plain(of_gates.grad)},
        )
    return found


def shares(lab: ModuleType, cases: Sequence[tuple[Tensor, int | None]]) -> list[tuple[Tensor, Tensor]]:
    return [tuple(map(plain, lab.share_capacity(claims.clone(), capacity))) for claims, capacity in cases]


def loads(lab: ModuleType, cases: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[float, float]]:
    made = [lab.Load(*case) for case in cases]
    return [(float(load.drop_rate), float(load.imbalance)) for load in made]


# --- The exchange -----------------------------------------------------------------------------------------------------


def exchanges(lab: ModuleType, own: Sequence[tuple[Tensor, list[int], list[int], Tensor]]) -> list[dict]:
    """`AllToAll` of this rank's (rows, send, receive, upstream), rows and upstream laid out transposed."""
    found = []
    for rows, send, receive, upstream in own:
        leaf = rows.mT.contiguous().mT.requires_grad_()
        with Traffic() as forward:
            received = lab.AllToAll.apply(leaf, send, receive, None)
        with Traffic() as backward:
            received.backward(upstream.mT.contiguous().mT)
        found.append(
            {
                "received": plain(received),
                "gradient": plain(leaf.grad),
                "forward": forward.to_data(),
                "backward": backward.to_data(),
            }
        )
    return found


# --- The layer --------------------------------------------------------------------------------------------------------


def layers(lab: ModuleType, own: Sequence[tuple[Tensor, Tensor]], scenarios: Sequence[dict]) -> list[dict]:
    """`ExpertParallelMoE` of each scenario on this rank's (tokens, upstream): forward and backward of (output times
    upstream, summed) plus the auxiliary losses.

    A scenario has options, weights (of all experts, by name), groups of ranks: expert and batch; and dtype.
    """
    found = []
    for (x, upstream), scenario in zip(own, scenarios, strict=True):
        groups = (own_group(scenario[name], GROUP_SECONDS) for name in ("expert", "batch"))
        layer = lab.ExpertParallelMoE(lab.MoEConfig(**scenario["options"]), *groups).to(device())
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                parameter.copy_(scenario["weights"][name])
        layer.to(scenario.get("dtype", torch.float32))
        leaf = x.to(scenario.get("dtype", torch.float32)).requires_grad_()
        with PeakMemory(layer) as memory, Traffic() as forward:
            y = layer(leaf)
        with Traffic() as backward:
            ((y * upstream).sum() + lab.auxiliary_loss(layer)).backward()
        found.append(
            {
                "output": plain(y),
                "gradient": plain(leaf.grad),
                "gradients": gradients_of(layer),
                "auxiliary": number(layer.auxiliary),
                "asked": layer.load.asked.tolist(),
                "kept": layer.load.kept.tolist(),
                "names": [name for name, _ in layer.named_parameters()],
                "held": sum(memory.live_by_kind[kind] for kind in ("parameter", "buffer", "other")),
                "forward": forward.to_data(),
                "backward": backward.to_data(),
            }
        )
    return found


def refused_layers(lab: ModuleType, options: dict) -> dict[str, tuple[str, int]]:
    """What is said to experts that the ranks do not divide, a batch group without this rank's fellows, and tokens of
    another width; and the calls made before. And, to begin with, what a layer of good input gives."""
    config = lab.MoEConfig(**options)
    world = dist.get_world_size()
    alone = own_group([[rank] for rank in range(world)], GROUP_SECONDS)
    odd = lab.MoEConfig(**(options | {"experts": 2 * world + 1}))
    layer = lab.ExpertParallelMoE(config)
    good = layer(torch.ones(3, options["hidden"]))
    assert good.shape == (3, options["hidden"])
    return {
        "experts": refusal(partial(lab.ExpertParallelMoE, odd)),
        "batch group": refusal(partial(lab.ExpertParallelMoE, config, None, alone)),
        "width": refusal(partial(layer, torch.ones(3, options["hidden"] + 1))),
    }


# --- Models -----------------------------------------------------------------------------------------------------------


def train(
    lab: ModuleType, config: TransformerConfig, options: dict, seed: int, tokens: Tensor, steps: int, groups: dict
) -> dict[str, Any]:
    """`use_experts` in the model of ``seed``, trained with SGD by `average_gradients`; rank r has the r-th share of
    ``tokens`` [B, T], or that of the first of the ranks that hold the same.

    Args:
        groups: groups of ranks: expert, batch, replicas.

    Returns:
        losses: this rank's own; auxiliary: in each step; state: parameters by name, at the beginning and at the end;
        random: whether the global random state is as before.
    """
    mine = {name: own_group(members, GROUP_SECONDS) for name, members in groups.items()}
    model = build(config, seed).to(device())
    state = torch.get_rng_state()
    model = lab.use_experts(model, lab.MoEConfig(**options), mine["expert"], seed, mine["batch"])
    found: dict[str, Any] = {"random": bool((state == torch.get_rng_state()).all()), "losses": [], "auxiliary": []}
    found["first"] = {name: plain(parameter) for name, parameter in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    rank, size = dist.get_rank(mine["batch"]), dist.get_world_size(mine["batch"])
    own = tokens.chunk(size)[rank]
    for _ in range(steps):
        loss = next_token_loss(model(own), own)
        auxiliary = lab.auxiliary_loss(model)
        (loss + auxiliary).backward()
        lab.average_gradients(model, mine["batch"], mine["replicas"])
        optimizer.step()
        optimizer.zero_grad()
        found["losses"].append(loss.item())
        found["auxiliary"].append(number(auxiliary))
    found["last"] = {name: plain(parameter) for name, parameter in model.named_parameters()}
    return found


def train_in_layout(
    lab: ModuleType,
    config: TransformerConfig,
    options: dict,
    seed: int,
    tokens: Tensor,
    steps: int,
    layout: tuple[int, int, int, bool],
) -> dict[str, Any]:
    """`train` with the groups of the lab's own `expert_layout`."""
    made = lab.expert_layout(*layout)
    return train(lab, config, options, seed, tokens, steps, {name: getattr(made, name) for name in GROUPS})


def refused_models(lab: ModuleType, config: TransformerConfig, options: dict) -> list[tuple[str, bool]]:
    """What `use_experts` says to another hidden and to experts that the ranks do not divide; is the model as it was?"""
    lab.use_experts(build(config), lab.MoEConfig(**options))
    found = []
    for changed in ({"hidden": config.hidden + 2}, {"experts": 2 * dist.get_world_size() + 1}):
        model = build(config)
        before = [id(module) for module in model.modules()]
        message = error_message(partial(lab.use_experts, model, lab.MoEConfig(**(options | changed))))
        found.append((message, before == [id(module) for module in model.modules()]))
    return found


# --- Layout and gradients ---------------------------------------------------------------------------------------------


def layouts(lab: ModuleType, cases: Sequence[tuple[int, int, int, bool]]) -> list[dict[str, list[list[int]]]]:
    made = [lab.expert_layout(*case) for case in cases]
    return [{name: [list(group) for group in getattr(layout, name)] for name in GROUPS} for layout in made]


def refused_layouts(lab: ModuleType, cases: Sequence[tuple[int, int, int, bool]]) -> list[str]:
    lab.expert_layout(4, 2, 2)
    return [error_message(partial(lab.expert_layout, *case)) for case in cases]


class Parts(nn.Module):
    """Parameters of both kinds, the last of which gets no gradient. Every rank has another expert under its name."""

    def __init__(self, experts: Sequence[int]) -> None:
        super().__init__()
        self.router = nn.Linear(3, 2, bias=False)
        self.shared = nn.Linear(2, 2)
        self.experts = nn.ModuleDict({str(expert): nn.Linear(2, 3) for expert in experts})
        self.frozen = nn.Linear(1, 1).requires_grad_(False)


def average(
    lab: ModuleType, value: float, cases: Sequence[tuple[list[list[int]], list[list[int]] | None]]
) -> list[dict]:
    """`average_gradients` for each (batch groups, replica groups or None), every gradient being ``value``."""
    found = []
    for batch, replicas in cases:
        rank = dist.get_rank()
        place = 0 if replicas is None else next(i for i, members in enumerate(replicas) if rank in members)
        model = Parts([2 * place, 2 * place + 1])
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.full_like(parameter, value)
        groups = [own_group(each, GROUP_SECONDS) for each in (batch, replicas)]
        with Traffic() as traffic:
            lab.average_gradients(model, *groups)
        gradients = gradients_of(model)
        of_experts = sum(each.nbytes for name, each in gradients.items() if "experts" in name)
        found.append(
            {
                "gradients": gradients,
                "bytes": of_experts,
                "dense_bytes": sum(each.nbytes for each in gradients.values()) - of_experts,
                "traffic": traffic.to_data(),
            }
        )
    return found
