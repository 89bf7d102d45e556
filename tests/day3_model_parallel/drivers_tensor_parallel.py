"""What runs on each rank in the tests of 3.1, around the learner's functions and layers: build, run, observe.

Everything in here gives back plain data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from shardlab.grade.drivers import own_group
from shardlab.models import Transformer, TransformerConfig, build, next_token_loss
from shardlab.observe import PeakMemory, Traffic
from shardlab.ranks import device

State = dict[str, Tensor]


def plain(tensor: Tensor) -> Tensor:
    """A copy on the CPU, outside autograd; of a DTensor this rank's part."""
    return (tensor.to_local() if is_dtensor(tensor) else tensor).detach().cpu().clone()


def is_dtensor(tensor: Tensor) -> bool:
    """Without importing DTensor, which takes a second on every rank of every test."""
    return hasattr(tensor, "device_mesh")


def parameters_of(module: nn.Module) -> State:
    return {name: plain(parameter) for name, parameter in module.named_parameters()}


def gradients_of(module: nn.Module) -> State:
    """Gradients of those parameters that have one, cut as the parameters are (torch 2.13 leaves that of an embedding
    which is a DTensor whole)."""
    return {name: plain(cut_gradient(own)) for name, own in module.named_parameters() if own.grad is not None}


def cut_gradient(parameter: Tensor) -> Tensor:
    gradient = parameter.grad
    return gradient.redistribute(placements=parameter.placements) if is_dtensor(gradient) else gradient


def refusal(call: Callable[[], object]) -> tuple[str, int]:
    """The message of the ValueError that ``call`` raises ("" if none), and the calls it made before."""
    with Traffic() as traffic:
        try:
            call()
        except ValueError as error:
            return str(error), traffic.count()
    return "", traffic.count()


# --- Primitives and mirrored functions --------------------------------------------------------------------------------


def blocks(lab: ModuleType, tensor: Tensor, cases: Sequence[tuple[int, int]]) -> list[Tensor]:
    """`own_block` of ``tensor`` for each (dim, replicas)."""
    return [plain(lab.own_block(tensor, dim, replicas=replicas)) for dim, replicas in cases]


def refused_blocks(lab: ModuleType, cases: Sequence[tuple[Sequence[int], int, int]]) -> list[tuple[str, int]]:
    """What `own_block` says to each (shape, dim, replicas)."""
    return [refusal(partial(lab.own_block, torch.zeros(*shape), dim, None, replicas)) for shape, dim, replicas in cases]


def combine(lab: ModuleType, own: Sequence[Tensor], name: str, options: Sequence[dict]) -> list[dict]:
    """`all_reduce` or `all_gather` of each tensor of this rank, as it is and transposed: result, what is left of the
    input, and traffic."""
    found = []
    for tensor, option in zip(own, options, strict=True):
        for given in (tensor.clone(), tensor.clone().mT):
            with Traffic() as traffic:
                result = getattr(lab, name)(given, **option)
            found.append({"result": plain(result), "input": plain(given), "traffic": traffic.to_data()})
    return found


def mirror(lab: ModuleType, own: Sequence[tuple[Tensor, Tensor]], name: str, options: Sequence[dict]) -> list[dict]:
    """One of the four functions on each (x, upstream gradient) of this rank, laid out so that neither is contiguous.

    Returns:
        For each the output, the gradient of x, what is left of x and of the upstream gradient, and both traffics.
    """
    found = []
    for (x, upstream), option in zip(own, options, strict=True):
        leaf = x.mT.contiguous().mT.requires_grad_()
        given = upstream.mT.contiguous().mT
        with Traffic() as forward:
            y = getattr(lab, name)(leaf, **option)
        with Traffic() as backward:
            y.backward(given)
        found.append(
            {
                "output": plain(y),
                "gradient": plain(leaf.grad),
                "x": plain(leaf),
                "upstream": plain(given),
                "forward": forward.to_data(),
                "backward": backward.to_data(),
            }
        )
    return found


# --- Layers -----------------------------------------------------------------------------------------------------------


