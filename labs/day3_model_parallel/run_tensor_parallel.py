"""Lesson 3.1 at work: one Transformer block and a whole model, their matrices shared by 1, 2, 4, ... ranks.

Three questions, a table each:

1. What does a rank of a block hold and send? Parameters, peak memory, calls and bytes, time: yours and DTensor's, in
   turns.
2. Does the whole model still train as one process does? Losses on real text, held against a dense model. A difference:
   exit code 1.
3. Why inside a node? The same step with its messages over a fast and over a slow link. The links are *modelled*: the
   real collective runs, then the link is busy for bytes / bandwidth. Below, the arithmetic for published hardware.

Tier 1, a laptop CPU (2 cores, gloo; 4 ranks take 70 s of CPU time in all). Expect parameters of 1/N and equal losses.
Time falls until the ranks outnumber the cores. Each of 4 ranks sends 21 MB in a step: over a link of 20 MB/s it takes a
second more, for nothing hides these messages.

    python labs/day3_model_parallel/run_tensor_parallel.py
    torchrun --standalone --nproc-per-node 4 labs/day3_model_parallel/run_tensor_parallel.py

Tier 2, one multi-GPU box (NCCL, one rank per GPU; not run by us). Make the model wide: with 786 KB to sum per layer a
GPU only waits for latency. The modelled links are for CPUs and left out.

    torchrun --standalone --nproc-per-node 8 labs/day3_model_parallel/run_tensor_parallel.py \\
        --hidden 4096 --heads 32 --layers 4 --batch 4 --sequence 1024

Tier 3, a cluster (not run by us): the same on two nodes. Groups of 8 ranks stay inside a node and the one of 16 does
not: watch the time of the last row.

    srun --nodes 2 --ntasks-per-node 1 torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d \\
        --rdzv-endpoint $(scontrol show hostnames | head -1):29500 \\
        labs/day3_model_parallel/run_tensor_parallel.py --hidden 4096 --heads 32 --layers 4 --batch 4 --sequence 1024

Writes results/tensor_parallel.json and results/tensor_parallel.svg.
"""

from __future__ import annotations

import argparse
import datetime
import math
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import DeviceMesh, ProcessGroup

from labs.day3_model_parallel.tensor_parallel import parallelize, shard_transformer, vocab_parallel_cross_entropy
from shardlab import show
from shardlab.data import corpus_tokens, token_batches
from shardlab.models import Transformer, TransformerConfig, build, next_token_loss
from shardlab.observe import Mark, PeakMemory, Traffic, modelled_link
from shardlab.observe.turns import on_each_size, time_repeats
from shardlab.ranks import TorchrunRank, torchrun_ranks

TOLERANCE = 1e-4  # relative, between losses: float32 sums in another order, some steps apart
SEED = 0
TOKENS = 1024  # of the tokenizer; the model's vocabulary is padded until the ranks divide it
LIMIT = datetime.timedelta(seconds=60)


@dataclass(frozen=True)
class Bench:
    """What all experiments share. ``groups`` has the ranks 0 ... n-1, by n."""

    me: TorchrunRank
    config: TransformerConfig
    batches: list[Tensor]
    groups: dict[int, ProcessGroup]
    impls: list[str]


# --- The implementations ----------------------------------------------------------------------------------------------


@dataclass
class Trainer:
    """A model, how its loss is computed, and inside what; and the losses of its steps."""

    model: nn.Module
    loss_of: Callable[[Tensor], Tensor]
    inside: Callable[[], AbstractContextManager] = nullcontext
    losses: list[float] = field(default_factory=list)

    def step(self, tokens: Tensor) -> None:
        """Forward, backward, update. Plain SGD: a rank holds parameters and gradients and no state."""
        with self.inside():
            loss = self.loss_of(tokens)
            loss.backward()
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
        self.losses.append((loss.full_tensor() if hasattr(loss, "full_tensor") else loss).item())


def mine(bench: Bench, group: ProcessGroup) -> Trainer:
    model = shard_transformer(dense_model(bench), group)
    return Trainer(
        model, lambda tokens: vocab_parallel_cross_entropy(model(tokens)[:, :-1], tokens[:, 1:], group=group)
    )


def of_torch(bench: Bench, group: ProcessGroup) -> Trainer:
    from torch.distributed.tensor.parallel import loss_parallel

    model = parallelize(dense_model(bench), DeviceMesh.from_group(group, bench.me.device.type))
    return Trainer(model, lambda tokens: next_token_loss(model(tokens), tokens), loss_parallel)


IMPLEMENTATIONS = {"mine": mine, "torch": of_torch}


def dense_model(bench: Bench) -> Transformer:
    return build(bench.config, SEED).to(bench.me.device)


