"""Lesson 2.3 at work: a language model is pre-trained on real text, sharded over however many ranks there are.

1. The same first steps by your `shard_module`, by torch's fully_shard and by one process on whole batches. One table:
   losses, peak memory, traffic, step time. A loss that is off: exit code 1.
2. Pre-training, with a checkpoint every so many steps: sharded (torch.distributed.checkpoint), and complete or not
   there. Kill the run at any moment, by Ctrl-C or kill -9, and go on with --resume, on any number of ranks. In the end
   a new model is loaded from the last checkpoint but one and trains the rest again: the same losses, or exit code 1.
3. What the model has learned: it writes.

Tier 1, a laptop CPU (gloo; 44 s of processor time on 2 ranks, 70 s on 4, shared by the cores there are). Expect both
implementations to have equal losses, memory and traffic, a loss that falls from 7 to 5, and a text with the sound of
the Bible and no sense.

    python labs/day2_data_parallel/run_fsdp.py
    torchrun --standalone --nproc-per-node 4 labs/day2_data_parallel/run_fsdp.py
    torchrun --standalone --nproc-per-node 2 labs/day2_data_parallel/run_fsdp.py --resume --steps 120

Tier 2, one multi-GPU box (NCCL, one rank per GPU). Not run by us. Make the model large enough to be worth sharding;
peak memory per rank should fall nearly as 1 / ranks.

    torchrun --standalone --nproc-per-node 8 labs/day2_data_parallel/run_fsdp.py --hidden 2048 --layers 24 --rows 64 \\
        --precision bfloat16 --steps 2000

Tier 3, a cluster: the same line on every node, here under Slurm, in a folder that all nodes see. Not run by us.

    srun --nodes 4 --ntasks-per-node 1 torchrun --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d \\
        --rdzv-endpoint $(scontrol show hostnames | head -1):29500 \\
        labs/day2_data_parallel/run_fsdp.py --hidden 2048 --layers 24 --rows 256 --precision bfloat16 --steps 2000

Writes results/fsdp.json, results/fsdp.svg and results/fsdp_checkpoints; without --resume it begins there anew.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.optim import AdamW

from labs.day2_data_parallel.fsdp import clip_grad_norm, shard_module
from shardlab import show
from shardlab.data import corpus_tokens, token_batches, tokenizer
from shardlab.models import TransformerConfig, build
from shardlab.observe import PeakMemory, Traffic
from shardlab.ranks import TorchrunRank, torchrun_ranks

MIB = 2**20
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}  # relative, between losses of sharded and of one process
SAME = 1e-6  # the same between the two ways to shard, and between a run and its resumption
MAX_NORM = 1.0
SEED = 0
CHECKPOINTS = Path("results") / "fsdp_checkpoints"
PROMPT = "And the king said"


@dataclass(frozen=True)
class Bench:
    """What all parts share: who we are, the model, rows in a global batch, the dtype that computes."""

    me: TorchrunRank
    config: TransformerConfig
    rows: int
    precision: torch.dtype
    tokens: Tensor

    @property
    def settings(self) -> dict[str, int | float | str]:
        """What has to be the same for a checkpoint to be continued."""
        return asdict(self.config) | {"rows": self.rows, "precision": str(self.precision).removeprefix("torch.")}

    @property
    def mixed_precision(self) -> torch.dtype | None:
        return None if self.precision is torch.float32 else self.precision

    def batches(self, start: int = 0):
        """Global batches [rows, sequence], the same on every rank, from a step on."""
        return token_batches(self.tokens, self.rows, self.config.sequence, SEED, start)


# --- The implementations ----------------------------------------------------------------------------------------------


def shard_mine(model: nn.Module, mixed_precision: torch.dtype | None) -> None:
    for block in model.blocks:
        shard_module(block, mixed_precision=mixed_precision)
    shard_module(model, mixed_precision=mixed_precision, reshard_after_forward=False)


def shard_torch(model: nn.Module, mixed_precision: torch.dtype | None) -> None:
    policy = MixedPrecisionPolicy(param_dtype=mixed_precision, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy, reshard_after_forward=False)


def clip_torch(parameters, max_norm: float) -> Tensor:
    return nn.utils.clip_grad_norm_(parameters, max_norm)


@dataclass(frozen=True)
class Implementation:
    shard: Callable[[nn.Module, torch.dtype | None], None]
    clip: Callable[..., Tensor]


IMPLEMENTATIONS = {
    "mine": Implementation(shard_mine, clip_grad_norm),
    "torch": Implementation(shard_torch, clip_torch),
}


# --- Training ---------------------------------------------------------------------------------------------------------


@dataclass
class Trainer:
    """A model with its optimiser, and the losses of its steps, over the whole batch. One process: not sharded."""

    model: nn.Module
    optimizer: AdamW
    clip: Callable[..., Tensor]
    ranks: int
    rank: int
    device: torch.device
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def step(self, batch: Tensor) -> None:
        """Train on this rank's rows of a global batch [rows, sequence]. Ranks may have different numbers of rows.

        The loss is the sum over the rank's tokens, divided by the mean number of tokens per rank: its average over the
        ranks, like that of the gradients, is the mean over all tokens.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, (len(self.losses) + 1) / 10)
        start = time.perf_counter()
        own = batch.tensor_split(self.ranks)[self.rank].to(self.device)
        logits = self.model(own)[:, :-1].flatten(0, 1).float()
        total = F.cross_entropy(logits, own[:, 1:].flatten(), reduction="sum")
        loss = total / (batch[:, 1:].numel() / self.ranks)
        loss.backward()
        self.clip(self.model.parameters(), MAX_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad()
        mean = loss.detach() / self.ranks
        if self.ranks > 1:
            dist.all_reduce(mean)
        self.losses.append(mean.item())
        self.seconds.append(time.perf_counter() - start)


def new_trainer(bench: Bench, name: str, seed: int = SEED) -> Trainer:
    model, implementation = build(bench.config, seed).to(bench.me.device), IMPLEMENTATIONS[name]
    implementation.shard(model, bench.mixed_precision)
    optimizer = AdamW(model.parameters())
    return Trainer(model, optimizer, implementation.clip, bench.me.world_size, bench.me.rank, bench.me.device)


def one_process(bench: Bench, steps: int) -> tuple[list[float], int]:
    """Losses, and bytes at the peak, of a model that is not sharded, on whole batches in float32: computed on rank 0
    and told to all."""
    result = torch.zeros(steps + 1, dtype=torch.float64, device=bench.me.device)
    if bench.me.is_main:
        first = list(islice(bench.batches(), steps))
        with PeakMemory() as memory:
            model = build(bench.config, SEED).to(bench.me.device)
            trainer = Trainer(model, AdamW(model.parameters()), clip_torch, ranks=1, rank=0, device=bench.me.device)
            for batch in first:
                trainer.step(batch)
        result.copy_(torch.tensor([*trainer.losses, memory.peak_bytes]))
    dist.broadcast(result, 0)
    *losses, peak_bytes = result.tolist()
    return losses, int(peak_bytes)


# --- 1. Do they train alike, and what does each cost? -----------------------------------------------------------------


def compare(bench: Bench, names: list[str], steps: int) -> tuple[list[dict], int]:
    """Set every implementation up and train two steps, observed; then all take turns in each step: whatever else the
    machine does meets all of them. A record for each, and the bytes of one process at its peak."""
    trainers: dict[str, Trainer] = {}
    records = []
    with show.progress("the same first steps, in turns", steps) as advance:
        first = list(islice(bench.batches(), steps))
        for name in names:
            with PeakMemory() as memory:
                trainers[name] = new_trainer(bench, name)
                trainers[name].step(first[0])
                with Traffic() as traffic:
                    trainers[name].step(first[1])
            records.append(
                {
                    "implementation": name,
                    "peak_bytes": memory.peak_bytes,
                    "sent_bytes": traffic.sent_bytes(),
                    "all_gathers": traffic.count("all_gather"),
                    "reduce_scatters": traffic.count("reduce_scatter"),
                }
            )
        for batch in first[2:]:
            for trainer in trainers.values():
                dist.barrier()
                trainer.step(batch)
            advance()
    alone, alone_bytes = one_process(bench, steps)
    for record in records:
        trainer = trainers[record["implementation"]]
        record["losses"] = trainer.losses
        record["off"] = max(abs(a / b - 1) for a, b in zip(trainer.losses, alone, strict=True))
        record["milliseconds"] = 1e3 * statistics.median(trainer.seconds[2:])
    return records, alone_bytes


# --- 2. Pre-training that may be killed -------------------------------------------------------------------------------


def save(bench: Bench, trainer: Trainer) -> None:
    """A checkpoint of the steps so far. Each rank writes its shards; the folder gets its name when all is in it."""
    step = len(trainer.losses)
    partial, final = CHECKPOINTS / f"step-{step:06}.partial", CHECKPOINTS / f"step-{step:06}"
    if bench.me.is_main:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        (partial / "losses.json").write_text(json.dumps(trainer.losses))
        (partial / "settings.json").write_text(json.dumps(bench.settings))
    dist.barrier()
    model, optimizer = get_state_dict(trainer.model, trainer.optimizer)
    dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=partial)
    dist.barrier()
    if bench.me.is_main:
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        for old in [*checkpoints()[:-2], *CHECKPOINTS.glob("*.partial")]:  # of runs that were killed while they wrote
            shutil.rmtree(old)
    dist.barrier()


