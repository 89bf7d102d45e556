"""Lesson 1.2: one GPU to its limit, before you buy a second one.

A training step is slow because it moves memory, because it stores what it could compute again, or because it computes
in more bits than it needs. Each exercise here takes one of these away and leaves the gradients as they are: gradient
accumulation (a large batch in the memory of a small one), loss scaling (16 bits without lost gradients), activation
checkpointing (compute twice, store once), and two layers that never write their largest tensor down: the logits of the
loss, and the scores of attention.

Work from top to bottom; the exercises do not need each other. Everything runs on CPU and CUDA alike, in float32,
bfloat16 and float16, and under `torch.autocast`. Bad input raises `ValueError`. At the end of the file stands what is
given: `tiles`, `autocast_cast`, `generators`, `keep_inputs`.

Sources:
    Micikevicius et al. 2018, "Mixed precision training", arXiv 1710.03740: loss scaling, section 3.2.
    Chen et al. 2016, "Training deep nets with sublinear memory cost", arXiv 1604.06174: checkpointing.
    Dao et al. 2022, "FlashAttention", arXiv 2205.14135; Dao 2023, "FlashAttention-2", arXiv 2307.08691: the tiles.
    Milakov & Gimelshein 2018, "Online normalizer calculation for softmax", arXiv 1805.02867: softmax in one pass.
    Hsu et al. 2024, "Liger kernel", arXiv 2410.10989, section 3.2: the loss in chunks, its gradient in forward.
    pytorch.org/docs: notes/amp_examples, torch.autograd.graph.saved_tensors_hooks, torch.autograd.Function.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import Optimizer

IGNORE = -100  # a target that is not one: padding, or a prompt that is not trained on


def without_autocast(method: Callable[..., Any]) -> Callable[..., Any]:
    """A Function's forward or backward with autocast off: it casts for itself, or its float32 sums would become 16
    bits."""

    @functools.wraps(method)
    def plain(ctx: Any, first: Tensor, *others: Any) -> Any:
        with torch.autocast(first.device.type, enabled=False):
            return method(ctx, first, *others)

    return plain


# --- Accumulation: a large batch in the memory of a small one ---------------------------------------------------------


def accumulate_gradients(
    model: Callable[[Tensor], Tensor],
    micro_batches: Sequence[tuple[Tensor, Tensor]],
    loss_fn: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """Add the gradient of one large batch to ``.grad``, one micro-batch at a time.

    What is added is the gradient of the mean loss over *all* valid targets, as if the micro-batches had been one
    batch. A mean of the micro-batches' means is something else as soon as one of them has more padding than another.
    Only one micro-batch's activations are alive at any time.

    Args:
        model: takes the inputs of a micro-batch.
        micro_batches: (inputs, targets) pairs; targets int64 of any shape, `IGNORE` where there is none.
        loss_fn: (model output, targets) -> mean loss over the valid targets, 0-d, such as `F.cross_entropy`. It is NaN
            there when no target is valid.

    Returns:
        The mean loss over all valid targets, 0-d float32, detached. 0 if there are none, and no gradient is added.

    Raises:
        ValueError: no micro-batch at all.

    Example: 3 valid targets with gradient 1 and 1 valid target with gradient 5 give (3 x 1 + 1 x 5) / 4 = 2, where the
    mean of means is 3.

    Hints:
        1. What must be known before the first backward? By what must a micro-batch's mean be multiplied so that all
           of them together give the mean over the union?
        2. ``targets != IGNORE``. What is 0 x NaN?
    """
    # BEGIN SOLUTION
    if not micro_batches:
        raise ValueError("accumulate_gradients needs at least one micro-batch, got none")
    valid = [int((targets != IGNORE).sum()) for _, targets in micro_batches]
    total = torch.zeros((), device=micro_batches[0][1].device)
    for (inputs, targets), count in zip(micro_batches, valid, strict=True):
        if count:
            loss = loss_fn(model(inputs), targets) * (count / sum(valid))
            loss.backward()
            total += loss.detach()
    return total
    # END SOLUTION


# --- Loss scaling: 16 bits without lost gradients ---------------------------------------------------------------------


class LossScaler:
    """Keep small gradients from becoming zero in float16: multiply the loss, divide the gradients.

    float16 has nothing below 6e-8, and many gradients lie there. Multiplied by a large scale they survive backward; the
    optimiser then gets them divided by it, in float32. No scale is right for ever, so it is searched: every overflow
    shows as inf or NaN in a gradient, costs one skipped step and halves the scale; a long run without one doubles it.

        loss = scaler.scale(loss_fn(model(x), y))
        loss.backward()
        scaler.unscale(optimizer)      # only if you clip or look at gradients in between
        took_the_step = scaler.step(optimizer)

    Args:
        scale: to begin with; a power of two, so that multiplying and dividing are exact.
        growth: the scale is multiplied by this after ``interval`` steps in a row without overflow.
        backoff: and by this after an overflow.
        interval: in steps.

    Attributes:
        value: the scale now, a float between the smallest normal float32 and the largest.
        good_steps: steps taken since the scale last changed.

    Raises:
        ValueError: a scale that is no positive, normal float32, growth <= 1, backoff outside (0, 1), interval < 1.
    """

    def __init__(self, scale: float = 2.0**16, growth: float = 2.0, backoff: float = 0.5, interval: int = 2000) -> None:
        float32 = torch.finfo(torch.float32)
        in_range = float32.tiny <= scale <= float32.max
        if not (in_range and 1 < growth < math.inf and 0 < backoff < 1 and interval >= 1):
            given = f"scale {scale}, growth {growth}, backoff {backoff}, interval {interval}"
            limits = f"{float32.tiny:.2g} <= scale <= {float32.max:.2g}"
            raise ValueError(f"need {limits}, growth > 1, 0 < backoff < 1 and interval >= 1, got {given}")
        self.value = float(scale)
        self.growth, self.backoff, self.interval = growth, backoff, interval
        self.good_steps = 0
        self._finite: bool | None = None  # of the gradients at hand: None until they are unscaled

    def scale(self, loss: Tensor) -> Tensor:
        """The loss times the scale, to call backward on."""
        # BEGIN SOLUTION
        return loss * self.value
        # END SOLUTION

    def unscale(self, optimizer: Optimizer) -> bool:
        """Divide the gradients of all the optimiser's parameters by the scale, in place, once per step.

        Returns:
            Whether every element of every gradient is finite. Parameters without a gradient are passed over.

        Raises:
            ValueError: a gradient in float16, in which dividing would lose what scaling has saved (keep the weights in
                float32 and compute under autocast); or the second call before `step`. No gradient is changed then.

        Hints:
            1. inf / scale is inf: it can be looked for after dividing. One device-to-host copy, not one per parameter:
               where would you keep the answers until the end?
            2. ``torch.stack``, ``isfinite``, ``all``; remember the answer in ``self._finite`` for `step`.
        """
        # BEGIN SOLUTION
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if self._finite is not None:
            raise ValueError("unscale was called twice before step: the gradients would be divided twice")
        if any(gradient.dtype == torch.float16 for gradient in gradients):
            raise ValueError("gradients are float16: dividing them by the scale would flush small ones to zero again")
        finite = [gradient.mul_(1 / self.value).isfinite().all() for gradient in gradients]
        self._finite = not finite or bool(torch.stack(finite).all())
        return self._finite
        # END SOLUTION

    def step(self, optimizer: Optimizer) -> bool:
        """Take the optimiser's step if the gradients are finite, else leave it out; then adjust the scale.

        Gradients not yet unscaled are unscaled first. A step left out changes no parameter, no moment and no step
        count. The scale never grows beyond the largest float32, and never sinks below the smallest normal one: after a
        long run of NaN it would be 0, and there is no way back from there.

        Returns:
            Whether the step was taken.

        Example, scale 8, interval 2: finite, finite -> 16; overflow -> 8; finite, overflow -> 4; finite, finite -> 8.

        Hints:
            1. Which three numbers change after an overflow, and which after the last good step of an interval?
            2. ``torch.finfo(torch.float32)`` has ``max`` and ``tiny``.
        """
        # BEGIN SOLUTION
        finite, float32 = self.unscale(optimizer) if self._finite is None else self._finite, torch.finfo(torch.float32)
        self._finite = None
        self.good_steps = self.good_steps + 1 if finite else 0
        if not finite:
            self.value = max(self.value * self.backoff, float32.tiny)
        else:
            optimizer.step()
            if self.good_steps == self.interval:
                self.value = min(self.value * self.growth, float32.max)
                self.good_steps = 0
        return finite
        # END SOLUTION

    def state_dict(self) -> dict[str, float | int]:
        """Everything a resumed run needs to go on with the same scales: plain numbers."""
        # BEGIN SOLUTION
        return {name: getattr(self, name) for name in ("value", "good_steps", "growth", "backoff", "interval")}
        # END SOLUTION

    def load_state_dict(self, state: dict[str, float | int]) -> None:
        """Go on where `state_dict` was taken.

        Raises:
            ValueError: the state has other keys than `state_dict` gives.
        """
        # BEGIN SOLUTION
        if state.keys() != self.state_dict().keys():
            raise ValueError(f"a state of a LossScaler has {sorted(self.state_dict())}, got {sorted(state)}")
        vars(self).update(state)
        # END SOLUTION


# --- Checkpointing: compute twice, store once -------------------------------------------------------------------------


def surroundings(args: Sequence[Any]) -> Callable[[], AbstractContextManager[None]]:
    """Note what a function's result depends on besides its arguments: random state and autocast.

    Args:
        args: the function's arguments; their devices tell which generators it may draw from (see `generators`).

    Returns:
        A function that makes a context manager: inside, the state of all generators and the autocast setting of their
        devices are those of now; afterwards, also after an exception, they are what they were before the block. It can
        be used any number of times.

    Example: ``again = surroundings(())``, then ``a = torch.rand(1)``; inside ``with again(): b = torch.rand(1)`` b is
    a, and the next number drawn after the block is the one that would have come without it.

    Hints:
        1. Dropout draws from a generator. If a block is computed a second time later on, what does dropout draw?
        2. ``Generator.get_state``, ``set_state``; ``torch.is_autocast_enabled(type)``, ``torch.get_autocast_dtype``;
           ``contextlib.ExitStack`` for several autocasts at once; ``finally``.
    """
    # BEGIN SOLUTION
    states = [(generator, generator.get_state()) for generator in generators(args)]
    kinds = [generator.device.type for generator, _ in states]
    casts = [(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)) for kind in kinds]

    @contextlib.contextmanager
    def again() -> Iterator[None]:
        before = [generator.get_state() for generator, _ in states]
        with contextlib.ExitStack() as stack:
            for kind, dtype, enabled in casts:
                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled))
            try:
                for generator, state in states:
                    generator.set_state(state)
                yield
            finally:
                for (generator, _), state in zip(states, before, strict=True):
                    generator.set_state(state)

    return again
    # END SOLUTION


def checkpoint(fn: Callable[..., Any], *args: Any) -> Any:
    """``fn(*args)``, keeping for backward only the arguments: the rest is computed again when it is needed.

    While fn runs, autograd asks a pair of hooks what to keep of each tensor it wants to save, and later how to get it
    back. Here it keeps a number. The first number asked for in backward makes fn run once more, under the surroundings
    of the first run, and all tensors it saves are the answers (Chen et al. 2016; the hooks are those of PyTorch's
    ``torch.autograd.graph.saved_tensors_hooks``).

    Args:
        fn: any function of tensors and other things, that may use parameters and random numbers from outside. It
            must do the same on the same arguments.
        args: tensors, which need not require grad, and anything else.

    Returns:
        What fn returns: a tensor, or several. Gradients flow to arguments and to parameters that fn uses.

    Raises:
        RuntimeError: in backward, if fn saves another number of tensors the second time.

    Example: in ``checkpoint(lambda x: (x @ w).relu() @ v, x)`` backward sees the same mask and the same products as
    without it, but between forward and backward only x is kept. fn has run twice after backward. Without gradients
    (under ``no_grad``) it runs once, and nothing is kept. Checkpoints may be nested.

    Hints:
        1. Which tensor is number 7? How do you find it among those that the second run saves? What may be dropped
           as soon as it has been handed back, and what happens at a second backward?
        2. ``saved_tensors_hooks(pack, unpack)`` twice: around the first run and around the second. Backward runs
           without grad mode, in which nothing is saved: ``torch.enable_grad``. `keep_inputs` leaves the arguments to
           autograd; `surroundings`, before fn runs; keep what the second run saves detached, or its graph stays alive.
    """
    # BEGIN SOLUTION
    if not torch.is_grad_enabled():
        return fn(*args)
    arguments, again = keep_inputs(args), surroundings(args)
    packed = 0
    recomputed: dict[int, Tensor] = {}

    def pack(_: Tensor) -> int:
        nonlocal packed
        packed += 1
        return packed - 1

    def unpack(index: int) -> Tensor:
        if index not in recomputed:
            recomputed.update(enumerate(recompute()))
        return recomputed.pop(index)

    def recompute() -> list[Tensor]:
        inputs, saved = arguments(), []

        def keep(tensor: Tensor) -> Tensor:
            saved.append(tensor.detach())
            return saved[-1]

        with again(), torch.enable_grad(), saved_tensors_hooks(keep, lambda tensor: tensor):
            fn(*inputs)
        if len(saved) != packed:
            raise RuntimeError(f"fn saved {packed} tensors at first and {len(saved)} now: it must do the same again")
        return saved

    with saved_tensors_hooks(pack, unpack):
        return fn(*args)
    # END SOLUTION


# --- The loss: logits in chunks ---------------------------------------------------------------------------------------


class ChunkedCrossEntropy(torch.autograd.Function):
    """Output layer and cross-entropy in one, for a few tokens at a time. `chunked_cross_entropy` calls it."""

    @staticmethod
    @without_autocast
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int, ignore_index: int, train: bool
    ) -> Tensor:
        """Mean loss, and already both gradients: while the logits of a chunk exist, their gradient is one step away.

        With p = softmax(logits) of a token, d loss / d logits is (p - onehot(target)) / number of valid targets, and 0
        for a token without a target.

        Args:
            hidden: [N, D]. weight: [V, D], same dtype. targets: [N] int64.
            chunk: tokens per chunk. Their logits [chunk, V], multiplied in the dtype of hidden, are worked on in
                float32; neither forward nor backward makes a larger tensor than these, hidden and weight.
            train: whether gradients are wanted. If not, they are neither computed nor kept.

        Returns:
            0-d float32; 0 when no target is valid.

        Hints:
            1. Why can the gradient be computed before backward? What does backward have to do then?
            2. `tiles`; ``logsumexp``, ``gather``; the gradient in place of the logits: ``sub_``, ``exp_``,
               ``scatter_add_``. Sum the gradient of weight in float32. ``ctx.save_for_backward``.
        """
        # BEGIN SOLUTION
        valid = targets != ignore_index
        count = valid.sum().clamp(min=1)
        labels = targets.where(valid, 0).unsqueeze(1)
        share = (valid / count).unsqueeze(1)  # of each token in the mean
        loss = torch.zeros((), device=hidden.device)
        if train:
            grad_hidden = torch.empty_like(hidden)
            grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        for rows in tiles(len(hidden), chunk):
            logits = (hidden[rows] @ weight.mT).float()
            normaliser = logits.logsumexp(1, keepdim=True)
            loss += ((normaliser - logits.gather(1, labels[rows])) * share[rows]).sum()
            if train:
                grad_logits = logits.sub_(normaliser).exp_().mul_(share[rows])
                grad_logits = grad_logits.scatter_add_(1, labels[rows], -share[rows]).to(hidden.dtype)
                grad_hidden[rows] = grad_logits @ weight
                grad_weight += grad_logits.mT @ hidden[rows]
        if train:
            ctx.save_for_backward(grad_hidden, grad_weight.to(weight.dtype))
        return loss
        # END SOLUTION

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of hidden and weight, and None for every other input of forward.

        Args:
            grad_output: 0-d, how much the final loss changes with this one. 1 only if nothing follows.
        """
        # BEGIN SOLUTION
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_output * grad_hidden, grad_output * grad_weight, None, None, None, None
        # END SOLUTION


