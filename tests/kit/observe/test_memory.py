"""Peak memory against closed formulas."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from shardlab.observe import PeakMemory
from shardlab.ranks import run_ranks

WIDTH, LAYERS, ROWS = 64, 6, 32
ACTIVATION = ROWS * WIDTH * 4  # bytes of one layer's output


def linears(layers: int = LAYERS) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)])


PARAMETERS = LAYERS * WIDTH * WIDTH * 4


def test_a_storage_counts_once_however_many_views():
    with PeakMemory() as memory:
        tensor = torch.zeros(1000)
        views = [tensor[i:] for i in range(10)] + [tensor.view(10, 100).t()]
        assert memory.live_bytes == 4000
        del tensor
        assert memory.live_bytes == 4000, "a view keeps the storage"
        del views
        assert memory.live_bytes == 0
    assert memory.peak_bytes == 4000


def test_the_peak_is_the_most_at_one_moment():
    with PeakMemory() as memory:
        first = torch.zeros(100)
        del first
        second, third = torch.zeros(50), torch.zeros(60)
        del second, third
        last = torch.zeros(10)
    assert (memory.peak_bytes, memory.live_bytes) == (440, 40)
    del last
    assert memory.live_bytes == 40, "after the block the numbers stand"


def test_storage_resize_is_followed():
    with PeakMemory() as memory:
        tensor = torch.zeros(100)
        tensor.untyped_storage().resize_(0)
        assert memory.live_bytes == 0
        tensor.untyped_storage().resize_(800)
        assert memory.live_bytes == 800
        tensor.resize_(300)
        assert memory.live_bytes == 1200


def train(model, optimizer=None, rows: int = ROWS) -> None:
    model(torch.ones(rows, WIDTH)).sum().backward()
    if optimizer is not None:
        optimizer.step()


def test_parameters_gradients_and_adamw_states_by_kind():
    model = linears()
    optimizer = torch.optim.AdamW(model.parameters())
    with PeakMemory(model, optimizer) as memory:
        train(model, optimizer)
    live = memory.live_by_kind
    assert live["parameter"] == live["gradient"] == PARAMETERS
    assert live["optimizer"] == 2 * PARAMETERS + LAYERS * 4, "two moments per parameter, one step count per tensor"
    assert live["activation"] == 0 and memory.live_bytes == sum(live.values())
    assert sum(memory.peak_by_kind.values()) == memory.peak_bytes


def test_states_from_before_the_block_are_there_from_the_start():
    model = linears()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer)
    with PeakMemory(model, optimizer) as memory:
        pass
    assert memory.peak_by_kind["optimizer"] == 2 * PARAMETERS + LAYERS * 4
    assert memory.peak_by_kind["gradient"] == PARAMETERS


def test_zero_grad_frees_the_gradients():
    model = linears()
    with PeakMemory(model) as memory:
        train(model)
        model.zero_grad()
    assert memory.live_by_kind["gradient"] == 0
    assert memory.peak_by_kind["gradient"] > 0


def test_forward_keeps_one_activation_per_layer():
    model = linears()
    inputs = torch.ones(ROWS, WIDTH)
    with PeakMemory(model) as memory:
        output = model(inputs)
    assert memory.live_by_kind["activation"] == LAYERS * ACTIVATION
    assert memory.live_by_kind["other"] == ACTIVATION, "the input"
    del output


def test_without_gradients_one_layer_is_alive_at_a_time():
    model = linears()
    inputs = torch.ones(ROWS, WIDTH)
    with PeakMemory(model) as memory, torch.no_grad():
        model(inputs)
    assert memory.peak_bytes == PARAMETERS + 3 * ACTIVATION, "the input, and a layer's input and output"


def two_layer_blocks() -> nn.ModuleList:
    return nn.ModuleList(nn.Sequential(linears(1), nn.GELU(), linears(1), nn.GELU()) for _ in range(LAYERS))


def run_blocks(blocks: nn.ModuleList, inputs: torch.Tensor, recompute: bool) -> torch.Tensor:
    for block in blocks:
        inputs = checkpoint(block, inputs, use_reentrant=False) if recompute else block(inputs)
    return inputs


@pytest.mark.parametrize(("recompute", "kept"), [(False, 4), (True, 1)])
def test_activation_checkpointing_keeps_only_the_blocks_inputs(recompute, kept):
    blocks = two_layer_blocks()
    with PeakMemory(blocks) as memory:
        output = run_blocks(blocks, torch.ones(ROWS, WIDTH), recompute)
        inputs_of_the_first = ACTIVATION
        assert memory.live_by_kind["activation"] == LAYERS * kept * ACTIVATION + inputs_of_the_first
    del output


def test_the_same_run_gives_the_same_bytes():
    def peak() -> tuple[int, dict]:
        model = linears()
        optimizer = torch.optim.AdamW(model.parameters())
        with PeakMemory(model, optimizer) as memory:
            for _ in range(2):
                train(model, optimizer)
        return memory.peak_bytes, memory.peak_by_kind

    assert peak() == peak() == peak()


def shard_and_train() -> dict:
    model = linears()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    with PeakMemory(model, optimizer) as memory:
        train(model, optimizer)
    return {"peak": memory.peak_by_kind, "live": memory.live_by_kind}


@pytest.mark.parametrize("ranks", [2, 4])
def test_fsdp2_holds_an_nth_of_the_model_states(ranks):
    for result in run_ranks(shard_and_train, ranks):
        live = result["live"]
        assert live["parameter"] == live["gradient"] == PARAMETERS // ranks
        assert live["optimizer"] == 2 * PARAMETERS // ranks + LAYERS * 4
        assert live["other"] == live["activation"] == 0, "gathered parameters are freed"


def buffers() -> dict:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4, affine=False))
    with PeakMemory(model) as memory:
        model(torch.ones(2, 4))
    return memory.live_by_kind


def test_buffers_are_their_own_kind():
    assert buffers()["buffer"] == 2 * 4 * 4 + 8, "running mean and variance, and the int64 count of batches"


def reduce_in_the_block() -> int:
    with PeakMemory() as memory:
        tensor = torch.ones(100)
        dist.all_reduce(tensor)
        dist.all_gather([torch.empty(100) for _ in range(dist.get_world_size())], tensor)
    return memory.peak_bytes


def test_collectives_run_under_the_watch():
    peaks = run_ranks(reduce_in_the_block, 2)
    assert peaks[0] == peaks[1] >= 3 * 400


def test_a_model_made_inside_the_block_is_counted_as_parameters():
    with PeakMemory() as memory:
        model = torch.nn.Linear(10, 20, device="meta").to_empty(device="cpu")
        with torch.no_grad():
            model.weight.copy_(torch.zeros(20, 10))
            model.bias.zero_()
        model(torch.zeros(3, 10)).sum().backward()
    assert memory.live_by_kind["parameter"] == 4 * (20 * 10 + 20)
    assert memory.live_by_kind["gradient"] == 4 * (20 * 10 + 20)


def test_a_new_peak_begins_with_what_is_alive():
    with PeakMemory() as memory:
        kept = torch.ones(100)
        torch.ones(1000)
        memory.reset_peak()
        assert memory.peak_bytes == kept.nbytes
        torch.ones(10)
    assert memory.peak_bytes == kept.nbytes + 40
    assert memory.peak_by_kind["activation"] + memory.peak_by_kind["other"] == memory.peak_bytes
