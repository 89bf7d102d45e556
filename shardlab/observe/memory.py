"""`PeakMemory`: bytes of tensors alive, by kind, exact and the same on every run.

Neither the operating system's resident set nor an allocator's statistics tell what a program holds: both round, cache
and vary. This counts storages instead. A dispatch mode sees the tensors of every operation, also those of backward,
DDP's reducer and FSDP2; each storage counts once, however many views share it, from the moment it is first seen
until it is freed (a weak reference tells), and follows `resize_`, which is how FSDP2 frees its all-gathered
parameters.
"""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

KINDS = ("parameter", "gradient", "optimizer", "activation", "buffer", "other")


@dataclass(slots=True)
class _Storage:
    """One live storage: its bytes as last seen, its kind, and the moment it was first seen."""

    nbytes: int
    kind: str
    born: int
    reference: weakref.ref


class PeakMemory:
    """Exact bytes of live tensors inside the block.

        with PeakMemory(model, optimizer) as memory:
            model(batch).sum().backward()
        memory.peak_bytes, memory.peak_by_kind["activation"]

    Counted are the tensors of `model` and `optimizer` at the start, and every tensor that takes part in an operation
    inside the block. Kinds: ``parameter``, ``buffer``, ``gradient`` (it ended up as some parameter's ``.grad``),
    ``optimizer`` (it ended up in a torch optimiser's state), ``activation`` (made while autograd records: what forward
    keeps for backward, and its temporaries), ``other`` (inputs, what backward and no-grad code allocate).

    Args:
        model: a module whose parameters, gradients and buffers are there from the start.
        optimizer: a torch optimiser whose state is there from the start.

    Attributes:
        peak_bytes: most bytes alive at one moment.
        peak_by_kind: those bytes, by kind.
        live_bytes, live_by_kind: bytes alive now, or at the end of the block.
    """

    def __init__(self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None) -> None:
        self._model = model
        self._optimizer = optimizer
        self._storages: dict[int, _Storage] = {}
        self._parameters = WeakIdKeyDictionary()  # an ordinary weak set would compare tensors elementwise
        self._live: Counter[str] = Counter()
        self._peak: Counter[str] = Counter()
        self._clock = 0  # counts first sights, to tell what was there at the peak
        self._peak_at = 0
        self._open = False
        self.peak_bytes = 0
        self.live_bytes = 0

    @property
    def peak_by_kind(self) -> dict[str, int]:
        return {kind: self._peak[kind] for kind in KINDS}

    @property
    def live_by_kind(self) -> dict[str, int]:
        return {kind: self._live[kind] for kind in KINDS}

    def reset_peak(self) -> None:
        """Begin a new peak with what is alive now: after setting up, to follow training alone.

        As `torch.cuda.reset_peak_memory_stats`. Tensors seen before stay known, so the new peak is exact from here on.
        """
        self._claim_gradients()
        self.peak_bytes, self._peak, self._peak_at = self.live_bytes, self._live.copy(), self._clock

    def __enter__(self) -> PeakMemory:
        gc.collect()  # garbage of before must not be freed at some moment inside
        self._open = True
        if self._model is not None:
            self._see_model(self._model)
        if self._optimizer is not None:
            self._claim_optimizer(self._optimizer)
        self._after_step = register_optimizer_step_post_hook(lambda optimizer, *_: self._claim_optimizer(optimizer))
        self._resize = torch.UntypedStorage.resize_
        torch.UntypedStorage.resize_ = self._followed_resize()
        self._mode = _SeeEveryTensor(self)
        self._mode.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._mode.__exit__(kind, error, trace)
        torch.UntypedStorage.resize_ = self._resize
        self._after_step.remove()
        self._claim_gradients()
        self._open = False

    # --- storages come and go ---------------------------------------------------------------------------------------

    def see(self, tensor: torch.Tensor, kind: str) -> None:
        """Count the storage of `tensor` if it is new, and its size if that has changed."""
        for plain in _plain_tensors(tensor):
            storage = plain.untyped_storage()
            known = self._storages.get(storage._cdata)
            if known is None:
                self._add(storage, kind)
            elif storage.nbytes() != known.nbytes:
                self._change(known, storage.nbytes())

    def _add(self, storage: torch.UntypedStorage, kind: str) -> None:
        key = storage._cdata
        self._clock += 1
        known = _Storage(0, kind, self._clock, weakref.ref(storage, lambda _: self._remove(key)))
        self._storages[key] = known
        self._change(known, storage.nbytes())

    def _change(self, known: _Storage, nbytes: int) -> None:
        self.live_bytes += nbytes - known.nbytes
        self._live[known.kind] += nbytes - known.nbytes
        known.nbytes = nbytes
        if self.live_bytes > self.peak_bytes:
            self._claim_gradients()
            self.peak_bytes = self.live_bytes
            self._peak = self._live.copy()
            self._peak_at = self._clock

    def _remove(self, key: int) -> None:
        if self._open:  # after the block the numbers stand
            known = self._storages.pop(key)
            self.live_bytes -= known.nbytes
            self._live[known.kind] -= known.nbytes

    def _followed_resize(self) -> Any:
        memory, resize = self, self._resize

        def resize_(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
            resized = resize(storage, size)
            if known := memory._storages.get(storage._cdata):
                memory._change(known, storage.nbytes())
            return resized

        return resize_

    # --- what kind a storage is -------------------------------------------------------------------------------------

    def _see_model(self, model: torch.nn.Module) -> None:
        for parameter in model.parameters():
            self.see(parameter, "parameter")
            self._know_parameter(parameter)
        for buffer in model.buffers():
            self.see(buffer, "buffer")

    def _know_parameter(self, parameter: torch.nn.Parameter) -> None:
        self._parameters[parameter] = None
        if parameter.grad is not None:
            self.see(parameter.grad, "gradient")

    def _claim_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._know_parameter(parameter)
        for tensor in _tensors_in(list(optimizer.state.values())):
            self._claim(tensor, "optimizer")

    def _claim_gradients(self) -> None:
        for parameter in self._parameters.keys():  # noqa: SIM118  # it is no dict
            if parameter.grad is not None:
                self._claim(parameter.grad, "gradient")

    def _claim(self, tensor: torch.Tensor, kind: str) -> None:
        """Say what a storage turned out to be, also in the peak if it was there then."""
        self.see(tensor, kind)
        for plain in _plain_tensors(tensor):
            known = self._storages[plain.untyped_storage()._cdata]
            if known.kind in (kind, "parameter"):  # DDP and ZeRO may keep parameters in a bucket of their own
                continue
            for counts, present in ((self._live, True), (self._peak, known.born <= self._peak_at)):
                if present:
                    counts[known.kind] -= known.nbytes
                    counts[kind] += known.nbytes
            known.kind = kind


class _SeeEveryTensor(TorchDispatchMode):
    """Shows the tensors that go into and come out of every operation to a `PeakMemory`."""

    def __init__(self, memory: PeakMemory) -> None:
        super().__init__()
        self._memory = memory

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(_wraps_tensors(kind) for kind in types):
            return NotImplemented  # a DTensor: its own dispatch calls us again with the local tensors
        made = "activation" if torch.is_grad_enabled() else "other"
        for tensor in _tensors_in((args, kwargs)):
            if isinstance(tensor, torch.nn.Parameter):
                self._memory._know_parameter(tensor)
                self._memory._claim(tensor, "parameter")
            else:
                self._memory.see(tensor, "other")
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors_in(result):
            self._memory.see(tensor, made)
        return result


def _wraps_tensors(kind: type) -> bool:
    """Whether tensors of this class hold other tensors (DTensor, AsyncCollectiveTensor, ...)."""
    return hasattr(kind, "__tensor_flatten__") and hasattr(kind, "__tensor_unflatten__")


def _tensors_in(tree: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))


def _plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensor itself, or the ones a subclass wraps; none for tensors without memory (meta, fake, sparse)."""
    if is_traceable_wrapper_subclass(tensor):
        for inner in (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]):
            if isinstance(inner, torch.Tensor):  # a DTensor also names its device mesh
                yield from _plain_tensors(inner)
    elif tensor.layout == torch.strided and tensor.device.type != "meta":
        yield tensor
