"""The ledger against closed formulas, for every source of communication."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from shardlab.observe import Mark, Traffic, all_reduce_bytes
from shardlab.ranks import all_gather_single, reduce_scatter_single, run_ranks


def record(function) -> list[dict]:
    with Traffic() as traffic:
        function()
    return traffic.to_data()


def traffic_of(function, ranks: int) -> list[Traffic]:
    """`function` on every rank under a `Traffic`."""
    return [Traffic.from_data(data) for data in run_ranks(record, ranks, function)]


def blocks(ranks: int, numel: int = 6) -> list[torch.Tensor]:
    return [torch.ones(numel) for _ in range(ranks)]


def call_every_collective() -> None:
    """Six float32 elements, 24 bytes, per block."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    tensor = torch.ones(6)
    dist.all_reduce(tensor)
    dist.broadcast(tensor, 0)
    dist.reduce(tensor, 0)
    dist.all_gather(blocks(ranks), tensor)
    all_gather_single(torch.empty(6 * ranks), tensor)
    dist.reduce_scatter(tensor, blocks(ranks))
    reduce_scatter_single(tensor, torch.ones(6 * ranks))
    dist.all_to_all(blocks(ranks), blocks(ranks))
    dist.all_to_all_single(torch.empty(6 * ranks), torch.ones(6 * ranks))
    dist.gather(tensor, blocks(ranks) if rank == 0 else None, 0)
    dist.scatter(tensor, blocks(ranks) if rank == 0 else None, 0)
    dist.barrier()


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_every_collective_is_charged_its_standard_algorithm(ranks):
    block, others = 24, ranks - 1
    for rank, traffic in enumerate(traffic_of(call_every_collective, ranks)):
        root, last = rank == 0, rank == ranks - 1
        expected = [
            ("all_reduce", 2 * others * block // ranks),
            ("broadcast", 0 if last else block),
            ("reduce", 0 if root else block),
            ("all_gather", others * block),
            ("all_gather", others * block),
            ("reduce_scatter", others * block),
            ("reduce_scatter", others * block),
            ("all_to_all", others * block),
            ("all_to_all", others * block),
            ("gather", 0 if root else block),
            ("scatter", others * block if root else 0),
            ("barrier", 0),
        ]
        assert [(call.op, call.sent_bytes) for call in traffic.calls] == expected
        assert [call.sequence for call in traffic.calls] == list(range(len(expected)))


def uneven_all_to_all() -> None:
    """Rank r sends r+1 rows of 2 float64 to everybody."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    rows_in = [other + 1 for other in range(ranks)]
    rows_out = [rank + 1] * ranks
    dist.all_to_all_single(
        torch.empty(sum(rows_in), 2, dtype=torch.float64),
        torch.ones(sum(rows_out), 2, dtype=torch.float64),
        rows_in,
        rows_out,
    )


def test_unequal_splits_are_charged_what_leaves_the_rank():
    for rank, traffic in enumerate(traffic_of(uneven_all_to_all, 3)):
        assert traffic.sent_bytes() == (rank + 1) * 2 * 8 * 2


def send_and_receive() -> None:
    ranks, rank = dist.get_world_size(), dist.get_rank()
    out, into = torch.ones(5, dtype=torch.bfloat16), torch.empty(5, dtype=torch.bfloat16)
    if rank == 0:
        dist.send(out, 1)
    elif rank == 1:
        dist.recv(into, 0)
    works = [dist.isend(out, (rank + 1) % ranks), dist.irecv(into, (rank - 1) % ranks)]
    works += dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, out, (rank + 1) % ranks), dist.P2POp(dist.irecv, into, (rank - 1) % ranks)]
    )
    for work in works:
        work.wait()


def test_point_to_point_calls_name_the_peer_and_whether_they_waited():
    for rank, traffic in enumerate(traffic_of(send_and_receive, 3)):
        following, previous = (rank + 1) % 3, (rank - 1) % 3
        blocking = {0: [("send", 1, False)], 1: [("recv", 0, False)], 2: []}[rank]
        calls = [(call.op, call.peer, call.async_op) for call in traffic.calls]
        assert calls == blocking + [("send", following, True), ("recv", previous, True)] * 2
        assert traffic.sent_bytes() == 10 * traffic.count("send")
        assert all(call.dtype == "bfloat16" for call in traffic.calls)


def reduce_in_odd_group() -> None:
    group = dist.new_group([3, 1])
    if dist.get_rank() in (1, 3):
        dist.all_reduce(torch.ones(4), group=group)
        dist.broadcast(torch.ones(4), 1, group=group)


def test_groups_are_named_by_global_ranks():
    traffic = traffic_of(reduce_in_odd_group, 4)
    assert [t.count() for t in traffic] == [0, 2, 0, 2]
    assert set(traffic[1].calls[0].ranks) == {1, 3}
    assert traffic[1].sent_bytes("broadcast") == 16 and traffic[3].sent_bytes("broadcast") == 0


def sync_and_async() -> None:
    dist.all_reduce(torch.ones(2))
    dist.all_reduce(torch.ones(2), async_op=True).wait()
    with torch.inference_mode():
        dist.all_reduce(torch.ones(2))
    with torch.no_grad():
        functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD).wait()


def test_grad_modes_do_not_hide_a_call_and_handles_are_seen():
    (traffic, _) = traffic_of(sync_and_async, 2)
    assert [call.async_op for call in traffic.calls] == [False, True, False, True]
    assert all(call.file == __file__ for call in traffic.calls)


# --- whole training steps ------------------------------------------------------------------------------------------


def mlp(width: int = 8, layers: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])


def backward_of_ddp(bucket_mb: float) -> list[dict]:
    model = DistributedDataParallel(mlp(), bucket_cap_mb=bucket_mb)
    model(torch.ones(2, 8)).sum().backward()  # after the first backward DDP rebuilds its buckets
    model(torch.ones(2, 8)).sum()
    output = model(torch.ones(2, 8)).sum()
    return record(output.backward)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ddp_reduces_exactly_its_gradient_bytes(ranks):
    gradient_bytes = sum(parameter.nbytes for parameter in mlp().parameters())
    traffic = Traffic.from_data(run_ranks(backward_of_ddp, ranks, 25)[0])
    assert set(traffic.ops()) == {"all_reduce"}
    assert traffic.payload_bytes() == gradient_bytes
    assert traffic.sent_bytes() == all_reduce_bytes(gradient_bytes, ranks)
    assert all(call.async_op for call in traffic.calls)


def test_ddp_buckets_show_as_calls():
    traffic = Traffic.from_data(run_ranks(backward_of_ddp, 2, 8 * 9 * 4 / 2**20)[0])
    assert traffic.count("all_reduce") == 3, "one bucket per layer at a cap of one layer"


def step_of_fsdp() -> list[dict]:
    model = mlp()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return record(lambda: model(torch.ones(2, 8)).sum().backward())


@pytest.mark.parametrize("ranks", [2, 4])
def test_fsdp2_gathers_and_scatters_n_minus_1_nths(ranks):
    """Every layer is gathered forward and, as it was resharded, backward; its gradient is reduce-scattered once."""
    layer_bytes = (8 * 8 + 8) * 4
    for data in run_ranks(step_of_fsdp, ranks):
        traffic = Traffic.from_data(data)
        assert traffic.count("reduce_scatter") == 3
        assert traffic.sent_bytes("reduce_scatter") == 3 * layer_bytes * (ranks - 1) // ranks
        gathers = [call for call in traffic.calls if call.op == "all_gather"]
        assert {call.payload_bytes for call in gathers} == {layer_bytes}
        assert {call.sent_bytes for call in gathers} == {layer_bytes * (ranks - 1) // ranks}
        assert len(gathers) == 6


def step_of_tensor_parallel() -> list[dict]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = parallelize_module(mlp(layers=2), mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
    return record(lambda: model(torch.ones(2, 8, requires_grad=True)).sum().backward())


def test_dtensor_calls_are_seen_once_each():
    """Column then row parallel: one all-reduce of the [2, 8] output forward, one of the input's gradient backward."""
    traffic = Traffic.from_data(run_ranks(step_of_tensor_parallel, 2)[0])
    assert [(call.op, call.payload_bytes) for call in traffic.calls] == [("all_reduce", 2 * 8 * 4)] * 2


def redistribute() -> list[dict]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    sharded = distribute_tensor(torch.ones(4, 6), mesh, [Shard(0)])
    return record(sharded.full_tensor)


def test_dtensor_redistribution_is_seen():
    traffic = Traffic.from_data(run_ranks(redistribute, 4)[0])
    assert [(call.op, call.sent_bytes) for call in traffic.calls] == [("all_gather", 4 * 6 * 4 * 3 // 4)]


def compressed_hook(state, bucket):
    return dist.all_reduce(bucket.buffer().half(), async_op=True).get_future().then(lambda f: f.value()[0].float())


def step_with_hook() -> list[dict]:
    model = DistributedDataParallel(mlp())
    model.register_comm_hook(None, compressed_hook)
    output = model(torch.ones(2, 8)).sum()
    return record(output.backward)


def test_communication_hooks_are_seen_with_their_dtype():
    traffic = Traffic.from_data(run_ranks(step_with_hook, 2)[0])
    assert {call.dtype for call in traffic.calls} == {"float16"}
    assert traffic.payload_bytes() == sum(parameter.numel() for parameter in mlp().parameters()) * 2


def gradients_and_buckets() -> list[dict]:
    model = mlp()
    with Traffic() as traffic:
        for name, parameter in model.named_parameters():
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: traffic.mark(name))
            if name == "2.weight":
                parameter.register_post_accumulate_grad_hook(lambda grad: dist.all_reduce(grad.grad))
        model(torch.ones(2, 8)).sum().backward()
    return traffic.to_data()


def test_marks_show_the_order_of_gradients_and_calls():
    traffic = Traffic.from_data(run_ranks(gradients_and_buckets, 2)[0])
    names = [event.name if isinstance(event, Mark) else event.op for event in traffic.events]
    assert names.index("2.weight") < names.index("all_reduce") < names.index("0.weight")


def test_the_ledger_repeats_to_the_byte():
    runs = [run_ranks(step_of_fsdp, 3) for _ in range(3)]
    assert runs[0] == runs[1] == runs[2]


def outside_is_not_counted() -> int:
    dist.all_reduce(torch.ones(2))
    with Traffic() as traffic:
        pass
    dist.all_reduce(torch.ones(2))
    return traffic.count()


def test_only_the_block_is_counted():
    assert run_ranks(outside_is_not_counted, 2) == [0, 0]


def from_another_thread() -> list[dict]:
    from threading import Thread

    def in_thread():
        thread = Thread(target=partial(dist.all_reduce, torch.ones(3)))
        thread.start()
        thread.join(20)

    return record(in_thread)


def test_calls_of_other_threads_are_seen():
    assert Traffic.from_data(run_ranks(from_another_thread, 2)[0]).sent_bytes() == 12
