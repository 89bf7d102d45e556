"""Lesson 3.3 at work: one long sequence, shared by 1, 2, 4, ... ranks.

Four questions, a table each:

1. Is a step still what one process computes, and what does it send? Loss and gradients of a small model on real text,
   by ring and by Ulysses. A difference: exit code 1.
2. How long may a sequence be, if a rank may hold so many bytes? Forward and backward under `PeakMemory`.
3. Attention alone, forward and backward: your ring, your Ulysses and, on CPUs, torch's private ring, in turns.
4. Who works how long? The products of four ranks of a causal ring, computed one after the other on rank 0: sequence
   dealt out in a zig-zag, and cut into equal parts.

Tier 1, a laptop CPU (gloo). On 2 busy cores 4 ranks took 45 s. The longest sequence grew from 1,984 tokens to 3,968 and
7,936. torch's ring uses a fused kernel where yours is written in PyTorch's operations: yours took 1.3 times as long on
2 ranks.

    python labs/day3_model_parallel/run_context.py
    torchrun --standalone --nproc-per-node 4 labs/day3_model_parallel/run_context.py

Tier 2, one multi-GPU box (NCCL, one rank per GPU; not run by us). Give it a real size:

    torchrun --standalone --nproc-per-node 8 labs/day3_model_parallel/run_context.py \\
        --hidden 2048 --heads 16 --kv-heads 8 --layers 8 --sequence 8192 --budget-mib 16384

Tier 3, a cluster (not run by us): the same on two nodes, the ring through both. Compare the rows of 8 and 16 ranks.

    srun --nodes 2 --ntasks-per-node 1 torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d \\
        --rdzv-endpoint $(scontrol show hostnames | head -1):29500 labs/day3_model_parallel/run_context.py \\
        --hidden 2048 --heads 16 --kv-heads 8 --layers 8 --sequence 8192 --budget-mib 16384

Writes results/context.json and results/context.svg.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from labs.day3_model_parallel.context import (
    attend_block,
    context_parallel,
    ring_attention,
    shard_batch,
    shard_loss,
    ulysses_attention,
    visible,
    zigzag_split,
)
from shardlab import show
from shardlab.data import corpus_tokens
from shardlab.models import Transformer, TransformerConfig, build
from shardlab.observe import PeakMemory, Traffic
from shardlab.observe.turns import on_each_size, time_repeats
from shardlab.ranks import TorchrunRank, torchrun_ranks

TOLERANCE = 1e-4  # relative, of loss and gradients: float32 sums in another order
SEED = 0
VOCAB = 1024
BALANCE_RANKS = 4
BALANCE_TIMES = 4  # as long a sequence, whose products take long enough to be timed
LIMIT = datetime.timedelta(seconds=120)
KINDS = ("ring", "ulysses")
SPLITS = ("zig-zag", "equal parts")


@dataclass(frozen=True)
class Bench:
    """What all experiments share. ``groups`` has the ranks 0 ... n-1, by n; ``tokens`` is one long sequence."""

    me: TorchrunRank
    config: TransformerConfig
    tokens: Tensor
    groups: dict[int, ProcessGroup]
    impls: list[str]
    steps: int

    def kinds(self, ranks: int) -> list[str]:
        """The chosen ways that this number of ranks can go: Ulysses needs a head for each."""
        fits = self.config.heads % ranks == 0 and (
            self.config.kv_heads % ranks == 0 or ranks % self.config.kv_heads == 0
        )
        return [kind for kind in KINDS if kind in self.impls and (kind == "ring" or fits)]


# --- 1. A step of the model -------------------------------------------------------------------------------------------


def step(model: Transformer, tokens: Tensor, group: ProcessGroup) -> Tensor:
    """Forward and backward on this rank's part of the sequence. Returns its part of the loss."""
    own, positions, labels = shard_batch(tokens, group)
    loss = shard_loss(model(own, positions), labels, group)
    loss.backward()
    return loss.detach()


def train(bench: Bench, alone: tuple[Tensor, Tensor], ranks: int) -> list[dict]:
    """A step by each kind, held against one process: loss, gradients, traffic, memory."""
    group, records = bench.groups[ranks], []
    for kind in bench.kinds(ranks):
        model = context_parallel(build(bench.config, SEED).to(bench.me.device), group, kind)
        with PeakMemory(model) as memory, Traffic() as traffic:
            loss = step(model, bench.tokens, group)
        gradient = flat_gradient(model)
        for part in (loss, gradient):
            dist.all_reduce(part, group=group)
        gaps = [
            (got - right).abs().max() / right.abs().max() for got, right in zip((loss, gradient), alone, strict=True)
        ]
        records.append(
            {
                "kind": kind,
                "ranks": ranks,
                "loss": loss.item(),
                "gap": max(gaps).item(),
                "sent_bytes": traffic.sent_bytes(),
                "peak_bytes": memory.peak_bytes,
            }
        )
    return records