def dense_losses(bench: Bench) -> list[float]:
    """Losses of a dense model on the same batches, computed on rank 0 and told to all."""
    losses = torch.zeros(len(bench.batches), device=bench.me.device)
    if bench.me.is_main:
        model = dense_model(bench)
        trainer = Trainer(model, lambda tokens: next_token_loss(model(tokens), tokens))
        for tokens in bench.batches:
            trainer.step(tokens)
        losses = losses.new_tensor(trainer.losses)
    dist.broadcast(losses, 0)
    return losses.tolist()


# --- 1. One block -----------------------------------------------------------------------------------------------------


def measure_block(bench: Bench, ranks: int) -> list[dict]:
    """Memory, traffic and time of the model's first block, by implementation."""
    rows, length = bench.batches[0].shape
    x = torch.randn(rows, length, bench.config.hidden, generator=torch.Generator().manual_seed(SEED))
    x = x.to(bench.me.device)
    blocks = {name: IMPLEMENTATIONS[name](bench, bench.groups[ranks]).model.blocks[0] for name in bench.impls}
    seen = {name: observe_block(block, x) for name, block in blocks.items()}
    calls = {name: partial(run_block, block, x) for name, block in blocks.items()}
    seconds = time_repeats(calls, len(bench.batches), bench.groups[ranks])
    return [{"impl": name, "ranks": ranks, "seconds": seconds[name]} | seen[name] for name in blocks]


def run_block(block: nn.Module, x: Tensor, _repeat: int) -> None:
    block(x.detach().requires_grad_(), torch.arange(x.shape[1], device=x.device)).sum().backward()


def observe_block(block: nn.Module, x: Tensor) -> dict:
    with PeakMemory(block) as memory, Traffic() as traffic:
        y = block(x.detach().requires_grad_(), torch.arange(x.shape[1], device=x.device))
        traffic.mark("backward")
        y.sum().backward()
    events = [event.name if isinstance(event, Mark) else event.op for event in traffic.events]
    return {
        "parameter_bytes": memory.live_by_kind["parameter"],
        "peak_bytes": memory.peak_bytes,
        "calls_forward": events.index("backward"),
        "calls_backward": traffic.count() - events.index("backward"),
        "sent_bytes": traffic.sent_bytes(),
    }


# --- 2. The whole model -----------------------------------------------------------------------------------------------


def train_model(bench: Bench, alone: list[float], ranks: int) -> list[dict]:
    """Train on all batches by each implementation, in turns in each step: observe the first step, time the others."""
    trainers = {name: IMPLEMENTATIONS[name](bench, bench.groups[ranks]) for name in bench.impls}
    records = []
    for name, trainer in trainers.items():
        with PeakMemory(trainer.model) as memory, Traffic() as traffic:
            trainer.step(bench.batches[0])
        records.append(
            {
                "impl": name,
                "ranks": ranks,
                "parameter_bytes": memory.live_by_kind["parameter"],
                "peak_bytes": memory.peak_bytes,
                "sent_bytes": traffic.sent_bytes(),
            }
        )
    later = bench.batches[1:]
    calls = {
        name: partial(lambda trainer, repeat: trainer.step(later[repeat]), each) for name, each in trainers.items()
    }
    seconds = time_repeats(calls, len(later), bench.groups[ranks])
    for record in records:
        losses = trainers[record["impl"]].losses
        gap = max(abs(loss / right - 1) for loss, right in zip(losses, alone, strict=True))
        record |= {"losses": losses, "gap": gap, "seconds": seconds[record["impl"]]}
    return records


# --- 3. Over a link ---------------------------------------------------------------------------------------------------


def over_links(bench: Bench, links: list[float]) -> list[dict]:
    """The model's step on all ranks, with its messages over each modelled link (bytes/s), in turns; 0: as it is."""
    ranks = bench.me.world_size
    trainer = IMPLEMENTATIONS[bench.impls[0]](bench, bench.groups[ranks])

    def step(link: float, repeat: int) -> None:
        with modelled_link(link) if link else nullcontext():
            trainer.step(bench.batches[repeat])

    calls = {str(link): partial(step, link) for link in (0.0, *links)}
    with show.progress("over modelled links", 1) as advance:
        seconds = time_repeats(calls, min(4, len(bench.batches)), bench.groups[ranks])
        advance()
    return [{"bandwidth": link, "seconds": seconds[str(link)]} for link in (0.0, *links)]


@dataclass(frozen=True)
class Gpu:
    """A GPU as its maker describes it: FLOP/s of dense bf16, and bytes/s that it sends over its links."""

    flops: float
    nvlink: float
    network: float


