"""What runs in the rank in the tests of 1.2: the learner's functions, called and watched.

Everything in here gives back plain data. The judge compares it. Functions that a checkpoint runs, and models, stand
here too; where the judge needs the plain result of something that draws random numbers, the driver computes it beside.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from shardlab.models import TransformerConfig, build
from shardlab.observe import PeakMemory
from shardlab.ranks import device

CONFIG = TransformerConfig(vocab=29, hidden=16, layers=2, heads=2, kv_heads=1, ffn=24, sequence=64)

# --- Watching ---------------------------------------------------------------------------------------------------------


@dataclass
class Seen:
    """What happened while somebody watched.

    Attributes:
        operations: names, such as ``"aten.mm.default"``, in order.
        largest: elements of the largest tensor that an operation made.
        flops: of all matrix products. torch's FlopCounterMode leaves out those that work in place.
    """

    operations: list[str] = field(default_factory=list)
    largest: int = 0
    flops: int = 0


FACTORS = {"mm": 0, "bmm": 0, "mv": 0, "addmm": 1, "baddbmm": 1, "addmm_": 1, "baddbmm_": 1}  # the first one's place


class _Watch(TorchDispatchMode):
    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self._seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._seen.operations.append(str(func))
        if (name := func.overloadpacket.__name__) in FACTORS:
            left, right = args[FACTORS[name] : FACTORS[name] + 2]
            self._seen.flops += 2 * left.numel() * (right.shape[-1] if right.dim() > 1 else 1)
        sizes = (leaf.untyped_storage().nbytes() // leaf.itemsize for leaf in tree_leaves(result) if _is_tensor(leaf))
        self._seen.largest = max(self._seen.largest, *sizes, 0)
        return result


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, Tensor)


@contextmanager
def watch() -> Iterator[Seen]:
    """See every operation inside the block, also those of backward."""
    seen = Seen()
    with _Watch(seen):
        yield seen


@contextmanager
def count_saved() -> Iterator[list[int]]:
    """Bytes of each tensor that autograd is asked to save inside the block."""
    saved: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor.nbytes)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        yield saved


def called_from(file: str) -> bool:
    """Whether a function of this file, such as ``"torch/utils/checkpoint.py"``, is on the stack."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.endswith(file):
            return True
        frame = frame.f_back
    return False


def plain(tensor: Tensor | None) -> Tensor | None:
    """On the CPU, and free of its graph; None stays None."""
    return None if tensor is None else tensor.detach().cpu().clone()


def gradients_of(module: nn.Module) -> dict[str, Tensor | None]:
    return {name: plain(parameter.grad) for name, parameter in module.named_parameters()}


# --- Accumulation -----------------------------------------------------------------------------------------------------


class Weight(nn.Module):
    """One number that multiplies its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.weight * x


def mean_of_valid(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean output over the valid targets: its gradient for `Weight` is the mean of these inputs."""
    return outputs[targets != -100].mean()


def accumulate_numbers(
    lab: ModuleType, micro_batches: Sequence[tuple[Tensor, Tensor]], before: float | None
) -> dict[str, Any]:
    """Accumulate for a single weight, whose gradient was `before` (None: none)."""
    model = Weight().to(device())
    if before is not None:
        model.weight.grad = torch.full_like(model.weight, before)
    loss = lab.accumulate_gradients(model, micro_batches, mean_of_valid)
    return {"gradient": plain(model.weight.grad), "calls": model.calls, **_loss(loss)}


def _loss(loss: Tensor) -> dict[str, Any]:
    return {"loss": loss.item(), "detached": not loss.requires_grad, "dtype": str(loss.dtype)}


def language_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def accumulate_text(lab: ModuleType, micro_batches: Sequence[tuple[Tensor, Tensor]], seed: int) -> dict[str, Any]:
    """Accumulate for a small Transformer: gradients and the loss."""
    model = build(CONFIG, seed).to(device())
    loss = lab.accumulate_gradients(model, micro_batches, language_loss)
    return {"gradients": gradients_of(model), **_loss(loss)}