def chunked_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int = 1024, ignore_index: int = IGNORE
) -> Tensor:
    """``F.cross_entropy(hidden @ weight.T, targets)`` without the logits. Given; you write `ChunkedCrossEntropy`.

    With a vocabulary of 128,256 (Llama 3) the logits of 8,192 tokens take 4 GiB in float32, their gradient as much
    again; in chunks of 1,024 tokens 0.5 GiB.

    Args:
        hidden: [..., D], what the output layer gets; float32, or 16 bits.
        weight: [V, D] of the output layer, which may be the embedding's too.
        targets: [...] int64 below V, or ``ignore_index``.
        chunk: tokens at a time.

    Returns:
        Mean loss over the valid targets, in nats, 0-d float32. 0 (F.cross_entropy: NaN) when there are none.

    Raises:
        ValueError: shapes, dtypes or a chunk that cannot be.
    """
    hidden, weight = autocast_cast(hidden, weight)
    if weight.dim() != 2 or hidden.shape[-1:] != weight.shape[1:] or targets.shape != hidden.shape[:-1]:
        shapes = f"hidden {list(hidden.shape)}, weight {list(weight.shape)}, targets {list(targets.shape)}"
        raise ValueError(f"need hidden [..., D], weight [V, D] and targets [...], got {shapes}")
    if hidden.dtype != weight.dtype or not hidden.is_floating_point() or targets.dtype != torch.int64:
        dtypes = f"{hidden.dtype}, {weight.dtype} and {targets.dtype}"
        raise ValueError(f"need hidden and weight of one floating dtype and int64 targets, got {dtypes}")
    if chunk < 1:
        raise ValueError(f"a chunk has at least 1 token, got {chunk}")
    train = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    return ChunkedCrossEntropy.apply(hidden.flatten(0, -2), weight, targets.flatten(), chunk, ignore_index, train)


