"""Lesson 2.3: fully sharded data parallelism, the PyTorch way.

In data parallelism every rank holds all parameters, all gradients and all optimiser state, though it works on one layer
at a time. Fully sharded, each rank keeps an N-th of every parameter, and of everything that has its size. Right before
a layer computes, an all-gather makes its parameters whole; right after, they are freed. In backward the same once more,
and a reduce-scatter leaves each rank its part of the averaged gradients. The model is never whole anywhere: what must
fit is the shards and a layer or two (Rajbhandari et al. 2020, stage 3; Zhao et al. 2023). All-gather and reduce-scatter
are the two halves of DDP's all-reduce; the second all-gather makes it 1.5 times DDP's traffic.

Shards are DTensors, as in torch's ``fully_shard``: a parameter knows that it is of shape [1024, 128], and that this
rank holds rows 256 to 511. Optimisers, ``torch.distributed.checkpoint`` and ``state_dict`` work on it as it is.

Work from top to bottom: where a row lives, a layer that can be made whole and sharded again, the four hooks that do so
at the right moments, then clipping and saving. `group=None` means the default group; any number of ranks from 1 up,
gloo/CPU and NCCL/CUDA alike. Everything here has to be called on every rank of the group, in the same order.

Sources:
    Rajbhandari et al. 2020, "ZeRO: memory optimizations toward training trillion parameter models", arXiv:1910.02054.
    Zhao et al. 2023, "PyTorch FSDP: experiences on scaling fully sharded data parallel", arXiv:2304.11277.
    PyTorch documentation, "torch.distributed.fsdp.fully_shard" and "torch.distributed.tensor".
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Variable
from torch.distributed import DeviceMesh, ProcessGroup
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn.utils import get_total_norm
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from shardlab import NotAttempted
from shardlab.ranks import all_gather_single, device, reduce_scatter_single

# --- Where does a row live? -------------------------------------------------------------------------------------------


def rows_per_rank(rows: int, ranks: int) -> int:
    """Rows of a parameter's first dimension that a rank has room for: an N-th of them, rounded up. Given."""
    return -(-rows // ranks)


def local_rows(rows: int, rank: int, ranks: int) -> slice:
    """The rows that a rank keeps of a parameter with ``rows`` rows: the rule of ``Shard(0)`` and `torch.chunk`.

    The first ranks hold `rows_per_rank` rows each, the next one what is left, and those after it nothing.

    Args:
        rows: size of dimension 0, at least 0.
        rank: 0 <= rank < ranks.
        ranks: N.

    Returns:
        A slice with 0 <= start <= stop <= rows.

    Raises:
        ValueError: an argument outside its range.

    Example, 5 rows on 4 ranks: two rows each for ranks 0 and 1, one for rank 2, none for rank 3. That is slice(0, 2),
    slice(2, 4), slice(4, 5), slice(5, 5).
    """
    raise NotAttempted("2.3 local_rows")


def padded(tensor: Tensor, numel: int) -> Tensor:
    """``tensor`` as a vector of ``numel`` elements, with zeros at its end; a view where none are needed. Given.

    A collective takes equally many elements from every rank. Padding makes them equal, and nobody ever reads it.
    """
    vector = tensor.reshape(-1)
    return F.pad(vector, (0, numel - vector.numel())) if vector.numel() < numel else vector


def free_memory(tensor: Tensor) -> None:
    """Give back the memory of ``tensor`` at once, whoever still holds the tensor or a view of it. Given.

    Autograd holds what it has saved for backward, a communication thread the message it has just delivered.
    """
    tensor.untyped_storage().resize_(0)


def give_memory(tensor: Tensor) -> None:
    """Memory for a ``tensor`` that had none, and so for its views, with anything in it. Given."""
    tensor.untyped_storage().resize_(tensor.nbytes)


# --- One layer: the parameters that travel together -------------------------------------------------------------------

Place = tuple[nn.Module, str]
"""Where a parameter is registered: ``module._parameters[name]``."""


class ShardedLayer:
    """The parameters that one `shard_module` takes care of: gathered, freed and reduced together.

    Each parameter exists twice. The *shard* is a DTensor: optimisers and checkpoints see it. The *full* parameter, in
    the dtype that computes, is a view into the vector ``whole``, which has memory only while the layer computes.
    Autograd keeps full parameters for backward: not copies, the tensors themselves, whose numbers must be back in
    time. So they are made once, and it is the memory behind them that comes and goes.

    For N ranks, parameter i takes ``chunks[i]`` elements on each rank, padding included. All chunks of one rank are its
    *piece*, the message of an all-gather. What arrives is sorted by rank, what computes is sorted by parameter:

        gathered    a0 b0 | a1 b1 | a2 b2        a piece from each rank
        whole       a0 a1 a2 | b0 b1 b2          ``rows``: each parameter's part, seen as [N, chunk]

    Attributes:
        places: of each parameter, everywhere it is registered: more than one place if it is tied.
        group, mesh, ranks, rank: who shares the parameters, how many they are, and who this is.
        home: device of the shards and their gradients.
        dtype: what full parameters compute in and what travels in an all-gather.
        chunks, whole, rows, full: see above. All full parameters lie in ``whole``.
        shards: the DTensors, in the order of ``places``.
        is_whole: full parameters are registered, and their memory is there.
        gathering: handle and destination of an all-gather under way.
        unsent: of each parameter, the sum of gradients of this rank that were not reduced yet.
        reducing: a reduce-scatter under way.
        synchronise: False inside `no_sync`.
        schedule: what all layers of the model share.
    """

    def __init__(
        self,
        places: Sequence[Sequence[Place]],
        mesh: DeviceMesh,
        reshard_after_forward: bool,
        mixed_precision: torch.dtype | None,
        offload: bool,
        prefetch: int,
    ) -> None:
        originals = [module._parameters[name] for (module, name), *_ in places]
        shapes = [parameter.shape for parameter in originals]
        self.places, self.originals = places, [weakref.ref(parameter) for parameter in originals]
        self.mesh, self.group, self.ranks, self.rank = mesh, mesh.get_group(), mesh.size(), mesh.get_local_rank()
        self.reshard_after_forward, self.prefetch = reshard_after_forward, prefetch
        self.mixed_precision = mixed_precision
        self.home = torch.device("cpu") if offload else device()
        self.dtype = mixed_precision or (originals[0].dtype if originals else torch.float32)
        self.shards = [self.shard(parameter) for parameter in originals]
        self.register(self.shards)
        del originals  # now the whole parameters are freed: there is room for what follows
        self.chunks = [rows_per_rank(shape[0], self.ranks) * shape[1:].numel() for shape in shapes]
        self.whole = torch.empty(self.ranks * sum(self.chunks), dtype=self.dtype, device=device())
        self.rows = [part.view(self.ranks, -1) for part in self.whole.split([self.ranks * c for c in self.chunks])]
        self.full = [
            nn.Parameter(rows.view(-1)[: shape.numel()].view(shape).data, requires_grad=False)
            for rows, shape in zip(self.rows, shapes, strict=True)
        ]
        free_memory(self.whole)
        self.is_whole = False
        self.gathering: tuple[dist.Work, Tensor] | None = None
        self.unsent: list[Tensor | None] = [None] * len(places)
        self.reducing: Reduction | None = None
        self.synchronise = True
        self.schedule = Schedule([self])

    def register(self, parameters: Sequence[nn.Parameter]) -> None:
        """Let the modules have these parameters, one for each of ``places``. Given."""
        for parameter, places in zip(parameters, self.places, strict=True):
            for module, name in places:
                module._parameters[name] = parameter

    # --- Shards and whole parameters ---

    def shard(self, parameter: nn.Parameter) -> nn.Parameter:
        """This rank's rows of ``parameter`` as a DTensor parameter on ``self.home``. Nothing is communicated.

        Hints:
            1. `local_rows`, `as_dtensor`.
            2. The original is going to be freed. What keeps it alive if the rows are a view of it?
        """
        raise NotAttempted("2.3 ShardedLayer.shard")

    def as_dtensor(self, rows: Tensor, like: Tensor) -> DTensor:
        """This rank's rows as a DTensor of the shape of ``like``. Given.

        Without the shape, ``from_local`` takes it that every rank has as many rows as this one.
        """
        shape, stride = like.shape, like.stride()
        return DTensor.from_local(rows, self.mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)

    @torch.no_grad()
    def start_gather(self) -> None:
        """Launch the all-gather of this layer and do not wait for it: one, whatever the number of parameters.

        Does nothing if the layer is whole, on its way, or has no parameters.

        Hints:
            1. An N-th of the destination is this rank's own piece. Packed right there, it needs no memory of its own.
            2. `padded`; ``DTensor.to_local``; ``torch.cat(..., out=...)`` copies and converts in one go.
            3. `all_gather_single` with ``async_op=True`` returns a handle.
        """
        raise NotAttempted("2.3 ShardedLayer.start_gather")

    @torch.no_grad()
    def unshard(self) -> None:
        """Make the layer whole: wait for its all-gather, launched now if nobody has before, and register full
        parameters in place of the shards. Frozen shards have frozen full parameters. Does nothing if it is whole.

        Hints:
            1. From [N, piece] into every parameter's [N, chunk]: one call, ``torch.split_with_sizes_copy(..., out=)``.
            2. `give_memory`, before. When may the memory of what was gathered go? `free_memory`.
        """
        raise NotAttempted("2.3 ShardedLayer.unshard")

    def reshard(self) -> None:
        """Register the shards again and free the memory of the full parameters. Does nothing if it is sharded.

        Hints:
            1. Autograd holds on to the full parameters, so deleting them frees nothing: `free_memory`.
        """
        raise NotAttempted("2.3 ShardedLayer.reshard")

    # --- Gradients ---

    def collect_gradients(self) -> bool:
        """Move what backward has left in the full parameters' ``.grad`` into ``unsent``, added to what is there.

        Inside `no_sync` sums are kept in the dtype of the shards: bfloat16 would lose what later micro-batches add.

        Returns:
            Whether there was anything.
        """
        raise NotAttempted("2.3 ShardedLayer.collect_gradients")

    def gradient_rows(self, index: int) -> Tensor:
        """The unsent gradient of parameter ``index`` as [N, chunk]: row r is what goes to rank r. Given.

        If this rank has none, -0.0 throughout, as in lesson 2.1: a floating-point sum is -0.0 only if all its terms are
        (IEEE 754). So after the reduce-scatter it shows whether any rank had one, and nobody has sent a byte more.
        """
        gradient, rows = self.unsent[index], self.rows[index]
        if gradient is None:
            return torch.full(rows.shape, -0.0, dtype=self.dtype, device=rows.device)
        return padded(gradient, rows.numel()).view(rows.shape)

    @torch.no_grad()
    def start_reduction(self) -> None:
        """Launch the reduce-scatter of ``unsent``, in the dtype of the shards, and do not wait for it. One, whatever
        the number of parameters. ``unsent`` is empty afterwards.

        All trained parameters are in it, whether this rank has used them or not: all ranks must send equally many
        bytes. Frozen ones are not. Does nothing if this rank has no gradient at all.

        Hints:
            1. Row r of every `gradient_rows` side by side is what rank r gets. ``torch.cat(..., dim=1, out=...)``.
            2. `reduce_scatter_single` sums.
        """
        raise NotAttempted("2.3 ShardedLayer.start_reduction")

    @torch.no_grad()
    def finish_reduction(self) -> None:
        """Wait for the reduce-scatter under way, if there is one, and add this rank's rows of the average over the
        ranks to the shards' ``.grad``: DTensors like the shards, on ``self.home``.

        A parameter that no rank has used keeps the ``.grad`` it has, in general None, as in one process.

        Hints:
            1. The sum is there. Who divides, and is it cheaper before the message or after it?
            2. `free_memory` of what was sent. Padding, at the end of each chunk, must not get into a gradient.
            3. Add to ``shard.grad.to_local()``: adding DTensors takes ten times as long.
        """
        raise NotAttempted("2.3 ShardedLayer.finish_reduction")

    # --- The four hooks ---

    def pre_forward(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """Before the module computes: make the layer whole, launch the all-gathers of those that come next.

        With mixed precision, floating-point inputs become ``self.dtype``. While autograd records, inputs that require a
        gradient pass through `AfterBackward`.

        Returns:
            The arguments for the module.

        Hints:
            1. `Schedule.start` says what comes next. ``self.prefetch`` of them travel while this one computes. Call it
               first of all: what an earlier forward has left in memory, it frees.
            2. Launch before the module computes, but not before this layer's own memory is back to one copy.
            3. In a backward it is activation checkpointing that calls the module again: nothing new to launch then.
        """
        raise NotAttempted("2.3 ShardedLayer.pre_forward")

    def post_forward(self, module: nn.Module, args: tuple, output: Any) -> None:
        """After the module has computed: free the layer, unless it is to stay for backward, and see to it that
        `pre_backward` runs as soon as the gradient of one of its outputs is there.

        Without autograd no backward will come: the layer is freed whatever ``reshard_after_forward`` says.

        Hints:
            1. ``Tensor.register_hook``, on outputs that require a gradient: `tree_leaves` finds tensors in anything.
            2. `Schedule.finish` says which position this call has; `functools.partial` hands it on.
            3. Called again by activation checkpointing, in backward, the layer is needed right afterwards.
        """
        raise NotAttempted("2.3 ShardedLayer.post_forward")

    def pre_backward(self, calls: Sequence[ShardedLayer], position: int, gradient: Tensor) -> None:
        """Before backward enters the module: make the layer whole, launch the all-gathers of those that come next.

        Args:
            calls: layers in the order in which the forward had finished them.
            position: of this call among them.
            gradient: of an output of the module. It is left alone.

        Hints:
            1. `Schedule.enter_backward` comes first: it sees to the end of this backward.
            2. Backward goes the other way.
        """
        raise NotAttempted("2.3 ShardedLayer.pre_backward")

    def post_backward(self) -> None:
        """After backward has left the module: take the gradients, free the layer, launch the reduce-scatter.

        Called again when backward is over, because a layer whose inputs need no gradient has no other end. If the
        module was called twice, gradients are complete, and there, when backward has left it for the second time.

        Hints:
            1. One reduce-scatter under way is enough to hide it; a second would keep the gradients of another layer in
               memory. `Schedule.reduce` ends the one before.
            2. What has to be freed first, so that memory never holds a layer and its gradients and the message?
        """
        raise NotAttempted("2.3 ShardedLayer.post_backward")


@dataclass
class Reduction:
    """A reduce-scatter under way.

    Attributes:
        work: its handle.
        source: [N, width], what is being sent. It must stay alive.
        output: [width], what will be there.
        trained: indices of the parameters in it, in order.
        unused: those of them for which this rank has no gradient.
    """

    work: dist.Work
    source: Tensor
    output: Tensor
    trained: list[int]
    unused: set[int]


class AfterBackward(torch.autograd.Function):
    """Hands its inputs on. In backward that runs when all their gradients are there: backward has left the module.

    Gradients of parameters are there too by then, because autograd runs what was recorded last first. Given.
    """

    @staticmethod
    def forward(ctx: Any, layer: ShardedLayer, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.layer = layer
        return inputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        ctx.layer.post_backward()
        return None, *gradients


def in_backward() -> bool:
    """Whether autograd is running a backward on this thread. Given."""
    return current_backward() != NO_BACKWARD


NO_BACKWARD = -1


def current_backward() -> int:
    """A number for the backward that runs on this thread; `NO_BACKWARD` if none does. Given."""
    return torch._C._current_graph_task_id()


class Schedule:
    """What the layers of one model share: in which order they run, and the backward under way. Given.

    Nobody says which layer comes next. But training runs the same layers again and again: what came next in the
    forward before will come next in this one. So the first forward gathers each layer when it is needed, and only from
    the second on are they ahead. Backward follows the order of its own forward.

    Attributes:
        layers: inner ones first; the last one, of the module that contains all others, is the root.
        before: layers in the order in which the forward before has started them.
        started, finished: the same of this forward, by the start and by the end of their computation.
        reducing: the layer whose reduce-scatter is under way, if any.
        backward: number of the backward that has been entered.
    """

    def __init__(self, layers: Sequence[ShardedLayer]) -> None:
        self.layers = layers
        self.before: list[ShardedLayer] = []
        self.started: list[ShardedLayer] = []
        self.finished: list[ShardedLayer] = []
        self.reducing: ShardedLayer | None = None
        self.backward = NO_BACKWARD

    def start(self, layer: ShardedLayer) -> list[ShardedLayer]:
        """Note that ``layer`` begins; the layers that came after it in the forward before, in order.

        When the root begins, no layer is whole, unless an earlier forward ended in an error or has had no backward. Its
        numbers may be from before an optimiser step, so they are freed: a forward computes with the shards as they are.
        """
        if layer is self.layers[-1]:
            if self.backward != NO_BACKWARD:
                raise RuntimeError(
                    "an error ended an earlier backward halfway, between gradients: build the model anew"
                )
            self.before, self.started, self.finished = self.started, [], []
            self.drop_gathers()
            for each in self.layers:
                each.reshard()
        position = len(self.started)
        self.started.append(layer)
        return self.before[position + 1 :] if self.before[position : position + 1] == [layer] else []

    def finish(self, layer: ShardedLayer) -> tuple[list[ShardedLayer], int]:
        """Note that ``layer`` is through; the layers of this forward that were so before it, and its own position."""
        if layer is self.layers[-1]:
            self.drop_gathers()
        self.finished.append(layer)
        return self.finished, len(self.finished) - 1

    def enter_backward(self) -> None:
        """Have `backward_done` called at the end of the backward that is running; once, however often this is called.

        Autograd calls back who asks *during* a backward.
        """
        if self.backward != current_backward():
            self.backward = current_backward()
            Variable._execution_engine.queue_callback(self.backward_done)

    def backward_done(self) -> None:
        """End what has no other end, and let nothing be under way any more."""
        for layer in self.layers:
            layer.post_backward()
            if layer.synchronise:  # and not only in a layer that this backward has passed: others may have sums to send
                self.reduce(layer)
        self.drop_gathers()
        self.finish_reduction()
        self.backward = NO_BACKWARD

    def reduce(self, layer: ShardedLayer) -> None:
        """Start the reduce-scatter of ``layer`` when the one before has ended, and its memory is free."""
        self.finish_reduction()
        layer.start_reduction()
        self.reducing = layer

    def finish_reduction(self) -> None:
        """End the reduce-scatter that is under way, if one is."""
        if self.reducing is not None:
            self.reducing.finish_reduction()
            self.reducing = None

    def drop_gathers(self) -> None:
        """Free what was gathered ahead and not needed after all: this time the layers came in another order."""
        for layer in self.layers:
            if layer.gathering is not None:
                work, gathered = layer.gathering
                work.wait()
                free_memory(gathered)
                layer.gathering = None


# --- Sharding a model -------------------------------------------------------------------------------------------------


def shard_module(
    module: nn.Module,
    group: ProcessGroup | None = None,
    reshard_after_forward: bool = True,
    mixed_precision: torch.dtype | None = None,
    offload: bool = False,
    prefetch: int = 1,
) -> nn.Module:
    """Shard the parameters of ``module`` over the ranks of a group, in place; it trains as before, on less memory.

    A module that is sharded is a *layer*: its parameters are gathered, freed and reduced together, except for those of
    modules inside it that are layers already. So shard the blocks of a model first, then the model: what is left, such
    as embedding and norm, is a layer as well, and the whole learns in which order its layers run.

        for block in model.blocks:
            shard_module(block)
        shard_module(model, reshard_after_forward=False)           # it is needed again as soon as backward begins
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)  # not before: these are other parameters
        loss_of(model(inputs), targets).backward()                  # every .grad is this rank's rows of the average
        optimizer.step()

    Nothing is communicated here: each rank keeps its own rows, so all must come with the same weights, as
    `shardlab.models.build` gives them (or load them afterwards: `load_full_state_dict`). Every rank must call the same
    layers in the same order. The average is over *ranks*: if they hold different numbers of tokens, divide the sum over
    the rank's tokens by the mean number of tokens per rank, as in lesson 2.1. Buffers are left as they are.

    In one forward, and in one backward, a layer takes part in one all-gather, or in one for each time it is called;
    in one backward, in one reduce-scatter. Parameters that are tied have to be in the same layer. Call the outermost
    module, not layers inside it; what a layer takes and returns is tensors, in tuples, lists and dicts or not: in an
    object of another class they are not seen, and backward ends in an error about storage.

    Args:
        module: its parameters of one dtype, on any device.
        group: the ranks that share the batch.
        reshard_after_forward: free the layer between forward and backward; False saves the second all-gather.
        mixed_precision: floating-point dtype to gather and compute in, such as ``torch.bfloat16``. Shards, and with
            them optimiser state, keep their dtype, and gradients are summed over the ranks in it: torch's
            ``MixedPrecisionPolicy(param_dtype=mixed_precision, reduce_dtype=torch.float32)`` for float32 parameters.
        offload: keep shards and their gradients in the memory of the CPU; so the optimiser steps there.
        prefetch: how many all-gathers are launched ahead of the layer that computes. At no time are more than
            1 + prefetch layers in memory, counting what is under way. (With 0 there are two for a moment, too: the
            message that arrived, and the parameters copied out of it.)

    Returns:
        ``module``.

    Raises:
        ValueError: ``prefetch`` is negative; ``mixed_precision`` is no floating-point dtype; this rank is not in the
            group; the module is a layer already, or has no parameters; a parameter that cannot be sharded (see
            `own_places`). All before any communication.

    Hints:
        1. `sharded_layers`, `own_places`; ``DeviceMesh.from_group(group, device().type)``, where None is no group.
        2. All layers of a model have one `Schedule`: the outermost knows them all.
        3. ``register_forward_pre_hook(..., prepend=True, with_kwargs=True)`` and ``register_forward_hook``.
        4. A state dict holds shards, also between a forward and its backward: ``register_state_dict_pre_hook`` and
           ``register_load_state_dict_pre_hook``.
    """
    raise NotAttempted("2.3 shard_module")


def is_floating_dtype(dtype: object) -> bool:
    """Whether this is one of torch's floating-point dtypes. Given."""
    return isinstance(dtype, torch.dtype) and dtype.is_floating_point


def sharded_layers(module: nn.Module) -> list[ShardedLayer]:
    """The layers inside ``module``; that of ``module`` itself, if it is one, comes first. Given."""
    return [child._sharded_layer for child in module.modules() if hasattr(child, "_sharded_layer")]


def own_places(module: nn.Module, inner: Sequence[ShardedLayer]) -> list[list[Place]]:
    """Every parameter of ``module`` that belongs to no layer of ``inner``, as the places where it is registered. Given.

    Raises:
        ValueError: the module is a layer already, or has no parameters at all; a parameter is a number without
            dimensions, of another dtype than the others or no floating-point one, distributed already, or tied to one
            that belongs to a layer of ``inner``.
    """
    if hasattr(module, "_sharded_layer"):
        raise ValueError(f"this {type(module).__name__} is sharded already: call shard_module once for each layer")
    for layer in inner:
        layer.reshard()
    taken = {id(shard) for layer in inner for shard in layer.shards}
    tied = {id(original()): layer for layer in inner for original in layer.originals if original() is not None}
    places: dict[nn.Parameter, list[Place]] = {}
    for name, child in module.named_modules():
        for local_name, parameter in child._parameters.items():
            if parameter is None or id(parameter) in taken:
                continue
            full_name = f"{name}.{local_name}".lstrip(".")
            if id(parameter) in tied:
                raise ValueError(
                    f"{full_name} is tied to a parameter of a module that is sharded already: leave that module to the "
                    "layer around both, so that they stay one parameter"
                )
            if isinstance(parameter, DTensor):
                raise ValueError(f"{full_name} is distributed already: shard inner modules first, then what is around")
            if parameter.dim() == 0:
                raise ValueError(f"{full_name} is a single number without dimensions: give it the shape [1]")
            places.setdefault(parameter, []).append((child, local_name))
    if not places and not inner:
        raise ValueError(f"this {type(module).__name__} has no parameters: there is nothing to shard")
    dtypes = {parameter.dtype for parameter in places}
    if len(dtypes) > 1 or not all(map(is_floating_dtype, dtypes)):
        names = ", ".join(sorted(map(str, dtypes)))
        raise ValueError(f"the parameters of a layer need one floating-point dtype, these have {names}")
    return list(places.values())


@contextmanager
def no_sync(module: nn.Module) -> Iterator[None]:
    """Every ``backward`` inside adds to this rank's own gradients and reduces nothing; the next one outside reduces the
    sums. For accumulation over micro-batches.

    Saves the reduce-scatters of all micro-batches but the last, for the memory of a whole gradient on every rank. What
    counts is where *backward* runs. Shards get no ``.grad`` inside, and ``zero_grad`` does not reach the sums.

    Raises:
        ValueError: nothing in ``module`` is sharded.
    """
    raise NotAttempted("2.3 no_sync")


def require_layers(module: nn.Module) -> list[ShardedLayer]:
    """`sharded_layers`, of which there must be one. Given."""
    layers = sharded_layers(module)
    if not layers:
        raise ValueError(f"nothing in this {type(module).__name__} is sharded: call shard_module first")
    return layers


# --- Clipping and saving ----------------------------------------------------------------------------------------------


@torch.no_grad()
def clip_grad_norm(params: Iterable[Tensor], max_norm: float) -> Tensor:
    """Scale all gradients so that their norm, as one vector over all parameters *and ranks*, is ``max_norm`` at most.

    Call it on every rank, between ``backward`` and ``step``. Squares are summed over the ranks for sharded parameters.
    Plain ones, whose gradients are the same on every rank, count once. As in torch, what gradients are multiplied with
    is ``max_norm / (norm + 1e-6)``, if that is less than 1.

    Args:
        params: parameters, some sharded and some not; those without a gradient are left out.
        max_norm: > 0.

    Returns:
        The norm before clipping, a 0-d tensor, the same on every rank.

    Raises:
        ValueError: ``max_norm`` is not positive.

    Example, two ranks whose rows of the gradient are [3] and [4]: the norm is 5, and ``max_norm=1`` leaves 0.6 and 0.8.
    Clipped by their own norms they would be left with 1 and 1, and would point somewhere else.

    Hints:
        1. Norms do not add up. What does?
        2. One all-reduce per mesh: ``parameter.device_mesh.get_group()``. A rank whose rows are empty takes part.
        3. `get_total_norm`; ``DTensor.to_local``; ``torch._foreach_mul_`` scales a list of tensors in one call.
    """
    raise NotAttempted("2.3 clip_grad_norm")


@torch.no_grad()
def full_state_dict(module: nn.Module) -> dict[str, Tensor]:
    """The state of the model as if it had never been sharded, on the CPU of rank 0; an empty dict on the others.

        state = full_state_dict(model)  # on every rank
        if dist.get_rank() == 0:
            torch.save(state, path)

    Every rank has to call it, because every rank holds rows that rank 0 needs. Only one parameter at a time is whole on
    the device, so the model need not fit there. Tied parameters appear under all their names and are gathered once.
    A state that is no tensor (``Module.get_extra_state``) cannot be in it.

    Returns:
        Names as before sharding, to plain tensors of the shards' dtype: it loads into the unsharded model. In memory of
        their own; later steps do not change them. "Rank 0" is the first rank of the group.

    Raises:
        ValueError: nothing in ``module`` is sharded.

    Hints:
        1. ``if rank == 0: state = full_state_dict(model)`` waits for ever. Which line of yours would do so?
        2. ``module.state_dict(keep_vars=True)`` has the parameters themselves; ``DTensor.full_tensor``.
    """
    raise NotAttempted("2.3 full_state_dict")


@torch.no_grad()
def load_full_state_dict(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Give a sharded model the state that rank 0 has in ``state``, such as `full_state_dict` returned, in place.

    Every rank has to call it. Only the ``state`` of rank 0 (the first of the group) counts; the others may hand over
    anything, such as ``{}``: nobody else has to read the file. Optimisers keep their parameters. One parameter at a
    time is whole on the device.

    Raises:
        ValueError: nothing in ``module`` is sharded; or, on every rank, before anything is loaded: rank 0's ``state``
            is no dict, lacks a name or has one that is unknown to the model, a value in it is no plain tensor, or a
            shape differs.

    Hints:
        1. Only rank 0 can see what is wrong with its state. How do the others get to raise, too? ``dist.broadcast`` of
           something small, or ``dist.broadcast_object_list``, before anything large moves.
        2. ``distribute_tensor(full, mesh, [Shard(0)])`` scatters the rows of rank 0's tensor; all the others need is a
           tensor of that shape.
        3. Values that are not sharded, such as buffers: ``dist.broadcast(..., group_src=0)``.
    """
    raise NotAttempted("2.3 load_full_state_dict")


def find_difference(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> str:
    """What keeps ``state`` from being loaded, in a sentence; empty if nothing does. Given."""
    if not isinstance(state, Mapping):
        return f"the state of rank 0 is a {type(state).__name__}, not a dict"
    if missing := own.keys() - state.keys():
        return f"the state of rank 0 lacks {', '.join(sorted(missing))}"
    if unknown := state.keys() - own.keys():
        return f"the model has no {', '.join(sorted(unknown))}"
    for name, value in own.items():
        if not isinstance(state[name], Tensor) or isinstance(state[name], DTensor):
            kind = type(state[name]).__name__
            return f"{name} is a {kind} in the state of rank 0: it takes whole, plain tensors, as of full_state_dict"
        if state[name].shape != value.shape:
            return f"{name} is {list(state[name].shape)} in the state of rank 0 and {list(value.shape)} in the model"
    return ""
