"""What runs on each rank in the tests of 2.2, around the learner's ZeRO: models, training loops, observers.

Everything in here gives back plain data. The models and losses serve the judge too, who trains the same thing in one
process.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from shardlab.grade.drivers import error_message, own_group, seeded_linear, summed_token_loss
from shardlab.models import TransformerConfig, build
from shardlab.observe import PeakMemory, Traffic
from shardlab.ranks import device

CONFIG = TransformerConfig(vocab=37, hidden=16, layers=2, heads=2, kv_heads=1, ffn=24, sequence=16)  # tied embedding
OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    # With the usual eps of 1e-8 Adam makes the size of a gradient vanish, and with it mistakes in it
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1, "eps": 1e-3}),
}

State = dict[str, Tensor]


# --- Models and losses, for the ranks and for the judge ---------------------------------------------------------------


def language_model(seed: int) -> nn.Module:
    """A Transformer whose head is tied to its embedding, and of which a feed-forward network and a norm are frozen."""
    model = build(CONFIG, seed)
    model.blocks[0].mlp.requires_grad_(False)
    model.norm.requires_grad_(False)
    return model


class Fork(nn.Module):
    """Branches of which a forward uses one: the others go without a gradient."""

    def __init__(self, seed: int, branches: int = 3) -> None:
        super().__init__()
        self.branches = nn.ModuleList(seeded_linear(4, seed + index) for index in range(branches))

    def forward(self, x: Tensor, branch: int) -> Tensor:
        """x [B, 4] and which branch to take -> [B, 4]."""
        return self.branches[branch](x)


class Branches(nn.Module):
    """A trunk, a fork and a head."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.trunk, self.fork, self.head = seeded_linear(4, seed), Fork(seed + 1), seeded_linear(4, seed + 9)

    def forward(self, x: Tensor, branch: int) -> Tensor:
        """x [B, 4] and which branch to take -> [B, 4]."""
        return self.head(self.fork(self.trunk(x), branch))


def linear_layers(layers: int, width: int) -> nn.Sequential:
    """Equal layers, each a module of its own around a linear one."""
    return nn.Sequential(*(nn.Sequential(seeded_linear(width, seed)) for seed in range(layers)))


def state_of(module: nn.Module) -> State:
    """Parameters and buffers by all their names, on the CPU."""
    return {name: tensor.detach().cpu().clone() for name, tensor in module.state_dict().items()}


# --- The learner's optimisers -----------------------------------------------------------------------------------------


def make(lab: ModuleType, stage: int, model: nn.Module, optimizer: str | tuple, **options: object) -> object:
    """The ZeRO optimiser of a stage; ``offload`` as a tuple of what `Offload` takes."""
    optimizer_class, settings = OPTIMIZERS[optimizer] if isinstance(optimizer, str) else optimizer
    if offload := options.pop("offload", None):
        options["offload"] = lab.Offload(*offload)
    if stage == 3:
        options.pop("bucket_mb", None)
        return lab.ZeroThree(model, optimizer_class, **options, **settings)
    options.pop("prefetch", None)
    return lab.ZeroOptimizer(model.parameters(), optimizer_class, stage, **options, **settings)


def weights_of(stage: int, model: nn.Module, zero: object) -> State:
    """All weights, on rank 0 of the group (stages 1 and 2: on every rank)."""
    return zero.full_state_dict() if stage == 3 else state_of(model)


# --- Training ---------------------------------------------------------------------------------------------------------


def train(
    lab: ModuleType,
    own: tuple[Sequence[Sequence[Tensor]], Sequence[float]],
    runs: Sequence[dict],
    groups: Sequence[Sequence[int]] | None = None,
) -> list[dict[str, object]]:
    """Train `language_model` on this rank's batches, starting from weights that differ between ranks; once for each of
    ``runs``.

    Args:
        own: of every step this rank's micro-batches, tokens [1, T], and the mean over the ranks of their tokens.
        runs: each has ``stage``, ``optimizer``, perhaps ``clip``, and options of the ZeRO optimiser.
        groups: split the ranks into these groups; None: one group of all.

    Returns:
        For each run ``weights``, where this rank has them, and the ``norms`` that clipping found.
    """
    group = own_group(groups)
    return [_train(lab, *own, group=group, **run) for run in runs]


