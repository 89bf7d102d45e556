"""What runs on each rank in the tests of 2.3, around the learner's `shard_module`: models, training loops, observers.

Everything in here gives back plain data. The models and losses serve the judge too, who trains the same thing in one
process.
"""

from __future__ import annotations

import datetime
import gc
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed import DeviceMesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from shardlab.grade.drivers import error_message, own_group, seeded_linear, summed_token_loss
from shardlab.models import TransformerConfig, build, next_token_loss
from shardlab.observe import PeakMemory, Traffic
from shardlab.ranks import device

State = dict[str, Tensor | None]


def each(lab: ModuleType, driver: Callable[..., Any], cases: Sequence[tuple]) -> list[Any]:
    """What ``driver(lab, *case)`` gives for each case, on the same ranks: fresh ones cost more than most cases."""
    return [driver(lab, *case) for case in cases]


# --- Models and losses, for the ranks and for the judge ---------------------------------------------------------------

VOCAB, WIDTH = 11, 6  # neither divides by 4 or 5 ranks, and 5 ranks share 6 rows as 2, 2, 2, 0, 0


class Network(nn.Module):
    """Everything that makes sharding hard, small: a tied embedding, a parameter used twice, a module called twice,
    modules inside modules, a frozen layer between trained ones, one that nobody calls, inputs by keyword."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.scale = nn.Parameter(torch.empty(WIDTH))
        self.mix = nn.Sequential(nn.Linear(WIDTH, 5), nn.Tanh(), nn.Linear(5, WIDTH, bias=False))
        self.again = Shifted()
        self.frozen = nn.Linear(WIDTH, WIDTH)
        self.spare = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("steps", torch.zeros(1, dtype=torch.int64))
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
        self.frozen.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [B, T] -> logits [B, T, VOCAB]."""
        x = self.embedding(tokens) * self.scale
        x = x + self.mix(x)
        x = self.again(x, shift=0.5)["out"]
        x = x + torch.tanh(self.frozen(x))
        x = self.again(x * self.scale, shift=-0.5)["out"]
        return self.head(x)


class Shifted(nn.Module):
    """A linear layer whose second input comes by keyword and whose output is in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, *, shift: float) -> dict[str, Tensor]:
        return {"out": torch.tanh(self.linear(x) + shift)}


INNER = ("mix.0", "mix", "again", "frozen", "spare")  # layers of `Network`, the innermost first


def shard_network(lab: ModuleType, model: Network, **options: Any) -> Network:
    """Shard every layer, then the whole; refuse a model that torch has sharded."""
    for name in INNER:
        lab.shard_module(model.get_submodule(name), **options)
    sharded = lab.shard_module(model, **options)
    assert sharded is model, f"shard_module returns the module it was given, got {type(sharded).__name__}"
    return refuse_built_ins(model)


def refuse_built_ins(model: nn.Module) -> nn.Module:
    """The model, unless one of torch's own has sharded it."""
    for module in model.modules():
        assert not isinstance(module, FSDPModule | FullyShardedDataParallel), (
            f"shard_module called torch's own: {type(module).__name__}. This lesson builds it from all-gathers, "
            "reduce-scatters and hooks."
        )
    return model


def adam(module: nn.Module) -> torch.optim.Optimizer:
    """The optimiser of the tests: eps is large, so that gradients of a wrong scale show; weight decay, so that a
    gradient of zeros is not the same as none."""
    return torch.optim.AdamW(module.parameters(), lr=0.05, eps=1e-2, weight_decay=0.1)


def whole(tensor: Tensor, what: str) -> Tensor:
    """A DTensor put together on every rank."""
    assert isinstance(tensor, DTensor), f"{what} is no DTensor but a plain tensor of shape {list(tensor.shape)}"
    return tensor.detach().full_tensor().cpu()


def parameters_of(module: nn.Module) -> State:
    return {name: whole(parameter, name) for name, parameter in module.named_parameters()}


def gradients_of(module: nn.Module) -> State:
    """Whole gradients; None where there is none."""
    return {
        name: None if parameter.grad is None else whole(parameter.grad, f"the gradient of {name}")
        for name, parameter in module.named_parameters()
    }


def plain_gradients(module: nn.Module) -> State:
    return {name: None if p.grad is None else p.grad.clone() for name, p in module.named_parameters()}


def rows_kept(lab: ModuleType, cases: Sequence[tuple[int, int]]) -> list[list[list[int]]]:
    """For each (rows, ranks) the rows that each rank keeps."""
    return [[list(range(rows))[lab.local_rows(rows, rank, ranks)] for rank in range(ranks)] for rows, ranks in cases]


