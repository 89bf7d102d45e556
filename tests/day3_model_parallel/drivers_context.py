"""What runs on each rank in the tests of 3.3, around the learner's functions and layers: build, run, observe.

Everything in here gives back plain data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from shardlab.grade.drivers import error_message, own_group
from shardlab.models import Transformer, TransformerConfig, build
from shardlab.observe import PeakMemory, Traffic
from shardlab.ranks import device


def plain(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().clone()


def gradients_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: plain(own.grad) for name, own in module.named_parameters() if own.grad is not None}


def refusal(call: Callable[[], object]) -> tuple[str, int]:
    """The message of the ValueError that ``call`` raises ("" if none), and the calls it made before."""
    with Traffic() as traffic:
        message = error_message(call)
    return message, traffic.count()


def refused(lab: ModuleType, cases: Sequence[tuple[str, tuple]]) -> list[tuple[str, int]]:
    """What the lab's functions say to these arguments; a list of sizes stands for zeros of that shape."""

    def argument(given: Any) -> Any:
        return torch.zeros(given) if isinstance(given, list) else given

    return [refusal(partial(getattr(lab, name), *map(argument, given))) for name, given in cases]


# --- Sequence parallelism ---------------------------------------------------------------------------------------------


def transform(lab: ModuleType, own: tuple[Tensor, Tensor], name: str, backward: bool) -> dict[str, Any]:
    """A function of x [B, T, C] on this rank's (x, upstream gradient), neither of them contiguous; with traffic."""
    x, upstream = (each.mT.contiguous().mT for each in own)
    leaf = x.clone().requires_grad_(backward)
    with Traffic() as forward:
        y = getattr(lab, name)(leaf)
    with Traffic() as behind:
        if backward:
            y.backward(upstream)
    return {
        "output": plain(y),
        "gradient": plain(leaf.grad) if backward else None,
        "x": plain(leaf),
        "forward": forward.to_data(),
        "backward": behind.to_data(),
    }


def normalise(lab: ModuleType, own: tuple[Tensor, Tensor], weight: Tensor) -> dict[str, Any]:
    """`SequenceParallelNorm` with this weight on this rank's (x, upstream gradient), twice: gradients add up."""
    x, upstream = own
    dense = nn.RMSNorm(weight.numel(), eps=1e-5, dtype=weight.dtype)
    with torch.no_grad():
        dense.weight.copy_(weight)
    norm = lab.SequenceParallelNorm(dense)
    for _ in range(2):
        leaf = x.clone().requires_grad_()
        with Traffic() as forward:
            y = norm(leaf)
        with Traffic() as backward:
            y.backward(upstream)
    return {
        "output": plain(y),
        "gradient": plain(leaf.grad),
        "of_weight": plain(norm.weight.grad),
        "forward": forward.to_data(),
        "backward": backward.to_data(),
    }


def sequence_attention(
    lab: ModuleType, own: tuple[Tensor, Tensor], config: TransformerConfig, positions: Tensor
) -> dict[str, Any]:
    """`SequenceParallelAttention` of a seeded attention, forward and backward, with traffic."""
    x, upstream = own
    dense = build(config).blocks[0].attention.double()
    layer = lab.SequenceParallelAttention(dense)
    leaf = x.clone().requires_grad_()
    with Traffic() as forward:
        y = layer(leaf, positions)
    with Traffic() as backward:
        y.backward(upstream)
    return {
        "output": plain(y),
        "gradient": plain(leaf.grad),
        "gradients": gradients_of(layer),
        "forward": forward.to_data(),
        "backward": backward.to_data(),
    }


def sequence_model(lab: ModuleType, config: TransformerConfig, tokens: Tensor, dropout: float) -> dict[str, Any]:
    """A step of the model of `sequence_parallel`, and what its blocks and dropouts get to see."""
    from labs.day3_model_parallel.tensor_parallel import cuts_of, vocab_parallel_cross_entropy

    model = lab.sequence_parallel(build(config).to(device()))
    tokens = tokens.to(device())
    seen: list[list[int]] = []
    for module in (*model.blocks, *(block.attention_norm for block in model.blocks), model.norm):
        module.register_forward_hook(lambda _module, inputs, _output: seen.append(list(inputs[0].shape)))
    loss = vocab_parallel_cross_entropy(model(tokens)[:, :-1], tokens[:, 1:])
    with Traffic() as backward:
        loss.backward()
    drop = model.blocks[0].dropout
    drop.p = dropout
    return {
        "loss": loss.item(),
        "gradients": gradients_of(model),
        "cuts": {name: (cut.dim, cut.replicas) for name, cut in cuts_of(model).items()},
        "seen": seen,
        "tied": model.head.weight is model.embedding.weight,
        "masks": [plain(drop(torch.ones(1000, device=device())) > 0) for _ in range(2)],
        "sums_in_backward": backward.count("all_reduce"),
    }