def _train(
    lab: ModuleType,
    steps: Sequence[Sequence[Tensor]],
    means: Sequence[float],
    stage: int,
    optimizer: str,
    clip: float | None = None,
    **options: object,
) -> dict[str, object]:
    model = language_model(seed=dist.get_rank()).to(device())
    zero = make(lab, stage, model, optimizer, **options)
    norms = []
    for micro_batches, mean in zip(steps, means, strict=True):
        for tokens in micro_batches:
            (summed_token_loss(model, tokens.to(device())) / mean).backward()
        if clip:
            norms.append(float(zero.clip_grad_norm(clip)))
        zero.step()
    weights = weights_of(stage, model, zero)
    zero.close()
    return {"weights": weights, "norms": norms}


def train_branches(lab: ModuleType, own: Sequence[tuple[int, Tensor]], stages: Sequence[int]) -> list[State]:
    """Train `Branches` with AdamW, a (branch, x) of this rank in every step; the weights after it for each stage.

    The model has the dtype of the inputs.
    """
    found = []
    for stage in stages:
        model = Branches(seed=0).to(device(), own[0][1].dtype)
        # All ranks have to run the same units: the fork is one. 2**-13 MiB are 128 bytes, two layers to a bucket
        options = {"units": list(model.children())} if stage == 3 else {"bucket_mb": 2**-13}
        zero = make(lab, stage, model, "adamw", **options)
        for branch, x in own:
            model(x.to(device()), branch).square().mean().backward()
            zero.step()
        found.append(weights_of(stage, model, zero))
    return found


def train_groups(lab: ModuleType, inputs: Sequence[Tensor], settings: dict, rates: Sequence[float]) -> list[State]:
    """Train two layers in parameter groups with weight decays of their own, under a scheduler; stages 1 and 2."""
    found = []
    for stage in (1, 2):
        model = linear_layers(2, 5).to(device())
        zero = lab.ZeroOptimizer(parameter_groups(model), torch.optim.SGD, stage, bucket_mb=2**-20, **settings)
        schedule(zero, rates, lambda x, model=model: model(x.to(device())).square().mean().backward(), inputs)
        found.append(state_of(model))
    return found


def parameter_groups(model: nn.Sequential) -> list[dict]:
    """One group with weight decay, one with a learning rate of its own."""
    return [
        {"params": list(model[0].parameters()), "weight_decay": 0.3},
        {"params": list(model[1].parameters()), "lr": 0.05},
    ]


def schedule(
    optimizer: torch.optim.Optimizer, rates: Sequence[float], run: Callable[[Tensor], None], inputs: Sequence[Tensor]
) -> None:
    """Steps under a learning-rate scheduler of torch."""
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rates[step])
    for x in inputs:
        optimizer.zero_grad()
        run(x)
        optimizer.step()
        scheduler.step()


def use_up_gradients(lab: ModuleType) -> list[list[float]]:
    """What a weight of 1 becomes, for each stage: after a step of lr 1 on gradient 0.25, with the model's own
    `zero_grad`; after a gradient of 8 that is thrown away and another step on 0.25; after a step with a
    closure; and its loss."""
    return [_use_up_gradients(lab, stage) for stage in (1, 2, 3)]


def _use_up_gradients(lab: ModuleType, stage: int) -> list[float]:
    model = nn.Sequential(nn.Linear(1, 1, bias=False)).to(device())
    nn.init.ones_(model[0].weight)
    zero = make(lab, stage, model, (torch.optim.SGD, {"lr": 1.0}))
    seen = []

    def closure(gradient: float = 0.25) -> Tensor:
        loss = model(torch.full((1, 1), gradient, device=device())).sum()
        loss.backward()
        return loss

    def weight() -> float:
        return next(iter(weights_of(stage, model, zero).values()), torch.zeros(())).item()

    for throw_away in (False, True):
        if throw_away:
            closure(8.0)
            zero.zero_grad()
        closure()
        zero.step()
        model.zero_grad()
        seen.append(weight())
    loss = zero.step(closure)
    return [*seen, weight(), loss.item()]


