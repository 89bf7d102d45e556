"""What runs on each rank in the tests of 2.1, around the learner's `DataParallel`: models, training loops, observers.

Everything in here gives back plain data. The models and losses serve the judge too, who trains the same thing in one
process.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from types import ModuleType

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shardlab.grade.drivers import error_message, own_group, seeded_linear, summed_token_loss
from shardlab.models import TransformerConfig, build
from shardlab.observe import Traffic
from shardlab.ranks import device

CONFIG = TransformerConfig(vocab=37, hidden=16, layers=2, heads=2, kv_heads=1, ffn=24, sequence=16)  # tied embedding

State = dict[str, Tensor]


# --- Models and losses, for the ranks and for the judge ---------------------------------------------------------------


def language_model(seed: int) -> nn.Module:
    """A Transformer whose head is tied to its embedding and whose first feed-forward network is frozen."""
    model = build(CONFIG, seed)
    model.blocks[0].mlp.requires_grad_(False)
    return model


class Branches(nn.Module):
    """A trunk, branches of which a forward uses one, and a head: some parameters go without a gradient."""

    def __init__(self, seed: int, branches: int = 3) -> None:
        super().__init__()
        self.trunk = seeded_linear(4, seed)
        self.branches = nn.ModuleList(seeded_linear(4, seed + 1 + index) for index in range(branches))
        self.head = seeded_linear(4, seed + 9)

    def forward(self, x: Tensor, branch: int) -> Tensor:
        """x [B, 4] and which branch to take (-1: none) -> [B, 4]."""
        x = self.trunk(x)
        return self.head(self.branches[branch](x) if branch >= 0 else x)


def state_of(module: nn.Module) -> State:
    """Parameters and buffers, on the CPU."""
    return {
        name: tensor.detach().cpu().clone() for name, tensor in [*module.named_parameters(), *module.named_buffers()]
    }


def gradients_of(module: nn.Module) -> dict[str, Tensor | None]:
    """Gradients, on the CPU; None where there is none."""
    return {
        name: None if parameter.grad is None else parameter.grad.detach().cpu().clone()
        for name, parameter in module.named_parameters()
    }


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    """The optimiser of the tests: momentum shows gradients that were wrong in an earlier step."""
    return torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1, momentum=0.9)


# --- Training ---------------------------------------------------------------------------------------------------------


def train(
    lab: ModuleType,
    batches: Sequence[Tensor],
    means: Sequence[float],
    groups: Sequence[Sequence[int]] | None,
    mb: float,
) -> State:
    """Train `language_model` on this rank's batches, one step each, starting from weights that differ between ranks.

    Args:
        batches: this rank's tokens [1, T] of every step.
        means: of every step, predicted tokens per rank in the mean over the ranks of this rank's group.
        groups: split the ranks into these groups; None: one group of all.
        mb: bucket size in MiB.
    """
    module = language_model(seed=dist.get_rank()).to(device())
    model = lab.DataParallel(module, bucket_mb=mb, group=own_group(groups))
    optimizer = sgd(module)
    for tokens, mean in zip(batches, means, strict=True):
        optimizer.zero_grad()
        (summed_token_loss(model, tokens) / mean).backward()
        optimizer.step()
    return state_of(module)


def train_in_groups(
    lab: ModuleType, own: tuple[Sequence[Tensor], Sequence[float]], groups: Sequence[Sequence[int]]
) -> State:
    """`train` with this rank's batches and means in one argument."""
    return train(lab, *own, groups, mb=25)


def train_uneven(lab: ModuleType, inputs: Sequence[Tensor], sizes: Sequence[int]) -> list[State]:
    """Train a linear layer under `join` on as many batches as this rank has, once for each size of ``sizes``.

    Args:
        inputs: x [B, 4] of every micro-batch of this rank.
        sizes: micro-batches to a step; all but the last of a step run inside `no_sync`.
    """
    return [_train_uneven(lab, inputs, size) for size in sizes]


