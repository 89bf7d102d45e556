"""What runs on each rank in the tests of 3.2, around the learner's schedules and runtime. Everything gives back plain
data. The model and the loss serve the judge too, who trains the same thing in one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from types import ModuleType

import torch
import torch.distributed as dist
import torch.nn.functional as F
from checks_pipeline import Plan, parse
from torch import Tensor, nn

from shardlab.grade.drivers import own_group
from shardlab.models import TransformerConfig, build
from shardlab.observe import PeakMemory, Traffic
from shardlab.ranks import device

CONFIG = TransformerConfig(vocab=37, hidden=16, layers=6, heads=2, kv_heads=1, ffn=24, sequence=16)  # tied embedding
HIDDEN_BYTES = 4 * CONFIG.hidden  # of an activation, per token
TIED_BYTES = 4 * CONFIG.vocab * CONFIG.hidden

Batch = list[tuple[Tensor, Tensor, float]]  # inputs [B, T], targets [B, T], weight


# --- Plans ------------------------------------------------------------------------------------------------------------


def schedule_of(lab: ModuleType, plan: Plan) -> object:
    actions = tuple(tuple(lab.Action(*parse(word)) for word in own) for own in plan.actions)
    return lab.Schedule("from the tests", plan.placement, plan.micro_batches, actions)


def words_of(actions: Sequence[tuple[int, str, int]]) -> list[str]:
    return [f"{stage}{kind}{micro_batch}" for stage, kind, micro_batch in actions]


def make_schedules(lab: ModuleType, name: str, cases: Sequence[tuple[int, ...]]) -> list[dict]:
    """What the lab's function ``name`` makes of each set of arguments."""
    made = [getattr(lab, name)(*case) for case in cases]
    return [
        {
            "placement": list(schedule.placement),
            "micro_batches": schedule.micro_batches,
            "actions": [words_of(own) for own in schedule.actions],
        }
        for schedule in made
    ]


def order_of(lab: ModuleType, plans: Sequence[Plan]) -> list[list[str]]:
    return [words_of(lab.run_order(schedule_of(lab, plan))) for plan in plans]


def problems_of(lab: ModuleType, plans: Sequence[Plan]) -> list[list[str]]:
    return [list(lab.check_schedule(schedule_of(lab, plan))) for plan in plans]


def timeline_of(lab: ModuleType, cases: Sequence[tuple]) -> list[list[list[tuple[str, float, float]]]]:
    """Spans of each rank for each (plan, forward, backward, transfer)."""
    return [
        [
            [(words_of([span.action])[0], float(span.start), float(span.end)) for span in own]
            for own in lab.simulate(schedule_of(lab, plan), *costs).spans
        ]
        for plan, *costs in cases
    ]


def simulate_errors(lab: ModuleType, cases: Sequence[tuple]) -> list[str]:
    """The message of the ValueError for each (plan, forward, backward, transfer); "" for none."""
    return [error_message(lambda: lab.simulate(schedule_of(lab, plan), *costs)) for plan, *costs in cases]  # noqa: B023


def read_timeline(lab: ModuleType, cases: Sequence[Sequence[Sequence[tuple[str, float, float]]]]) -> list[dict]:
    """Bubble and peak in flight of timelines given as spans (action, start, end) of each rank."""
    found = []
    for ranks in cases:
        spans = tuple(tuple(lab.Span(lab.Action(*parse(word)), a, b) for word, a, b in own) for own in ranks)
        timeline = lab.Timeline(spans)
        found.append({"bubble": timeline.bubble, "peak": list(timeline.peak_in_flight)})
    return found


def error_message(call: Callable[[], object], kind: type[Exception] = ValueError) -> str:
    """The message of the error that ``call`` raises; "" if it raises none."""
    try:
        call()
    except kind as error:
        return str(error) or "no message"
    return ""


def call_each(lab: ModuleType, name: str, cases: Sequence[tuple]) -> list[object]:
    """Values of the lab's function ``name`` for each set of arguments."""
    return [getattr(lab, name)(*case) for case in cases]


def errors_of(lab: ModuleType, name: str, cases: Sequence[tuple]) -> list[str]:
    """Messages of the ValueErrors of the lab's function ``name`` for each set of arguments; "" for none."""
    return [error_message(lambda case=case: getattr(lab, name)(*case)) for case in cases]


def split_each(lab: ModuleType, cases: Sequence[tuple[Tensor, Tensor, int, int | None]]) -> list[list[tuple]]:
    """`split_batch` of (inputs, targets, micro-batches, what does not count; None: what it counts by itself)."""
    found = []
    for *given, dropped in cases:
        options = [] if dropped is None else [lambda targets, dropped=dropped: int((targets != dropped).sum())]
        found.append([tuple(part) for part in lab.split_batch(*given, *options)])
    return found


