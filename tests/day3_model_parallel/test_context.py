"""Graded tests of lesson 3.3.

Right numbers alone do not earn the points: ranks that gather all keys have them too. What is graded is what travels
(N - 1 times the keys and values, to the byte), what a rank holds (as much on 5 ranks as on 2, twice as much for twice
the tokens, never a square of scores), what it computes (equally many products on every rank, and none that the mask
would hide), and that outputs and all gradients are those of attention over the whole sequence.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import drivers_context as drivers
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from shardlab.grade import exercise
from shardlab.models import TransformerConfig, build
from shardlab.observe import Traffic

FLOAT64, FLOAT32 = 1e-11, 1e-5  # allowed errors, of the largest element
CONFIG = TransformerConfig(vocab=24, hidden=32, layers=2, heads=8, kv_heads=2, ffn=24, sequence=64)
torch.set_num_threads(1)  # in the judge, whose matrices are tiny: more threads wait for each other


def random(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def assert_close(got: Tensor | None, expected: Tensor, what: str, tolerance: float = FLOAT64) -> None:
    """Within `tolerance` of the largest element; long tensors are shown in part."""
    assert got is not None, f"{what}: expected a tensor of shape {list(expected.shape)}, there is none"
    assert got.shape == expected.shape, f"{what}: expected shape {list(expected.shape)}, got {list(got.shape)}"
    got, largest = got.to(expected.dtype), max(expected.abs().max().item(), 1e-6)
    error = (got - expected).abs().max().item()
    assert error <= tolerance * largest, (
        f"{what}: off by {error:.2e}, the largest element is {largest:.2e}\n"
        f"expected {expected.flatten()[:8].tolist()}\ngot      {got.flatten()[:8].tolist()}"
    )


def calls_of(data: list[dict]) -> list[tuple[str, int, int]]:
    """Operation, payload in bytes and number of ranks of each call."""
    return [(call.op, call.payload_bytes, len(call.ranks)) for call in Traffic.from_data(data).calls]


def assert_calls(data: list[dict], expected: list[tuple[str, int, int]], what: str) -> None:
    found = calls_of(data)
    assert found == expected, (
        f"{what}: expected the calls (operation, bytes of payload, ranks) {expected or 'none'}, got {found or 'none'}"
    )


def zigzag(sequence: int, rank: int, ranks: int) -> list[int]:
    """Positions of a rank, by the rule."""
    chunk = sequence // (2 * ranks)
    front, back = rank * chunk, (2 * ranks - 1 - rank) * chunk
    return [*range(front, front + chunk), *range(back, back + chunk)]


def part(tensor: Tensor, dim: int, rank: int, ranks: int) -> Tensor:
    """What `rank` has of a whole tensor, in a zig-zag."""
    return tensor.index_select(dim, torch.tensor(zigzag(tensor.shape[dim], rank, ranks), dtype=torch.int64))


def block(tensor: Tensor, rank: int, ranks: int, dim: int = 1) -> Tensor:
    """The r-th of N equal parts."""
    return tensor.chunk(ranks, dim)[rank]


# --- Sequence parallelism ---------------------------------------------------------------------------------------------


def activations(seed: int, ranks: int, cut: bool) -> list[tuple[Tensor, Tensor]]:
    """x [2, T, 6] of each rank and a gradient for what comes out, T = 3 N, on one side cut into N blocks."""
    whole, own = (2, 3 * ranks, 6), (2, 3, 6)
    first, second = (own, whole) if cut else (whole, own)
    return [(random(seed + rank, *first), random(seed + 50 + rank, *second)) for rank in range(ranks)]


@exercise("3.3", "reduce_scatter_blocks", points=2)
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_rank_gets_its_tokens_of_the_sum(lab, seed, ranks):
    own = activations(seed, ranks, cut=False)
    total = sum(x for x, _ in own)
    for rank, result in enumerate(
        lab.on_ranks(ranks).run(drivers.transform, "reduce_scatter_blocks", False, per_rank=own)
    ):
        got, what = result.value, f"rank {rank} of {ranks}, x [2, {3 * ranks}, 6]"
        assert_close(got["output"], block(total, rank, ranks), f"{what}: its block of tokens, of both sequences")
        assert_close(got["x"], own[rank][0], f"{what}: x must stay as it is")
        assert_calls(
            got["forward"],
            [("reduce_scatter", total.nbytes, ranks)] if ranks > 1 else [],
            f"{what}: one reduce-scatter, half of what an all-reduce sends",
        )


@exercise("3.3", "reduce_scatter_blocks", points=1)
@pytest.mark.parametrize("ranks", [4])
def test_tokens_that_cannot_be_shared_out_are_refused(lab, ranks):
    cases = [("reduce_scatter_blocks", ([1, tokens, 2],)) for tokens in (2, 7)]
    for rank, result in enumerate(lab.on_ranks(ranks).run(drivers.refused, cases)):
        for (_, (shape,)), (message, calls) in zip(cases, result.value, strict=True):
            assert message and not calls, f"rank {rank}: {shape[1]} tokens on {ranks} ranks: ValueError, nothing sent"


@exercise("3.3", "gather_sequence", points=2)
@pytest.mark.parametrize("ranks", [1, 3])
def test_gather_joins_tokens_and_sums_gradients(lab, seed, ranks):
    own = activations(seed, ranks, cut=True)
    whole, gradient = torch.cat([x for x, _ in own], 1), sum(upstream for _, upstream in own)
    for rank, result in enumerate(lab.on_ranks(ranks).run(drivers.transform, "gather_sequence", True, per_rank=own)):
        got, what = result.value, f"rank {rank} of {ranks}"
        assert_close(got["output"], whole, f"{what}: the tokens of all ranks")
        assert_close(
            got["gradient"],
            block(gradient, rank, ranks),
            f"{what}: every rank used these tokens, so their gradient is the sum of what all ranks found",
        )
        travels = [[("all_gather", whole.nbytes, ranks)], [("reduce_scatter", whole.nbytes, ranks)]]
        for data, expected in zip((got["forward"], got["backward"]), travels, strict=True):
            assert_calls(data, expected if ranks > 1 else [], what)


@exercise("3.3", "scatter_sequence", points=2)
@pytest.mark.parametrize("ranks", [1, 3])
def test_scatter_sums_and_cuts_and_gathers_gradients(lab, seed, ranks):
    own = activations(seed, ranks, cut=False)
    total, gradient = sum(x for x, _ in own), torch.cat([upstream for _, upstream in own], 1)
    for rank, result in enumerate(lab.on_ranks(ranks).run(drivers.transform, "scatter_sequence", True, per_rank=own)):
        got, what = result.value, f"rank {rank} of {ranks}"
        assert_close(got["output"], block(total, rank, ranks), what)
        assert_close(got["gradient"], gradient, f"{what}: the gradients of all tokens, from the ranks that have them")
        travels = [[("reduce_scatter", total.nbytes, ranks)], [("all_gather", total.nbytes, ranks)]]
        for data, expected in zip((got["forward"], got["backward"]), travels, strict=True):
            assert_calls(data, expected if ranks > 1 else [], what)


@exercise("3.3", "SequenceParallelNorm", points=3)
@pytest.mark.parametrize("ranks", [1, 3])
def test_the_norms_gradient_is_summed_over_all_tokens(lab, seed, ranks):
    weight = 1 + random(seed, 6)
    own = [(random(seed + rank, 2, 3, 6), random(seed + 50 + rank, 2, 3, 6)) for rank in range(ranks)]
    x, leaf = torch.cat([x for x, _ in own], 1).requires_grad_(), weight.clone().requires_grad_()
    expected = F.rms_norm(x, (6,), leaf, 1e-5)
    expected.backward(torch.cat([upstream for _, upstream in own], 1))
    for rank, result in enumerate(lab.on_ranks(ranks).run(drivers.normalise, weight, per_rank=own)):
        got, what = result.value, f"rank {rank} of {ranks}"
        assert_close(got["output"], block(expected.detach(), rank, ranks), what)
        assert_close(got["gradient"], block(x.grad, rank, ranks), f"{what}: gradient of its own tokens")
        assert_close(
            got["of_weight"],
            2 * leaf.grad,
            f"{what}, two steps' gradients of the weight: a rank's tokens give a part of it, and the sum is needed on "
            "every rank. An average is N times too small",
        )
        assert_calls(got["forward"], [], f"{what}, forward: a norm looks at one token at a time")
        assert_calls(got["backward"], [("all_reduce", weight.nbytes, ranks)] if ranks > 1 else [], f"{what}, backward")


@exercise("3.3", "SequenceParallelAttention", points=2)
@pytest.mark.parametrize("ranks", [1, 4])
def test_attention_between_a_gather_and_a_scatter(lab, seed, ranks):
    tokens = 3 * ranks
    x, upstream = (random(seed + number, 2, tokens, CONFIG.hidden) for number in range(2))
    positions = torch.arange(tokens) + 2
    dense = build(CONFIG).blocks[0].attention.double()
    leaf = x.clone().requires_grad_()
    expected = dense(leaf, positions)
    expected.backward(upstream)
    own = [(block(x, rank, ranks), block(upstream, rank, ranks)) for rank in range(ranks)]
    results = lab.on_ranks(ranks).run(drivers.sequence_attention, CONFIG, positions, per_rank=own)
    for rank, result in enumerate(results):
        got, what = result.value, f"rank {rank} of {ranks}"
        # rotary embedding computes in float32
        assert_close(got["output"], block(expected.detach(), rank, ranks), f"{what}: its tokens", FLOAT32)
        assert_close(got["gradient"], block(leaf.grad, rank, ranks), f"{what}: gradient of its tokens", FLOAT32)
        assert_close(
            got["gradients"]["query.weight"],
            block(dense.query.weight.grad, rank, ranks, 0),
            f"{what}: gradient of its queries' weight",
            FLOAT32,
        )
        if ranks > 1:
            whole = [("all_gather", x.nbytes, ranks), ("reduce_scatter", x.nbytes, ranks)]
            assert_calls(got["forward"], whole, f"{what}, forward: as much as one all-reduce")
            found = [call for call in calls_of(got["backward"]) if call[1] == x.nbytes]
            assert found == whole, f"{what}, backward: of activations expected {whole}, got {found}"


@exercise("3.3", "sequence_parallel", points=3)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_whole_model_with_a_cut_residual_stream(lab, seed, ranks):
    tokens = torch.randint(CONFIG.vocab, (2, 12), generator=torch.Generator().manual_seed(seed))
    dense = build(CONFIG)
    loss = F.cross_entropy(dense(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    results = lab.on_ranks(ranks).run(drivers.sequence_model, CONFIG, tokens, 0.5)
    for rank, result in enumerate(results):
        got, what = result.value, f"rank {rank} of {ranks}"
        assert got["loss"] == pytest.approx(loss.item(), rel=FLOAT32), f"{what}: loss of one process {loss.item()}"
        for name, parameter in dense.named_parameters():
            dim, replicas = got["cuts"].get(name, (0, ranks))
            expected = parameter.grad.chunk(ranks // replicas, dim)[rank // replicas]
            assert_close(got["gradients"].get(name), expected, f"{what}: gradient of {name}", FLOAT32)
        shape = [2, 12 // ranks, CONFIG.hidden]
        assert got["seen"] == [shape] * len(got["seen"]), (
            f"{what}: every block and norm works on {shape}, its own tokens, got {got['seen']}"
        )
        assert got["tied"], f"{what}: the head has lost the embedding's weight"
    if ranks > 1:
        first, second = (result.value["masks"] for result in list(results)[:2])
        assert not torch.equal(first[0], second[0]), (
            "ranks 0 and 1 drop the same elements of different tokens: a cut stream needs the sharded random stream"
        )


# --- Attention in parts -----------------------------------------------------------------------------------------------


def full_attention(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of attention over all keys, by the formula."""
    sharing = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(sharing, 1) for x in (key, value))
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    return scores.softmax(-1) @ value, scores.logsumexp(-1)


