"""What carries messages can be exchanged, under whatever sends them."""

import time
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from shardlab.observe import Traffic, free_messages, modelled_link
from shardlab.ranks import all_gather_single, reduce_scatter_single, run_ranks


def every_collective() -> dict[str, torch.Tensor]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = torch.full((ranks,), rank + 1.0)
    summed, told, gathered, own = mine.clone(), mine.clone(), torch.zeros(ranks * ranks), torch.zeros(1)
    pieces, swapped = [torch.zeros(ranks) for _ in range(ranks)], torch.zeros(ranks)
    dist.all_reduce(summed)
    dist.broadcast(told, src=1)
    all_gather_single(gathered, mine)
    reduce_scatter_single(own, mine)
    dist.all_gather(pieces, mine)
    dist.all_to_all_single(swapped, mine)
    dist.barrier()
    return {"all_reduce": summed, "broadcast": told, "all_gather": gathered, "reduce_scatter": own, "list": pieces[0]}


def gradients_of_both() -> list[torch.Tensor]:
    """Gradients by DDP's C++ reducer and by `fully_shard`, of inputs that differ between the ranks."""
    inputs = torch.full((1, 4), dist.get_rank() + 1.0)
    ddp = DistributedDataParallel(nn.Linear(4, 2, bias=False))
    ddp(inputs).sum().backward()
    sharded = fully_shard(nn.Linear(4, 2, bias=False))
    sharded(inputs).sum().backward()
    return [ddp.module.weight.grad, sharded.weight.grad.to_local()]


def under(link: str, what) -> tuple:
    contexts = {"as it is": nullcontext, "modelled": lambda: modelled_link(1e9), "free": free_messages}
    with contexts[link](), Traffic() as traffic:
        value = what()
    return value, traffic.sent_bytes(), traffic.ops()


def test_a_modelled_link_delivers_what_the_real_one_does():
    for what in (every_collective, gradients_of_both):
        real, modelled = (run_ranks(under, 3, link, what) for link in ("as it is", "modelled"))
        for (value, *sent), (other_value, *other_sent) in zip(real, modelled, strict=True):
            torch.testing.assert_close(other_value, value)
            assert other_sent == sent


def test_free_messages_deliver_what_a_rank_holds_itself():
    for rank, (value, sent, ops) in enumerate(run_ranks(under, 3, "free", every_collective)):
        mine = torch.full((3,), rank + 1.0)
        assert torch.equal(value["all_reduce"], mine) and torch.equal(value["broadcast"], mine)
        assert torch.equal(value["all_gather"], mine.repeat(3)) and torch.equal(value["reduce_scatter"], mine[:1])
        assert torch.equal(value["list"], mine)
        assert sent > 0 and len(ops) == 7, "the ledger still sees every call"


def test_free_messages_reach_the_reducer_of_ddp_and_fully_shard():
    for rank, ((ddp, sharded), *_) in enumerate(run_ranks(under, 2, "free", gradients_of_both)):
        own = rank + 1.0
        torch.testing.assert_close(ddp, torch.full_like(ddp, own / 2))  # a sum of one term, divided by the ranks
        torch.testing.assert_close(sharded, torch.full_like(sharded, own))  # it has the backend average, if that can


def wait_for_nobody() -> float:
    """Rank 1 comes late, or never."""
    if dist.get_rank() == 1:
        return 0.0
    start = time.perf_counter()
    with free_messages():
        dist.all_reduce(torch.ones(4))
    return time.perf_counter() - start


def test_free_messages_wait_for_nobody():
    run_ranks(wait_for_nobody, 2, timeout=20)  # a real all-reduce would wait for rank 1 until the timeout


SECONDS = 0.2


def two_messages() -> dict[str, float]:
    """Seconds until two calls are over, and then until their messages have arrived."""
    tensor = torch.ones(1000)
    bandwidth = 2 * (dist.get_world_size() - 1) / dist.get_world_size() * tensor.nbytes / SECONDS
    with modelled_link(bandwidth):
        start = time.perf_counter()
        handles = [dist.all_reduce(tensor, async_op=True), dist.all_reduce(tensor.clone(), async_op=True)]
        called = time.perf_counter() - start
        for handle in handles:
            handle.wait()
        return {"called": called, "arrived": time.perf_counter() - start}


def test_a_modelled_link_takes_its_time_and_one_message_after_the_other():
    for seconds in run_ranks(two_messages, 2):
        assert seconds["arrived"] >= 2 * SECONDS
        assert seconds["called"] < SECONDS, "a call with async_op=True has to come back at once"


def test_a_link_has_a_bandwidth():
    with pytest.raises(ValueError, match="positive bandwidth"), modelled_link(0):
        pass