def row_slices(lab: ModuleType, cases: Sequence[tuple[int, int, int]]) -> list[tuple[int, int] | str]:
    """For each (rows, rank, ranks) start and stop, or the message of the ValueError."""
    results = []
    for case in cases:
        slices: list[slice] = []
        message = error_message(lambda: slices.append(lab.local_rows(*case)))  # noqa: B023
        results.append(message or (slices[0].start, slices[0].stop))
    return results


# --- One layer, by itself ---------------------------------------------------------------------------------------------


class Pieces(nn.Module):
    """Parameters of one layer: odd sizes, one of them tied, one frozen."""

    def __init__(self, seed: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(shape, generator=generator).to(dtype))

        self.weight, self.bias = parameter(5, 3), parameter(5)
        self.tied = self.weight
        self.frozen = parameter(4).requires_grad_(False)
        self.tail = nn.Parameter(parameter(3, 2, 2).detach().transpose(0, 1))  # not contiguous


PIECES = ("weight", "bias", "frozen", "tail")


def make_layer(lab: ModuleType, module: nn.Module, mixed_precision: torch.dtype | None = None) -> Any:
    mesh = DeviceMesh.from_group(dist.group.WORLD, device().type)
    return lab.ShardedLayer(lab.own_places(module, []), mesh, True, mixed_precision, False, 1)


def shards(lab: ModuleType, seed: int) -> dict[str, dict]:
    """What each rank keeps of `Pieces`."""
    module = Pieces(seed).to(device())
    with Traffic() as traffic:
        layer = make_layer(lab, module)
    gc.collect()
    assert not traffic.calls, f"sharding called {traffic.calls[0]}: every rank has the parameter, nothing need be sent"
    kept = {}
    for name, original in zip(PIECES, layer.originals, strict=True):
        shard = getattr(module, name)
        assert isinstance(shard, DTensor), f"{name} is a {type(shard).__name__}, a shard is a DTensor"
        local = shard.to_local()
        kept[name] = {
            "shape": list(shard.shape),
            "placements": str(tuple(shard.placements)),
            "local": local.detach().cpu(),
            "memory": local.untyped_storage().nbytes(),
            "requires_grad": shard.requires_grad,
            "parameter": isinstance(shard, nn.Parameter),
            "original_is_freed": original() is None,
        }
    return kept


def gather(lab: ModuleType, seed: int, mixed_precision: torch.dtype | None) -> dict[str, Any]:
    """Gather `Pieces`: what was called when, what is there in the end, and how much memory it takes."""
    module = Pieces(seed).to(device())
    layer = make_layer(lab, module, mixed_precision)
    gc.collect()
    traffic = Traffic()
    with PeakMemory(module) as memory, traffic:
        before = memory.live_bytes
        layer.start_gather()
        layer.start_gather()
        still_sharded = all(isinstance(getattr(module, name), DTensor) for name in PIECES)
        traffic.mark("launched")
        layer.unshard()
        layer.unshard()
        layer.start_gather()
    values = {name: getattr(module, name).detach().clone().cpu() for name in PIECES}
    requires_grad = [getattr(module, name).requires_grad for name in PIECES]
    whole_bytes, peak_bytes = memory.live_bytes - before, memory.peak_bytes - before
    tied = module.tied is module.weight
    layer.reshard()
    module.bias.requires_grad_(False)
    module.frozen.requires_grad_(True)
    layer.unshard()
    requires_grad_changed = [getattr(module, name).requires_grad for name in PIECES]
    layer.reshard()
    module.load_state_dict({name: 2 * shard for name, shard in module.state_dict().items()}, assign=True)
    layer.unshard()
    return {
        "events": traffic.to_data(),
        "still_sharded": still_sharded,
        "values": values,
        "assigned": {name: getattr(module, name).detach().cpu() for name in PIECES},
        "plain": [type(getattr(module, name)) is nn.Parameter for name in PIECES],
        "requires_grad": requires_grad,
        "requires_grad_changed": requires_grad_changed,
        "tied": tied,
        "whole_bytes": whole_bytes,
        "peak_bytes": peak_bytes,
    }