# --- The model in stages ----------------------------------------------------------------------------------------------


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over the targets that are not -100; 0 if there are none."""
    total = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")
    return total / (targets != -100).sum().clamp(min=1)


def layers_of_stage(stage: int, stages: int) -> range:
    """Embedding, six blocks and head: eight layers, as even as it goes."""
    count = CONFIG.layers + 2
    return range(stage * count // stages, (stage + 1) * count // stages)


def new_stage(lab: ModuleType, plan: Plan, group: dist.ProcessGroup | None, activation: Callable | None = None):
    """This rank's stages of the model, as the plan places them."""
    model = build(CONFIG).to(device())
    rank, stages = dist.get_rank(group), len(plan.placement)
    own = [stage for stage in range(stages) if plan.placement[stage] == rank]
    chunks = {stage: lab.TransformerStage(model, layers_of_stage(stage, stages)) for stage in own}
    ends = (plan.placement[0], plan.placement[-1])
    tied = model.embedding.weight if rank in ends else None
    return lab.PipelineStage(chunks, activation or new_activation, group, tied)


def moved_stage(lab: ModuleType, tokens: Tensor, start: int) -> tuple[Tensor, Tensor]:
    """Logits of a stage that holds all layers and was told that its tokens begin at ``start``; and the model's."""
    model, tokens = build(CONFIG).to(device()), tokens.to(device())
    whole = model(tokens, torch.arange(start, start + tokens.shape[1], device=device()))
    stage = lab.TransformerStage(model, range(CONFIG.layers + 2), lambda count: torch.arange(start, start + count))
    return stage(tokens).detach(), whole.detach()


def new_activation(tokens: Tensor) -> Tensor:
    return torch.empty(*tokens.shape, CONFIG.hidden, device=device())


def micro_batches_of(lab: ModuleType, batch: Batch) -> list:
    return [lab.MicroBatch(inputs.to(device()), targets.to(device()), weight) for inputs, targets, weight in batch]


def gradients_of(stage: nn.Module) -> dict[str, Tensor | None]:
    """Gradients of a rank's stages, by their names in the whole model; a copy of the embedding as "head.weight"."""
    return {
        name: None if parameter.grad is None else parameter.grad.cpu().clone()
        for chunk in stage.chunks.values()
        for name, parameter in chunk.named_parameters()
    }


# --- Runs -------------------------------------------------------------------------------------------------------------


def run(lab: ModuleType, plan: Plan, batch: Batch, calls: int = 1, groups: Sequence[Sequence[int]] | None = None):
    """Loss (of the last call), gradients and traffic (of the last call) of ``calls`` runs without a zero_grad."""
    group = own_group(groups)
    stage, schedule = new_stage(lab, plan, group), schedule_of(lab, plan)
    parts = micro_batches_of(lab, batch)
    for _ in range(calls):
        with Traffic() as traffic:
            loss = lab.run_schedule(stage, schedule, parts, mean_loss)
    return {
        "loss": None if loss is None else loss.item(),
        "detached": loss is None or not loss.requires_grad,
        "gradients": gradients_of(stage),
        "traffic": traffic.to_data(),
        "left_in_flight": len(stage.in_flight),
        "spans": words_of([span.action for span in stage.spans]),
    }


def run_each(lab: ModuleType, plans: Sequence[Plan], batches: Sequence[Batch]) -> list[dict]:
    """`run` for one plan and batch after the other."""
    return [run(lab, plan, batch) for plan, batch in zip(plans, batches, strict=True)]


def run_in_groups(lab: ModuleType, own: tuple[Plan, Batch], groups: Sequence[Sequence[int]]) -> dict:
    """`run` of this rank's own plan and batch in its own group."""
    return run(lab, *own, groups=groups)


def train(lab: ModuleType, plan: Plan, batches: Sequence[Batch]) -> dict[str, Tensor]:
    """Parameters after a step of SGD with momentum for each batch."""
    stage, schedule = new_stage(lab, plan, None), schedule_of(lab, plan)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.5, momentum=0.9)
    for batch in batches:
        optimizer.zero_grad()
        lab.run_schedule(stage, schedule, micro_batches_of(lab, batch), mean_loss)
        optimizer.step()
    return {
        name: parameter.detach().cpu()
        for chunk in stage.chunks.values()
        for name, parameter in chunk.named_parameters()
    }


def refusals(lab: ModuleType, plans: Sequence[Plan], batch: Batch) -> list[dict]:
    """For each invalid plan: the message of the ValueError ("" for none) and how often the rank communicated."""
    found = []
    for plan in plans:
        stage, schedule = new_stage(lab, plan, None), schedule_of(lab, plan)
        with Traffic() as traffic:
            message = error_message(
                lambda: lab.run_schedule(stage, schedule, micro_batches_of(lab, batch), mean_loss)  # noqa: B023
            )
        found.append({"message": message, "calls": traffic.count()})
    return found