def accumulate_peak(lab: ModuleType, counts: Sequence[int]) -> list[int]:
    """Peak bytes of accumulating so many equal micro-batches, one number for each of `counts`."""
    peaks = []
    for count in counts:
        model = build(CONFIG, 0).to(device())
        tokens = torch.zeros(2, 32, dtype=torch.int64, device=device())
        with PeakMemory(model) as memory:
            lab.accumulate_gradients(model, [(tokens, tokens)] * count, language_loss)
        peaks.append(memory.peak_bytes)
    return peaks


# --- Loss scaling -----------------------------------------------------------------------------------------------------


def scaled_steps(
    lab: ModuleType,
    settings: dict[str, Any],
    gradients: Sequence[Sequence[Tensor | None]],
    reload_at: int = -1,
    optimizer_class: str = "SGD",
) -> dict[str, Any]:
    """Steps with given true gradients, some of which overflow; what became of scale, weights and optimiser.

    Args:
        gradients: per step, one for each of three parameters; the driver multiplies them by the scale.
        reload_at: before this step a new scaler takes over the state of the old one.
    """
    weights = [nn.Parameter(torch.ones(4, device=device())) for _ in range(3)]
    options = {"SGD": {"lr": 0.5, "momentum": 0.5}, "AdamW": {"lr": 0.1}}[optimizer_class]
    optimizer = getattr(torch.optim, optimizer_class)(weights, **options)
    seen = {"by torch": False}
    optimizer.register_step_pre_hook(
        lambda *_: seen.update({"by torch": seen["by torch"] or called_from("torch/amp/grad_scaler.py")})
    )
    scaler = lab.LossScaler(**settings)
    rows = []
    for index, step in enumerate(gradients):
        if index == reload_at:
            state = scaler.state_dict()
            scaler = lab.LossScaler()
            scaler.load_state_dict(state)
        for weight, gradient in zip(weights, step, strict=True):
            weight.grad = None if gradient is None else gradient.to(device()) * scaler.value
        rows.append(
            {
                "scale before": float(scaler.value),
                "taken": scaler.step(optimizer),
                "scale": float(scaler.value),
                "weights": [plain(weight) for weight in weights],
                "state": _state(optimizer),
            }
        )
    return {"rows": rows, "by torch": seen["by torch"]}