# --- Attention: scores in tiles ---------------------------------------------------------------------------------------


def tile_scores(query: Tensor, key: Tensor, rows: slice, columns: slice, causal: bool) -> Tensor | None:
    """Scores of some queries against some keys, in float32: query . key / sqrt(D), -inf where it may not look.

    Causal means that the *last* query sees all keys, the one before it all but the last, and so on: query i sees key j
    if j <= i + Tk - Tq. With Tq = Tk that is the usual triangle; with a cache of earlier keys (Tk > Tq) the new queries
    see it all; with Tk < Tq the first Tq - Tk queries see nothing. FlashAttention aligns so since 2.1, and
    `torch.nn.attention.bias.causal_lower_right` too; ``is_causal=True`` of torch lets the *first* query see one key.

    Args:
        query: [N, Tq, D]. key: [N, Tk, D].
        rows, columns: of the tile; ``stop`` is never beyond the end.

    Returns:
        [N, rows, columns] float32, or None, before any product is computed, if no query of the tile sees a key of it.

    Example, Tq = Tk = 4 in tiles of 2: (rows 0:2, columns 2:4) is None, rows and columns 2:4 have -inf top right.

    Hints:
        1. Which query of the tile sees the most, and which key is the first to be seen? Compare these two.
        2. Scaling D columns of queries is cheaper than a tile of scores. ``torch.ones(..., dtype=torch.bool).triu(k)``
           or two `torch.arange` for the mask, ``masked_fill_``; a tile that is seen whole needs none.
    """
    # BEGIN SOLUTION
    sees = rows.start + key.shape[1] - query.shape[1]  # last key that the tile's first query sees
    if causal and columns.start > sees + rows.stop - rows.start - 1:
        return None
    scores = (query[:, rows].float() * query.shape[-1] ** -0.5) @ key[:, columns].float().mT
    if causal and columns.stop - 1 > sees:
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool, device=scores.device).triu(sees - columns.start + 1)
        scores.masked_fill_(hidden, -math.inf)
    return scores
    # END SOLUTION


