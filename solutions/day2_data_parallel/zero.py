"""Lesson 2.2: ZeRO, shard the model states.

Data parallelism keeps the same parameters, gradients and optimiser states on every rank, and N copies of one thing are
N - 1 too many. ZeRO (Rajbhandari et al. 2020) gives each rank an N-th to own. Stage 1 shards the optimiser states: sum
the gradients where they are needed (reduce-scatter), update one's own N-th, hand it round (all-gather). Stage 2 sums
and frees the gradients while backward runs; stage 3 fetches even the parameters only for the layer at work. With Psi
bytes of parameters a rank sends 2 Psi (N-1)/N in stages 1 and 2, as an all-reduce does, and 3 Psi (N-1)/N in stage 3.

Work from top to bottom: first what a rank owns, then what a `Bucket` can do, then the optimisers, which only say when.
`group=None` means the default group; any number of ranks from 1 up, gloo/CPU and NCCL/CUDA alike. Waiting ends at the
process group's timeout. At the end of the file stands what is given: `assign_buckets`, `find_units`,
`check_same_on_all_ranks`.

Sources:
    Rajbhandari et al. 2020, "ZeRO: memory optimizations toward training trillion parameter models", arXiv:1910.02054.
    Ren et al. 2021, "ZeRO-Offload: democratizing billion-scale model training", arXiv:2101.06840.
    Rajbhandari et al. 2021, "ZeRO-Infinity: breaking the GPU memory wall", arXiv:2104.07857: NVMe.
    Zhao et al. 2023, "PyTorch FSDP", arXiv:2304.11277: flat parameters whose storage is freed and filled again.
    DeepSpeed, "DeepSpeed configuration JSON", deepspeed.ai/docs/config-json.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.autograd.graph import register_multi_grad_hook
from torch.distributed import ProcessGroup
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from shardlab.ranks import all_gather_single, reduce_scatter_single

HAVE_A_FUSED_UPDATE = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)  # on CPU and CUDA alike

# --- What does a rank own? --------------------------------------------------------------------------------------------


def own_pieces(sizes: Sequence[int], rank: int, ranks: int) -> list[tuple[int, int, int]]:
    """What a rank owns of tensors that lie end to end and are cut into N equal shards, whatever the cut goes through.

    The last shard is padded if N does not divide the sum of sizes. Padding is no part of any tensor, so it is in
    nobody's pieces: no optimiser ever sees it.

    Args:
        sizes: elements of each tensor, 0 allowed.
        rank: 0 <= rank < ranks.
        ranks: N, at least 1.

    Returns:
        (index of the tensor, start, stop) for every tensor of which the rank owns elements start to stop, in order.

    Raises:
        ValueError: ``rank`` or ``ranks`` outside its range.

    Example, sizes 5, 2 and 3 on 3 ranks, shards of 4: rank 0 owns [(0, 0, 4)], rank 1 [(0, 4, 5), (1, 0, 2), (2, 0,
    1)], rank 2 [(2, 1, 3)] and two elements of padding.

    Hints:
        1. Where do a tensor and a shard begin and end in the whole vector? The piece is where both are.
        2. ``-(-a // b)`` rounds up; ``max`` of the starts, ``min`` of the ends.
    """
    # BEGIN SOLUTION
    if not 0 <= rank < ranks:
        raise ValueError(f"need 0 <= rank < ranks: got rank {rank} of {ranks}")
    length = -(-sum(sizes) // ranks)
    pieces = []
    for index, (size, end) in enumerate(zip(sizes, accumulate(sizes), strict=True)):
        first = end - size
        start, stop = max(rank * length - first, 0), min((rank + 1) * length - first, size)
        if start < stop:
            pieces.append((index, start, stop))
    return pieces
    # END SOLUTION


@dataclass(eq=False)
class Piece:
    """The part of one parameter that this rank owns: all that the optimiser knows of it. Given.

    Attributes:
        parameter: of the model.
        start, stop: which of the parameter's elements.
        place: where they lie in the bucket's shard.
        value: the elements, a vector. A view into the shard, or their copy on the CPU where the states are offloaded
            from a GPU. This is what the optimiser updates.
    """

    parameter: nn.Parameter
    start: int
    stop: int
    place: slice
    value: nn.Parameter


class Bucket:
    """Parameters that travel as one message: they lie end to end in one vector, of which each rank owns a shard.

    Attributes:
        parameters: all trained or all frozen, of one dtype on one device.
        full: the vector, padded with zeros to a multiple of N. Stages 1 and 2 keep it. In stage 3 it holds memory only
            between `gather` and `free`.
        shard: this rank's N-th of it. A view into ``full`` in stages 1 and 2, a vector of its own in stage 3.
        numel: elements of all parameters, without padding.
        places: each parameter's place in ``full``, a slice.
        views: the same place in the parameter's shape (which in stage 3 a parameter itself does not always show).
        pieces: what this rank owns of the parameters.
        gradient: this rank's N-th of the gradient, the average over the ranks; None if there is none yet.
        missing: parameters whose gradient the running backward has not produced yet.
        used: parameters for which this rank has had a gradient since the last step.
        holders: who needs the parameters at the moment (stage 3).
    """

    def __init__(self, parameters: Sequence[nn.Parameter], group: ProcessGroup | None, keep_full: bool) -> None:
        """Take over the parameters, with the values of rank 0 of the group. Given."""
        self.parameters, self.group = list(parameters), group
        self.trained = parameters[0].requires_grad
        self.ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        sizes = [parameter.numel() for parameter in parameters]
        self.numel = sum(sizes)
        length = -(-self.numel // self.ranks)
        self.full = parameters[0].detach().new_zeros(self.ranks * length)
        places = [slice(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]
        self.places = dict(zip(self.parameters, places, strict=True))
        self.views = {parameter: self.full[place].view(parameter.shape) for parameter, place in self.places.items()}
        for parameter, view in self.views.items():
            view.copy_(parameter.detach())
            parameter.data = view
        dist.broadcast(self.full, group_src=0, group=group)
        self.shard = self.full[rank * length : (rank + 1) * length]
        if not keep_full:
            self.shard = self.shard.clone()
        self.pieces, offset = [], 0
        for index, start, stop in own_pieces(sizes, rank, self.ranks):
            place = slice(offset, offset + stop - start)
            value = nn.Parameter(self.shard[place], requires_grad=self.trained)
            self.pieces.append(Piece(self.parameters[index], start, stop, place, value))
            offset = place.stop
        self.gradient: Tensor | None = None
        self.missing: set[nn.Parameter] = set()
        self.used: set[nn.Parameter] = set()
        self.holders: set[tuple[Unit, str]] = set()
        self._collected: Tensor | None = None  # the whole bucket's gradient of this rank, as long as `full`
        self._arriving: Tensor | None = None  # what the reduce-scatter under way writes
        self._reducing: dist.Work | None = None  # handle of the reduce-scatter under way
        self._gathering: dist.Work | None = None  # and of the all-gather

    # gradients

    def collect(self, parameter: nn.Parameter) -> None:
        """Put this rank's part of the average, 1/N of its gradient, into its place of the bucket, and free ``.grad``.

        A parameter without a gradient contributes zeros of the other sign, ``-0.0``: IEEE addition gives -0.0 only if
        every term is. What is still all -0.0 after the sum was used on no rank, and the optimiser must leave it alone,
        as one process would (lesson 2.1 explains it at length).

        Hints:
            1. The bucket's gradient does not exist before the first parameter asks for its place. What has to stand
               in the padding?
            2. ``torch.add(..., alpha=..., out=...)`` reads and writes memory once, and turns the -0.0 of a real
               gradient into 0.0.
        """
        # BEGIN SOLUTION
        if self._collected is None:
            self._collected = self.full.new_empty(self.full.shape)
            self._collected[self.numel :] = 0  # the padding
        place = self._collected[self.places[parameter]].view(self.views[parameter].shape)
        if parameter.grad is None:
            place.fill_(-0.0)
        else:
            torch.add(place.new_zeros(()), parameter.grad, alpha=1 / self.ranks, out=place)
            self.used.add(parameter)
            parameter.grad = None
        self.missing.discard(parameter)
        # END SOLUTION

    def launch_reduce(self) -> None:
        """Start the reduce-scatter of what was collected; returns at once."""
        # BEGIN SOLUTION
        self._arriving = torch.empty_like(self.shard)
        self._reducing = reduce_scatter_single(self._arriving, self._collected, group=self.group, async_op=True)
        # END SOLUTION

    def finish_reduce(self) -> None:
        """Wait for the reduce-scatter, free what was collected, add what arrived to ``gradient``."""
        # BEGIN SOLUTION
        self._reducing.wait()
        self._collected.untyped_storage().resize_(0)  # now, not whenever gloo's thread lets go of it
        self.gradient = self._arriving if self.gradient is None else self.gradient.add_(self._arriving)
        self._collected = self._arriving = self._reducing = None
        # END SOLUTION

    def drop_gradient(self) -> None:
        """Forget the gradient. Given."""
        self.gradient = None
        self.used.clear()

    # parameters

    def start_gather(self) -> None:
        """Start to fill ``full`` with everybody's shard, unless it is full or on its way; returns at once.

        Hints:
            1. In stage 3 ``full`` holds no memory. What autograd saved are views of its *storage*, so this very storage
               has to be filled again: ``tensor.untyped_storage()`` has ``size()`` and ``resize_(bytes)``.
            2. In stages 1 and 2 ``full`` is always there and this is never called: see `launch_gather`.
        """
        # BEGIN SOLUTION
        storage = self.full.untyped_storage()
        if storage.size() == 0:
            storage.resize_(self.full.numel() * self.full.element_size())
            self.launch_gather()
        # END SOLUTION

    def launch_gather(self) -> None:
        """Start the all-gather of the shards into ``full``, in place where the shard is a part of it. Given."""
        self._gathering = all_gather_single(self.full, self.shard, group=self.group, async_op=True)

    def finish_gather(self) -> None:
        """Wait until ``full`` is full. Given."""
        if self._gathering is not None:
            self._gathering.wait()
            self._gathering = None

    def gather(self) -> None:
        """Make the parameters whole: fetch them, or wait for them if they are on their way. Part of `start_gather`."""
        # BEGIN SOLUTION
        self.start_gather()
        self.finish_gather()
        for parameter, view in self.views.items():
            parameter.data = view
        # END SOLUTION

    def free(self) -> None:
        """Give back the memory of ``full``; only the shard stays. The parameters become empty.

        Not only the memory: a parameter that still pointed there would read freed memory and crash the process, an
        empty one says so in an error message. Part of `start_gather`.
        """
        # BEGIN SOLUTION
        self.finish_gather()
        self.full.untyped_storage().resize_(0)
        nothing = self.full.new_empty(0)
        for parameter in self.parameters:
            parameter.data = nothing
        self.holders.clear()
        # END SOLUTION


# --- Where do the states lie? -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Offload:
    """Where the optimiser states live, and the update runs, if not on the GPU: ``Offload("cpu")`` in the host's memory
    (Ren et al. 2021), ``Offload("nvme", path)`` in a file in the folder ``path`` (Rajbhandari et al. 2021). Given.

    On a machine without a GPU states are in the host's memory anyway, and "cpu" changes nothing.

    Raises:
        ValueError: another device, "nvme" without a folder that exists and can be written, "cpu" with one.
    """

    device: str
    path: str | Path | None = None

    def __post_init__(self) -> None:
        if self.device not in ("cpu", "nvme"):
            raise ValueError(f'offload to "cpu" or "nvme", not to {self.device!r}')
        if self.device == "cpu" and self.path is not None:
            raise ValueError(f'only "nvme" takes a folder: got {str(self.path)!r} for "cpu"')
        if self.device == "nvme" and not (self.path and Path(self.path).is_dir() and os.access(self.path, os.W_OK)):
            raise ValueError(f'"nvme" needs a folder that exists and can be written: got {self.path!r}')


class StateFile:
    """Optimiser states in a memory-mapped file, this rank's own.

    The file has no name: it is made with ``O_TMPFILE``, or unlinked at once where a system lacks that. So two jobs in
    one folder cannot meet, and the disk space is free again when the last process lets go of it: at `close`, after an
    exception, after ``kill -9``. Nobody has to clean up, and nobody can forget to.

    Args:
        folder: on the disk to use.
    """

    def __init__(self, folder: str | Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115  # closed by `close`
        self._slots: dict[tuple[Piece, str], tuple[mmap.mmap, Tensor]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of states in the file."""
        return sum(tensor.nbytes for _, tensor in self._slots.values())

    def keep(self, piece: Piece, state: dict[str, Any]) -> None:
        """Let the tensors in ``state`` that are as long as the piece live in the file, and give their memory back.

        The first time a tensor is appended to the file, the place is mapped, and the mapping takes the tensor's place
        in ``state``: whatever the optimiser writes from then on goes to the file. The pages that the update has touched
        are in memory until somebody says that they are not needed (``MADV_DONTNEED``); they lose nothing by it.

        Hints:
            1. A mapping begins at a multiple of ``mmap.ALLOCATIONGRANULARITY``. Writing the tensor to the file first
               reserves the space: on a full disk that is an error, where a write through a mapping is a crash. It
               returns how many bytes it has written, which need not be all.
            2. ``tensor.view(torch.uint8).numpy()`` has any dtype's bytes; ``torch.frombuffer(mapping, dtype=...)``.
        """
        # BEGIN SOLUTION
        for name, value in state.items():
            if not isinstance(value, Tensor) or value.shape != piece.value.shape:
                continue
            if (piece, name) not in self._slots:
                start = -(-self._file.seek(0, os.SEEK_END) // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
                self._file.seek(start)
                unwritten = memoryview(value.contiguous().view(torch.uint8).numpy())
                while unwritten:  # a write is cut short where the disk gets full, or after 2 GiB on Linux
                    unwritten = unwritten[self._file.write(unwritten) :]
                pages = mmap.mmap(self._file.fileno(), value.nbytes, offset=start)
                self._slots[piece, name] = pages, torch.frombuffer(pages, dtype=value.dtype)
            pages, kept = self._slots[piece, name]
            if value is not kept:
                kept.copy_(value)
                state[name] = kept
            pages.madvise(mmap.MADV_DONTNEED)
        # END SOLUTION

    def sync(self) -> None:
        """Wait until all that was written is on the disk: what an update costs without the page cache. Given."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Let go of the file. Given."""
        self._slots.clear()
        self._file.close()


# --- What all stages share --------------------------------------------------------------------------------------------


class ShardedOptimizer(Optimizer):
    """An optimiser whose states are shared out over the ranks of a group: what stages 1, 2 and 3 have in common.

    ``inner`` is an ordinary optimiser of the class the user asked for, over this rank's pieces. The class has to update
    elementwise, as SGD, Adam or Adagrad do: LARS and LAMB need the norm of a whole layer, of which a rank has a piece.
    ``state_file`` is the `StateFile` with its states, None where they are in memory.

    - Gradients are averages over the *ranks*. If they hold different numbers of tokens, divide the sum over each rank's
      tokens by the mean number of tokens per rank.
    - Several backwards before a step accumulate. Stage 1 keeps whole gradients, so it can add up locally and sends
      nothing before `step`. Stages 2 and 3 reduce-scatter in every backward and add up shards: k micro-batches send k
      times the gradients, and the memory stays at a shard.
    - `step` uses the gradients up, so there is nothing left to zero; `zero_grad` throws away what was not stepped on.
    - A parameter that no rank used keeps its value and its states, as in one process. ``backward`` has to reach at
      least one parameter on every rank. What is frozen at construction never gets states, gradients or traffic.
    """

    inner: Optimizer

    def __init__(self, params: Iterable[Any], optimizer_class: type[Optimizer], defaults: dict[str, Any]) -> None:
        """Check the input as any optimiser does; nothing is sent. Given."""
        if not callable(optimizer_class):
            raise ValueError(f"optimizer_class is a class such as torch.optim.AdamW, got {optimizer_class!r}")
        if optimizer_class in HAVE_A_FUSED_UPDATE and "foreach" not in defaults:
            defaults = {"fused": True, **defaults}  # one pass over the memory in place of ten
        super().__init__(params, defaults)
        everything = [parameter for group in self.param_groups for parameter in group["params"]]
        if not any(parameter.requires_grad for parameter in everything):
            raise ValueError("no parameter requires a gradient: there is nothing to optimise")
        self._optimizer_class = optimizer_class
        self._numbers = {parameter: number for number, parameter in enumerate(everything)}
        self._shapes = {parameter: parameter.shape for parameter in everything}

    def _shard(self, buckets: list[list[Bucket]], group: ProcessGroup | None, offload: Offload | None) -> None:
        """Make ``inner`` over the pieces of each parameter group's buckets, and hook the gradients. Given."""
        self.group = group
        self.buckets = [bucket for each in buckets for bucket in each if bucket.trained]
        self.state_file = StateFile(offload.path) if offload and offload.device == "nvme" else None
        if offload:
            for bucket in self.buckets:
                for piece in bucket.pieces:
                    if piece.value.device.type != "cpu":
                        piece.value = nn.Parameter(_pinned(piece.value))
        groups = [
            {
                **hyperparameters(own),
                "params": [piece.value for bucket in each if bucket.trained for piece in bucket.pieces],
            }
            for own, each in zip(self.param_groups, buckets, strict=True)
        ]
        self.inner = self._optimizer_class(groups, **self.defaults)
        self.defaults = self.inner.defaults
        for own, inner in zip(self.param_groups, self.inner.param_groups, strict=True):
            own.update(hyperparameters(inner))
        self._in_backward = False
        self._waiting: deque[Bucket] = deque()  # buckets whose reduce-scatter is still to come in this backward
        self._under_way: Bucket | None = None  # the one whose reduce-scatter has been launched
        self._consolidated: dict[str, Any] | None = None

    # gradients leave during backward: stages 2 and 3

    def _hook_gradients(self) -> None:
        """Have `_gradient_ready` called when a gradient is complete. Given."""
        for bucket in self.buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(partial(self._gradient_ready, bucket))

    def _backward_order(self) -> Iterable[Bucket]:
        """The buckets that take part in a backward, in the order in which all ranks send them."""
        raise NotImplementedError

    def _enter_backward(self) -> None:
        """Called whenever backward touches us: the first time prepares, and asks for `_backward_done`. Given."""
        if not self._in_backward:
            self._in_backward = True
            self._waiting = deque(self._backward_order())
            for bucket in self._waiting:
                bucket.missing = set(bucket.parameters)
            Variable._execution_engine.queue_callback(self._backward_done)

    def _gradient_ready(self, bucket: Bucket, parameter: nn.Parameter) -> None:
        """What autograd calls when ``parameter.grad`` is complete: collect it, and launch what can leave."""
        # BEGIN SOLUTION
        self._enter_backward()
        if parameter not in bucket.missing:
            raise RuntimeError(
                f"a gradient that nobody waits for, of a parameter of shape {list(parameter.shape)}: an error ended an "
                "earlier backward halfway (build the optimiser anew), or a reentrant checkpoint uses it twice"
            )
        bucket.collect(parameter)
        self._launch_complete_buckets()
        # END SOLUTION

    def _launch_complete_buckets(self) -> None:
        """Launch the reduce-scatter of every bucket that is complete and whose predecessors have all left."""
        # BEGIN SOLUTION
        while self._waiting and not self._waiting[0].missing:
            self._launch_reduce(self._waiting.popleft())
        # END SOLUTION

    def _launch_reduce(self, bucket: Bucket) -> None:
        """Launch a bucket's reduce-scatter, then wait for the one before it.

        One under way while the next one fills: so peak gradient memory is the shards and two buckets, however large the
        model. Waiting only after the launch keeps the network busy.
        """
        # BEGIN SOLUTION
        bucket.launch_reduce()
        self._finish_reduce()
        self._under_way = bucket
        # END SOLUTION

    def _finish_reduce(self) -> None:
        """Wait for the reduce-scatter under way, if there is one. Part of `_launch_reduce`."""
        # BEGIN SOLUTION
        if self._under_way is not None:
            self._under_way.finish_reduce()
            self._under_way = None
        # END SOLUTION

    def _backward_done(self) -> None:
        """What autograd calls at the end of backward: this rank's unused parameters go as they are, then wait."""
        # BEGIN SOLUTION
        for bucket in self._waiting:
            for parameter in list(bucket.missing):
                bucket.collect(parameter)
        self._launch_complete_buckets()
        self._finish_reduce()
        self._in_backward = False
        # END SOLUTION

    # the update

    def _reduce(self) -> None:
        """Reduce what backward has not reduced yet. Stages 2 and 3: nothing."""

    def _publish(self) -> None:
        """Let every rank have the updated parameters. Stage 3: nothing, the next forward fetches them."""

    @torch.no_grad()
    def clip_grad_norm(self, max_norm: float) -> Tensor:
        """Scale all gradients so that their norm is at most ``max_norm``; call it right before `step`.

        The norm is that of the *whole* averaged gradient, over all parameters and ranks, and the factor is torch's
        ``max_norm / (norm + 1e-6)``, at most 1. One all-reduce of a single number.

        Returns:
            The norm before clipping, 0-d, the same on every rank.

        Raises:
            ValueError: ``max_norm`` is not positive.

        Example, 2 ranks that own gradients [3] and [4], ``max_norm`` 1: the norm is 5 and they become 0.6 and 0.8. Each
        rank's own norm would make both 1.

        Hints:
            1. What may be added up over ranks: norms, or their squares?
            2. ``torch.linalg.vector_norm`` takes a ``dtype`` to add up in: bfloat16 has 8 bits.
        """
        # BEGIN SOLUTION
        if not max_norm > 0:
            raise ValueError(f"max_norm must be positive: got {max_norm}")
        self._reduce()
        gradients = [bucket.gradient for bucket in self.buckets if bucket.gradient is not None]
        total = torch.zeros((), device=self.buckets[0].shard.device)
        for gradient in gradients:
            wide = torch.promote_types(gradient.dtype, torch.float32)
            total += torch.linalg.vector_norm(gradient, dtype=wide).square()
        dist.all_reduce(total, group=self.group)
        norm = total.sqrt()
        factor = (max_norm / (norm + 1e-6)).clamp(max=1)
        for gradient in gradients:
            gradient.mul_(factor)
        return norm
        # END SOLUTION

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Update the parameters once; returns the loss of ``closure`` where one is given, as torch's optimisers do.

        Reduce what is not reduced yet, let ``inner`` update this rank's pieces by their part of the gradient, publish
        the result, throw the gradients away. Hyperparameters are those of ``self.param_groups`` at this moment, where
        schedulers change them. With states on NVMe it goes bucket by bucket, so that only one bucket's are in memory.

        Hints:
            1. `_hand_out_gradients` and `_take_back_values` are given.
            2. What must ``inner`` do about a piece whose ``grad`` is None?
        """
        loss = None if closure is None else torch.enable_grad()(closure)()
        # BEGIN SOLUTION
        self._reduce()
        for own, inner in zip(self.param_groups, self.inner.param_groups, strict=True):
            inner.update(hyperparameters(own))
        for buckets in [[bucket] for bucket in self.buckets] if self.state_file else [self.buckets]:
            self._hand_out_gradients(buckets)
            self.inner.step()
            self._take_back_values(buckets)
        self._publish()
        self.zero_grad()
        self._consolidated = None
        # END SOLUTION
        return loss

    def _hand_out_gradients(self, buckets: Iterable[Bucket]) -> None:
        """Give every piece its part of the gradient; None if no rank used its parameter. Given."""
        for bucket in buckets:
            for piece in bucket.pieces if bucket.gradient is not None else []:
                part = bucket.gradient[piece.place]
                if piece.parameter in bucket.used or not ((part == 0) & part.signbit()).all():
                    piece.value.grad = part if part.device == piece.value.device else _pinned(part)

    def _take_back_values(self, buckets: Iterable[Bucket]) -> None:
        """After ``inner`` has updated them: values back into the shard, states back into the file. Given."""
        for bucket in buckets:
            for piece in bucket.pieces:
                piece.value.grad = None
                if piece.value.device != bucket.shard.device:
                    bucket.shard[piece.place].copy_(piece.value)
                if self.state_file:
                    self.state_file.keep(piece, self.inner.state[piece.value])

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Throw all gradients away, whole and sharded. Given."""
        super().zero_grad(set_to_none)
        for bucket in self.buckets:
            bucket.drop_gradient()

    # checkpoints

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Bring all states together on rank ``to`` of the group, where `state_dict` then returns them.

        Every rank calls it. The result is what ``optimizer_class`` itself would have over the whole parameters, on the
        CPU: per parameter, numbered as in ``param_groups``, states of the parameter's shape; scalars such as Adam's
        ``step`` as they are. It goes bucket by bucket, so that no rank but ``to`` holds more than it did.

        Raises:
            ValueError: there is no such rank.

        Hints:
            1. A piece is anonymous without its parameter's number. In which order do the pieces of a parameter lie?
            2. `dist.gather_object` brings any object to one rank (``group_dst``); only there it needs a list to fill.
        """
        # BEGIN SOLUTION
        rank, ranks = dist.get_rank(self.group), dist.get_world_size(self.group)
        if not 0 <= to < ranks:
            raise ValueError(f"to must be a rank of the group, 0 ... {ranks - 1}: got {to}")
        found: dict[int, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
        for bucket in self.buckets:
            own = [(self._numbers[piece.parameter], self._state_of(piece)) for piece in bucket.pieces]
            everyone: list[list] | None = [[] for _ in range(ranks)] if rank == to else None
            dist.gather_object(own, everyone, group=self.group, group_dst=to)
            for number, state in (each for theirs in everyone or [] for each in theirs):
                for name, value in state.items():
                    found[number][name].append(value)
        shapes = list(self._shapes.values())
        whole = {n: {name: _join(values, shapes[n]) for name, values in found[n].items()} for n in sorted(found)}
        self._consolidated = {"state": whole, "param_groups": self._numbered_groups()} if rank == to else None
        # END SOLUTION

    def state_dict(self) -> dict[str, Any]:
        """What `consolidate_state_dict` brought here: loads into any ZeRO optimiser at any world size, and into
        ``optimizer_class`` itself. Given.

        It never communicates: a rank that saves alone gets an error, where a collective would leave it waiting.

        Raises:
            RuntimeError: nothing was consolidated on this rank since the last step.
        """
        if self._consolidated is None:
            raise RuntimeError(
                "the states are spread over the ranks: call consolidate_state_dict(to) on every rank first, then "
                "state_dict() on rank `to`"
            )
        return self._consolidated

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take this rank's pieces out of a whole state: from `state_dict`, at any world size, or from
        ``optimizer_class`` itself. Every rank calls it with the same state; nothing is sent.

        Raises:
            ValueError: the state belongs to other parameters.

        Hints:
            1. A state of the parameter's shape is cut like the parameter (`_cut`); scalars are taken over as they are.
               Both are copies: ``self.inner.load_state_dict`` keeps the very tensors it is given.
            2. It does the rest, and knows what torch's optimisers keep where. ``self.param_groups`` needs the
               hyperparameters of the state too, and what belongs into the file goes there now.
        """
        # BEGIN SOLUTION
        groups = state_dict["param_groups"]
        own, theirs = ([len(group["params"]) for group in each] for each in (self.param_groups, groups))
        if own != theirs:
            raise ValueError(f"the state has parameter groups of {theirs} parameters, this optimiser of {own}")
        whole = [state_dict["state"].get(self._numbers[piece.parameter], {}) for piece in self._pieces()]
        state = {
            number: {name: _cut(value, piece, self._shapes[piece.parameter]) for name, value in whole[number].items()}
            for number, piece in enumerate(self._pieces())
        }
        inner = self.inner.state_dict()["param_groups"]
        groups = [
            {**hyperparameters(group), "params": each["params"]} for group, each in zip(groups, inner, strict=True)
        ]
        self.inner.load_state_dict({"state": state, "param_groups": groups})
        for group, each in zip(self.param_groups, groups, strict=True):
            group.update(hyperparameters(each))
        if self.state_file:
            for piece in self._pieces():
                self.state_file.keep(piece, self.inner.state[piece.value])
        self._consolidated = None
        # END SOLUTION

    def close(self) -> None:
        """Let go of the states, and of the file they live in. Given."""
        self.inner.state.clear()
        if self.state_file:
            self.state_file.close()

    def _pieces(self) -> Iterator[Piece]:
        """In the order in which ``inner`` has them. Given."""
        return (piece for bucket in self.buckets for piece in bucket.pieces)

    def _state_of(self, piece: Piece) -> dict[str, Any]:
        """States of a piece, on the CPU. Given."""
        state = self.inner.state.get(piece.value, {})
        return {name: value.cpu() if isinstance(value, Tensor) else value for name, value in state.items()}

    def _numbered_groups(self) -> list[dict[str, Any]]:
        """``param_groups`` with numbers in place of parameters. Given."""
        return [
            {**hyperparameters(group), "params": [self._numbers[parameter] for parameter in group["params"]]}
            for group in self.param_groups
        ]


def hyperparameters(group: dict[str, Any]) -> dict[str, Any]:
    """A parameter group without its parameters. Given."""
    return {name: value for name, value in group.items() if name != "params"}


def _join(values: Sequence[Any], shape: torch.Size) -> Any:
    """A state of the whole parameter from those of its pieces, which lie in rank order. Given."""
    vector = isinstance(values[0], Tensor) and values[0].dim() > 0
    return torch.cat(list(values)).view(shape) if vector else values[0]


def _cut(value: Any, piece: Piece, shape: torch.Size) -> Any:
    """A copy of a piece's part of a state of the whole parameter; of scalars as they are. Given.

    A view would keep the whole state in memory, and the next step would change the checkpoint it belongs to.
    """
    if not isinstance(value, Tensor):
        return value
    if value.dim() == 0 and shape != value.shape:
        return value.clone()
    if value.shape != shape:
        raise ValueError(f"a state of shape {list(value.shape)} for a parameter of shape {list(shape)}")
    return value.flatten()[piece.start : piece.stop].clone()


def _pinned(tensor: Tensor) -> Tensor:
    """A copy on the CPU in pinned memory, which a GPU reaches without a detour. Given."""
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor.detach())


# --- Stages 1 and 2 ---------------------------------------------------------------------------------------------------


class ZeroOptimizer(ShardedOptimizer):
    """ZeRO-1 and ZeRO-2: every rank has the whole parameters, and the optimiser states of an N-th of them.

        optimizer = ZeroOptimizer(model.parameters(), torch.optim.AdamW, stage=2, lr=1e-3)
        loss_of(model(inputs), targets).backward()
        optimizer.clip_grad_norm(1.0)
        optimizer.step()                                   # all ranks have the updated parameters

    - At construction all parameters become those of rank 0 of the group, and views into `Bucket.full`.
    - Stage 1: gradients stay whole, each rank's own, until `step` (or `clip_grad_norm` before it) reduce-scatters
      bucket by bucket. Stage 2: each bucket is reduce-scattered during backward, asynchronously, as soon as it is
      complete and those before it have left, and its gradients are freed. ``.grad`` is None afterwards.
    - `step` updates the shard in place, inside the parameters, and all-gathers each bucket: per step a rank sends
      (N-1)/N of the parameters' bytes twice, and not one byte more. (Buckets are padded to a multiple of N.)

    Args:
        params: parameters or parameter groups, as for any torch optimiser; the same on every rank.
        optimizer_class: such as ``torch.optim.AdamW``; see `ShardedOptimizer`.
        stage: 1 or 2.
        group: the ranks that share the batch and the states.
        offload: where the states live, None: beside the parameters.
        bucket_mb: size of a bucket in MiB (2**20 bytes), > 0, need not be a whole number; see `assign_buckets`.
        defaults: hyperparameters for ``optimizer_class``. ``fused=True`` makes the update fastest.

    Raises:
        ValueError: what torch's optimisers refuse, another stage, ``bucket_mb`` not positive, no parameter that
            requires a gradient, a rank outside the group (all before any communication); the ranks do not hold the same
            parameters (on every rank, naming a difference).
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: type[Optimizer],
        stage: int,
        group: ProcessGroup | None = None,
        offload: Offload | None = None,
        bucket_mb: float = 25.0,
        **defaults: Any,
    ) -> None:
        """Given."""
        if stage not in (1, 2):
            raise ValueError(f"stage must be 1 or 2 (stage 3 shards modules: ZeroThree), got {stage!r}")
        if not bucket_mb > 0:
            raise ValueError(f"bucket_mb is a size in MiB and must be positive: got {bucket_mb}")
        super().__init__(params, optimizer_class, defaults)
        check_same_on_all_ranks([f"stage {stage}, bucket_mb {bucket_mb}", *map(describe, self._numbers)], group)
        self.stage = stage
        buckets = [
            [Bucket(each, group, keep_full=True) for each in assign_buckets(own["params"], bucket_mb * 2**20)]
            for own in self.param_groups
        ]
        self._shard(buckets, group, offload)
        if stage == 2:
            self._hook_gradients()

    def _backward_order(self) -> Iterable[Bucket]:
        """The buckets as `assign_buckets` made them: the last parameters first. Given."""
        return self.buckets

    def _reduce(self) -> None:
        """Stage 1: reduce-scatter all buckets, one under way while the next is collected. Nothing if that is done."""
        # BEGIN SOLUTION
        if self.stage == 1 and self.buckets[0].gradient is None:
            for bucket in self.buckets:
                for parameter in bucket.parameters:
                    bucket.collect(parameter)
                self._launch_reduce(bucket)
            self._finish_reduce()
        # END SOLUTION

    def _publish(self) -> None:
        """All-gather every bucket, all under way together."""
        # BEGIN SOLUTION
        for bucket in self.buckets:
            bucket.launch_gather()
        for bucket in self.buckets:
            bucket.finish_gather()
        # END SOLUTION


# --- Stage 3 ----------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Unit:
    """A module whose parameters are fetched together, and its buckets. Given.

    A parameter that several units use (a tied embedding) has a bucket of its own, which is in each of these units.
    """

    module: nn.Module
    buckets: list[Bucket] = field(default_factory=list)


class ZeroThree(ShardedOptimizer):
    """ZeRO-3: every rank keeps an N-th of parameters, gradients and optimiser states.

        optimizer = ZeroThree(model, torch.optim.AdamW, lr=1e-3)
        loss_of(model(inputs), targets).backward()         # call the model itself: hooks do the rest
        optimizer.step()

    Around each unit, which is a layer: all-gather its parameters, run its forward, free them; all-gather again, run its
    backward, free them, reduce-scatter its gradients. Per step a rank sends (N-1)/N of the parameters' bytes three
    times (a tied parameter is fetched for every unit that uses it); in an evaluation under ``no_grad`` once.
    Never more than ``1 + prefetch`` units are whole, and two units' gradients.

    - All ranks have to run the same units in the same order, also in an evaluation. Parameters *inside* a unit may be
      unused, on some ranks or on all.
    - A parameter outside its unit's forward and backward is an empty tensor. `full_state_dict` has the weights.
    - Parameters and buffers become those of rank 0 of the group at construction.
    - ``torch.utils.checkpoint`` works with ``use_reentrant=False``.

    Args:
        module: the model, on the device it is trained on; the same on every rank.
        optimizer_class: such as ``torch.optim.AdamW``; see `ShardedOptimizer`.
        group: the ranks that share the batch and the states.
        offload: where the states live, None: beside the parameters.
        units: modules inside ``module`` to fetch as a whole, whose forward is called; None: `find_units`. What is in
            none of them belongs to ``module`` itself and is fetched during its whole forward.
        prefetch: how many units to fetch ahead, in the order of the forward before, 0 or more.
        defaults: hyperparameters for ``optimizer_class``.

    Raises:
        ValueError: as `ZeroOptimizer`; ``prefetch`` is negative; one of ``units`` is not in the module.

    Hints:
        1. Backward of a unit begins when the gradient of its output is there, and is over when the gradients of its
           inputs are. ``tensor.register_hook`` and ``register_multi_grad_hook`` call back.
        2. A unit may be wanted for more than one reason: a tied parameter by two units, a checkpointed unit that runs
           forward again in the middle of its backward. Who frees it? Keep a set of holders, (unit, phase).
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer_class: type[Optimizer],
        group: ProcessGroup | None = None,
        offload: Offload | None = None,
        units: Iterable[nn.Module] | None = None,
        prefetch: int = 1,
        **defaults: Any,
    ) -> None:
        """Given."""
        if prefetch < 0:
            raise ValueError(f"prefetch is a number of units, 0 or more: got {prefetch}")
        super().__init__(module.parameters(), optimizer_class, defaults)
        layers = list(find_units(module) if units is None else units)
        if strangers := [layer for layer in layers if all(layer is not each for each in module.modules())]:
            raise ValueError(f"a unit must be a module inside the model: {type(strangers[0]).__name__} is not")
        check_same_on_all_ranks([f"prefetch {prefetch}", *map(describe, self._numbers)], group)
        self.module, self.prefetch = module, prefetch
        self._units = {layer: Unit(layer) for layer in [*layers, module]}
        self._all_buckets: list[Bucket] = []
        for users, parameters in self._parameters_by_users().items():
            for each in assign_buckets(parameters, float("inf")):
                bucket = Bucket(each, group, keep_full=False)
                bucket.free()
                self._all_buckets.append(bucket)
                for unit in users:
                    unit.buckets.append(bucket)
        for buffer in module.buffers():
            dist.broadcast(buffer, group_src=0, group=group)
        self._shard([self._all_buckets], group, offload)
        self._hook_gradients()
        self._path: list[Unit] = []  # units in the order of the forward that runs
        self._path_before: list[Unit] = []  # and of the one before
        self._in_graph: dict[
            Bucket, None
        ] = {}  # buckets since the last backward, by first use; no ordered set in Python
        for unit in self._units.values():
            unit.module.register_forward_pre_hook(partial(self._before_forward, unit), with_kwargs=True)
            unit.module.register_forward_hook(partial(self._after_forward, unit), always_call=True)

    def _parameters_by_users(self) -> dict[frozenset[Unit], list[nn.Parameter]]:
        """Parameters by the units that use them: for each module that has them, the innermost unit around it. Given."""
        users: dict[nn.Parameter, dict[Unit, None]] = defaultdict(dict)
        by_path = dict(self.module.named_modules(remove_duplicate=False))
        for path, owner in by_path.items():
            names = path.split(".") if path else []
            around = (by_path[".".join(names[:depth])] for depth in range(len(names), -1, -1))
            unit = next(self._units[each] for each in around if each in self._units)
            for parameter in owner.parameters(recurse=False):
                users[parameter][unit] = None
        found: dict[frozenset[Unit], list[nn.Parameter]] = {}
        for parameter, units in users.items():
            found.setdefault(frozenset(units), []).append(parameter)
        return found

    # fetch and free

    def _hold(self, unit: Unit, phase: str) -> None:
        """Make the unit's parameters whole, and keep them so until `_release` with the same phase."""
        # BEGIN SOLUTION
        for bucket in unit.buckets:
            bucket.holders.add((unit, phase))
            bucket.gather()
        # END SOLUTION

    def _fetch_ahead(self, path: list[Unit], unit: Unit, phase: str) -> None:
        """Start to fetch what comes after ``unit`` on ``path``, for holders that will come."""
        # BEGIN SOLUTION
        after = path.index(unit) + 1 if unit in path else len(path)
        for coming in path[after : after + self.prefetch]:
            for bucket in coming.buckets:
                bucket.holders.add((coming, phase))
                bucket.start_gather()
        # END SOLUTION

    def _release(self, unit: Unit, phase: str) -> None:
        """Free those of the unit's parameters that nobody holds any more."""
        # BEGIN SOLUTION
        for bucket in unit.buckets:
            bucket.holders.discard((unit, phase))
            if not bucket.holders:
                bucket.free()
        # END SOLUTION

    # what the hooks call

    def _before_forward(self, unit: Unit, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        """Fetch the unit, start on the next, and see to it that the end of its backward is noticed.

        Also runs when a checkpoint recomputes the unit during backward; that is no new forward.
        """
        # BEGIN SOLUTION
        if not self._in_backward:
            if module is self.module:
                self._path_before, self._path = self._path, []
            self._path.append(unit)
        self._hold(unit, "forward")
        if not self._in_backward:
            self._fetch_ahead(self._path_before, unit, "forward")
        if torch.is_grad_enabled():
            self._in_graph.update(dict.fromkeys(bucket for bucket in unit.buckets if bucket.trained))
            if inputs := [leaf for leaf in tree_leaves((args, kwargs)) if needs_gradient(leaf)]:
                register_multi_grad_hook(inputs, partial(self._after_backward, unit))
        # END SOLUTION

    def _after_forward(self, unit: Unit, module: nn.Module, args: tuple, output: Any) -> None:
        """Free the unit, and see to it that the beginning of its backward is noticed. Also runs after an error.

        When the whole model's forward is over, nothing is held for a forward any more: not what was fetched ahead for
        one that did not come.
        """
        # BEGIN SOLUTION
        for each in self._units.values() if module is self.module else [unit]:
            self._release(each, "forward")
        for leaf in tree_leaves(output):
            if needs_gradient(leaf):
                leaf.register_hook(partial(self._before_backward, unit))
        # END SOLUTION

    def _before_backward(self, unit: Unit, gradient: Tensor) -> None:
        """The gradient of an output of the unit is there: fetch it again, start on the one before it."""
        # BEGIN SOLUTION
        self._enter_backward()
        self._hold(unit, "backward")
        self._fetch_ahead(self._path[::-1], unit, "backward")
        # END SOLUTION

    def _after_backward(self, unit: Unit, gradients: Sequence[Tensor | None]) -> None:
        """The gradients of the unit's inputs are there: its backward is over."""
        # BEGIN SOLUTION
        self._release(unit, "backward")
        # END SOLUTION

    def _backward_order(self) -> Iterable[Bucket]:
        """Backward is through with a bucket when it is through with the unit that used it first. Given."""
        return reversed(self._in_graph)

    def _gradient_ready(self, bucket: Bucket, parameter: nn.Parameter) -> None:
        """As in stage 2. With its last gradient a bucket's parameters have done their work: free them. Given."""
        super()._gradient_ready(bucket, parameter)
        if not bucket.missing:
            bucket.free()

    def _backward_done(self) -> None:
        """As in stage 2, and nothing stays whole: units whose inputs need no gradient were never released. Given."""
        super()._backward_done()
        self._in_graph.clear()
        for bucket in self._all_buckets:
            bucket.free()

    # weights

    @torch.no_grad()
    def full_state_dict(self, to: int = 0) -> dict[str, Any]:
        """The whole model's ``state_dict``, on the CPU of rank ``to``; other ranks get an empty dict. Given.

        Every rank calls it; one bucket at a time is whole. So: ``state = zero.full_state_dict()`` on all ranks, then
        ``if rank == 0: torch.save(state, ...)``.

        Raises:
            ValueError: there is no such rank.
        """
        if not 0 <= to < dist.get_world_size(self.group):
            raise ValueError(f"to must be a rank of the group, 0 ... {dist.get_world_size(self.group) - 1}: got {to}")
        mine = dist.get_rank(self.group) == to
        whole: dict[nn.Parameter, Tensor] = {}
        for bucket in self._all_buckets:
            bucket.gather()
            if mine:
                whole.update((parameter, parameter.detach().cpu().clone()) for parameter in bucket.parameters)
            bucket.free()
        if not mine:
            return {}
        named = self.module.state_dict(keep_vars=True)
        return {name: whole[value] if value in whole else value.cpu().clone() for name, value in named.items()}

    @torch.no_grad()
    def load_full_state_dict(self, state_dict: dict[str, Tensor]) -> None:
        """Take this rank's pieces out of a whole model's ``state_dict``, at any world size. Nothing is sent. Given.

        Raises:
            ValueError: a parameter or buffer is missing or has another shape.
        """
        named = self.module.state_dict(keep_vars=True)
        shapes = {name: self._shapes.get(value, value.shape) for name, value in named.items()}
        given = {name: value.shape for name, value in state_dict.items()}
        if given != shapes:
            wrong = next(name for name in {**shapes, **given} if shapes.get(name) != given.get(name))
            raise ValueError(f"{wrong}: the model has shape {shapes.get(wrong)}, the state {given.get(wrong)}")
        names = {value: name for name, value in named.items()}
        for bucket in self._all_buckets:
            for piece in bucket.pieces:
                part = state_dict[names[piece.parameter]].flatten()[piece.start : piece.stop]
                bucket.shard[piece.place].copy_(part)
                piece.value.copy_(part)
        for buffer in self.module.buffers():
            buffer.copy_(state_dict[names[buffer]])


def needs_gradient(leaf: object) -> bool:
    """Whether it is a tensor through which backward will come. Given."""
    return isinstance(leaf, Tensor) and leaf.requires_grad


# --- The same in DeepSpeed --------------------------------------------------------------------------------------------


def deepspeed_config(
    stage: int, offload: Offload | None, micro_batch: int, accumulation: int, precision: str
) -> dict[str, Any]:
    """The configuration that makes DeepSpeed train as the optimisers above do.

    Keys, as deepspeed.ai/docs/config-json has them:

    - ``train_micro_batch_size_per_gpu``, ``gradient_accumulation_steps``: of one rank. DeepSpeed works out
      ``train_batch_size``, micro_batch * accumulation * ranks; given by hand it is one more number to be wrong.
    - ``gradient_clipping`` 0.0: without this key DeepSpeed 0.19 clips every gradient to norm 1.0, and says nothing.
    - ``zero_optimization``: ``stage``, ``overlap_comm`` and ``reduce_scatter`` true, and where states are offloaded
      ``offload_optimizer`` with ``device``, ``pin_memory`` true, and ``nvme_path`` for NVMe.
    - ``bf16`` or ``fp16`` with ``enabled`` true, for that precision; neither key for "fp32".
    - ``zero_allow_untested_optimizer`` true: a torch optimiser is not on DeepSpeed's list. With ``offload`` also
      ``zero_force_ds_cpu_optimizer`` false, or it insists on its own Adam, which it compiles first.

    Args:
        stage: 0 (plain data parallelism) to 3.
        offload: None, or where the optimiser states live. Needs stage 1 or more; NVMe needs stage 3.
        micro_batch: items of one rank in one forward, at least 1.
        accumulation: micro-batches to a step, at least 1.
        precision: "fp32", "bf16" or "fp16".

    Raises:
        ValueError: a value outside its range, or a combination that DeepSpeed cannot do.

    Example: ``deepspeed_config(2, Offload("cpu"), 4, 8, "bf16")["zero_optimization"]["offload_optimizer"]`` is
    ``{"device": "cpu", "pin_memory": True}``.
    """
    # BEGIN SOLUTION
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"stage must be 0, 1, 2 or 3: got {stage!r}")
    if micro_batch < 1 or accumulation < 1:
        raise ValueError(f"micro_batch and accumulation must be at least 1: got {micro_batch} and {accumulation}")
    if precision not in ("fp32", "bf16", "fp16"):
        raise ValueError(f'precision must be "fp32", "bf16" or "fp16": got {precision!r}')
    zero: dict[str, Any] = {"stage": stage, "overlap_comm": True, "reduce_scatter": True}
    config = {
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": 0.0,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
    }
    if offload:
        needed = 3 if offload.device == "nvme" else 1
        if stage < needed:
            raise ValueError(f"DeepSpeed offloads to {offload.device} from stage {needed} on: got stage {stage}")
        zero["offload_optimizer"] = {"device": offload.device, "pin_memory": True}
        if offload.path:
            zero["offload_optimizer"]["nvme_path"] = str(offload.path)
        config["zero_force_ds_cpu_optimizer"] = False
    if precision != "fp32":
        config[precision] = {"enabled": True}
    return config
    # END SOLUTION


