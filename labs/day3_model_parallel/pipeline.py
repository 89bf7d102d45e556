"""Lesson 3.2: a pipeline of layers, and the schedule that keeps it full.

A model too large for one rank can be cut between its layers: rank 0 holds the first ones, the last rank the head, and
activations travel forward, gradients back. As long as one batch walks through, all ranks but one wait. So the batch is
cut too, into micro-batches that follow each other like cars on an assembly line (GPipe, Huang et al. 2019). What
remains is the time to fill and to drain the line, the *bubble*, and the activations that wait for their backward. The
order in which a rank works decides both, and that order is the subject here: a schedule is data, which you make, check,
simulate, and then run.

Work from top to bottom. First schedules, which need no process group: `balance_stages` to `simulate`. Then the runtime,
`split_batch` to `run_schedule`, which executes *any* valid schedule and cannot deadlock on it. ``group=None`` means the
default group; ranks are ranks in the group, so a pipeline may be one of several. Waiting ends at the group's timeout:
give `init_process_group` and `new_group` one that you are willing to wait for.

Sources:
    Huang et al. 2019, "GPipe: efficient training of giant neural networks using pipeline parallelism",
    arXiv:1811.06965.
    Narayanan et al. 2019, "PipeDream: generalized pipeline parallelism for DNN training", SOSP: 1F1B.
    Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters using Megatron-LM",
    arXiv:2104.04473: section 2.2, bubble and memory of GPipe, 1F1B and the interleaved schedule.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import accumulate, chain
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from shardlab import NotAttempted, show
from shardlab.models import Transformer, TransformerConfig

# --- Which layers make a stage? ---------------------------------------------------------------------------------------


def balance_stages(costs: Sequence[float], stages: int) -> list[int]:
    """Cut a row of layers into ``stages`` contiguous stages so that the most expensive stage is as cheap as possible.

    A pipeline is as fast as its slowest stage. Usually several cuts have the same slowest stage; of those the most even
    one is taken, which has the smallest sum of squared stage costs, and among equals the one with the fewest layers in
    the first stage, then in the second, ...: early stages hold the most activations.

    Args:
        costs: of each layer in order, any unit, at least 0.
        stages: at least 1; every stage gets at least one layer.

    Returns:
        Number of layers of each stage, in order.

    Raises:
        ValueError: fewer layers than stages, no stage, or a cost that is negative or no number.

    Example: costs 1, 1, 1, 1, 4 in 2 stages: [4, 1], 4 and 4. In 3 stages: [2, 2, 1]: the slowest is still 4, and
    2, 2, 4 is more even than 1, 3, 4.

    Hints:
        1. Take the first stage away: what is left is the same problem, smaller. What must you know about it?
        2. Find the cost of the slowest stage first. Then look for the most even cut among those that keep to it.
        3. `functools.cache` on an inner function; ``accumulate(costs, initial=0)`` makes any sum a difference.
    """
    raise NotAttempted("3.2 balance_stages")


# --- Schedules: who does what, in which order -------------------------------------------------------------------------


class Action(NamedTuple):
    """One piece of work. Printed as torch.distributed.pipelining does: ``2F0`` is stage 2, forward, micro-batch 0.

    Attributes:
        stage: of the model, 0 for the one with the first layers.
        kind: ``"F"``, forward, or ``"B"``, backward.
        micro_batch: from 0.
    """

    stage: int
    kind: str
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"


@dataclass(frozen=True)
class Schedule:
    """The whole plan of one batch: what each rank does, in order. The same on every rank.

    Args:
        name: for tables and pictures.
        placement: for each stage of the model, the rank that holds it.
        micro_batches: into which the batch is cut, at least 1.
        actions: for each rank its actions, in order.

    Raises:
        ValueError: no stage, no micro-batch, or a stage placed on a rank that has no list of actions.
    """

    name: str
    placement: tuple[int, ...]
    micro_batches: int
    actions: tuple[tuple[Action, ...], ...]

    def __post_init__(self) -> None:
        if not self.placement or self.micro_batches < 1:
            raise ValueError(
                "a schedule needs at least 1 stage and 1 micro-batch: "
                f"got {len(self.placement)} and {self.micro_batches}"
            )
        if not all(0 <= rank < self.ranks for rank in self.placement):
            raise ValueError(f"{self.ranks} ranks have actions, but stages lie on ranks {list(self.placement)}")

    @property
    def ranks(self) -> int:
        return len(self.actions)

    @property
    def stages(self) -> int:
        return len(self.placement)

    def needs(self, action: Action) -> list[Action]:
        """What must be done before ``action``: a forward needs the stage below; a backward its own forward, and the
        stage above."""
        own = [action._replace(kind="F")] if action.kind == "B" else []
        producer = self.producer(action)
        return [*own, producer] if producer else own

    def producer(self, action: Action) -> Action | None:
        """Whose output ``action`` works on: that of the stage below forward, of the stage above backward; None at an
        end of the model."""
        return self._neighbour(action, -1 if action.kind == "F" else 1)

    def consumer(self, action: Action) -> Action | None:
        """Who works on what ``action`` puts out; None at an end of the model."""
        return self._neighbour(action, 1 if action.kind == "F" else -1)

    def _neighbour(self, action: Action, step: int) -> Action | None:
        stage = action.stage + step
        return action._replace(stage=stage) if 0 <= stage < self.stages else None

    def __str__(self) -> str:
        lines = (f"rank {rank}: {' '.join(map(str, actions))}" for rank, actions in enumerate(self.actions))
        return "\n".join(lines)


def gpipe(stages: int, micro_batches: int) -> Schedule:
    """All forwards, then all backwards (Huang et al. 2019, figure 2c). Stage s lies on rank s.

    Args:
        stages: p, the number of ranks as well.
        micro_batches: m.

    Returns:
        On every rank the forwards of micro-batches 0 to m - 1, then their backwards, 0 first.

    Raises:
        ValueError: fewer than 1 stage or micro-batch.

    Example, 2 stages, 2 micro-batches, rank 1: 1F0 1F1 1B0 1B1.
    """
    raise NotAttempted("3.2 gpipe")


def one_forward_one_backward(stages: int, micro_batches: int) -> Schedule:
    """1F1B: run a micro-batch's backward as soon as that can be, so that its activations can go.

    From PipeDream; with a flush at the end of each batch, as here: Narayanan et al. 2021, figure 4, top.

    The bubble is GPipe's. But rank r never holds more than p - r micro-batches, where GPipe holds all m.

    Args:
        stages: p, the number of ranks as well.
        micro_batches: m; may be smaller than p.

    Returns:
        Rank r warms up with p - 1 - r forwards (all m if there are fewer), then takes turns, one forward and one
        backward, until the forwards are out, and ends with the backwards that are left.

    Raises:
        ValueError: fewer than 1 stage or micro-batch.

    Example, 2 stages, 3 micro-batches: rank 0 does 0F0 0F1 0B0 0F2 0B1 0B2, rank 1 does 1F0 1B0 1F1 1B1 1F2 1B2.

    Hints:
        1. What does the last rank do? And the one before it, to give the last one something to do meanwhile?
        2. Both kinds come in the order of the micro-batches: it is enough to say which *kind* comes when.
    """
    raise NotAttempted("3.2 one_forward_one_backward")


def interleaved(stages: int, micro_batches: int, chunks: int) -> Schedule:
    """Interleaved 1F1B: each rank holds ``chunks`` short stages instead of one long one, so the line fills sooner
    (Narayanan et al. 2021, section 2.2.2).

    The model has p * v stages; stage s lies on rank s mod p, so a micro-batch runs round the ranks v times, and the
    bubble is about v times shorter. Micro-batches advance in groups of p. The forwards of every rank come in this
    order: for each group, for each of its own stages, the p micro-batches of the group. The backwards the same way,
    last stage first. Rank r warms up with 2 (p - 1 - r) + (v - 1) p forwards (or all m * v), then takes turns as in
    1F1B.

    Args:
        stages: p, the number of *ranks*.
        micro_batches: m, divisible by p.
        chunks: v, stages per rank; 1 gives the order of `one_forward_one_backward`, which warms up with fewer forwards.

    Returns:
        A schedule of p * v stages.

    Raises:
        ValueError: an argument below 1, or p does not divide m.

    Example, 2 ranks, 2 micro-batches, 2 chunks: rank 0 holds stages 0 and 2, its forwards are 0F0 0F1 2F0 2F1, its
    backwards 2B0 2B1 0B0 0B1. The warm-up is 2 + 2 forwards: all. Rank 1 warms up with 2 and does
    1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1.

    Hints:
        1. Three loops, one inside the other, give the order of the forwards. What changes for the backwards?
        2. The rest is what you did in `one_forward_one_backward`.
    """
    raise NotAttempted("3.2 interleaved")


def _require_positive(**sizes: int) -> None:
    """Raise a ValueError that names the first size below 1. Given."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1: got {size}")