def qkv(seed: int, queries: int, keys: int, heads: int = 4, kv_heads: int = 2, width: int = 5) -> list[Tensor]:
    shapes = [(2, heads, queries, width), (2, kv_heads, keys, width), (2, kv_heads, keys, width)]
    return [random(seed + number, *shape) for number, shape in enumerate(shapes)]


@exercise("3.3", "merge_attention", points=3)
def test_parts_of_a_softmax_add_up(lab, seed):
    query, key, value = qkv(seed, 3, 9)
    query[:, 0] *= 60  # scores of some hundreds: exp() of them is inf in float32
    cuts = [slice(0, 2), slice(2, 3), slice(3, 9)]
    parts = [full_attention(query, key[:, :, cut], value[:, :, cut], False) for cut in cuts]
    expected = full_attention(query, key[:, :, :3], value[:, :, :3], False)
    for which, cases in (("float64", parts[:2]), ("float64, the other way round", parts[1::-1])):
        (got,) = lab.on_ranks(1).run(drivers.merge, [(*cases[0], *cases[1])])[0].value
        assert_close(got[0], expected[0], f"output over 2 + 1 keys, {which}")
        assert_close(got[1], expected[1], f"log-sum-exp over 2 + 1 keys, {which}")


@exercise("3.3", "merge_attention", points=3)
def test_extremes_do_not_overflow(lab):
    inf = math.inf
    cases = [
        # lse_a, lse_b, expected lse, expected output of 1 and 5
        (0.0, 200.0, 200.0, 5.0),
        (200.0, 0.0, 200.0, 1.0),
        (1e3, -1e3, 1e3, 1.0),
        (-1e3, -1e3, -1e3 + math.log(2), 3.0),
        (1e3, 1e3, 1e3 + math.log(2), 3.0),
        (-inf, 2.0, 2.0, 5.0),
        (2.0, -inf, 2.0, 1.0),
        (0.0, math.log(3), math.log(4), 4.0),
    ]
    given = [(torch.ones(1, 2), torch.tensor([a]), torch.full((1, 2), 5.0), torch.tensor([b])) for a, b, _, _ in cases]
    nothing = (torch.zeros(1, 2), torch.tensor([-inf]), torch.zeros(1, 2), torch.tensor([-inf]))
    *found, (empty, empty_lse) = lab.on_ranks(1).run(drivers.merge, [*given, nothing])[0].value
    for (a, b, lse, output), (got, got_lse) in zip(cases, found, strict=True):
        what = f"lse {a} and {b}, outputs 1 and 5, in float32"
        assert got_lse.item() == pytest.approx(lse, rel=1e-6), f"{what}: lse {lse}, got {got_lse.item()}"
        assert_close(got, torch.full((1, 2), output), what, 1e-3)
    assert empty_lse.item() == -inf and empty.tolist() == [[0.0, 0.0]], (
        f"two sets without a key: output 0 and lse -inf, got {empty.tolist()} and {empty_lse.item()}. -inf - (-inf) is "
        "NaN"
    )