def observe_layer(layer: nn.Module, inputs: tuple, upstream: Tensor, times: int = 1) -> dict[str, Any]:
    """Run ``layer`` forward and backward, ``times`` times, on inputs of which the first may get a gradient.

    Returns:
        output, gradient (of the first input, in the last run), parameters, gradients (summed over the runs), frozen:
        names; forward and backward: traffic of the last run; parameter_bytes: memory that belongs to the parameters;
        held: bytes of parameters, buffers and other tensors that took part in the last forward and that nobody made
        there, and what was summed or gathered; working: how many of them the inputs, the output and a copy of it are.
    """
    x, *others = inputs
    for _ in range(times):
        leaf = x.clone().requires_grad_() if x.is_floating_point() else x
        with PeakMemory(layer) as memory, Traffic() as forward:
            y = layer(leaf, *others)
        with Traffic() as backward:
            y.backward(upstream)
    return {
        "output": plain(y),
        "gradient": plain(leaf.grad) if leaf.is_floating_point() else None,
        "parameters": parameters_of(layer),
        "gradients": gradients_of(layer),
        "frozen": [name for name, parameter in layer.named_parameters() if not parameter.requires_grad],
        "forward": forward.to_data(),
        "backward": backward.to_data(),
        "parameter_bytes": sum(parameter.untyped_storage().nbytes() for parameter in layer.parameters()),
        "held": sum(memory.live_by_kind[kind] for kind in ("parameter", "buffer", "other")),
        "working": sum(tensor.nbytes for tensor in (x, *others)) + 2 * y.nbytes,
    }


def linear(weight: Tensor, bias: Tensor | None, frozen: bool = False) -> nn.Linear:
    dense = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, dtype=weight.dtype, device=weight.device)
    with torch.no_grad():
        dense.weight.copy_(weight)
        if bias is not None:
            dense.bias.copy_(bias)
    dense.weight.requires_grad_(not frozen)
    return dense


def linear_layers(
    lab: ModuleType,
    own: Sequence[tuple[Tensor, Tensor]],
    name: str,
    weight: Tensor,
    bias: Tensor,
    cases: Sequence[dict],
) -> list[dict]:
    """`ColumnParallelLinear` or `RowParallelLinear` for each case: ``bias`` and ``frozen`` are the driver's, all else
    are the layer's options. ``own`` are this rank's (x, upstream gradient) for each case."""
    found = []
    for (x, upstream), case in zip(own, cases, strict=True):
        options = dict(case)
        dense = linear(weight, bias if options.pop("bias", True) else None, options.pop("frozen", False))
        layer = getattr(lab, name)(dense, None, **options)
        del dense
        found.append(observe_layer(layer, (x,), upstream, times=2))
    return found


def refused_layers(lab: ModuleType, cases: Sequence[tuple[str, int, int, dict]]) -> list[tuple[str, int]]:
    """What each layer (name, first size, second size, options) says to a dense one of these sizes."""
    found = []
    for name, first, second, options in cases:
        kind = nn.Embedding if name == "VocabParallelEmbedding" else nn.Linear
        dense = kind(first, second).to(device())
        found.append(refusal(partial(getattr(lab, name), dense, None, **options)))
    return found


def embedding(lab: ModuleType, weight: Tensor, tokens: Tensor, upstream: Tensor) -> dict:
    dense = nn.Embedding.from_pretrained(weight.clone(), freeze=False)
    layer = lab.VocabParallelEmbedding(dense)
    del dense
    return observe_layer(layer, (tokens,), upstream, times=2)


# --- Loss -------------------------------------------------------------------------------------------------------------


def losses(lab: ModuleType, own: Sequence[Tensor], targets: Sequence[Tensor], cases: Sequence[dict]) -> list[dict]:
    """`vocab_parallel_cross_entropy` of this rank's logits for each case of options; ``factor`` (1) multiplies the loss
    before backward."""
    found = []
    for logits, target, case in zip(own, targets, cases, strict=True):
        options = dict(case)
        factor = options.pop("factor", 1.0)
        leaf = logits.clone().requires_grad_()
        with Traffic() as forward:
            loss = lab.vocab_parallel_cross_entropy(leaf, target, **options)
        with Traffic() as backward:
            (factor * loss).backward()
        found.append(
            {
                "loss": plain(loss),
                "gradient": plain(leaf.grad),
                "logits": plain(leaf),
                "forward": forward.to_data(),
                "backward": backward.to_data(),
            }
        )
    return found


