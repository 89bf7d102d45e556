"""Lesson 2.2 at work: a small language model on real text, its states shared out over however many ranks there are.

Three questions, one table each:

1. Do your ZeRO-1, 2 and 3 train as one process does, what does a rank hold and send, and how long does a step take?
   Beside them DDP, torch's ZeroRedundancyOptimizer and DeepSpeed, on the same batches, in turns. Any loss that is off
   one process: exit code 1.
2. Which of them fits into a budget of bytes per rank? The budget is enforced: peak memory is measured, and a run that
   goes over it is stopped. By default it is three quarters of what plain data parallelism holds, so DDP is stopped
   (that is the point, and no error), and on 2 ranks or more ZeRO-3 trains.
3. What does it cost to keep the states in a file? Bytes in the file, and how fast they go through the update.

Tier 1, a laptop CPU (2 cores, gloo; 20 s on 2 ranks, 32 s on 4). Memory and traffic come out the same on every machine.
Time does not: on 2 cores that others used too, with 2 ranks, ZeRO-1 took 0.80 to 0.93 times as long as torch's
ZeroRedundancyOptimizer in four runs of 16 steps, ZeRO-2 0.80 to 1.04, ZeRO-3 1.04 to 1.25, and DeepSpeed's stages 1.41,
1.29 and 3.73 times in one. More ranks than cores share the cores.

    python labs/day2_data_parallel/run_zero.py
    torchrun --standalone --nproc-per-node 4 labs/day2_data_parallel/run_zero.py

With DeepSpeed (tools/install.sh deepspeed), whose engines take some seconds each to start:

    torchrun --standalone --nproc-per-node 2 labs/day2_data_parallel/run_zero.py --impl mine torch deepspeed

Tier 2, one multi-GPU box (NCCL, one rank per GPU; not run): a larger model, and states on a real NVMe disk.

    torchrun --standalone --nproc-per-node 8 labs/day2_data_parallel/run_zero.py \\
        --hidden 2048 --layers 16 --nvme /mnt/nvme

Tier 3, a cluster (not run): the same line on every node, here under Slurm. Stage 3's third of additional traffic shows
where the network between nodes is slow.

    srun --nodes 4 --ntasks-per-node 1 torchrun --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d \\
        --rdzv-endpoint $(scontrol show hostnames | head -1):29500 \\
        labs/day2_data_parallel/run_zero.py --hidden 2048 --layers 16

Writes results/zero.json and results/zero.svg.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import logging
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from labs.day2_data_parallel.zero import Offload, ZeroOptimizer, ZeroThree, deepspeed_config
from shardlab import show
from shardlab.data import corpus_tokens, token_batches
from shardlab.models import TransformerConfig, build, next_token_loss
from shardlab.observe import PeakMemory, StepClock, Traffic
from shardlab.ranks import TorchrunRank, torchrun_ranks

MIB = 2**20
SEED = 0
TOLERANCE = 1e-4  # relative, between losses: float32 sums in another order, some steps apart
ADAM = {"lr": 1e-3, "eps": 1e-5, "weight_decay": 0.1}  # with the usual eps of 1e-8 Adam forgives gradients of any scale
BUCKET_MB = 1.0
OBSERVED = 2  # steps under observation; the others are timed


@dataclass(frozen=True)
class Job:
    """What all contenders train: the same model on the same batches."""

    me: TorchrunRank
    config: TransformerConfig
    rows: int  # of one rank
    steps: int
    tokens: Tensor

    def model(self) -> nn.Module:
        return build(self.config, SEED).to(self.me.device)

    def batches(self) -> list[Tensor]:
        """The union of all ranks' batches, for every step: [ranks * rows, sequence]."""
        whole = token_batches(self.tokens, self.rows * self.me.world_size, self.config.sequence, SEED)
        return [batch.to(self.me.device) for batch in itertools.islice(whole, self.steps)]

    def own(self, batch: Tensor) -> Tensor:
        return batch.chunk(self.me.world_size)[self.me.rank]


# --- The contenders: each makes a model and gives back its backward and its update ------------------------------------

