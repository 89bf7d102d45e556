"""Graded tests of lesson 3.1.

Right numbers alone do not earn the points: ranks that gather the weights, or that all compute the dense layer, have
them too. What is graded is what a rank holds (an N-th), what travels (two sums per block and direction, and nothing
else), and that outputs and gradients are those of the dense layer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import drivers_tensor_parallel as drivers
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from shardlab.grade import exercise
from shardlab.models import TransformerConfig, build
from shardlab.observe import Traffic

FLOAT64, FLOAT32 = 1e-11, 1e-5  # allowed errors, of the largest element


def random(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def assert_close(got: Tensor | None, expected: Tensor, what: str, tolerance: float = FLOAT64) -> None:
    """Within `tolerance` of the largest element; long tensors are shown in part."""
    assert got is not None, f"{what}: expected a tensor of shape {list(expected.shape)}, there is none"
    assert got.shape == expected.shape, f"{what}: expected shape {list(expected.shape)}, got {list(got.shape)}"
    error = (got - expected).abs().max().item() if got.numel() else 0.0
    largest = expected.abs().max().item() if got.numel() else 0.0
    assert error <= tolerance * max(largest, 1e-6), (
        f"{what}: off by {error:.2e}, the largest element is {largest:.2e}\n"
        f"expected {expected.flatten()[:8].tolist()}\ngot      {got.flatten()[:8].tolist()}"
    )


def block(full: Tensor, dim: int, rank: int, ranks: int, replicas: int = 1) -> Tensor:
    """What rank `rank` holds of `full`."""
    return full.chunk(ranks // replicas, dim)[rank // replicas]


def calls_of(data: list[dict]) -> list[tuple[str, int, int]]:
    """Operation, payload in bytes and number of ranks of each call."""
    return [(call.op, call.payload_bytes, len(call.ranks)) for call in Traffic.from_data(data).calls]


def assert_calls(data: list[dict], expected: list[tuple[str, int, int]], what: str) -> None:
    found = calls_of(data)
    assert found == expected, (
        f"{what}: expected the calls (operation, bytes of payload, ranks) {expected or 'none'}, got {found or 'none'}"
    )


# --- Primitives -------------------------------------------------------------------------------------------------------


@exercise("3.1", "own_block", points=1)
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_own_block(lab, seed, ranks):
    tensor = random(seed, 3 * ranks, 2, ranks)
    cases = [(0, 1), (2, 1), (-1, 1), (0, ranks), (0, 2 if ranks == 4 else 1)]
    results = lab.on_ranks(ranks).run(drivers.blocks, tensor, cases)
    for rank, result in enumerate(results):
        for (dim, replicas), got in zip(cases, result.value, strict=True):
            assert_close(
                got,
                block(tensor, dim, rank, ranks, replicas),
                f"rank {rank} of {ranks}, dim {dim}, {replicas} replicas. Blocks are in rank order; replicas are "
                "neighbours",
            )
        assert not result.traffic.calls, "every rank has the whole tensor: nothing has to be sent to cut it"


@exercise("3.1", "own_block", points=1)
@pytest.mark.parametrize("ranks", [4])
def test_what_cannot_be_cut_equally_is_refused(lab, ranks):
    cases = [((2 * ranks + 1, ranks), 0, 1), ((ranks, 1), 1, 1), ((ranks - 1,), 0, 1), ((12, 12), 0, 3)]
    for rank, result in enumerate(lab.on_ranks(ranks).run(drivers.refused_blocks, cases)):
        for (shape, dim, replicas), (message, calls) in zip(cases, result.value, strict=True):
            assert message and not calls, (
                f"rank {rank} of {ranks}: shape {list(shape)}, dim {dim}, {replicas} replicas has no equal blocks: "
                "ValueError on every rank. Tensor.chunk would give the last rank less, or nothing"
            )


def held_by(seed: int, ranks: int) -> list[list[Tensor]]:
    """Two matrices of each rank."""
    return [[random(seed + rank, 3, 5), random(seed + 9 + rank, 1, 2, 4)] for rank in range(ranks)]


@exercise("3.1", "all_reduce", points=1)
@pytest.mark.parametrize("ranks", [1, 3])
def test_all_reduce_gives_a_new_tensor(lab, seed, ranks):
    own = held_by(seed, ranks)
    results = lab.on_ranks(ranks).run(drivers.combine, "all_reduce", [{}, {}], per_rank=own)
    for rank, result in enumerate(results):
        for case, got in enumerate(result.value):
            given = [of[case // 2].mT if case % 2 else of[case // 2] for of in own]
            what = f"rank {rank} of {ranks}, a tensor of shape {list(given[0].shape)}, {'transposed' * (case % 2)}"
            assert_close(got["result"], sum(given), what)
            assert_close(got["input"], given[rank], f"{what}: the tensor handed over must stay as it is")
            assert_calls(
                got["traffic"], [("all_reduce", given[0].nbytes, ranks)] if ranks > 1 else [], f"{what}: one call"
            )


@exercise("3.1", "all_gather", points=1)
@pytest.mark.parametrize("ranks", [1, 3])
def test_all_gather_along_any_dimension(lab, seed, ranks):
    own, dims = [2 * held for held in held_by(seed, ranks)], (0, 1, -1, -2)
    results = lab.on_ranks(ranks).run(drivers.combine, "all_gather", [{"dim": dim} for dim in dims], per_rank=own)
    for rank, result in enumerate(results):
        for case, got in enumerate(result.value):
            given = [of[case // 2].mT if case % 2 else of[case // 2] for of in own]
            what = f"rank {rank} of {ranks}, shape {list(given[0].shape)}, dim {dims[case // 2]}"
            assert_close(got["result"], torch.cat(given, dims[case // 2]), what)
            full = given[0].nbytes * ranks
            assert_calls(got["traffic"], [("all_gather", full, ranks)] if ranks > 1 else [], f"{what}: one call")


# --- Four functions and their mirrors ---------------------------------------------------------------------------------


def mirrored(lab, seed: int, ranks: int, name: str, options: list[dict], shapes: list[tuple]) -> Any:
    """Inputs and upstream gradients of all ranks, and what came back. ``shapes``: of x and of the output."""
    own = [
        [(random(seed + 7 * rank, *of_x), random(seed + 7 * rank + 3, *of_y)) for of_x, of_y in shapes]
        for rank in range(ranks)
    ]
    if name == "scatter_to_ranks":  # x is the same everywhere
        own = [[(own[0][case][0], upstream) for case, (_, upstream) in enumerate(of_rank)] for of_rank in own]
    results = lab.on_ranks(ranks).run(drivers.mirror, name, options, per_rank=own)
    for rank, result in enumerate(results):
        for (x, upstream), got in zip(own[rank], result.value, strict=True):
            assert_close(got["x"], x, f"rank {rank}: {name} must leave x as it is")
            assert_close(got["upstream"], upstream, f"rank {rank}: {name} must leave the gradient it gets as it is")
    return own, results


@exercise("3.1", "copy_to_ranks", points=2)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_copy_is_the_identity_and_sums_gradients(lab, seed, ranks):
    shape = (5, 3)
    own, results = mirrored(lab, seed, ranks, "copy_to_ranks", [{}], [(shape, shape)])
    total = sum(of_rank[0][1] for of_rank in own)
    for rank, result in enumerate(results):
        got = result.value[0]
        assert_close(got["output"], own[rank][0][0], f"rank {rank}: in forward nothing happens")
        assert_calls(got["forward"], [], f"rank {rank}, forward")
        assert_close(
            got["gradient"],
            total,
            f"rank {rank} of {ranks}: each rank's part of the layer gives a part of the gradient of x, backward sums "
            "them",
        )
        expected = [("all_reduce", total.nbytes, ranks)] if ranks > 1 else []
        assert_calls(got["backward"], expected, f"rank {rank}, backward")


@exercise("3.1", "reduce_from_ranks", points=2)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_reduce_sums_and_leaves_gradients(lab, seed, ranks):
    shape = (5, 3)
    own, results = mirrored(lab, seed, ranks, "reduce_from_ranks", [{}], [(shape, shape)])
    total = sum(of_rank[0][0] for of_rank in own)
    for rank, result in enumerate(results):
        got = result.value[0]
        assert_close(got["output"], total, f"rank {rank} of {ranks}: forward sums over the ranks")
        expected = [("all_reduce", total.nbytes, ranks)] if ranks > 1 else []
        assert_calls(got["forward"], expected, f"rank {rank}, forward")
        assert_close(
            got["gradient"],
            own[rank][0][1],
            f"rank {rank} of {ranks}: all ranks get the same gradient of the sum, and each passes its own on. Summed "
            f"again it would be {ranks} times too large",
        )
        assert_calls(got["backward"], [], f"rank {rank}, backward")


@exercise("3.1", "gather_from_ranks", points=2)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_gather_joins_and_its_gradient_is_cut(lab, seed, ranks):
    options, shapes = [{}, {"dim": 0}, {"dim": 1}], []
    for dim in (-1, 0, 1):
        shape = [2, 3, 5]
        shape[dim] *= ranks
        shapes.append(((2, 3, 5), tuple(shape)))
    own, results = mirrored(lab, seed, ranks, "gather_from_ranks", options, shapes)
    for rank, result in enumerate(results):
        for case, (option, got) in enumerate(zip(options, result.value, strict=True)):
            dim = option.get("dim", -1)
            full = torch.cat([of_rank[case][0] for of_rank in own], dim)
            assert_close(got["output"], full, f"rank {rank} of {ranks}, {option}: the blocks in rank order")
            expected = [("all_gather", full.nbytes, ranks)] if ranks > 1 else []
            assert_calls(got["forward"], expected, f"rank {rank}, forward")
            upstream = own[rank][case][1]
            what = f"rank {rank} of {ranks}, {option}: its own block of its own upstream gradient"
            assert_close(got["gradient"], block(upstream, dim, rank, ranks), what)
            assert_calls(got["backward"], [], f"rank {rank}, backward")


@exercise("3.1", "scatter_to_ranks", points=2)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_scatter_cuts_and_its_gradient_is_joined(lab, seed, ranks):
    options, shapes = [{}, {"dim": 0}, {"dim": 1}], []
    for dim in (-1, 0, 1):
        shape = [2, 3, 5]
        shape[dim] *= ranks
        shapes.append((tuple(shape), (2, 3, 5)))
    own, results = mirrored(lab, seed, ranks, "scatter_to_ranks", options, shapes)
    for rank, result in enumerate(results):
        for case, (option, got) in enumerate(zip(options, result.value, strict=True)):
            dim = option.get("dim", -1)
            x = own[rank][case][0]
            assert_close(got["output"], block(x, dim, rank, ranks), f"rank {rank} of {ranks}, {option}: its block")
            assert_calls(got["forward"], [], f"rank {rank}, forward")
            joined = torch.cat([of_rank[case][1] for of_rank in own], dim)
            assert_close(got["gradient"], joined, f"rank {rank} of {ranks}, {option}: the gradients of all blocks")
            expected = [("all_gather", x.nbytes, ranks)] if ranks > 1 else []
            assert_calls(got["backward"], expected, f"rank {rank}, backward")


# --- Linear layers ----------------------------------------------------------------------------------------------------


def dense_linear(x: Tensor, weight: Tensor, bias: Tensor | None, upstream: Tensor) -> dict[str, Tensor]:
    """Output and gradients of the dense layer."""
    leaves = [tensor.clone().requires_grad_() for tensor in (x, weight, *([] if bias is None else [bias]))]
    output = F.linear(*leaves)
    output.backward(upstream)
    names = ("x", "weight", "bias")
    return {"output": output.detach()} | {name: leaf.grad for name, leaf in zip(names, leaves, strict=False)}


def assert_parameters(got: dict, expected: dict[str, Tensor], what: str, tolerance: float = FLOAT64) -> None:
    """The layer holds these parameters, as memory of its own, and no others."""
    assert got["parameters"].keys() == expected.keys(), (
        f"{what}: parameters {list(got['parameters'])}, the dense layer has {list(expected)}"
    )
    for name, tensor in expected.items():
        assert_close(got["parameters"][name], tensor, f"{what}: {name}, this rank's block of the dense one", tolerance)
    own = sum(tensor.nbytes for tensor in expected.values())
    assert got["parameter_bytes"] == own, (
        f"{what}: parameters of {own} bytes sit in {got['parameter_bytes']} bytes of memory. A view keeps the whole "
        "dense parameter: clone the block"
    )
    assert got["held"] <= own + got["working"], (
        f"{what}: {got['held']} bytes took part in forward, besides activations. The rank's blocks of parameters "
        f"have {own}, inputs and outputs {got['working']} at most: does each rank compute with the whole layer?"
    )


def summed_over_replicas(parts: list[Tensor], rank: int, replicas: int) -> Tensor:
    first = rank // replicas * replicas
    return sum(parts[first : first + replicas])


COLUMN_CASES = [{}, {"bias": False, "copy_input": False}, {"gather_output": True, "frozen": True}]


@exercise("3.1", "ColumnParallelLinear", points=3)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_column_parallel(lab, seed, ranks):
    inputs, outputs = 23, 12 * ranks
    weight, bias, x = random(seed, outputs, inputs), random(seed + 1, outputs), random(seed + 2, 2, inputs)
    upstream = random(seed + 3, 2, outputs)
    own = [
        [(x, upstream if case.get("gather_output") else block(upstream, -1, rank, ranks)) for case in COLUMN_CASES]
        for rank in range(ranks)
    ]
    arguments = ("ColumnParallelLinear", weight, bias, COLUMN_CASES)
    results = lab.on_ranks(ranks).run(drivers.linear_layers, *arguments, per_rank=own)
    for rank, result in enumerate(results):
        for case, got in zip(COLUMN_CASES, result.value, strict=True):
            what = f"rank {rank} of {ranks}, {case or 'defaults'}"
            has_bias, frozen = case.get("bias", True), case.get("frozen", False)
            full = dense_linear(x, weight, bias if has_bias else None, upstream)
            parameters = {"weight": weight} | ({"bias": bias} if has_bias else {})
            cut = {name: block(tensor, 0, rank, ranks) for name, tensor in parameters.items()}
            assert_parameters(got, cut, what)
            assert got["frozen"] == (["weight"] if frozen else []), f"{what}: a frozen parameter stays frozen"
            gathered = case.get("gather_output", False)
            output = full["output"] if gathered else block(full["output"], -1, rank, ranks)
            assert_close(got["output"], output, f"{what}: output")
            for name in parameters:
                if not (frozen and name == "weight"):
                    two_runs = 2 * block(full[name], 0, rank, ranks)
                    assert_close(got["gradients"].get(name), two_runs, f"{what}: {name}.grad after two backwards")
            if case.get("copy_input", True):
                assert_close(got["gradient"], full["x"], f"{what}: the gradient of x is the sum over the ranks")
                backward = [("all_reduce", x.nbytes, ranks)]
            else:
                part = block(upstream, -1, rank, ranks) @ cut["weight"]
                assert_close(got["gradient"], part, f"{what}: without the copy, this rank's part of the gradient of x")
                backward = []
            forward = [("all_gather", full["output"].nbytes, ranks)] if gathered else []
            assert_calls(got["forward"], forward if ranks > 1 else [], f"{what}, forward")
            assert_calls(got["backward"], backward if ranks > 1 else [], f"{what}, backward")


@exercise("3.1", "ColumnParallelLinear", points=2)
@pytest.mark.parametrize(("ranks", "replicas"), [(2, 2), (4, 2), (3, 3)])
def test_replicas_of_a_block_sum_their_gradients(lab, seed, ranks, replicas):
    inputs, outputs = 11, 10 * (ranks // replicas)
    weight, bias, x = random(seed, outputs, inputs), random(seed + 1, outputs), random(seed + 2, 2, inputs)
    upstream = [random(seed + 3 + rank, 2, 10) for rank in range(ranks)]  # every replica uses its output in another way
    own = [[(x, of_rank)] for of_rank in upstream]
    arguments = ("ColumnParallelLinear", weight, bias, [{"replicas": replicas}])
    results = lab.on_ranks(ranks).run(drivers.linear_layers, *arguments, per_rank=own)
    blocks = [[block(tensor, 0, rank, ranks, replicas) for tensor in (weight, bias)] for rank in range(ranks)]
    parts = [dense_linear(x, *blocks[rank], upstream[rank]) for rank in range(ranks)]
    for rank, result in enumerate(results):
        got, what = result.value[0], f"rank {rank} of {ranks}, {replicas} replicas"
        assert_parameters(got, dict(zip(("weight", "bias"), blocks[rank], strict=True)), what)
        assert_close(got["output"], parts[rank]["output"], f"{what}: output")
        assert_close(got["gradient"], sum(part["x"] for part in parts), f"{what}: gradient of x, summed over all ranks")
        for name in ("weight", "bias"):
            expected = 2 * summed_over_replicas([part[name] for part in parts], rank, replicas)
            assert_close(
                got["gradients"].get(name),
                expected,
                f"{what}: {name}.grad after two backwards. The same block on {replicas} ranks, each using it for "
                "something else: the gradient is the sum over them, each backward's once",
            )
        beside = [call for call in calls_of(got["backward"]) if call[1] != x.nbytes]
        expected_calls = sorted(("all_reduce", tensor.nbytes, replicas) for tensor in blocks[rank])
        assert sorted(beside) == expected_calls, (
            f"{what}: besides the gradient of x backward sums those of weight and bias, among the replicas alone: "
            f"{expected_calls}, got {beside}"
        )


ROW_CASES = [{}, {"bias": False}, {"scatter_input": True}]


@exercise("3.1", "RowParallelLinear", points=4)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_row_parallel(lab, seed, ranks):
    inputs, outputs = 12 * ranks, 23
    weight, bias, x = random(seed, outputs, inputs), random(seed + 1, outputs), random(seed + 2, 2, inputs)
    upstream = random(seed + 3, 2, outputs)
    own = [
        [(x if case.get("scatter_input") else block(x, -1, rank, ranks), upstream) for case in ROW_CASES]
        for rank in range(ranks)
    ]
    arguments = ("RowParallelLinear", weight, bias, ROW_CASES)
    results = lab.on_ranks(ranks).run(drivers.linear_layers, *arguments, per_rank=own)
    for rank, result in enumerate(results):
        for case, got in zip(ROW_CASES, result.value, strict=True):
            what = f"rank {rank} of {ranks}, {case or 'defaults'}"
            has_bias, scattered = case.get("bias", True), case.get("scatter_input", False)
            full = dense_linear(x, weight, bias if has_bias else None, upstream)
            cut = {"weight": block(weight, 1, rank, ranks)} | ({"bias": bias} if has_bias else {})
            assert_parameters(got, cut, what)
            if has_bias:
                surplus = (got["output"] - full["output"]) / bias
                assert not (ranks > 1 and torch.allclose(surplus, torch.full_like(surplus, ranks - 1.0))), (
                    f"{what}: the output holds the bias {ranks} times. Each rank added it before the sum: add it after"
                )
            assert_close(got["output"], full["output"], f"{what}: output, the same on every rank")
            assert_close(
                got["gradients"].get("weight"), 2 * block(full["weight"], 1, rank, ranks), f"{what}: weight.grad"
            )
            if has_bias:
                assert_close(
                    got["gradients"].get("bias"), 2 * full["bias"], f"{what}: bias.grad, the same on every rank"
                )
            of_x = full["x"] if scattered else block(full["x"], -1, rank, ranks)
            assert_close(got["gradient"], of_x, f"{what}: the gradient of x")
            forward = [("all_reduce", upstream.nbytes, ranks)] if ranks > 1 else []
            backward = [("all_gather", x.nbytes, ranks)] if scattered and ranks > 1 else []
            assert_calls(got["forward"], forward, f"{what}, forward")
            assert_calls(got["backward"], backward, f"{what}, backward")


def refuses(lab, ranks: int, cases: list[tuple[str, int, int, dict]]) -> None:
    for rank, result in enumerate(lab.on_ranks(ranks).run(drivers.refused_layers, cases)):
        for (name, first, second, options), (message, calls) in zip(cases, result.value, strict=True):
            assert message and not calls, (
                f"rank {rank} of {ranks}: {name} of a dense layer ({first}, {second}), {options} has no equal blocks: "
                f"ValueError on every rank, before anything is sent; got {message or 'no error'!r}, {calls} calls"
            )


@exercise("3.1", "ColumnParallelLinear", points=1)
def test_output_features_that_cannot_be_cut(lab):
    refuses(lab, 3, [("ColumnParallelLinear", 3, 4, {}), ("ColumnParallelLinear", 6, 6, {"replicas": 2})])


@exercise("3.1", "RowParallelLinear", points=1)
def test_input_features_that_cannot_be_cut(lab):
    refuses(lab, 3, [("RowParallelLinear", 4, 3, {}), ("RowParallelLinear", 1, 3, {"scatter_input": True})])


@exercise("3.1", "VocabParallelEmbedding", points=1)
def test_a_vocabulary_that_cannot_be_cut(lab):
    refuses(lab, 3, [("VocabParallelEmbedding", 10, 3, {}), ("VocabParallelEmbedding", 2, 3, {})])


# --- Embedding --------------------------------------------------------------------------------------------------------


@exercise("3.1", "VocabParallelEmbedding", points=3)
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_embedding(lab, seed, ranks):
    vocab, hidden = 12, 40
    weight = random(seed, vocab, hidden)
    tokens = torch.cat([torch.arange(vocab), torch.tensor([0, 0, vocab - 1, vocab // 2])]).view(2, -1)
    upstream = random(seed + 1, *tokens.shape, hidden)
    full = weight.clone().requires_grad_()
    output = F.embedding(tokens, full)
    output.backward(upstream)
    for rank, result in enumerate(lab.on_ranks(ranks).run(drivers.embedding, weight, tokens, upstream)):
        got, what = result.value, f"rank {rank} of {ranks}"
        cut = block(weight, 0, rank, ranks)
        assert got["parameters"].keys() == {"weight"}, f"{what}: parameters {list(got['parameters'])}"
        assert_close(got["parameters"]["weight"], cut, f"{what}: weight, this rank's rows")
        assert got["parameter_bytes"] == cut.nbytes, (
            f"{what}: {got['parameter_bytes']} bytes of memory for rows of {cut.nbytes}: a view keeps the whole table"
        )
        assert_close(got["output"], output.detach(), f"{what}: output, the same on every rank")
        expected = 2 * block(full.grad, 0, rank, ranks)
        assert_close(
            got["gradients"].get("weight"),
            expected,
            f"{what}: weight.grad. Tokens of other ranks looked up some row of yours in their place: it gets no "
            "gradient from them",
        )
        assert_calls(got["forward"], [("all_reduce", upstream.nbytes, ranks)] if ranks > 1 else [], f"{what}, forward")
        assert_calls(got["backward"], [], f"{what}, backward")


# --- Loss -------------------------------------------------------------------------------------------------------------


def logits_and_targets(seed: int, vocab: int, case: dict) -> tuple[Tensor, Tensor]:
    """[3, 5, vocab] with one row of targets that counts nowhere and some single ones."""
    scale, dtype, ignored = case.get("scale", 3.0), case.get("dtype", torch.float64), case.get("ignore_index", -100)
    logits = (scale * random(seed, 3, 5, vocab)).to(dtype)
    targets = torch.randint(vocab, (3, 5), generator=torch.Generator().manual_seed(seed + 1))
    targets[0, :2] = torch.tensor([0, vocab - 1])
    targets[1] = ignored
    targets[2, 3] = ignored
    if case.get("all_ignored"):
        targets[:] = ignored
    return logits, targets


LOSS_CASES = [
    {},
    {"label_smoothing": 0.1},
    {"label_smoothing": 1.0, "ignore_index": 2, "factor": -3.0},
    {"scale": 1e4},
    {"all_ignored": True, "label_smoothing": 0.1},
    {"dtype": torch.bfloat16, "label_smoothing": 0.2},
]
ONLY_IN_THE_TEST = ("scale", "dtype", "all_ignored")


def dense_loss(logits: Tensor, targets: Tensor, case: dict) -> tuple[Tensor, Tensor]:
    """Loss and gradient of all logits, in one process."""
    leaf = logits.clone().requires_grad_()
    options = {name: value for name, value in case.items() if name not in (*ONLY_IN_THE_TEST, "factor")}
    total = F.cross_entropy(
        leaf.to(torch.promote_types(leaf.dtype, torch.float32)).flatten(0, 1),
        targets.flatten(),
        reduction="sum",
        **options,
    )
    loss = total / (targets != case.get("ignore_index", -100)).sum().clamp(min=1)
    (case.get("factor", 1.0) * loss).backward()
    return loss.detach(), leaf.grad


def run_losses(lab, ranks: int, inputs: list[tuple[Tensor, Tensor]], cases: list[dict]) -> Any:
    own = [[block(logits, -1, rank, ranks).contiguous() for logits, _ in inputs] for rank in range(ranks)]
    options = [{name: value for name, value in case.items() if name not in ONLY_IN_THE_TEST} for case in cases]
    targets = [target for _, target in inputs]
    return own, lab.on_ranks(ranks).run(drivers.losses, targets, options, per_rank=own)


@exercise("3.1", "vocab_parallel_cross_entropy", points=6)
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_loss_and_gradient(lab, seed, ranks):
    vocab = 12
    inputs = [logits_and_targets(seed + index, vocab, case) for index, case in enumerate(LOSS_CASES)]
    own, results = run_losses(lab, ranks, inputs, LOSS_CASES)
    for index, (case, (logits, targets)) in enumerate(zip(LOSS_CASES, inputs, strict=True)):
        loss, gradient = dense_loss(logits, targets, case)
        narrow = logits.dtype == torch.bfloat16
        for rank, result in enumerate(results):
            got, what = result.value[index], f"rank {rank} of {ranks}, {case or 'defaults'}"
            assert got["loss"].dtype == loss.dtype, f"{what}: dtype {loss.dtype} expected, got {got['loss'].dtype}"
            assert_close(
                got["loss"],
                loss,
                f"{what}: the mean over the valid targets; 0 where there are none",
                1e-6 if narrow else FLOAT64,
            )
            assert_close(
                got["gradient"].double(),
                block(gradient, -1, rank, ranks).double(),
                f"{what}: gradient of this rank's logits. Targets that are ignored have none",
                1e-2 if narrow else FLOAT64,
            )
            assert torch.equal(got["logits"], own[rank][index]), f"{what}: the logits must stay as they are"


@exercise("3.1", "vocab_parallel_cross_entropy", points=4)
@pytest.mark.parametrize("ranks", [1, 4])
def test_traffic_of_the_loss_does_not_depend_on_the_vocabulary(lab, seed, ranks):
    tokens, cases = 15, [{}, {"label_smoothing": 0.1}] * 2
    vocabs = [8, 8, 64, 64]
    inputs = [logits_and_targets(seed, vocab, {"dtype": torch.float32}) for vocab in vocabs]
    _, results = run_losses(lab, ranks, inputs, cases)
    for rank, result in enumerate(results):
        for vocab, case, got in zip(vocabs, cases, result.value, strict=True):
            numbers = 4 if case else 3
            calls = calls_of(got["forward"])
            what = f"rank {rank} of {ranks}, vocabulary {vocab}, {tokens} tokens, {case or 'no smoothing'}"
            assert sum(size for _, size, _ in calls) == (4 * numbers * tokens if ranks > 1 else 0), (
                f"{what}: {numbers} float32 numbers per token travel (largest logit, sum of exponentials, the target's "
                f"logit{', sum of logits' if case else ''}), got the calls {calls}. The logits themselves never do"
            )
            assert [op for op, _, _ in calls] == ["all_reduce"] * (2 if ranks > 1 else 0), (
                f"{what}: one all-reduce of maxima, one of all sums: got {calls}"
            )
            assert_calls(got["backward"], [], f"{what}: a rank knows its part of the gradient. Backward")


# --- Random numbers ---------------------------------------------------------------------------------------------------


@exercise("3.1", "RandomStreams.fork", points=3)
def test_one_stream_for_all_ranks_and_one_for_each(lab, seed):
    alone = lab.on_ranks(1).run(drivers.draws, seed)[0].value
    results = lab.on_ranks(3).run(drivers.draws, seed)
    undisturbed = lab.on_ranks(3).run(drivers.global_draws)
    for rank, result in enumerate(results):
        got = result.value
        for name in ("replicated", "after an error"):
            assert all(map(torch.equal, got[name], alone[name])), (
                f"rank {rank} of 3: the replicated stream ({name}) must give the numbers that one rank alone draws. It "
                "goes on where its last block ended, whatever the other streams did in between, and after an error too"
            )
        assert all(map(torch.equal, got["global"], undisturbed[rank].value)), (
            f"rank {rank}: the global stream must go on as if nothing had been drawn: put its state back"
        )
    drawn = [number for result in results for number in torch.cat(result.value["sharded"]).tolist()]
    assert len(set(drawn)) == len(drawn), "the sharded stream gives every rank other numbers, and none twice"
    replicated = torch.cat(results[0].value["replicated"]).tolist()
    assert len(set(replicated)) == len(replicated), "the replicated stream goes on: no number comes twice"


@exercise("3.1", "RandomStreams.fork", points=1)
def test_streams_repeat_with_their_seed(lab, seed):
    first, again, other = (lab.on_ranks(2).run(drivers.draws, of) for of in (seed, seed, seed + 1))
    for rank in range(2):
        for name in ("replicated", "sharded"):
            numbers = [torch.cat(run[rank].value[name]) for run in (first, again, other)]
            assert torch.equal(numbers[0], numbers[1]), f"rank {rank}: the {name} stream must repeat with its seed"
            assert not torch.equal(numbers[0], numbers[2]), f"rank {rank}: another seed, another {name} stream"


@exercise("3.1", "ParallelDropout", points=3)
def test_masks_are_equal_where_replicated_and_different_where_sharded(lab, seed):
    p, numel = 0.3, 400
    alone = lab.on_ranks(1).run(drivers.dropouts, seed, p, numel)[0].value
    results = lab.on_ranks(3).run(drivers.dropouts, seed, p, numel)
    for rank, result in enumerate(results):
        got = result.value
        assert all(got["evaluation"]), f"rank {rank}: in evaluation dropout changes nothing"
        assert all(got["gradients"]), f"rank {rank}: the gradient has the mask of the output"
        for mask in (*got["replicated"], *got["sharded"]):
            kept = (mask > 0).double().mean().item()
            assert abs(kept - (1 - p)) < 0.15, f"rank {rank}: p is {p}, {kept:.0%} of the elements are kept"
            assert torch.all((mask == 0) | ((mask - 1 / (1 - p)).abs() < 1e-6)), "what is kept is divided by 1 - p"
        assert all(map(torch.equal, got["replicated"], alone["replicated"])), (
            f"rank {rank} of 3: where every rank holds the whole activation all drop the same elements, whatever the "
            "number of ranks"
        )
        assert not torch.equal(*got["replicated"]), f"rank {rank}: the second call must draw another mask"
        for other in range(rank):
            for mine, theirs in zip(got["sharded"], results[other].value["sharded"], strict=True):
                assert not torch.equal(mine, theirs), (
                    f"ranks {other} and {rank} drop the same elements of their blocks: these are other activations, "
                    "they need other masks"
                )
    assert torch.equal(alone["global"], results[0].value["global"]), "the global stream must not move"


# --- Attention and MLP ------------------------------------------------------------------------------------------------


def config_of(heads: int = 4, kv_heads: int = 4, **fields: Any) -> TransformerConfig:
    shape = {"vocab": 24, "hidden": 8 * heads, "layers": 2, "ffn": 60, "sequence": 8}
    return TransformerConfig(heads=heads, kv_heads=kv_heads, **shape | fields)


def dense_run(module: torch.nn.Module, x: Tensor, *others: Tensor, upstream: Tensor) -> dict[str, Any]:
    """Output, gradient of x, parameters and their gradients of a dense module."""
    leaf = x.clone().requires_grad_()
    output = module(leaf, *others)
    output.backward(upstream)
    return {
        "output": output.detach(),
        "gradient": leaf.grad,
        "parameters": drivers.parameters_of(module),
        "gradients": drivers.gradients_of(module),
    }


def assert_like_dense(
    got: dict, dense: dict, cut: dict[str, tuple[int, int]], x: Tensor, rank: int, ranks: int, story: str
) -> None:
    """A layer of a block: ``cut`` has the (dim, replicas) of each parameter."""
    parameters = {
        name: block(tensor, cut[name][0], rank, ranks, cut[name][1]) for name, tensor in dense["parameters"].items()
    }
    assert_parameters(got, parameters, story, FLOAT32)
    assert_close(got["output"], dense["output"], f"{story}: output, the same on every rank", FLOAT32)
    assert_close(got["gradient"], dense["gradient"], f"{story}: gradient of x, the same on every rank", FLOAT32)
    for name, gradient in dense["gradients"].items():
        dim, replicas = cut[name]
        also = f". {replicas} ranks hold it: the gradient is the sum over them" if replicas > 1 else ""
        assert_close(
            got["gradients"].get(name),
            2 * block(gradient, dim, rank, ranks, replicas),
            f"{story}: {name}.grad after two backwards{also}",
            FLOAT32,
        )
    one = [("all_reduce", x.nbytes, ranks)] if ranks > 1 else []
    assert_calls(got["forward"], one, f"{story}, forward: one sum over the ranks")
    of_replicas = sorted(
        ("all_reduce", parameters[name].nbytes, replicas) for name, (_, replicas) in cut.items() if replicas > 1
    )
    assert sorted(calls_of(got["backward"])) == sorted(one + of_replicas), (
        f"{story}, backward: one sum over the ranks{' and one for each weight held by several' * bool(of_replicas)}: "
        f"{one + of_replicas}, got {calls_of(got['backward'])}. Projections that share an input copy it once"
    )


@exercise("3.1", "kv_replicas", points=1)
def test_how_many_ranks_share_a_kv_head(lab):
    for heads, kv_heads, ranks, expected in ((8, 8, 4, 1), (8, 4, 4, 1), (8, 2, 4, 2), (8, 1, 4, 4), (6, 3, 1, 1)):
        got = lab.call("kv_replicas", heads, kv_heads, ranks)
        assert got == expected, f"{heads} heads, {kv_heads} kv_heads, {ranks} ranks: {expected} replicas, got {got}"
    for heads, kv_heads, ranks in ((8, 4, 3), (12, 4, 6), (12, 3, 2), (2, 2, 4)):
        lab.expect_error(ValueError, "kv_replicas", heads, kv_heads, ranks)


@exercise("3.1", "ParallelAttention", points=6)
@pytest.mark.parametrize(
    ("ranks", "heads", "kv_heads"), [(1, 4, 2), (2, 4, 2), (2, 4, 1), (3, 6, 6), (3, 6, 1), (4, 4, 4), (4, 8, 2)]
)
def test_attention(lab, seed, ranks, heads, kv_heads):
    config = config_of(heads, kv_heads)
    x, upstream = (random(seed + i, 2, 5, config.hidden, dtype=torch.float32) for i in (1, 2))
    dense = dense_run(
        drivers.dense_model(config, seed).blocks[0].attention.cpu(), x, torch.arange(5), upstream=upstream
    )
    replicas = max(1, ranks // kv_heads)
    cut = dict.fromkeys(("key.weight", "value.weight"), (0, replicas))
    cut |= {"query.weight": (0, 1), "output.weight": (1, 1)}
    results = lab.on_ranks(ranks).run(drivers.attention, config, seed, x, upstream)
    for rank, result in enumerate(results):
        story = f"rank {rank} of {ranks}, {heads} heads, {kv_heads} kv_heads"
        assert_like_dense(result.value, dense, cut, x, rank, ranks, story)


@exercise("3.1", "ParallelMLP", points=3)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_mlp(lab, seed, ranks):
    config = config_of()
    x, upstream = (random(seed + i, 2, 3, config.hidden, dtype=torch.float32) for i in (1, 2))
    dense = dense_run(drivers.dense_model(config, seed).blocks[0].mlp.cpu(), x, upstream=upstream)
    cut = {"gate.weight": (0, 1), "up.weight": (0, 1), "down.weight": (1, 1)}
    results = lab.on_ranks(ranks).run(drivers.mlp, config, seed, x, upstream)
    for rank, result in enumerate(results):
        assert_like_dense(result.value, dense, cut, x, rank, ranks, f"rank {rank} of {ranks}")


# --- The whole model --------------------------------------------------------------------------------------------------


def cut_of(name: str, config: TransformerConfig, ranks: int) -> tuple[int, int] | None:
    """(dim, replicas) of a parameter of the model; None: whole on every rank."""
    if name.endswith(("attention.key.weight", "attention.value.weight")):
        return 0, max(1, ranks // config.kv_heads)
    if name.endswith(("output.weight", "down.weight")):
        return 1, 1
    return None if "norm" in name else (0, 1)


def own_part(name: str, tensor: Tensor, config: TransformerConfig, rank: int, ranks: int) -> Tensor:
    cut = cut_of(name, config, ranks)
    return tensor if cut is None else block(tensor, cut[0], rank, ranks, cut[1])


def tokens_of(seed: int, config: TransformerConfig, rows: int = 3) -> Tensor:
    return torch.randint(config.vocab, (rows, 7), generator=torch.Generator().manual_seed(seed))


def train_dense(config: TransformerConfig, seed: int, tokens: Tensor, steps: int) -> dict[str, Any]:
    """What `drivers.train` does, in one process with a dense model."""
    model = drivers.dense_model(config, seed).cpu()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    found: dict[str, Any] = {"losses": []}
    for step in range(steps):
        logits = model(tokens)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        if step == 0:
            found |= {"logits": logits.detach(), "gradients": drivers.gradients_of(model)}
        found["losses"].append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return found | {"state": {name: drivers.plain(tensor) for name, tensor in model.state_dict().items()}}


def assert_states(got: dict[str, Tensor], expected: dict[str, Tensor], what: str, tolerance: float = FLOAT32) -> None:
    assert got.keys() == expected.keys(), f"{what}: names {list(got)}, the dense model has {list(expected)}"
    for name, tensor in expected.items():
        assert_close(got[name], tensor, f"{what}: {name}", tolerance)


def assert_first_step(got: dict, dense: dict, config: TransformerConfig, rank: int, ranks: int, story: str) -> None:
    """Logits, loss and gradients of a first step."""
    assert_close(got["logits"], block(dense["logits"], -1, rank, ranks), f"{story}: this rank's logits", FLOAT32)
    assert got["losses"][0] == pytest.approx(dense["losses"][0], rel=1e-5), f"{story}: loss of the first step"
    assert got["gradients"].keys() == dense["gradients"].keys(), (
        f"{story}: gradients of {list(got['gradients'])}, the dense model has {list(dense['gradients'])}. A tied "
        "weight is one parameter"
    )
    for name, gradient in dense["gradients"].items():
        tied = ". It is tied: the sum of what embedding and head give" * (config.tied and "embedding" in name)
        what = f"{story}: {name}.grad{tied}"
        assert_close(got["gradients"][name], own_part(name, gradient, config, rank, ranks), what, 2 * FLOAT32)


CASES = {
    "alone": (1, config_of()),
    "tied": (2, config_of(4, 2)),
    "odd": (3, config_of(6, 1, tied=False)),
    "untied": (4, config_of(4, 4, tied=False)),
    "few kv heads": (4, config_of(8, 2)),
}


@exercise("3.1", "shard_transformer", points=5)
@pytest.mark.parametrize(("ranks", "config"), CASES.values(), ids=CASES)
def test_trains_like_the_dense_model(lab, seed, ranks, config):
    tokens = tokens_of(seed, config)
    dense = train_dense(config, seed, tokens, steps=3)
    results = lab.on_ranks(ranks).run(drivers.train, config, seed, tokens, 3)
    for rank, result in enumerate(results):
        got, story = result.value, f"rank {rank} of {ranks}"
        assert_first_step(got, dense, config, rank, ranks, story)
        assert got["losses"] == pytest.approx(dense["losses"], rel=1e-4), f"{story}: losses of three steps"
        assert_states(got["state"], dense["state"], f"{story}, after three steps", 1e-4)
        assert got["tied"] == config.tied, f"{story}: config.tied is {config.tied}, after sharding as before"


@exercise("3.1", "shard_transformer", points=3)
@pytest.mark.parametrize("case", ["alone", "odd", "few kv heads"])
def test_memory_and_traffic_of_the_model(lab, seed, case):
    ranks, config = CASES[case]
    tokens = tokens_of(seed, config)
    own = {
        name: own_part(name, parameter.detach(), config, 0, ranks).nbytes
        for name, parameter in build(config).named_parameters()
    }
    activation, positions = ("all_reduce", 4 * tokens.numel() * config.hidden, ranks), 3 * 6
    kv = [
        ("all_reduce", own[name], ranks // config.kv_heads)
        for name in own
        if name.endswith(("key.weight", "value.weight")) and ranks > config.kv_heads
    ]
    for rank, result in enumerate(lab.on_ranks(ranks).run(drivers.train, config, seed, tokens, 1)):
        got, story = result.value, f"rank {rank} of {ranks}"
        assert got["held"] == sum(own.values()), (
            f"{story}: parameters and buffers of {got['held']} bytes. 1/{ranks} of every matrix (key and value: one "
            f"head at least) and the whole norms are {sum(own.values())}"
        )
        if ranks == 1:
            assert not any(got[part] for part in ("forward", "loss", "backward")), f"{story}: one rank sends nothing"
            continue
        assert_calls(
            got["forward"],
            [activation] * (1 + 2 * config.layers),
            f"{story}, forward: one sum after the embedding, two per block",
        )
        assert sum(size for _, size, _ in calls_of(got["loss"])) == 12 * positions, f"{story}: traffic of the loss"
        backward = [activation] * (1 + 2 * config.layers) + kv
        assert sorted(calls_of(got["backward"])) == sorted(backward), (
            f"{story}, backward: one sum in front of the head, two per block"
            f"{', one for each weight that several ranks hold' * bool(kv)}: {backward}, got "
            f"{calls_of(got['backward'])}"
        )


@exercise("3.1", "shard_transformer", points=2)
def test_dropout_does_not_depend_on_the_ranks(lab, seed):
    config = config_of(dropout=0.2)
    tokens = tokens_of(seed, config)
    alone, pair = (lab.on_ranks(ranks).run(drivers.train, config, seed, tokens, 3) for ranks in (1, 2))
    without = train_dense(replace(config, dropout=0.0), seed, tokens, steps=1)
    assert alone[0].value["losses"][0] != pytest.approx(without["losses"][0], rel=1e-3), "dropout drops nothing"
    for rank, result in enumerate(pair):
        assert result.value["losses"] == pytest.approx(alone[0].value["losses"], rel=1e-4), (
            f"rank {rank} of 2: with dropout on the residual stream two ranks must train as one does. Every rank's "
            "global random state is another here: which stream do the masks come from?"
        )
        assert_states(result.value["state"], alone[0].value["state"], f"rank {rank} of 2, after three steps", 1e-4)


@exercise("3.1", "shard_transformer", points=2)
def test_in_a_group_of_some_ranks(lab, seed):
    config, groups = config_of(8, 2), [[0], [1, 2, 3, 4]]
    tokens = tokens_of(seed, config)
    dense = train_dense(config, seed, tokens, steps=2)
    results = lab.on_ranks(5).run(drivers.train, config, seed, tokens, 2, groups)
    for group in groups:
        for number, rank in enumerate(group):
            got, story = results[rank].value, f"rank {rank}, number {number} of the group {group}"
            assert_first_step(got, dense, config, number, len(group), story)
            assert_states(got["state"], dense["state"], f"{story}, after two steps", 1e-4)
            strangers = [call for call in results[rank].traffic.calls if not set(call.ranks) <= set(group)]
            assert not strangers, f"{story}: it called {strangers[0]} on the ranks {strangers[0].ranks}"


REFUSED = {"heads": config_of(4, 4), "kv_heads": config_of(6, 2)}


@exercise("3.1", "shard_transformer", points=1)
def test_a_model_that_cannot_be_shared_out_is_refused(lab):
    results = lab.on_ranks(3).run(drivers.refused_models, "shard_transformer", list(REFUSED.values()))
    for rank, result in enumerate(results):
        for name, (message, calls, as_it_was) in zip(REFUSED, result.value, strict=True):
            assert name in message and not calls and as_it_was, (
                f"rank {rank} of 3: {name} cannot be shared out: a ValueError that says so on every rank, before "
                f"anything is sent and with the model as it was; got {message or 'no error'!r}, {calls} calls"
            )


@exercise("3.1", "shard_state_dict", points=2)
@pytest.mark.parametrize("ranks", [4])
def test_the_dense_state_is_cut(lab, ranks):
    configs = [config_of(8, 2), config_of(4, 4, tied=False)]
    for rank, result in enumerate(lab.on_ranks(ranks).run(drivers.exchange_states, configs)):
        for config, got in zip(configs, result.value, strict=True):
            dense = build(config, 2).state_dict()
            expected = {name: own_part(name, tensor, config, rank, ranks) for name, tensor in dense.items()}
            assert_states(got["shards"], expected, f"rank {rank} of {ranks}", 0)
            for name, tensor in expected.items():
                assert got["elements"][name] == tensor.numel(), (
                    f"rank {rank} of {ranks}: {name} has {tensor.numel()} elements and keeps {got['elements'][name]} "
                    "in memory: a view of the dense tensor keeps all of it"
                )


@exercise("3.1", "full_state_dict", points=2)
@pytest.mark.parametrize("ranks", [1, 4])
def test_the_dense_state_is_joined(lab, ranks):
    configs = [config_of(8, 2), config_of(4, 1, tied=False)]
    for rank, result in enumerate(lab.on_ranks(ranks).run(drivers.exchange_states, configs)):
        for config, got in zip(configs, result.value, strict=True):
            dense = dict(build(config, 2).state_dict())
            assert_states(got["joined"], dense, f"rank {rank} of {ranks}: cut and joined again", 0)


# --- DTensor ----------------------------------------------------------------------------------------------------------


@exercise("3.1", "parallelize", points=6)
@pytest.mark.parametrize(
    ("ranks", "config"), [(2, config_of(4, 2)), (4, config_of(4, 4, tied=False))], ids=["tied", "untied"]
)
def test_dtensor_gives_equal_results_for_equal_traffic(lab, seed, ranks, config):
    tokens = tokens_of(seed, config)
    dense = train_dense(config, seed, tokens, steps=1)
    activation, positions = ("all_reduce", 4 * tokens.numel() * config.hidden, ranks), 3 * 6
    for rank, result in enumerate(lab.on_ranks(ranks).run(drivers.run_dtensor, config, seed, tokens)):
        got, story = result.value, f"rank {rank} of {ranks}"
        assert got["dtensor"], f"{story}: logits are a DTensor cut along the vocabulary, as loss_parallel wants them"
        assert_first_step(got, dense, config, rank, ranks, story)
        assert got["tied"] == config.tied, f"{story}: config.tied is {config.tied}, after parallelize as before"
        for name, parameter in build(config).named_parameters():
            own = own_part(name, parameter, config, rank, ranks).numel()
            assert got["numel"][name] == own, f"{story}: {name} has {own} elements here, got {got['numel'][name]}"
        assert_calls(got["forward"], [activation] * (1 + 2 * config.layers), f"{story}, forward, as your own")
        assert_calls(
            got["backward"],
            [activation] * (1 + 2 * config.layers),
            f"{story}, backward, as your own. More than two per block: who makes a DTensor of the input, and how often",
        )
        assert sum(size for _, size, _ in calls_of(got["loss"])) == 12 * positions, (
            f"{story}: the loss sends 12 bytes per token, as your own does: {calls_of(got['loss'])}"
        )


@exercise("3.1", "parallelize", points=1)
def test_dtensor_refuses_what_it_cannot_share_out(lab):
    configs = {"heads": config_of(6, 6), "kv_heads": config_of(8, 2)}
    results = lab.on_ranks(4).run(drivers.refused_models, "parallelize", list(configs.values()))
    for rank, result in enumerate(results):
        for name, (message, calls, as_it_was) in zip(configs, result.value, strict=True):
            assert name in message and not calls and as_it_was, (
                f"rank {rank} of 4: {name} cannot be shared out: ValueError on every rank, before anything is sent; "
                f"got {message or 'no error'!r}, {calls} calls"
            )
