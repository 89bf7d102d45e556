"""Lesson 3.3: sequence and context parallelism, one long sequence shared by the ranks.

Tensor parallelism (3.1) cuts matrices and leaves the residual stream whole on every rank. *Sequence parallelism* cuts
that too, between the matrices, by tokens: each all-reduce becomes a reduce-scatter and an all-gather, which together
send as much, and norms and dropouts keep 1/N (Korthikanti et al. 2022). *Context parallelism* cuts the whole model's
input by tokens. Then only attention needs what other ranks have, and there are two ways: let keys and values travel
round a ring while everyone computes with what is there (*ring attention*, Liu et al. 2023), or trade tokens for heads
with an all-to-all, and back (*Ulysses*, Jacobs et al. 2023). Parts of a softmax can be added up exactly if each brings
its log-sum-exp. And since a causal query looks back only, the sequence is dealt out in a zig-zag, so that all ranks
have equally much to do.

Work from top to bottom. `group=None` means the default group; any number of ranks from 1 up, gloo/CPU and NCCL/CUDA
alike. A group of one sends nothing. What communicates has to be called on every rank of the group, in the same order,
with shards of equal shape. Waiting ends at the group's timeout. Bad input raises `ValueError` before anything is sent.
A sequence that cannot be cut into equal parts is refused, by all but `shard_batch`, which pads it. At the end of the
file stands what is given: `mix_shards`, `Shift`, `Shards`, `require_equal_parts`, `row_tiles` and `fold_heads`.

Sources:
    Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models", arXiv:2205.05198: section
        4.2.2, sequence parallelism.
    Liu et al. 2023, "Ring attention with blockwise transformers for near-infinite context", arXiv:2310.01889.
    Dao 2023, "FlashAttention-2", arXiv:2307.08691: section 3.1, log-sum-exp and backward by blocks.
    Brandon et al. 2023, "Striped attention", arXiv:2311.09431: why a causal ring needs another order of tokens.
    Llama team 2024, "The Llama 3 herd of models", arXiv:2407.21783: section 3.3.2, 2N chunks, rank i has i and 2N-1-i.
    Jacobs et al. 2023, "DeepSpeed Ulysses", arXiv:2309.14509: section 3, the all-to-all and its traffic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from labs.day3_model_parallel.tensor_parallel import (
    ColumnParallelLinear,
    Mirrored,
    ParallelAttention,
    ParallelDropout,
    ParallelMLP,
    RandomStreams,
    RowParallelLinear,
    VocabParallelEmbedding,
    copy_to_ranks,
    position,
    require_divisible,
    scatter_to_ranks,
)
from shardlab.models import Attention, FeedForward, Transformer
from shardlab.ranks import all_gather_single, reduce_scatter_single

IGNORE = -100  # a label that is not one
ROWS = 128  # queries whose scores are in memory at the same time


# --- Sequence parallelism: the residual stream is cut between the matrices --------------------------------------------


def gather_blocks(x: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """All ranks' blocks of tokens joined: [B, T/N, ...] on each rank becomes [B, T, ...] on all. Given."""
    size = position(group)[1]
    if size == 1:
        return x
    blocks = x.new_empty(size, *x.shape)
    all_gather_single(blocks.view(-1), x.contiguous().view(-1), group)
    return torch.cat(blocks.unbind(), dim=1)