Parts = tuple[Callable[[Tensor], Tensor], Callable[[], None]]


def parts(model: nn.Module, optimizer: torch.optim.Optimizer) -> Parts:
    """Backward on tokens, which returns the loss, and the update."""

    def backward(tokens: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = next_token_loss(model(tokens), tokens)
        loss.backward()
        return loss.detach()

    return backward, optimizer.step


def ddp(job: Job) -> Parts:
    model = DistributedDataParallel(job.model(), bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True)
    return parts(model, torch.optim.AdamW(model.parameters(), fused=True, **ADAM))


def redundancy_optimizer(job: Job) -> Parts:
    model = DistributedDataParallel(job.model(), bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True)
    return parts(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, fused=True, **ADAM))


def mine(stage: int, job: Job, offload: Offload | None = None) -> Parts:
    model = job.model()
    if stage == 3:
        return parts(model, ZeroThree(model, torch.optim.AdamW, offload=offload, **ADAM))
    params, options = model.parameters(), {"offload": offload, "bucket_mb": BUCKET_MB, **ADAM}
    return parts(model, ZeroOptimizer(params, torch.optim.AdamW, stage, **options))


def of_deepspeed(stage: int, job: Job) -> Parts:
    import deepspeed

    config = deepspeed_config(stage, None, job.rows, accumulation=1, precision="fp32")
    bucket = int(BUCKET_MB * MIB) // 4  # elements; its defaults count in billions, and a small model is never sharded
    config["zero_optimization"] |= {"reduce_bucket_size": bucket, "allgather_bucket_size": bucket}
    config["zero_optimization"] |= {
        "stage3_prefetch_bucket_size": bucket,
        "stage3_param_persistence_threshold": 0,
        "stage3_max_live_parameters": 0,
        "stage3_max_reuse_distance": 0,
    }
    model = job.model()
    optimizer = torch.optim.AdamW(model.parameters(), **ADAM)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)

    def backward(tokens: Tensor) -> Tensor:
        loss = next_token_loss(engine(tokens), tokens)
        engine.backward(loss)
        return loss.detach()

    return backward, engine.step


CONTENDERS = {
    "mine": {f"ZeRO-{stage}, mine": partial(mine, stage) for stage in (1, 2, 3)},
    "torch": {"ZeroRedundancyOptimizer": redundancy_optimizer},
    "deepspeed": {f"ZeRO-{stage}, DeepSpeed": partial(of_deepspeed, stage) for stage in (1, 2, 3)},
}
YARDSTICK = "DDP, torch"


def prepare_deepspeed() -> None:
    """Make it quiet, keep it from compiling anything, and let it use the process group there is."""
    import deepspeed

    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    deepspeed.utils.logger.setLevel(logging.ERROR)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # a minute of g++ on first use
    deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False)


# --- 1. Same losses? Memory, traffic, time ----------------------------------------------------------------------------


@dataclass
class Run:
    """A contender at work, and what was seen of it on this rank."""

    name: str
    backward: Callable[[Tensor], Tensor]
    update: Callable[[], None]
    clock: StepClock
    losses: list[float] = field(default_factory=list)
    held: dict[str, int] = field(default_factory=dict)
    peak_bytes: int = 0
    sent_bytes: int = 0

    def step(self, job: Job, batch: Tensor) -> None:
        """Train on this rank's rows; keep the mean of all ranks' losses."""
        loss = self.backward(job.own(batch))
        self.update()
        self.losses.append(mean_over_ranks(loss))


def mean_over_ranks(value: Tensor) -> float:
    mean = value.clone()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def start(job: Job, name: str, make: Callable[[Job], Parts], batches: list[Tensor]) -> Run:
    """Make a contender and train two steps under observation: what it holds after backward, its peak, what it sends."""
    clock = StepClock(job.rows * job.config.sequence, warmup=0, device=job.me.device)
    with PeakMemory() as memory:
        run = Run(name, *make(job), clock)
        run.step(job, batches[0])
        with Traffic() as traffic:
            loss = run.backward(job.own(batches[1]))
            parameters, states = (memory.live_by_kind[kind] for kind in ("parameter", "optimizer"))
            gradients = memory.live_bytes - parameters - states  # and what else it keeps between steps
            run.update()
    run.losses.append(mean_over_ranks(loss))
    run.held = {"parameters": parameters, "gradients": gradients, "states": states}
    run.peak_bytes, run.sent_bytes = memory.peak_bytes, traffic.sent_bytes()
    return run