# --- Check and simulate -----------------------------------------------------------------------------------------------


def run_order(schedule: Schedule) -> list[Action]:
    """The actions in an order in which they can happen, as far as the schedule gets.

    Play it in rounds: in each round every rank does its next action if all that this action needs was done in an
    *earlier* round. Stop after a round in which nothing happened. Ranks of one round come in ascending order.

    Returns:
        All actions for a schedule that runs to its end; fewer for one that gets stuck. Actions whose needs never come
        stay out, with all that stand after them on the same rank.

    Example, `gpipe(2, 1)`: 0F0 1F0 1B0 0B0. A rank that begins with a backward of its own is stuck from the start.

    Hints:
        1. You need to know, for each rank, how many of its actions are done; and the set of all that is done.
        2. Why may an action of this round not count before the round is over? (`message_order` builds on it.)
    """
    raise NotAttempted("3.2 run_order")


def check_schedule(schedule: Schedule) -> list[str]:
    """What is wrong with a schedule, in sentences that name rank and action; nothing if it runs to its end.

    Looked for, in this order; of the last only if nothing else was found:

    - an action that does not exist: another kind than F and B, a stage or a micro-batch outside the schedule's;
    - an action on a rank that does not hold its stage;
    - an action that stands there twice;
    - an action that is missing: each stage needs the forward and the backward of every micro-batch;
    - an order that gets stuck: a rank waits for an action that comes later on the rank itself, or ranks wait for each
      other. Every rank that is not through is named, with the action it stands at and one that it waits for.

    Returns:
        Sentences such as ``"rank 1: 1B2 is missing"``: each begins with ``rank R: ACTION``.

    Example, `gpipe(2, 1)` with rank 1 the wrong way round, 1B0 1F0: "rank 0: 0B0 waits for 1B0 of rank 1" and
    "rank 1: 1B0 waits for 1F0, which comes later on the same rank".

    Hints:
        1. The first four can be told by looking at each action, and by counting.
        2. The last one `run_order` finds out. Which action of a rank is it that did not run?
    """
    raise NotAttempted("3.2 check_schedule")


