"""Graded tests of lesson 2.3.

Right gradients alone do not earn the points: an all-reduce wrapper has them too, and so has a model that is gathered
once and never freed. What is graded is what each rank holds and when (shards, and a layer or two), what travels (one
all-gather per layer in forward and in backward, one reduce-scatter) and in which order, and that training ends where
one process and torch's ``fully_shard`` would.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import drivers_fsdp as drivers
import pytest
import torch
from torch import Tensor, nn

from shardlab.grade import exercise
from shardlab.observe import Traffic

State = drivers.State


def assert_close(got: Tensor | None, expected: Tensor, what: str, allowed: float = 1e-5) -> None:
    """Within a part of the largest element."""
    assert got is not None, f"{what}: there is none"
    assert got.shape == expected.shape, f"{what}: expected shape {list(expected.shape)}, got {list(got.shape)}"
    if not got.numel():
        return
    error = (got.double() - expected.double()).abs().max().item() / max(expected.abs().max().item(), 1e-12)
    assert error <= allowed, (
        f"{what}: off by {error:.1e} of its largest element, {allowed:.0e} is allowed\n"
        f"expected {expected.tolist()}\ngot      {got.tolist()}"
    )


def assert_state(got: State, expected: State, what: str) -> None:
    assert got.keys() == expected.keys(), f"{what}: names {list(got)} instead of {list(expected)}"
    for name, tensor in expected.items():
        if tensor is None:
            found = got[name]
            assert found is None, f"{what}, {name}: one process has no gradient here, got {found.tolist()}"
        else:
            assert_close(got[name], tensor, f"{what}, {name}")


# --- Where does a row live? -------------------------------------------------------------------------------------------


@exercise("2.3", "local_rows", points=2)
def test_rows_are_kept_as_torch_cuts_them(lab):
    cases = [(rows, ranks) for rows in (5, 6, 64, 67) for ranks in (1, 2, 3, 4, 5, 8)]
    kept = lab.on_ranks(1).run(drivers.rows_kept, cases)[0].value
    for (rows, ranks), got in zip(cases, kept, strict=True):
        pieces = [piece.tolist() for piece in torch.arange(rows).chunk(ranks)]
        expected = pieces + [[]] * (ranks - len(pieces))
        assert got == expected, (
            f"{rows} rows on {ranks} ranks: torch.chunk, and so Shard(0), gives the ranks {expected}, got {got}. All "
            "but the last that has any hold the same number, rounded up."
        )


@exercise("2.3", "local_rows", points=1)
def test_a_slice_stays_inside_the_parameter(lab):
    expected = {(5, 0, 4): (0, 2), (5, 2, 4): (4, 5), (5, 3, 4): (5, 5), (0, 1, 2): (0, 0)}
    bad = [(5, 4, 4), (5, -1, 4), (-1, 0, 4)]
    got = lab.on_ranks(1).run(drivers.row_slices, [*expected, *bad])[0].value
    for case, slice_, found in zip(expected, expected.values(), got, strict=False):
        assert found == slice_, f"rows, rank, ranks = {case}: start and stop are {slice_}, got {found}"
    for case, found in zip(bad, got[len(expected) :], strict=True):
        assert isinstance(found, str), f"rows, rank, ranks = {case}: expected a ValueError, got {found}"


# --- One layer --------------------------------------------------------------------------------------------------------


def rows_of(tensor: Tensor, rank: int, ranks: int) -> Tensor:
    """What `rank` keeps of `tensor`."""
    pieces = tensor.detach().chunk(ranks)
    return pieces[rank] if rank < len(pieces) else tensor.detach()[:0]


def chunk_numel(tensor: Tensor, ranks: int) -> int:
    """Elements of a rank's chunk of `tensor`, with padding."""
    return math.ceil(tensor.shape[0] / ranks) * tensor[0].numel()


def pieces(seed: int) -> dict[str, Tensor]:
    module = drivers.Pieces(seed)
    return {name: getattr(module, name).detach() for name in drivers.PIECES}


def piece_numel(ranks: int, names: Sequence[str] = drivers.PIECES) -> int:
    return sum(chunk_numel(tensor, ranks) for name, tensor in pieces(0).items() if name in names)


@exercise("2.3", "ShardedLayer.shard", points=3)
@pytest.mark.parametrize("ranks", [1, 4])
def test_a_shard_is_this_ranks_rows_in_memory_of_their_own(lab, seed, ranks):
    full = pieces(seed)
    for rank, result in enumerate(lab.on_ranks(ranks).run(drivers.shards, seed)):
        for name, kept in result.value.items():
            story = f"rank {rank} of {ranks}, {name} {list(full[name].shape)}"
            expected = rows_of(full[name], rank, ranks)
            assert kept["shape"] == list(full[name].shape) and kept["placements"] == "(Shard(dim=0),)", (
                f"{story}: a DTensor has the shape of the whole parameter, sharded along dimension 0; got "
                f"{kept['shape']} {kept['placements']}. Without shape= from_local guesses it from this rank's rows."
            )
            assert torch.equal(kept["local"], expected), (
                f"{story}: this rank keeps {expected.tolist()}, got {kept['local'].tolist()}"
            )
            assert kept["memory"] == expected.nbytes, (
                f"{story}: {expected.nbytes} bytes of rows lie in {kept['memory']} bytes of memory. A view of the "
                "original keeps all of it alive: copy the rows."
            )
            assert kept["original_is_freed"], f"{story}: the original is still alive, somebody holds it"
            assert kept["parameter"] and kept["requires_grad"] == (name != "frozen"), (
                f"{story}: a shard is an nn.Parameter, and frozen if the original is: requires_grad is "
                f"{kept['requires_grad']}"
            )


DTYPES = [None, torch.bfloat16]