BLOCKS = [
    # queries, keys, heads, kv heads, causal
    (3, 7, 4, 2, False),
    (131, 130, 2, 2, False),
    (7, 7, 4, 1, True),
    (259, 259, 2, 1, True),
]


@exercise("3.3", "attend_block", points=3)
def test_a_block_gives_its_output_and_its_log_sum_exp(lab, seed):
    given = [(*qkv(seed, *shape), causal) for *shape, causal in BLOCKS]
    large = [tensor.float() for tensor in qkv(seed, 6, 6)]
    large[0] *= 1e3
    cases = [*given, (*large, True), (*(tensor.bfloat16() for tensor in qkv(seed, 6, 6)), False)]
    for case, ((output, lse), _) in zip(cases, lab.on_ranks(1).run(drivers.attend, cases)[0].value, strict=True):
        query, key, value, causal = case
        wide = torch.promote_types(query.dtype, torch.float32)
        expected = full_attention(*(tensor.double() for tensor in (query, key, value)), causal)
        what = f"query {list(query.shape)}, key {list(key.shape)}, {query.dtype}, causal {causal}"
        assert output.dtype == lse.dtype == wide, f"{what}: parts are added up in {wide}, got {output.dtype}"
        tolerance = FLOAT64 if wide == torch.float64 else 1e-4
        assert_close(output, expected[0], f"{what}: output", tolerance)
        assert_close(lse, expected[1], f"{what}: log-sum-exp of the scaled scores", tolerance)


def square_in_memory(peaks: Sequence[int]) -> bool:
    """Whether four times the memory is near, of work on twice the tokens."""
    return peaks[1] > 2.6 * peaks[0]