class Span(NamedTuple):
    """When a rank worked on an action, in seconds (or any other unit of time)."""

    action: Action
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """What every rank did when, simulated or measured.

    Args:
        spans: for each rank its spans, in order.
    """

    spans: tuple[tuple[Span, ...], ...]

    @property
    def makespan(self) -> float:
        """From the first start to the last end, over all ranks. Given."""
        spans = list(chain(*self.spans))
        return max(span.end for span in spans) - min(span.start for span in spans)

    @property
    def bubble(self) -> float:
        """The share of all ranks' time in which they do nothing: of p ranks times the makespan.

        With equal stages and nothing lost on the way, p ranks and m micro-batches, GPipe and 1F1B come to
        (p - 1) / (m + p - 1), v interleaved chunks to (p - 1) / (v m + p - 1).

        Example, two ranks that work for 2 s each, one after the other: makespan 4 s, bubble 1/2.
        """
        raise NotAttempted("3.2 Timeline.bubble")

    @property
    def peak_in_flight(self) -> tuple[int, ...]:
        """For each rank the largest number of forwards whose backward had not run yet: so many sets of activations.

        Example: forward, forward, backward, forward, backward, backward: 2.
        """
        raise NotAttempted("3.2 Timeline.peak_in_flight")


def simulate(
    schedule: Schedule, forward: float | Sequence[float], backward: float | Sequence[float], transfer: float = 0
) -> Timeline:
    """When every action of a schedule runs, if each begins as soon as it can.

    An action begins when its rank is through with the one before, and all it needs is there: what another rank made
    arrives ``transfer`` after it was made, what the same rank made is there at once. Messages cost the ranks no time of
    their own and do not hinder each other. The first action begins at 0.

    Args:
        schedule: a valid one.
        forward: time of a stage's forward, for one micro-batch: one number for all stages, or one for each.
        backward: as ``forward``, for the backward.
        transfer: time of a message between two ranks.

    Raises:
        ValueError: the schedule is not valid (the first thing `check_schedule` says), not one time per stage, or a
            time below 0.

    Example, `gpipe(2, 1)`, forward 1, backward 2, transfer 0.5: 0F0 0 to 1, 1F0 1.5 to 2.5, 1B0 2.5 to 4.5, 0B0 5 to 7.

    Hints:
        1. `run_order` gives an order in which everything that an action needs comes before it.
        2. Two dictionaries are enough: when is each rank free, when did each action end?
    """
    raise NotAttempted("3.2 simulate")