# --- What travels, when, and what is held -----------------------------------------------------------------------------


def observe_steps(
    lab: ModuleType, stages: Sequence[int], tokens: Tensor, bucket_mb: float, micro_batches: Sequence[int]
) -> list[list[list[dict]]]:
    """For each stage traffic of training steps of `language_model` with so many micro-batches each, then of an
    evaluation."""
    return [_observe_steps(lab, stage, tokens, bucket_mb, micro_batches) for stage in stages]


def _observe_steps(
    lab: ModuleType, stage: int, tokens: Tensor, bucket_mb: float, micro_batches: Sequence[int]
) -> list[list[dict]]:
    model = language_model(seed=0).to(device())
    zero = make(lab, stage, model, "sgd", bucket_mb=bucket_mb)
    seen = []
    for count in micro_batches:
        with Traffic() as traffic:
            for _ in range(count):
                summed_token_loss(model, tokens).backward()
            zero.step()
            zero.zero_grad()
        seen.append(traffic.to_data())
    with Traffic() as traffic, torch.no_grad():
        model(tokens)
    return [*seen, traffic.to_data()]


def observe_order(lab: ModuleType, layers: int, width: int, runs: Sequence[dict]) -> list[list[dict]]:
    """For each of ``runs``, a stage and options, the second training step of equal layers, with marks: a layer's
    forward begins, its gradient is complete, the update begins."""
    return [_observe_order(lab, layers, width, **run) for run in runs]


def _observe_order(lab: ModuleType, layers: int, width: int, stage: int, **options: object) -> list[dict]:
    model = linear_layers(layers, width).to(device())
    traffic = Traffic()
    for index, layer in enumerate(model):  # registered before the learner's hooks, so they run before them
        inner = layer[0]
        inner.register_forward_pre_hook(lambda *_, index=index: traffic.mark(f"forward {index}"))
        inner.weight.register_post_accumulate_grad_hook(lambda _, index=index: traffic.mark(f"gradient {index}"))
    zero = make(lab, stage, model, "sgd", **options)
    x = torch.ones(2, width, device=device())
    for step in range(2):
        traffic.events.clear()
        with traffic:
            model(x).sum().backward()
            if step:
                traffic.mark("step")
            zero.step()
    return traffic.to_data()


def observe_bytes(
    lab: ModuleType, expected: Sequence[dict[str, int]], layers: int, width: int, runs: Sequence[dict]
) -> list[dict[str, int]]:
    """Bytes of tensors that live, and the most that ever lived, at several moments of training in equal layers.

    Args:
        expected: for each run what should live on this rank: see `settle`.
        runs: a stage and options each.

    Returns:
        For each of ``runs`` ``made``: after construction. ``backward``: after the second backward, without what lived
        before it. ``stepped``: after the second step. ``peak_backward``, ``peak_evaluation``: the most during the
        second forward and backward, and during an evaluation.
    """
    return [_observe_bytes(lab, right, layers, width, **run) for right, run in zip(expected, runs, strict=True)]


def _observe_bytes(
    lab: ModuleType, expected: dict[str, int], layers: int, width: int, stage: int, **options: object
) -> dict[str, int]:
    found = {}
    x = torch.ones(1, width, device=device())
    with PeakMemory() as memory:
        model = linear_layers(layers, width).to(device())
        zero = make(lab, stage, model, "sgd", **options)
        found["made"] = settle(memory, expected["made"])
        model(x).sum().backward()
        zero.step()
        before = settle(memory, expected["stepped"])
        memory.reset_peak()
        model(x).sum().backward()
        found["peak_backward"] = memory.peak_bytes
        found["backward"] = settle(memory, before + expected["backward"]) - before
        zero.step()
        found["stepped"] = settle(memory, expected["stepped"])
        memory.reset_peak()
        with torch.no_grad():
            model(x)
        found["peak_evaluation"] = memory.peak_bytes
    return found


def settle(memory: PeakMemory, expected: int) -> int:
    """The bytes that live now. gloo's threads let go of a message a moment after it has arrived: wait for that."""
    deadline = time.monotonic() + 1
    while memory.live_bytes != expected and time.monotonic() < deadline:
        time.sleep(0.002)
    return memory.live_bytes