# --- Random numbers ---------------------------------------------------------------------------------------------------


def draws(lab: ModuleType, seed: int) -> dict[str, list[Tensor]]:
    """Numbers from both streams and from the global one, which has another seed on each rank."""
    torch.manual_seed(1000 + dist.get_rank())
    streams = lab.RandomStreams(seed)
    found = {"replicated": [], "sharded": [], "global": [], "after an error": []}
    for count in (3, 5):
        found["global"].append(plain(torch.rand(4, device=device())))
        for name in ("replicated", "sharded"):
            for _ in range(count if name == "sharded" else 1):
                with streams.fork(sharded=name == "sharded"):
                    found[name].append(plain(torch.rand(4, device=device())))
    with suppress(ZeroDivisionError), streams.fork(sharded=False):
        found["replicated"].append(plain(torch.rand(4, device=device())))
        raise ZeroDivisionError
    found["global"].append(plain(torch.rand(4, device=device())))
    with streams.fork(sharded=False):
        found["after an error"].append(plain(torch.rand(4, device=device())))
    return found


def global_draws(lab: ModuleType) -> list[Tensor]:
    """The global numbers of `draws` if nothing else draws."""
    torch.manual_seed(1000 + dist.get_rank())
    return [plain(torch.rand(4, device=device())) for _ in range(3)]


def dropouts(lab: ModuleType, seed: int, p: float, numel: int) -> dict[str, Any]:
    """Masks of two replicated and two sharded dropouts, drawn alternately; gradients; evaluation in between."""
    torch.manual_seed(1000 + dist.get_rank())
    streams = lab.RandomStreams(seed)
    layers = {name: lab.ParallelDropout(p, streams, sharded=name == "sharded") for name in ("replicated", "sharded")}
    found: dict[str, Any] = {"replicated": [], "sharded": [], "gradients": [], "evaluation": []}
    for _ in range(2):
        for name, layer in layers.items():
            x = torch.ones(numel, device=device(), requires_grad=True)
            y = layer(x)
            y.sum().backward()
            found[name].append(plain(y))
            found["gradients"].append(bool((x.grad == y).all()))
            layer.eval()
            found["evaluation"].append(bool((layer(x) == x).all()))
            layer.train()
    found["global"] = plain(torch.rand(4, device=device()))
    return found


# --- Blocks and models ------------------------------------------------------------------------------------------------