def whole_and_sharded_again(lab: ModuleType, seed: int, times: int) -> dict[str, Any]:
    """Unshard and reshard while somebody holds the full parameters, as autograd does; change the shards in between."""
    module = Pieces(seed).to(device())
    layer = make_layer(lab, module)
    mine = [getattr(module, name) for name in PIECES]
    gc.collect()
    held, bytes_after = [], []
    with PeakMemory(module) as memory:
        before = memory.live_bytes
        for _ in range(times):
            layer.unshard()
            held.append([getattr(module, name) for name in PIECES])
            layer.reshard()
            layer.reshard()
            bytes_after.append(memory.live_bytes - before)
            with torch.no_grad():
                for shard in mine:
                    shard.to_local().add_(1)
        registered = all(getattr(module, name) is shard for name, shard in zip(PIECES, mine, strict=True))
        layer.unshard()
    return {
        "bytes_after": bytes_after,
        "same_shards": registered,
        "tied": module.tied is module.weight,
        "same_full": all(a is b for again in held for a, b in zip(held[0], again, strict=True)),
        "seen_by_autograd": {name: full.detach().cpu() for name, full in zip(PIECES, held[0], strict=True)},
    }


def collect(lab: ModuleType, synchronise: bool) -> dict[str, Any]:
    """Collect gradients twice, in bfloat16, the second far smaller than the first; and once when there are none."""
    module = Pieces(0).to(device())
    layer = make_layer(lab, module, torch.bfloat16)
    layer.synchronise = synchronise
    found = []
    for value in (1.0, 2**-9):
        layer.unshard()
        for full in (module.weight, module.bias):
            full.grad = torch.full_like(full, value)
        found.append(layer.collect_gradients())
        left = [full.grad is None for full in (module.weight, module.bias)]
    found.append(layer.collect_gradients())
    unsent = layer.unsent
    return {
        "found": found,
        "left": left,
        "missing": [gradient is None for gradient in unsent],
        "value": unsent[0].flatten()[0].item(),
        "dtype": str(unsent[0].dtype),
    }


def reduce_each(
    lab: ModuleType, gradients: Sequence[dict[str, Tensor]], dtypes: Sequence[torch.dtype | None]
) -> list[dict]:
    return [reduce(lab, gradients, dtype) for dtype in dtypes]


def reduce(lab: ModuleType, gradients: Sequence[dict[str, Tensor]], mixed_precision: torch.dtype | None) -> dict:
    """Reduce this rank's gradients of `Pieces`, one dict after the other; the shards' gradients afterwards."""
    module = Pieces(0).to(device())
    layer = make_layer(lab, module, mixed_precision)
    traffic = Traffic()
    with traffic:
        for each in gradients:
            layer.unsent = [each.get(name) for name in PIECES]
            if mixed_precision:
                layer.unsent = [None if g is None else g.to(mixed_precision) for g in layer.unsent]
            layer.start_reduction()
            traffic.mark("launched")
            emptied = all(gradient is None for gradient in layer.unsent)
            layer.finish_reduction()
            layer.finish_reduction()
    got = {}
    for name in PIECES:
        gradient = getattr(module, name).grad
        if gradient is not None:
            assert isinstance(gradient, DTensor), f"the gradient of {name} is no DTensor"
        got[name] = None if gradient is None else gradient.to_local().cpu()
    return {"gradients": got, "events": traffic.to_data(), "emptied": emptied}


# --- A stack of layers: what is launched when, and how much is in memory ----------------------------------------------

STACK_WIDTH = 64


class Marked(nn.Module):
    """A layer that notes when it computes, in forward and in backward. ``tag`` gives each layer its own size."""

    def __init__(self, index: int, ranks: int, traffic: Traffic) -> None:
        super().__init__()
        self.index, self.traffic = index, traffic
        generator = torch.Generator().manual_seed(index)
        self.weight = nn.Parameter(torch.randn(STACK_WIDTH, STACK_WIDTH, generator=generator) / STACK_WIDTH**0.5)
        self.tag = nn.Parameter(torch.zeros((index + 1) * ranks))

    def forward(self, x: Tensor) -> Tensor:
        self.traffic.mark(f"forward {self.index}")
        return MarkBackward.apply(x @ self.weight + self.tag.sum(), self)


class MarkBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Marked) -> Tensor:
        ctx.layer = layer
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.layer.traffic.mark(f"backward {ctx.layer.index}")
        return gradient, None


class Stack(nn.Sequential):
    """Every second layer gets its input by keyword."""

    def forward(self, x: Tensor) -> Tensor:
        for index, layer in enumerate(self):
            x = layer(x=x) if index % 2 else layer(x)
        return x