# --- Stage 3 ----------------------------------------------------------------------------------------------------------


class Reused(nn.Module):
    """A layer that is used twice, one under activation checkpointing, and a frozen one between them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(seeded_linear(6, seed) for seed in range(4))
        self.layers[1].requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, 6] -> [B, 6]."""
        first, frozen, saved, last = self.layers
        x = frozen(torch.tanh(first(x)))
        x = checkpoint(saved, torch.tanh(first(x)), use_reentrant=False)
        return last(torch.tanh(x)) + x


def train_reused(lab: ModuleType, inputs: Sequence[Tensor], shard_bytes: int) -> tuple[State, int]:
    """The weights of `Reused` after a step for each input, with two forwards before each backward, and an error in a
    forward in between; and the bytes beyond ``shard_bytes`` that live after an evaluation with another error."""
    model = Reused().to(device())
    zero = make(lab, 3, model, "sgd")
    for x in inputs:
        with suppress(RuntimeError):
            model(x.new_zeros(1, 5).to(device()))
        (model(x.to(device())).square().mean() + model(2 * x.to(device())).mean()).backward()
        zero.step()
    x = inputs[0].to(device(), copy=True)
    with PeakMemory() as memory, torch.no_grad():
        model(x)
        with suppress(RuntimeError):
            model(x[:, :5])
        left = settle(memory, shard_bytes + x.nbytes) - shard_bytes - x.nbytes
    return zero.full_state_dict(), left


def weights_on_demand(lab: ModuleType, seed: int, other: State) -> dict[str, object]:
    """What `full_state_dict` gives each rank for a wrapped model with batch norm; what it is after loading ``other``
    instead; the messages when a state of another shape is loaded, and when one is asked for on a rank there is not."""
    torch.manual_seed(seed + dist.get_rank())
    model = with_batch_norm().to(device())
    zero = make(lab, 3, model, "sgd")
    before = zero.full_state_dict()
    zero.load_full_state_dict(other)
    after = zero.full_state_dict(to=dist.get_world_size() - 1)
    wrong = {**other, "0.weight": other["0.weight"][:1]}
    error = error_message(lambda: zero.load_full_state_dict(wrong))
    nobody = error_message(lambda: zero.full_state_dict(to=dist.get_world_size()))
    return {"before": before, "after": after, "error": error, "nobody": nobody}


def with_batch_norm() -> nn.Module:
    """Parameters whose number no rank count divides, and buffers."""
    return nn.Sequential(nn.Linear(3, 7), nn.BatchNorm1d(7), nn.Linear(7, 1))


# --- Checkpoints ------------------------------------------------------------------------------------------------------


def train_from(
    lab: ModuleType,
    inputs: Sequence[Tensor],
    weights: State | None,
    states: dict | None,
    runs: Sequence[dict],
    groups: Sequence[Sequence[int]] | None = None,
) -> list[dict[str, object]]:
    """Train `odd_layers` on the same inputs on every rank, from a checkpoint if there is one.

    Args:
        runs: each has ``stage``, perhaps ``last``, to consolidate on the last rank of the group, and options.
        groups: split the ranks into these groups; None: one group of all.

    Returns:
        For each of ``runs`` ``weights`` and ``states`` where this rank has them; ``refusals``: what `state_dict` said
        after each step, when nothing was consolidated since; ``nobody``: what `consolidate_state_dict` said to a rank
        that there is not; and of a checkpoint that was loaded ``loaded``: how many of its states are views into what
        was given, or lie in memory although they belong into a file, and whether training has changed what was given.
    """
    group = own_group(groups)
    return [_train_from(lab, inputs, weights, states, group=group, **run) for run in runs]


