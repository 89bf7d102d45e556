"""Lesson 2.1 at work: a small image network on real digits, data-parallel on however many ranks there are.

Three questions, one table each:

1. Do your `DataParallel`, torch's DistributedDataParallel and Accelerate train alike? The same batches through all of
   them, in turns; every loss is held against one process on the union batch. A difference: exit code 1.
2. What do more ranks buy? Strong scaling (one batch, shared) and weak scaling (a batch per rank) on 1, 2, 4, ... ranks.
3. Which learning rate goes with a larger batch? Test accuracy after the same epochs, by batch and rule.

Tier 1, a laptop CPU (2 cores, gloo; 15 to 50 s). More ranks than cores share the cores: expect the losses to agree,
images/s to stay where 2 ranks brought them, and efficiency to fall like cores / ranks.

    python labs/day2_data_parallel/run_ddp.py
    torchrun --standalone --nproc-per-node 4 labs/day2_data_parallel/run_ddp.py --impl mine torch accelerate

Tier 2, one multi-GPU box (NCCL, one rank per GPU). The network is far too small for a GPU, so make it wider and the
batch larger: the longer a step takes, the closer weak scaling gets to 1.

    torchrun --standalone --nproc-per-node 8 labs/day2_data_parallel/run_ddp.py --batch 2048 --channels 256

Tier 3, a cluster: the same line on every node, here under Slurm. Watch the step time as ranks leave the node.

    srun --nodes 4 --ntasks-per-node 1 torchrun --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d \\
        --rdzv-endpoint $(scontrol show hostnames | head -1):29500 \\
        labs/day2_data_parallel/run_ddp.py --batch 3968 --channels 256

Writes results/ddp.json and results/ddp.svg.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import BatchSampler

from labs.day2_data_parallel.ddp import LAMB, LARS, DataParallel, ShardedSampler, scaled_learning_rate, warmup_cosine
from shardlab import show
from shardlab.data import Images, digits
from shardlab.models import DigitsConfig, build
from shardlab.observe import Traffic
from shardlab.ranks import TorchrunRank, torchrun_ranks

TOLERANCE = 1e-4  # relative, between losses: float32 sums in another order, some steps apart
SEED = 0


@dataclass(frozen=True)
class Bench:
    """What all experiments share."""

    me: TorchrunRank
    images: Images
    config: DigitsConfig
    batch: int


# --- The implementations ----------------------------------------------------------------------------------------------


def wrap_mine(model: nn.Module, group: ProcessGroup | None) -> nn.Module:
    return DataParallel(model, group=group)


def wrap_torch(model: nn.Module, group: ProcessGroup | None) -> nn.Module:
    return DistributedDataParallel(model, process_group=group)


def wrap_accelerate(model: nn.Module, group: ProcessGroup | None) -> nn.Module:
    """Accelerate's own choice of wrapper. It may quietly decide to be alone, so ask it: how many, and which wrapper?"""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=next(model.parameters()).device.type == "cpu")
    wrapped = accelerator.prepare_model(model)
    ranks = dist.get_world_size()
    if accelerator.num_processes != ranks:
        raise RuntimeError(f"Accelerate sees {accelerator.num_processes} processes, there are {ranks}")
    if ranks > 1 and not isinstance(wrapped, DistributedDataParallel):
        raise RuntimeError(f"Accelerate wrapped the model in {type(wrapped).__name__}, not in DistributedDataParallel")
    return wrapped


IMPLEMENTATIONS = {"mine": wrap_mine, "torch": wrap_torch, "accelerate": wrap_accelerate}


# --- One training step ------------------------------------------------------------------------------------------------


@dataclass
class Trainer:
    """A wrapped model with its optimiser, and what its steps gave: losses (of the whole batch) and seconds."""

    model: nn.Module
    optimizer: Optimizer
    group: ProcessGroup | None = None
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def step(self, x: Tensor, y: Tensor) -> None:
        """Train on this rank's part of the batch, x [B, 1, 28, 28] and y [B]; all ranks have the same B."""
        dist.barrier(self.group)
        start = time.perf_counter()
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        if x.is_cuda:
            torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - start)
        mean = loss.detach().clone()
        dist.all_reduce(mean, group=self.group)
        self.losses.append(mean.item() / dist.get_world_size(self.group))

    @property
    def typical_seconds(self) -> float:
        """Median without the first step, which allocates."""
        return statistics.median(self.seconds[1:])


def new_model(bench: Bench) -> nn.Module:
    return build(bench.config, SEED).to(bench.me.device)