def _state(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [plain(value) for entry in optimizer.state.values() for value in entry.values() if _is_tensor(value)]


def half_precision_step(lab: ModuleType, scale: float) -> dict[str, Any]:
    """A step whose gradient is far below what float16 can hold, unless the loss is scaled; and the loss as scaled."""
    weight = nn.Parameter(torch.ones(3, device=device()))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = lab.LossScaler(scale=scale)
    tiny = torch.full((3,), 2.0**-14, device=device(), dtype=torch.float16)
    loss = (weight.half() * tiny).float().sum() * 2.0**-14  # a product in float16: backward multiplies there too
    scaled = scaler.scale(loss)
    scaled.backward()
    taken = scaler.step(optimizer)
    return {"taken": taken, "ratio": (scaled / loss).item(), "gradient": plain(weight.grad)}


def unscale_then_step(lab: ModuleType, gradient: Tensor, scale: float) -> dict[str, Any]:
    """Unscale, clip to a norm of 1, step; then a second unscale before step, and one more round after it."""
    weight = nn.Parameter(torch.zeros_like(gradient))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = lab.LossScaler(scale=scale)
    weight.grad = gradient * scale
    finite = scaler.unscale(optimizer)
    unscaled = plain(weight.grad)
    torch.nn.utils.clip_grad_norm_([weight], 1.0)
    twice = _error(scaler.unscale, optimizer)
    after_refusal = plain(weight.grad)
    taken = scaler.step(optimizer)
    first = plain(weight)
    weight.grad = gradient * scale
    again = _error(scaler.unscale, optimizer)
    return {
        "finite": finite,
        "unscaled": unscaled,
        "twice": twice,
        "after refusal": after_refusal,
        "taken": taken,
        "weight": first,
        "next step": again,
    }


def unscale_then_clip_values(lab: ModuleType, gradient: Tensor) -> dict[str, Any]:
    """Unscale a gradient that overflowed, clip its elements to 1, which leaves no inf in it, step."""
    weight = nn.Parameter(torch.zeros_like(gradient))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = lab.LossScaler(scale=8.0)
    weight.grad = gradient.clone()
    finite = scaler.unscale(optimizer)
    torch.nn.utils.clip_grad_value_([weight], 1.0)
    taken = scaler.step(optimizer)
    return {"finite": finite, "taken": taken, "scale": float(scaler.value), "weight": plain(weight)}


def unscale_each(lab: ModuleType, steps: Sequence[Sequence[Tensor | None]]) -> list[bool]:
    """What `unscale` says of the gradients of each step, by a scaler of its own; the first in a group of its own."""
    verdicts = []
    for gradients in steps:
        weights = [nn.Parameter(torch.ones(4, device=device())) for _ in gradients]
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = None if gradient is None else gradient.to(device())
        groups = [{"params": weights[:1]}, {"params": weights[1:]}]
        verdicts.append(lab.LossScaler(scale=4.0).unscale(torch.optim.SGD(groups, lr=1.0)))
    return verdicts


def unscale_half(lab: ModuleType) -> dict[str, Any]:
    """Gradients in float16, and in float32 beside: refused, and nothing changed."""
    weights = [
        nn.Parameter(torch.ones(2, device=device())),
        nn.Parameter(torch.ones(2, device=device(), dtype=torch.float16)),
    ]
    for weight in weights:
        weight.grad = torch.full_like(weight, 8.0)
    groups = [{"params": [weight]} for weight in weights]
    error = _error(lab.LossScaler(scale=4.0).unscale, torch.optim.SGD(groups, lr=1.0))
    return {"error": error, "gradients": [plain(weight.grad).float() for weight in weights]}


def unscale_syncs(lab: ModuleType, parameters: int) -> int:
    """How often a value is copied to the host while so many gradients are unscaled."""
    weights = [nn.Parameter(torch.ones(2, device=device())) for _ in range(parameters)]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    with watch() as seen:
        lab.LossScaler(scale=4.0).unscale(torch.optim.SGD(weights, lr=1.0))
    return sum("_local_scalar_dense" in name for name in seen.operations)


def load_bad_states(lab: ModuleType) -> list[str]:
    """Errors of states with a key too few, a key too many, and none at all."""
    state = lab.LossScaler().state_dict()
    fewer = dict(list(state.items())[1:])
    return [_error(lab.LossScaler().load_state_dict, bad) for bad in (fewer, {**state, "other": 1}, {})]


def state_of_scaler(lab: ModuleType, settings: dict[str, Any]) -> dict[str, Any]:
    return lab.LossScaler(**settings).state_dict()


def _error(function: Callable[..., Any], *arguments: Any) -> str:
    try:
        function(*arguments)
    except NotImplementedError:
        raise
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


# --- Surroundings -----------------------------------------------------------------------------------------------------


def draw_again(lab: ModuleType, seed: int) -> dict[str, list[Tensor]]:
    """Random numbers drawn at first, in two blocks that go back, and outside of them; and what plain code draws."""
    where = device()

    def draw() -> Tensor:
        return plain(torch.rand(3, device=where))

    torch.manual_seed(seed)
    expected = [draw() for _ in range(4)]
    torch.manual_seed(seed)
    start = draw()
    again = lab.surroundings((torch.zeros(1, device=where),))
    outside = [start, draw()]
    with again():
        inside = [draw(), draw()]
    outside.append(draw())
    try:
        with again():
            inside.append(draw())
            raise RuntimeError("planted")
    except RuntimeError as error:
        planted = str(error)
    outside.append(draw())
    return {"expected": expected, "outside": outside, "inside": inside, "error": planted}


def cast_again(lab: ModuleType) -> dict[str, str]:
    """dtypes of a matrix product where autocast is noted and where it is brought back."""
    matrix = torch.ones(2, 2, device=device())

    def cast(dtype: torch.dtype) -> Any:
        return torch.autocast(device().type, dtype=dtype)

    with cast(torch.bfloat16):
        noted_inside = lab.surroundings((matrix,))
    with cast(torch.float16):
        noted_in_float16 = lab.surroundings((matrix,))
    noted_outside = lab.surroundings((matrix,))
    found = {}
    with noted_in_float16():
        found["noted under autocast to float16, back outside"] = str((matrix @ matrix).dtype)
    with noted_inside():
        found["noted under autocast, back outside"] = str((matrix @ matrix).dtype)
    found["after the block"] = str((matrix @ matrix).dtype)
    with cast(torch.bfloat16):
        with noted_outside():
            found["noted outside, back under autocast"] = str((matrix @ matrix).dtype)
        found["after that block"] = str((matrix @ matrix).dtype)
    return found


# --- Checkpointing ----------------------------------------------------------------------------------------------------


class Case:
    """A function to checkpoint, the arguments to call it with, and what it noted.

    Attributes:
        calls: how often it ran.
        by_torch: whether torch's own checkpoint ever ran it.
        dtypes: of what it computed, call by call.
    """

    def __init__(self, what: str, seed: int) -> None:
        torch.manual_seed(seed)
        self.what, self.calls, self.by_torch, self.dtypes = what, 0, False, []
        self.first, self.second = nn.Linear(6, 12).to(device()), nn.Linear(12, 6).to(device())
        self.x = torch.randn(5, 6, device=device(), requires_grad=what != "inputs without gradient")
        self.other = torch.randn(6, device=device())
        self.drop = 0.5 if what == "dropout" else 0.0

    @property
    def inputs(self) -> tuple[Any, ...]:
        return (self.x, self.other, "three", 3) if self.what == "other arguments" else (self.x,)

    def __call__(self, x: Tensor, other: Tensor | None = None, word: str = "three", times: int = 3) -> Any:
        self.calls += 1
        self.by_torch = self.by_torch or called_from("torch/utils/checkpoint.py")
        inner = F.dropout(F.gelu(self.first(x)), self.drop)
        self.dtypes.append(str(inner.dtype))
        result = self.second(inner * {"three": 3}[word] / times)
        result = result if other is None else result * other.sigmoid()
        return (result, [inner.sin(), word]) if self.what == "several results" else result

    def loss(self, result: Any) -> Tensor:
        result, inner = (result[0], result[1][0]) if isinstance(result, tuple) else (result, torch.zeros(()))
        weights = torch.linspace(0.5, 2, 6, device=device())
        return (result.float() * weights).square().sum() + inner.float().sum()

    def gradients(self) -> dict[str, Tensor | None]:
        named = {"input": self.x, "first": self.first.weight, "bias": self.first.bias, "second": self.second.weight}
        return {name: plain(tensor.grad) for name, tensor in named.items()}


def compare(lab: ModuleType, what: str, seed: int) -> dict[str, Any]:
    """A case without checkpoint and with it, from the same random state: loss, gradients, draws afterwards, calls."""
    outcomes = {}
    for name, run in (("plain", lambda fn, *inputs: fn(*inputs)), ("checkpoint", lab.checkpoint)):
        case = Case(what, seed)
        torch.manual_seed(seed + 1)
        cast = torch.autocast(device().type, dtype=torch.bfloat16) if what == "autocast" else nullcontext()
        with cast:
            result = run(case, *case.inputs)
        loss = case.loss(result)
        after_forward = case.calls
        torch.rand(7, device=device())  # other layers draw too before backward comes back here
        loss.backward()
        outcomes[name] = {
            "loss": loss.item(),
            "gradients": case.gradients(),
            "next draw": plain(torch.rand(3, device=device())),
            "calls": (after_forward, case.calls),
            "dtypes": case.dtypes,
            "by torch": case.by_torch,
        }
    return outcomes


def without_gradients(lab: ModuleType, seed: int) -> dict[str, Any]:
    """A checkpoint under no_grad."""
    case = Case("simple", seed)
    with torch.no_grad():
        result = lab.checkpoint(case, case.x)
    return {"calls": case.calls, "requires grad": result.requires_grad}


def backward_twice(lab: ModuleType, seed: int) -> dict[str, Any]:
    """Gradients by torch.autograd.grad, of parameters from outside too, twice through one graph."""
    case = Case("dropout", seed)
    torch.manual_seed(seed)
    loss = case.loss(lab.checkpoint(case, case.x))
    wanted = (case.x, case.first.weight)
    once = [plain(gradient) for gradient in torch.autograd.grad(loss, wanted, retain_graph=True)]
    twice = [plain(gradient) for gradient in torch.autograd.grad(loss, wanted)]
    return {"once": once, "twice": twice, "calls": case.calls}


def changed_between_runs(lab: ModuleType) -> str:
    """The error of backward where the function saves more tensors the second time than the first."""
    x = torch.ones(3, device=device(), requires_grad=True)
    runs: list[int] = []

    def fn(x: Tensor) -> Tensor:
        runs.append(1)
        return (x.sin() * x.cos()).exp() if len(runs) > 1 else x.sin()

    loss = lab.checkpoint(fn, x).sum()
    return _error(loss.backward)


class Blocks(nn.Module):
    """Four blocks that save far more for backward than they take in, to be run under checkpoints.

    Args:
        how: ``"plain"``, ``"each"`` block under one, or ``"nested"``: each block, and each two of them together.
    """

    def __init__(self, run: Callable[..., Any], how: str) -> None:
        super().__init__()
        layers = (nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Tanh(), nn.Linear(64, 16)) for _ in range(4))
        self.layers = nn.ModuleList(layers)
        self.run, self.how = run, how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "nested":
            return self.run(self.some, self.run(self.some, x, 0, 2), 2, 4)
        return self.some(x, 0, 4)

    def some(self, x: Tensor, begin: int, end: int) -> Tensor:
        for layer in self.layers[begin:end]:
            x = layer(x) if self.how == "plain" else self.run(layer, x)
        return x