def _train_from(
    lab: ModuleType,
    inputs: Sequence[Tensor],
    weights: State | None,
    states: dict | None,
    stage: int,
    group: dist.ProcessGroup | None = None,
    last: bool = False,
    **options: object,
) -> dict[str, object]:
    ranks = dist.get_world_size(group)
    to = ranks - 1 if last else 0
    model = odd_layers()
    if weights:
        model.load_state_dict(weights)
    model.to(device())
    zero = make(lab, stage, model, "adamw", group=group, **options)
    refusals, loaded, given = [], {"views": 0, "in_memory": 0, "changed": False}, deepcopy(states)
    if states:
        zero.load_state_dict(states)
        tensors = state_tensors(zero)
        loaded["views"] = sum(each.untyped_storage().nbytes() > each.nbytes for each in tensors)
        if options.get("offload", ("cpu",))[0] == "nvme" and on_linux():
            loaded["in_memory"] = len(tensors) - is_mapped_from(options["offload"][1], tensors)
        del tensors
    for x in inputs:
        model(x.to(device())).square().mean().backward()
        zero.step()
        with Traffic() as traffic:
            refusals.append(error_message(zero.state_dict, RuntimeError) if not traffic.calls else "it communicates")
        zero.consolidate_state_dict(to)
    here = dist.get_rank(group) == to
    found = zero.state_dict() if here else {"refused": error_message(zero.state_dict, RuntimeError)}
    if states:
        loaded["changed"] = not same(states["state"], given["state"])
    weights = weights_of(stage, model, zero)
    nobody = error_message(lambda: zero.consolidate_state_dict(ranks))
    zero.close()
    return {"weights": weights, "states": found, "refusals": refusals, "nobody": nobody, "loaded": loaded}


def same(states: dict, others: dict) -> bool:
    """Whether optimiser states are equal, bit for bit."""
    return all(
        torch.equal(torch.as_tensor(value), torch.as_tensor(others[number][name]))
        for number, state in states.items()
        for name, value in state.items()
    )


