"""Lesson 2.1: data parallelism that hides its communication.

Every rank holds the whole model and works on its own share of the batch, so the gradients must be averaged over the
ranks before the optimiser may step. Sent after backward, they leave the network idle during backward and the
processor idle after it. But backward produces the last layer's gradients first: pack them into buckets in that order,
send each bucket as soon as it is full, and most of the traffic hides behind the rest of backward (Li et al. 2020).
Around that stand the parts that let a large batch train as well as a small one: a sampler, a learning-rate rule, a
warm-up, and two optimisers that adapt to each layer.

Work from top to bottom: exercises grow, and `DataParallel` at the end is where they meet. `group=None` means the
default group; any number of ranks from 1 up, gloo/CPU and NCCL/CUDA alike. Waiting ends at the process group's
timeout: give `init_process_group` and `new_group` one that you are willing to wait for.

Sources:
    Li et al. 2020, "PyTorch Distributed: experiences on accelerating data parallel training", arXiv:2006.15704.
    Goyal et al. 2017, "Accurate, large minibatch SGD: training ImageNet in 1 hour", arXiv:1706.02677.
    Krizhevsky 2014, "One weird trick for parallelizing convolutional neural networks", arXiv:1404.5997.
    Loshchilov & Hutter 2017, "SGDR: stochastic gradient descent with warm restarts", arXiv:1608.03983.
    You, Gitman & Ginsburg 2017, "Large batch training of convolutional networks", arXiv:1708.03888: LARS.
    You et al. 2020, "Large batch optimization for deep learning: training BERT in 76 minutes", arXiv:1904.00962: LAMB.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.distributed import ProcessGroup
from torch.optim import Optimizer
from torch.utils.data import Sampler

from shardlab import NotAttempted

# --- Data: which items does a rank work on? ---------------------------------------------------------------------------


class ShardedSampler(Sampler[int]):
    """The indices one rank works on: all ranks shuffle alike, then rank r takes items r, r + N, r + 2N, ...

    Every item goes to exactly one rank, once per epoch. If N does not divide ``length``, the first ranks get one item
    more (`DataParallel.join` is made for that); with ``drop_last`` the tail is left out, and all get the same number.
    `torch.utils.data.DistributedSampler` repeats the first items instead: an evaluation would count them twice.

    Args:
        length: number of items in the data set, at least 0.
        rank: this rank, 0 <= rank < world_size.
        world_size: N, the number of ranks that share the data, at least 1.
        shuffle: a new order each epoch, drawn from a generator seeded with ``seed + epoch`` (as torch does).
        seed: the same on every rank: with different ones, ranks cut up different orders.
        drop_last: leave out the tail that does not give every rank an item.

    Raises:
        ValueError: an argument outside its range.

    Example, 5 items on 2 ranks, not shuffled: rank 0 gets 0, 2, 4 and rank 1 gets 1, 3; with ``drop_last`` 0, 2 and
    1, 3.

    Hints:
        1. Why must every rank draw the whole permutation, and not only its own part of it?
        2. ``torch.randperm(n, generator=...)``; slices take a step: ``order[start:stop:step]``.
        3. What is the position after a rank has drawn k items, counted over all ranks? That number says where to go
           on, on this rank, on every other, and on another number of ranks.
    """

    def __init__(
        self, length: int, rank: int, world_size: int, shuffle: bool = True, seed: int = 0, drop_last: bool = False
    ) -> None:
        if length < 0:
            raise ValueError(f"length is the number of items, at least 0: got {length}")
        if world_size < 1:
            raise ValueError(f"world_size is the number of ranks, at least 1: got {world_size}")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must be one of 0 ... {world_size - 1}, world_size is {world_size}: got {rank}")
        self.length, self.rank, self.world_size = length, rank, world_size
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch = 0
        self._offset = 0  # items of this epoch that all ranks together have drawn
        self._resume_at = 0  # offset at which the next iteration starts: 0 unless a state was loaded

    def __iter__(self) -> Iterator[int]:
        """Yield this rank's indices of the epoch; in the first pass after `load_state_dict`, those still to come."""
        raise NotAttempted("2.1 ShardedSampler.__iter__")

    def __len__(self) -> int:
        """Number of items this rank gets in a whole epoch."""
        raise NotAttempted("2.1 ShardedSampler.__len__")

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next; without this call every epoch has the same order.

        Naming the epoch that is current already changes nothing, so that the usual ``for epoch in ...: set_epoch(...)``
        does not throw away a position that was just loaded.
        """
        raise NotAttempted("2.1 ShardedSampler.set_epoch")

    def state_dict(self) -> dict[str, int | bool]:
        """Where we are, as plain data: ``length``, ``shuffle``, ``seed``, ``epoch`` and ``offset``.

        ``offset`` counts what *all* ranks have drawn in this epoch: one rank's state is right for every rank, and for
        another number of ranks. A DataLoader with worker processes draws ahead of what has been trained on.
        """
        raise NotAttempted("2.1 ShardedSampler.state_dict")

    def load_state_dict(self, state: dict[str, int | bool]) -> None:
        """Continue where ``state`` was taken: the next iteration yields exactly the items that were still to come.

        Raises:
            ValueError: the state belongs to another order of items: ``length``, ``shuffle`` or ``seed`` differ.
        """
        raise NotAttempted("2.1 ShardedSampler.load_state_dict")


# --- A larger batch: which learning rate, which optimiser? ------------------------------------------------------------


def scaled_learning_rate(base: float, batch: int, base_batch: int, rule: str) -> float:
    """The learning rate for a batch of ``batch`` items when ``base`` is right for one of ``base_batch``.

    Args:
        base: learning rate that works at ``base_batch``, > 0.
        batch: the *global* batch, > 0: items per rank times ranks times accumulation steps.
        base_batch: > 0.
        rule: ``"linear"``: in proportion to the batch; k small steps go about as far as one step at k times the rate
            (Goyal et al. 2017, section 2.1). ``"sqrt"``: in proportion to its square root, which keeps the variance
            of a step (Krizhevsky 2014, section 5); the rule for LAMB (You et al. 2020, section 4).

    Raises:
        ValueError: a number that is not positive, or an unknown rule.

    Example, base 0.1 at batch 256: batch 1024 gets 0.4 by the linear rule, 0.2 by the square root.
    """
    raise NotAttempted("2.1 scaled_learning_rate")


def warmup_cosine(step: int, peak: float, warmup_steps: int, total_steps: int, floor: float = 0.0) -> float:
    """The learning rate of update number ``step``: a straight rise to ``peak``, then half a cosine down to ``floor``.

    - Warm-up, while ``step < warmup_steps``: ``peak * (step + 1) / warmup_steps`` (Goyal et al. 2017, section 2.2).
      A first update at rate 0 would waste a batch, so the rise does not start at 0.
    - After it ``floor + (peak - floor) / 2 * (1 + cos(pi * progress))``, with ``progress = (step - warmup_steps) /
      (total_steps - warmup_steps)`` (Loshchilov & Hutter 2017, equation 5). From ``total_steps`` on: ``floor``.

    Args:
        step: 0 for the first update.
        peak: highest learning rate.
        warmup_steps: updates in the rise, 0 <= warmup_steps <= total_steps.
        total_steps: updates in all, at least 1.
        floor: lowest learning rate of the cosine.

    Raises:
        ValueError: ``step``, ``warmup_steps`` or ``total_steps`` outside their range.

    Example, peak 1, 2 of 6 steps warm-up, steps 0 to 6: 0.5, 1, 1, 0.854, 0.5, 0.146, 0.
    """
    raise NotAttempted("2.1 warmup_cosine")


def trust_ratio(weight_norm: Tensor, update_norm: Tensor) -> Tensor:
    """``weight_norm / update_norm``, and 1 where either is 0: a fresh bias is all zeros, a ratio of 0 would freeze it.

    The papers leave the zero case open; 1 is what LAMB in TensorFlow Addons does.

    Args:
        weight_norm, update_norm: 0-d floating-point tensors on one device, at least 0.

    Returns:
        0-d tensor on the same device.

    Example: 6 and 2 give 3; 0 and 2 give 1; 6 and 0 give 1.

    Hints:
        1. ``if`` on a tensor makes a GPU's host wait for the value, for each layer of each step. ``torch.where``.
    """
    raise NotAttempted("2.1 trust_ratio")


class LayerwiseOptimizer(Optimizer):
    """What LARS and LAMB share: ``step`` hands every parameter that has a gradient to ``update``. Given."""

    def update(self, parameter: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Change ``parameter`` in place by its ``grad``; ``state`` is its own dict, empty before the first step."""
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Update all parameters once; returns the loss of ``closure`` where one is given, as torch's optimisers do."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, self.state[parameter], group)
        return loss


