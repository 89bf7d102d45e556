"""Lessons of Day 3 against torch's own: step times on the same model and batches, in turns, in one run.

    python -m benchmarks.model_parallel
    python -m benchmarks.model_parallel --only tensor --steps 60

Each comparison sets up its rivals on the same ranks; then they take turns, step by step, so that whatever else the
machine does meets all of them. Compared are medians of the slowest rank's time. Exits with 1 when ours takes longer
than torch's.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import torch.distributed as dist
import typer

from shardlab.models import TransformerConfig, build, next_token_loss
from shardlab.ranks import RankPool, device
from shardlab.show import table, usable_cores

ROOT = Path(__file__).parents[1]
BAR = 1.00  # times torch's
Steps = dict[str, Callable[[], None]]  # "mine" and "torch": one training step each


# --- 3.1: tensor parallelism ------------------------------------------------------------------------------------------


def tensor() -> Steps:
    """Own layers and loss against DTensor's `parallelize_module` and `loss_parallel`: forward, backward and update."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import loss_parallel

    from solutions.day3_model_parallel.tensor_parallel import (
        parallelize,
        shard_transformer,
        vocab_parallel_cross_entropy,
    )

    config = TransformerConfig(vocab=1024, hidden=256, layers=4, heads=8, kv_heads=4, ffn=704, sequence=128)
    tokens = torch.randint(config.vocab, (4, config.sequence), generator=torch.Generator().manual_seed(0)).to(device())
    mine = shard_transformer(build(config).to(device()))
    theirs = parallelize(build(config).to(device()), init_device_mesh(device().type, (dist.get_world_size(),)))
    of_mine, of_theirs = (torch.optim.SGD(model.parameters(), lr=0.01) for model in (mine, theirs))

    def step_mine() -> None:
        vocab_parallel_cross_entropy(mine(tokens)[:, :-1], tokens[:, 1:]).backward()
        of_mine.step()
        of_mine.zero_grad()

    def step_theirs() -> None:
        with loss_parallel():
            next_token_loss(theirs(tokens), tokens).backward()
        of_theirs.step()
        of_theirs.zero_grad()

    return {"mine": step_mine, "torch": step_theirs}


# --- 3.2: pipeline parallelism ----------------------------------------------------------------------------------------