def _per_stage(cost: float | Sequence[float], schedule: Schedule) -> Sequence[float]:
    """One cost per stage. Given."""
    costs = cost if isinstance(cost, Sequence) else [cost] * schedule.stages
    if len(costs) != schedule.stages:
        raise ValueError(f"{schedule.stages} stages need as many times: got {len(costs)}")
    return costs


def draw(timeline: Timeline, title: str, unit: str = "ms") -> show.Timeline:
    """The picture of a timeline, a lane for each rank. A notebook shows it; ``save`` writes SVG or HTML. Given."""
    picture = show.Timeline(title, unit)
    for rank, spans in enumerate(timeline.spans):
        picture.add_lane(f"rank {rank}")
        for action, start, end in spans:
            category = "forward" if action.kind == "F" else "backward"
            detail = f"stage {action.stage}, micro-batch {action.micro_batch}"
            picture.add(f"rank {rank}", start, end, str(action), category, detail)
    return picture


# --- The batch, cut up ------------------------------------------------------------------------------------------------


class MicroBatch(NamedTuple):
    """A part of the batch.

    Attributes:
        inputs: of the first stage.
        targets: of the loss function, in the last stage.
        weight: of this part's mean loss in that of the whole batch; the weights of a batch add up to 1.
    """

    inputs: Tensor
    targets: Tensor
    weight: float


def valid_targets(targets: Tensor) -> int:
    """Number of targets that count: all but -100, the ``ignore_index`` of torch's cross-entropy. Given."""
    return int((targets != -100).sum())


def split_batch(
    inputs: Tensor, targets: Tensor, micro_batches: int, count: Callable[[Tensor], int] = valid_targets
) -> list[MicroBatch]:
    """Cut a batch along its first dimension into micro-batches, with the weight of each.

    The loss of a batch is the mean over all its valid targets. Micro-batches hold different numbers of them (padding,
    ignored positions, odd sizes), so the mean of their means is another number: each has to weigh as much as it has
    valid targets. That is the only factor between a micro-batch's mean loss and the batch's.

    Args:
        inputs: [B, ...].
        targets: [B, ...].
        micro_batches: m, 1 <= m <= B. Where m does not divide B, the first ones are larger by one row.
        count: how many terms the loss function averages over, given targets.

    Raises:
        ValueError: fewer rows than micro-batches, inputs and targets of different B, or no valid target at all.

    Example, 2 rows of 3 and 1 valid targets, 2 micro-batches: weights 3/4 and 1/4. With mean losses 1 and 5 the batch
    has 2.0; the mean of means would be 3.0.
    """
    raise NotAttempted("3.2 split_batch")