class LARS(LayerwiseOptimizer):
    """Layer-wise adaptive rate scaling (You, Gitman & Ginsburg 2017, algorithm 1).

    At a large batch one learning rate is too high for a layer with small weights and large gradients. LARS moves every
    layer, that is every parameter tensor, by the same *fraction* of its norm. With weight w, gradient g, velocity v:

        local = trust_coefficient * ||w|| / (||g|| + weight_decay * ||w||)
        v     = momentum * v + lr * local * (g + weight_decay * w)             (lr inside the momentum, unlike SGD)
        w     = w - v

    Args:
        params: parameters or parameter groups, as for any torch optimiser.
        lr: global learning rate, at least 0.
        momentum: 0 <= momentum < 1; v starts at 0.
        weight_decay: at least 0. It belongs into the denominator too.
        trust_coefficient: the paper's eta, > 0.

    Raises:
        ValueError: a number outside its range.

    Example, w = [3, 4], g = [0, 1], lr 1, weight_decay 0, trust_coefficient 0.1, first step: local is 0.1 * 5 / 1, so
    w becomes [3, 3.5].
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 0.001,
    ) -> None:
        if not (lr >= 0 and 0 <= momentum < 1 and weight_decay >= 0 and trust_coefficient > 0):
            raise ValueError(
                "need lr >= 0, 0 <= momentum < 1, weight_decay >= 0 and trust_coefficient > 0: "
                f"got {lr}, {momentum}, {weight_decay} and {trust_coefficient}"
            )
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "trust_coefficient": trust_coefficient})

    def update(self, parameter: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """One step of one layer, in place; the velocity lives in ``state``. The ratio of norms is `trust_ratio`'s."""
        raise NotAttempted("2.1 LARS.update")


