"""Lesson 3.1: tensor parallelism, a Transformer whose every matrix is shared by the ranks.

A matrix can be cut along its output features (by columns of y = x A, hence "column parallel") or along its input
features ("row parallel"). Cut the first matrix of a pair by columns and the second by rows, and what stands between
them, the heads of attention or the nonlinearity of the feed-forward network, never leaves its rank: one sum over the
ranks per pair is all that must travel. A block has two pairs, so two all-reduces in forward, and, mirrored, two in
backward (Shoeybi et al. 2019). The table of the vocabulary is cut by tokens, and the loss is computed without ever
bringing a token's logits together.

Every rank sees the same input and computes the same output. The sums stand in the path of every layer and nothing
hides them: tensor parallelism belongs inside a node, where links are fast.

Work from top to bottom: three primitives, the four functions that backward mirrors, layers, loss, random numbers, the
whole model, and at last the same by PyTorch's own DTensor. `group=None` means the default group; any number of ranks
from 1 up, gloo/CPU and NCCL/CUDA alike. A group of one makes no call. Everything that computes or builds has to be
called on every rank of the group, in the same order. Sizes have to be divisible; if they are not, every rank raises
`ValueError` before anything is sent. At the end of the file stands what is given: `position`, `require_ids`,
`require_divisible`, `replica_group`, `cuts_of` and `default_generator`.

Sources:
    Shoeybi et al. 2019, "Megatron-LM: training multi-billion parameter language models using model parallelism",
        arXiv:1909.08053: sections 3 (the layers, f and g) and appendix B.2 (random numbers).
    Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters", arXiv:2104.04473: section
        5.4.1, tensor parallelism inside a node.
    Ainslie et al. 2023, "GQA: training generalized multi-query transformer models", arXiv:2305.13245.
    PyTorch documentation, "Tensor Parallelism - torch.distributed.tensor.parallel".
"""

from __future__ import annotations

import datetime
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import DeviceMesh, ProcessGroup

from shardlab.models import Attention, FeedForward, Transformer, TransformerConfig
from shardlab.ranks import all_gather_single, device

NEW_GROUP_TIMEOUT = datetime.timedelta(seconds=60)  # `new_group` would not take over the timeout of the default group

# --- Three primitives -------------------------------------------------------------------------------------------------


