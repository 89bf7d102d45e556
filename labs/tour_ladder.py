"""The ladder of lesson 1.2 in short, for `make tour`: one process, the same losses, ever less time and memory.

Given code. `run_single_gpu.py` climbs all of it, on a larger model.
"""

from collections.abc import Iterator

from labs.day1_one_gpu_to_many import ladder_single_gpu as ladder
from shardlab.ranks import device
from shardlab.tour import Rung

SIZE = ladder.Size(sequence=1024, hidden=128, layers=1, heads=8, batch=1, steps=3, chunk=256)
SHOWN = {
    "start": "Attention as the formula has it: the scores of every position against every other are written to memory, "
    "T times T of them per head.",
    "SDPA": "torch's own attention, one call that never writes the scores down. Their number grows with the square of "
    "the sequence length: the longer, the more this saves.",
    "flash_attention": "The same idea from scratch: scores in tiles that are used and forgotten. What is kept for "
    "backward grows with the length, no longer with its square.",
    "chunked_cross_entropy": "The loss takes some tokens at a time, so the logits of all tokens by all words never "
    "exist.",
    "bfloat16": "Matrix products in 16 bits. Where the processor has units for it, they run several times as fast.",
    "checkpoint": "Keep only what goes into a block and compute the rest again in backward: memory for time.",
}


def climb() -> Iterator[Rung]:
    """Train with each of the rungs shown, on top of the fastest so far."""
    shown = [rung for rung in ladder.all_rungs(SIZE) if rung.name in SHOWN]
    for result in ladder.climb(SIZE, device(), shown):
        if result.skipped:
            yield Rung(result.name, SHOWN[result.name], result.skipped)
        else:
            numbers = (result.seconds, result.peak_bytes, result.losses[-1], result.is_right)
            yield Rung(result.name, SHOWN[result.name], "", *numbers)
