"""Lesson 3.4 at work: a small mixture of experts on real text, its experts shared by 1, 2, 4, ... ranks.

Four questions:

1. What does a rank of a layer hold and send, and how long does it take? Yours and one of PyTorch's own parts
   (`all_to_all_single_autograd`), in turns, on the same tokens; outputs and gradients have to agree.
2. Does the model train the same on any number of ranks? Losses, held against one rank. A difference: exit code 1.
3. Who does the work? Claims per expert over time, with and without the balance loss; and what a capacity costs.
4. What does an expert like? The tokens that it gets beyond its share.

Tier 1, a laptop CPU (2 cores, gloo; 4 ranks take 80 s of CPU time in all). Expect experts of 1/N per rank; equal
losses; without the balance loss a few experts that get everything; and, with it, experts for punctuation, for pieces of
words, for pronouns.

    python labs/day3_model_parallel/run_mixture_of_experts.py
    torchrun --standalone --nproc-per-node 4 labs/day3_model_parallel/run_mixture_of_experts.py

Tier 2, one multi-GPU box (NCCL, one rank per GPU; not run by us). Make tokens many and experts wide, else a GPU waits
for latency:

    torchrun --standalone --nproc-per-node 8 labs/day3_model_parallel/run_mixture_of_experts.py \\
        --hidden 1024 --ffn 2048 --experts 64 --batch 64 --sequence 1024

Tier 3, a cluster (not run by us): the same on two nodes. Groups of 8 ranks stay inside a node and the one of 16 does
not: watch the time of the last row.

    srun --nodes 2 --ntasks-per-node 1 torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d \\
        --rdzv-endpoint $(scontrol show hostnames | head -1):29500 \\
        labs/day3_model_parallel/run_mixture_of_experts.py --hidden 1024 --ffn 2048 --experts 64 --batch 64

Writes results/mixture_of_experts.json and results/mixture_of_experts.svg.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import sys
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from labs.day3_model_parallel.mixture_of_experts import MoEConfig, use_experts
from labs.day3_model_parallel.torch_mixture_of_experts import TorchMoE
from labs.day3_model_parallel.watched_mixture_of_experts import Run, favourites, train
from shardlab import show
from shardlab.data import corpus_tokens, token_batches
from shardlab.models import TransformerConfig, build
from shardlab.observe import PeakMemory, Traffic
from shardlab.observe.turns import on_each_size, time_repeats
from shardlab.ranks import TorchrunRank, torchrun_ranks

TOLERANCE = 1e-4  # relative: float32 sums in another order, some steps apart
SEED = 0
TOKENS = 1024  # of the tokenizer
FIRST_STEPS = 8  # held against one rank; later a router may see two experts level, and rounding decides
LIMIT = datetime.timedelta(seconds=60)
MIB, MB, MS = 2**20, 1e6, 1e-3


@dataclass(frozen=True)
class Bench:
    """What all experiments share. ``groups`` has the ranks 0 ... n-1, by n."""

    me: TorchrunRank
    shape: TransformerConfig
    config: MoEConfig
    batches: list[Tensor]
    groups: dict[int, ProcessGroup]
    impls: list[str]


# --- 1. One layer -----------------------------------------------------------------------------------------------------


def measure_layer(bench: Bench, ranks: int) -> list[dict]:
    """Memory, traffic and time of one layer, dropless and without losses, by implementation; and how far its output
    and gradients are from yours."""
    group = bench.groups[ranks]
    config = replace(bench.config, capacity_factor=None, balance_coefficient=0.0, z_coefficient=0.0)
    mine = use_experts(build(bench.shape, SEED).to(bench.me.device), config, group).blocks[0].mlp
    layers: dict[str, nn.Module] = {"mine": mine}
    if "torch" in bench.impls:
        layers["torch"] = TorchMoE(config, group).to(bench.me.device)
        layers["torch"].load_state_dict(mine.state_dict())
    rows, length = bench.batches[0].shape
    x = torch.randn(rows, length, config.hidden, generator=torch.Generator().manual_seed(SEED))
    x = x.chunk(ranks)[group.rank()].to(bench.me.device)
    seen = {name: observe(layer, x) for name, layer in layers.items()}
    layers = {name: layer for name, layer in layers.items() if name in bench.impls}
    calls = {name: lambda _, layer=layer: run(layer, x) for name, layer in layers.items()}
    seconds = time_repeats(calls, 12 + 2, group, warm_up=2)
    worst = max(gap(seen["mine"]["results"], each["results"]) for each in seen.values())
    for each in seen.values():
        del each["results"]
    return [
        {"impl": name, "ranks": ranks, "seconds": seconds[name], "gap": worst if name == "torch" else 0.0} | seen[name]
        for name in layers
    ]


def run(layer: nn.Module, x: Tensor) -> list[Tensor]:
    """Forward and backward; output and gradients."""
    layer.zero_grad()
    leaf = x.detach().requires_grad_()
    y = layer(leaf)
    y.square().mean().backward()
    return [y.detach(), leaf.grad, *(parameter.grad for parameter in layer.parameters())]


def observe(layer: nn.Module, x: Tensor) -> dict:
    with PeakMemory(layer) as memory, Traffic() as traffic:
        results = run(layer, x)
    return {
        "parameter_bytes": memory.live_by_kind["parameter"],
        "peak_bytes": memory.peak_bytes,
        "calls": traffic.count(),
        "sent_bytes": traffic.sent_bytes(),
        "results": results,
    }


def gap(mine: list[Tensor], other: list[Tensor]) -> float:
    """Largest difference, of each tensor's largest element."""
    pairs = zip(mine, other, strict=True)
    return max(((a - b).abs().max() / a.abs().max().clamp(min=1e-12)).item() for a, b in pairs if a.numel())