def after_an_error(lab: ModuleType, plan: Plan, batch: Batch) -> dict:
    """On one rank: a loss function that fails in the last micro-batch, and then a good run."""
    stage, schedule, parts = new_stage(lab, plan, None), schedule_of(lab, plan), micro_batches_of(lab, batch)
    last = parts[-1].targets

    def failing(logits: Tensor, targets: Tensor) -> Tensor:
        if targets is last:
            raise KeyError("no such token")
        return mean_loss(logits, targets)

    message = error_message(lambda: lab.run_schedule(stage, schedule, parts, failing), KeyError)
    stage.zero_grad()
    loss = lab.run_schedule(stage, schedule, parts, mean_loss)
    return {
        "message": message,
        "loss": loss.item(),
        "gradients": gradients_of(stage),
        "left_in_flight": len(stage.in_flight),
    }


def wait_in_vain(lab: ModuleType, plan: Plan, batch: Batch, seconds: float) -> dict:
    """Rank 1 does not take part; the others should give up after ``seconds``."""
    group = own_group([range(dist.get_world_size())], seconds)
    stage, schedule, parts = new_stage(lab, plan, group), schedule_of(lab, plan), micro_batches_of(lab, batch)
    began = time.monotonic()
    message = ""
    if dist.get_rank() == 1:
        time.sleep(1.5 * seconds)
    else:
        message = error_message(lambda: lab.run_schedule(stage, schedule, parts, mean_loss), RuntimeError)
    return {"message": message, "seconds": time.monotonic() - began}


# --- What is held, and what runs when ---------------------------------------------------------------------------------

WIDTH = 32


class Watched(torch.autograd.Function):
    """Passes a tensor on, and notes when forward and backward come by."""

    @staticmethod
    def forward(ctx, x: Tensor, note: Callable[[str], None]) -> Tensor:
        ctx.note = note
        note("F")
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.note("B")
        return gradient, None


class WatchedStage(nn.Module):
    """Three square layers. ``log`` gets stage, kind and micro-batch of all that runs; the micro-batch is told by the
    first element of x, which passes through all stages unchanged."""

    def __init__(self, stage: int, log: list[str]) -> None:
        super().__init__()
        self.stage, self.log = stage, log
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3)))

    def forward(self, x: Tensor) -> Tensor:
        micro_batch = int(x[0, 0].item())
        y = Watched.apply(self.layers(x), lambda kind: self.log.append(f"{self.stage}{kind}{micro_batch}"))
        return torch.cat((x[:, :1], y[:, 1:]), dim=1)


def watched_run(lab: ModuleType, plan: Plan, rows: int) -> dict:
    """Run a plan on `WatchedStage`s: what ran in which order, and the peak of activations in bytes."""
    rank, log = dist.get_rank(), []
    own = [stage for stage, holder in enumerate(plan.placement) if holder == rank]
    chunks = {stage: WatchedStage(stage, log).to(device()) for stage in own}
    stage = lab.PipelineStage(chunks, torch.empty_like)
    x = [torch.full((rows, WIDTH), float(m), device=device()) for m in range(plan.micro_batches)]
    parts = [lab.MicroBatch(each, each[:, 0], 1 / plan.micro_batches) for each in x]
    with PeakMemory(stage) as memory:
        lab.run_schedule(stage, schedule_of(lab, plan), parts, lambda y, targets: y[:, 1:].square().mean())
    return {"log": log, "peak": memory.peak_bytes - memory.peak_by_kind["parameter"], "live": memory.live_bytes}


# --- The stage alone --------------------------------------------------------------------------------------------------


class NoSyncWrapper(nn.Module):
    """A module with ``no_sync``, as data parallelism has it: notes which backwards run inside."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.inside, self.notes = module, False, []

    def forward(self, x: Tensor) -> Tensor:
        return Watched.apply(self.module(x), lambda kind: kind == "B" and self.notes.append(self.inside))

    @contextmanager
    def no_sync(self):
        self.inside = True
        yield
        self.inside = False


def stage_alone(lab: ModuleType, inputs: Sequence[Tensor], gradients: Sequence[Tensor], order: Sequence[int]) -> dict:
    """Stage 1 of a pipeline by hand: a forward of each input, then backwards in the given order."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    stage = lab.PipelineStage({1: module}, torch.empty_like)
    outputs = [stage.forward_micro_batch(lab.Action(1, "F", m), x.clone()).detach() for m, x in enumerate(inputs)]
    in_flight = [len(stage.in_flight)]
    received = {}
    for m in order:
        action = lab.Action(1, "B", m)
        received[m] = stage.backward_micro_batch(action, gradients[m], last=m == order[-1])
        in_flight.append(len(stage.in_flight))
    return {
        "outputs": outputs,
        "received": [received[m] for m in range(len(inputs))],
        "in_flight": in_flight,
        "parameters": {name: parameter.grad for name, parameter in module.named_parameters()},
    }