# NVIDIA H100 SXM data sheet: 989 TFLOP/s dense bf16, NVLink 900 GB/s, half of it in each direction. NVIDIA DGX H100
# user guide: one 400 Gbit/s InfiniBand adapter (ConnectX-7) per GPU, 50 GB/s.
H100 = Gpu(flops=989e12, nvlink=450e9, network=50e9)
LLAMA_70B = TransformerConfig(  # Grattafiori et al. 2024, arXiv:2407.21783, table 3
    vocab=128256, hidden=8192, layers=80, heads=64, kv_heads=8, ffn=28672, sequence=8192, tied=False
)


def block_seconds(
    config: TransformerConfig, tokens: int, ranks: int, gpu: Gpu, bandwidth: float
) -> tuple[float, float]:
    """Seconds that one block computes and communicates, forward and backward, in bf16, at half of the peak.

    Four all-reduces of tokens x hidden, 2 (N-1)/N of it sent by each rank (Shoeybi et al. 2019, figure 4); 6 FLOPs per
    parameter and token, attention scores not counted.
    """
    attention = 2 * config.hidden * (config.hidden + config.kv_heads * config.head_dim)
    parameters = attention + 3 * config.hidden * config.ffn
    compute = 6 * parameters * tokens / ranks / (gpu.flops / 2)
    sent = 4 * 2 * (ranks - 1) / ranks * tokens * config.hidden * 2
    return compute, sent / bandwidth


# --- Tables, figure, verdict ------------------------------------------------------------------------------------------

MIB, MB, MS = 2**20, 1e6, 1e-3


def print_tables(bench: Bench, blocks: list[dict], models: list[dict], links: list[dict]) -> None:
    config, shape = bench.config, list(bench.batches[0].shape)
    torchs = {record["ranks"]: record["seconds"] for record in blocks if record["impl"] == "torch"}
    show.table(
        f"One block: hidden {config.hidden}, {config.heads} heads, tokens {shape}",
        ["ranks", "impl", "parameters MiB", "peak MiB", "calls fwd+bwd", "sent MB", "ms", "to torch"],
        [
            [
                r["ranks"],
                r["impl"],
                r["parameter_bytes"] / MIB,
                r["peak_bytes"] / MIB,
                f"{r['calls_forward']} + {r['calls_backward']}",
                r["sent_bytes"] / MB,
                r["seconds"] / MS,
                f"{r['seconds'] / torchs[r['ranks']]:.2f}x" if torchs else "-",
            ]
            for r in blocks
        ],
    )
    torchs = {record["ranks"]: record["seconds"] for record in models if record["impl"] == "torch"}
    show.table(
        f"The model: {config.layers} layers, {config.parameters / 1e6:.1f} M parameters, a step",
        ["ranks", "impl", "parameters MiB", "peak MiB", "sent MB", "ms", "to torch", "last loss", "off one process"],
        [
            [
                r["ranks"],
                r["impl"],
                r["parameter_bytes"] / MIB,
                r["peak_bytes"] / MIB,
                r["sent_bytes"] / MB,
                r["seconds"] / MS,
                f"{r['seconds'] / torchs[r['ranks']]:.2f}x" if torchs else "-",
                r["losses"][-1],
                r["gap"],
            ]
            for r in models
        ],
    )
    if links:
        show.table(
            f"The same step on {bench.me.world_size} ranks over modelled links ({bench.impls[0]})",
            ["link", "ms", "times as it is"],
            [
                [
                    f"modelled, {r['bandwidth'] / MB:,.0f} MB/s" if r["bandwidth"] else "as it is (memory)",
                    r["seconds"] / MS,
                    f"{r['seconds'] / links[0]['seconds']:.2f}x",
                ]
                for r in links
            ],
        )
    show.table(
        "Computed, not measured: a block of Llama 3 70B on H100 GPUs, 8,192 tokens, half of peak, nothing overlapped",
        ["ranks", "link", "compute ms", "messages ms", "share of the time"],
        [
            [ranks, name, compute / MS, messages / MS, f"{messages / (compute + messages):.0%}"]
            for ranks, name, bandwidth in (
                (8, "NVLink, inside a node", H100.nvlink),
                (8, "InfiniBand, between nodes", H100.network),
                (16, "InfiniBand, between nodes", H100.network),
            )
            for compute, messages in [block_seconds(LLAMA_70B, 8192, ranks, H100, bandwidth)]
        ],
    )