# --- What a rank holds ------------------------------------------------------------------------------------------------


class PipelineStage(nn.Module):
    """What one rank of a pipeline holds: its stages of the model, and the micro-batches that are in flight there.

    Give its ``parameters()`` to an optimiser. A stage's module may be anything that takes one tensor and returns one,
    also a module split over ranks by tensor parallelism or wrapped for data parallelism. If it has ``no_sync`` (as
    lesson 2.1's `DataParallel`), every backward but the stage's last one in a schedule runs inside it.

    Args:
        chunks: for each stage this rank holds, the stage's number and module.
        activation: given a micro-batch's inputs, an empty tensor like the one that travels from stage to stage: the
            shape, dtype and device to receive into. Every rank knows the inputs' shapes, so nothing has to be sent.
        group: the ranks of the pipeline, rank r of the group being rank r of the schedule.
        tied: a parameter of which the first and the last stage hold a copy each, the embedding as a rule. Both of these
            ranks name theirs. If one rank holds both stages they share one parameter, and there is nothing to do.

    Attributes:
        in_flight: for each (stage, micro-batch) whose backward is still to come, the stage's input (None where no
            gradient is wanted) and its output.
        spans: what the last `run_schedule` did here and when, by ``time.perf_counter``, in seconds; without waiting
            for messages. On a GPU these are the moments of launching.
    """

    def __init__(
        self,
        chunks: Mapping[int, nn.Module],
        activation: Callable[[Tensor], Tensor],
        group: ProcessGroup | None = None,
        tied: nn.Parameter | None = None,
    ) -> None:
        super().__init__()
        self.chunks = nn.ModuleDict({str(stage): module for stage, module in chunks.items()})
        self.activation, self.group = activation, group
        self.tied = [] if tied is None else [tied]  # in a list: a parameter of the chunks must not get a second name
        self.in_flight: dict[tuple[int, int], tuple[Tensor | None, Tensor]] = {}
        self.spans: list[Span] = []

    def forward_micro_batch(self, action: Action, x: Tensor) -> Tensor:
        """Run a stage's forward on ``x`` and keep in ``in_flight`` what its backward needs.

        Args:
            action: a forward of a stage that is held here.
            x: the batch's inputs in stage 0; else what the stage below put out, without a history: its gradient will be
                wanted.

        Returns:
            The stage's output, with its history.

        Hints:
            1. The stage below was computed on another rank: what does autograd have to do at ``x``?
        """
        raise NotAttempted("3.2 PipelineStage.forward_micro_batch")

    def backward_micro_batch(self, action: Action, gradient: Tensor | None, last: bool) -> Tensor | None:
        """Run a stage's backward, and let go of what ``in_flight`` holds for it.

        Args:
            action: a backward of a stage that is held here.
            gradient: of the stage's output; None in the last stage, whose output is the weighted loss, 0-d.
            last: whether it is the last backward of this stage in the schedule: see ``no_sync`` above.

        Returns:
            Gradient of the stage's input; None in stage 0. Parameters' gradients are added to their ``.grad``.

        Hints:
            1. ``torch.autograd.backward(output, gradient)``. In a frozen stage 0 nothing has a gradient to compute.
        """
        raise NotAttempted("3.2 PipelineStage.backward_micro_batch")

    def replace_output(self, action: Action, loss: Tensor) -> None:
        """What the last stage begins its backward from: the loss, in place of the logits. Given."""
        key = action.stage, action.micro_batch
        self.in_flight[key] = self.in_flight[key][0], loss

    @contextmanager
    def summed_tied_gradients(self, schedule: Schedule) -> Iterator[None]:
        """After the block the tied parameter has the sum of both copies' gradients, bit for bit the same on both ranks.

        What the copies had before the block (accumulated by earlier calls, and summed then) must not be summed again:
        it is set aside and added at the end. Two ranks need no all-reduce, one message each way is as many bytes.

        Hints:
            1. ``parameter.grad = None`` before the block. Keep a clone: who wrapped the module may reuse the memory.
            2. Both send, both receive: ``dist.batch_isend_irecv`` starts both at once. A copy without a gradient
               contributes zeros; its partner waits all the same.
            3. a + b and b + a are the same bits. (a + c) + b and (b + c) + a are not.
        """
        raise NotAttempted("3.2 PipelineStage.summed_tied_gradients")