def compare(job: Job, chosen: list[str]) -> tuple[list[dict], list[float]]:
    """Train all contenders, in turns in each step: whatever else the machine does meets all of them."""
    makers = {YARDSTICK: ddp} | {name: make for group in chosen for name, make in CONTENDERS[group].items()}
    batches = job.batches()
    with show.progress("one step each, in turns", len(makers) + job.steps - OBSERVED) as advance:
        runs = []
        for name, make in makers.items():
            runs.append(start(job, name, make, batches))
            advance()
        for batch in batches[OBSERVED:]:
            for run in runs:
                dist.barrier()
                with run.clock.step():
                    run.step(job, batch)
            advance()
    alone = one_process_losses(job, batches)
    return [record_of(run, alone) for run in runs], alone


def one_process_losses(job: Job, batches: list[Tensor]) -> list[float]:
    """Losses of plain training on whole batches, computed on rank 0 and told to all."""
    losses = torch.zeros(len(batches), device=job.me.device)
    if job.me.is_main:
        model = job.model()
        backward, update = parts(model, torch.optim.AdamW(model.parameters(), **ADAM))
        for step, batch in enumerate(batches):
            losses[step] = backward(batch)
            update()
    dist.broadcast(losses, 0)
    return losses.tolist()


def record_of(run: Run, alone: list[float]) -> dict:
    return {
        "name": run.name,
        "losses": run.losses,
        "gap": max(abs(loss / right - 1) for loss, right in zip(run.losses, alone, strict=True)),
        "held": run.held,
        "peak_bytes": run.peak_bytes,
        "sent_bytes": run.sent_bytes,
        "milliseconds": 1e3 * run.clock.seconds,
    }


# --- 2. Who fits into the budget? -------------------------------------------------------------------------------------


class OverBudget(Exception):
    """Some rank held more than it may."""


def within_budget(job: Job, make: Callable[[Job], Parts], budget: int, batches: list[Tensor]) -> dict:
    """Train while peak memory stays within ``budget`` bytes on every rank; stop at once where it does not."""
    losses: list[float] = []
    with PeakMemory() as memory:

        def check(when: str) -> None:
            worst = torch.tensor(memory.peak_bytes, device=job.me.device)
            dist.all_reduce(worst, dist.ReduceOp.MAX)
            if worst > budget:
                raise OverBudget(f"{when} needs {int(worst) / MIB:.1f} MiB on a rank, {budget / MIB:.1f} are allowed")

        try:
            backward, update = make(job)
            check("the model alone")
            for number, batch in enumerate(batches, 1):
                losses.append(mean_over_ranks(backward(job.own(batch))))
                check(f"backward {number}")
                update()
                check(f"update {number}")
            verdict = f"trains: loss {losses[0]:.3f} to {losses[-1]:.3f}"
        except OverBudget as error:
            verdict = f"stopped: {error}"
    return {"peak_bytes": memory.peak_bytes, "verdict": verdict, "trained": verdict.startswith("trains")}


def try_budget(job: Job, budget: int) -> list[dict]:
    candidates = {YARDSTICK: ddp} | CONTENDERS["mine"]
    batches = job.batches()[:4]
    records = []
    with show.progress(f"a budget of {budget / MIB:.1f} MiB per rank", len(candidates)) as advance:
        for name, make in candidates.items():
            records.append({"name": name, **within_budget(job, make, budget, batches)})
            advance()
    return records


# --- 3. States in a file ----------------------------------------------------------------------------------------------