def dense_model(config: TransformerConfig, seed: int) -> Transformer:
    """With weights as large as those of a trained model: at the course's 0.02 attention is nearly uniform, and no
    mistake in it shows."""
    model = build(config, seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(10)
    return model.to(device())


def attention(lab: ModuleType, config: TransformerConfig, seed: int, x: Tensor, upstream: Tensor) -> dict:
    """`ParallelAttention` from the first block of `dense_model`, two backward passes."""
    layer = lab.ParallelAttention(dense_model(config, seed).blocks[0].attention)
    return observe_layer(layer, (x, torch.arange(x.shape[1], device=x.device)), upstream, times=2)


def mlp(lab: ModuleType, config: TransformerConfig, seed: int, x: Tensor, upstream: Tensor) -> dict:
    """`ParallelMLP` from the first block of `dense_model`, two backward passes."""
    return observe_layer(lab.ParallelMLP(dense_model(config, seed).blocks[0].mlp), (x,), upstream, times=2)


def train(
    lab: ModuleType,
    config: TransformerConfig,
    seed: int,
    tokens: Tensor,
    steps: int,
    groups: Sequence[Sequence[int]] | None = None,
) -> dict[str, Any]:
    """Train `shard_transformer` of `dense_model` with SGD on tokens [B, T], every rank with another global seed.

    Returns:
        losses of the steps; held: bytes of parameters and buffers, also of those that the model only computes with;
        logits: this rank's block, in the first step; gradients, by name, and the traffic of forward, loss and backward,
        in the first step; state: `full_state_dict` at the end; tied: embedding and head have one weight.
    """
    torch.manual_seed(1000 + dist.get_rank())
    group = own_group(groups)
    model = lab.shard_transformer(dense_model(config, seed), group, seed=seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    found: dict[str, Any] = {"losses": []}
    for step in range(steps):
        with PeakMemory(model) as memory, Traffic() as forward:
            logits = model(tokens)
        with Traffic() as of_loss:
            loss = lab.vocab_parallel_cross_entropy(logits[:, :-1], tokens[:, 1:], group=group)
        with Traffic() as backward:
            loss.backward()
        if step == 0:
            traffics = {"forward": forward, "loss": of_loss, "backward": backward}
            found |= {name: traffic.to_data() for name, traffic in traffics.items()}
            found |= {"logits": plain(logits), "gradients": gradients_of(model)}
            found["held"] = memory.live_by_kind["parameter"] + memory.live_by_kind["buffer"]
        found["losses"].append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    found["state"] = {name: plain(tensor) for name, tensor in lab.full_state_dict(model).items()}
    found["tied"] = model.head.weight is model.embedding.weight
    return found


def refused_models(lab: ModuleType, name: str, configs: Sequence[TransformerConfig]) -> list[tuple[str, int, bool]]:
    """What `shard_transformer` or `parallelize` says to each model, calls made before, and is the model as it was?"""
    found = []
    target = init_device_mesh(device().type, (dist.get_world_size(),)) if name == "parallelize" else None
    for config in configs:
        model = build(config).to(device())
        before = [type(module) for module in model.modules()]
        said, calls = refusal(partial(getattr(lab, name), model, target))
        found.append((said, calls, before == [type(module) for module in model.modules()]))
    return found


def exchange_states(lab: ModuleType, configs: Sequence[TransformerConfig]) -> list[dict[str, Any]]:
    """For each config: shard a model of seed 1, load the state of seed 2 into it, and join it again.

    Returns:
        shards: what `shard_state_dict` gave; elements: that the memory of each holds; joined: `full_state_dict`.
    """
    found = []
    for config in configs:
        model = lab.shard_transformer(build(config, 1).to(device()))
        shards = lab.shard_state_dict(model, build(config, 2).to(device()).state_dict())
        held = {name: shard.untyped_storage().nbytes() // shard.itemsize for name, shard in shards.items()}
        model.load_state_dict(shards)
        found.append(
            {
                "shards": {name: plain(shard) for name, shard in shards.items()},
                "elements": held,
                "joined": {name: plain(tensor) for name, tensor in lab.full_state_dict(model).items()},
            }
        )
    return found


def run_dtensor(lab: ModuleType, config: TransformerConfig, seed: int, tokens: Tensor) -> dict[str, Any]:
    """One forward and backward of `parallelize`, with torch's own loss; see `train` for what comes back."""
    from torch.distributed.tensor.parallel import loss_parallel

    model = lab.parallelize(dense_model(config, seed), init_device_mesh(device().type, (dist.get_world_size(),)))
    with loss_parallel():
        with Traffic() as forward:
            logits = model(tokens)
        with Traffic() as of_loss:
            loss = next_token_loss(logits, tokens)
        with Traffic() as backward:
            loss.backward()
    if not is_dtensor(logits):
        return {"dtensor": False}
    return {
        "dtensor": True,
        "losses": [loss.full_tensor().item() if is_dtensor(loss) else loss.item()],
        "logits": plain(logits),
        "gradients": gradients_of(model),
        "numel": {name: plain(parameter).numel() for name, parameter in model.named_parameters()},
        "forward": forward.to_data(),
        "loss": of_loss.to_data(),
        "backward": backward.to_data(),
        "tied": model.head.weight is model.embedding.weight,
    }