def sgd(model: nn.Module, lr: float) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def batches(bench: Bench, per_rank: int, rank: int, ranks: int, epochs: int) -> Iterator[tuple[Tensor, Tensor]]:
    """This rank's parts of shuffled batches of ``per_rank * ranks`` items; the union over ranks is the same for any
    number of ranks that divides the batch."""
    sampler = ShardedSampler(len(bench.images.train_x), rank, ranks, seed=SEED, drop_last=True)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for indices in BatchSampler(sampler, per_rank, drop_last=True):
            yield bench.images.train_x[indices].to(bench.me.device), bench.images.train_y[indices].to(bench.me.device)


# --- 1. Do they train alike? ------------------------------------------------------------------------------------------


def compare(bench: Bench, names: list[str], steps: int) -> tuple[list[dict], list[float]]:
    """Train every implementation on the same batches, taking turns in each step: whatever else the machine does meets
    all of them. Rank 0 also trains one process on the union. Returns a record per implementation, and its losses."""
    ranks, rank = bench.me.world_size, bench.me.rank
    per_rank = bench.batch // ranks
    models = {name: IMPLEMENTATIONS[name](new_model(bench), None) for name in names}
    trainers = {name: Trainer(model, sgd(model, 0.05)) for name, model in models.items()}
    ledgers = {name: Traffic() for name in names}
    with show.progress("one step each, in turns", steps) as advance:
        for _, (x, y) in zip(range(steps), batches(bench, per_rank, rank, ranks, epochs=steps), strict=False):
            for name, trainer in trainers.items():
                with ledgers[name]:
                    trainer.step(x, y)
            advance()
    alone = one_process_losses(bench, per_rank * ranks, steps)
    records = []
    for name, trainer in trainers.items():
        gap = max(abs(loss / right - 1) for loss, right in zip(trainer.losses, alone, strict=True))
        gradients = [call for call in ledgers[name].calls if call.op == "all_reduce" and call.numel > 1]
        records.append(
            {
                "implementation": name,
                "losses": trainer.losses,
                "gap": gap,
                "ranks_equal": equal_on_all_ranks(models[name]),
                "milliseconds": 1e3 * trainer.typical_seconds,
                "messages_per_step": len(gradients) / steps,
                "bytes_per_step": sum(call.payload_bytes for call in gradients) / steps,
            }
        )
    return records, alone


def one_process_losses(bench: Bench, batch: int, steps: int) -> list[float]:
    """Losses of an unwrapped model on whole batches, computed on rank 0 and told to all."""
    losses = torch.zeros(steps, device=bench.me.device)
    if bench.me.is_main:
        model = new_model(bench)
        optimizer = sgd(model, 0.05)
        for step, (x, y) in zip(range(steps), batches(bench, batch, 0, 1, epochs=steps), strict=False):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses[step] = loss.detach()
    dist.broadcast(losses, 0)
    return losses.tolist()


def equal_on_all_ranks(model: nn.Module) -> bool:
    """Are all parameters those of rank 0, bit for bit?"""
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    of_rank_0 = flat.clone()
    dist.broadcast(of_rank_0, 0)
    equal = torch.tensor(int(torch.equal(flat, of_rank_0)), device=flat.device)
    dist.all_reduce(equal, dist.ReduceOp.MIN)
    return bool(equal)


# --- 2. What do more ranks buy? ---------------------------------------------------------------------------------------


def scale(bench: Bench, name: str, steps: int) -> list[dict]:
    """Images/s on 1, 2, 4, ... ranks of this launch, the others idle: one batch shared (strong), one each (weak)."""
    world = bench.me.world_size
    sizes = [size for size in (2**power for power in range(world.bit_length())) if size < world] + [world]
    groups = {size: dist.new_group(list(range(size))) for size in sizes}
    records = []
    with show.progress("scaling", 2 * len(sizes)) as advance:
        for kind in ("strong", "weak"):
            for size, group in groups.items():
                share = size if kind == "strong" else 1
                per_rank = bench.batch // world // share if kind == "weak" else bench.batch // share
                seconds = seconds_per_step(bench, name, group, size, per_rank, steps) if bench.me.rank < size else 0.0
                dist.barrier()
                advance()
                records.append({"kind": kind, "ranks": size, "per_rank": per_rank, "seconds": seconds})
    for record in records:
        record["images_per_second"] = (
            record["ranks"] * record["per_rank"] / record["seconds"] if bench.me.is_main else 0
        )
        first = next(other for other in records if other["kind"] == record["kind"])
        speedup = record["images_per_second"] / first["images_per_second"] if bench.me.is_main else 0
        record["efficiency"] = speedup / record["ranks"]
    return records