# --- Messages ---------------------------------------------------------------------------------------------------------


class Message(NamedTuple):
    """What an action puts out, on its way from the rank that ran it to the rank that works on with it."""

    action: Action
    source: int
    target: int


@lru_cache(maxsize=16)
def message_order(schedule: Schedule) -> tuple[Message, ...]:
    """The messages of a schedule, in the order of `run_order`: the one order that all ranks agree on. Given.

    Raises:
        ValueError: the schedule is not valid; all that `check_schedule` says.
    """
    if problems := check_schedule(schedule):
        raise ValueError("the schedule cannot run:\n" + "\n".join(problems))
    messages = []
    for action in run_order(schedule):
        consumer = schedule.consumer(action)
        if consumer is not None:
            source, target = schedule.placement[action.stage], schedule.placement[consumer.stage]
            messages.append(Message(action, source, target))
    return tuple(message for message in messages if message.source != message.target)


class Mailbox:
    """Carries activations and gradients between this rank and the others, without ever blocking on a send.

    Why no valid schedule can deadlock here: each *pair* of ranks starts its messages in one common order, that of
    `message_order`. In it, a message that an action needs comes before the action's own; so whatever stands before it
    in the queue of the pair is either a receive, which can start at any time, or a send whose action is done. (NCCL
    runs the messages of a pair one after the other, in the order in which each side starts them, and does not look at
    tags: two ranks that start theirs crosswise wait for each other. gloo is more patient.)

    Attributes:
        queues: for each other rank the messages to and from it that are not started yet, in order.
        started: for each other rank those that are, and were not waited for: message, handle, tensor; in order.
        outbox: what this rank has put out and not started to send.
        inbox: what has arrived, or was put out by this rank for itself.
    """

    def __init__(self, stage: PipelineStage, schedule: Schedule, batch: Sequence[MicroBatch]) -> None:
        self.group, self.rank = stage.group, dist.get_rank(stage.group)
        self.new_buffer = lambda action: stage.activation(batch[action.micro_batch].inputs)
        self.schedule = schedule
        self.queues: dict[int, deque[Message]] = {}
        for number, message in enumerate(message_order(schedule)):
            if self.rank in message[1:]:
                peer = message.source + message.target - self.rank
                self.queues.setdefault(peer, deque()).append((number, message))
        self.started: dict[int, deque[tuple[Message, dist.Work, Tensor]]] = {peer: deque() for peer in self.queues}
        self.outbox: dict[Action, Tensor] = {}
        self.inbox: dict[Action, Tensor] = {}
        self.advance()

    def put(self, action: Action, tensor: Tensor) -> None:
        """Take what ``action`` has put out, for the stage that works on with it. Given."""
        consumer = self.schedule.consumer(action)
        if self.schedule.placement[consumer.stage] == self.rank:
            self.inbox[action] = tensor.detach()
            return
        like = self.new_buffer(action)
        if (tensor.shape, tensor.dtype) != (like.shape, like.dtype):
            raise ValueError(
                f"rank {self.rank}: {action} puts out {list(tensor.shape)} {tensor.dtype}, the receiver expects "
                f"{list(like.shape)} {like.dtype}: look at the stage's activation function"
            )
        self.outbox[action] = tensor.detach().contiguous()
        self.advance()

    def advance(self) -> None:
        """Start all messages that can start: with each peer those at the head of the queue, up to the first that this
        rank has to send and has not put out yet.

        Receives that start early find their data there later: communication hides behind computing.

        Hints:
            1. ``dist.isend(tensor, group=..., group_dst=..., tag=...)`` and ``dist.irecv(..., group_src=...)`` return
               a handle. Queue entries carry a number to use as the tag.
            2. The handle *and the tensor* have to live until the message is through.
        """
        raise NotAttempted("3.2 Mailbox.advance")

    def take(self, action: Action) -> Tensor:
        """What ``action`` has put out; waits until it has arrived.

        Messages with a peer are waited for in their order, up to the one wanted: what was started before it on this
        side was also started on the other. So the memory of sends is given back without a wait that could be in vain.
        """
        raise NotAttempted("3.2 Mailbox.take")

    def finish(self) -> None:
        """Wait until everything has left. Given."""
        for peer, started in self.started.items():
            while started:
                self._wait_for_next(peer)

    def _wait_for_next(self, peer: int) -> None:
        """Wait for the oldest message with ``peer`` that was started; what was received goes into the inbox. Given."""
        message, work, tensor = self.started[peer].popleft()
        with self._named(message):
            work.wait()
        if message.target == self.rank:
            self.inbox[message.action] = tensor

    @contextmanager
    def _named(self, message: Message) -> Iterator[None]:
        """Say which message it was that failed, and with whom: the other rank failed, or is too late. Given."""
        try:
            yield
        except RuntimeError as error:
            action, source, target = message
            verb, peer = ("send", target) if source == self.rank else ("receive", source)
            raise RuntimeError(
                f"rank {self.rank} of the pipeline could not {verb} {action}: rank {peer} failed or is late. {error}"
            ) from error


