"""The ways to train that `make tour` compares: the one place where a strategy is registered.

Given code. Each function sets up on every rank and returns the training step: it takes the global batch, the same on
every rank, and returns this rank's loss. `shardlab.tour` feeds all of them the same batches, checks that they reach
the same losses, and measures what each one costs. The first one is the yardstick.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from labs.day1_one_gpu_to_many.collectives import ring_all_reduce
from labs.day2_data_parallel.ddp import DataParallel
from labs.day2_data_parallel.fsdp import shard_module
from labs.day2_data_parallel.zero import ZeroOptimizer, ZeroThree
from labs.day3_model_parallel import mixture_of_experts
from labs.day3_model_parallel.context import context_parallel, shard_batch, shard_loss
from labs.day3_model_parallel.hybrid import HybridTrainer, ParallelLayout
from labs.day3_model_parallel.pipeline import one_forward_one_backward, run_schedule, split_batch, transformer_pipeline
from labs.day3_model_parallel.tensor_parallel import parallelize, shard_transformer, vocab_parallel_cross_entropy
from shardlab.models import next_token_loss
from shardlab.ranks import device
from shardlab.tour import Job, Step, strategy


def my_rows(batch: Tensor) -> Tensor:
    """This rank's share of the global batch: [rows / ranks, sequence]."""
    return batch.chunk(dist.get_world_size())[dist.get_rank()]


def data_parallel_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, after_backward: Callable[[], None] = lambda: None
) -> Step:
    """The step of all strategies that split the batch: forward and backward on my rows, synchronise, update."""

    def step(batch: Tensor) -> Tensor:
        rows = my_rows(batch)
        loss = next_token_loss(model(rows), rows)
        loss.backward()
        after_backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def average_gradients(model: nn.Module, all_reduce: Callable[[Tensor], None]) -> None:
    """Sum the gradients of all ranks with one call, on one flat buffer, and divide by the number of ranks."""
    gradients = [parameter.grad for parameter in model.parameters()]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    all_reduce(flat)
    flat /= dist.get_world_size()
    for gradient, average in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(average.view_as(gradient))


@strategy("one process", ranks=1)
def one_process(job: Job) -> Step:
    """One process trains on the whole batch. Nothing to send; every activation of the batch sits in its memory."""
    model = job.model()
    return data_parallel_step(model, job.optimizer(model.parameters()))


@strategy("all-reduce, torch", ranks=4)
def all_reduce_of_torch(job: Job) -> Step:
    """Each rank takes a quarter of the batch. After backward, one call of torch averages all gradients."""
    model = job.model()
    optimizer = job.optimizer(model.parameters())
    return data_parallel_step(model, optimizer, lambda: average_gradients(model, dist.all_reduce))


@strategy("all-reduce, lesson 1.3", ranks=4, lesson="1.3")
def all_reduce_of_lesson_collectives(job: Job) -> Step:
    """The same, with a ring built from send and receive alone: equally many bytes."""
    model = job.model()
    optimizer = job.optimizer(model.parameters())
    return data_parallel_step(model, optimizer, lambda: average_gradients(model, ring_all_reduce))


@strategy("DDP, torch", ranks=4)
def ddp_of_torch(job: Job) -> Step:
    """torch's DistributedDataParallel: gradients leave in buckets while backward still runs. The price: the buckets, as
    large as the gradients, stay in memory."""
    model = DistributedDataParallel(job.model())
    return data_parallel_step(model, job.optimizer(model.parameters()))


@strategy("DDP, lesson 2.1", ranks=4, lesson="2.1")
def ddp_of_lesson_ddp(job: Job) -> Step:
    """The same idea, from hooks, buckets and asynchronous all-reduces."""
    model = DataParallel(job.model())
    return data_parallel_step(model, job.optimizer(model.parameters()))


@strategy("ZeRO-1, lesson 2.2", ranks=4, lesson="2.2")
def zero_1_of_lesson_zero(job: Job) -> Step:
    """Each rank keeps the optimiser's states of a quarter of the parameters, updates that quarter and hands it round.
    As many bytes as DDP."""
    model = job.model()
    return data_parallel_step(model, ZeroOptimizer(model.parameters(), job.optimizer, stage=1, bucket_mb=1))


@strategy("ZeRO-2, lesson 2.2", ranks=4, lesson="2.2")
def zero_2_of_lesson_zero(job: Job) -> Step:
    """As ZeRO-1, and gradients are summed and freed in buckets while backward still runs: each rank keeps a quarter of
    the sum."""
    model = job.model()
    return data_parallel_step(model, ZeroOptimizer(model.parameters(), job.optimizer, stage=2, bucket_mb=1))


@strategy("ZeRO-3, lesson 2.2", ranks=4, lesson="2.2")
def zero_3_of_lesson_zero(job: Job) -> Step:
    """Each rank keeps a quarter of everything. A layer's parameters are fetched just before its forward and its
    backward, and freed after: half as many bytes again as DDP."""
    model = job.model()
    return data_parallel_step(model, ZeroThree(model, job.optimizer))


@strategy("FSDP, torch", ranks=4)
def fsdp_of_torch(job: Job) -> Step:
    """torch's fully_shard: a rank keeps a quarter of each parameter, of its gradient and of the optimiser's state, and
    gathers a block only while it computes. Up to half as many bytes again as DDP."""
    model = job.model()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return data_parallel_step(model, job.optimizer(model.parameters()))