def seconds_per_step(bench: Bench, name: str, group: ProcessGroup, ranks: int, per_rank: int, steps: int) -> float:
    model = IMPLEMENTATIONS[name](new_model(bench), group)
    trainer = Trainer(model, sgd(model, 0.01), group)
    data = batches(bench, per_rank, bench.me.rank, ranks, epochs=steps)
    for _, (x, y) in zip(range(steps), data, strict=False):
        trainer.step(x, y)
    return trainer.typical_seconds


# --- 3. Which learning rate goes with a larger batch? -----------------------------------------------------------------

BASE_BATCH = 48
BASE_RATES = {"sgd": 0.01, "LARS": 2.0, "LAMB": 0.02}  # at BASE_BATCH
RULES = {  # column of the table: optimiser, rule (None: the base rate, whatever the batch)
    "SGD, constant": ("sgd", None),
    "SGD, sqrt": ("sgd", "sqrt"),
    "SGD, linear": ("sgd", "linear"),
    "LARS, linear": ("LARS", "linear"),
    "LAMB, sqrt": ("LAMB", "sqrt"),
}


def new_optimizer(kind: str, model: nn.Module, lr: float) -> Optimizer:
    if kind == "LARS":
        return LARS(model.parameters(), lr=lr, trust_coefficient=0.002)
    return LAMB(model.parameters(), lr=lr) if kind == "LAMB" else sgd(model, lr)