# --- Run it -----------------------------------------------------------------------------------------------------------

LossFunction = Callable[[Tensor, Tensor], Tensor]
"""Takes the last stage's output and the targets; returns the *mean* over the valid targets, 0-d."""


def run_schedule(
    stage: PipelineStage, schedule: Schedule, batch: Sequence[MicroBatch], loss_fn: LossFunction
) -> Tensor | None:
    """Forward and backward of a whole batch through the pipeline, in the order of a schedule: any valid one.

    Afterwards the parameters' ``.grad`` have grown by the gradients of the batch's loss, as after one ``backward`` in
    one process: several calls accumulate, and the loss is scaled by the micro-batches' weights and nothing else.

    Args:
        stage: what this rank holds.
        schedule: the same on every rank of the group.
        batch: its micro-batches, on every rank: the first stage reads the inputs, the last one the targets, the others
            only shapes. Shapes may differ between micro-batches.
        loss_fn: mean over the valid targets of a micro-batch.

    Returns:
        The batch's loss, without a history, on the rank that holds the last stage; None on the others.

    Raises:
        ValueError: an invalid schedule (with everything that is wrong), ranks, stages or micro-batches that are not
            those of the schedule: before any communication.
        RuntimeError: a message did not come or go within the group's timeout, or the rank at its other end failed.

    Hints:
        1. For each action: where does its input come from, what happens to its output? Stage 0 and the last stage are
           different, and so is one rank that holds both.
        2. The stage's spans are for the picture: time only the computing.
        3. If an error interrupts it, nothing may stay in flight for the next call.
    """
    _check_fit(stage, schedule, batch)
    raise NotAttempted("3.2 run_schedule")