@exercise("2.3", "ShardedLayer.start_gather", points=3)
@pytest.mark.parametrize("ranks", [1, 3])
def test_one_all_gather_for_all_parameters(lab, seed, ranks):
    cases = [(seed, dtype) for dtype in DTYPES]
    for rank, result in enumerate(lab.on_ranks(ranks).run(drivers.each, drivers.gather, cases)):
        for dtype, value in zip(DTYPES, result.value, strict=True):
            name, story = str(dtype or torch.float32).removeprefix("torch."), f"rank {rank} of {ranks}"
            expected = ranks * piece_numel(ranks) * (dtype or torch.float32).itemsize
            traffic = Traffic.from_data(value["events"])
            got = [(call.op, call.payload_bytes, call.dtype) for call in traffic.calls]
            assert got == [("all_gather", expected, name)], (
                f"{story}: four parameters travel in one all-gather of {expected} bytes, {ranks} pieces of chunks "
                f"rounded up to whole rows, in {name}; launched once, though start_gather was called again. Got {got}"
            )
            assert traffic.events[0] == traffic.calls[0], f"{story}: start_gather launches, unshard only waits"
            assert traffic.calls[0].async_op, f"{story}: start_gather must return before the message is there: async_op"
            assert value["still_sharded"], f"{story}: until unshard the shards stay registered"
            for key, full in pieces(seed).items():
                assert torch.equal(value["assigned"][key], 2 * full.to(dtype or full.dtype)), (
                    f"{story}: load_state_dict(assign=True) has registered other shards of {key}, of twice the value: "
                    f"what is gathered is what is registered, got {value['assigned'][key].tolist()}"
                )


@exercise("2.3", "ShardedLayer.unshard", points=3)
@pytest.mark.parametrize("ranks", [2, 5])
def test_whole_parameters_are_those_of_before(lab, seed, ranks):
    cases = [(seed, dtype) for dtype in DTYPES]
    for rank, result in enumerate(lab.on_ranks(ranks).run(drivers.each, drivers.gather, cases)):
        for dtype, value in zip(DTYPES, result.value, strict=True):
            story = f"rank {rank} of {ranks}, {dtype or 'float32'}"
            for name, full in pieces(seed).items():
                expected = full.to(dtype or full.dtype)
                got = value["values"][name]
                assert got.dtype == expected.dtype and torch.equal(got, expected), (
                    f"{story}: {name} was {expected.tolist()} before sharding, whole again it is {got.tolist()}. What "
                    "is gathered lies sorted by rank, not by parameter; padding is at the end of each parameter."
                )
            assert all(value["plain"]), f"{story}: layers compute with plain nn.Parameters, not with DTensors"
            assert value["requires_grad"] == [True, True, False, True], (
                f"{story}: a frozen shard has a frozen full parameter: {value['requires_grad']}"
            )
            assert value["requires_grad_changed"] == [True, False, True, True], (
                f"{story}: then bias was frozen and frozen was not any more; whole again, each full parameter requires "
                f"a gradient as its shard does now: {value['requires_grad_changed']}"
            )
            assert value["tied"], f"{story}: a tied parameter is registered in two places; both get the full one"


@exercise("2.3", "ShardedLayer.unshard", points=2)
def test_the_message_is_freed_when_it_is_copied_out(lab, seed):
    ranks = 4
    layer = 4 * ranks * piece_numel(ranks)
    for rank, result in enumerate(lab.on_ranks(ranks).run(drivers.gather, seed, None)):
        held, peak = result.value["whole_bytes"], result.value["peak_bytes"]
        assert held == layer, (
            f"rank {rank}: a whole layer holds {layer} bytes more than its shards, got {held}. The gathered message "
            "has been copied out: free it at once, the communication thread may hold on to it for longer."
        )
        assert peak <= 2 * layer + 4 * piece_numel(ranks), (
            f"rank {rank}: message and full parameters together are {2 * layer} bytes, at the peak there were {peak}"
        )


@exercise("2.3", "ShardedLayer.reshard", points=3)
@pytest.mark.parametrize("ranks", [3])
def test_nothing_of_the_layer_is_left_though_autograd_holds_it(lab, seed, ranks):
    for rank, result in enumerate(lab.on_ranks(ranks).run(drivers.whole_and_sharded_again, seed, 3)):
        value, story = result.value, f"rank {rank} of {ranks}"
        assert value["bytes_after"] == [0, 0, 0], (
            f"{story}: resharded, only the shards are in memory, but {value['bytes_after']} bytes more were there "
            "after three rounds. Autograd holds the full parameters: their memory has to go, not only their names."
        )
        assert value["same_shards"], f"{story}: the optimiser steps the shards it was given: register the same ones"
        assert value["tied"], f"{story}: the tied parameter must be registered in both places"
        assert value["same_full"], f"{story}: autograd holds the full parameters of the first time: they must come back"
        for name, full in pieces(seed).items():
            got = value["seen_by_autograd"][name]
            assert torch.equal(got, ((full + 1) + 1) + 1), (
                f"{story}: the optimiser added 1 to the shards of {name} three times, so whole again it must be the "
                f"original + 3. Autograd, which has held the full parameter from the start, sees {got.tolist()}"
            )


# --- Gradients of one layer -------------------------------------------------------------------------------------------


@exercise("2.3", "ShardedLayer.collect_gradients", points=2)
def test_gradients_are_collected_and_added(lab):
    (result,) = lab.on_ranks(1).run(drivers.each, drivers.collect, [(True,), (False,)])
    for synchronise, value in zip((True, False), result.value, strict=True):
        assert value["found"] == [True, True, False], f"was there a gradient? True, True, False: got {value['found']}"
        assert all(value["left"]), "what is collected is taken out of .grad, or the next backward counts it again"
        assert value["missing"] == [False, False, True, True], "parameters without a gradient have none to send: None"
        assert synchronise or (value["dtype"] == "torch.float32" and value["value"] == 1 + 2**-9), (
            f"1 and then 2^-9 in bfloat16, inside no_sync: the sum is {1 + 2**-9}, got {value['value']} in "
            f"{value['dtype']}. bfloat16 has 8 bits: 1 + 2^-9 is 1 there, and so every later micro-batch is lost."
        )


