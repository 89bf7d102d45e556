"""FAILS: stage_memory, why_not, search

Counts model states alone: the plan fits until the first forward.
"""

_stage_memory = stage_memory


def stage_memory(plan, stage):
    return replace(_stage_memory(plan, stage), activations=0)