def stack_layer_bytes(index: int, ranks: int) -> int:
    """Of the whole layer, its rows padded to a multiple of the ranks."""
    return 4 * ranks * (-(-STACK_WIDTH // ranks) * STACK_WIDTH + index + 1)


def make_stack(lab: ModuleType, layers: int, **options: Any) -> tuple[Stack, Traffic]:
    """A stack of layers, each sharded, and the stack around them, which has no parameters of its own."""
    traffic = Traffic()
    stack = Stack(*(Marked(index, dist.get_world_size(), traffic) for index in range(layers))).to(device())
    for layer in stack:
        lab.shard_module(layer, **options)
    lab.shard_module(stack, **options)
    return refuse_built_ins(stack), traffic


def stack_input() -> Tensor:
    return torch.ones(1, STACK_WIDTH, device=device())


def observe_order(lab: ModuleType, layers: int, options: dict) -> list[dict]:
    """Calls and marks of the second step."""
    stack, traffic = make_stack(lab, layers, **options)
    stack(stack_input()).sum().backward()
    traffic.events.clear()
    with traffic:
        stack(stack_input()).sum().backward()
    return traffic.to_data()


def observe_memory(lab: ModuleType, layers: int, options: dict) -> dict[str, int]:
    """Bytes above the shards: at the peak of an evaluation and of a training step, and in between."""
    stack, _ = make_stack(lab, layers, **options)
    stack(stack_input()).sum().backward()
    stack.zero_grad()
    gc.collect()
    held = sum(parameter.to_local().nbytes for parameter in stack.parameters())
    measured = {}
    with PeakMemory(stack) as memory, torch.no_grad():
        stack(stack_input())
        measured["after evaluation"] = memory.live_bytes - held
    measured["evaluation"] = memory.peak_bytes - held
    with PeakMemory(stack) as memory:
        loss = stack(stack_input()).sum()
        measured["after forward"] = memory.live_bytes - held
        loss.backward()
        measured["after backward"] = memory.live_bytes - held
    measured["training"] = memory.peak_bytes - held
    return measured


def observe_evaluation(lab: ModuleType, layers: int, options: dict) -> dict[str, Any]:
    """An evaluation in between training steps: its calls, the names it leaves, and the step after it."""
    stack, _ = make_stack(lab, layers, **options)
    stack(stack_input()).sum().backward()
    with Traffic() as evaluation, torch.no_grad():
        output = stack(stack_input())
    sharded = all(isinstance(parameter, DTensor) for parameter in stack.parameters())
    with Traffic() as training:
        stack(stack_input()).sum().backward()
    return {
        "evaluation": evaluation.ops(),
        "training": training.ops(),
        "sharded": sharded,
        "output": output.cpu(),
    }


def other_order(lab: ModuleType, orders: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    """Layers run in another order each time, and not all of them: what is gathered ahead may not be needed."""

    class Chosen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(4))
            for index, layer in enumerate(self.layers):
                nn.init.eye_(layer.weight)
                layer.weight.data.mul_(index + 1)

        def forward(self, x: Tensor, order: Sequence[int]) -> Tensor:
            for index in order:
                x = self.layers[index](x)
            return x

    model = Chosen().to(device())
    for layer in model.layers:
        lab.shard_module(layer, prefetch=2)
    lab.shard_module(model, prefetch=2)
    gc.collect()
    results = []
    with PeakMemory(model) as memory:
        before = memory.live_bytes
        for order in orders:
            output = model(torch.ones(1, 4, device=device()), order)
            output.sum().backward()
            value = output.flatten()[0].item()
            del output
            used = [layer.weight.grad is not None for layer in model.layers]
            model.zero_grad()
            results.append({"value": value, "used": used, "left": memory.live_bytes - before})
    return results


def checkpointed(lab: ModuleType, x: Tensor, ranks: int) -> dict[str, Any]:
    """A stack whose layers are recomputed in backward: activation checkpointing around each."""

    class Recomputed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(seeded_linear(6, index) for index in range(3))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = checkpoint(layer, x.tanh(), use_reentrant=False)
            return x

    model = Recomputed().to(device())
    for layer in model.layers:
        lab.shard_module(layer)
    lab.shard_module(model)
    with set_checkpoint_early_stop(False):  # recompute the layers to their end, hooks after forward included
        model(x).square().mean().backward()
        model.zero_grad()
        with Traffic() as traffic:
            model(x).square().mean().backward()
    return {"gradients": gradients_of(model), "ops": traffic.ops()}


# --- Between two forwards ---------------------------------------------------------------------------------------------


def forward_again(lab: ModuleType) -> dict[str, dict[str, list[float]]]:
    """Of a product of two weights, kept whole after forward and freed, when something has happened since its last
    training step: what it is, from the shards, and what the model gives."""

    class Two(nn.Module):
        """Gives its input and the input times a weight."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.full((1,), 2.0))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x + self.weight, x * self.weight

    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.error = Two(), Two(), False

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)[1]
            if self.error:
                raise RuntimeError("out of memory, say")
            return self.second(x)[1]

    def forward_and_step(model: Product) -> None:
        model(torch.ones(1, device=device()))
        optimizer.step()

    def error_and_step(model: Product) -> None:
        model.error = True
        with suppress(RuntimeError):
            model(torch.ones(1, device=device()))
        model.error = False
        optimizer.step()

    def forward_and_load(model: Product) -> None:
        state = {name: 3 * shard for name, shard in model.state_dict().items()}
        model(torch.ones(1, device=device()))
        model.load_state_dict(state)

    results = {}
    for keep in (True, False):
        model = Product().to(device())
        for module in (model.first, model.second, model):
            lab.shard_module(module, reshard_after_forward=not keep)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
        results[f"reshard_after_forward={not keep}"] = happened = {}
        for change in (forward_and_step, error_and_step, forward_and_load):
            model.zero_grad()
            model(torch.ones(1, device=device())).sum().backward()
            change(model)
            output = model(torch.ones(1, device=device())).item()
            model(torch.ones(1, device=device())).sum().backward()
            product = math.prod(whole(p, name).item() for name, p in model.named_parameters())
            happened[change.__name__.replace("_", " ")] = [product, output]
    return results


# --- Training ---------------------------------------------------------------------------------------------------------


def train(
    lab: ModuleType,
    batches: Sequence[Tensor],
    means: Sequence[float],
    groups: Sequence[Sequence[int]] | None,
    options: dict,
) -> dict[str, Any]:
    """Train `Network` on this rank's batches, one step each.

    Args:
        batches: this rank's tokens [1, T] of every step.
        means: of every step, predicted tokens per rank in the mean over the ranks of this rank's group.
        groups: split the ranks into these groups; None: one group of all.

    Returns:
        losses: of this rank; gradients: whole, of every step; parameters: whole, at the end; rows: what this rank holds
        of each.
    """
    group = own_group(groups)
    model = shard_network(lab, Network(seed=0).to(device()), group=group, **options)
    optimizer = adam(model)
    losses, gradients = [], []
    for tokens, mean in zip(batches, means, strict=True):
        optimizer.zero_grad()
        loss = summed_token_loss(model, tokens) / mean
        loss.backward()
        losses.append(loss.item())
        gradients.append(gradients_of(model))
        optimizer.step()
    rows = {name: len(parameter.to_local()) for name, parameter in model.named_parameters()}
    devices = {parameter.to_local().device.type for parameter in model.parameters()}
    return {
        "losses": losses,
        "gradients": gradients,
        "parameters": parameters_of(model),
        "rows": rows,
        "devices": sorted(devices),
    }


def train_in_groups(
    lab: ModuleType, own: tuple[Sequence[Tensor], Sequence[float]], groups: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """`train` with this rank's batches and means in one argument."""
    return train(lab, *own, groups, {})


def traffic_of_a_step(lab: ModuleType, tokens: Tensor, options: dict) -> list[dict]:
    """The calls of the second step of training `Network`."""
    model = shard_network(lab, Network(seed=0).to(device()), **options)
    summed_token_loss(model, tokens).backward()
    with Traffic() as traffic:
        summed_token_loss(model, tokens).backward()
    return traffic.to_data()


CONFIG = TransformerConfig(vocab=67, hidden=32, layers=2, heads=2, kv_heads=1, ffn=80, sequence=16)


def against_torch(
    lab: ModuleType, batches: Sequence[Tensor], cases: Sequence[tuple[torch.dtype | None, bool]]
) -> list[dict[str, dict]]:
    """A Transformer by the learner's `shard_module` and by torch's `fully_shard`, on the same batches.

    Args:
        cases: pairs of mixed precision and reshard_after_forward.
    """
    return [_against_torch(lab, batches, *case) for case in cases]


def _against_torch(
    lab: ModuleType, batches: Sequence[Tensor], mixed_precision: torch.dtype | None, reshard: bool
) -> dict[str, dict]:
    policy = MixedPrecisionPolicy(param_dtype=mixed_precision, reduce_dtype=torch.float32)

    def mine(module: nn.Module, reshard: bool) -> None:
        lab.shard_module(module, reshard_after_forward=reshard, mixed_precision=mixed_precision)
        refuse_built_ins(module)

    def theirs(module: nn.Module, reshard: bool) -> None:
        fully_shard(module, reshard_after_forward=reshard, mp_policy=policy)

    return {"mine": _train_gpt(mine, batches, reshard), "torch": _train_gpt(theirs, batches, reshard)}


def _train_gpt(shard: Callable[[nn.Module, bool], None], batches: Sequence[Tensor], reshard: bool) -> dict:
    losses = []
    gc.collect()
    with PeakMemory() as memory:
        model = build(CONFIG).to(device())
        for block in model.blocks:
            shard(block, reshard)
        shard(model, False)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)
        for tokens in batches:
            with Traffic() as traffic:
                loss = next_token_loss(model(tokens), tokens)
                loss.backward()
                optimizer.step()
                gradients = [parameter.grad.to_local().cpu() for parameter in model.parameters()]
                optimizer.zero_grad()
            losses.append(loss.item())
    calls = sorted((call.op, call.payload_bytes, call.dtype) for call in traffic.calls)
    return {"losses": losses, "gradients": gradients, "peak_bytes": memory.peak_bytes, "calls": calls}


def compute_dtypes(lab: ModuleType, x: Tensor, dtype: torch.dtype | None) -> dict[str, Any]:
    """Which dtypes the layers of a small model meet, and what the shards have."""
    seen: dict[str, str] = {}

    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Tensor, positions: Tensor, *, mask: Tensor) -> Tensor:
            seen["input"], seen["integers"], seen["keyword"] = str(x.dtype), str(positions.dtype), str(mask.dtype)
            seen["weight"] = str(self.inner.weight.dtype)
            return self.inner(x)

    model = Looks().to(device())
    lab.shard_module(model, mixed_precision=dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    output = model(x, torch.arange(3, device=device()), mask=x)
    seen["output"] = str(output.dtype)
    output.float().sum().backward()
    seen["shard"], seen["gradient"] = str(model.inner.weight.dtype), str(model.inner.weight.grad.dtype)
    seen["gradient of bias"] = whole(model.inner.bias.grad, "the gradient of a bias").tolist()
    optimizer.step()
    return seen


# --- no_sync ----------------------------------------------------------------------------------------------------------


def accumulate(lab: ModuleType, micro_batches: Sequence[Tensor]) -> list[dict[str, Any]]:
    """Train a step on micro-batches: every one reduced, and all but the last inside `no_sync`."""
    return [_accumulate(lab, micro_batches, synchronised) for synchronised in (True, False)]


def _accumulate(lab: ModuleType, micro_batches: Sequence[Tensor], synchronised: bool) -> dict[str, Any]:
    model = shard_network(lab, Network(seed=0).to(device()))
    *first, last = micro_batches
    with Traffic() as inside, nullcontext() if synchronised else lab.no_sync(model):
        for tokens in first:
            summed_token_loss(model, tokens).backward()
    local = [parameter.grad is None for parameter in model.parameters()]
    with Traffic() as outside:
        summed_token_loss(model, last).backward()
    return {
        "inside": inside.ops(),
        "outside": outside.ops(),
        "no_gradients_inside": all(local),
        "gradients": gradients_of(model),
    }


def leave_no_sync_by_an_error(lab: ModuleType, x: Tensor) -> list[float]:
    """The gradient of a weight [1, 2] whose backward comes after a `no_sync` that ended in an error, around another."""
    module = nn.Linear(2, 1, bias=False).to(device())
    model = lab.shard_module(module)
    with suppress(RuntimeError), lab.no_sync(model):
        with lab.no_sync(model):
            pass
        raise RuntimeError("out of memory, say")
    model(x).sum().backward()
    return whole(module.weight.grad, "the gradient").flatten().tolist()


def sync_by_moment(lab: ModuleType, x: Tensor) -> list[int]:
    """Reduce-scatters of a backward outside `no_sync` whose forward was inside, then the other way round."""
    model = lab.shard_module(nn.Linear(2, 1).to(device()))
    counts = []
    with lab.no_sync(model):
        output = model(x)
    with Traffic() as traffic:
        output.sum().backward()
    counts.append(traffic.count("reduce_scatter"))
    output = model(x)
    with lab.no_sync(model), Traffic() as traffic:
        output.sum().backward()
    counts.append(traffic.count("reduce_scatter"))
    return counts


def accumulate_in_bfloat16(lab: ModuleType, additions: int) -> float:
    """The gradient of a weight after one backward that adds 1 and many that add 2^-9, in bfloat16, without sync."""
    model = lab.shard_module(nn.Linear(1, 1, bias=False).to(device()), mixed_precision=torch.bfloat16)
    with lab.no_sync(model):
        model(torch.ones(1, 1, device=device())).sum().backward()
        for _ in range(additions - 1):
            model(torch.full((1, 1), 2**-9, device=device())).sum().backward()
    model(torch.full((1, 1), 2**-9, device=device())).sum().backward()
    return whole(model.weight.grad, "the gradient").item()


# --- Clipping ---------------------------------------------------------------------------------------------------------


def clip(lab: ModuleType, tokens: Tensor, max_norms: Sequence[float]) -> list[dict[str, Any]]:
    """Gradients of `Network` clipped to each norm, the embedding left unsharded: its gradient is averaged by hand."""
    results = []
    for max_norm in max_norms:
        model = Network(seed=0).to(device())
        for name in INNER:
            lab.shard_module(model.get_submodule(name))
        summed_token_loss(model, tokens).backward()
        for parameter in (model.embedding.weight, model.scale):
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        with Traffic() as traffic:
            norm = lab.clip_grad_norm(model.parameters(), max_norm)
        results.append(
            {
                "norm": norm.item(),
                "gradients": {
                    name: None
                    if parameter.grad is None
                    else whole(parameter.grad, name)
                    if isinstance(parameter.grad, DTensor)
                    else parameter.grad.cpu()
                    for name, parameter in model.named_parameters()
                },
                "sent": traffic.payload_bytes(),
            }
        )
    return results


def clip_rows(
    lab: ModuleType, rows: int, max_norm: float, groups: Sequence[Sequence[int]] | None
) -> tuple[float, list[float]]:
    """Clip the gradient r + 3 of a weight [rows, 1], with some ranks that hold no row; in each group by itself."""
    layer = lab.shard_module(nn.Linear(1, rows, bias=False).to(device()), own_group(groups))
    layer(torch.ones(1, 1, device=device())).mul(torch.arange(rows, device=device()) + 3.0).sum().backward()
    norm = lab.clip_grad_norm(list(layer.parameters()), max_norm)
    return norm.item(), whole(layer.weight.grad, "the gradient").flatten().tolist()


def clip_without_gradients(lab: ModuleType) -> list[float]:
    """The norm when no parameter has a gradient, and when there is only a plain one, of 3 and 4."""
    layer = lab.shard_module(nn.Linear(1, 3).to(device()))
    plain = nn.Parameter(torch.zeros(2, device=device()))
    plain.grad = torch.tensor([3.0, 4.0], device=device())
    return [lab.clip_grad_norm(layer.parameters(), 1.0).item(), lab.clip_grad_norm(iter([plain]), 10.0).item()]


# --- Saving and loading -----------------------------------------------------------------------------------------------


def save_full(lab: ModuleType, tokens: Tensor, groups: Sequence[Sequence[int]] | None) -> dict[str, Any]:
    """The full state on this rank, as it was when training went on; saved by rank 0 of the group alone."""
    group = own_group(groups)
    model = shard_network(lab, Network(seed=3).to(device()), reshard_after_forward=False, group=group)
    model(tokens)  # with autograd, so that layers are whole in memory: a state dict holds shards all the same
    with Traffic() as traffic:
        state = lab.full_state_dict(model)
    if dist.get_rank(group) == 0:
        names, tied = list(state), state["embedding.weight"] is state["head.weight"]
        plain = all(type(tensor) is Tensor and tensor.device.type == "cpu" for tensor in state.values())
    else:
        names, tied, plain = list(state), None, None
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.to_local().add_(1)
    return {
        "names": names,
        "tied": tied,
        "plain": plain,
        "state": {name: tensor.clone() for name, tensor in state.items()},
        "largest": max((call.payload_bytes for call in traffic.calls), default=0),
        "gathers": traffic.count(),
    }


def load_full(lab: ModuleType, full: dict[str, Tensor], groups: Sequence[Sequence[int]] | None) -> dict[str, Any]:
    """A model of other weights after loading what rank 0 of the group has; an optimiser made before goes on with it."""
    group = own_group(groups)
    model = shard_network(lab, Network(seed=5 + dist.get_rank()).to(device()), group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    lab.load_full_state_dict(model, full if dist.get_rank(group) == 0 else {})
    loaded = parameters_of(model) | {"steps": model.steps}
    loaded = {name: tensor.cpu().clone() for name, tensor in loaded.items()}
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return {"loaded": loaded, "stepped": parameters_of(model)}


def load_bad(lab: ModuleType, states: Sequence[dict[str, Tensor] | None]) -> list[dict[str, Any]]:
    """The error of this rank, and whether the model was left alone, for each state of rank 0, and then for the sharded
    state of the model itself."""
    results = []
    for state in [*states, "its own"]:
        model = shard_network(lab, Network(seed=0).to(device()))
        state = model.state_dict() if state == "its own" else state
        before = [parameter.to_local().clone() for parameter in model.parameters()]
        message = error_message(lambda: lab.load_full_state_dict(model, state if dist.get_rank() == 0 else {}))  # noqa: B023
        kept = all(torch.equal(a, b.to_local()) for a, b in zip(before, model.parameters(), strict=True))
        results.append({"message": message, "kept": kept})
    return results


def checkpoint_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def save_distributed(lab: ModuleType, batches: Sequence[Tensor], folder: str) -> list[float]:
    """Train some steps, save with torch.distributed.checkpoint, train on; the losses after saving."""
    model = shard_network(lab, Network(seed=0).to(device()))
    optimizer = adam(model)
    half = len(batches) // 2
    _steps(model, optimizer, batches[:half])
    dcp.save(checkpoint_state(model, optimizer), checkpoint_id=folder)
    return _steps(model, optimizer, batches[half:])


def load_distributed(lab: ModuleType, batches: Sequence[Tensor], folder: str) -> list[float]:
    """The second half of `save_distributed`, on other ranks, from a model with other weights."""
    model = shard_network(lab, Network(seed=8).to(device()))
    optimizer = adam(model)
    half = len(batches) // 2
    for parameter in model.parameters():  # makes the optimiser's state, which is then filled
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    model.spare.zero_grad()
    optimizer.step()
    state = checkpoint_state(model, optimizer)
    dcp.load(state, checkpoint_id=folder)
    optimizer.load_state_dict(state["optimizer"])
    return _steps(model, optimizer, batches[half:])


def _steps(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Sequence[Tensor]) -> list[float]:
    """Train on rows [B, T] that all ranks have; every rank takes all of them, so that any number of ranks is alike."""
    losses = []
    for tokens in batches:
        optimizer.zero_grad()
        loss = sum(summed_token_loss(model, row[None]) for row in tokens) / tokens.numel()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


# --- Bad input --------------------------------------------------------------------------------------------------------


@contextmanager
def no_traffic() -> Iterator[None]:
    with Traffic() as traffic:
        yield
    assert not traffic.calls, f"{traffic.calls[0]} before the error: ranks with good input would wait for ever"


def refusals(lab: ModuleType) -> dict[str, str]:
    """The message of the ValueError for each bad input; "" if there was none."""
    group = dist.new_group([0], timeout=datetime.timedelta(seconds=30))  # made by all, for rank 0

    def linear() -> nn.Linear:
        return nn.Linear(3, 4).to(device())

    def twice() -> None:
        lab.shard_module(lab.shard_module(linear()))

    def outside_in() -> None:
        outer = nn.Sequential(linear(), linear())
        lab.shard_module(outer)
        lab.shard_module(outer[0])

    def tied() -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).to(device())
        model[1].weight = model[0].weight
        lab.shard_module(model[0])
        lab.shard_module(model)

    def scalar() -> None:
        module = linear()
        module.temperature = nn.Parameter(torch.ones((), device=device()))
        lab.shard_module(module)

    cases = {
        "negative prefetch": lambda: lab.shard_module(linear(), prefetch=-1),
        "prefetch of 1.5": lambda: lab.shard_module(linear(), prefetch=1.5),
        "a dtype of integers": lambda: lab.shard_module(linear(), mixed_precision=torch.int64),
        "the name of a dtype": lambda: lab.shard_module(linear(), mixed_precision="bf16"),
        "no parameters": lambda: lab.shard_module(nn.ReLU()),
        "sharded already": twice,
        "inside a sharded one": outside_in,
        "tied to a sharded one": tied,
        "two dtypes": lambda: lab.shard_module(nn.Sequential(linear(), linear().double())),
        "a number": scalar,
        "foreign group": (lambda: lab.shard_module(linear(), group=group)) if dist.get_rank() == 1 else None,
        "no_sync without shards": lambda: lab.no_sync(linear()).__enter__(),
        "full state without shards": lambda: lab.full_state_dict(linear()),
        "load without shards": lambda: lab.load_full_state_dict(linear(), {}),
        "max_norm of 0": lambda: lab.clip_grad_norm(lab.shard_module(linear()).parameters(), 0.0),
    }
    messages = {}
    for name, call in cases.items():
        if call is not None:
            with no_traffic():
                messages[name] = error_message(call)
    return messages