def own_gradients(seed: int, ranks: int, rounds: int) -> list[list[dict[str, Tensor]]]:
    """Of each rank and round: weight for all, bias for rank 0 alone (zero in its last row), tail for nobody, frozen
    never."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"weight": (5, 3), "bias": (5,)}
    drawn = [
        [{n: torch.randn(s, generator=generator) for n, s in shapes.items()} for _ in range(rounds)]
        for _ in range(ranks)
    ]
    for own in drawn:
        for each in own:
            each["bias"][-1] = 0.0
    return [[each if rank == 0 else {"weight": each["weight"]} for each in own] for rank, own in enumerate(drawn)]


@exercise("2.3", "ShardedLayer.start_reduction", points=3)
@pytest.mark.parametrize("ranks", [1, 3])
def test_one_reduce_scatter_for_all_that_is_trained(lab, seed, ranks):
    trained = [name for name in drivers.PIECES if name != "frozen"]
    expected = 4 * ranks * piece_numel(ranks, trained)
    results = lab.on_ranks(ranks).run(drivers.reduce_each, DTYPES, per_rank=own_gradients(seed, ranks, 1))
    for rank, result in enumerate(results):
        for dtype, value in zip(DTYPES, result.value, strict=True):
            traffic, story = Traffic.from_data(value["events"]), f"rank {rank} of {ranks}, {dtype or 'float32'}"
            got = [(call.op, call.payload_bytes, call.dtype) for call in traffic.calls]
            assert got == [("reduce_scatter", expected, "float32")], (
                f"{story}: one reduce-scatter of {expected} bytes, in the shards' float32 whatever gradients are in, "
                f"with all that is trained, also what this rank has not used, and nothing frozen. Got {got}"
            )
            assert traffic.events[0] == traffic.calls[0] and traffic.calls[0].async_op, (
                f"{story}: start_reduction launches and returns, finish_reduction waits"
            )
            assert value["emptied"], f"{story}: what was sent is not unsent any more: it would be sent again"


@exercise("2.3", "ShardedLayer.start_reduction", points=2)
def test_gradients_are_summed_in_the_dtype_of_the_shards(lab):
    """1 and 2^-9: bfloat16 cannot hold the sum."""
    own = [[{"weight": torch.full((5, 3), value)}] for value in (1.0, 2**-9)]
    for rank, result in enumerate(lab.on_ranks(2).run(drivers.reduce, torch.bfloat16, per_rank=own)):
        got = result.value["gradients"]["weight"]
        assert (got == (1 + 2**-9) / 2).all(), (
            f"rank {rank}: the average of 1 and 2^-9 is {(1 + 2**-9) / 2}, got {got.flatten()[0].item()}. Summed in "
            "bfloat16 it is 0.5: with more ranks, ever more of the gradient is rounded away."
        )


@exercise("2.3", "ShardedLayer.finish_reduction", points=4)
@pytest.mark.parametrize(("ranks", "rounds"), [(1, 1), (5, 1), (3, 2)])
def test_each_rank_gets_its_rows_of_the_average(lab, seed, ranks, rounds):
    own = own_gradients(seed, ranks, rounds)
    for rank, result in enumerate(lab.on_ranks(ranks).run(drivers.reduce, None, per_rank=own)):
        got, story = result.value["gradients"], f"rank {rank} of {ranks}, {rounds} reductions"
        for name in ("weight", "bias"):
            sums = [each[name] for gradients in own for each in gradients if name in each]
            average = torch.stack(sums).sum(0) / ranks
            assert_close(
                got[name],
                rows_of(average, rank, ranks),
                f"{story}: this rank's rows of the average of {name} over the ranks (a rank without one counts as "
                "zero, zeros are a gradient; a second reduction adds to the first; no padding)",
            )
        for name in ("tail", "frozen"):
            assert got[name] is None, f"{story}: no rank has a gradient of {name}, so it stays None, got {got[name]}"


# --- When: order of events and memory ---------------------------------------------------------------------------------

LAYERS = 6


def launched_before(events: Sequence, op: str, name: str) -> int:
    """How many calls of ``op`` had been made when the mark ``name`` was set."""
    until = next(index for index, event in enumerate(events) if getattr(event, "name", None) == name)
    return sum(getattr(event, "op", None) == op for event in events[:until])


def split_at_backward(events: Sequence) -> tuple[Sequence, Sequence]:
    """Events up to the last layer's forward, and those after it."""
    last = next(i for i, event in enumerate(events) if getattr(event, "name", None) == f"forward {LAYERS - 1}")
    return events[: last + 1], events[last + 1 :]


PREFETCHES = (0, 1, 2)


def orders_of(lab, ranks: int, cases: Sequence[dict]) -> list[tuple[int, dict, list]]:
    """Rank, case and events of the second step."""
    results = lab.on_ranks(ranks).run(drivers.each, drivers.observe_order, [(LAYERS, case) for case in cases])
    return [
        (rank, case, Traffic.from_data(events).events)
        for rank, result in enumerate(results)
        for case, events in zip(cases, result.value, strict=True)
    ]


def calls_in(events: Sequence, op: str) -> list:
    return [event for event in events if getattr(event, "op", None) == op]


@exercise("2.3", "ShardedLayer.pre_forward", points=4)
@pytest.mark.parametrize("ranks", [1, 3])
def test_the_next_layers_leave_before_this_one_computes(lab, ranks):
    for rank, case, events in orders_of(lab, ranks, [{"prefetch": prefetch} for prefetch in PREFETCHES]):
        prefetch = case["prefetch"]
        forward, _ = split_at_backward(events)
        calls = [event for event in forward if hasattr(event, "op")]
        expected = [drivers.stack_layer_bytes(index, ranks) for index in range(LAYERS)]
        assert [call.payload_bytes for call in calls] == expected, (
            f"rank {rank}, prefetch {prefetch}: one all-gather per layer, in the order in which they compute: "
            f"{expected} bytes, got {[str(call) for call in calls]}"
        )
        for index in range(LAYERS):
            launched = launched_before(forward, "all_gather", f"forward {index}")
            wanted = min(LAYERS, index + 1 + prefetch)
            assert launched == wanted, (
                f"rank {rank}, prefetch {prefetch}, second step: when layer {index} began to compute, {launched} "
                f"all-gathers had been launched, expected {wanted}: its own, and those of the next {prefetch}. Earlier "
                "costs memory, later does not overlap."
            )
        waiting = [call for call in calls if not call.async_op]
        assert not waiting, f"rank {rank}: {waiting[0]} blocks until it has arrived, so nothing overlaps: async_op"