def flat_gradient(model: Transformer) -> Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def one_process(bench: Bench) -> tuple[Tensor, Tensor]:
    """Loss and gradient of the plain model on the whole sequence; every rank computes it."""
    model = build(bench.config, SEED).to(bench.me.device)
    logits = model(bench.tokens)
    loss = torch.nn.functional.cross_entropy(logits[0, :-1].float(), bench.tokens[0, 1:])
    loss.backward()
    return loss.detach(), flat_gradient(model)


# --- 2. The longest sequence ------------------------------------------------------------------------------------------


def longest(bench: Bench, budget: int, ranks: int) -> list[dict]:
    """Two short sequences show what a token costs; the length that should fit is then measured, and cut if it does
    not."""
    group = bench.groups[ranks]
    unit = 32 * ranks  # tokens
    short, double = (peak_of(bench, group, unit * times) for times in (4, 8))
    per_token = (double - short) / (4 * unit)
    fixed = short - per_token * 4 * unit
    length = int((budget - fixed) / per_token) // unit * unit
    while length > 0 and (peak := peak_of(bench, group, length)) > budget:
        length -= unit
    peak = peak if length > 0 else 0
    return [{"ranks": ranks, "tokens": max(length, 0), "peak_bytes": peak, "bytes_per_token": per_token}]