def checkpoint_memory(lab: ModuleType, rows: int) -> dict[str, dict[str, int]]:
    """For each way to run `Blocks` on [rows, 16]: bytes alive between forward and backward beyond parameters and input,
    bytes that autograd was asked to save, and the peak of it all."""
    found = {}
    for how in ("plain", "each", "nested"):
        torch.manual_seed(0)
        model = Blocks(lab.checkpoint, how).to(device())
        x = torch.randn(rows, 16, device=device(), requires_grad=True)
        with PeakMemory(model) as memory, count_saved() as saved:
            y = model(x)
            held = memory.live_bytes - memory.live_by_kind["parameter"] - x.nbytes
            y.sum().backward()
        found[how] = {"held": held, "saved": sum(saved), "peak": memory.peak_bytes, "row bytes": y.nbytes}
        found[how]["gradient"] = float(model.layers[0][0].weight.grad.double().square().sum())
        del y
    return found


# --- The loss ---------------------------------------------------------------------------------------------------------


def chunked_losses(lab: ModuleType, cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Loss and gradients of `chunked_cross_entropy`, times a factor that stands for what comes after it.

    Args:
        cases: hidden, weight, targets, options, factor, and which of hidden and weight require grad.
    """
    outcomes = []
    for case in cases:
        hidden, weight = (case[name].clone().requires_grad_(name in case["wanted"]) for name in ("hidden", "weight"))
        with watch() as seen:
            loss = lab.chunked_cross_entropy(hidden, weight, case["targets"], **case["options"])
            if case["wanted"]:
                (loss * case["factor"]).backward()
        outcomes.append(
            {
                "loss": plain(loss),
                "hidden": plain(hidden.grad),
                "weight": plain(weight.grad),
                "operations": seen.operations,
                "function": type(loss.grad_fn).__name__,
            }
        )
    return outcomes


def tied_loss(lab: ModuleType, tokens: Tensor, targets: Tensor, weight: Tensor, chunk: int) -> Tensor:
    """The gradient of a weight that is embedding and output layer at once."""
    weight = weight.clone().requires_grad_()
    lab.chunked_cross_entropy(F.embedding(tokens, weight).tanh(), weight, targets, chunk).backward()
    return plain(weight.grad)


def chunked_memory(lab: ModuleType, tokens: int, width: int, vocabulary: int, chunk: int) -> dict[str, int]:
    """What the loss of so many tokens makes at most: its largest tensor, its peak beyond the inputs, what it saves, and
    what it holds between forward and backward."""
    torch.manual_seed(0)
    hidden = torch.randn(tokens, width, device=device(), requires_grad=True)
    weight = torch.randn(vocabulary, width, device=device(), requires_grad=True)
    targets = torch.randint(vocabulary, (tokens,), device=device())
    inputs = hidden.nbytes + weight.nbytes + targets.nbytes
    with PeakMemory() as memory, watch() as seen, count_saved() as saved:
        loss = lab.chunked_cross_entropy(hidden, weight, targets, chunk)
        held = memory.live_bytes - inputs
        loss.backward()
    return {"largest": seen.largest, "peak": memory.peak_bytes - inputs, "saved": sum(saved), "held": held}


def loss_for_evaluation(lab: ModuleType, hidden: Tensor, weight: Tensor, targets: Tensor) -> dict[str, Any]:
    """Under no_grad, with inputs that require grad: the loss, and the FLOPs of its matrix products."""
    hidden, weight = hidden.requires_grad_(), weight.requires_grad_()
    with torch.no_grad(), watch() as seen:
        loss = lab.chunked_cross_entropy(hidden, weight, targets, 4)
    return {"loss": plain(loss), "flops": seen.flops}


# --- Attention --------------------------------------------------------------------------------------------------------


def score_tiles(
    lab: ModuleType, query: Tensor, key: Tensor, tiles: Sequence[tuple[int, int, int, int]], causal: bool
) -> list[dict[str, Any]]:
    """`tile_scores` of each tile (first row, last row + 1, first column, last column + 1), and its products."""
    outcomes = []
    for top, bottom, left, right in tiles:
        with watch() as seen:
            scores = lab.tile_scores(query, key, slice(top, bottom), slice(left, right), causal)
        outcomes.append({"scores": plain(scores), "flops": seen.flops})
    return outcomes


def attend(lab: ModuleType, cases: Sequence[dict[str, Any]], backward: bool) -> list[dict[str, Any]]:
    """`flash_attention` of each case, and the gradients of its inputs for a given gradient of the output."""
    outcomes = []
    for case in cases:
        inputs = [case[name].clone().requires_grad_(backward) for name in ("query", "key", "value")]
        with watch() as seen:
            output = lab.flash_attention(*inputs, case["causal"], case["block"])
            if backward:
                output.backward(case["gradient"])
        gradients = [plain(tensor.grad) for tensor in inputs]
        outcomes.append({"output": plain(output), "gradients": gradients, "operations": seen.operations})
    return outcomes


def attend_under_autocast(lab: ModuleType, query: Tensor, key: Tensor, value: Tensor) -> dict[str, Any]:
    """float32 inputs under autocast to bfloat16, backward outside and inside."""
    found: dict[str, Any] = {}
    for where in ("outside", "inside"):
        inputs = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
        with torch.autocast(device().type, dtype=torch.bfloat16):
            output = lab.flash_attention(*inputs, True, 16)
            if where == "inside":
                output.float().square().sum().backward()
        if where == "outside":
            output.float().square().sum().backward()
        found[where] = {"output": plain(output), "gradients": [plain(tensor.grad) for tensor in inputs]}
    return found


def attention_costs(
    lab: ModuleType, lengths: Sequence[int], width: int, block: int, causal: bool, backward: bool
) -> list[dict[str, int]]:
    """For each length T, with 2 heads: largest tensor, peak beyond the inputs, saved bytes, held bytes."""
    found = []
    for length in lengths:
        inputs = [torch.randn(1, 2, length, width, device=device(), requires_grad=True) for _ in range(3)]
        size = sum(tensor.nbytes for tensor in inputs)
        with PeakMemory() as memory, watch() as seen, count_saved() as saved:
            output = lab.flash_attention(*inputs, causal, block)
            held = memory.live_bytes - size
            if backward:
                output.sum().backward()
        costs = {"length": length, "largest": seen.largest, "peak": memory.peak_bytes - size}
        found.append(costs | {"saved": sum(saved), "held": held})
        del output
    return found


def attention_flops(lab: ModuleType, length: int, width: int, block: int, causal: bool) -> dict[str, int]:
    """FLOPs of matrix products in forward and in backward, with 2 heads."""
    inputs = [torch.randn(1, 2, length, width, device=device(), requires_grad=True) for _ in range(3)]
    with watch() as seen:
        output = lab.flash_attention(*inputs, causal, block)
        forward = seen.flops
        output.sum().backward()
    return {"forward": forward, "backward": seen.flops - forward}


# --- Given code -------------------------------------------------------------------------------------------------------


def given_back(lab: ModuleType) -> list[Any]:
    """What `keep_inputs` gives back, and what it says when a tensor was changed in between."""
    x = torch.ones(2, device=device(), requires_grad=True)
    y = x * 2
    back = [plain(arg) if _is_tensor(arg) else arg for arg in lab.keep_inputs((y, "word", 3, None, x))()]
    kept = lab.keep_inputs((y,))
    y.add_(1)
    return [*back, _error(kept)]


def refuse_each(lab: ModuleType) -> dict[str, str]:
    """Errors of the given wrappers for arguments that cannot be."""
    x = torch.ones(1, 2, 4, 8, device=device())
    hidden, weight = torch.ones(5, 8, device=device()), torch.ones(7, 8, device=device())
    targets = torch.zeros(5, dtype=torch.int64, device=device())
    attend, loss = lab.flash_attention, lab.chunked_cross_entropy
    calls = {
        "3 dimensions": (attend, x[0], x[0], x[0]),
        "other heads": (attend, x, x[:, :1], x[:, :1]),
        "key of another width": (attend, x, x[..., :4], x),
        "value of another length": (attend, x, x, x[:, :, :3]),
        "two dtypes": (attend, x, x.half(), x),
        "whole numbers": (attend, x.long(), x.long(), x.long()),
        "an empty block": (attend, x, x, x, True, 0),
        "targets too short": (loss, hidden, weight, targets[:-1]),
        "another width": (loss, hidden[:, :4], weight, targets),
        "float targets": (loss, hidden, weight, targets.float()),
        "weights of another dtype": (loss, hidden, weight.half(), targets),
        "an empty chunk": (loss, hidden, weight, targets, 0),
        "a scale of 0": (lab.LossScaler, 0.0),
        "a scale that is no float32": (lab.LossScaler, 2.0**130),
        "no growth": (lab.LossScaler, 8.0, 1.0),
        "a backoff that grows": (lab.LossScaler, 8.0, 2.0, 1.5),
        "an empty interval": (lab.LossScaler, 8.0, 2.0, 0.5, 0),
    }
    return {what: _error(function, *arguments) for what, (function, *arguments) in calls.items()}