def join_with_buffers(lab: ModuleType, batches: int) -> State:
    """Train layers with batch norm, a bucket for each tensor, under `join` on ``batches`` batches of this rank."""
    torch.manual_seed(dist.get_rank())
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)).to(device())
    model = lab.DataParallel(module, bucket_mb=2**-20)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with model.join():
        for _ in range(batches):
            optimizer.zero_grad()
            model(torch.randn(5, 4, device=device())).square().mean().backward()
            optimizer.step()
    return state_of(module)


def _train_uneven(lab: ModuleType, inputs: Sequence[Tensor], size: int) -> State:
    module = seeded_linear(4, seed=dist.get_rank()).to(device())
    model = lab.DataParallel(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with model.join():
        for start in range(0, len(inputs), size):
            *first, last = inputs[start : start + size]
            optimizer.zero_grad()
            with model.no_sync() if first else nullcontext():
                for x in first:
                    model(x).square().mean().backward()
            model(last).square().mean().backward()
            optimizer.step()
    return state_of(module)


# --- One step, observed -----------------------------------------------------------------------------------------------


def observe_steps(lab: ModuleType, tokens: Tensor, bucket_mbs: Sequence[float], steps: int) -> list[list[dict]]:
    """The traffic of ``steps`` steps of training `language_model`, as data, for each bucket size."""
    return [_observe_steps(lab, tokens, bucket_mb, steps) for bucket_mb in bucket_mbs]


def _observe_steps(lab: ModuleType, tokens: Tensor, bucket_mb: float, steps: int) -> list[dict]:
    module = language_model(seed=0).to(device())
    model = lab.DataParallel(module, bucket_mb=bucket_mb)
    optimizer = sgd(module)
    with Traffic() as traffic:
        for _ in range(steps):
            optimizer.zero_grad()
            summed_token_loss(model, tokens).backward()
            optimizer.step()
    return traffic.to_data()


def observe_order(lab: ModuleType, layers: int, width: int, bucket_mbs: Sequence[float]) -> list[list[dict]]:
    """One backward through a stack of equal layers for each bucket size, with a mark "gradient i" when the gradient of
    layer i is there."""
    return [_observe_order(lab, layers, width, bucket_mb) for bucket_mb in bucket_mbs]


def _observe_order(lab: ModuleType, layers: int, width: int, bucket_mb: float) -> list[dict]:
    module = nn.Sequential(*(seeded_linear(width, seed=layer) for layer in range(layers))).to(device())
    traffic = Traffic()
    for index, layer in enumerate(module):  # registered before the learner's hooks, so they run before them
        layer.weight.register_post_accumulate_grad_hook(lambda _, index=index: traffic.mark(f"gradient {index}"))
    model = lab.DataParallel(module, bucket_mb=bucket_mb)
    x = torch.ones(2, width, device=device())
    with traffic:
        model(x).sum().backward()
    return traffic.to_data()


def wrap_only(lab: ModuleType) -> State:
    """What a rank holds after wrapping a model of its own: a layer, a frozen layer and a batch norm, all filled with
    the number of the rank."""
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2), nn.BatchNorm1d(2)).to(device())
    module[1].requires_grad_(False)
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            tensor.fill_(dist.get_rank() + 1)
    lab.DataParallel(module)
    return state_of(module)


def branch_gradients(
    lab: ModuleType, own: tuple[int, Tensor], bucket_mbs: Sequence[float]
) -> list[dict[str, Tensor | None]]:
    """Gradients of `Branches` on this rank's own (branch, x), for each bucket size."""
    gradients = []
    for bucket_mb in bucket_mbs:
        module = Branches(seed=0).to(device())
        model = lab.DataParallel(module, bucket_mb=bucket_mb)
        branch, x = own
        model(x, branch).square().mean().backward()
        gradients.append(gradients_of(module))
    return gradients