# --- 2. On any number of ranks ----------------------------------------------------------------------------------------


def train_first_steps(bench: Bench, ranks: int) -> list[dict]:
    """The same first steps, with a capacity, so that drops have to be the same too."""
    config = replace(bench.config, capacity_factor=1.0)
    trained = train(bench.shape, config, bench.batches[:FIRST_STEPS], bench.groups[ranks])
    own = sum(parameter.nbytes for parameter in trained.model.parameters())
    return [{"ranks": ranks, "losses": trained.losses, "drops": trained.drops, "parameter_bytes": own}]


# --- 3. Load and capacity ---------------------------------------------------------------------------------------------


def watch(bench: Bench, factors: list[float]) -> dict[str, Run]:
    """Training runs on all ranks: as configured, without the balance loss, and with each capacity factor."""
    configs = {"as it is": bench.config, "no balance loss": replace(bench.config, balance_coefficient=0.0)}
    configs |= {f"capacity factor {factor:g}": replace(bench.config, capacity_factor=factor) for factor in factors}
    group = bench.groups[bench.me.world_size]
    with show.progress("training", len(configs) * len(bench.batches)) as advance:
        return {
            name: train(bench.shape, config, bench.batches, group, after_step=advance)
            for name, config in configs.items()
        }


def record_of(name: str, trained: Run) -> dict:
    last = max(1, len(trained.losses) // 5)
    return {
        "run": name,
        "loss": statistics.mean(trained.losses[-last:]),
        "drops": statistics.mean(trained.drops[-last:]),
        "imbalance": trained.imbalance(last),
        "losses": trained.losses,
        "asked": [asked.tolist() for asked in trained.asked],
    }


# --- Tables, figure, verdict ------------------------------------------------------------------------------------------


def print_tables(bench: Bench, layers: list[dict], sizes: list[dict], runs: list[dict], likes: dict) -> None:
    config, shape = bench.config, list(bench.batches[0].shape)
    torchs = {record["ranks"]: record["seconds"] for record in layers if record["impl"] == "torch"}
    show.table(
        f"One layer: {config.experts} experts {config.hidden} x {config.ffn}, {config.top_k} per token, tokens {shape}",
        ["ranks", "impl", "parameters MiB", "peak MiB", "calls", "sent MB", "ms", "to torch", "off"],
        [
            [
                r["ranks"],
                r["impl"],
                r["parameter_bytes"] / MIB,
                r["peak_bytes"] / MIB,
                r["calls"],
                r["sent_bytes"] / MB,
                r["seconds"] / MS,
                f"{r['seconds'] / torchs[r['ranks']]:.2f}x" if torchs else "-",
                r["gap"],
            ]
            for r in layers
        ],
    )
    show.table(
        f"The model, {bench.shape.layers} layers, capacity factor 1: the first {len(sizes[0]['losses'])} steps",
        ["ranks", "parameters MiB", "last loss", "claims dropped", "off one rank"],
        [
            [
                r["ranks"],
                r["parameter_bytes"] / MIB,
                r["losses"][-1],
                f"{statistics.mean(r['drops']):.1%}",
                off(r["losses"], sizes[0]["losses"]),
            ]
            for r in sizes
        ],
    )
    show.table(
        f"{len(bench.batches)} steps on {bench.me.world_size} ranks, means of the last fifth",
        ["run", "loss (nats)", "claims dropped", "busiest expert over the mean"],
        [[r["run"], r["loss"], f"{r['drops']:.1%}", f"{r['imbalance']:.2f}"] for r in runs],
    )
    show.table(
        "What each expert of the last layer gets beyond its share",
        ["expert", "tokens"],
        [[expert, "  ".join(words)] for expert, words in likes.items()],
    )


def off(losses: list[float], right: list[float]) -> float:
    return max(abs(loss / other - 1) for loss, other in zip(losses, right, strict=True))


def draw(bench: Bench, runs: list[dict]) -> None:
    """Load per expert over time, twice, and capacity against drops and loss."""
    import matplotlib.pyplot as plt

    show.use_style()
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4))
    for axes, record in zip((left, middle), runs, strict=False):
        asked = torch.tensor(record["asked"])[:, -1].double()  # [steps, E], of the last layer
        share = (asked / asked.mean(1, keepdim=True)).T
        picture = axes.imshow(share, aspect="auto", cmap="viridis", vmin=0, vmax=3, interpolation="nearest")
        axes.set(title=f"Load, last layer: {record['run']}", xlabel="step", ylabel="expert")
        axes.grid(visible=False)
    figure.colorbar(picture, ax=(left, middle), label="claims over the mean")
    dropless, _, *limited = runs
    names = [record["run"].rpartition(" ")[2] for record in limited] + ["none"]
    records = [*limited, dropless]
    right.plot(names, [record["loss"] for record in records], "o-", label="loss (nats)")
    drops = right.twinx()
    drops.bar(names, [100 * record["drops"] for record in records], color="grey", alpha=0.4, label="claims dropped (%)")
    drops.grid(visible=False)
    drops.set(ylabel="claims dropped (%)", ylim=(0, 100))
    right.set(title="What a capacity costs", xlabel="capacity factor", ylabel="loss (nats)")
    show.save_figure(figure, "results/mixture_of_experts.svg")
    plt.close(figure)