def checkpoints() -> list[Path]:
    """Complete checkpoints, the latest last."""
    return sorted(path for path in CHECKPOINTS.glob("step-*") if path.suffix != ".partial")


def find_other_setting(bench: Bench) -> str:
    """What keeps this run from continuing the last checkpoint, in a sentence; empty if nothing does."""
    for folder in checkpoints()[-1:]:
        saved = json.loads((folder / "settings.json").read_text())
        for name, value in bench.settings.items():
            if saved[name] != value:
                return (
                    f"{folder} is of a run with {name} {saved[name]}, this one has {value}: change it or drop --resume"
                )
    return ""


def load(trainer: Trainer, folder: Path) -> None:
    """Continue from a checkpoint, whatever number of ranks has written it."""
    model, optimizer = get_state_dict(trainer.model, trainer.optimizer)
    state = {"model": model, "optimizer": optimizer}
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(
        trainer.model, trainer.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    trainer.losses = json.loads((folder / "losses.json").read_text())


def pretrain(bench: Bench, name: str, steps: int, every: int, resume: bool) -> tuple[Trainer, int]:
    """Train up to ``steps`` steps; the trainer, and the step it began with."""
    trainer = new_trainer(bench, name)
    if resume and (found := checkpoints()):
        load(trainer, found[-1])
    else:
        dist.barrier()
        if bench.me.is_main:
            shutil.rmtree(CHECKPOINTS, ignore_errors=True)
        dist.barrier()
    start = len(trainer.losses)
    with show.progress("pre-training", steps - start) as advance:
        for batch in islice(bench.batches(start), max(0, steps - start)):
            trainer.step(batch)
            advance()
            if len(trainer.losses) % every == 0 or len(trainer.losses) == steps:
                save(bench, trainer)
    return trainer, start


def replay(bench: Bench, name: str, losses: list[float]) -> tuple[int, list[float]]:
    """Load the last checkpoint but one into a new model, and train the rest again; where it began, and its losses."""
    earlier = [folder for folder in checkpoints() if folder.name < f"step-{len(losses):06}"]
    if not earlier:
        return len(losses), losses
    trainer = new_trainer(bench, name, seed=SEED + 1)
    load(trainer, earlier[-1])
    start = len(trainer.losses)
    with show.progress("the end once more, from a checkpoint", len(losses) - start) as advance:
        for batch in islice(bench.batches(start), len(losses) - start):
            trainer.step(batch)
            advance()
    return start, trainer.losses


# --- 3. What has it learned? ------------------------------------------------------------------------------------------


@torch.no_grad()
def write_text(bench: Bench, model: nn.Module, temperature: float, length: int = 48) -> str:
    """Continue PROMPT by ``length`` tokens. Every rank takes part, because every layer is gathered from all of them,
    and draws the same tokens from the same generator.

    Args:
        temperature: 0 takes the likeliest token; 1 draws from the model's own distribution.
    """
    words = tokenizer(bench.config.vocab)
    generator = torch.Generator().manual_seed(SEED)
    ids = words.encode(PROMPT).ids
    for _ in range(length):
        window = torch.tensor([ids[-bench.config.sequence :]], device=bench.me.device)
        logits = model(window)[0, -1].float().cpu()
        if temperature > 0:
            ids.append(int(torch.multinomial((logits / temperature).softmax(0), 1, generator=generator)))
        else:
            ids.append(int(logits.argmax()))
    return words.decode(ids)


# --- Table, figure, verdict -------------------------------------------------------------------------------------------


def print_table(bench: Bench, records: list[dict]) -> None:
    theirs = next((record["milliseconds"] for record in records if record["implementation"] == "torch"), None)
    show.table(
        f"{bench.config.parameters:,} parameters, batches of {bench.rows} x {bench.config.sequence} tokens, "
        f"ranks: {bench.me.world_size}. Memory and traffic are those of rank 0",
        [
            "implementation",
            "loss",
            "off one process",
            "peak memory (MiB)",
            "sent per step (MiB)",
            "all-gathers",
            "reduce-scatters",
            "ms/step",
            "to torch",
        ],
        [
            [
                record["implementation"],
                f"{record['losses'][-1]:.5f}",
                f"{record['off']:.1e}",
                record["peak_bytes"] / MIB,
                record["sent_bytes"] / MIB,
                record["all_gathers"],
                record["reduce_scatters"],
                record["milliseconds"],
                f"{record['milliseconds'] / theirs:.2f}x" if theirs else "-",
            ]
            for record in records
        ],
    )


def draw(
    bench: Bench, records: list[dict], alone_bytes: int, losses: list[float], again: tuple[int, list[float]]
) -> None:
    import matplotlib.pyplot as plt

    show.use_style()
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), width_ratios=(2, 1))
    start, replayed = again
    left.plot(losses, color="black", linewidth=4, alpha=0.25, label="trained")
    left.plot(range(start, len(losses)), replayed[start:], label=f"from the checkpoint of step {start}")
    left.axhline(math.log(bench.config.vocab), color="grey", linewidth=1)
    left.set(title=f"Pre-training, ranks: {bench.me.world_size}", xlabel="step", ylabel="loss (nats)")
    left.legend()
    bars = {"one process": alone_bytes} | {record["implementation"]: record["peak_bytes"] for record in records}
    right.bar(list(bars), [size / MIB for size in bars.values()], width=0.5, color=show.rank_colour(0))
    right.set(title="Peak memory of rank 0", ylabel="MiB")
    show.save_figure(figure, "results/fsdp.svg")