def offload_states(job: Job, folder: str) -> list[dict]:
    """Time and throughput of the update with the states beside the parameters, on the CPU, and in a file."""
    records = []
    for place, offload in {"memory": None, "cpu": Offload("cpu"), "nvme": Offload("nvme", folder)}.items():
        model = job.model()
        zero = ZeroOptimizer(model.parameters(), torch.optim.AdamW, 1, offload=offload, bucket_mb=BUCKET_MB, **ADAM)
        backward, _ = parts(model, zero)
        update, disk = [], []
        for batch in job.batches():
            backward(job.own(batch))
            dist.barrier()
            began = time.perf_counter()
            zero.step()
            update.append(time.perf_counter() - began)
            if zero.state_file:
                zero.state_file.sync()
            disk.append(time.perf_counter() - began)
        tensors = [each for state in zero.inner.state.values() for each in state.values()]
        nbytes = sum(tensor.nbytes for tensor in tensors)
        records.append(
            {
                "place": place,
                "state_bytes": nbytes,
                "file_bytes": zero.state_file.nbytes if zero.state_file else 0,
                "update_seconds": statistics.median(update[1:]),
                "disk_seconds": statistics.median(disk[1:]),
            }
        )
        zero.close()
    return records


# --- Tables, figure, verdict ------------------------------------------------------------------------------------------


def print_tables(job: Job, alike: list[dict], budgets: list[dict], budget: int, places: list[dict]) -> None:
    times = {record["name"]: record["milliseconds"] for record in alike}
    reference = times.get("ZeroRedundancyOptimizer", times[YARDSTICK])
    other = "ZeroRedundancyOptimizer" if "ZeroRedundancyOptimizer" in times else "DDP"
    show.table(
        f"{job.config.parameters:,} parameters, {4 * job.config.parameters / MIB:.2f} MiB of them, ranks: "
        f"{job.me.world_size}; bytes of rank 0 in MiB",
        [
            "optimiser", "last loss", "off one process", "parameters", "gradients", "states", "peak", "sent per step",
            "ms/step", f"to {other}",
        ],
        [
            [
                record["name"],
                record["losses"][-1],
                f"{record['gap']:.1e}",
                *(f"{record['held'][kind] / MIB:.2f}" for kind in ("parameters", "gradients", "states")),
                f"{record['peak_bytes'] / MIB:.2f}",
                f"{record['sent_bytes'] / MIB:.2f}",
                f"{record['milliseconds']:.0f}",
                f"{record['milliseconds'] / reference:.2f}x",
            ]
            for record in alike
        ],
    )  # fmt: skip
    show.table(
        f"With {budget / MIB:.1f} MiB for each rank",
        ["optimiser", "peak MiB", "verdict"],
        [[record["name"], f"{record['peak_bytes'] / MIB:.2f}", record["verdict"]] for record in budgets],
    )
    show.table(
        "ZeRO-1 with its states elsewhere, rank 0",
        ["states in", "states MiB", "in the file MiB", "update ms", "through the update MB/s", "with the disk MB/s"],
        [
            [
                record["place"],
                f"{record['state_bytes'] / MIB:.2f}",
                f"{record['file_bytes'] / MIB:.2f}",
                f"{1e3 * record['update_seconds']:.1f}",
                round(2 * record["state_bytes"] / record["update_seconds"] / 1e6),
                round(2 * record["state_bytes"] / record["disk_seconds"] / 1e6) if record["file_bytes"] else "-",
            ]
            for record in places
        ],
    )


def draw(job: Job, alike: list[dict], alone: list[float], budget: int) -> None:
    import matplotlib.pyplot as plt

    show.use_style()
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 4.4), width_ratios=(2, 1))
    names = [record["name"] for record in alike]
    below = [0.0] * len(alike)
    for kind in ("parameters", "gradients", "states"):
        sizes = [max(record["held"][kind], 0) / MIB for record in alike]
        left.barh(names, sizes, left=below, label=kind)
        below = [start + size for start, size in zip(below, sizes, strict=True)]
    rest = [max(record["peak_bytes"] / MIB - start, 0) for record, start in zip(alike, below, strict=True)]
    left.barh(names, rest, left=below, label="more at the peak", color="#DDDDDD")
    left.axvline(budget / MIB, color="black", linewidth=1, linestyle="--", label="budget")
    left.invert_yaxis()
    left.grid(axis="y", visible=False)
    left.set(title=f"What one of {job.me.world_size} ranks holds", xlabel="MiB")
    left.legend(fontsize=9)
    right.plot(alone, color="black", linewidth=5, alpha=0.25, label="one process")
    for record in alike:
        right.plot(record["losses"], linewidth=1)
    right.set(title="All losses are one curve", xlabel="step", ylabel="loss")
    right.legend(fontsize=9)
    show.save_figure(figure, "results/zero.svg")