def first_stage_alone(lab: ModuleType, x: Tensor, frozen: bool) -> dict:
    """Stage 0: integer inputs (tokens), nobody to send a gradient to; frozen or not."""
    module = nn.Embedding(5, 3).requires_grad_(not frozen)
    stage = lab.PipelineStage({0: module}, torch.empty_like)
    stage.forward_micro_batch(lab.Action(0, "F", 0), x)
    gradient = stage.backward_micro_batch(lab.Action(0, "B", 0), torch.ones(*x.shape, 3), last=True)
    return {"gradient": gradient, "weight": module.weight.grad, "in_flight": len(stage.in_flight)}


def synchronised_backwards(lab: ModuleType, plan: Plan) -> dict[str, list[bool]]:
    """For each stage of this rank, which of its backwards ran inside ``no_sync``, in order."""
    rank = dist.get_rank()
    own = [stage for stage, holder in enumerate(plan.placement) if holder == rank]
    chunks = {stage: NoSyncWrapper(nn.Linear(4, 4)) for stage in own}
    stage = lab.PipelineStage(chunks, torch.empty_like)
    x = torch.ones(2, 4)
    parts = [lab.MicroBatch(x, x, 1 / plan.micro_batches)] * plan.micro_batches
    lab.run_schedule(stage, schedule_of(lab, plan), parts, lambda y, targets: y.square().mean())
    return {str(number): module.notes for number, module in chunks.items()}


def sum_tied(lab: ModuleType, own: Sequence[Tensor | None], placement: Sequence[int]) -> dict:
    """The gradient of a tied parameter after each of some blocks of `summed_tied_gradients`, in which this rank's own
    gradient (None: none) came up; and the traffic."""
    rank = dist.get_rank()
    plan = Plan(tuple(placement), 1, ((),) * dist.get_world_size())
    parameter = nn.Parameter(torch.zeros(3, 2))
    stage = lab.PipelineStage({}, torch.empty_like, None, parameter if rank in (placement[0], placement[-1]) else None)
    schedule = schedule_of(lab, plan)
    seen = []
    with Traffic() as traffic:
        for gradient in own:
            with stage.summed_tied_gradients(schedule):
                if gradient is not None:
                    parameter.grad = gradient.clone() if parameter.grad is None else parameter.grad + gradient
            seen.append(None if parameter.grad is None else parameter.grad.clone())
    return {"gradients": seen, "traffic": traffic.to_data()}


# --- Messages ---------------------------------------------------------------------------------------------------------


def exchange_each(lab: ModuleType, plans: Sequence[Plan]) -> list[dict]:
    """`exchange_by_hand` for one plan after the other."""
    return [exchange_by_hand(lab, plan) for plan in plans]


def exchange_by_hand(lab: ModuleType, plan: Plan) -> dict:
    """Play a plan with tensors that say who made them, without any module.

    Returns:
        wrong: what was taken and was not what its action had put out; traffic; held: the most messages with a peer that
        were started and not waited for, seen after an action.
    """
    rank, schedule = dist.get_rank(), schedule_of(lab, plan)
    stage = lab.PipelineStage({}, torch.empty_like)
    x = torch.empty(2, 3)
    wrong, held = [], 0
    with Traffic() as traffic:
        mailbox = lab.Mailbox(stage, schedule, [lab.MicroBatch(x, x, 1.0)] * plan.micro_batches)
        for action in schedule.actions[rank]:
            producer = schedule.producer(action)
            traffic.mark(f"begin {words_of([action])[0]}")
            if producer is not None:
                taken = mailbox.take(producer)
                if not torch.equal(taken, stamp(producer)):
                    wrong.append(f"{words_of([producer])[0]}: {taken.flatten()[:3].tolist()}")
            if schedule.consumer(action) is not None:
                mailbox.put(action, stamp(action))
            held = max([held, *map(len, mailbox.started.values())])
        mailbox.finish()
    return {"wrong": wrong, "traffic": traffic.to_data(), "held": held, "left": len(mailbox.inbox)}


def stamp(action: tuple[int, str, int]) -> Tensor:
    """A tensor [2, 3] that only this action makes."""
    stage, kind, micro_batch = action
    return torch.tensor([float(stage), float(kind == "B"), float(micro_batch)]).repeat(2, 1)