def gradient_storages(lab: ModuleType, bucket_mbs: Sequence[float]) -> list[int]:
    """In how many pieces of memory the gradients of five equal layers lie after two steps, for each bucket size."""
    return [_gradient_storages(lab, bucket_mb) for bucket_mb in bucket_mbs]


def _gradient_storages(lab: ModuleType, bucket_mb: float) -> int:
    module = nn.Sequential(*(seeded_linear(4, seed=layer) for layer in range(5))).to(device())
    model = lab.DataParallel(module, bucket_mb=bucket_mb)
    optimizer = sgd(module)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 4, device=device())).sum().backward()
        optimizer.step()
    return len({parameter.grad.untyped_storage().data_ptr() for parameter in module.parameters()})


def batch_norm(lab: ModuleType, batches: Sequence[Tensor]) -> dict[str, object]:
    """Train a model that begins with a batch norm; its buffers after every step, and the calls of an evaluation."""
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1)).to(device())
    model = lab.DataParallel(module)
    buffers = []
    for x in batches:
        model(x).square().mean().backward()
        buffers.append({name: buffer.cpu().clone() for name, buffer in module.named_buffers()})
    with Traffic() as evaluation, torch.no_grad():
        model.eval()
        model(batches[0])
        model.train()
    return {"buffers": buffers, "evaluation": evaluation.to_data()}


def two_forwards(lab: ModuleType, own: tuple[Tensor, Tensor]) -> dict[str, object]:
    """Two forwards, then one backward through both, and another backward on top of it."""
    first, second = own
    module = seeded_linear(4, seed=0).to(device())
    model = lab.DataParallel(module)
    with Traffic() as traffic:
        (model(first).square().mean() * model(second).sum()).backward()
    once = gradients_of(module)
    model(first).sum().backward()
    return {"calls": traffic.count(), "once": once, "twice": gradients_of(module)}


def mixed_dtypes(lab: ModuleType, scale: float) -> dict[str, object]:
    """Gradients and traffic of a model whose layers alternate between three dtypes. Every gradient is ``scale``."""
    dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.float32, torch.float64)
    module = nn.ParameterList(nn.Parameter(torch.ones(5, dtype=dtype)) for dtype in dtypes).to(device())
    lab.DataParallel(module)
    with Traffic() as traffic:
        (scale * sum(parameter.double().sum() for parameter in module)).backward()
    return {"gradients": gradients_of(module), "traffic": traffic.to_data()}


# --- no_sync ----------------------------------------------------------------------------------------------------------


def accumulate(lab: ModuleType, micro_batches: Sequence[Tensor]) -> dict[str, object]:
    """Gradients and calls when all but the last micro-batch run inside `no_sync`."""
    module = seeded_linear(4, seed=0).to(device())
    model = lab.DataParallel(module)
    with Traffic() as inside, model.no_sync():
        for x in micro_batches[:-1]:
            model(x).square().mean().backward()
    local = gradients_of(module)
    with Traffic() as outside:
        model(micro_batches[-1]).square().mean().backward()
    return {
        "inside": inside.to_data(),
        "local": local,
        "outside": outside.to_data(),
        "averaged": gradients_of(module),
    }


def leave_no_sync_before_backward(lab: ModuleType, x: Tensor) -> list[float]:
    """The gradient of a weight [1, 2] whose forward is inside `no_sync` and whose backward is not."""
    module = nn.Linear(2, 1, bias=False).to(device())
    model = lab.DataParallel(module)
    with model.no_sync():
        output = model(x)
    output.sum().backward()
    return module.weight.grad.flatten().tolist()


def leave_no_sync_by_an_error(lab: ModuleType, x: Tensor) -> list[float]:
    """The gradient of a weight [1, 2] whose backward comes after a `no_sync` that ended in an error, inside another."""
    module = nn.Linear(2, 1, bias=False).to(device())
    model = lab.DataParallel(module)
    with suppress(RuntimeError), model.no_sync():
        with model.no_sync():
            pass
        raise RuntimeError("out of memory, say")
    model(x).sum().backward()
    return module.weight.grad.flatten().tolist()