def odd_layers() -> nn.Module:
    """Layers with biases, of sizes that no rank count divides; one frozen."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1))
    model[2].bias.requires_grad_(False)
    return model


def load_foreign(lab: ModuleType, states: Sequence[dict]) -> list[str]:
    """For each of ``states`` the message of the ValueError when an optimiser over `odd_layers` loads it; "" if none."""
    zero = make(lab, 1, odd_layers().to(device()), "adamw")
    return [error_message(lambda state=state: zero.load_state_dict(state)) for state in states]


# --- States in a file -------------------------------------------------------------------------------------------------


def states_in_a_file(lab: ModuleType, folder: str, stage: int, steps: int) -> dict[str, object]:
    """Two jobs train in one folder; where their states are.

    Returns:
        ``states``: number of state tensors as long as their piece. ``in_file``: how many of them have their very bytes
        in an open file. ``mapped``: how many lie in memory mapped from the folder (Linux; elsewhere None).
        ``resident``: bytes of those mappings in memory right after a step (Linux). ``names``: what the folder shows
        meanwhile. ``open_after``: mappings and files in the folder after `close` (Linux). ``weights``: of both jobs.
        ``updated``: the second job's states are still its own after the first has gone.
    """
    jobs = []
    for _ in range(2):
        model = linear_layers(3, 40).to(device())
        jobs.append((model, make(lab, stage, model, "adamw", offload=("nvme", folder))))
    x = torch.ones(2, 40, device=device())
    for _ in range(steps):
        for model, zero in jobs:
            model(x).square().mean().backward()
            zero.step()
    resident = resident_bytes(folder)
    states = [each for _, zero in jobs for each in state_tensors(zero)]
    files = open_files()
    found = {
        "states": len(states),
        "in_file": sum(any(bytes_of(state) in content for content in files) for state in states),
        "mapped": is_mapped_from(folder, states),
        "resident": resident,
        "names": names_in(folder),
    }
    del states
    jobs[0][1].close()
    model, zero = jobs[1]
    model(x).square().mean().backward()
    zero.step()
    zero.close()
    found["open_after"] = mappings(folder)
    found["weights"] = [weights_of(stage, model, zero) for model, zero in jobs]
    return found


def states_in_memory_during_a_step(lab: ModuleType, folder: str, layers: int, width: int) -> tuple[int, int]:
    """For states in a file and a bucket for each layer: how often a step calls the inner optimiser, and the most bytes
    of mappings that are in memory when one of these calls is over (Linux; elsewhere 0)."""
    model = linear_layers(layers, width).to(device())
    bucket_mb = 4 * width * width / 2**20
    zero = make(lab, 1, model, "adamw", offload=("nvme", folder), bucket_mb=bucket_mb)
    update, resident = zero.inner.step, []

    def step() -> None:
        update()
        resident.append(resident_bytes(folder) or 0)

    zero.inner.step = step
    for _ in range(2):
        resident.clear()
        model(torch.ones(2, width, device=device())).square().mean().backward()
        zero.step()
    zero.close()
    return len(resident), max(resident)


def names_in(folder: str) -> list[str]:
    return [path.name for path in Path(folder).iterdir()]


def state_tensors(zero: object) -> list[Tensor]:
    return [
        value
        for piece, state in zero.inner.state.items()
        for value in state.values()
        if isinstance(value, Tensor) and value.shape == piece.shape
    ]


def bytes_of(tensor: Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def open_files() -> list[bytes]:
    """Contents of the regular files of some size that this process has open for writing, with a name or without."""
    contents = []
    for name in names_in("/dev/fd"):
        with suppress(OSError):
            size = os.fstat(int(name)).st_size
            if Path(f"/dev/fd/{name}").is_file() and 0 < size < 2**24:
                contents.append(os.pread(int(name), size, 0))
    return contents


def map_lines(folder: str) -> list[list[str]]:
    """Lines of /proc/self/smaps about mappings of files in the folder: the first line and those about its size."""
    blocks: list[list[str]] = []
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0] and not line.split(" ", 1)[0].endswith(":"):
            blocks.append([])
        blocks[-1].append(line)
    return [block for block in blocks if folder in block[0]]


def on_linux() -> bool:
    return Path("/proc/self/smaps").exists()


def mappings(folder: str) -> int | None:
    """Mappings and open files of the folder."""
    if not on_linux():
        return None
    links = []
    for name in names_in("/proc/self/fd"):
        with suppress(OSError):
            links.append(str(Path(f"/proc/self/fd/{name}").readlink()))
    return len(map_lines(folder)) + sum(folder in link for link in links)


def resident_bytes(folder: str) -> int | None:
    if not on_linux():
        return None
    return sum(int(line.split()[1]) * 1024 for block in map_lines(folder) for line in block if line.startswith("Rss:"))


def is_mapped_from(folder: str, tensors: Sequence[Tensor]) -> int | None:
    if not on_linux():
        return None
    spans = [[int(end, 16) for end in block[0].split(" ", 1)[0].split("-")] for block in map_lines(folder)]
    return sum(any(start <= tensor.data_ptr() < end for start, end in spans) for tensor in tensors)


def killed_with_states(lab: ModuleType, folder: str) -> list[str]:
    """What is left in the folder by a process that kill -9 has ended in the middle of its training."""
    child = os.fork()
    if child == 0:
        try:
            piece = lab.Piece(nn.Parameter(torch.zeros(3)), 0, 5000, slice(0, 5000), nn.Parameter(torch.zeros(5000)))
            lab.StateFile(folder).keep(piece, {"exp_avg": torch.ones(5000)})
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    return names_in(folder)


# --- Small things -----------------------------------------------------------------------------------------------------


def pieces(lab: ModuleType, cases: Sequence[tuple[Sequence[int], int]]) -> list[list[list[tuple[int, int, int]]]]:
    """For each (sizes, ranks): `own_pieces` of every rank."""
    return [
        [[tuple(piece) for piece in lab.own_pieces(sizes, rank, ranks)] for rank in range(ranks)]
        for sizes, ranks in cases
    ]


def configurations(lab: ModuleType, cases: Sequence[dict]) -> list[dict | str]:
    """`deepspeed_config` of each case, or the message of its ValueError."""
    found = []
    for case in cases:
        arguments = {**case, "offload": lab.Offload(*case["offload"]) if case["offload"] else None}
        try:
            found.append(lab.deepspeed_config(**arguments))
        except ValueError as error:
            found.append(str(error))
    return found


def beside_deepspeed(lab: ModuleType, batches: Sequence[Sequence[Tensor]], scale: float) -> dict[int, dict[str, list]]:
    """For each stage the losses of DeepSpeed under the learner's configuration, and of the learner's own optimiser, on
    this rank's micro-batches. The losses are scaled, so that a clipped gradient would show."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would compile for a minute
    deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False)
    optimizer_class, settings = OPTIMIZERS["adamw"]
    found = {}
    for stage in (1, 2, 3):
        model = build(CONFIG).to(device())
        config = lab.deepspeed_config(stage, None, 1, len(batches[0]), "fp32")
        config["zero_optimization"]["reduce_bucket_size"] = 4096  # half a billion by default
        plain = optimizer_class(model.parameters(), **settings)
        engine, *_ = deepspeed.initialize(model=model, optimizer=plain, config=config)
        theirs, mine = [], []
        for micro_batches in batches:
            for tokens in micro_batches:
                loss = scale * summed_token_loss(engine, tokens)
                engine.backward(loss)
                engine.step()
                theirs.append(loss.item())
        model = build(CONFIG).to(device())
        zero = make(lab, stage, model, "adamw")
        for micro_batches in batches:
            for tokens in micro_batches:
                loss = scale * summed_token_loss(model, tokens)
                (loss / len(micro_batches)).backward()
                mine.append(loss.item())
            zero.step()
        found[stage] = {"mine": mine, "theirs": theirs}
    return found