class FlashAttention(torch.autograd.Function):
    """Exact attention, one tile of scores at a time (Dao et al. 2022). `flash_attention` calls it."""

    @staticmethod
    @without_autocast
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, causal: bool, block: int) -> Tensor:
        """Softmax over keys that arrive tile by tile, for one block of queries after the other.

        Kept while keys pass by, for each query: the largest score so far m, the sum l of exp(score - m), and the sum o
        of exp(score - m) value. A larger m in the next tile multiplies both sums by exp(m_old - m_new). In the end
        o / l is the output and m + log l the log-sum-exp of the scores: with it backward gets any tile's softmax back
        from the scores alone (Dao 2023, algorithm 1; Milakov & Gimelshein 2018).

        Args:
            query: [N, Tq, D]. key: [N, Tk, D]. value: [N, Tk, Dv]. One dtype; sums are kept in float32.
            block: queries and keys per tile. No tensor made here has more elements than the inputs or a tile.

        Returns:
            [N, Tq, Dv] in the dtype of query. 0 for a query that sees nothing.

        Example: scores 0 and then, in the next tile, log 3, values 1 and 5: m = 0, l = 1, o = 1; then m = log 3,
        l = 1/3 + 1, o = 1/3 + 5; output 4 = (1 x 1 + 3 x 5) / 4, log-sum-exp log 4.

        Hints:
            1. What is exp(-inf - (-inf))? Which finite number can m begin with, so that a query that sees nothing ends
               with l = 0 and not with NaN? How large is l at least for one that sees something?
            2. `tiles`, `tile_scores`; ``amax``, ``torch.maximum``, ``clamp``; save query, key, value, output and the
               log-sum-exp, nothing of size Tq x Tk.
        """
        # BEGIN SOLUTION
        output = query.new_empty(*query.shape[:2], value.shape[2])
        lse = query.new_empty(*query.shape[:2], 1, dtype=torch.float32)
        for rows in tiles(query.shape[1], block):
            largest = torch.full_like(lse[:, rows], torch.finfo(torch.float32).min)  # finite: exp(-inf - m) must be 0
            total = torch.zeros_like(largest)
            mixed = torch.zeros_like(output[:, rows], dtype=torch.float32)
            for columns in tiles(key.shape[1], block):
                scores = tile_scores(query, key, rows, columns, causal)
                if scores is None:
                    break  # later keys are hidden too
                larger = torch.maximum(largest, scores.amax(-1, keepdim=True))
                weights = scores.sub_(larger).exp_()
                shrink = largest.sub_(larger).exp_()
                total = total.mul_(shrink).add_(weights.sum(-1, keepdim=True))
                mixed = mixed.mul_(shrink).baddbmm_(weights, value[:, columns].float())
                largest = larger
            total.clamp_(min=1)  # the largest score adds exp(0) = 1, so this only changes queries that see nothing
            output[:, rows] = mixed.div_(total)
            lse[:, rows] = total.log_().add_(largest)
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.causal, ctx.block = causal, block
        return output
        # END SOLUTION

    @staticmethod
    @once_differentiable
    @without_autocast
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of query, key and value, tile by tile, and None for every other input of forward.

        With P = exp(S - lse) of a tile, and for each query delta = sum of grad_output x output (one number, the same
        for all tiles; Dao 2023, algorithm 2):

            dV += P^T dO        dS = P * (dO V^T - delta)        dQ += dS K / sqrt(D)        dK += dS^T Q / sqrt(D)

        Args:
            grad_output: [N, Tq, Dv].

        Returns:
            Each in the dtype of its input, summed in float32. 0 for a query that sees nothing, and what it adds too.

        Hints:
            1. Why is delta enough, where the gradient of softmax needs the sum over all keys of P dP?
            2. The same two loops as in forward; ``exp_`` in place; a tile that is None is left out.
        """
        # BEGIN SOLUTION
        query, key, value, output, lse = ctx.saved_tensors
        scale = query.shape[-1] ** -0.5
        delta = (grad_output.float() * output.float()).sum(-1, keepdim=True)
        grad_query, grad_key, grad_value = (torch.zeros_like(x, dtype=torch.float32) for x in (query, key, value))
        for rows in tiles(query.shape[1], ctx.block):
            grad_rows, query_rows = grad_output[:, rows].float(), query[:, rows].float()
            for columns in tiles(key.shape[1], ctx.block):
                scores = tile_scores(query, key, rows, columns, ctx.causal)
                if scores is None:
                    break
                weights = scores.sub_(lse[:, rows]).exp_()
                grad_value[:, columns].baddbmm_(weights.mT, grad_rows)
                grad_weights = grad_rows @ value[:, columns].float().mT
                grad_scores = grad_weights.sub_(delta[:, rows]).mul_(weights)
                grad_query[:, rows].baddbmm_(grad_scores, key[:, columns].float(), alpha=scale)
                grad_key[:, columns].baddbmm_(grad_scores.mT, query_rows, alpha=scale)
        return grad_query.to(query.dtype), grad_key.to(key.dtype), grad_value.to(value.dtype), None, None
        # END SOLUTION


def flash_attention(query: Tensor, key: Tensor, value: Tensor, causal: bool = False, block: int = 256) -> Tensor:
    """softmax(query key^T / sqrt(D)) value without the matrix of scores. Given; you write `FlashAttention`.

    Args:
        query: [B, H, Tq, D]. key: [B, H, Tk, D]. value: [B, H, Tk, Dv]. One floating dtype. Any lengths.
        causal: the last query sees all keys; see `tile_scores`.
        block: queries and keys per tile.

    Returns:
        [B, H, Tq, Dv] in the dtype of query (under autocast: its dtype).

    Raises:
        ValueError: shapes, dtypes or a block that cannot be.
    """
    query, key, value = autocast_cast(query, key, value)
    shapes = f"query {list(query.shape)}, key {list(key.shape)}, value {list(value.shape)}"
    if not query.dim() == key.dim() == value.dim() == 4 or not query.shape[:2] == key.shape[:2] == value.shape[:2]:
        raise ValueError(f"need [B, H, T, D] tensors with equal B and H, got {shapes}")
    if query.shape[3] != key.shape[3] or key.shape[2] != value.shape[2]:
        raise ValueError(f"query and key need one D, key and value one T, got {shapes}")
    if not query.dtype == key.dtype == value.dtype or not query.is_floating_point():
        raise ValueError(f"need one floating dtype, got {query.dtype}, {key.dtype} and {value.dtype}")
    if block < 1:
        raise ValueError(f"a block has at least 1 query, got {block}")
    heads = FlashAttention.apply(query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1), causal, block)
    return heads.unflatten(0, query.shape[:2])


# --- Given: what the exercises stand on -------------------------------------------------------------------------------


def tiles(length: int, block: int) -> list[slice]:
    """Cut 0 ... length into slices of ``block``, the last one as short as it has to be: 5, 2 -> 0:2, 2:4, 4:5."""
    return [slice(start, min(start + block, length)) for start in range(0, length, block)]


def autocast_cast(*tensors: Tensor) -> list[Tensor]:
    """Under autocast the tensors in its dtype, as a matrix product would take them; else as they are."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return list(tensors)
    return [tensor.to(torch.get_autocast_dtype(kind)) for tensor in tensors]