@exercise("2.3", "ShardedLayer.pre_backward", points=4)
def test_backward_gathers_ahead_in_the_other_direction(lab):
    ranks = 3
    for rank, case, events in orders_of(lab, ranks, [{"prefetch": prefetch} for prefetch in PREFETCHES]):
        prefetch = case["prefetch"]
        _, backward = split_at_backward(events)
        gathers = [call.payload_bytes for call in calls_in(backward, "all_gather")]
        expected = [drivers.stack_layer_bytes(index, ranks) for index in reversed(range(LAYERS))]
        assert gathers == expected, (
            f"rank {rank}: in backward one all-gather per layer, the last layer first: {expected} bytes, got {gathers}"
        )
        for index in range(LAYERS):
            launched = launched_before(backward, "all_gather", f"backward {index}")
            wanted = min(LAYERS, LAYERS - index + prefetch)
            assert launched == wanted, (
                f"rank {rank}, prefetch {prefetch}: when backward entered layer {index}, {launched} all-gathers had "
                f"been launched, expected {wanted}: its own and those of the {prefetch} below it"
            )


@exercise("2.3", "ShardedLayer.post_backward", points=4)
def test_gradients_leave_while_backward_goes_on(lab):
    ranks = 2
    for rank, _, events in orders_of(lab, ranks, [{}]):
        _, backward = split_at_backward(events)
        reductions = calls_in(backward, "reduce_scatter")
        expected = [drivers.stack_layer_bytes(index, ranks) for index in reversed(range(LAYERS))]
        assert [call.payload_bytes for call in reductions] == expected, (
            f"rank {rank}: one reduce-scatter per layer, the last layer first: {expected} bytes, got "
            f"{[str(call) for call in reductions]}"
        )
        for index in range(LAYERS):
            launched = launched_before(backward, "reduce_scatter", f"backward {index}")
            assert launched == LAYERS - 1 - index, (
                f"rank {rank}: when backward entered layer {index}, {launched} reduce-scatters had been launched, "
                f"expected {LAYERS - 1 - index}: those of all layers above it. Kept back, they hold whole gradients in "
                "memory; at the end of backward there is nothing left to hide them."
            )
        assert all(call.async_op for call in reductions), f"rank {rank}: a reduce-scatter that blocks hides nothing"


@exercise("2.3", "ShardedLayer.post_forward", points=3)
@pytest.mark.parametrize("ranks", [3])
def test_reshard_after_forward_or_keep(lab, ranks):
    layer = drivers.stack_layer_bytes(LAYERS - 1, ranks)
    cases = [{"reshard_after_forward": reshard} for reshard in (True, False)]
    results = lab.on_ranks(ranks).run(drivers.each, drivers.observe_memory, [(LAYERS, case) for case in cases])
    for rank, result in enumerate(results):
        for case, value in zip(cases, result.value, strict=True):
            between, story = value["after forward"], f"rank {rank}, {case}"
            if case["reshard_after_forward"]:
                assert between < layer / 2, (
                    f"{story}: between forward and backward only shards are in memory, and activations: {between} "
                    f"bytes were there, a layer has {layer}. Autograd keeps the full parameters, not their memory."
                )
            else:
                assert between > 0.9 * LAYERS * layer, (
                    f"{story}: all {LAYERS} layers of {layer} bytes stay for backward, {between} bytes were there"
                )
            left = value["after evaluation"]
            assert left < layer / 2, (
                f"{story}: after a forward without autograd {left} bytes were left, a layer has {layer}. No backward "
                "comes that would free it."
            )
            left = value["after backward"] - sum_of_shards(ranks, rank)
            assert left < 1.5 * layer, (
                f"{story}: after backward {left} bytes were left beyond shards and their gradients, a layer has {layer}"
            )  # one message may be: gloo reduces in a copy of its own, which its thread frees when it likes


def sum_of_shards(ranks: int, rank: int) -> int:
    """Bytes of a rank's shards of the stack: as much as its gradients have."""
    sizes = [(drivers.STACK_WIDTH, drivers.STACK_WIDTH), *([(index + 1) * ranks] for index in range(LAYERS))]
    weight, *tags = (rows_of(torch.empty(*size), rank, ranks).nbytes for size in sizes)
    return LAYERS * weight + sum(tags)


@exercise("2.3", "shard_module", points=6)
@pytest.mark.parametrize("ranks", [2, 4])
def test_never_more_than_a_layer_and_those_ahead(lab, ranks):
    layer = drivers.stack_layer_bytes(LAYERS - 1, ranks)
    slack = layer / 4  # activations, and a chunk that is padded
    cases = [(LAYERS, {"prefetch": prefetch}) for prefetch in PREFETCHES]
    for rank, result in enumerate(lab.on_ranks(ranks).run(drivers.each, drivers.observe_memory, cases)):
        for prefetch, value in zip(PREFETCHES, result.value, strict=True):
            layers = max(2, 1 + prefetch)  # also without prefetch: a message, and what is copied out of it
            peak = value["evaluation"]
            assert peak <= layers * layer + slack, (
                f"rank {rank}, prefetch {prefetch}: an evaluation had {peak} bytes beyond the shards at its peak, that "
                f"is {peak / layer:.2f} layers of {layer} bytes; {layers} may be in memory. Free a layer before the "
                "next one is copied out of its message, and the message right after."
            )
            peak = value["training"] - sum_of_shards(ranks, rank)
            assert peak <= (layers + 3) * layer + slack, (
                f"rank {rank}, prefetch {prefetch}: a training step had {peak} bytes beyond shards and their gradients "
                f"at its peak, that is {peak / layer:.2f} layers; allowed are {layers} with parameters, one with "
                "gradients, and one that is being reduced, of which gloo makes a copy"
            )