def find_fault(bench: Bench, records: list[dict], losses: list[float], replayed: list[float]) -> str:
    """What is wrong with the results, in a sentence; empty if nothing is."""
    for record in records:
        if not record["off"] < TOLERANCE[bench.precision]:
            return f"{record['implementation']}: losses are off one process by {record['off']:.1e}"
    for record in records[1:]:
        gap = max(abs(a / b - 1) for a, b in zip(record["losses"], records[0]["losses"], strict=True))
        if not gap < SAME:
            names = f"{records[0]['implementation']} and {record['implementation']}"
            return f"the losses of {names} differ by {gap:.1e}, allowed {SAME}"
    if not max(abs(a / b - 1) for a, b in zip(losses, replayed, strict=True)) < SAME:
        return "training from a checkpoint did not give the same losses"
    head, tail = statistics.mean(losses[:5]), statistics.mean(losses[-5:])
    return (
        "" if len(losses) < 20 or tail < head else f"the loss does not fall: {head:.3f} at first, {tail:.3f} in the end"
    )


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument(
        "--impl", nargs="+", choices=IMPLEMENTATIONS, default=["mine", "torch"], help="to compare; the first pre-trains"
    )
    options.add_argument("--steps", type=int, default=60, help="of pre-training, in all (default 60)")
    options.add_argument("--every", type=int, default=15, help="steps between checkpoints (default 15)")
    options.add_argument("--resume", action="store_true", help="go on from the last checkpoint, if there is one")
    options.add_argument("--compare-steps", type=int, default=6, help="steps of the comparison (default 6)")
    options.add_argument("--rows", type=int, default=8, help="sequences in a batch, over all ranks (default 8)")
    options.add_argument("--hidden", type=int, default=128, help="width of the model (default 128)")
    options.add_argument("--layers", type=int, default=4, help="blocks of the model (default 4)")
    options.add_argument("--precision", choices=["float32", "bfloat16"], default="float32", help="to compute in")
    options.add_argument(
        "--temperature", type=float, default=0.7, help="of the text in the end, 0: the likeliest token"
    )
    chosen = options.parse_args()
    torch.set_num_threads(1)
    with torchrun_ranks() as me:
        if chosen.hidden < 64 or chosen.hidden % 64 or min(chosen.layers, chosen.every, chosen.steps) < 1:
            options.error(
                "need a hidden width that is a multiple of 64, and at least 1 layer, 1 step, and 1 for --every"
            )
        if chosen.rows < me.world_size or chosen.compare_steps < 3 or chosen.temperature < 0:
            options.error(f"need at least {me.world_size} rows, 3 compared steps, and a temperature of 0 or more")
        heads = chosen.hidden // 32
        shape = {"hidden": chosen.hidden, "layers": chosen.layers, "heads": heads, "kv_heads": heads // 2}
        config = TransformerConfig(vocab=1024, ffn=3 * chosen.hidden, sequence=128, **shape)
        if me.is_main:
            corpus_tokens("train", config.vocab)  # one rank fills the cache
        dist.barrier()
        tokens = corpus_tokens("train", config.vocab)
        bench = Bench(me, config, chosen.rows, getattr(torch, chosen.precision), tokens)
        if chosen.resume and (difference := find_other_setting(bench)):
            options.error(difference)
        records, alone_bytes = compare(bench, chosen.impl, chosen.compare_steps)
        print_table(bench, records)
        trainer, began = pretrain(bench, chosen.impl[0], chosen.steps, chosen.every, chosen.resume)
        again = replay(bench, chosen.impl[0], trainer.losses)
        text = write_text(bench, trainer.model, chosen.temperature)
        losses, (start, replayed) = trainer.losses, again
        path = show.write_results(
            "fsdp",
            {
                "compared": records,
                "one_process_peak_bytes": alone_bytes,
                "losses": losses,
                "began": began,
                "replayed_from": start,
                "text": text,
            },
        )
        fault = find_fault(bench, records, losses, replayed)
        if me.is_main:
            draw(bench, records, alone_bytes, losses, again)
            print(f"Steps {began} to {len(losses)}: loss {losses[0]:.3f} at first, {losses[-1]:.3f} in the end.")
            same = "bit for bit" if losses == replayed else "within rounding"
            if start < len(losses):
                print(f"Steps {start} to {len(losses)} again, from a checkpoint: the same losses, {same}.")
            print(f"\n  {' '.join(text.split())}\n")
            print(fault or f"All losses are those of one process. Written: {path}, results/fsdp.svg, {CHECKPOINTS}")
    return 1 if fault else 0


if __name__ == "__main__":
    sys.exit(main())
