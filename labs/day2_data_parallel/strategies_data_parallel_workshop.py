"""The strategies that lesson 2.4 compares, behind one interface. Given code.

Each is a function that takes a `Job`, sets up on this rank, and returns its training step: those that the tour has
too stand in `labs/tour_strategies.py`, the others here. `contenders` says which can run: DeepSpeed's need

    tools/install.sh deepspeed
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from labs import tour_strategies
from labs.day2_data_parallel.data_parallel_workshop import Measurement, ModelBytes, measure_strategy
from labs.day2_data_parallel.run_zero import prepare_deepspeed
from labs.day2_data_parallel.zero import deepspeed_config
from shardlab import NotAttempted
from shardlab.models import Transformer, TransformerConfig, next_token_loss
from shardlab.observe import modelled_link
from shardlab.ranks import device
from shardlab.tour import Job

IMPLEMENTATIONS = ("mine", "torch", "deepspeed")
DEEPSPEED_MISSING = "DeepSpeed is left out: tools/install.sh deepspeed brings it"


@dataclass(frozen=True)
class Contender:
    """A way to train.

    Attributes:
        name: in tables.
        impl: one of `IMPLEMENTATIONS`.
        theory: which of the lesson's `STRATEGIES` it should come to.
        build: takes the job, sets up, returns the step.
        journeys: how many times it lets the bytes of the parameters go round, if not as many as theory says.
    """

    name: str
    impl: str
    theory: str
    build: Callable[[Job], Callable[[Tensor], Tensor]]
    journeys: int | None = None


def zero_redundancy_of_torch(job: Job) -> Callable[[Tensor], Tensor]:
    """torch's ZeroRedundancyOptimizer on top of DDP. All-reduces gradients in full although each rank updates a part,
    then every rank broadcasts its part: 3 journeys, where ZeRO-1 needs 2."""
    model = DistributedDataParallel(job.model(), gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.AdamW, lr=job.learning_rate, eps=1e-5, weight_decay=0.0
    )
    return tour_strategies.data_parallel_step(model, optimizer)


def deepspeed_zero(stage: int, job: Job) -> Callable[[Tensor], Tensor]:
    """DeepSpeed's ZeRO, configured by lesson 2.2's `deepspeed_config`."""
    import deepspeed

    prepare_deepspeed()
    model = job.model()
    config = deepspeed_config(stage, None, job.rows // dist.get_world_size(), 1, "fp32")
    elements = 2**20 // 4  # buckets of 1 MiB as in the others; its default would hold any model
    config["zero_optimization"] |= {"reduce_bucket_size": elements, "allgather_bucket_size": elements}
    engine, *_ = deepspeed.initialize(model=model, optimizer=job.optimizer(model.parameters()), config=config)

    def step(batch: Tensor) -> Tensor:
        rows = tour_strategies.my_rows(batch)
        loss = next_token_loss(engine(rows), rows)
        engine.backward(loss)
        engine.step()
        return loss.detach()

    return step


CONTENDERS = (
    Contender("DDP, lesson 2.1", "mine", "DDP", tour_strategies.ddp_of_lesson_ddp),
    Contender("DDP, torch", "torch", "DDP", tour_strategies.ddp_of_torch),
    Contender("ZeRO-1, lesson 2.2", "mine", "ZeRO-1", tour_strategies.zero_1_of_lesson_zero),
    Contender("ZeroRedundancyOptimizer, torch", "torch", "ZeRO-1", zero_redundancy_of_torch, journeys=3),
    Contender("ZeRO-2, lesson 2.2", "mine", "ZeRO-2", tour_strategies.zero_2_of_lesson_zero),
    Contender("ZeRO-3, lesson 2.2", "mine", "ZeRO-3", tour_strategies.zero_3_of_lesson_zero),
    Contender("FSDP, lesson 2.3", "mine", "ZeRO-3", tour_strategies.fsdp_of_lesson_fsdp),
    Contender("FSDP, torch", "torch", "ZeRO-3", tour_strategies.fsdp_of_torch),
    *(Contender(f"ZeRO-{n}, DeepSpeed", "deepspeed", f"ZeRO-{n}", partial(deepspeed_zero, n)) for n in (1, 2, 3)),
)


def contenders(impls: Sequence[str]) -> list[Contender]:
    """Those of these implementations that can run here."""
    missing = {"deepspeed"} if find_spec("deepspeed") is None else set()
    return [contender for contender in CONTENDERS if contender.impl in set(impls) - missing]


def measure_contenders(
    impls: Sequence[str], job: Job, steps: int, link: float | None, progress: Path
) -> list[tuple[str, Measurement]]:
    """On every rank: measure each strategy on the same batch; those whose lesson is not written yet are left out.

    Args:
        steps: to time, of each kind.
        link: bytes/s of a modelled link under all messages; None: as it is.
        progress: a file that gets a byte for each strategy, from rank 0.
    """
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(job.seed)  # which tokens does not matter to bytes and times
    batch = torch.randint(job.config.vocab, (job.rows, job.config.sequence), generator=generator).to(device())
    results = []
    for contender in contenders(impls):
        try:
            with modelled_link(link) if link else nullcontext():
                results.append((contender.name, measure_strategy(partial(contender.build, job), batch, steps)))
        except NotAttempted as missing:
            if missing.exercise.startswith("2.4"):
                raise
            if dist.get_rank() == 0:
                print(f"{contender.name} is left out: exercise {missing.exercise} is not attempted yet")
        if dist.get_rank() == 0:
            with progress.open("ab") as file:
                file.write(b".")
    return results


def model_bytes(config: TransformerConfig, activations: int) -> ModelBytes:
    """What `Job` trains takes: everything in fp32, AdamW with two states, a block as the largest layer."""
    with torch.device("meta"):
        block = Transformer(config).blocks[0]
    parameters = 4 * config.parameters
    layer = sum(parameter.nbytes for parameter in block.parameters())
    return ModelBytes(parameters, parameters, 2 * parameters, activations, layer)