def _check_fit(stage: PipelineStage, schedule: Schedule, batch: Sequence[MicroBatch]) -> None:
    """Refuse what cannot run, before any communication. Given."""
    message_order(schedule)
    rank, ranks = dist.get_rank(stage.group), dist.get_world_size(stage.group)
    if rank < 0:
        raise ValueError(f"rank {dist.get_rank()} is not in the group of this pipeline")
    if ranks != schedule.ranks:
        raise ValueError(f"the schedule is for {schedule.ranks} ranks, the group has {ranks}")
    if len(batch) != schedule.micro_batches:
        raise ValueError(f"the schedule is for {schedule.micro_batches} micro-batches: got {len(batch)}")
    wanted = [number for number, holder in enumerate(schedule.placement) if holder == rank]
    held = sorted(map(int, stage.chunks))
    if held != wanted:
        raise ValueError(f"rank {rank} holds stages {held}, the schedule places {wanted} there")


# --- A Transformer in stages ------------------------------------------------------------------------------------------


class TransformerStage(nn.Module):
    """Some consecutive layers of a `Transformer`, with its weights and their names there. Given.

    Layer 0 is the embedding, 1 to L are the blocks, L + 1 is the last norm with the head.

    Args:
        model: the whole one; its modules are taken, not copied.
        layers: which.
        positions: where T tokens stand, [T], given T; None: at 0 ... T - 1. For sequences of which a rank has a part.
    """

    def __init__(self, model: Transformer, layers: range, positions: Callable[[int], Tensor] | None = None) -> None:
        super().__init__()
        self.positions = positions or torch.arange
        last = len(model.blocks) + 1
        if 0 in layers:
            self.embedding = model.embedding
        self.blocks = nn.ModuleDict({str(layer - 1): model.blocks[layer - 1] for layer in layers if 0 < layer < last})
        if last in layers:
            self.norm, self.head = model.norm, model.head

    def forward(self, x: Tensor) -> Tensor:
        """Args: x, tokens [B, T] in the first stage, else [B, T, hidden]. Returns that, or logits [B, T, vocab]."""
        positions = self.positions(x.shape[1]).to(x.device)
        if hasattr(self, "embedding"):
            x = self.embedding(x)
        for block in self.blocks.values():
            x = block(x, positions)
        return self.head(self.norm(x)) if hasattr(self, "head") else x


def transformer_costs(config: TransformerConfig) -> list[int]:
    """FLOPs of each layer's forward, per token of a full sequence: embedding, blocks, head. Given.

    Two per weight of a matrix, and 4 * hidden * sequence for the attention scores and their use (Narayanan et al. 2021,
    appendix); looking up an embedding costs none.
    """
    kv_width = config.kv_heads * config.head_dim
    weights = config.hidden * (2 * config.hidden + 2 * kv_width + 3 * config.ffn)
    block = 2 * weights + 4 * config.hidden * config.sequence
    return [0, *[block] * config.layers, 2 * config.hidden * config.vocab]


def transformer_pipeline(
    model: Transformer,
    schedule: Schedule,
    group: ProcessGroup | None = None,
    positions: Callable[[int], Tensor] | None = None,
) -> PipelineStage:
    """This rank's stages of ``model``, its layers balanced over the schedule's stages by cost. Given.

    Args:
        model: the whole one, the same on every rank, on this rank's device. What lies on other ranks is freed when
            nobody holds ``model`` any more.
        positions: as `TransformerStage` takes them.

    Raises:
        ValueError: more stages than layers, counting the embedding and the head as one each.
    """
    config, rank = model.config, dist.get_rank(group)
    sizes = balance_stages(transformer_costs(config), schedule.stages)
    stops = list(accumulate(sizes))
    chunks = {
        number: TransformerStage(model, range(stop - size, stop), positions)
        for number, (size, stop) in enumerate(zip(sizes, stops, strict=True))
        if schedule.placement[number] == rank
    }
    weight = model.embedding.weight
    dtype, device = weight.dtype, weight.device

    def activation(tokens: Tensor) -> Tensor:
        return torch.empty(*tokens.shape, config.hidden, dtype=dtype, device=device)

    at_an_end = rank in (schedule.placement[0], schedule.placement[-1])
    return PipelineStage(chunks, activation, group, tied=weight if config.tied and at_an_end else None)