# --- The same as one process ------------------------------------------------------------------------------------------


def token_batches(seed: int, ranks: int, steps: int) -> list[list[Tensor]]:
    """Batch of each rank and step: tokens [1, T] with another T for each."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [[2 + (3 * rank + 5 * step) % 7 for step in range(steps)] for rank in range(ranks)]
    return [[torch.randint(drivers.VOCAB, (1, length), generator=generator) for length in row] for row in lengths]


def mean_tokens(batches: Sequence[Sequence[Tensor]]) -> list[float]:
    """Predicted tokens per rank, of every step."""
    return [sum(tokens.shape[1] - 1 for tokens in step) / len(step) for step in zip(*batches, strict=True)]


def train_alone(batches: Sequence[Sequence[Tensor]]) -> tuple[list[float], list[State], State]:
    """Losses, gradients and final parameters of one process on the union of all ranks' batches."""
    model = drivers.Network(seed=0)
    optimizer = drivers.adam(model)
    losses, gradients = [], []
    for step in zip(*batches, strict=True):
        optimizer.zero_grad()
        loss = sum(drivers.summed_token_loss(model, t) for t in step) / sum(t.shape[1] - 1 for t in step)
        loss.backward()
        losses.append(loss.item())
        gradients.append(drivers.plain_gradients(model))
        optimizer.step()
    return losses, gradients, {name: parameter.detach() for name, parameter in model.named_parameters()}


def assert_training(results: Sequence, batches: Sequence[Sequence[Tensor]], story: str) -> None:
    """All ranks have the losses, gradients and parameters of one process, and hold their rows of them."""
    losses, gradients, parameters = train_alone(batches)
    mean = [sum(own) / len(own) for own in zip(*(result.value["losses"] for result in results), strict=True)]
    for place, result in enumerate(results):
        for step, expected in enumerate(gradients):
            what = f"{story}: rank {place} of the group, gradients of step {step}, the average over the ranks"
            assert_state(result.value["gradients"][step], expected, what)
        assert_state(result.value["parameters"], parameters, f"{story}: parameters after {len(gradients)} steps")
        for name, tensor in parameters.items():
            expected = len(rows_of(tensor, place, len(results)))
            got = result.value["rows"][name]
            assert got == expected, f"{story}: rank {place} holds {got} rows of {name}, its share are {expected}"
    for step, (got, expected) in enumerate(zip(mean, losses, strict=True)):
        assert math.isclose(got, expected, rel_tol=1e-6), f"{story}: loss of step {step} is {got}, expected {expected}"


@exercise("2.3", "shard_module", points=6)
@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (1, {}),
        (2, {"prefetch": 0, "offload": True}),
        (3, {"reshard_after_forward": False}),
        (4, {}),
        (5, {"prefetch": 2}),
    ],
    ids=lambda value: value if isinstance(value, int) else "-".join(value) or "default",
)
def test_same_as_one_process(lab, seed, ranks, options):
    batches = token_batches(seed, ranks, steps=3)
    results = lab.on_ranks(ranks).run(drivers.train, mean_tokens(batches), None, options, per_rank=batches)
    assert_training(results, batches, f"{ranks} ranks, {options or 'no options'}")
    if "offload" in options:
        assert all(result.value["devices"] == ["cpu"] for result in results), "offloaded shards are on the CPU"


@exercise("2.3", "shard_module", points=2)
def test_two_groups_train_two_models(lab, seed):
    groups = [[0, 3], [1, 2, 4]]
    batches = token_batches(seed, 5, steps=2)
    means = [mean_tokens([batches[rank] for rank in group]) for group in groups]
    own = [next(mean for mean, group in zip(means, groups, strict=True) if rank in group) for rank in range(5)]
    results = lab.on_ranks(5).run(drivers.train_in_groups, groups, per_rank=list(zip(batches, own, strict=True)))
    for group in groups:
        assert_training([results[r] for r in group], [batches[r] for r in group], f"the group of ranks {group}")


@exercise("2.3", "shard_module", points=4)
@pytest.mark.parametrize("ranks", [3])
def test_what_travels_in_a_step(lab, seed, ranks):
    """The network calls one layer twice, and one never."""
    tokens = token_batches(seed, 1, steps=1)[0][0]
    alone = drivers.Network(seed=0)
    owners = {
        name: max((n for n in drivers.INNER if name.startswith(f"{n}.")), key=len, default="") for name in names()
    }
    sizes = {
        layer: [chunk_numel(p, ranks) for name, p in alone.named_parameters() if owners[name] == layer]
        for layer in ("", *drivers.INNER)
    }
    size = {layer: 4 * ranks * sum(numels) for layer, numels in sizes.items()}
    forward = ["", "mix", "mix.0", "again", "frozen", "again"]
    gathers = sorted(size[layer] for layer in 2 * forward)
    reductions = sorted(size[layer] for layer in ("", "mix", "mix.0", "again"))
    for rank, result in enumerate(lab.on_ranks(ranks).run(drivers.traffic_of_a_step, tokens, {})):
        calls = Traffic.from_data(result.value).calls
        for op, expected in (("all_gather", gathers), ("reduce_scatter", reductions)):
            got = sorted(call.payload_bytes for call in calls if call.op == op)
            assert got == expected, (
                f"rank {rank} of {ranks}: {op} of {expected} bytes in a step: one for every time a layer is called, in "
                f"forward and in backward; one reduction per trained layer, however often it was called. Got {got}"
            )
        others = {call.op for call in calls} - {"all_gather", "reduce_scatter"}
        assert not others, f"rank {rank}: a step needs all-gathers and reduce-scatters, not {sorted(others)}"


def names() -> list[str]:
    return [name for name, _ in drivers.Network(seed=0).named_parameters()]