# --- Given ------------------------------------------------------------------------------------------------------------


def assign_buckets(parameters: Sequence[nn.Parameter], bucket_bytes: float) -> list[list[nn.Parameter]]:
    """Pack parameters, the last one first, into buckets: lesson 2.1's rule.

    A bucket closes as soon as it holds ``bucket_bytes`` or more; no parameter is cut. One bucket holds one dtype on one
    device, and only trained or only frozen parameters.

    Returns:
        Buckets in the order in which they close, then those still open in the order in which they were opened.
    """
    closed: list[list[nn.Parameter]] = []
    still_open: dict[tuple, list[nn.Parameter]] = {}
    for parameter in reversed(parameters):
        kind = parameter.dtype, parameter.device, parameter.requires_grad
        bucket = still_open.setdefault(kind, [])
        bucket.append(parameter)
        if sum(member.nbytes for member in bucket) >= bucket_bytes:
            closed.append(still_open.pop(kind))
    return closed + list(still_open.values())


def find_units(module: nn.Module) -> Iterator[nn.Module]:
    """The layers of a model: members of every outermost ModuleList or Sequential, whole; elsewhere every module that
    has parameters of its own (an embedding, a norm, a head)."""
    for child in module.children():
        is_list = isinstance(child, (nn.ModuleList, nn.ModuleDict))  # they have no forward to hook
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and not is_list:
            yield child
        else:
            if next(child.parameters(recurse=False), None) is not None:
                yield child
            yield from find_units(child)


def describe(parameter: nn.Parameter) -> str:
    """What has to be the same on all ranks."""
    return f"{list(parameter.shape)} {parameter.dtype} requires_grad={parameter.requires_grad}"


def check_same_on_all_ranks(mine: list[str], group: ProcessGroup | None) -> None:
    """Raise the same ValueError on every rank of the group unless all of them say the same."""
    if dist.get_rank(group) < 0:
        raise ValueError(f"rank {dist.get_rank()} is not in this group: only its members may train in it")
    everyone: list[list[str]] = [[] for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(everyone, mine, group=group)
    for rank, theirs in enumerate(everyone):
        for number, (expected, found) in enumerate(zip_longest(everyone[0], theirs, fillvalue="nothing more")):
            if found != expected:
                raise ValueError(
                    f"the ranks of the group do not hold the same parameters; number {number - 1} is {expected} on "
                    f"rank 0 and {found} on rank {rank}"
                )