def peak_of(bench: Bench, group: ProcessGroup, length: int) -> int:
    """Most bytes on any rank in a step on a sequence of ``length`` tokens, the same tokens over and over."""
    model = context_parallel(build(bench.config, SEED).to(bench.me.device), group)
    tokens = bench.tokens.repeat(1, -(-length // bench.tokens.shape[1]))[:, :length]
    with PeakMemory(model) as memory:
        step(model, tokens, group)
    peak = torch.tensor(memory.peak_bytes, device=bench.me.device)
    dist.all_reduce(peak, dist.ReduceOp.MAX, group)
    return int(peak)


# --- 3. Attention alone -----------------------------------------------------------------------------------------------


def attention(bench: Bench, ranks: int) -> list[dict]:
    """Forward and backward of causal attention on the model's heads, each key head its own: time and traffic."""
    group, generator = bench.groups[ranks], torch.Generator().manual_seed(SEED)
    shape = (1, bench.config.heads, bench.tokens.shape[1] // (2 * ranks) * 2 * ranks, bench.config.head_dim)
    query, key, value, upstream = (
        zigzag_split(torch.randn(shape, generator=generator).to(bench.me.device), 2, group) for _ in range(4)
    )
    functions = {"ring": ring_attention, "ulysses": ulysses_attention}

    def own(kind: str) -> None:
        leaves = [tensor.detach().requires_grad_() for tensor in (query, key, value)]
        functions[kind](*leaves, True, group).backward(upstream)

    kinds = [kind for kind in bench.kinds(ranks) if kind == "ring" or bench.config.heads % ranks == 0]
    calls: dict[str, Callable[[], object]] = {kind: lambda kind=kind: own(kind) for kind in kinds}
    if "torch" in bench.impls and ranks > 1 and bench.me.device.type == "cpu":
        calls["torch's ring"] = lambda: ring_of_torch(group, query, key, value, upstream)
    sent = {}
    for name, call in calls.items():
        with Traffic() as traffic:
            call()
        sent[name] = traffic.sent_bytes()
    seconds = time_repeats({name: lambda _, call=call: call() for name, call in calls.items()}, bench.steps + 1, group)
    return [{"impl": name, "ranks": ranks, "seconds": seconds[name], "sent_bytes": sent[name]} for name in calls]


def ring_of_torch(group: ProcessGroup, query: Tensor, key: Tensor, value: Tensor, upstream: Tensor) -> None:
    """torch's private ring with the CPU's fused kernel: its public `context_parallel` does not run on CPUs (2.13)."""
    from torch.distributed.tensor.experimental._context_parallel import _attention as theirs

    theirs._cp_options.rotate_method = theirs._RotateMethod.ALL_TO_ALL  # by default keys are gathered
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    output, lse = theirs._templated_ring_attention(group, 2, kernel, query, key, value, True, dropout_p=0.0)
    theirs._templated_ring_attention_backward(
        group, 2, backward, upstream, "grad_out", query, key, value, output, lse, True, dropout_p=0.0
    )


# --- 4. Who works how long? -------------------------------------------------------------------------------------------


def balance(bench: Bench) -> list[dict]:
    """Seconds of each rank in each step of a causal ring of `BALANCE_RANKS`, computed on this one, without messages,
    of a sequence `BALANCE_TIMES` as long."""
    tokens = BALANCE_TIMES * bench.tokens.shape[1] // (2 * BALANCE_RANKS) * 2
    query, key, value = torch.randn(3, 1, bench.config.heads, tokens, bench.config.head_dim, device=bench.me.device)
    records = []
    for split in SPLITS:
        for rank in range(BALANCE_RANKS):
            for turn in range(BALANCE_RANKS):
                source = (rank - turn) % BALANCE_RANKS
                rows, columns = visible(rank, source, tokens, True)
                if split == "equal parts":  # a rank sees all of those before it, and nothing of those behind
                    rows, columns = slice(0, tokens), slice(0, tokens if source <= rank else 0)
                blocks = [tensor[:, :, part] for tensor, part in ((query, rows), (key, columns), (value, columns))]
                seconds = 0.0
                if blocks[1].shape[2]:
                    seconds = min(stopwatch(bench, blocks, source == rank) for _ in range(3))
                records.append({"split": split, "rank": rank, "step": turn, "seconds": seconds})
    return records


def stopwatch(bench: Bench, blocks: list[Tensor], causal: bool) -> float:
    on_gpu = bench.me.device.type == "cuda"
    clock = time.perf_counter if on_gpu else time.process_time  # other processes do not count
    start = clock()
    attend_block(*blocks, causal)
    if on_gpu:
        torch.cuda.synchronize()
    return clock() - start


def ring_seconds(records: list[dict], split: str) -> float:
    """All wait for the slowest in every step."""
    steps = [
        [r["seconds"] for r in records if r["split"] == split and r["step"] == turn] for turn in range(BALANCE_RANKS)
    ]
    return sum(map(max, steps))


# --- Tables, figure, verdict ------------------------------------------------------------------------------------------

MIB, MB, MS = 2**20, 1e6, 1e-3


def print_tables(bench: Bench, models: list[dict], lengths: list[dict], calls: list[dict], work: list[dict]) -> None:
    config = bench.config
    show.table(
        f"A step on {bench.tokens.shape[1]} tokens: {config.layers} layers, hidden {config.hidden}, {config.heads} "
        f"heads, {config.kv_heads} for keys",
        ["ranks", "kind", "loss", "off one process", "sent MB", "peak MiB"],
        [
            [r["ranks"], r["kind"], r["loss"], f"{r['gap']:.1e}", r["sent_bytes"] / MB, r["peak_bytes"] / MIB]
            for r in models
        ],
    )
    if lengths:
        show.table(
            "The longest sequence in the budget, forward and backward",
            ["ranks", "tokens", "peak MiB", "KiB per token", "times one rank"],
            [
                [
                    r["ranks"],
                    r["tokens"],
                    r["peak_bytes"] / MIB,
                    r["bytes_per_token"] / 2**10,
                    f"{r['tokens'] / lengths[0]['tokens']:.2f}x" if lengths[0]["tokens"] else "-",
                ]
                for r in lengths
            ],
        )
    torchs = {r["ranks"]: r["seconds"] for r in calls if r["impl"] == "torch's ring"}
    show.table(
        f"Causal attention, forward and backward, {bench.tokens.shape[1]} tokens, {config.heads} heads of "
        f"{config.head_dim}",
        ["ranks", "impl", "ms", "sent MB", "to torch's ring"],
        [
            [
                r["ranks"],
                r["impl"],
                r["seconds"] / MS,
                r["sent_bytes"] / MB,
                f"{r['seconds'] / torchs[r['ranks']]:.2f}x" if r["ranks"] in torchs else "-",
            ]
            for r in calls
        ],
    )
    show.table(
        f"A causal ring of {BALANCE_RANKS}, {BALANCE_TIMES * bench.tokens.shape[1]} tokens, forward: ms of "
        "work per rank, and of the ring, where all wait for the slowest",
        ["split", *(f"rank {rank}" for rank in range(BALANCE_RANKS)), "the ring"],
        [
            [
                split,
                *(
                    sum(r["seconds"] for r in work if r["split"] == split and r["rank"] == rank) / MS
                    for rank in range(BALANCE_RANKS)
                ),
                ring_seconds(work, split) / MS,
            ]
            for split in SPLITS
        ],
    )


def draw(models: list[dict], lengths: list[dict], work: list[dict]) -> None:
    """Longest sequences; what is sent; whose work takes how long."""
    import matplotlib.pyplot as plt

    show.use_style()
    figure, (left, middle, *right) = plt.subplots(1, 4, figsize=(13, 3.8), width_ratios=(1, 1, 1.1, 1.1))
    names = [str(r["ranks"]) for r in lengths]
    left.bar(names, [r["tokens"] for r in lengths], color=show.CATEGORY_COLOURS["forward"])
    left.set(title="Longest sequence", xlabel="ranks", ylabel="tokens")
    for kind in KINDS:
        of_kind = [r for r in models if r["kind"] == kind]
        middle.plot([r["ranks"] for r in of_kind], [r["sent_bytes"] / MB for r in of_kind], "o-", label=kind)
    middle.set(title="Sent in a step", xlabel="ranks", ylabel="MB per rank", ylim=(0, None))
    middle.set_xticks([r["ranks"] for r in lengths] or [1])
    middle.legend(fontsize=9)
    highest = max(sum(r["seconds"] for r in work if r["split"] == s and r["rank"] == BALANCE_RANKS - 1) for s in SPLITS)
    for axes, split in zip(right, SPLITS, strict=True):
        bottom = [0.0] * BALANCE_RANKS
        for turn in range(BALANCE_RANKS):
            heights = [r["seconds"] / MS for r in work if r["split"] == split and r["step"] == turn]
            axes.bar(range(BALANCE_RANKS), heights, bottom=bottom, label=f"step {turn}", color=show.rank_colour(turn))
            bottom = [below + height for below, height in zip(bottom, heights, strict=True)]
        axes.set(title=f"Work, {split}", xlabel="rank", ylabel="ms", ylim=(0, 1.15 * highest / MS))
        axes.set_xticks(range(BALANCE_RANKS))
    right[0].legend(fontsize=8, ncol=2)
    show.save_figure(figure, "results/context.svg")
    plt.close(figure)


def find_fault(models: list[dict]) -> str:
    """What is wrong with the results, in a sentence; empty if nothing is."""
    for r in models:
        if not r["gap"] < TOLERANCE:
            return (
                f"WRONG: {r['kind']} on {r['ranks']} ranks: off one process by {r['gap']:.1e}, allowed {TOLERANCE}. "
                "shardlab test 3.3 says more."
            )
    return ""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--impl", nargs="+", choices=[*KINDS, "torch"], default=[*KINDS, "torch"], help="to compare")
    options.add_argument("--hidden", type=int, default=64, help="width of the model (64)")
    options.add_argument("--heads", type=int, default=4, help="query heads (4)")
    options.add_argument("--kv-heads", type=int, default=2, help="key and value heads (2)")
    options.add_argument("--layers", type=int, default=2, help="blocks (2)")
    options.add_argument("--sequence", type=int, default=1024, help="tokens in the sequence (1024)")
    options.add_argument("--budget-mib", type=float, default=48, help="bytes a rank may hold, in MiB (48)")
    options.add_argument("--steps", type=int, default=3, help="repeats of each measurement (3)")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    with torchrun_ranks(timeout=LIMIT.total_seconds()) as me:
        world = me.world_size
        sizes = [size for size in (2**power for power in range(world.bit_length())) if size < world] + [world]
        if chosen.steps < 1 or chosen.layers < 1 or chosen.sequence < 8 * max(world, BALANCE_RANKS):
            options.error(f"need 1 step and layer or more, and {8 * max(world, BALANCE_RANKS)} tokens on {world} ranks")
        try:
            config = TransformerConfig(
                vocab=VOCAB,
                hidden=chosen.hidden,
                layers=chosen.layers,
                heads=chosen.heads,
                kv_heads=chosen.kv_heads,
                ffn=3 * chosen.hidden,
                sequence=2**30,  # positions are computed, not stored: any length will do
            )
        except ValueError as error:
            options.error(str(error))
        text = corpus_tokens("train", VOCAB)
        tokens = text[: chosen.sequence].unsqueeze(0).to(me.device)
        groups = {size: dist.new_group(list(range(size)), timeout=LIMIT) for size in sizes}
        bench = Bench(me, config, tokens, groups, chosen.impl, chosen.steps)
        alone = one_process(bench)
        budget = int(chosen.budget_mib * MIB)
        models = on_each_size(bench.groups, "the model", lambda ranks: train(bench, alone, ranks))
        lengths = on_each_size(bench.groups, "longest sequence", lambda ranks: longest(bench, budget, ranks))
        calls = on_each_size(bench.groups, "attention", lambda ranks: attention(bench, ranks))
        fault = find_fault(models)
        work = balance(bench) if me.is_main else []
        path = show.write_results(
            "context", {"models": models, "longest": lengths, "attention": calls, "balance": work}
        )
        if me.is_main:
            print_tables(bench, models, lengths, calls, work)
            draw(models, lengths, work)
            print(fault or f"Loss and gradients are those of one process. Written: {path}, results/context.svg")
        wrong = torch.tensor(int(bool(fault)), device=me.device)
        dist.broadcast(wrong, 0)  # ranks that were in no group saw no losses
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