def reduce_scatter_blocks(x: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """This rank's block of tokens of the sum over the ranks: [B, T, ...] becomes [B, T/N, ...].

    An all-reduce makes the whole sum on every rank; each rank needs 1/N of it, and so half of the messages.

    Args:
        x: any floating dtype and strides, the same shape on every rank. Not changed.

    Raises:
        ValueError: the number of ranks does not divide T.

    Example, x of 4 tokens is [1, 2, 3, 4] on rank 0 and [10, 20, 30, 40] on rank 1: rank 0 gets [11, 22], rank 1
    [33, 44].

    Hints:
        1. `reduce_scatter_single` cuts one flat tensor into N contiguous blocks. Which layout of x has block r of the
           tokens, of *all* sequences of the batch, in one piece?
        2. ``chunk`` and ``torch.stack``. `require_equal_parts` checks.
    """
    # BEGIN SOLUTION
    size = position(group)[1]
    require_equal_parts(x.shape[1], size)
    if size == 1:
        return x
    blocks = torch.stack(x.chunk(size, dim=1))
    own = torch.empty_like(blocks[0])
    reduce_scatter_single(own.view(-1), blocks.view(-1), dist.ReduceOp.SUM, group)
    return own
    # END SOLUTION


def gather_sequence(x: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Where a cut residual stream enters a tensor-parallel layer: [B, T/N, C] becomes [B, T, C] on every rank.

    Every rank uses all tokens, for its own part of the layer, and finds its part of their gradients: in backward they
    have to be summed, and a rank needs them for its own tokens only. It stands where `copy_to_ranks` stood.

    Hints:
        1. `Mirrored` takes a function for each direction.
    """
    # BEGIN SOLUTION
    return Mirrored.apply(x, partial(gather_blocks, group=group), partial(reduce_scatter_blocks, group=group))
    # END SOLUTION


def scatter_sequence(x: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Where a tensor-parallel layer ends: sum over the ranks, and keep own tokens: [B, T, C] becomes [B, T/N, C].

    The mirror of `gather_sequence`. It stands where `reduce_from_ranks` stood.

    Raises:
        ValueError: the number of ranks does not divide T.
    """
    # BEGIN SOLUTION
    return Mirrored.apply(x, partial(reduce_scatter_blocks, group=group), partial(gather_blocks, group=group))
    # END SOLUTION


class SequenceParallelNorm(nn.RMSNorm):
    """RMSNorm of a cut residual stream. Its weight is whole on every rank, and so is the weight's gradient.

    Args:
        dense: the norm to take the weight from.
    """

    def __init__(self, dense: nn.RMSNorm, group: ProcessGroup | None = None) -> None:
        super().__init__(dense.normalized_shape, eps=dense.eps, device="meta")
        self.weight = dense.weight
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        """Args: x [B, T/N, C]. Returns the same shape.

        Example, 2 ranks whose tokens give the weight the gradients 1 and 3: 4 on both.

        Hints:
            1. Each rank sees some of the tokens only. What does its gradient of the weight lack? Without it nothing
               fails: the ranks' weights just drift apart.
            2. `F.rms_norm`; one of the four functions of 3.1, of the weight.
        """
        # BEGIN SOLUTION
        return F.rms_norm(x, self.normalized_shape, copy_to_ranks(self.weight, self.group), self.eps)
        # END SOLUTION


class SequenceRowLinear(RowParallelLinear):
    """`RowParallelLinear` that returns own tokens of the sum: [B, T, in/N] becomes [B, T/N, out]. No bias. Given."""

    def forward(self, x: Tensor) -> Tensor:
        return scatter_sequence(F.linear(x, self.weight), self.group)


class SequenceParallelAttention(ParallelAttention):
    """3.1's attention between a gather and a scatter: as many bytes as its two all-reduces.

    Args:
        dense: as for `ParallelAttention`.
    """

    def __init__(self, dense: Attention, group: ProcessGroup | None = None) -> None:
        super().__init__(dense, group)
        self.output = SequenceRowLinear(dense.output, group)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Args: x [B, T/N, C], positions [T] or [B, T] of the whole sequence. Returns [B, T/N, C].

        Hints:
            1. ``super().forward`` would copy its input to the ranks again, and sum its gradient twice. Which class's
               forward does the rest and nothing more?
        """
        # BEGIN SOLUTION
        return Attention.forward(self, gather_sequence(x, self.group), positions)
        # END SOLUTION


class SequenceParallelMLP(ParallelMLP):
    """3.1's feed-forward network between a gather and a scatter. Given."""

    def __init__(self, dense: FeedForward, group: ProcessGroup | None = None) -> None:
        super().__init__(dense, group)
        self.down = SequenceRowLinear(dense.down, group)

    def forward(self, x: Tensor) -> Tensor:
        return FeedForward.forward(self, gather_sequence(x, self.group))


class SequenceParallelEmbedding(VocabParallelEmbedding):
    """3.1's embedding, of which every rank keeps its block of tokens: [B, T] becomes [B, T/N, C]. Given."""

    def forward(self, tokens: Tensor) -> Tensor:
        return scatter_to_ranks(super().forward(tokens), self.group, dim=1)


class SequenceParallelHead(ColumnParallelLinear):
    """3.1's head on a cut residual stream: [B, T/N, C] becomes [B, T, vocab/N]. Given."""

    def __init__(self, dense: nn.Linear, group: ProcessGroup | None = None) -> None:
        super().__init__(dense, group, copy_input=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(gather_sequence(x, self.group))


def sequence_parallel(model: Transformer, group: ProcessGroup | None = None, seed: int = 0) -> Transformer:
    """3.1's `shard_transformer` with a residual stream that is cut by tokens: rank r has the r-th block of them.

    Args:
        model: dense, made by `build` or `Transformer`, the same on every rank.
        seed: of the dropouts' random streams.

    Returns:
        The same object. ``model(tokens)`` takes whole sequences, the same on every rank, of a length that the ranks
        divide, and gives this rank's block of the logits, [B, T, vocab/N], for `vocab_parallel_cross_entropy`. All
        parameters have complete gradients; nothing is left to be summed.

    Raises:
        ValueError: sizes that cannot be shared out, see `shard_transformer`; the model is left as it was.

    Hints:
        1. Which modules see a cut stream? There is a class above for each, but one: with `RandomStreams`, may the masks
           of two ranks be the same?
        2. ``model.tie_weights()`` at the end.
    """
    require_divisible(model.config, position(group)[1])
    # BEGIN SOLUTION
    streams = RandomStreams(seed, group)
    for block in model.blocks:
        block.attention_norm = SequenceParallelNorm(block.attention_norm, group)
        block.attention = SequenceParallelAttention(block.attention, group)
        block.mlp_norm = SequenceParallelNorm(block.mlp_norm, group)
        block.mlp = SequenceParallelMLP(block.mlp, group)
        block.dropout = ParallelDropout(block.dropout.p, streams, sharded=True)
    model.embedding = SequenceParallelEmbedding(model.embedding, group)
    model.norm = SequenceParallelNorm(model.norm, group)
    model.head = SequenceParallelHead(model.head, group)
    model.tie_weights()
    return model
    # END SOLUTION


# --- Attention in parts -----------------------------------------------------------------------------------------------


def merge_attention(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over two sets of keys, from the attention over each.

    A softmax over some keys is exp(score) / exp(lse), lse = log of the sum of exp(score). With the lse of both sets it
    is known by how much each was divided, so what one softmax over all would have given is known too.

    Args:
        out_a, out_b: [..., D] outputs for the same queries.
        lse_a, lse_b: [...] their log-sum-exp in nats, float32 or wider; -inf for a query that saw no key. Any size: a
            score of 200 is common, and exp(89) is already too large for float32.

    Returns:
        (output [..., D], lse [...]) over the union; 0 and -inf where neither set had a key. Never inf or NaN from
        finite numbers and -inf.

    Example, lse 0 and log 3, outputs 1 and 5: output (1 x 1 + 3 x 5) / 4 = 4, lse log 4. Of 0 and 200: lse 200.0.

    Hints:
        1. Multiply both parts by their own sum of exp(score), and divide by the sum of all. In which form do these
           numbers stay small? One of the two may be made 1.
        2. `torch.maximum`. What is -inf - (-inf)? Which finite number may be subtracted in its place?
    """
    # BEGIN SOLUTION
    largest = torch.maximum(lse_a, lse_b)
    finite = largest.masked_fill(largest == -torch.inf, 0)
    weight_a, weight_b = (lse_a - finite).exp(), (lse_b - finite).exp()
    total = (weight_a + weight_b).clamp(min=1)  # the larger one is exp(0) = 1: this changes only what saw no key
    mixed = weight_a.unsqueeze(-1) * out_a + weight_b.unsqueeze(-1) * out_b
    return mixed / total.unsqueeze(-1), largest + total.log()
    # END SOLUTION


def tile_scores(query: Tensor, key: Tensor, rows: slice, causal: bool) -> Tensor:
    """Scores of the queries ``rows`` against the keys, query . key / sqrt(D); causal: against keys 0 ... rows.stop - 1.
    Given.

    Args:
        query: [B, H, Tq, D]. key: [B, Hkv, Tk, D], float32 or wider; H / Hkv neighbouring query heads share a key head.
            Causal: query i sees keys 0 ... i.

    Returns:
        [B, Hkv, (H / Hkv) R, Tk or rows.stop] for R rows, in the dtype of key; -inf where a query may not look. Query
        heads that share a key head stand below each other, so that it is one product.
    """
    columns = rows.stop if causal else key.shape[2]
    scaled = fold_heads(query, rows, key) * query.shape[-1] ** -0.5
    scores = scaled @ key[:, :, :columns].mT
    if causal:
        count = rows.stop - rows.start
        hidden = torch.ones(count, count, dtype=torch.bool, device=key.device).triu(1)
        scores.unflatten(2, (-1, count))[..., rows.start :].masked_fill_(hidden, -torch.inf)
    return scores


def attend_block(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Attention over some of the keys, and its log-sum-exp: what `merge_attention` needs.

    Args:
        query: [B, H, Tq, D]. key, value: [B, Hkv, Tk, D], Hkv divides H. One floating dtype.
        causal: query i sees keys 0 ... i, Tq = Tk; else every query sees every key.

    Returns:
        (output [B, H, Tq, D], lse [B, H, Tq]), float32 (or float64 for float64). The scores of `ROWS` queries are in
        memory at the same time, never those of all.

    Example, one query, keys with scores 0 and log 3, values 1 and 5: output 4, lse log 4.

    Hints:
        1. Subtract each row's maximum before ``exp_``: what has to be added to the lse again?
        2. `row_tiles` and `tile_scores` give the loop and the scores; ``output[:, :, rows]`` is [B, H, R, D] where the
           tile has [B, Hkv, (H / Hkv) R, ...]: ``reshape`` between them.
    """
    # BEGIN SOLUTION
    wide = torch.promote_types(query.dtype, torch.float32)
    key, value = key.to(wide), value.to(wide)
    output = torch.empty_like(query, dtype=wide, memory_format=torch.contiguous_format)
    lse = output.new_empty(query.shape[:3])
    for rows in row_tiles(query.shape[2]):
        scores = tile_scores(query, key, rows, causal)
        largest = scores.amax(-1, keepdim=True)
        weights = scores.sub_(largest).exp_()
        total = weights.sum(-1, keepdim=True)
        mixed = (weights @ value[:, :, : weights.shape[-1]]).div_(total)
        output[:, :, rows] = mixed.view_as(output[:, :, rows])
        lse[:, :, rows] = total.log_().add_(largest).view_as(lse[:, :, rows])
    return output, lse
    # END SOLUTION


def attend_block_backward(
    grad_output: Tensor, query: Tensor, key: Tensor, value: Tensor, lse: Tensor, delta: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """What some of the keys add to the gradients of query, key and value.

    With P = exp(S - lse), the weights that the softmax over *all* keys gave to these (Dao 2023, algorithm 2):

        dV = P^T dO        dS = P * (dO V^T - delta)        dQ = dS K / sqrt(D)        dK = dS^T Q / sqrt(D)

    Args:
        grad_output: [B, H, Tq, D], gradient of the attention over all keys.
        query, key, value, causal: as for `attend_block`.
        lse: [B, H, Tq] over all keys, and not over these alone.
        delta: [B, H, Tq], sum over D of grad_output x output, of the output over all keys.

    Returns:
        Gradients of query, key and value, float32 (or float64), in their shapes. Query heads that share a key head all
        add to its gradient.

    Hints:
        1. The loop of `attend_block`, with the softmax known from the start.
        2. `fold_heads` lays out rows of grad_output, lse and delta like the scores. Heads that share a key head stand
           below each other: what does the product with a transposed matrix sum over?
    """
    # BEGIN SOLUTION
    scale = query.shape[-1] ** -0.5
    wide = torch.promote_types(query.dtype, torch.float32)
    key, value = key.to(wide), value.to(wide)
    grad_query = torch.empty_like(query, dtype=wide, memory_format=torch.contiguous_format)
    grad_key, grad_value = (torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (key, value))
    for rows in row_tiles(query.shape[2]):
        scores = tile_scores(query, key, rows, causal)
        columns = slice(scores.shape[-1])
        weights = scores.sub_(fold_heads(lse.unsqueeze(-1), rows, key)).exp_()
        grad_rows = fold_heads(grad_output, rows, key)
        grad_value[:, :, columns] += weights.mT @ grad_rows
        grad_weights = grad_rows @ value[:, :, columns].mT
        grad_scores = grad_weights.sub_(fold_heads(delta.unsqueeze(-1), rows, key)).mul_(weights)
        grad_query[:, :, rows] = (grad_scores @ key[:, :, columns]).view_as(grad_query[:, :, rows])
        grad_key[:, :, columns] += grad_scores.mT @ fold_heads(query, rows, key)
    return grad_query.mul_(scale), grad_key.mul_(scale), grad_value
    # END SOLUTION


# --- The zig-zag ------------------------------------------------------------------------------------------------------


def zigzag_positions(sequence: int, rank: int, ranks: int) -> Tensor:
    """Which tokens of a sequence a rank has: it is cut into 2N chunks, and rank r has the r-th and the r-th from the
    end.

    A causal query at position t sees t + 1 keys. With the r-th of N equal parts each, the last rank would have almost
    2N times the work of the first, and everybody waits for the last. Every pair (r, 2N - 1 - r) has the same sum.

    Args:
        sequence: T, tokens in all.

    Returns:
        [T / N] int64, ascending. They are also the positions for the rotary embedding.

    Raises:
        ValueError: 2 N does not divide T.

    Example, T = 8, N = 2: rank 0 has [0, 1, 6, 7], rank 1 [2, 3, 4, 5].

    Hints:
        1. `torch.arange` and ``chunk``.
    """
    require_equal_parts(sequence, 2 * ranks)
    # BEGIN SOLUTION
    chunks = torch.arange(sequence).chunk(2 * ranks)
    return torch.cat((chunks[rank], chunks[-1 - rank]))
    # END SOLUTION


def zigzag_split(tensor: Tensor, dim: int, group: ProcessGroup | None = None) -> Tensor:
    """This rank's part of ``tensor``, cut along ``dim`` in a zig-zag, contiguous. Nothing is sent.

    Args:
        tensor: any dtype, the same on every rank.
        dim: the tokens' dimension, may be negative.

    Raises:
        ValueError: twice the number of ranks does not divide the size.

    Hints:
        1. Two of 2N chunks: ``chunk``, ``torch.cat``. Or `zigzag_positions` and ``index_select``.
    """
    # BEGIN SOLUTION
    rank, size = position(group)
    return tensor.index_select(dim, zigzag_positions(tensor.shape[dim], rank, size).to(tensor.device))
    # END SOLUTION


def zigzag_merge(shard: Tensor, dim: int, group: ProcessGroup | None = None) -> Tensor:
    """The parts of all ranks, in the order of the sequence: the inverse of `zigzag_split`, on every rank.

    Everything after it is the same on every rank, so in backward each keeps its part of the gradient.

    Args:
        shard: this rank's part; the same shape on every rank, an even size along ``dim``.

    Raises:
        ValueError: an odd size along ``dim``.

    Example, [0, 1, 6, 7] on rank 0 and [2, 3, 4, 5] on rank 1: 0 ... 7 on both.

    Hints:
        1. Of the parts of all ranks, joined: where is token t? Two halves per rank; the second ones run backwards.
        2. `gather_blocks` joins along dimension 1: ``movedim``. `Mirrored`. `restore_order` undoes the zig-zag.
    """
    require_equal_parts(shard.shape[dim], 2)
    # BEGIN SOLUTION
    dim = dim % shard.dim()

    def join(own: Tensor) -> Tensor:
        joined = gather_blocks(own.unsqueeze(0).movedim(dim + 1, 1), group)
        return restore_order(joined, 1, position(group)[1]).movedim(1, dim + 1).squeeze(0)

    return Mirrored.apply(shard, join, partial(zigzag_split, dim=dim, group=group))
    # END SOLUTION


def restore_order(joined: Tensor, dim: int, ranks: int) -> Tensor:
    """Tokens in the order of the sequence, of the zig-zag parts of ranks 0, 1, ... one after the other. Given."""
    halves = joined.chunk(2 * ranks, dim)
    return torch.cat((*halves[::2], *reversed(halves[1::2])), dim)


def shard_batch(
    tokens: Tensor, group: ProcessGroup | None = None, targets: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """This rank's part of a batch: its tokens, where they stand, and what is to be predicted at each.

    The label of a token is the next one, and that may lie on another rank: labels are made of the whole sequence,
    before it is cut. A sequence that 2N does not divide is padded at its end, with token 0 and no label: causal
    attention looks back, so no real token sees them.

    Args:
        tokens: [B, T] int64, the same on every rank.
        targets: [B, T] int64, label of each position, `IGNORE` for none. Without: the next token of each, none for the
            last.

    Returns:
        (tokens [B, L], positions [L], labels [B, L]), L = T / N, rounded up to an even number.

    Raises:
        ValueError: tokens that are not [B, T], targets of another shape.

    Example, tokens [10, 11, 12] on 2 ranks, padded to 4: rank 0 has tokens [10, 0], positions [0, 3], labels
    [11, -100]; rank 1 [11, 12], [1, 2], [12, -100].

    Hints:
        1. `F.pad` takes (before, after) of the last dimension first. How many are missing, if it is none that is?
    """
    if tokens.dim() != 2 or (targets is not None and targets.shape != tokens.shape):
        shapes = [list(each.shape) for each in (tokens, targets) if each is not None]
        raise ValueError(f"need tokens [batch, sequence], and targets of the same shape, got {shapes}")
    # BEGIN SOLUTION
    rank, size = position(group)
    if targets is None:
        targets = F.pad(tokens[:, 1:], (0, 1), value=IGNORE)
    missing = -tokens.shape[1] % (2 * size)
    tokens, targets = F.pad(tokens, (0, missing)), F.pad(targets, (0, missing), value=IGNORE)
    positions = zigzag_positions(tokens.shape[1], rank, size).to(tokens.device)
    return tokens[:, positions], positions, targets[:, positions]
    # END SOLUTION


def shard_loss(logits: Tensor, labels: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """This rank's part of the mean cross-entropy in nats: the sum over its labels, divided by how many *all* have.

    The parts of all ranks add up to the loss. So do the gradients: sum them over the group, and do not average.

    Args:
        logits: [B, L, vocab]. labels: [B, L] int64, `IGNORE` for none.

    Returns:
        0-d float32; 0 where no rank has a label.

    Example, 2 ranks with 3 and 1 labels and losses of 1 and 5 each: 0.75 and 1.25, together 2.0. The mean of their
    means would be 3.0.

    Hints:
        1. One number has to travel. ``reduction="sum"``.
    """
    # BEGIN SOLUTION
    count = (labels != IGNORE).sum()
    if position(group)[1] > 1:
        dist.all_reduce(count, group=group)
    total = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORE, reduction="sum")
    return total / count.clamp(min=1)
    # END SOLUTION


# --- The ring ---------------------------------------------------------------------------------------------------------


def pass_on(tensor: Tensor, group: ProcessGroup | None = None, tag: int = 0) -> Shift:
    """Start to send ``tensor`` to the next rank of the ring, and to receive that of the rank before. Returns at once.

    Args:
        tensor: contiguous; not to be changed until ``wait()`` has returned. The same shape on every rank.
        tag: messages with different tags may be under way at the same time.

    Returns:
        A `Shift`: ``wait()`` gives the tensor that arrived, a new one.

    Hints:
        1. `dist.P2POp` takes ``group_peer``; `dist.batch_isend_irecv` starts all of them and returns their handles.
    """
    # BEGIN SOLUTION
    rank, size = position(group)
    arriving = torch.empty_like(tensor)
    send = dist.P2POp(dist.isend, tensor, group=group, group_peer=(rank + 1) % size, tag=tag)
    receive = dist.P2POp(dist.irecv, arriving, group=group, group_peer=(rank - 1) % size, tag=tag)
    return Shift(tensor, arriving, dist.batch_isend_irecv([send, receive]))
    # END SOLUTION


def circulate(own: Tensor, group: ProcessGroup | None = None) -> Iterator[tuple[int, Tensor]]:
    """Every rank's tensor, one after the other: own first, then that of the rank before, and so on round the ring.

    While the caller works with one, it travels on and the next one arrives: two are in memory (and ``own``, which is
    the caller's), however many ranks there are. N - 1 messages; the last tensor stays where it is.

    Args:
        own: contiguous, the same shape on every rank; not to be changed.

    Yields:
        (rank whose tensor it is, tensor).

    Example, 3 ranks, on rank 1: (1, own), (0, ...), (2, ...).

    Hints:
        1. What must have been started before ``yield``, what can wait until after it? How often does it happen?
    """
    # BEGIN SOLUTION
    rank, size = position(group)
    for step in range(size):
        shift = pass_on(own, group) if step < size - 1 else None
        yield (rank - step) % size, own
        if shift is not None:
            own = shift.wait()
    # END SOLUTION


def visible(rank: int, source: int, length: int, causal: bool) -> tuple[slice, slice]:
    """Which queries of ``rank`` see which keys of ``source``, another rank of the ring: (rows, columns).

    Both have ``length`` tokens of a zig-zag: a chunk from the front of the sequence and one from its back. Causal, for
    two different ranks, each query of some chunk sees all keys of another chunk or none.

    Returns:
        Two slices of 0 ... length: all those queries see all those keys, and no others see any. For source = rank, and
        where causal is False: both whole.

    Example, T = 8 on 2 ranks, [0, 1, 6, 7] and [2, 3, 4, 5]: of rank 0 the queries 6 and 7 see all keys of rank 1; of
    rank 1 all queries see keys 0 and 1.

    Hints:
        1. Draw the four chunks of two ranks on a line. Two cases are left.
    """
    # BEGIN SOLUTION
    whole, half = slice(0, length), length // 2
    if not causal or source == rank:
        return whole, whole
    return (whole, slice(0, half)) if source < rank else (slice(half, length), whole)
    # END SOLUTION


class RingAttention(torch.autograd.Function):
    """Attention of a sequence that is spread over the ranks. `ring_attention` calls it.

    Both directions take O(T / N) memory: no rank ever has all keys, or all scores of its own queries.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, causal: bool, group: ProcessGroup | None
    ) -> Tensor:
        """Compute with the keys and values that are there, while they travel on and the next ones arrive.

        Args:
            query: [B, H, L, D]. key, value: [B, Hkv, L, D]; L = T / N.

        Returns:
            [B, H, L, D] in the dtype of query. Kept for backward: the own three, the output, and the log-sum-exp over
            all keys.

        A rank sends (N - 1) times its keys and values, in their dtype: 2 B Hkv L D numbers.

        Hints:
            1. What are the output and the lse of a query that has seen nothing yet?
            2. `circulate` of keys and values in one tensor; `visible`; own keys are seen causally, those of others
               wholly; `merge_attention` into the rows concerned.
        """
        # BEGIN SOLUTION
        rank, _ = position(group)
        output = torch.zeros_like(query, dtype=torch.promote_types(query.dtype, torch.float32))
        lse = output.new_full(query.shape[:3], -torch.inf)
        for source, (keys, values) in circulate(torch.stack((key, value)), group):
            rows, columns = visible(rank, source, query.shape[2], causal)
            part = attend_block(
                query[:, :, rows], keys[:, :, columns], values[:, :, columns], causal and source == rank
            )
            output[:, :, rows], lse[:, :, rows] = merge_attention(output[:, :, rows], lse[:, :, rows], *part)
        output = output.to(query.dtype)
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.causal, ctx.group = causal, group
        return output
        # END SOLUTION

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        """Keys and values go round again, and behind them their gradients, to which every rank adds its part.

        The gradients of a rank's keys begin one rank further on, N - 1 messages from home; what the rank itself adds
        waits for them there. They travel in float32 (float64 for float64): rounded to 16 bits at every rank the parts
        would be lost.

        Args:
            grad_output: [B, H, L, D].

        Returns:
            Gradients of query, key and value, in their dtypes, and None for the rest.

        A rank sends (N - 1) times its keys and values, and (N - 1) times their gradients.

        Hints:
            1. ``delta``, once, of the whole output. Which lse?
            2. Whose gradients arrive while this rank works on step t? Write a table for 3 ranks: step, source, what is
               added to, what is sent on. Where are they after the last message?
            3. `pass_on` with another tag than keys and values; ``wait()`` when the part to be added is ready.
        """
        # BEGIN SOLUTION
        query, key, value, output, lse = ctx.saved_tensors
        rank, _ = position(ctx.group)
        delta = (grad_output.to(lse.dtype) * output.to(lse.dtype)).sum(-1)
        grad_query = torch.zeros_like(query, dtype=lse.dtype)
        shift: Shift | None = None
        for source, (keys, values) in circulate(torch.stack((key, value)), ctx.group):
            rows, columns = visible(rank, source, query.shape[2], ctx.causal)
            of_query, *of_keys = attend_block_backward(
                grad_output[:, :, rows],
                query[:, :, rows],
                keys[:, :, columns],
                values[:, :, columns],
                lse[:, :, rows],
                delta[:, :, rows],
                ctx.causal and source == rank,
            )
            grad_query[:, :, rows] += of_query
            if source == rank:
                at_home = torch.stack(of_keys)
                continue
            travelling = shift.wait() if shift else torch.zeros_like(at_home)
            travelling[:, :, :, columns] += torch.stack(of_keys)
            shift = pass_on(travelling, ctx.group, tag=1)
        if shift:
            at_home += shift.wait()
        grad_key, grad_value = at_home.to(key.dtype)
        return grad_query.to(query.dtype), grad_key, grad_value, None, None
        # END SOLUTION


def ring_attention(
    query: Tensor, key: Tensor, value: Tensor, causal: bool = True, group: ProcessGroup | None = None
) -> Tensor:
    """softmax(query key^T / sqrt(D)) value of sequences that the ranks share; differentiable. Given.

    Args:
        query: [B, H, L, D], this rank's part in a zig-zag (`zigzag_split`). key, value: [B, Hkv, L, D], likewise, Hkv
            divides H: fewer key heads are fewer bytes to send. One floating dtype, the same shapes on every rank.
        causal: each token sees itself and those before it. Else all, and then the ranks may share out tokens as they
            like, as long as all have equally many.

    Returns:
        [B, H, L, D] in the dtype of query.

    Raises:
        ValueError: shapes or dtypes that do not fit, or causal with an odd L, which is no zig-zag.
    """
    Shards.of(query, key, value, causal)
    with torch.autocast(query.device.type, enabled=False):  # or the float32 products would be made in 16 bits
        return RingAttention.apply(query, key, value, causal, group)


# --- Ulysses ----------------------------------------------------------------------------------------------------------


def tokens_to_heads(x: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Trade tokens for heads: own tokens of all heads become all tokens of own heads. No gradient yet.

    Args:
        x: [B, H, L, D], any strides; N divides H.

    Returns:
        [B, H / N, N L, D]: this rank's heads, the tokens of ranks 0, 1, ... one after the other.

    Example, 2 ranks, 2 heads, 1 token each, rank r's x is [r0, r1]: rank 0 gets [00, 10], rank 1 [01, 11].

    Hints:
        1. `dist.all_to_all_single` sends the i-th block of a contiguous tensor to rank i, and puts what came from rank
           i into block i. Which blocks along which dimension are the heads for rank i?
        2. ``torch.stack(x.chunk(...))``; what arrived is [N, B, H / N, L, D].
    """
    # BEGIN SOLUTION
    size = position(group)[1]
    if size == 1:
        return x
    blocks = torch.stack(x.chunk(size, dim=1))
    arrived = torch.empty_like(blocks)
    dist.all_to_all_single(arrived, blocks, group=group)
    return torch.cat(arrived.unbind(), dim=2)
    # END SOLUTION


def heads_to_tokens(x: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """The inverse of `tokens_to_heads`: [B, H / N, N L, D] becomes [B, H, L, D]. No gradient yet."""
    # BEGIN SOLUTION
    size = position(group)[1]
    if size == 1:
        return x
    blocks = torch.stack(x.chunk(size, dim=2))
    arrived = torch.empty_like(blocks)
    dist.all_to_all_single(arrived, blocks, group=group)
    return torch.cat(arrived.unbind(), dim=1)
    # END SOLUTION


def ulysses_attention(
    query: Tensor, key: Tensor, value: Tensor, causal: bool = True, group: ProcessGroup | None = None
) -> Tensor:
    """The same as `ring_attention`, by trading tokens for heads: each rank does ordinary attention for H / N of them.

    Four all-to-alls in forward, of query, key, value and output, and their mirrors in backward. A rank sends (N - 1)/N
    of each: 2 (H + Hkv) (N - 1)/N x B L D numbers, less the more ranks there are, where the ring's traffic does not
    shrink. But there must be a head for every rank.

    Args:
        query, key, value, causal: as for `ring_attention`. N divides H; and N divides Hkv, or Hkv divides N: then each
            key head is sent to the N / Hkv ranks that need it, as if there were N.

    Returns:
        [B, H, L, D] in the dtype of query.

    Raises:
        ValueError: shapes that do not fit, or heads that cannot be shared out equally.

    Hints:
        1. What is the backward of a trade? `Mirrored`.
        2. Causal attention needs the tokens in order, and they come in a zig-zag: `restore_order` after the trade, and
           before trading back the order in which the ranks have them: `zigzag_positions` of all ranks.
        3. ``repeat_interleave`` along the heads, before the trade where Hkv < N, and after it for
           `F.scaled_dot_product_attention`, with ``is_causal``.
    """
    shards = Shards.of(query, key, value, causal)
    size = position(group)[1]
    if shards.heads % size:
        raise ValueError(f"ulysses_attention: {shards.heads} heads cannot be shared out equally among {size} ranks")
    if shards.kv_heads % size and size % shards.kv_heads:
        raise ValueError(
            f"ulysses_attention: {shards.kv_heads} kv heads cannot be shared out equally among {size} ranks, nor each "
            "by as many"
        )
    # BEGIN SOLUTION
    to_heads, to_tokens = partial(tokens_to_heads, group=group), partial(heads_to_tokens, group=group)
    if shards.kv_heads < size:
        key, value = (x.repeat_interleave(size // shards.kv_heads, dim=1) for x in (key, value))
    query, key, value = (Mirrored.apply(x, to_heads, to_tokens) for x in (query, key, value))
    if causal:
        query, key, value = (restore_order(x, 2, size) for x in (query, key, value))
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
    output = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
    if causal:
        order = torch.cat([zigzag_positions(output.shape[2], rank, size) for rank in range(size)])
        output = output[:, :, order.to(output.device)]
    return Mirrored.apply(output, to_tokens, to_heads)
    # END SOLUTION


# --- The whole model --------------------------------------------------------------------------------------------------


def context_parallel(model: nn.Module, group: ProcessGroup | None = None, kind: str = "ring") -> nn.Module:
    """Let every attention of a model work on sequences that the ranks of ``group`` share; in place.

    Nothing else in the model looks at two tokens at once. So nothing else changes: it gets this rank's tokens and
    *positions* (`shard_batch`), its logits are those of these tokens, and the loss is `shard_loss`. The model is whole
    on every rank, as with data parallelism, and like there the caller sums the gradients, over the same group.

    Args:
        model: with the kit's `Attention` in it, or 3.1's: `shard_transformer`, and then this, over two groups, give
            tensor and context parallelism. To be called before parameters are sharded over ranks by ZeRO-3 or FSDP.
        kind: ``"ring"`` or ``"ulysses"``.

    Returns:
        The same object: ``model(tokens, positions)``.

    Raises:
        ValueError: another kind, or no attention in the model.

    Hints:
        1. `Attention.mix`, and `mix_shards` with everything but the first three arguments fixed.
        2. How many query heads share a key head can be read off the two projections' weights.
    """
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    kinds: dict[str, Callable[..., Tensor]] = {"ring": ring_attention, "ulysses": ulysses_attention}
    if kind not in kinds:
        raise ValueError(f"kind must be one of {', '.join(kinds)}, got {kind!r}")
    if not attentions:
        raise ValueError(f"context_parallel needs a model with attention, found none in {type(model).__name__}")
    # BEGIN SOLUTION
    for attention in attentions:
        sharing = attention.query.weight.shape[0] // attention.key.weight.shape[0]
        attention.mix = partial(mix_shards, attend=kinds[kind], sharing=sharing, group=group)
    return model
    # END SOLUTION


# --- Given ------------------------------------------------------------------------------------------------------------


def mix_shards(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    attend: Callable[..., Tensor],
    sharing: int,
    group: ProcessGroup | None,
) -> Tensor:
    """`Attention.mix` of sequences that ranks share. The kit has repeated each key head ``sharing`` times; one of
    each is enough to send, and its gradient is the sum over all that use it."""
    return attend(query, key[:, ::sharing], value[:, ::sharing], True, group)


class Shift:
    """A message to the next rank and one from the rank before, under way. Waiting ends at the group's timeout."""

    def __init__(self, leaving: Tensor, arriving: Tensor, works: list[dist.Work]) -> None:
        self._leaving: Tensor | None = leaving  # must live until it is sent
        self._arriving = arriving
        self._works = works

    def wait(self) -> Tensor:
        """The tensor that arrived, when both are done."""
        for work in self._works:
            work.wait()
        self._works, self._leaving = [], None
        return self._arriving


class Shards(NamedTuple):
    """What the shapes of query, key and value say."""

    heads: int
    kv_heads: int

    @classmethod
    def of(cls, query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Shards:
        """Raises ValueError for shapes and dtypes that do not belong together."""
        shapes = f"query {list(query.shape)}, key {list(key.shape)}, value {list(value.shape)}"
        if query.dim() != 4 or key.dim() != 4 or key.shape != value.shape:
            raise ValueError(f"need query [B, H, L, D], key and value [B, Hkv, L, D], got {shapes}")
        batch, heads, length, width = query.shape
        if key.shape != (batch, key.shape[1], length, width) or not key.shape[1] or heads % key.shape[1]:
            raise ValueError(f"query and key need the same B, L and D, and Hkv must divide H, got {shapes}")
        if not query.dtype == key.dtype == value.dtype or not query.is_floating_point():
            raise ValueError(f"need one floating dtype, got {query.dtype}, {key.dtype} and {value.dtype}")
        if causal and length % 2:
            raise ValueError(f"a zig-zag has two chunks per rank: {length} tokens cannot be halved")
        return cls(heads, key.shape[1])


def require_equal_parts(tokens: int, parts: int) -> None:
    """Raise ValueError unless ``tokens`` can be cut into as many equal parts."""
    if tokens % parts:
        raise ValueError(f"a sequence of {tokens} tokens cannot be cut into {parts} equal parts")


def row_tiles(length: int) -> list[slice]:
    """0 ... length in slices of `ROWS`, the last one as short as it has to be."""
    return [slice(start, min(start + ROWS, length)) for start in range(0, length, ROWS)]


def fold_heads(x: Tensor, rows: slice, key: Tensor) -> Tensor:
    """Some rows of x [B, H, T, E] as [B, Hkv, (H / Hkv) R, E], in the dtype of key [B, Hkv, ...]."""
    return x[:, :, rows].to(key.dtype).unflatten(1, (key.shape[1], -1)).flatten(2, 3)