def pipeline() -> Steps:
    """Own 1F1B against torch.distributed.pipelining's, on the same stages: forward, backward and update."""
    import torch.nn.functional as F
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    from solutions.day3_model_parallel.pipeline import (
        one_forward_one_backward,
        run_schedule,
        split_batch,
        transformer_pipeline,
    )

    def loss_fn(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    config = TransformerConfig(vocab=1024, hidden=256, layers=4, heads=8, kv_heads=4, ffn=704, sequence=128, tied=False)
    rank, ranks, micro_batches = dist.get_rank(), dist.get_world_size(), 8
    tokens = torch.randint(
        config.vocab, (micro_batches, config.sequence + 1), generator=torch.Generator().manual_seed(0)
    )
    inputs, targets = tokens[:, :-1].to(device()), tokens[:, 1:].to(device())
    schedule = one_forward_one_backward(ranks, micro_batches)
    mine, theirs = (transformer_pipeline(build(config).to(device()), schedule) for _ in range(2))
    of_mine, of_theirs = (torch.optim.SGD(stage.parameters(), lr=0.01) for stage in (mine, theirs))
    runtime = Schedule1F1B(PipelineStage(theirs.chunks[str(rank)], rank, ranks, device()), micro_batches, loss_fn)

    def step_mine() -> None:
        run_schedule(mine, schedule, split_batch(inputs, targets, micro_batches), loss_fn)
        of_mine.step()
        of_mine.zero_grad()

    def step_theirs() -> None:
        runtime.step(*([inputs] if rank == 0 else []), target=targets if rank == ranks - 1 else None)
        of_theirs.step()
        of_theirs.zero_grad()

    return {"mine": step_mine, "torch": step_theirs}


# --- 3.3: ring attention ----------------------------------------------------------------------------------------------


def ring() -> Steps:
    """Own causal ring attention against torch's, in the same zig-zag: forward and backward. CPUs only.

    torch's `context_parallel` does not run on CPUs; the functions under it do, when they are handed the CPU's fused
    kernel. Its keys are set to travel round a ring, too: by default they are gathered, all on every rank.
    """
    from torch.distributed.tensor.experimental._context_parallel import _attention as theirs

    from solutions.day3_model_parallel.context import ring_attention, zigzag_split

    theirs._cp_options.rotate_method = theirs._RotateMethod.ALL_TO_ALL
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    kernel_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    generator, world = torch.Generator().manual_seed(0), dist.group.WORLD
    query, key, value, upstream = (zigzag_split(torch.randn(1, 8, 2048, 64, generator=generator), 2) for _ in range(4))

    def step_mine() -> None:
        leaves = [tensor.detach().requires_grad_() for tensor in (query, key, value)]
        ring_attention(*leaves).backward(upstream)

    def step_theirs() -> None:
        output, lse = theirs._templated_ring_attention(world, 2, kernel, query, key, value, True, dropout_p=0.0)
        theirs._templated_ring_attention_backward(
            world, 2, kernel_backward, upstream, "grad_out", query, key, value, output, lse, True, dropout_p=0.0
        )

    return {"mine": step_mine, "torch": step_theirs}


# --- 3.4: experts -----------------------------------------------------------------------------------------------------


def experts() -> Steps:
    """Own layer of experts against one of torch's functional collectives, dropless: forward, backward and update."""
    from labs.day3_model_parallel.torch_mixture_of_experts import TorchMoE
    from solutions.day3_model_parallel.mixture_of_experts import ExpertParallelMoE, MoEConfig

    config = MoEConfig(256, 512, 16, balance_coefficient=0.0, z_coefficient=0.0)
    x = torch.randn(2048, config.hidden, generator=torch.Generator().manual_seed(0)).to(device())
    mine, theirs = (kind(config, dist.group.WORLD).to(device()) for kind in (ExpertParallelMoE, TorchMoE))
    theirs.load_state_dict(mine.state_dict())

    def step(layer: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        layer(x.detach().requires_grad_()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    of_mine, of_theirs = (torch.optim.SGD(layer.parameters(), lr=0.01) for layer in (mine, theirs))
    return {"mine": partial(step, mine, of_mine), "torch": partial(step, theirs, of_theirs)}


# --- All of them ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """What is compared, on how many ranks; ``set_up`` runs on each of them."""

    title: str
    ranks: int
    set_up: Callable[[], Steps]


COMPARISONS = {
    "tensor": Comparison("3.1 tensor parallelism against DTensor", 2, tensor),
    "pipeline": Comparison("3.2 1F1B against torch.distributed.pipelining", 2, pipeline),
    "ring": Comparison("3.3 ring attention against torch's private ring", 2, ring),
    "experts": Comparison("3.4 a layer of experts against torch's functional collectives", 2, experts),
}


def in_turns(set_up: Callable[[], Steps], repeats: int) -> dict[str, float]:
    """Median over the repeats of the slowest rank's seconds, by rival. The first two warm up."""
    torch.set_num_threads(1)
    steps = set_up()
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats + 2):
        for name, step in steps.items():
            dist.barrier()
            start = time.perf_counter()
            step()
            if device().type == "cuda":
                torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - start)
    slowest = torch.tensor(list(seconds.values()), dtype=torch.float64, device=device())
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return {name: statistics.median(row[2:]) for name, row in zip(seconds, slowest.tolist(), strict=True)}


def main(
    only: Annotated[list[str] | None, typer.Option(help=f"Of: {', '.join(COMPARISONS)}.")] = None,
    steps: Annotated[int, typer.Option(min=3, help="Steps of each rival.")] = 30,
) -> None:
    """Measure and print the ratios."""
    if unknown := set(only or []) - COMPARISONS.keys():
        raise typer.BadParameter(f"no comparison {', '.join(sorted(unknown))}: choose of {', '.join(COMPARISONS)}")
    rows, slow = [], []
    with RankPool(path=(ROOT,)) as pool:
        for name in only or COMPARISONS:
            each = COMPARISONS[name]
            found = pool.run(in_turns, each.ranks, each.set_up, steps, timeout=300)[0]
            ratio = found["mine"] / found["torch"]
            rows.append([each.title, each.ranks, 1e3 * found["mine"], 1e3 * found["torch"], f"{ratio:.2f}x"])
            slow += [name] if ratio > BAR else []
    title = f"Median of {steps} steps, {usable_cores()} cores, torch {torch.__version__}"
    table(title, ["comparison", "ranks", "mine ms", "torch ms", "mine to torch"], rows)
    if slow:
        sys.exit(f"slower than torch's: {', '.join(slow)}")


if __name__ == "__main__":
    typer.run(main)