def own_block(tensor: Tensor, dim: int, group: ProcessGroup | None = None, replicas: int = 1) -> Tensor:
    """This rank's block of ``tensor``, cut along ``dim`` into equal blocks in rank order. A view; nothing is sent.

    Args:
        tensor: any shape and dtype, the same on every rank.
        dim: dimension to cut, may be negative.
        replicas: this many neighbouring ranks get the same block, so that N ranks share N / replicas blocks.

    Raises:
        ValueError: ``replicas`` does not divide the ranks, the number of blocks does not divide the size, or this rank
            is not in the group.

    Example, [10, 11, 12, 13] on 4 ranks: rank 1 gets [11]; with 2 replicas ranks 0 and 1 get [10, 11], 2 and 3 get
    [12, 13].

    Hints:
        1. `position`; ``Tensor.chunk``. Check before you cut: chunk takes any size and gives the last rank less.
    """
    # BEGIN SOLUTION
    rank, size = position(group)
    if replicas < 1 or size % replicas:
        raise ValueError(f"{size} ranks cannot form groups of {replicas} replicas")
    blocks = size // replicas
    if tensor.shape[dim] % blocks:
        raise ValueError(
            f"size {tensor.shape[dim]} of dimension {dim} of a {list(tensor.shape)} tensor cannot be cut into {blocks} "
            f"equal blocks for {size} ranks"
        )
    return tensor.chunk(blocks, dim)[rank // replicas]
    # END SOLUTION


def all_reduce(tensor: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """The sum of ``tensor`` over the ranks, as a new tensor (a group of one: ``tensor`` itself).

    Args:
        tensor: any shape, strides and numeric dtype; the same shape on every rank. Not changed: in backward it may be a
            gradient that somebody else holds too.

    Hints:
        1. `dist.all_reduce` works in place and needs contiguous memory; ``clone`` takes a ``memory_format``.
    """
    # BEGIN SOLUTION
    if position(group)[1] == 1:
        return tensor
    total = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total
    # END SOLUTION


def all_gather(tensor: Tensor, dim: int, group: ProcessGroup | None = None) -> Tensor:
    """The blocks of all ranks, joined along ``dim`` in rank order (a group of one: ``tensor`` itself).

    Args:
        tensor: this rank's block, at least one dimension, any strides; the same shape on every rank. Not changed.

    Example, [[1], [2]] and [[3], [4]] on 2 ranks: ``dim=-1`` gives [[1, 3], [2, 4]], ``dim=0`` [[1], [2], [3], [4]].

    Hints:
        1. What arrives lies one block after the other. Along which dimension is that right as it is?
        2. `shardlab.ranks.all_gather_single` fills one flat tensor; ``view`` it as [N, *shape]; ``torch.cat``.
    """
    # BEGIN SOLUTION
    _, size = position(group)
    if size == 1:
        return tensor
    blocks = tensor.new_empty(size, *tensor.shape)
    all_gather_single(blocks.view(-1), tensor.contiguous().view(-1), group)
    return torch.cat(blocks.unbind(), dim)
    # END SOLUTION


# --- Four functions, and what backward does where they stand ----------------------------------------------------------


class Mirrored(torch.autograd.Function):
    """``Mirrored.apply(x, forward, backward)`` is ``forward(x)``; its gradient is ``backward(gradient)``. Given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: Callable[[Tensor], Tensor], backward: Callable[[Tensor], Tensor]) -> Any:
        ctx.mirror = backward
        return forward(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.mirror(gradient), None, None


def unchanged(x: Tensor) -> Tensor:
    """Given."""
    return x


def copy_to_ranks(x: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Where every rank begins to work on its own part: ``x`` in forward, the sum of all gradients in backward.

    In forward there is nothing to do, for every rank has ``x`` already. But each rank's part of the layer gives only
    its part of the gradient of ``x``. Megatron-LM's f.

    Example, 2 ranks compute 3 x and 5 x: the gradient of x is 8 on both.

    Hints:
        1. `Mirrored` takes one function for each direction; `functools.partial` fixes the group.
    """
    # BEGIN SOLUTION
    return Mirrored.apply(x, unchanged, partial(all_reduce, group=group))
    # END SOLUTION


def reduce_from_ranks(x: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Where the parts come together: the sum of ``x`` over the ranks in forward, the gradient as it is in backward.

    Everything after it is the same on every rank, and so is the gradient that comes back: summing it again would make
    it N times too large. Megatron-LM's g.

    Example, x is 3 and 5 on 2 ranks: 8 on both; the gradient 1 of the sum goes on as 1.
    """
    # BEGIN SOLUTION
    return Mirrored.apply(x, partial(all_reduce, group=group), unchanged)
    # END SOLUTION


def gather_from_ranks(x: Tensor, group: ProcessGroup | None = None, dim: int = -1) -> Tensor:
    """Join the blocks of all ranks along ``dim`` in forward; in backward keep this rank's block of the gradient.

    As with `reduce_from_ranks`, everything after it is the same on every rank.
    """
    # BEGIN SOLUTION
    return Mirrored.apply(x, partial(all_gather, dim=dim, group=group), partial(own_block, dim=dim, group=group))
    # END SOLUTION


def scatter_to_ranks(x: Tensor, group: ProcessGroup | None = None, dim: int = -1) -> Tensor:
    """Keep this rank's block of ``x`` along ``dim`` in forward; in backward join the gradients of all blocks.

    The mirror of `gather_from_ranks`; ``x`` is the same on every rank.

    Raises:
        ValueError: the number of ranks does not divide the size.
    """
    # BEGIN SOLUTION
    return Mirrored.apply(x, partial(own_block, dim=dim, group=group), partial(all_gather, dim=dim, group=group))
    # END SOLUTION


# --- Layers -----------------------------------------------------------------------------------------------------------


class ParallelLayer(nn.Module):
    """A layer that holds this rank's block of a dense layer's parameters. Given.

    A layer is made from the dense layer it replaces, and not drawn anew: so the numbers do not depend on the number of
    ranks. It is called what the dense one is called, and so are its parameters.

    Attributes:
        group: the ranks that share the layer.
        replicas: neighbouring ranks that hold the same block.
        cut_dims: which dimension of which parameter is cut; what is not named is whole on every rank.
    """

    def __init__(self, group: ProcessGroup | None, replicas: int, cut_dims: dict[str, int]) -> None:
        super().__init__()
        self.group = group
        self.replicas = replicas
        self.cut_dims = cut_dims

    def cut(self, dense: nn.Module) -> None:
        """Register, for each parameter of ``dense``, what this rank keeps of it; None stays None.

        A copy: a view of the dense parameter would keep all of it in memory.
        """
        for name in ("weight", "bias"):
            full = getattr(dense, name, None)
            if full is None:
                self.register_parameter(name, None)
                continue
            own = full.detach()
            if name in self.cut_dims:
                own = own_block(own, self.cut_dims[name], self.group, self.replicas)
            self.register_parameter(name, nn.Parameter(own.clone(), requires_grad=full.requires_grad))


class ColumnParallelLinear(ParallelLayer):
    """A linear layer cut along its *output* features: rank r computes the r-th block of y = x W^T + b.

    ``weight`` is [out / N, in], ``bias`` [out / N]. (torch keeps W transposed, so that "columns" are its rows.)

    Args:
        dense: the layer to take the block from; its ``out_features`` divisible by the number of blocks.
        copy_input: put `copy_to_ranks` in front. Leave it out where several layers share an input that was copied
            once: each copy costs an all-reduce in backward.
        gather_output: return all features on every rank, with `gather_from_ranks`.
        replicas: neighbouring ranks that hold the same block, see `own_block`; not with ``gather_output``. They all
            use it, each for something else, so its gradient is the *sum* over the replicas.

    Raises:
        ValueError: sizes that are not divisible; ``gather_output`` with more than one replica.

    Hints:
        1. Which dimension of ``weight`` is it, and which of ``bias``?
        2. "Used by several ranks as it is, gradients summed": one of the four functions says exactly that, also of a
           weight. `replica_group` gives the group.
    """

    def __init__(
        self,
        dense: nn.Linear,
        group: ProcessGroup | None = None,
        *,
        copy_input: bool = True,
        gather_output: bool = False,
        replicas: int = 1,
    ) -> None:
        if gather_output and replicas > 1:
            raise ValueError(f"{replicas} replicas of each block cannot be gathered into one output")
        # BEGIN SOLUTION
        super().__init__(group, replicas, cut_dims={"weight": 0, "bias": 0})
        self.cut(dense)
        # END SOLUTION
        self.copy_input = copy_input
        self.gather_output = gather_output
        self.replica_group = replica_group(group, replicas) if replicas > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        """Args: x [..., in], the same on every rank. Returns [..., out / N], or [..., out] with ``gather_output``."""
        # BEGIN SOLUTION
        weight, bias = self.weight, self.bias
        if self.replicas > 1:
            weight = copy_to_ranks(weight, self.replica_group)
            bias = None if bias is None else copy_to_ranks(bias, self.replica_group)
        y = F.linear(copy_to_ranks(x, self.group) if self.copy_input else x, weight, bias)
        return gather_from_ranks(y, self.group) if self.gather_output else y
        # END SOLUTION


class RowParallelLinear(ParallelLayer):
    """A linear layer cut along its *input* features: rank r has the r-th block of x, and all ranks sum their products.

    ``weight`` is [out, in / N]; ``bias`` [out] is whole on every rank, and added once, after the sum.

    Args:
        dense: the layer to take the block from; its ``in_features`` divisible by the number of ranks.
        scatter_input: the input is whole, [..., in], the same on every rank: take this rank's block of it.

    Raises:
        ValueError: sizes that are not divisible.

    Hints:
        1. What comes out if every rank adds the bias to its product? (Its exact value, on N ranks.)
    """

    def __init__(self, dense: nn.Linear, group: ProcessGroup | None = None, *, scatter_input: bool = False) -> None:
        # BEGIN SOLUTION
        super().__init__(group, replicas=1, cut_dims={"weight": 1})
        self.cut(dense)
        # END SOLUTION
        self.scatter_input = scatter_input

    def forward(self, x: Tensor) -> Tensor:
        """Args: x [..., in / N], or [..., in] with ``scatter_input``. Returns [..., out], the same on every rank."""
        # BEGIN SOLUTION
        own = scatter_to_ranks(x, self.group) if self.scatter_input else x
        y = reduce_from_ranks(F.linear(own, self.weight), self.group)
        return y if self.bias is None else y + self.bias
        # END SOLUTION


class VocabParallelEmbedding(ParallelLayer):
    """An embedding cut along the vocabulary: rank r holds the rows of the r-th block of token ids.

    ``weight`` is [vocab / N, hidden]. A rank looks up what it has, puts zeros for the rest, and all sum.

    Args:
        dense: the embedding to take the rows from; its ``num_embeddings`` divisible by the number of ranks (a
            vocabulary that is not gets padded when the model is designed, as Megatron-LM does).

    Raises:
        ValueError: a vocabulary that is not divisible.

    Example, vocabulary 6 on 2 ranks, tokens [1, 4]: rank 0 gives [row 1, 0], rank 1 [0, its own row 1].

    Hints:
        1. Token ids of other ranks must not index, but something must stand in their place. What happens to the
           gradient of that row?
        2. ``masked_fill`` before and after `F.embedding`.
    """

    def __init__(self, dense: nn.Embedding, group: ProcessGroup | None = None) -> None:
        # BEGIN SOLUTION
        super().__init__(group, replicas=1, cut_dims={"weight": 0})
        self.cut(dense)
        # END SOLUTION
        self.vocab = dense.num_embeddings

    def forward(self, tokens: Tensor) -> Tensor:
        """Args: tokens [...] int64 of the whole vocabulary, the same on every rank. Returns [..., hidden], likewise.

        Raises:
            ValueError: a token outside the vocabulary, which no rank would find: a row of zeros.
        """
        require_ids(tokens, self.vocab)
        # BEGIN SOLUTION
        rank, _ = position(self.group)
        rows = self.weight.shape[0]
        local = tokens - rank * rows
        elsewhere = (local < 0) | (local >= rows)
        x = F.embedding(local.masked_fill(elsewhere, 0), self.weight)
        return reduce_from_ranks(x.masked_fill(elsewhere.unsqueeze(-1), 0), self.group)
        # END SOLUTION


# --- The loss ---------------------------------------------------------------------------------------------------------


def vocab_parallel_cross_entropy(
    logits: Tensor,
    targets: Tensor,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    group: ProcessGroup | None = None,
) -> Tensor:
    """Mean cross-entropy in nats over the valid targets, of logits that are spread over the ranks.

    Two all-reduces in forward, one of maxima and one of sums, none in backward: 3 numbers per token (4 with smoothing)
    whatever the vocabulary. Gathering the logits would send vocab (N-1)/N numbers per token.

    With smoothing e the target distribution is 1 - e on the target plus e / vocab on every token, as in
    `F.cross_entropy`.

    Args:
        logits: [..., vocab / N], this rank's block, floating point. Computed in float32 if narrower.
        targets: [...] int64, the same on every rank: ids of the whole vocabulary, or ``ignore_index``.
        label_smoothing: e, 0 <= e <= 1.
        ignore_index: positions with this target count nowhere: not in the sum, not in the mean, no gradient.

    Returns:
        0-d tensor, the same on every rank; 0 with zero gradients where no target is valid.

    Raises:
        ValueError: shapes that do not belong together, a target outside the vocabulary, ``label_smoothing`` outside
            its range; before any communication.

    Example, vocabulary 4 on 2 ranks, all logits equal: log 4 = 1.386 for any target and smoothing.

    Hints:
        1. Write the loss of one token as a formula of the largest logit, the sum of exponentials, the target's logit
           and (with smoothing) the sum of logits. Which of them does a rank know, and how do the ranks combine them?
        2. Sums that travel together cost one latency: ``torch.stack``.
        3. The gradient of a token is its probabilities minus the target distribution, divided by the valid targets.
    """
    vocab = logits.shape[-1] * position(group)[1]
    if logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"logits must be [..., vocab / N] for targets [...], got {list(logits.shape)} and {list(targets.shape)}"
        )
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must be in [0, 1], got {label_smoothing}")
    require_ids(targets.masked_fill(targets == ignore_index, 0), vocab)
    return VocabParallelCrossEntropy.apply(logits, targets, label_smoothing, ignore_index, group)


class VocabParallelCrossEntropy(torch.autograd.Function):
    """The two directions of `vocab_parallel_cross_entropy`. Arguments are checked there.

    One buffer of the size of the logits is kept for backward: their probabilities.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        targets: Tensor,
        label_smoothing: float,
        ignore_index: int,
        group: ProcessGroup | None,
    ) -> Tensor:
        """Returns the loss, and keeps in ``ctx`` what `backward` needs."""
        # BEGIN SOLUTION
        rank, size = position(group)
        rows = logits.shape[-1]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        largest = logits.amax(-1)
        if size > 1:
            dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
        shifted = logits - largest.unsqueeze(-1)

        local = (targets - rank * rows).unsqueeze(-1)
        elsewhere = (local < 0) | (local >= rows)
        local = local.masked_fill_(elsewhere, 0)
        sums = [shifted.gather(-1, local).masked_fill(elsewhere, 0).squeeze(-1)]
        if label_smoothing:
            sums.append(shifted.sum(-1))
        probabilities = shifted.exp_()
        sums.append(probabilities.sum(-1))
        target, *smooth, total = all_reduce(torch.stack(sums), group)

        losses = total.log() - (1 - label_smoothing) * target
        if label_smoothing:
            losses -= label_smoothing / (rows * size) * smooth[0]
        valid = targets != ignore_index
        share = valid.to(losses.dtype) / valid.sum().clamp(min=1)  # of each token in the mean
        ctx.save_for_backward(probabilities.div_(total.unsqueeze(-1)), local, elsewhere, share)
        ctx.label_smoothing, ctx.vocab = label_smoothing, rows * size
        return losses.masked_fill(~valid, 0).mul_(share).sum()
        # END SOLUTION

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        """Args: gradient of the loss, 0-d. Returns that of the logits, [..., vocab / N], and None for the rest."""
        # BEGIN SOLUTION
        probabilities, local, elsewhere, share = ctx.saved_tensors
        smoothing = ctx.label_smoothing
        weight = (gradient * share).unsqueeze(-1)
        of_logits = (probabilities - smoothing / ctx.vocab).mul_(weight)
        of_target = ((smoothing - 1) * weight).masked_fill(elsewhere, 0)
        return of_logits.scatter_add_(-1, local, of_target.to(of_logits.dtype)), None, None, None, None
        # END SOLUTION


# --- Random numbers ---------------------------------------------------------------------------------------------------


class RandomStreams:
    """Two streams of random numbers beside the global one: equal on all ranks of a group, and different on each.

    Dropout on an activation that every rank holds must drop the same elements everywhere, else the ranks compute with
    different activations and the sums mix them. Dropout on an activation that is cut must be different, else the masks
    of the blocks are copies of one another (Shoeybi et al. 2019, appendix B.2; Megatron-LM's ``CudaRNGStatesTracker``).

    Args:
        seed: the same on every rank of the group; another one for other data-parallel replicas.
        group: the ranks that share a model.
    """

    def __init__(self, seed: int, group: ProcessGroup | None = None) -> None:
        rank, _ = position(group)
        seeds = {False: seed, True: zlib.crc32(f"{seed} {rank}".encode())}
        self.states = {sharded: torch.Generator(device()).manual_seed(of).get_state() for sharded, of in seeds.items()}

    @contextmanager
    def fork(self, sharded: bool) -> Iterator[None]:
        """Inside the block torch draws from one of the streams; after it, from where the global stream was before.

        A stream goes on where its last block ended. That holds after an exception, too.

        Args:
            sharded: True for the stream that is different on each rank.

        Example: ``with streams.fork(sharded=False): F.dropout(x, 0.1)``.

        Hints:
            1. Two states have to be put away and two fetched: which, when?
            2. `default_generator`, with ``get_state`` and ``set_state``; ``try: yield`` and ``finally:``.
        """
        # BEGIN SOLUTION
        generator = default_generator()
        outside = generator.get_state()
        generator.set_state(self.states[sharded])
        try:
            yield
        finally:
            self.states[sharded] = generator.get_state()
            generator.set_state(outside)
        # END SOLUTION


class ParallelDropout(nn.Dropout):
    """Dropout from one of two `RandomStreams`. In evaluation it draws nothing.

    Args:
        p: probability of an element to be dropped.
        streams: shared by all dropouts of a model.
        sharded: the input is this rank's block of an activation, and not whole on every rank.
    """

    def __init__(self, p: float, streams: RandomStreams, sharded: bool) -> None:
        super().__init__(p)
        self.streams = streams
        self.sharded = sharded

    def forward(self, x: Tensor) -> Tensor:
        """Args: x of any shape. Returns the same shape."""
        # BEGIN SOLUTION
        with self.streams.fork(self.sharded):
            return super().forward(x)
        # END SOLUTION


# --- The parts of a block ---------------------------------------------------------------------------------------------


class ParallelAttention(Attention):
    """Attention whose heads are shared by the ranks: one all-reduce in forward, one in backward.

    Rank r has the r-th block of the query heads, of the key and value heads, and of the output's input features. What
    the kit's `Attention` does with heads it does as it is: it reads their number off its projections.

    With fewer key and value heads than ranks, N / kv_heads neighbouring ranks hold the same one. Each uses it for
    its own queries, and its gradient is the sum over them: one more all-reduce for each of key and value, of one head's
    weight, among those ranks.

    Args:
        dense: the attention to take the heads from. The ranks divide its heads; and they divide its kv_heads, or
            kv_heads divide them.

    Raises:
        ValueError: heads that cannot be shared out equally.

    Example, 8 heads, 2 kv_heads, 4 ranks: rank 1 has heads 2 and 3 and kv head 0, which rank 0 has too.

    Hints:
        1. Three projections share one input: how many all-reduces would three `copy_to_ranks` make in backward?
        2. What matters are whole heads, and not features: a head must not be cut in two.
    """

    def __init__(self, dense: Attention, group: ProcessGroup | None = None) -> None:
        nn.Module.__init__(self)  # not that of Attention, which would make the dense projections
        self.head_dim, self.rope_theta, self.mix = dense.head_dim, dense.rope_theta, dense.mix
        self.group = group
        # BEGIN SOLUTION
        heads, kv_heads = (layer.out_features // dense.head_dim for layer in (dense.query, dense.key))
        replicas = kv_replicas(heads, kv_heads, position(group)[1])
        self.query = ColumnParallelLinear(dense.query, group, copy_input=False)
        self.key = ColumnParallelLinear(dense.key, group, copy_input=False, replicas=replicas)
        self.value = ColumnParallelLinear(dense.value, group, copy_input=False, replicas=replicas)
        self.output = RowParallelLinear(dense.output, group)
        # END SOLUTION

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Args: x [B, T, hidden], positions [T] or [B, T], the same on every rank. Returns [B, T, hidden], likewise."""
        # BEGIN SOLUTION
        return super().forward(copy_to_ranks(x, self.group), positions)
        # END SOLUTION


def kv_replicas(heads: int, kv_heads: int, ranks: int) -> int:
    """How many ranks hold the same key and value head: 1 where there are enough for all.

    Raises:
        ValueError: ``heads`` or ``kv_heads`` cannot be shared out equally.

    Example: 8 heads on 4 ranks need 1 with 4 or 8 kv_heads, 2 with 2, 4 with 1.
    """
    # BEGIN SOLUTION
    if heads % ranks:
        raise ValueError(f"{heads} heads cannot be shared out equally among {ranks} ranks")
    if kv_heads % ranks and ranks % kv_heads:
        raise ValueError(f"{kv_heads} kv_heads cannot be shared out equally among {ranks} ranks, nor each by as many")
    return max(1, ranks // kv_heads)
    # END SOLUTION


class ParallelMLP(FeedForward):
    """SwiGLU whose inner features are shared by the ranks: one all-reduce in forward, one in backward.

    Args:
        dense: the network to take the features from; the ranks divide its inner width.

    Raises:
        ValueError: an inner width that is not divisible.
    """

    def __init__(self, dense: FeedForward, group: ProcessGroup | None = None) -> None:
        nn.Module.__init__(self)  # not that of FeedForward, which would make the dense layers
        self.group = group
        # BEGIN SOLUTION
        self.gate = ColumnParallelLinear(dense.gate, group, copy_input=False)
        self.up = ColumnParallelLinear(dense.up, group, copy_input=False)
        self.down = RowParallelLinear(dense.down, group)
        # END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        """Args: x [B, T, hidden], the same on every rank. Returns the same shape, likewise."""
        # BEGIN SOLUTION
        return super().forward(copy_to_ranks(x, self.group))
        # END SOLUTION


# --- The whole model --------------------------------------------------------------------------------------------------


def shard_transformer(model: Transformer, group: ProcessGroup | None = None, seed: int = 0) -> Transformer:
    """Replace, in place, every part of a dense model that has a matrix by its parallel counterpart.

    Embedding, attention and feed-forward networks, head: each rank ends with 1/N of them, and whole norms. The
    residual stream is the same on every rank; so its dropouts draw from the stream of `RandomStreams` that is equal
    everywhere, and a run with dropout does not depend on N. A tied head stays tied.

    Args:
        model: made by `build` or `Transformer`, the same on every rank. Its layers may be freed afterwards.
        seed: of the dropouts' random streams.

    Returns:
        The same object. ``model(tokens)`` gives this rank's block of the logits, [B, T, vocab / N], for
        `vocab_parallel_cross_entropy`.

    Raises:
        ValueError: the ranks do not divide vocab, ffn or heads, or kv_heads cannot be shared (`kv_replicas`); the model
            is left as it was.

    Hints:
        1. Which layer needs `copy_to_ranks` in front of it, and who shares its input?
        2. Two layers, each with its own copy of a tied weight, learn two weights. ``model.tie_weights()``.
    """
    require_divisible(model.config, position(group)[1])
    # BEGIN SOLUTION
    streams = RandomStreams(seed, group)
    for block in model.blocks:
        block.attention = ParallelAttention(block.attention, group)
        block.mlp = ParallelMLP(block.mlp, group)
        block.dropout = ParallelDropout(block.dropout.p, streams, sharded=False)
    model.embedding = VocabParallelEmbedding(model.embedding, group)
    model.head = ColumnParallelLinear(model.head, group)
    model.tie_weights()
    return model
    # END SOLUTION


def shard_state_dict(model: nn.Module, full: dict[str, Tensor]) -> dict[str, Tensor]:
    """What this rank's ``model`` loads of a dense model's state: its blocks, copied, and the rest as it is.

    Args:
        model: after `shard_transformer`, or any module with parallel layers.
        full: ``state_dict()`` of the dense model, the same names.

    Hints:
        1. `cuts_of` says how each parameter of the model is cut.
    """
    # BEGIN SOLUTION
    cuts = cuts_of(model)
    return {
        name: own_block(tensor, cuts[name].dim, cuts[name].group, cuts[name].replicas).clone()
        if name in cuts
        else tensor
        for name, tensor in full.items()
    }
    # END SOLUTION


def full_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The dense model's state, on every rank: the blocks of all ranks joined. It loads on any number of ranks.

    Hints:
        1. Of a block that several ranks hold, how often may it occur in the result?
    """
    # BEGIN SOLUTION
    cuts, full = cuts_of(model), {}
    for name, tensor in model.state_dict().items():
        if name in cuts:
            cut = cuts[name]
            blocks = all_gather(tensor.unsqueeze(0), dim=0, group=cut.group)[:: cut.replicas]
            tensor = torch.cat(blocks.unbind(), cut.dim)
        full[name] = tensor
    return full
    # END SOLUTION


# --- The same by PyTorch: DTensor -------------------------------------------------------------------------------------


def parallelize(model: Transformer, mesh: DeviceMesh) -> Transformer:
    """Make a dense model tensor-parallel by torch's DTensor, in place: equal results, equal traffic.

    Parameters become DTensors, which know how they are cut. `ColwiseParallel` and `RowwiseParallel` say of each layer
    how; DTensor inserts the collectives. The obvious plan gives the right numbers, with 5 all-reduces in the backward
    of a block in place of 2: each projection makes a DTensor of its input, and sums the gradient of that one alone.

    Args:
        model: made by `build` or `Transformer`, the same on every rank.
        mesh: one-dimensional, over the ranks that share the model.

    Returns:
        The same object. ``model(tokens)`` gives a DTensor [B, T, vocab], cut along the vocabulary; compute the loss and
        its backward inside ``torch.distributed.tensor.parallel.loss_parallel()``.

    Raises:
        ValueError: the ranks do not divide vocab, ffn, heads or kv_heads (these styles cannot give two ranks the same
            head); the mesh has more than one dimension.

    Hints:
        1. `PrepareModuleInput` makes one DTensor of a module's input, before its layers see it. One entry per
           argument; None for what stays a plain tensor.
        2. Names in a plan may have wildcards: ``"blocks.*.attention.query"``.
        3. The head's output: ``use_local_output=False``. The embedding's input is `Replicate`.
        4. Is a tied weight still tied afterwards?
    """
    # Here and not above: DTensor takes a second to import, which who splits by hand need not pay.
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        parallelize_module,
    )

    if mesh.ndim != 1:
        raise ValueError(f"parallelize needs a mesh of one dimension, got {mesh.ndim}")
    require_divisible(model.config, mesh.size())
    if model.config.kv_heads % mesh.size():
        raise ValueError(f"{model.config.kv_heads} kv_heads cannot be shared out equally among {mesh.size()} ranks")
    # BEGIN SOLUTION
    whole = Replicate()
    block = {
        "attention": PrepareModuleInput(input_layouts=(whole, None), desired_input_layouts=(whole, None)),
        "attention.query": ColwiseParallel(),
        "attention.key": ColwiseParallel(),
        "attention.value": ColwiseParallel(),
        "attention.output": RowwiseParallel(),
        "mlp": PrepareModuleInput(input_layouts=whole, desired_input_layouts=whole),
        "mlp.gate": ColwiseParallel(),
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(),
    }
    plan = {f"blocks.*.{name}": style for name, style in block.items()}
    plan |= {"embedding": RowwiseParallel(input_layouts=whole), "head": ColwiseParallel(use_local_output=False)}
    parallelize_module(model, mesh, plan)
    model.tie_weights()
    return model
    # END SOLUTION


# --- Given ------------------------------------------------------------------------------------------------------------


def position(group: ProcessGroup | None) -> tuple[int, int]:
    """This rank's number in the group, and the number of ranks in it.

    Raises:
        ValueError: this rank is not in the group.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise ValueError(f"rank {dist.get_rank()} is not in this group: only its members may work in it")
    return rank, size


def require_ids(ids: Tensor, vocab: int) -> None:
    """Raise ValueError unless all ids are in the vocabulary. On a GPU the host waits here for the values, once."""
    if ids.numel() == 0:
        return
    smallest, largest = torch.stack(ids.aminmax()).tolist()
    if not 0 <= smallest <= largest < vocab:
        raise ValueError(f"token ids must be 0 ... {vocab - 1}, got {smallest} ... {largest}")


def require_divisible(config: TransformerConfig, ranks: int) -> None:
    """Raise ValueError unless every part of a Transformer can be shared out among ``ranks`` ranks."""
    for name in ("vocab", "ffn"):
        if getattr(config, name) % ranks:
            raise ValueError(f"{name} {getattr(config, name)} cannot be shared out equally among {ranks} ranks")
    kv_replicas(config.heads, config.kv_heads, ranks)


_replica_groups: WeakKeyDictionary[ProcessGroup, dict[int, ProcessGroup]] = WeakKeyDictionary()


def replica_group(group: ProcessGroup | None, replicas: int) -> ProcessGroup:
    """The ``replicas`` neighbouring ranks of the group that hold the same blocks as this one; made once."""
    group = group or dist.group.WORLD
    rank, size = position(group)
    if replicas == size:
        return group
    made = _replica_groups.setdefault(group, {})
    if replicas not in made:
        first = rank // replicas * replicas
        members = dist.get_process_group_ranks(group)[first : first + replicas]
        made[replicas] = dist.new_group(members, timeout=NEW_GROUP_TIMEOUT, use_local_synchronization=True)
    return made[replicas]


@dataclass(frozen=True)
class Cut:
    """How a parameter is shared out: along which dimension, and by `replicas` neighbouring ranks of the group each."""

    dim: int
    replicas: int
    group: ProcessGroup | None


def cuts_of(model: nn.Module) -> dict[str, Cut]:
    """For each parameter of a `ParallelLayer` inside the model that is cut: how. By its name in ``state_dict()``."""
    return {
        f"{path}.{name}".removeprefix("."): Cut(dim, layer.replicas, layer.group)
        for path, layer in model.named_modules()
        if isinstance(layer, ParallelLayer)
        for name, dim in layer.cut_dims.items()
        if getattr(layer, name) is not None
    }


def default_generator() -> torch.Generator:
    """The global source of random numbers on this rank's device."""
    here = device()
    return torch.cuda.default_generators[here.index] if here.type == "cuda" else torch.default_generator