@exercise("3.3", "attend_block", points=1)
def test_scores_of_a_block_are_never_all_in_memory(lab):
    cases = [(*(torch.zeros(1, 1, length, 8) for _ in range(3)), False) for length in (1024, 2048)]
    peaks = [peak for _, peak in lab.on_ranks(1).run(drivers.attend, cases)[0].value]
    assert not square_in_memory(peaks), (
        f"1,024 queries and keys took {peaks[0]} bytes at most, 2,048 took {peaks[1]}: that grows with the square. "
        "Work through row_tiles, and give back what a tile does not need any more"
    )


def backward_by_autograd(
    query: Tensor, key: Tensor, value: Tensor, upstream: Tensor, causal: bool
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Gradients of the three, log-sum-exp and delta."""
    leaves = [tensor.double().requires_grad_() for tensor in (query, key, value)]
    output, lse = full_attention(*leaves, causal)
    output.backward(upstream.double())
    return [leaf.grad for leaf in leaves], lse.detach(), (output.detach() * upstream).sum(-1)


@exercise("3.3", "attend_block_backward", points=4)
def test_blocks_of_the_backward_add_up(lab, seed):
    cases, expected = [], []
    for queries, keys, heads, kv_heads, causal in BLOCKS:
        query, key, value = qkv(seed, queries, keys, heads, kv_heads)
        upstream = random(seed + 9, *query.shape)
        gradients, lse, delta = backward_by_autograd(query, key, value, upstream, causal)
        cuts = [slice(0, keys)] if causal else [slice(0, 2), slice(2, keys)]
        cases += [(upstream, query, key[:, :, cut], value[:, :, cut], lse, delta, causal) for cut in cuts]
        expected.append((cuts, gradients))
    found = iter(lab.on_ranks(1).run(drivers.attend_backward, cases)[0].value)
    for shape, (cuts, gradients) in zip(BLOCKS, expected, strict=True):
        parts = [next(found)[0] for _ in cuts]
        what = f"(queries, keys, heads, kv heads, causal) {shape}, keys in {len(cuts)} block(s)"
        assert_close(sum(of_query for of_query, _, _ in parts), gradients[0], f"{what}: query, summed over blocks")
        for number, name in ((1, "key"), (2, "value")):
            joined = torch.cat([each[number] for each in parts], 2)
            assert_close(joined, gradients[number], f"{what}: {name}. P = exp(S - lse) with the lse over all keys")


@exercise("3.3", "attend_block_backward", points=1)
def test_backward_of_a_block_keeps_no_square(lab):
    cases = [(*(torch.zeros(1, 1, n, 8) for _ in range(4)), *torch.zeros(2, 1, 1, n), False) for n in (1024, 2048)]
    peaks = [peak for _, peak in lab.on_ranks(1).run(drivers.attend_backward, cases)[0].value]
    assert not square_in_memory(peaks), (
        f"1,024 queries and keys took {peaks[0]} bytes at most, 2,048 took {peaks[1]}: that grows with the square"
    )


# --- The zig-zag ------------------------------------------------------------------------------------------------------


@exercise("3.3", "zigzag_positions", points=2)
def test_every_rank_has_equally_much_to_look_at(lab):
    cases = [(6 * ranks, rank, ranks) for ranks in (1, 2, 3, 5) for rank in range(ranks)]
    for case, got in zip(cases, lab.on_ranks(1).run(drivers.positions, cases)[0].value, strict=True):
        sequence, rank, ranks = case
        assert got.dtype == torch.int64, f"positions are int64, got {got.dtype}"
        assert got.tolist() == zigzag(*case), (
            f"rank {rank} of {ranks}, {sequence} tokens: chunks {rank} and {2 * ranks - 1 - rank} of {2 * ranks}, "
            f"{zigzag(*case)}, got {got.tolist()}"
        )


@exercise("3.3", "zigzag_split", points=2)
@pytest.mark.parametrize("ranks", [1, 3])
def test_split_along_any_dimension(lab, seed, ranks):
    tensor, dims = random(seed, 4 * ranks, 2 * ranks, 6 * ranks), (0, 1, -1)
    for rank, result in enumerate(lab.on_ranks(ranks).run(drivers.split, tensor, dims)):
        for dim, got in zip(dims, result.value, strict=True):
            what = f"rank {rank} of {ranks}, dim {dim} of {list(tensor.shape)}"
            assert_close(got["own"], part(tensor, dim, rank, ranks), what)
            assert not got["calls"], f"{what}: every rank has the whole tensor, nothing has to be sent"
            assert got["bytes"] == got["own"].nbytes, f"{what}: a view keeps the whole tensor in memory"


@exercise("3.3", "zigzag_split", points=1)
def test_what_is_no_zigzag_is_refused(lab):
    cases = [("zigzag_split", ([7], 0)), ("zigzag_split", ([2, 2], 0)), ("zigzag_split", ([4, 3], 1))]
    for rank, result in enumerate(lab.on_ranks(2).run(drivers.refused, cases)):
        for (_, (shape, dim)), (message, calls) in zip(cases, result.value, strict=True):
            assert message and not calls, f"rank {rank} of 2: dim {dim} of {shape} is no multiple of 4: ValueError"


@exercise("3.3", "zigzag_merge", points=2)
@pytest.mark.parametrize("ranks", [1, 3])
def test_merge_is_the_inverse_and_keeps_its_part_of_the_gradient(lab, seed, ranks):
    dims = (0, 1, -1)
    wholes = [random(seed + dim, *(2 * ranks if at == dim % 3 else at + 1 for at in range(3))) for dim in dims]
    upstreams = [random(seed + 9, *whole.shape) for whole in wholes]
    own = [
        [
            (part(whole, dim, rank, ranks), upstream)
            for whole, upstream, dim in zip(wholes, upstreams, dims, strict=True)
        ]
        for rank in range(ranks)
    ]
    for rank, result in enumerate(lab.on_ranks(ranks).run(drivers.merge_shards, dims, per_rank=own)):
        for whole, upstream, dim, got in zip(wholes, upstreams, dims, result.value, strict=True):
            what = f"rank {rank} of {ranks}, dim {dim} of {list(whole.shape)}"
            assert_close(got["whole"], whole, f"{what}: second halves come in reverse order of ranks")
            assert_close(got["gradient"], part(upstream, dim, rank, ranks), f"{what}: its part of the gradient, once")
            sent = Traffic.from_data(got["traffic"]).sent_bytes()
            assert sent == whole.nbytes * (ranks - 1) // ranks, f"{what}: sent {sent} bytes, an all-gather is enough"


@exercise("3.3", "shard_batch", points=4)
@pytest.mark.parametrize("ranks", [1, 3])
def test_labels_come_from_the_whole_sequence(lab, seed, ranks):
    generator = torch.Generator().manual_seed(seed)
    tokens = [torch.randint(1, 99, (2, length), generator=generator) for length in (8 * ranks, 8 * ranks - 3, 1)]
    chosen = torch.randint(1, 99, tokens[1].shape, generator=generator)
    chosen[:, ::3] = -100
    cases = [*((each, None) for each in tokens), (tokens[1], chosen)]
    for rank, result in enumerate(lab.on_ranks(ranks).run(drivers.batches, cases)):
        assert not result.traffic.calls, "every rank has the whole batch: nothing has to be sent"
        for (given, targets), (own, positions, labels) in zip(cases, result.value, strict=True):
            length = given.shape[1]
            padded = -(-length // (2 * ranks)) * 2 * ranks
            at = zigzag(padded, rank, ranks)
            what = f"rank {rank} of {ranks}, {length} tokens padded to {padded}"
            assert positions.tolist() == at, f"{what}: they stand at {at}, got positions {positions.tolist()}"
            for row in range(2):
                line = [*given[row].tolist(), *[0] * (padded - length)]
                goal = [*line[1:length], -100] if targets is None else targets[row].tolist()
                goal += [-100] * (padded - length)
                assert own[row].tolist() == [line[t] for t in at], f"{what}: tokens {own[row].tolist()}"
                assert labels[row].tolist() == [goal[t] for t in at], (
                    f"{what}: at positions {at} the next tokens are {[goal[t] for t in at]}, got "
                    f"{labels[row].tolist()}. The next token may be on another rank: shift before you split"
                )


@exercise("3.3", "shard_batch", points=1)
def test_a_batch_of_another_shape_is_refused(lab):
    cases = [("shard_batch", ([4],)), ("shard_batch", ([2, 4], None, [2, 5]))]
    for result in lab.on_ranks(2).run(drivers.refused, cases):
        for (_, arguments), (message, _) in zip(cases, result.value, strict=True):
            assert message, f"shard_batch of shapes {arguments}: ValueError"


@exercise("3.3", "shard_loss", points=3)
@pytest.mark.parametrize("ranks", [1, 3])
def test_parts_of_the_loss_add_up(lab, seed, ranks):
    def labelled(rank: int, share: float) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed + rank)
        labels = torch.randint(7, (2, 4), generator=generator)
        labels[torch.rand(2, 4, generator=generator) >= share] = -100
        return random(seed + rank, 2, 4, 7, dtype=torch.float32), labels

    own = [
        [labelled(rank, 1 - rank / 2), labelled(rank, 0 if rank else 0.6), labelled(rank, 0)] for rank in range(ranks)
    ]
    results = lab.on_ranks(ranks).run(drivers.losses, per_rank=own)
    for case, name in enumerate(("unequal counts", "labels on rank 0 alone", "no labels at all")):
        logits = torch.cat([each[case][0] for each in own]).requires_grad_()
        labels = torch.cat([each[case][1] for each in own])
        count = max((labels != -100).sum().item(), 1)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / count
        loss.backward()
        total = sum(result.value[case]["loss"] for result in results)
        assert total == pytest.approx(loss.item(), rel=1e-5), (
            f"{ranks} ranks, {name}: the parts add up to {total}, the loss over all labels is {loss.item()}"
        )
        for rank, result in enumerate(results):
            got = result.value[case]
            expected = logits.grad[2 * rank : 2 * rank + 2]
            assert_close(got["gradient"], expected, f"rank {rank} of {ranks}, {name}", FLOAT32)
            assert got["sent"] <= 8, f"rank {rank}: one number has to travel, not {got['sent']} bytes"


# --- The ring ---------------------------------------------------------------------------------------------------------


@exercise("3.3", "pass_on", points=2)
@pytest.mark.parametrize("ranks", [3])
def test_two_messages_travel_at_once(lab, seed, ranks):
    own = [(random(seed + rank, 3, 2), random(seed + 50 + rank, 4)) for rank in range(ranks)]
    for rank, result in enumerate(lab.on_ranks(ranks).run(drivers.shift, per_rank=own)):
        got, before = result.value, (rank - 1) % ranks
        for number in range(2):
            assert_close(got["arrived"][number], own[before][number], f"rank {rank} of {ranks}: from rank {before}")
            assert_close(got["own"][number], own[rank][number], f"rank {rank} of {ranks}: what is sent must stay")
        assert not got["in_place"], "what arrives must not overwrite what is being sent"
        expected = [(op, tensor.nbytes) for tensor in own[rank] for op in ("recv", "send")]
        found = [(op, size) for op, size, _ in calls_of(got["traffic"])]
        assert sorted(found) == sorted(expected), f"rank {rank} of {ranks}: one send, one receive each, got {found}"


@exercise("3.3", "circulate", points=4)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_next_arrives_while_one_is_worked_on(lab, seed, ranks):
    own = [random(seed + rank, 500, 3) for rank in range(ranks)]
    size = own[0].nbytes
    for rank, result in enumerate(lab.on_ranks(ranks).run(drivers.walk, per_rank=own)):
        got, what = result.value, f"rank {rank} of {ranks}"
        sources = [(rank - step) % ranks for step in range(ranks)]
        assert [source for source, _ in got["seen"]] == sources, f"{what}: in the order {sources}"
        for source, row in got["seen"]:
            assert_close(row, own[source][:1], f"{what}: the tensor of rank {source}")
        assert_close(got["own"], own[rank], f"{what}: own tensor must stay as it is")
        traffic = Traffic.from_data(got["traffic"])
        assert set(traffic.ops()) <= {"send", "recv"} and traffic.sent_bytes() == (ranks - 1) * size, (
            f"{what}: {ranks - 1} messages of {size} bytes to the next rank, got {traffic.ops()}, "
            f"{traffic.sent_bytes()} bytes"
        )
        events = ["work" if hasattr(event, "name") else event.op for event in traffic.events]
        for step in range(ranks - 1):
            upto = events[: [at for at, event in enumerate(events) if event == "work"][step]]
            assert upto.count("send") == upto.count("recv") == step + 1, (
                f"{what}: before the work of step {step} begins, {step + 1} messages must be under way or done, got "
                f"{upto}: else nobody receives while all compute"
            )
        assert got["peak"] <= 3.1 * size, (
            f"{what}: {got['peak'] / size:.1f} tensors in memory, expected own and two more"
        )


@exercise("3.3", "visible", points=3)
@pytest.mark.parametrize("causal", [False, True])
def test_who_sees_whom(lab, causal):
    length, sizes = 6, (1, 2, 5)
    for ranks, found in zip(sizes, lab.on_ranks(1).run(drivers.pairs, sizes, length, causal)[0].value, strict=True):
        at = [zigzag(ranks * length, rank, ranks) for rank in range(ranks)]
        for rank, source in itertools.product(range(ranks), repeat=2):
            seen = [[not causal or key <= query for key in at[source]] for query in at[rank]]
            rows = [row for row in range(length) if any(seen[row])]
            columns = [column for column in range(length) if any(line[column] for line in seen)]
            expected = (rows[0], rows[-1] + 1, columns[0], columns[-1] + 1)
            got = tuple(found[rank][source])
            assert got == expected, (
                f"{ranks} ranks, causal {causal}: queries at {at[rank]} (rank {rank}), keys at {at[source]} (rank "
                f"{source}): rows and columns {expected}, got {got}"
            )


def sequences(
    seed: int, ranks: int, half: int, heads: int = 4, kv_heads: int = 2, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """Query, key, value and upstream gradient of 2 N half tokens."""
    tokens = 2 * ranks * half
    return [
        tensor.to(dtype)
        for tensor in (*qkv(seed, tokens, tokens, heads, kv_heads), random(seed + 9, 2, heads, tokens, 5))
    ]


def observe(lab, name: str, cases: list[tuple[list[Tensor], bool]], ranks: int, backward: bool):
    """Values of `drivers.attention` on every rank, and what full attention gives: output and gradients."""
    own = [[[part(x, 2, rank, ranks) for x in tensors] for tensors, _ in cases] for rank in range(ranks)]
    causal = [masked for _, masked in cases]
    results = lab.on_ranks(ranks).run(drivers.attention, name, causal, backward, per_rank=own)
    expected = []
    for (*given, upstream), masked in cases:
        leaves = [tensor.double().requires_grad_() for tensor in given]
        output, _ = full_attention(*leaves, masked)
        output.backward(upstream.double())
        expected.append([output.detach(), *(leaf.grad for leaf in leaves)])
    return results, expected


def check_output(results, expected, cases, ranks: int) -> None:
    for rank, result in enumerate(results):
        for (tensors, masked), right, got in zip(cases, expected, result.value, strict=True):
            dtype, shapes = tensors[0].dtype, [list(tensor.shape) for tensor in tensors[:2]]
            what = f"rank {rank} of {ranks}, whole query and key {shapes}, {dtype}, causal {masked}"
            assert got["output"].dtype == dtype, f"{what}: output in {got['output'].dtype}"
            tolerance = FLOAT64 if dtype == torch.float64 else 0.02
            assert_close(got["output"], part(right[0], 2, rank, ranks), f"{what}: its part of the output", tolerance)


def ring_cases(seed: int, ranks: int) -> list[tuple[list[Tensor], bool]]:
    return [
        (sequences(seed, ranks, 3), True),
        (sequences(seed, ranks, 2), False),
        (sequences(seed, ranks, 1, heads=3, kv_heads=3), True),
        (sequences(seed, ranks, 2, dtype=torch.bfloat16), True),
    ]


@exercise("3.3", "RingAttention.forward", points=6)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_keys_travel_round_the_ring(lab, seed, ranks):
    cases = ring_cases(seed, ranks)
    results, expected = observe(lab, "ring_attention", cases, ranks, backward=False)
    check_output(results, expected, cases, ranks)
    for rank, result in enumerate(results):
        for (tensors, _), got in zip(cases, result.value, strict=True):
            traffic = Traffic.from_data(got["forward"])
            own = 2 * tensors[1].nbytes // ranks
            assert set(traffic.ops()) <= {"send", "recv"} and traffic.sent_bytes() == (ranks - 1) * own, (
                f"rank {rank} of {ranks}: {ranks - 1} times its keys and values of {own} bytes go to the next rank, "
                f"got {traffic.ops()} with {traffic.sent_bytes()} bytes"
            )
    check_work([[got["flops"][0] for got in result.value] for result in results], cases, ranks, products=2)


def check_work(flops: list[list[int]], cases: list[tuple[list[Tensor], bool]], ranks: int, products: int) -> None:
    """Equal within one block on all ranks, and no block that the mask hides, of causal attention; ``products`` for each
    pair of a query and a key."""
    for number, (tensors, masked) in enumerate(cases):
        batch, heads, tokens, width = tensors[0].shape
        chunk = tokens // (2 * ranks)
        block_flops = products * 2 * batch * heads * width * chunk**2
        blocks = 4 + 2 * (ranks - 1) if masked else 4 * ranks
        counts = [count[number] for count in flops]
        assert max(counts) - min(counts) <= block_flops, (
            f"{tokens} tokens, causal {masked}: FLOPs per rank {counts}, more than a block's {block_flops} apart: all "
            "wait for the one that has most"
        )
        assert max(counts) <= blocks * block_flops, (
            f"{tokens} tokens, causal {masked}: {max(counts) / block_flops:.1f} blocks of {chunk} x {chunk} scores "
            f"computed on a rank, {blocks} are enough: what nobody sees need not be computed and masked"
        )


def check_memory(lab, backward: bool) -> None:
    """Twice the memory for twice the tokens of a rank; and no more on 5 ranks than on 3, with as many tokens each."""
    lengths, wide = [(1, 256, 16), (1, 512, 16)], (1, 32, 256)  # heads, tokens of a rank, width
    few, many = (
        [
            each.value
            for each in lab.on_ranks(ranks, 60).run(drivers.attention_memory, "ring_attention", shapes, backward)
        ]
        for ranks, shapes in ((3, [*lengths, wide]), (5, [wide]))
    )
    for rank, peaks in enumerate(few):
        assert not square_in_memory(peaks), (
            f"rank {rank} of 3: {peaks[0]} bytes on 256 tokens a rank, {peaks[1]} on 512: that grows with the square "
            "of the tokens"
        )
    allowed = 1.1 * max(peaks[-1] for peaks in few)
    for rank, (peak,) in enumerate(many):
        assert peak <= allowed, (
            f"rank {rank} of 5 holds {peak} bytes, ranks of 3 with as many tokens each {allowed / 1.1:.0f}: keys of "
            "more than two ranks are in memory"
        )


@exercise("3.3", "RingAttention.forward", points=3)
def test_forward_holds_an_nth(lab):
    check_memory(lab, backward=False)


@exercise("3.3", "RingAttention.backward", points=7)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_gradients_come_home(lab, seed, ranks):
    cases = ring_cases(seed, ranks)
    results, expected = observe(lab, "ring_attention", cases, ranks, backward=True)
    for rank, result in enumerate(results):
        for (tensors, masked), right, got in zip(cases, expected, result.value, strict=True):
            dtype = tensors[0].dtype
            what = f"rank {rank} of {ranks}, {tensors[0].shape[2]} tokens, {dtype}, causal {masked}"
            tolerance = FLOAT64 if dtype == torch.float64 else 0.03
            for name, gradient, whole in zip(("query", "key", "value"), got["gradients"], right[1:], strict=True):
                assert gradient.dtype == dtype, f"{what}: gradient of {name} in {gradient.dtype}"
                assert_close(gradient, part(whole, 2, rank, ranks), f"{what}: gradient of {name}", tolerance)
            traffic = Traffic.from_data(got["backward"])
            keys = 2 * tensors[1].nbytes // ranks
            gradients = keys * max(4, dtype.itemsize) // dtype.itemsize
            assert set(traffic.ops()) <= {"send", "recv"} and traffic.sent_bytes() == (ranks - 1) * (
                keys + gradients
            ), (
                f"{what}: backward sends {ranks - 1} times keys and values ({keys} bytes) and their gradients "
                f"({gradients}, at least float32), {(ranks - 1) * (keys + gradients)} in all, got {traffic.ops()} with "
                f"{traffic.sent_bytes()}. The part that a rank adds for its own keys never leaves it"
            )
    check_work([[got["flops"][1] for got in result.value] for result in results], cases, ranks, products=5)


@exercise("3.3", "RingAttention.backward", points=3)
def test_backward_holds_an_nth(lab):
    check_memory(lab, backward=True)


# --- Ulysses ----------------------------------------------------------------------------------------------------------


@exercise("3.3", "tokens_to_heads", points=2)
@pytest.mark.parametrize("ranks", [1, 3])
def test_tokens_are_traded_for_heads(lab, seed, ranks):
    whole = random(seed, 2, 2 * ranks, 4 * ranks, 3)
    own = [block(whole, rank, ranks, 2) for rank in range(ranks)]
    check_trade(lab, "tokens_to_heads", own, [block(whole, rank, ranks, 1) for rank in range(ranks)])


@exercise("3.3", "heads_to_tokens", points=2)
@pytest.mark.parametrize("ranks", [1, 3])
def test_heads_are_traded_for_tokens(lab, seed, ranks):
    whole = random(seed, 2, 2 * ranks, 4 * ranks, 3)
    own = [block(whole, rank, ranks, 1) for rank in range(ranks)]
    check_trade(lab, "heads_to_tokens", own, [block(whole, rank, ranks, 2) for rank in range(ranks)])


def check_trade(lab, name: str, own: list[Tensor], expected: list[Tensor]) -> None:
    ranks = len(own)
    for rank, result in enumerate(lab.on_ranks(ranks).run(drivers.trade, name, per_rank=own)):
        what = f"{name} on rank {rank} of {ranks}, [B, H, L, D] = {list(own[rank].shape)}"
        assert_close(result.value["traded"], expected[rank], what)
        assert_calls(
            result.value["traffic"],
            [("all_to_all", own[rank].nbytes, ranks)] if ranks > 1 else [],
            f"{what}: one all-to-all. An all-gather sends N times as much",
        )


@exercise("3.3", "ulysses_attention", points=5)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_rank_attends_with_some_heads(lab, seed, ranks):
    cases = [
        (sequences(seed, ranks, 3), True),
        (sequences(seed, ranks, 2, heads=8, kv_heads=4), False),
        (sequences(seed, ranks, 1, heads=4, kv_heads=1), True),
    ]
    results, expected = observe(lab, "ulysses_attention", cases, ranks, backward=True)
    check_output(results, expected, cases, ranks)
    for rank, result in enumerate(results):
        for (tensors, masked), right, got in zip(cases, expected, result.value, strict=True):
            query, key = tensors[:2]
            what = f"rank {rank} of {ranks}, {query.shape[1]} heads, {key.shape[1]} kv heads, causal {masked}"
            for name, gradient, whole in zip(("query", "key", "value"), got["gradients"], right[1:], strict=True):
                assert_close(gradient, part(whole, 2, rank, ranks), f"{what}: gradient of {name}")
            head = query.nbytes // query.shape[1] // ranks  # of one rank's tokens
            traded = 2 * (query.shape[1] + max(key.shape[1], ranks)) * head * (ranks - 1) // ranks
            for direction in ("forward", "backward"):
                traffic = Traffic.from_data(got[direction])
                assert set(traffic.ops()) <= {"all_to_all"} and traffic.sent_bytes() == traded, (
                    f"{what}, {direction}: all-to-alls of query, key, value and output, (N - 1)/N of each, {traded} "
                    f"bytes, got {traffic.ops()} with {traffic.sent_bytes()}"
                )


@exercise("3.3", "ulysses_attention", points=1)
def test_heads_that_cannot_be_shared_out_are_refused(lab):
    def shapes(heads: int, kv_heads: int, tokens: int = 2) -> tuple:
        return [1, heads, tokens, 4], [1, kv_heads, tokens, 4], [1, kv_heads, tokens, 4]

    cases = [("ulysses_attention", shapes(*case)) for case in ((4, 2), (6, 2), (3, 3, 3))]
    for rank, result in enumerate(lab.on_ranks(3).run(drivers.refused, cases)):
        for (_, given), (message, calls) in zip(cases, result.value, strict=True):
            assert message and not calls, f"rank {rank} of 3, query and key {given[:2]}: ValueError, nothing sent"


# --- The whole model --------------------------------------------------------------------------------------------------


@exercise("3.3", "context_parallel", points=6)
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_the_whole_model_on_a_part_of_the_sequence(lab, seed, ranks):
    runs = [{"kind": "ring"}]
    if ranks == 4:  # Ulysses; then two groups of two for the sequence, and two for the matrices
        runs += [{"kind": "ulysses"}, {"kind": "ring", "groups": [[0, 2], [1, 3]], "tensor": [[0, 1], [2, 3]]}]
    length = 4 * ranks
    tokens = torch.randint(CONFIG.vocab, (2, length), generator=torch.Generator().manual_seed(seed))
    labels = torch.cat((tokens[:, 1:], torch.full((2, 1), -100)), 1)
    dense = build(CONFIG)
    logits = dense(tokens)
    F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum").backward()

    places = [[(rank // 2, 2) if "tensor" in run else (rank, ranks) for run in runs] for rank in range(ranks)]
    own = [
        [(part(tokens, 1, *at), torch.tensor(zigzag(length, *at)), part(labels, 1, *at)) for at in of] for of in places
    ]
    results = lab.on_ranks(ranks, 60).run(drivers.context_model, runs, CONFIG, per_rank=own)
    for rank, result in enumerate(results):
        for run, at, got in zip(runs, places[rank], result.value, strict=True):
            what = f"rank {rank} of {ranks}, {run['kind']}{', tensor-parallel too' * ('tensor' in run)}"
            assert got["same"], f"{what}: the model is changed in place and returned"
            assert_close(got["logits"], part(logits.detach(), 1, *at), f"{what}: logits of its tokens", FLOAT32)
            for name, parameter in dense.named_parameters():
                dim, replicas = got["cuts"].get(name, (0, 2))
                expected = parameter.grad
                if name in got["cuts"]:
                    expected = expected.chunk(2 // replicas, dim)[rank % 2 // replicas]
                assert_close(got["gradients"].get(name), expected, f"{what}: summed gradient of {name}", 5e-5)
            traffic = Traffic.from_data(got["traffic"])
            if run["kind"] == "ulysses":
                assert set(traffic.ops()) == {"all_to_all"}, f"{what}: all-to-alls alone, got {traffic.ops()}"
            elif "tensor" not in run:
                heads = CONFIG.layers * 2 * CONFIG.kv_heads
                keys = heads * 2 * (length // ranks) * CONFIG.head_dim * 4 * (ranks - 1)
                assert traffic.sent_bytes() == keys, (
                    f"{what}: {CONFIG.kv_heads} key heads travel, not the {CONFIG.heads} that the model makes of them: "
                    f"{keys} bytes in forward, got {traffic.sent_bytes()}"
                )


@exercise("3.3", "context_parallel", points=1)
def test_models_and_kinds_that_are_refused(lab):
    for result in lab.on_ranks(2).run(drivers.refused_models, CONFIG):
        for (message, calls), case in zip(result.value, ("kind 'star'", "a model without attention"), strict=True):
            assert message and not calls, f"{case}: ValueError"