def draw(blocks: list[dict], models: list[dict], links: list[dict]) -> None:
    """Memory of a rank and time of a step by number of ranks, and a step over each link."""
    import matplotlib.pyplot as plt

    show.use_style()
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(15, 4.2))
    sizes = sorted({record["ranks"] for record in models})
    first = models[0]["impl"]
    own = [record for record in models if record["impl"] == first]
    left.plot(sizes, [r["parameter_bytes"] / MIB for r in own], "o-", label="parameters")
    left.plot(sizes, [r["peak_bytes"] / MIB for r in own], "o-", label="peak, gradients and activations too")
    left.plot(sizes, [own[0]["parameter_bytes"] / MIB / n for n in sizes], color="grey", linewidth=1, label="1/N")
    left.set(title="What a rank holds", xlabel="ranks", ylabel="MiB", ylim=(0, None))
    for name in dict.fromkeys(record["impl"] for record in models):
        of_model = [r["seconds"] / MS for r in models if r["impl"] == name]
        of_block = [r["seconds"] / MS for r in blocks if r["impl"] == name]
        (line,) = middle.plot(sizes, of_model, "o-", label=f"{name}: model")
        middle.plot(sizes, of_block, "o--", color=line.get_color(), label=f"{name}: one block")
    middle.set(title="What a step takes", xlabel="ranks", ylabel="ms", ylim=(0, None))
    names = [f"{r['bandwidth'] / MB:,.0f} MB/s" if r["bandwidth"] else "as it is" for r in links]
    right.bar(names, [r["seconds"] / MS for r in links], color=show.CATEGORY_COLOURS["communication"])
    right.set(title="A step over a modelled link", ylabel="ms")
    for axes in (left, middle):
        axes.set_xticks(sizes)
        axes.legend(fontsize=9)
    show.save_figure(figure, "results/tensor_parallel.svg")
    plt.close(figure)


def find_fault(models: list[dict]) -> str:
    """What is wrong with the results, in a sentence; empty if nothing is."""
    for record in models:
        if not record["gap"] < TOLERANCE:
            return (
                f"WRONG: {record['impl']} on {record['ranks']} ranks: off one process by {record['gap']:.1e}, "
                f"allowed {TOLERANCE}. shardlab test 3.1 says more."
            )
    return ""


def sizes_up_to(world: int) -> list[int]:
    """1, 2, 4, ... and all ranks."""
    return [size for size in (2**power for power in range(world.bit_length())) if size < world] + [world]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--impl", nargs="+", choices=IMPLEMENTATIONS, default=["mine", "torch"], help="to compare")
    options.add_argument("--hidden", type=int, default=384, help="width of the model (384)")
    options.add_argument("--heads", type=int, default=12, help="heads, as many for keys and values (12)")
    options.add_argument("--layers", type=int, default=4, help="blocks (4)")
    options.add_argument("--batch", type=int, default=4, help="sequences in a batch (4)")
    options.add_argument("--sequence", type=int, default=128, help="tokens in a sequence (128)")
    options.add_argument("--steps", type=int, default=6, help="steps per measurement (6)")
    options.add_argument("--links", type=float, nargs="*", default=[180, 20], help="modelled links in MB/s (180 20)")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    with torchrun_ranks() as me:
        world = me.world_size
        if (
            min(chosen.batch, chosen.layers) < 1
            or chosen.sequence < 2
            or chosen.steps < 3
            or min(chosen.links, default=1) <= 0
        ):
            options.error("need 1 layer and sequence, 2 tokens and 3 steps or more, and links faster than 0 MB/s")
        sizes = sizes_up_to(world)
        common = math.lcm(*sizes)
        if chosen.heads < 1 or chosen.heads % common or chosen.hidden % (2 * chosen.heads):
            options.error(f"on {world} ranks --heads must be divisible by {common}, and --hidden by twice the heads")
        ffn = 3 * chosen.hidden
        config = TransformerConfig(
            vocab=-(-TOKENS // common) * common,
            hidden=chosen.hidden,
            layers=chosen.layers,
            heads=chosen.heads,
            kv_heads=chosen.heads,
            ffn=-(-ffn // common) * common,
            sequence=chosen.sequence,
        )
        batches = token_batches(corpus_tokens("train", TOKENS), chosen.batch, chosen.sequence, SEED)
        batches = [tokens.to(me.device) for _, tokens in zip(range(chosen.steps), batches, strict=False)]
        groups = {size: dist.new_group(list(range(size)), timeout=LIMIT) for size in sizes}
        bench = Bench(me, config, batches, groups, chosen.impl)
        blocks = on_each_size(bench.groups, "one block", partial(measure_block, bench))
        models = on_each_size(bench.groups, "the whole model", partial(train_model, bench, dense_losses(bench)))
        can_model = world > 1 and me.device.type == "cpu"
        links = over_links(bench, [MB * link for link in chosen.links]) if can_model else []
        path = show.write_results("tensor_parallel", {"blocks": blocks, "models": models, "links": links})
        fault = find_fault(models)
        if me.is_main:
            print_tables(bench, blocks, models, links)
            draw(blocks, models, links)
            print(fault or f"All losses are those of one process. Written: {path}, results/tensor_parallel.svg")
        wrong = torch.tensor(int(bool(fault)), device=me.device)
        dist.broadcast(wrong, 0)  # ranks that were in no group saw no losses
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
