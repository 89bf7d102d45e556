"""What happened: calls and bytes (`Traffic`), live tensors (`PeakMemory`), time (`StepClock`), arithmetic (`flops`).

Everything here is exact and repeats to the byte: it counts what the program did, never what a clock or the operating
system says, except for `StepClock`. Works the same for hand-written code, DDP, FSDP2, DTensor and hooks.
"""

from shardlab.observe.calls import Call
from shardlab.observe.clock import StepClock
from shardlab.observe.flops import flops, mfu
from shardlab.observe.hang_watch import HangWatch
from shardlab.observe.link import free_messages, modelled_link
from shardlab.observe.memory import PeakMemory
from shardlab.observe.standard import all_reduce_bytes
from shardlab.observe.traffic import Mark, Traffic

__all__ = [
    "Call",
    "HangWatch",
    "Mark",
    "PeakMemory",
    "StepClock",
    "Traffic",
    "all_reduce_bytes",
    "flops",
    "free_messages",
    "mfu",
    "modelled_link",
]