@exercise("2.3", "shard_module", points=5)
@pytest.mark.parametrize(
    ("ranks", "cases"),
    [(3, [(None, True)]), (2, [(None, False), (torch.bfloat16, True)])],
    ids=["3 ranks", "2 ranks"],
)
def test_same_as_fully_shard(lab, seed, ranks, cases):
    generator = torch.Generator().manual_seed(seed)
    batches = [list(own) for own in torch.randint(drivers.CONFIG.vocab, (ranks, 3, 2, 16), generator=generator)]
    for rank, result in enumerate(lab.on_ranks(ranks).run(drivers.against_torch, cases, per_rank=batches)):
        for (dtype, reshard), value in zip(cases, result.value, strict=True):
            mine, torchs = value["mine"], value["torch"]
            story = f"rank {rank} of {ranks}, {dtype or 'float32'}, reshard_after_forward={reshard}"
            for step, (got, expected) in enumerate(zip(mine["losses"], torchs["losses"], strict=True)):
                assert math.isclose(got, expected, rel_tol=1e-6), (
                    f"{story}: loss of step {step} is {got}, fully_shard has {expected}"
                )
            for index, (got, expected) in enumerate(zip(mine["gradients"], torchs["gradients"], strict=True)):
                assert_close(got, expected, f"{story}: gradient of parameter {index} in the last step")
            assert mine["peak_bytes"] <= torchs["peak_bytes"], (
                f"{story}: {mine['peak_bytes']:,} bytes at the peak, fully_shard has {torchs['peak_bytes']:,}"
            )
            assert mine["calls"] == torchs["calls"], (
                f"{story}: calls of a step (op, bytes, dtype)\nof fully_shard {torchs['calls']}\ngot {mine['calls']}"
            )


# --- Mixed precision, evaluation, changing orders, recomputation ------------------------------------------------------


@exercise("2.3", "shard_module", points=3)
def test_compute_in_one_dtype_keep_and_reduce_in_another(lab):
    cases = [(torch.ones(3, 4), dtype) for dtype in DTYPES]
    for rank, result in enumerate(lab.on_ranks(2).run(drivers.each, drivers.compute_dtypes, cases)):
        for dtype, value in zip(DTYPES, result.value, strict=True):
            compute = str(dtype or torch.float32)
            expected = {
                "input": compute,
                "integers": "torch.int64",
                "keyword": compute,
                "weight": compute,
                "output": compute,
                "shard": "torch.float32",
                "gradient": "torch.float32",
                "gradient of bias": [3.0] * 4,
            }
            assert value == expected, (
                f"rank {rank}, mixed_precision={dtype}: floating-point inputs, also by keyword, and weights are "
                f"{compute} in the layer, integers stay, shards and gradients are float32: {expected}, got {value}"
            )


@exercise("2.3", "ShardedLayer.post_forward", points=2)
def test_evaluation_leaves_no_trace(lab):
    cases = [(LAYERS, {"reshard_after_forward": reshard}) for reshard in (True, False)]
    for rank, result in enumerate(lab.on_ranks(2).run(drivers.each, drivers.observe_evaluation, cases)):
        for (_, case), value in zip(cases, result.value, strict=True):
            assert value["evaluation"] == ["all_gather"] * LAYERS, (
                f"rank {rank}: a forward without autograd gathers each layer once, got {value['evaluation']}"
            )
            assert value["sharded"], f"rank {rank}: after an evaluation the parameters are shards: no backward comes"
            counts = value["training"].count("all_gather"), value["training"].count("reduce_scatter")
            assert counts == ((2 if case["reshard_after_forward"] else 1) * LAYERS, LAYERS), (
                f"rank {rank}, {case}: all-gathers and reduce-scatters of the training step after it: {counts}"
            )


@exercise("2.3", "ShardedLayer.pre_forward", points=2)
def test_layers_may_come_in_another_order(lab):
    orders = [[0, 1, 2, 3], [3, 2, 1, 0], [0, 0, 1], [2], [0, 1, 2, 3]]
    for rank, result in enumerate(lab.on_ranks(2).run(drivers.other_order, orders)):
        for order, got in zip(orders, result.value, strict=True):
            story = f"rank {rank}, layers {order} of 4, that multiply by 1, 2, 3, 4, after other orders"
            assert got["value"] == math.prod(index + 1 for index in order), f"{story}: the output is {got['value']}"
            assert got["used"] == [index in order for index in range(4)], f"{story}: gradients for {got['used']}"
            assert got["left"] <= 64, (  # gloo's copy of the last message that was reduced
                f"{story}: {got['left']} bytes are left in memory. What was gathered ahead and not used must go."
            )


@exercise("2.3", "ShardedLayer.post_forward", points=2)
@pytest.mark.parametrize("ranks", [2])
def test_activation_checkpointing(lab, seed, ranks):
    inputs = list(torch.randn(ranks, 3, 6, generator=torch.Generator().manual_seed(seed)))
    layers = nn.ModuleList(drivers.seeded_linear(6, index) for index in range(3))
    losses = []
    for x in inputs:
        for layer in layers:
            x = layer(x.tanh())
        losses.append(x.square().mean())
    torch.stack(losses).mean().backward()
    expected = {f"layers.{name}": gradient for name, gradient in drivers.plain_gradients(layers).items()}
    for rank, result in enumerate(lab.on_ranks(ranks).run(drivers.checkpointed, ranks, per_rank=inputs)):
        assert_state(result.value["gradients"], expected, f"rank {rank}, every layer recomputed in backward: gradients")
        ops = result.value["ops"]
        assert (ops.count("all_gather"), ops.count("reduce_scatter")) == (6, 3), (
            f"rank {rank}: recomputed in backward, a layer is whole already, and stays so until backward has left it: "
            f"6 all-gathers and 3 reduce-scatters, got {ops}"
        )


@exercise("2.3", "shard_module", points=3)
def test_a_forward_computes_with_the_shards_of_now(lab):
    for rank, result in enumerate(lab.on_ranks(2).run(drivers.forward_again)):
        for options, happened in result.value.items():
            for change, (expected, got) in happened.items():
                assert got == pytest.approx(expected), (
                    f"rank {rank}, {options}, training step, then {change}: the next forward computes with the shards "
                    f"as they are and gives {expected}, got {got}. Layers that an earlier forward has left whole, or "
                    "gathered ahead, hold numbers of before: Schedule.start and the load_state_dict hook free them."
                )


