"""Models from the meta device, sharded before they have values: same weights, same gradients as one process."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from shardlab.models import Transformer, TransformerConfig, build, initialise, next_token_loss
from shardlab.ranks import device, run_ranks

SEED = 3
TOKENS = torch.randint(37, (4, 16), generator=torch.Generator().manual_seed(0))


def config(tied: bool) -> TransformerConfig:
    return TransformerConfig(vocab=37, hidden=24, layers=2, heads=6, kv_heads=2, ffn=40, sequence=16, tied=tied)


def shard_data_parallel(model: Transformer) -> None:
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)


def shard_tensor_parallel(model: Transformer) -> None:
    columns = ("attention.query", "attention.key", "attention.value", "mlp.gate", "mlp.up")
    plan = {name: ColwiseParallel() for name in columns}
    plan |= {name: RowwiseParallel() for name in ("attention.output", "mlp.down")}
    mesh = init_device_mesh(device().type, (dist.get_world_size(),))
    for block in model.blocks:
        parallelize_module(block, mesh, plan)


def compare_with_one_process(shard, tied: bool, rows_per_rank: bool) -> tuple[float, int]:
    """Largest gradient difference to the whole model, and how many parameters this rank holds."""
    with torch.device("meta"):
        model = Transformer(config(tied))
    shard(model)
    initialise(model.to_empty(device=device()), SEED)
    whole, tokens = build(config(tied), SEED).to(device()), TOKENS.to(device())
    share = tokens.chunk(dist.get_world_size())[dist.get_rank()] if rows_per_rank else tokens
    next_token_loss(model(share), share).backward()
    next_token_loss(whole(tokens), tokens).backward()
    differences = []
    for (name, own), (_, reference) in zip(model.named_parameters(), whole.named_parameters(), strict=True):
        value, gradient = (t.full_tensor() if isinstance(t, DTensor) else t for t in (own, own.grad))
        assert torch.equal(value, reference), f"{name} has other weights than one process"
        differences.append((gradient - reference.grad).abs().max().item())
    held = sum((p.to_local() if isinstance(p, DTensor) else p).numel() for p in model.parameters())
    return max(differences), held


@pytest.mark.parametrize("tied", [True, False])
def test_fully_shard(tied):
    results = run_ranks(compare_with_one_process, 2, shard_data_parallel, tied, True, timeout=60)
    assert max(difference for difference, _ in results) < 1e-6
    assert sum(held for _, held in results) == config(tied).parameters


@pytest.mark.parametrize("tied", [True, False])
def test_tensor_parallel(tied):
    results = run_ranks(compare_with_one_process, 2, shard_tensor_parallel, tied, False, timeout=60)
    assert max(difference for difference, _ in results) < 1e-6
    block = 2 * (24 * 24) + 2 * (24 * 8) + 3 * (24 * 40)
    assert [held for _, held in results] == [config(tied).parameters - 2 * block // 2] * 2