def sweep_batches(bench: Bench, name: str, factors: list[int], epochs: int) -> list[dict]:
    """Test accuracy after the same epochs for every rule at BASE_BATCH times each factor."""
    train = cache(partial(train_and_test, bench, name))  # at the base batch all rules of an optimiser are one run
    records = []
    with show.progress("batch against learning rate", len(factors) * len(RULES)) as advance:
        for factor in factors:
            for column, (kind, rule) in RULES.items():
                batch = max(1, BASE_BATCH * factor // bench.me.world_size) * bench.me.world_size
                base = BASE_RATES[kind]
                rate = base if rule is None else scaled_learning_rate(base, batch, BASE_BATCH, rule)
                accuracy = train(kind, batch, rate, epochs)
                records.append({"batch": batch, "rule": column, "rate": rate, "accuracy": accuracy})
                advance()
    return records


def train_and_test(bench: Bench, name: str, kind: str, batch: int, rate: float, epochs: int) -> float:
    """Train with a tenth of the steps as warm-up; the share of test images that end up right."""
    ranks = bench.me.world_size
    model = IMPLEMENTATIONS[name](new_model(bench), None)
    optimizer = new_optimizer(kind, model, rate)
    total = epochs * (len(bench.images.train_x) // batch)
    for step, (x, y) in enumerate(batches(bench, batch // ranks, bench.me.rank, ranks, epochs)):
        optimizer.param_groups[0]["lr"] = warmup_cosine(step, rate, max(1, total // 10), total)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return test_accuracy(bench, model)


@torch.no_grad()
def test_accuracy(bench: Bench, model: nn.Module) -> float:
    """Every test image is judged by one rank, and counted once."""
    me, x, y = bench.me, bench.images.test_x, bench.images.test_y
    own = list(ShardedSampler(len(x), me.rank, me.world_size, shuffle=False))
    right = (model(x[own].to(me.device)).argmax(1) == y[own].to(me.device)).sum()
    dist.all_reduce(right)
    return right.item() / len(x)


# --- Tables, figure, verdict ------------------------------------------------------------------------------------------


def print_tables(bench: Bench, alike: list[dict], scaling: list[dict], rules: list[dict]) -> None:
    reference = next((r["milliseconds"] for r in alike if r["implementation"] == "torch"), None)
    show.table(
        f"Same batches of {bench.batch}, ranks: {bench.me.world_size}, {bench.images.name}",
        [
            "implementation",
            "last loss",
            "off one process",
            "ranks equal",
            "ms/step",
            "to torch",
            "messages",
            "bytes/step",
        ],
        [
            [
                record["implementation"],
                record["losses"][-1],
                record["gap"],
                "yes" if record["ranks_equal"] else "NO",
                record["milliseconds"],
                f"{record['milliseconds'] / reference:.2f}x" if reference else "-",
                record["messages_per_step"],
                round(record["bytes_per_step"]),
            ]
            for record in alike
        ],
    )
    show.table(
        "Scaling of " + alike[0]["implementation"],
        ["kind", "ranks", "batch", "ms/step", "images/s", "efficiency"],
        [
            [
                r["kind"],
                r["ranks"],
                r["ranks"] * r["per_rank"],
                1e3 * r["seconds"],
                r["images_per_second"],
                r["efficiency"],
            ]
            for r in scaling
        ],
    )
    sizes = sorted({record["batch"] for record in rules})
    accuracy = {(record["rule"], record["batch"]): record["accuracy"] for record in rules}
    show.table(
        "Test accuracy, the same epochs",
        ["rule", *(f"batch {size}" for size in sizes)],
        [[rule, *(accuracy[rule, size] for size in sizes)] for rule in RULES],
    )


def draw(alike: list[dict], alone: list[float], scaling: list[dict], rules: list[dict]) -> None:
    import matplotlib.pyplot as plt

    show.use_style()
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4))
    left.plot(alone, color="black", linewidth=5, alpha=0.25, label="one process")
    for record, style in zip(alike, ("-", "--", ":"), strict=False):
        left.plot(record["losses"], style, label=record["implementation"])
    left.set(title="Same losses", xlabel="step", ylabel="loss")
    for kind in ("strong", "weak"):
        points = [record for record in scaling if record["kind"] == kind]
        middle.plot([p["ranks"] for p in points], [p["efficiency"] for p in points], marker="o", label=kind)
    middle.axhline(1, color="grey", linewidth=1)
    middle.set(title="What more ranks buy", xlabel="ranks", ylabel="efficiency", ylim=(0, None))
    middle.set_xticks(sorted({record["ranks"] for record in scaling}))
    for rule in RULES:
        points = [record for record in rules if record["rule"] == rule]
        right.plot([p["batch"] for p in points], [p["accuracy"] for p in points], marker="o", label=rule)
    right.set(title="Batch against learning rate", xlabel="batch", ylabel="test accuracy", xscale="log")
    sizes = sorted({record["batch"] for record in rules})
    right.set_xticks(sizes, labels=sizes)
    right.minorticks_off()
    for axes in (left, middle, right):
        axes.legend(fontsize=9)
    show.save_figure(figure, "results/ddp.svg")


def find_fault(alike: list[dict], rules: list[dict]) -> str:
    """What is wrong with the results, in a sentence; empty if nothing is."""
    for record in alike:
        if not record["gap"] < TOLERANCE:
            return f"{record['implementation']}: losses are off one process by {record['gap']:.1e}, allowed {TOLERANCE}"
        if not record["ranks_equal"]:
            return f"{record['implementation']}: the ranks ended with different parameters"
    best = max(record["accuracy"] for record in rules)
    return "" if best > 0.8 else f"the best test accuracy is {best:.2f}: nothing has learned the digits"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--impl", nargs="+", choices=IMPLEMENTATIONS, default=["mine", "torch"], help="to compare")
    options.add_argument("--batch", type=int, default=192, help="images in a batch, over all ranks (default 192)")
    options.add_argument("--channels", type=int, default=8, help="width of the network (default 8)")
    options.add_argument("--steps", type=int, default=12, help="steps per measurement (default 12)")
    options.add_argument("--epochs", type=int, default=3, help="epochs of the learning-rate sweep (default 3)")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    with torchrun_ranks() as me:
        images = digits()
        most = len(images.train_x)
        if not me.world_size <= chosen.batch <= most or chosen.steps < 2 or min(chosen.epochs, chosen.channels) < 1:
            options.error(f"need a batch of {me.world_size} to {most:,} images, 2 steps, 1 epoch and 1 channel or more")
        bench = Bench(me, images, DigitsConfig(channels=chosen.channels, hidden=32), chosen.batch)
        alike, alone = compare(bench, chosen.impl, chosen.steps)
        partial_groups = [name for name in chosen.impl if name != "accelerate"]  # which knows one group only: all ranks
        scaling = scale(bench, (partial_groups or ["mine"])[0], chosen.steps)
        rules = sweep_batches(bench, chosen.impl[0], [1, 4, 16], chosen.epochs)
        print_tables(bench, alike, scaling, rules)
        path = show.write_results("ddp", {"alike": alike, "one_process": alone, "scaling": scaling, "rules": rules})
        fault = find_fault(alike, rules)
        if me.is_main:
            draw(alike, alone, scaling, rules)
            print(fault or f"All losses are those of one process. Written: {path}, results/ddp.svg")
    return 1 if fault else 0


if __name__ == "__main__":
    sys.exit(main())