def find_fault(layers: list[dict], sizes: list[dict]) -> str:
    """What is wrong with the results, in a sentence; empty if nothing is."""
    for record in layers:
        if not record["gap"] < TOLERANCE:
            return f"WRONG: on {record['ranks']} ranks your layer is off torch's by {record['gap']:.1e}."
    for record in sizes:
        if not off(record["losses"], sizes[0]["losses"]) < TOLERANCE:
            return f"WRONG: {record['ranks']} ranks do not train as one does. shardlab test 3.4 says more."
        if record["drops"] != sizes[0]["drops"]:
            return f"WRONG: {record['ranks']} ranks drop other claims than one does. shardlab test 3.4 says more."
    return ""


def first_batches(split: str, count: int, rows: int, sequence: int, device: torch.device) -> list[Tensor]:
    """The first batches of the corpus's split."""
    batches = token_batches(corpus_tokens(split, TOKENS), rows, sequence, SEED)
    return [tokens.to(device) for _, tokens in zip(range(count), batches, strict=False)]


def sizes_up_to(world: int) -> list[int]:
    """1, 2, 4, ... and all ranks."""
    return [size for size in (2**power for power in range(world.bit_length())) if size < world] + [world]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--impl", nargs="+", choices=["mine", "torch"], default=["mine", "torch"], help="to compare")
    options.add_argument("--hidden", type=int, default=64, help="width of the model (64)")
    options.add_argument("--ffn", type=int, default=64, help="inner width of an expert (64)")
    options.add_argument("--layers", type=int, default=2, help="blocks (2)")
    options.add_argument("--experts", type=int, default=12, help="experts of each block (12)")
    options.add_argument("--top-k", type=int, default=2, help="experts per token (2)")
    options.add_argument("--shared", action="store_true", help="one more expert, that every token meets")
    options.add_argument("--batch", type=int, default=12, help="sequences in a batch (12)")
    options.add_argument("--sequence", type=int, default=64, help="tokens in a sequence (64)")
    options.add_argument("--steps", type=int, default=60, help="steps of each run that is watched (60)")
    options.add_argument("--capacity", type=float, nargs="*", default=[0.5, 1, 2], help="capacity factors (0.5 1 2)")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    with torchrun_ranks() as me:
        sizes = sizes_up_to(me.world_size)
        if min(chosen.layers, chosen.steps) < 1 or chosen.sequence < 2 or chosen.hidden % 8:
            options.error("need 1 layer and step, 2 tokens or more in a sequence, and --hidden divisible by 8")
        if any(chosen.experts % size or chosen.batch % size for size in sizes):
            options.error(f"--experts and --batch must be divisible by {', '.join(map(str, sizes))}")
        try:
            config = MoEConfig(chosen.hidden, chosen.ffn, chosen.experts, chosen.top_k, shared=chosen.shared)
            for factor in chosen.capacity:
                replace(config, capacity_factor=factor)
        except ValueError as error:
            options.error(str(error))
        shape = TransformerConfig(
            vocab=TOKENS,
            hidden=chosen.hidden,
            layers=chosen.layers,
            heads=4,
            kv_heads=2,
            ffn=chosen.ffn,
            sequence=chosen.sequence,
        )
        batches, valid = (
            first_batches(split, count, chosen.batch, chosen.sequence, me.device)
            for split, count in (("train", chosen.steps), ("valid", 8))
        )
        groups = {size: dist.new_group(list(range(size)), timeout=LIMIT) for size in sizes}
        bench = Bench(me, shape, config, batches, groups, chosen.impl)
        layers = on_each_size(bench.groups, "one layer", partial(measure_layer, bench))
        first = on_each_size(bench.groups, "any number of ranks", partial(train_first_steps, bench))
        watched = watch(bench, chosen.capacity)
        likes = favourites(watched["as it is"].model, valid, chosen.layers - 1)
        runs = [record_of(name, trained) for name, trained in watched.items()]
        data = {"layers": layers, "sizes": first, "runs": runs, "likes": likes}
        path = show.write_results("mixture_of_experts", data)
        fault = find_fault(layers, first)
        if me.is_main:
            print_tables(bench, layers, first, runs, likes)
            draw(bench, runs)
            print(fault or f"The same on any number of ranks. Written: {path}, results/mixture_of_experts.svg")
        wrong = torch.tensor(int(bool(fault)), device=me.device)
        dist.broadcast(wrong, 0)  # ranks that were in no group saw no losses
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