class LAMB(LayerwiseOptimizer):
    """Layer-wise adaptive moments (You et al. 2020, algorithm 2, with the identity for phi).

    Adam finds the direction, the layer's norm gives the length. With weight w, gradient g and step t = 1, 2, ...:

        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g^2
        r = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay * w
        w = w - lr * ||w|| / ||r|| * r

    Args:
        params: parameters or parameter groups, as for any torch optimiser.
        lr: learning rate, at least 0.
        betas: each 0 <= beta < 1; m and v start at 0.
        eps: > 0.
        weight_decay: at least 0; decoupled as in AdamW, and inside the norm.

    Raises:
        ValueError: a number outside its range.

    Example, w = [3, 4], g = [0.1, -0.1], weight_decay 0, first step: r is [1, -1] up to eps whatever the size of g,
    so w moves by lr * 5 / sqrt(2) in both coordinates.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        if not (lr >= 0 and all(0 <= beta < 1 for beta in betas) and eps > 0 and weight_decay >= 0):
            raise ValueError(
                "need lr >= 0, 0 <= beta < 1 for both betas, eps > 0 and weight_decay >= 0: "
                f"got {lr}, {betas}, {eps} and {weight_decay}"
            )
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def update(self, parameter: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """One step of one layer, in place; t, m and v live in ``state``. The ratio of norms is `trust_ratio`'s."""
        raise NotAttempted("2.1 LAMB.update")


# --- Gradients: which travel together, and when do they leave? --------------------------------------------------------


def assign_buckets(tensors: Sequence[Tensor], bucket_bytes: float) -> list[list[Tensor]]:
    """Pack tensors, the last one first, into buckets that travel as one message each.

    Backward runs through the layers in reverse, so the gradients of the last registered parameters are there first. A
    bucket closes as soon as it holds ``bucket_bytes`` or more: no tensor is cut, and only a bucket's last tensor may
    reach over the limit (the rule of torch's reducer, ``compute_bucket_assignment_by_size``). A bucket holds one dtype
    on one device; a tensor of another kind goes into another open bucket.

    Args:
        tensors: in order of registration, may be empty.
        bucket_bytes: > 0.

    Returns:
        Buckets in the order in which they close, then those still open in the order in which they were opened.

    Example, four tensors a, b, c, d of 40 bytes: 80 gives [[d, c], [b, a]], and so does 50, because 40 bytes leave a
    bucket open; 40 gives [[d], [c], [b], [a]].

    Hints:
        1. How many buckets can be open at the same time?
        2. ``tensor.nbytes``; ``dict.setdefault`` and ``dict.pop``.
    """
    raise NotAttempted("2.1 assign_buckets")