@strategy("FSDP, lesson 2.3", ranks=4, lesson="2.3")
def fsdp_of_lesson_fsdp(job: Job) -> Step:
    """The same idea, from hooks before and after each block, all-gathers, reduce-scatters and DTensors."""
    model = job.model()
    for block in model.blocks:
        shard_module(block)
    shard_module(model, reshard_after_forward=False)
    return data_parallel_step(model, job.optimizer(model.parameters()))


@strategy("TP, DTensor, lesson 3.1", ranks=2, lesson="3.1")
def tp_of_dtensor(job: Job) -> Step:
    """Both ranks work on the whole batch, each with half of every matrix, as torch's DTensor splits them: two sums over
    the ranks per block and direction. On two ranks: it cannot give one of the two key heads to two ranks."""
    from torch.distributed.tensor.parallel import loss_parallel

    model = parallelize(job.model(), init_device_mesh(device().type, (dist.get_world_size(),)))
    optimizer = job.optimizer(model.parameters())

    def step(batch: Tensor) -> Tensor:
        with loss_parallel():
            loss = next_token_loss(model(batch), batch)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.full_tensor()

    return step


@strategy("TP, lesson 3.1", ranks=4, lesson="3.1")
def tp_of_lesson_tensor_parallel(job: Job) -> Step:
    """A quarter of every matrix on each rank, from hand-written layers. Four ranks share two key heads, and the loss is
    computed from logits that never come together."""
    model = shard_transformer(job.model())
    optimizer = job.optimizer(model.parameters())

    def step(batch: Tensor) -> Tensor:
        loss = vocab_parallel_cross_entropy(model(batch)[:, :-1], batch[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


@strategy("PP, lesson 3.2", ranks=4, lesson="3.2")
def pp_of_lesson_pipeline(job: Job) -> Step:
    """Each rank holds some layers, and works on one of eight micro-batches while its neighbours work on others, in 1F1B
    order. Only activations and their gradients travel, and the gradients of the embedding, which the head shares."""
    schedule = one_forward_one_backward(stages=dist.get_world_size(), micro_batches=8)
    stage = transformer_pipeline(job.model(), schedule)
    optimizer = job.optimizer(stage.parameters())

    def step(batch: Tensor) -> Tensor | None:
        loss = run_schedule(stage, schedule, split_batch(batch, batch, schedule.micro_batches), next_token_loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


@strategy("CP, lesson 3.3", ranks=4, lesson="3.3")
def cp_of_lesson_context(job: Job) -> Step:
    """Each rank takes a quarter of every sequence, in a zig-zag, and keys and values go round a ring of ranks.
    Parameters are whole on each, and their gradients summed as with DDP."""
    model = context_parallel(job.model())
    optimizer = job.optimizer(model.parameters())

    def step(batch: Tensor) -> Tensor:
        tokens, positions, labels = shard_batch(batch)
        part = shard_loss(model(tokens, positions), labels)
        loss = dist.get_world_size() * part  # parts add up, and here losses and gradients are averaged
        loss.backward()
        average_gradients(model, dist.all_reduce)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


@strategy("TP x PP, lesson 3.5", ranks=4, lesson="3.5")
def tp_and_pp_of_lesson_hybrid(job: Job) -> Step:
    """Two stages of two ranks, which share the matrices of their layers: about a quarter of the model on each, sums
    between neighbours only, and a shorter pipeline to fill."""
    layout = ParallelLayout(tp=2, pp=2)
    trainer = HybridTrainer(layout, job.config, micro_batches=8, optimizer_class=job.optimizer, seed=job.seed)

    def step(batch: Tensor) -> Tensor:
        loss, _ = trainer.step(batch, F.pad(batch[:, 1:], (0, 1), value=-100))
        return torch.tensor(loss)

    return step


def step_with_experts(job: Job) -> Step:
    """Each rank takes its rows of the batch and has its share of eight experts of half the width, two per token."""
    config = mixture_of_experts.MoEConfig(hidden=job.config.hidden, ffn=job.config.ffn // 2, experts=8)
    model = mixture_of_experts.use_experts(job.model(), config, seed=job.seed)
    optimizer = job.optimizer(model.parameters())

    def step(batch: Tensor) -> Tensor:
        rows = my_rows(batch)
        loss = next_token_loss(model(rows), rows)
        (loss + mixture_of_experts.auxiliary_loss(model)).backward()
        mixture_of_experts.average_gradients(model, None, None)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


@strategy("MoE, one process", ranks=1, lesson="3.4", like="MoE, one process")
def moe_of_one_process(job: Job) -> Step:
    """Another model: in every block eight small networks stand in the place of one, and each token goes to the two that
    a router chooses for it. As much arithmetic per token, four times the parameters of those networks. Here one process
    holds them all: the yardstick of the next line."""
    return step_with_experts(job)


@strategy("MoE, lesson 3.4", ranks=4, lesson="3.4", like="MoE, one process")
def moe_of_lesson_mixture_of_experts(job: Job) -> Step:
    """The same on four ranks, each with two of the eight experts: tokens travel to their experts and back, in forward
    and in backward. All else is data parallel."""
    return step_with_experts(job)