def generators(args: Sequence[Any]) -> list[torch.Generator]:
    """The generators that a function of these arguments may draw from: the CPU's, and those of its tensors' GPUs."""
    gpus = {arg.device.index for arg in args if isinstance(arg, Tensor) and arg.is_cuda}
    return [torch.default_generator, *(torch.cuda.default_generators[index] for index in sorted(gpus))]


class KeepInputs(torch.autograd.Function):
    """Does nothing but have autograd save its inputs. Its node takes no part in backward."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return anchor.new_empty(0)


def keep_inputs(args: Sequence[Any]) -> Callable[[], list[Any]]:
    """Leave the tensors among ``args`` to autograd's care; the function returned gives all of ``args`` back.

    Held in a closure they would stay in memory for as long as the graph. Saved like any other tensor they go through
    the hooks of an outer checkpoint, which drops them too, and a tensor that is changed in place before backward is
    noticed.
    """
    anchor = torch.empty(0, requires_grad=True)  # makes autograd record a node whatever args require
    node = KeepInputs.apply(anchor, *(arg for arg in args if isinstance(arg, Tensor))).grad_fn
    others = [None if isinstance(arg, Tensor) else arg for arg in args]
    is_tensor = [isinstance(arg, Tensor) for arg in args]

    def give_back() -> list[Any]:
        tensors = iter(node.saved_tensors)
        return [next(tensors) if tensor else other for other, tensor in zip(others, is_tensor, strict=True)]

    return give_back