class Bucket:
    """Gradients that travel as one message: one flat buffer, and for each parameter the view of its place in it.

    The views become the gradients: what the network wrote into the buffer needs no copy back, and gradients are held
    once, not twice (torch calls it ``gradient_as_bucket_view``).

    Attributes:
        flat: the buffer, a vector.
        views: each parameter's place in ``flat``, of the parameter's shape.
        missing: parameters whose gradient this backward has not produced yet.
        work: handle of the all-reduce of ``flat``, once it has started.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        sizes = [parameter.numel() for parameter in parameters]
        self.flat = parameters[0].new_zeros(sum(sizes))
        places = zip(parameters, self.flat.split(sizes), strict=True)
        self.views = {parameter: place.view(parameter.shape) for parameter, place in places}
        self.missing: set[nn.Parameter] = set()
        self.work: dist.Work | None = None

    def collect(self, parameter: nn.Parameter, scale: float) -> None:
        """Put ``scale`` times the gradient of ``parameter`` into its place, and make that place its gradient.

        A parameter without a gradient contributes zeros, but of the other kind: ``-0.0``. Floating-point addition gives
        -0.0 only if both terms are (IEEE 754), so after the all-reduce exactly those parameters that *no* rank used are
        still -0.0 throughout (`is_untouched`), and nobody had to send a byte to find out. Their ``.grad`` stays None.

        Hints:
            1. The -0.0 of a real gradient has to become +0.0. What is -0.0 + 0.0?
            2. ``torch.add(..., alpha=..., out=...)`` reads and writes memory once; the gradient may be the view itself.
        """
        raise NotAttempted("2.1 Bucket.collect")

    def is_untouched(self, parameter: nn.Parameter) -> bool:
        """After the all-reduce: had no rank a gradient for ``parameter``? (Zeros of which sign tell.) Given."""
        view = self.views[parameter]
        return bool(((view == 0) & view.signbit()).all())


class DataParallel(nn.Module):
    """Trains ``module`` on all ranks of a group as one process would on the union of their batches.

    Wrap the model on every rank, give its parameters to an optimiser, train as usual:

        model = DataParallel(module)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss_of(model(inputs), targets).backward()        # every .grad is now the average over the ranks
        optimizer.step()

    - At construction all parameters and buffers become those of rank 0 of the group.
    - During ``backward`` each bucket of `assign_buckets` is all-reduced, asynchronously, as soon as it is complete and
      those before it have left. All ranks so send the same buckets in the same order, whatever order their gradients
      come in. ``backward`` returns when all have arrived. One all-reduce per bucket, and not one byte more.
    - Frozen parameters are not sent; a tied one is sent once. Where a rank does not use a parameter its gradient counts
      as zero; one that no rank uses keeps its ``.grad``, in general None, as in one process. ``backward`` has to reach
      at least one parameter of the module on every rank. Gradients have to be dense.
    - Buffers (the statistics of batch norm) become those of rank 0 at the end of each backward that synchronises. torch
      does that before the next forward; here ranks are equal after every step, and evaluation never communicates.

    The average is over *ranks*: if they hold different numbers of tokens, a mean over each rank's tokens is the wrong
    loss. Divide the sum over the rank's tokens by the mean number of tokens per rank, over all ranks.

    As in torch's DistributedDataParallel, names in ``state_dict()`` begin with ``module.``; ``model.module`` has the
    plain ones.

    Args:
        module: the model, on the device it is trained on. At least one parameter requires a gradient.
        bucket_mb: size of a bucket in MiB (2**20 bytes), > 0, the same on every rank; need not be a whole number.
        group: the ranks that share the batch.

    Raises:
        ValueError: ``bucket_mb`` is not positive, no parameter requires a gradient, or this rank is not in the group
            (all before any communication); the ranks do not hold the same model (on every rank, naming a difference).

    Hints:
        1. Which hook runs when a gradient is complete and added to ``.grad``, not before?
           ``Tensor.register_post_accumulate_grad_hook``; `functools.partial` gives it what else it must know.
        2. If a parameter of a bucket is not used, its hook never runs. What runs at the end of backward in any case?
           The autograd engine calls back who asks *during* backward: ``Variable._execution_engine.queue_callback(f)``.
        3. ``async_op=True`` returns a handle. When does who wait for it?
    """

    def __init__(self, module: nn.Module, bucket_mb: float = 25.0, group: ProcessGroup | None = None) -> None:
        super().__init__()
        raise NotAttempted("2.1 DataParallel.__init__")

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Whatever the module returns. Given."""
        return self.module(*args, **kwargs)

    def _check_same_on_all_ranks(self) -> None:
        """Raise the same ValueError on every rank unless all of them are going to send the same things. Given."""
        mine = [("bucket_mb", str(self.bucket_bytes / 2**20))]
        for name, tensor in [*self.module.named_parameters(), *self.module.named_buffers()]:
            mine.append((name, f"{list(tensor.shape)} {tensor.dtype} requires_grad={tensor.requires_grad}"))
        everyone: list[list[tuple[str, str]]] = [[] for _ in range(dist.get_world_size(self.group))]
        dist.all_gather_object(everyone, mine, group=self.group)
        for rank, theirs in enumerate(everyone):
            for expected, found in zip_longest(everyone[0], theirs, fillvalue=("nothing", "more")):
                if found != expected:
                    raise ValueError(
                        "the ranks of the group do not hold the same model: "
                        f"rank 0 has {' '.join(expected)}, rank {rank} has {' '.join(found)}"
                    )

    def _broadcast(self, tensors: Sequence[Tensor], source: int) -> None:
        """Overwrite ``tensors`` on every rank with those of rank ``source`` of the group, few messages for many.

        Hints:
            1. `assign_buckets` knows what may travel together; ``torch.cat`` and ``split`` pack and unpack.
            2. Write through ``tensor.data``: autograd may have saved a buffer, and would complain of a change.
        """
        raise NotAttempted("2.1 DataParallel._broadcast")

    def _gradient_ready(self, bucket: Bucket, parameter: nn.Parameter) -> None:
        """What autograd calls when ``parameter.grad``, which travels in ``bucket``, is complete.

        Collect the gradient, scaled so that the sum over ranks is the average, and launch what can leave. The first
        call in a backward has to prepare the others, and see to it that `_backward_done` runs in the end.
        """
        raise NotAttempted("2.1 DataParallel._gradient_ready")

    def _launch_complete_buckets(self) -> None:
        """Start the all-reduce of every bucket that is complete and whose predecessors have all left."""
        raise NotAttempted("2.1 DataParallel._launch_complete_buckets")

    def _backward_done(self) -> None:
        """What autograd calls at the end of backward: send what is left, wait for everything, align the buffers.

        A bucket can be left because this rank did not use some parameter in it. The average of such a parameter becomes
        its gradient all the same, unless no rank has used it.
        """
        raise NotAttempted("2.1 DataParallel._backward_done")

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Every ``backward`` inside adds to this rank's own gradients and sends nothing; the next one outside averages
        the sums. For accumulation over micro-batches.

        What counts is where *backward* runs. In torch it is forward: a forward inside and its backward outside do not
        synchronise there, and nothing says so. Local gradients of 6.0 and 7.0 stay 6.0 and 7.0; here both become 6.5.
        """
        raise NotAttempted("2.1 DataParallel.no_sync")

    @contextmanager
    def join(self) -> Iterator[None]:
        """Put the training loop inside when ranks may run out of data at different times.

        A rank that leaves the loop shadows the others: with zeros it takes part in their collectives until all are
        out. The average stays that over *all* ranks of the group, so an item weighs the same in the last step as in the
        first (torch's default, ``divide_by_initial_world_size=True``). Buffers then come from the first rank that still
        has data. In the end every rank takes over parameters and buffers from one that was there to the last; optimiser
        states of the others lag behind, as in torch. Costs an all-reduce of one number per synchronising backward.

        Hints:
            1. A rank that is out must know whether another backward comes. Who tells it, and with which collective?
            2. With ``dist.ReduceOp.MAX`` one number says whether any rank is active and which one is the first.
        """
        raise NotAttempted("2.1 DataParallel.join")

    def _announce(self, active: bool) -> bool:
        """Tell the others whether this rank runs a backward; returns whether any does. The first of them is the source.

        Part of `join`.
        """
        raise NotAttempted("2.1 DataParallel._announce")

    def _shadow_backward(self) -> None:
        """Take part in the collectives of the others' backward without having a gradient. Part of `join`."""
        raise NotAttempted("2.1 DataParallel._shadow_backward")