def refusals(lab: ModuleType) -> dict[str, str]:
    """Messages of the ValueErrors for bad input, "" where there is none, and whether anything was sent."""
    model = linear_layers(2, 4).to(device())
    frozen = linear_layers(1, 4).requires_grad_(False).to(device())
    parameters, sgd = list(model.parameters()), torch.optim.SGD
    cases = {
        "stage": lambda: lab.ZeroOptimizer(parameters, sgd, 3, lr=0.1),
        "bucket_mb": lambda: lab.ZeroOptimizer(parameters, sgd, 1, bucket_mb=0, lr=0.1),
        "frozen": lambda: lab.ZeroOptimizer(frozen.parameters(), sgd, 2, lr=0.1),
        "no parameters": lambda: lab.ZeroOptimizer([], sgd, 2, lr=0.1),
        "optimiser": lambda: lab.ZeroOptimizer(parameters, sgd(parameters, lr=0.1), 2),
        "all frozen": lambda: lab.ZeroThree(frozen, sgd, lr=0.1),
        "prefetch": lambda: lab.ZeroThree(model, sgd, prefetch=-1, lr=0.1),
        "units": lambda: lab.ZeroThree(model, sgd, units=[frozen], lr=0.1),
        "offload": lambda: lab.Offload("disk"),
        "no folder": lambda: lab.Offload("nvme", "/nowhere/at/all"),
    }
    with Traffic() as traffic:
        messages = {name: error_message(case) for name, case in cases.items()}
    make(lab, 1, model, "sgd").step()  # and what is right is not refused
    return {**messages, "sent": " ".join(traffic.ops())}


def make_different(lab: ModuleType) -> list[str]:
    """Messages of the ValueErrors when rank 1 brings another model; then all bring the same one, which is fine."""
    widths = (4, 5) if dist.get_rank() == 1 else (4, 4)
    model = nn.Sequential(*(nn.Linear(a, b, bias=False) for a, b in pairwise((3, *widths)))).to(device())
    messages = [error_message(lambda stage=stage: make(lab, stage, model, "sgd")) for stage in (1, 2, 3)]
    make(lab, 2, linear_layers(1, 3).to(device()), "sgd").step()
    return messages


def clip_by(lab: ModuleType, max_norm: float, elements: int) -> tuple[str, float]:
    """The message of the ValueError for a norm that is not positive; and the norm of so many ones in bfloat16."""
    model = nn.Linear(elements, 1, bias=False).to(device(), torch.bfloat16)
    zero = make(lab, 1, model, "sgd")
    message = error_message(lambda: zero.clip_grad_norm(max_norm))
    model(torch.ones(1, elements, device=device(), dtype=torch.bfloat16)).sum().backward()
    return message, zero.clip_grad_norm(1.0).item()