def enter_no_sync_before_backward(lab: ModuleType, x: Tensor) -> list[float]:
    """The gradient of a weight [1, 2] whose forward is outside `no_sync` and whose backward is inside."""
    module = nn.Linear(2, 1, bias=False).to(device())
    output = (model := lab.DataParallel(module))(x)
    with model.no_sync():
        output.sum().backward()
    return module.weight.grad.flatten().tolist()


# --- Bad input --------------------------------------------------------------------------------------------------------


def wrap_different(lab: ModuleType, differences: Sequence[str]) -> list[str]:
    """For each difference the message of the ValueError on this rank when the model of rank 1 has it; "" if none."""
    return [_wrap_different(lab, difference, odd=dist.get_rank() == 1) for difference in differences]


def _wrap_different(lab: ModuleType, difference: str, odd: bool) -> str:
    module = nn.Sequential(nn.Linear(3, 5 if odd and difference == "shape" else 4), nn.Linear(4, 2))
    if odd and difference == "dtype":
        module[1].double()
    if odd and difference == "frozen":
        module[1].bias.requires_grad_(False)
    if odd and difference == "layers":
        module.append(nn.Linear(2, 2))
    bucket_mb = 2 if odd and difference == "bucket_mb" else 1
    return error_message(lambda: lab.DataParallel(module.to(device()), bucket_mb=bucket_mb))


def wrap_outside_group(lab: ModuleType) -> str:
    """The message of the ValueError when every rank wraps its model with a group of rank 0 alone; "" if none."""
    group = dist.new_group([0], timeout=datetime.timedelta(seconds=30))
    return error_message(lambda: lab.DataParallel(nn.Linear(2, 2).to(device()), group=group))


# --- Sampler, formulas, optimisers: one process -----------------------------------------------------------------------


def call_each(lab: ModuleType, name: str, arguments: Sequence[dict]) -> list[object]:
    """Values of the lab's function ``name`` for each set of keyword arguments."""
    return [getattr(lab, name)(**each) for each in arguments]


def deal(lab: ModuleType, cases: Sequence[tuple[dict, int, Sequence[int]]]) -> list[list[list[list[int]]]]:
    """For each (options of the sampler, ranks, epochs): the indices of every rank in every epoch."""
    return [_deal(lab, *case) for case in cases]


def _deal(lab: ModuleType, options: dict, ranks: int, epochs: Sequence[int]) -> list[list[list[int]]]:
    samplers = [lab.ShardedSampler(rank=rank, world_size=ranks, **options) for rank in range(ranks)]
    seen = []
    for epoch in epochs:
        for sampler in samplers:
            sampler.set_epoch(epoch)
        seen.append([list(sampler) for sampler in samplers])
        for rank, (sampler, indices) in enumerate(zip(samplers, seen[-1], strict=True)):
            assert len(sampler) == len(indices), f"rank {rank}: len() is {len(sampler)}, it yields {len(indices)} items"
    return seen


def without_set_epoch(lab: ModuleType, length: int) -> list[list[int]]:
    """Two passes over one sampler."""
    sampler = lab.ShardedSampler(length, rank=0, world_size=2)
    return [list(sampler), list(sampler)]


def interrupt(
    lab: ModuleType, options: dict, cases: Sequence[tuple[int, int, int]], epoch: int
) -> list[dict[str, object]]:
    """For each (ranks, items drawn on every rank, new ranks): save after these items, load into new samplers, go on.

    Returns:
        For each case ``before`` and ``after``: items of every rank; ``epoch``: that of a loaded sampler; ``next``:
        items of every new rank in the epoch after; ``state``: what was saved.
    """
    return [_interrupt(lab, options, *case, epoch) for case in cases]