# --- Attention in parts -----------------------------------------------------------------------------------------------


def merge(lab: ModuleType, cases: Sequence[tuple[Tensor, Tensor, Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    return [tuple(map(plain, lab.merge_attention(*case))) for case in cases]


def attend(
    lab: ModuleType, cases: Sequence[tuple[Tensor, Tensor, Tensor, bool]]
) -> list[tuple[tuple[Tensor, Tensor], int]]:
    """Output and log-sum-exp of each block, and the most bytes that were alive at once."""
    found = []
    for case in cases:
        with PeakMemory() as memory:
            made = lab.attend_block(*case)
        found.append((tuple(map(plain, made)), memory.peak_bytes))
    return found


def attend_backward(lab: ModuleType, cases: Sequence[tuple]) -> list[tuple[tuple[Tensor, ...], int]]:
    """The three gradients of each block, and the most bytes that were alive at once."""
    found = []
    for case in cases:
        with PeakMemory() as memory:
            made = lab.attend_block_backward(*case)
        found.append((tuple(map(plain, made)), memory.peak_bytes))
    return found


# --- The zig-zag ------------------------------------------------------------------------------------------------------


def positions(lab: ModuleType, cases: Sequence[tuple[int, int, int]]) -> list[Tensor]:
    return [lab.zigzag_positions(*case) for case in cases]


def split(lab: ModuleType, tensor: Tensor, dims: Sequence[int]) -> list[dict[str, Any]]:
    found = []
    for dim in dims:
        with Traffic() as traffic:
            own = lab.zigzag_split(tensor, dim)
        found.append({"own": plain(own), "calls": traffic.count(), "bytes": own.untyped_storage().nbytes()})
    return found


def merge_shards(lab: ModuleType, own: Sequence[tuple[Tensor, Tensor]], dims: Sequence[int]) -> list[dict[str, Any]]:
    """`zigzag_merge` of each (shard, upstream gradient)."""
    found = []
    for (shard, upstream), dim in zip(own, dims, strict=True):
        leaf = shard.clone().requires_grad_()
        with Traffic() as traffic:
            whole = lab.zigzag_merge(leaf, dim)
            whole.backward(upstream)
        found.append({"whole": plain(whole), "gradient": plain(leaf.grad), "traffic": traffic.to_data()})
    return found


def batches(lab: ModuleType, cases: Sequence[tuple[Tensor, Tensor | None]]) -> list[tuple[Tensor, ...]]:
    return [tuple(map(plain, lab.shard_batch(tokens, None, targets))) for tokens, targets in cases]


def losses(lab: ModuleType, own: Sequence[tuple[Tensor, Tensor]]) -> list[dict[str, Any]]:
    """`shard_loss` of each (logits, labels) of this rank."""
    found = []
    for logits, labels in own:
        leaf = logits.clone().requires_grad_()
        with Traffic() as traffic:
            loss = lab.shard_loss(leaf, labels)
        loss.backward()
        found.append({"loss": loss.item(), "gradient": plain(leaf.grad), "sent": traffic.payload_bytes()})
    return found


# --- The ring ---------------------------------------------------------------------------------------------------------


def shift(lab: ModuleType, own: tuple[Tensor, Tensor]) -> dict[str, Any]:
    """Two tensors passed on at once, taken in the other order. Rank 1 waits for a message that rank 0 sends between
    starting its shifts and waiting for them."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    signal = torch.zeros(1)
    if rank == 1:
        dist.recv(signal, 0, tag=7)
    with Traffic() as traffic:
        first, second = lab.pass_on(own[0]), lab.pass_on(own[1], None, 1)
    if rank == 0 and ranks > 1:
        dist.send(signal, 1, tag=7)
    later, earlier = second.wait(), first.wait()
    same = earlier.data_ptr() == own[0].data_ptr()
    return {
        "arrived": [plain(earlier), plain(later)],
        "own": list(map(plain, own)),
        "in_place": same,
        "traffic": traffic.to_data(),
    }


def walk(lab: ModuleType, own: Tensor) -> dict[str, Any]:
    """`circulate`, with a mark for each step of work; and the bytes alive while it runs."""
    seen, given = [], own.clone()
    with PeakMemory() as memory, Traffic() as traffic:
        for source, tensor in lab.circulate(given):
            traffic.mark("work")
            seen.append((source, plain(tensor[:1])))
            del tensor  # or it would be in memory until the next one has come
    return {"seen": seen, "own": plain(given), "peak": memory.peak_bytes, "traffic": traffic.to_data()}


def pairs(lab: ModuleType, sizes: Sequence[int], length: int, causal: bool) -> list[list[list[tuple[int, ...]]]]:
    """`visible` for each number of ranks, rank and source, as (row start, row stop, column start, column stop)."""

    def bounds(rank: int, source: int) -> tuple[int, ...]:
        rows, columns = (each.indices(length)[:2] for each in lab.visible(rank, source, length, causal))
        return *rows, *columns

    return [[[bounds(rank, source) for source in range(ranks)] for rank in range(ranks)] for ranks in sizes]


def attention(
    lab: ModuleType, own: Sequence[tuple[Tensor, ...]], name: str, causal: Sequence[bool], backward: bool
) -> list[dict[str, Any]]:
    """`ring_attention` or `ulysses_attention` of each (query, key, value, upstream gradient) of this rank."""
    found = []
    for (*given, upstream), masked in zip(own, causal, strict=True):
        leaves = [tensor.mT.contiguous().mT.requires_grad_() for tensor in given]
        with Traffic() as forward, FlopCounterMode(display=False) as counter:
            output = getattr(lab, name)(*leaves, masked)
        with Traffic() as behind, FlopCounterMode(display=False) as counter_behind:
            if backward:
                output.backward(upstream)
        found.append(
            {
                "output": plain(output),
                "gradients": [plain(leaf.grad) for leaf in leaves] if backward else [],
                "forward": forward.to_data(),
                "backward": behind.to_data(),
                "flops": (counter.get_total_flops(), counter_behind.get_total_flops()),
            }
        )
    return found


def attention_memory(lab: ModuleType, name: str, shapes: Sequence[tuple[int, int, int]], backward: bool) -> list[int]:
    """Most bytes alive in causal attention of [1, heads, length, width] on this rank, for each (heads, length, width);
    forward alone, or backward too."""
    found = []
    for heads, length, width in shapes:
        leaves = [torch.zeros(1, heads, length, width, requires_grad=True) for _ in range(3)]
        with PeakMemory() as memory:
            output = getattr(lab, name)(*leaves, True)
            if backward:
                output.backward(torch.zeros_like(output))
        found.append(memory.peak_bytes)
        del output, leaves
    return found


# --- Ulysses ----------------------------------------------------------------------------------------------------------


def trade(lab: ModuleType, own: Tensor, name: str) -> dict[str, Any]:
    """`tokens_to_heads` or its inverse of a tensor that is not contiguous."""
    given = own.mT.contiguous().mT
    with Traffic() as traffic:
        traded = getattr(lab, name)(given)
    return {"traded": plain(traded), "traffic": traffic.to_data()}


# --- The whole model --------------------------------------------------------------------------------------------------


def context_model(
    lab: ModuleType, parts: Sequence[tuple[Tensor, ...]], runs: Sequence[dict[str, Any]], config: TransformerConfig
) -> list[dict[str, Any]]:
    """A step of a `context_parallel` model for each run, with this rank's tokens, positions and labels.

    A run is {"kind", "groups" or None, "tensor": groups of tensor parallelism or None}. Gradients are summed over the
    context group; those of a tensor-parallel model are this rank's blocks. The loss is the plain sum over labels.
    """
    found = []
    for run, (tokens, positions, labels) in zip(runs, parts, strict=True):
        context = own_group(run.get("groups"))
        model: Transformer = build(config).to(device())
        cuts: dict[str, tuple[int, int]] = {}
        tensor_group = own_group(run.get("tensor"))
        if tensor_group is not None:
            from labs.day3_model_parallel.tensor_parallel import cuts_of, gather_from_ranks, shard_transformer

            model = shard_transformer(model, tensor_group)
            cuts = {name: (cut.dim, cut.replicas) for name, cut in cuts_of(model).items()}
        same = lab.context_parallel(model, context, run["kind"])
        with Traffic() as traffic:
            logits = model(tokens, positions)
        if tensor_group is not None:
            logits = gather_from_ranks(logits, tensor_group)
        logits.flatten(0, 1)[labels.flatten() >= 0].log_softmax(-1).gather(
            -1, labels[labels >= 0].unsqueeze(-1)
        ).sum().neg().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=context)
        found.append(
            {
                "logits": plain(logits),
                "gradients": gradients_of(model),
                "cuts": cuts,
                "same": same is model,
                "traffic": traffic.to_data(),
            }
        )
    return found


def refused_models(lab: ModuleType, config: TransformerConfig) -> list[tuple[str, int]]:
    model = build(config)
    return [
        refusal(lambda: lab.context_parallel(model, None, "star")),
        refusal(lambda: lab.context_parallel(nn.Linear(2, 2))),
    ]