def find_fault(job: Job, alike: list[dict], budgets: list[dict]) -> str:
    """What is wrong with the results, in a sentence; empty if nothing is."""
    for record in alike:
        if not record["gap"] < TOLERANCE:
            return f"{record['name']}: losses are off one process by {record['gap']:.1e}, allowed {TOLERANCE}"
    trained = {record["name"]: record["trained"] for record in budgets}
    if trained[YARDSTICK]:
        return "DDP fits into the budget: choose a smaller one"
    if job.me.world_size > 1 and not trained["ZeRO-3, mine"]:
        return "ZeRO-3 does not fit into the budget"
    return ""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--impl", nargs="+", choices=CONTENDERS, default=["mine", "torch"], help="to compare")
    options.add_argument("--hidden", type=int, default=192, help="width of the model, a multiple of 8 (default 192)")
    options.add_argument("--layers", type=int, default=6, help="its blocks (default 6)")
    options.add_argument("--rows", type=int, default=1, help="sequences of 32 tokens per rank and step (default 1)")
    options.add_argument("--steps", type=int, default=8, help="steps of each contender (default 8)")
    options.add_argument("--budget", type=float, help="MiB per rank (default: 3/4 of what DDP's states take)")
    options.add_argument(
        "--nvme", default=tempfile.gettempdir(), help="folder for states in a file (default: temporary)"
    )
    chosen = options.parse_args()
    if chosen.steps < OBSERVED + 2 or min(chosen.layers, chosen.rows) < 1 or chosen.hidden < 8 or chosen.hidden % 8:
        options.error(f"need {OBSERVED + 2} steps, 1 layer and 1 row or more, and a width that is a multiple of 8")
    if chosen.budget is not None and not 0 < chosen.budget < float("inf"):
        options.error(f"--budget is a number of MiB above 0: got {chosen.budget}")
    try:
        Offload("nvme", chosen.nvme)
    except ValueError as error:
        options.error(f"--nvme: {error}")
    if "deepspeed" in chosen.impl and importlib.util.find_spec("deepspeed") is None:
        options.error("DeepSpeed is missing: tools/install.sh deepspeed")
    torch.set_num_threads(1)
    with torchrun_ranks() as me:
        if "deepspeed" in chosen.impl:
            prepare_deepspeed()
        config = TransformerConfig(
            vocab=1024, hidden=chosen.hidden, layers=chosen.layers, heads=4, kv_heads=2,
            ffn=8 * chosen.hidden // 3 // 8 * 8, sequence=32,
        )  # fmt: skip
        job = Job(me, config, chosen.rows, chosen.steps, corpus_tokens("train", config.vocab))
        budget = int(chosen.budget * MIB if chosen.budget else 0.75 * 16 * config.parameters)
        alike, alone = compare(job, chosen.impl)
        budgets = try_budget(job, budget)
        places = offload_states(job, chosen.nvme)
        print_tables(job, alike, budgets, budget, places)
        data = {"alike": alike, "one_process": alone, "budget_bytes": budget, "budgets": budgets, "offload": places}
        path = show.write_results("zero", data)
        fault = find_fault(job, alike, budgets)
        if me.is_main:
            draw(job, alike, alone, budget)
            alone_note = "" if me.world_size > 1 else " One rank has nobody to share with: try torchrun with more."
            print(fault or f"All losses are those of one process.{alone_note} Written: {path}, results/zero.svg")
    return 1 if fault else 0


if __name__ == "__main__":
    sys.exit(main())