def _interrupt(lab: ModuleType, options: dict, ranks: int, drawn: int, new_ranks: int, epoch: int) -> dict[str, object]:
    before, after, following = [], [], []
    olds = [lab.ShardedSampler(rank=rank, world_size=ranks, **options) for rank in range(ranks)]
    for sampler in olds:
        sampler.set_epoch(epoch)
        before.append(list(itertools.islice(sampler, drawn)))
    state = olds[0].state_dict()
    news = [lab.ShardedSampler(rank=rank, world_size=new_ranks, **options) for rank in range(new_ranks)]
    for sampler in news:
        sampler.load_state_dict(dict(state))
    loaded = news[0].state_dict()["epoch"]
    for sampler in news:
        sampler.set_epoch(epoch)  # as every training loop does at the top of its epoch
        after.append(list(sampler))
        sampler.set_epoch(epoch + 1)
        following.append(list(sampler))
    return {"before": before, "after": after, "next": following, "epoch": loaded, "state": state}


def load_foreign_states(lab: ModuleType, options: dict, others: Sequence[dict]) -> list[str]:
    """For each of ``others`` the message of the ValueError when a sampler of ``options`` loads its state (else "")."""
    return [_load_foreign_state(lab, options, other) for other in others]


def _load_foreign_state(lab: ModuleType, options: dict, other: dict) -> str:
    state = lab.ShardedSampler(rank=0, world_size=2, **other).state_dict()
    return error_message(lambda: lab.ShardedSampler(rank=0, world_size=2, **options).load_state_dict(state))


def bucket_indices(lab: ModuleType, cases: Sequence[tuple[Sequence[tuple[int, str]], float]]) -> list[list[list[int]]]:
    """For each (shapes, bucket_bytes): `assign_buckets` of tensors of (numel, dtype), as positions in the list."""
    return [_bucket_indices(lab, shapes, bucket_bytes) for shapes, bucket_bytes in cases]


def _bucket_indices(lab: ModuleType, shapes: Sequence[tuple[int, str]], bucket_bytes: float) -> list[list[int]]:
    tensors = [torch.empty(numel, dtype=getattr(torch, dtype)) for numel, dtype in shapes]
    position = {id(tensor): index for index, tensor in enumerate(tensors)}
    return [[position[id(tensor)] for tensor in bucket] for bucket in lab.assign_buckets(tensors, bucket_bytes)]


def optimize(
    lab: ModuleType,
    name: str,
    weights: Sequence[Tensor],
    gradients: Sequence[Sequence[Tensor | None]],
    settings: list[dict],
) -> list[Tensor]:
    """Weights after one step of the optimiser ``name`` for each entry of ``gradients`` and of ``settings``."""
    parameters = [nn.Parameter(weight.clone()) for weight in weights]
    optimizer = getattr(lab, name)(parameters, **settings[0])
    for step, setting in zip(gradients, settings, strict=True):
        optimizer.param_groups[0].update(setting)
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = None if gradient is None else gradient.clone()
        optimizer.step()
    return [parameter.detach() for parameter in parameters]


def step_with_closure(lab: ModuleType, name: str) -> list[float]:
    """What ``step(closure)`` returns, and the weight after it: w = 2, loss w^2, lr 0.5."""
    weight = nn.Parameter(torch.tensor([2.0]))
    optimizer = getattr(lab, name)([weight], lr=0.5)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss

    return [optimizer.step(closure).item(), round(weight.item(), 5)]


def resume_twice(lab: ModuleType, length: int, draws: Sequence[int]) -> list[int]:
    """What one rank of one draws: so many items, saved and loaded into a new sampler, and so on; then the rest."""
    seen: list[int] = []
    state = None
    for count in (*draws, length):
        sampler = lab.ShardedSampler(length, 0, 1, shuffle=True, seed=1)
        if state is not None:
            sampler.load_state_dict(state)
        seen += itertools.islice(sampler, count)
        state = sampler.state_dict()
    return seen