# --- Accumulation -----------------------------------------------------------------------------------------------------


@exercise("2.3", "no_sync", points=3)
@pytest.mark.parametrize("ranks", [1, 3])
def test_accumulation_over_micro_batches(lab, seed, ranks):
    batches = token_batches(seed, ranks, steps=3)
    model = drivers.Network(seed=0)
    for own in batches:
        for tokens in own:
            (drivers.summed_token_loss(model, tokens) / ranks).backward()
    expected = drivers.plain_gradients(model)
    for rank, result in enumerate(lab.on_ranks(ranks).run(drivers.accumulate, per_rank=batches)):
        for synchronised, value in zip((True, False), result.value, strict=True):
            story = f"rank {rank} of {ranks}, {'with' if synchronised else 'without'} reducing each micro-batch"
            assert_state(value["gradients"], expected, f"{story}: the average over ranks of the sum over micro-batches")
            reductions = value["inside"].count("reduce_scatter"), value["outside"].count("reduce_scatter")
            assert reductions == (8 if synchronised else 0, 4), (
                f"{story}: 4 trained layers, 2 micro-batches and then the last: {reductions} reduce-scatters"
            )
            assert synchronised or value["no_gradients_inside"], f"{story}: shards get a gradient when it is reduced"


@exercise("2.3", "no_sync", points=1)
def test_an_error_inside_no_sync_does_not_turn_reduction_off(lab):
    inputs = [torch.tensor([[6.0, 1.0]]), torch.tensor([[7.0, 2.0]])]
    got = [result.value for result in lab.on_ranks(2).run(drivers.leave_no_sync_by_an_error, per_rank=inputs)]
    assert got == [[6.5, 1.5]] * 2, f"after no_sync ended in an error, backward averages again to [6.5, 1.5]: got {got}"


@exercise("2.3", "no_sync", points=1)
def test_what_counts_is_where_backward_runs(lab):
    (result,) = lab.on_ranks(1).run(drivers.sync_by_moment, torch.ones(1, 2))
    assert result.value == [1, 0], (
        f"reduce-scatters of a backward outside whose forward was inside: 1; the other way round: 0. Got {result.value}"
    )


@exercise("2.3", "no_sync", points=1)
def test_sums_are_kept_in_the_dtype_of_the_shards(lab):
    (result,) = lab.on_ranks(1).run(drivers.accumulate_in_bfloat16, 8)
    assert result.value == 1 + 8 * 2**-9, (
        f"1 and eight times 2^-9, computed in bfloat16 and summed in float32, are {1 + 8 * 2**-9}: got {result.value}"
    )


# --- Clipping ---------------------------------------------------------------------------------------------------------


@exercise("2.3", "clip_grad_norm", points=4)
@pytest.mark.parametrize("ranks", [2, 5])
def test_clip_by_the_norm_over_all_ranks(lab, seed, ranks):
    """Sharded parameters and plain ones together."""
    batches = [own[0] for own in token_batches(seed, ranks, steps=1)]
    model = drivers.Network(seed=0)
    for tokens in batches:
        (drivers.summed_token_loss(model, tokens) / ranks).backward()
    gradients = drivers.plain_gradients(model)
    norm = torch.cat([gradient.flatten() for gradient in gradients.values() if gradient is not None]).norm().item()
    max_norms = [norm / 3, norm * 2]
    results = lab.on_ranks(ranks).run(drivers.clip, max_norms, per_rank=batches)
    for rank, result in enumerate(results):
        for max_norm, got in zip(max_norms, result.value, strict=True):
            story = f"rank {rank} of {ranks}, clipped to {max_norm:.4f}"
            assert math.isclose(got["norm"], norm, rel_tol=1e-5), (
                f"{story}: the norm of the whole gradient is {norm:.6f}, got {got['norm']:.6f}. Squares of shards add "
                "up over the ranks; parameters that every rank has count once."
            )
            factor = min(1.0, max_norm / (norm + 1e-6))
            expected = {name: None if g is None else factor * g for name, g in gradients.items()}
            assert_state(got["gradients"], expected, f"{story}: all gradients times {factor:.4f}")
            assert got["sent"] <= 8, f"{story}: one number has to be agreed on, {got['sent']} bytes were sent"


@exercise("2.3", "clip_grad_norm", points=2)
def test_ranks_without_a_row_clip_too(lab):
    ranks, cases = 4, [(2, 1.0, None), (5, 1.0, None), (5, 1.0, [[0, 3], [1, 2]])]
    for rank, result in enumerate(lab.on_ranks(ranks).run(drivers.each, drivers.clip_rows, cases)):
        for (rows, _, groups), (got_norm, got) in zip(cases, result.value, strict=True):
            gradient = [row + 3.0 for row in range(rows)]
            norm = math.hypot(*gradient)
            expected = [value / (norm + 1e-6) for value in gradient]
            assert math.isclose(got_norm, norm, rel_tol=1e-5), (
                f"rank {rank} of {ranks}, groups {groups}: the norm of {gradient} over the ranks that share it is "
                f"{norm}, got {got_norm}"
            )
            assert got == pytest.approx(expected, rel=1e-5), (
                f"rank {rank} of {ranks}: {gradient} clipped to norm 1 is {expected}, got {got}. Each rank clipped by "
                "the norm of its own rows would give every rank's rows the norm 1."
            )


@exercise("2.3", "clip_grad_norm", points=1)
def test_clip_without_gradients_or_without_shards(lab):
    for rank, result in enumerate(lab.on_ranks(2).run(drivers.clip_without_gradients)):
        assert result.value == [0.0, 5.0], (
            f"rank {rank}: no gradient has the norm 0, a plain one of 3 and 4 has 5: got {result.value}"
        )


# --- Saving and loading -----------------------------------------------------------------------------------------------


@exercise("2.3", "full_state_dict", points=4)
@pytest.mark.parametrize("ranks", [1, 5])
def test_rank_0_gets_the_whole_state(lab, ranks):
    expected = drivers.Network(seed=3).state_dict()
    cases = [(torch.zeros(1, 2, dtype=torch.int64), groups) for groups in groupings(ranks)]
    results = lab.on_ranks(ranks).run(drivers.each, drivers.save_full, cases)
    for index, groups in enumerate(groupings(ranks)):
        for group in groups or [range(ranks)]:
            first, *others = (results[rank].value[index] for rank in group)
            story = f"ranks {list(group)}"
            assert first["names"] == list(expected), (
                f"{story}: the first gets the names of before sharding: {list(expected)}, got {first['names']}"
            )
            assert first["plain"], f"{story}: plain tensors on the CPU: the file is to load where nothing is sharded"
            for name, tensor in expected.items():
                got = first["state"][name]
                assert got.dtype == tensor.dtype and torch.equal(got, tensor), (
                    f"{story}: {name} is not what it was when it was saved (the shards were changed afterwards): "
                    f"expected {tensor.tolist()}, got {got.tolist()} in {got.dtype}"
                )
            assert first["tied"], "embedding and head are one parameter, and should be one tensor in the state"
            names_of_others = [value["names"] for value in others]
            assert not any(names_of_others), (
                f"{story}: only the first needs a state, the others {{}}: {names_of_others}"
            )
            for value in (first, *others):
                biggest = 4 * len(group) * chunk_numel(expected["embedding.weight"], len(group))
                assert value["largest"] <= biggest, (
                    f"{story}: {value['largest']} bytes in one call, the largest parameter has {biggest}: one "
                    "parameter at a time, the model need not fit on a device"
                )
                assert value["gathers"] <= len(names()), (
                    f"{story}: {len(names())} parameters, tied ones counted once, need a gather each: there were "
                    f"{value['gathers']} calls"
                )


def groupings(ranks: int) -> list[list[list[int]] | None]:
    """All ranks in one group; of five also two groups, of which the first rank is not the first of all."""
    return [None, [[0, 3], [1, 2, 4]]] if ranks == 5 else [None]


@exercise("2.3", "load_full_state_dict", points=3)
@pytest.mark.parametrize("ranks", [1, 5])
def test_rank_0_gives_the_state_to_all(lab, ranks):
    full = drivers.Network(seed=3).state_dict() | {"steps": torch.full((1,), 2**40 + 1)}
    parameters = {name: full[name] for name in names()}
    cases = [(full, groups) for groups in groupings(ranks)]
    for rank, result in enumerate(lab.on_ranks(ranks).run(drivers.each, drivers.load_full, cases)):
        for groups, value in zip(groupings(ranks), result.value, strict=True):
            story = f"rank {rank} of {ranks}, groups {groups}"
            for name, tensor in (parameters | {"steps": full["steps"]}).items():
                got = value["loaded"][name]
                assert torch.equal(got, tensor), (
                    f"{story}: {name} is {got.tolist()} after loading what the first rank of the group has, "
                    f"expected {tensor.tolist()}"
                )
            for name, tensor in parameters.items():
                assert torch.equal(value["stepped"][name], tensor - 1), (
                    f"{story}: an optimiser made before loading steps the loaded {name}: load in place"
                )


@exercise("2.3", "load_full_state_dict", points=2)
def test_a_state_that_does_not_fit_is_refused_everywhere(lab):
    full = drivers.Network(seed=3).state_dict()
    lacking = {name: tensor for name, tensor in full.items() if name != "again.linear.bias"}
    states = [
        lacking,
        full | {"extra.weight": torch.ones(2)},
        full | {"scale": torch.ones(7)},
        full | {"scale": 3},
        None,
    ]
    named = ("again.linear.bias", "extra.weight", "scale", "scale", "NoneType", "DTensor")
    for rank, result in enumerate(lab.on_ranks(3).run(drivers.load_bad, states)):
        for name, got in zip(named, result.value, strict=True):
            assert name in got["message"], (
                f"rank {rank}: only rank 0 can see that {name} does not fit, all must raise a ValueError that names it "
                f"and go on together: got {got['message'] or 'none'!r}"
            )
            assert got["kept"], f"rank {rank}: {name} does not fit, and the model was changed all the same"


@exercise("2.3", "ShardedLayer.shard", points=3)
@pytest.mark.parametrize(("saved_on", "loaded_on"), [(2, 4), (3, 2)])
def test_a_distributed_checkpoint_loads_on_other_ranks(lab, seed, tmp_path, saved_on, loaded_on):
    generator = torch.Generator().manual_seed(seed)
    batches = list(torch.randint(drivers.VOCAB, (4, 2, 5), generator=generator))
    folder = str(tmp_path / "checkpoint")
    unbroken = lab.on_ranks(saved_on).run(drivers.save_distributed, batches, folder)[0].value
    for rank, result in enumerate(lab.on_ranks(loaded_on).run(drivers.load_distributed, batches, folder)):
        assert result.value == pytest.approx(unbroken, rel=1e-6), (
            f"rank {rank}: saved by {saved_on} ranks with torch.distributed.checkpoint, loaded by {loaded_on}: losses "
            f"went on as {result.value}, unbroken they are {unbroken}"
        )


# --- Bad input --------------------------------------------------------------------------------------------------------


@exercise("2.3", "shard_module", points=3)
def test_bad_input_is_refused_before_anything_is_sent(lab):
    for rank, result in enumerate(lab.on_ranks(2).run(drivers.refusals)):
        for name, message in result.value.items():
            assert message, f"rank {rank}: {name} must raise a ValueError that says what was given and what is allowed"
        given = {"negative prefetch": "-1", "a dtype of integers": "int64", "the name of a dtype": "bf16"}
        if rank == 1:
            given["foreign group"] = "1"
        for name, part in given.items():
            assert part in result.value[name], f"rank {rank}, {name}: the message names {part}: {result.value[name]!r}"
