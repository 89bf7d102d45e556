"""FAILS: simulate

What a rank made itself takes as long to reach it as what came over the network.
"""


def simulate(schedule, forward, backward, transfer=0):
    if problems := check_schedule(schedule):
        raise ValueError(problems[0])
    costs = {"F": _per_stage(forward, schedule), "B": _per_stage(backward, schedule)}
    if min(transfer, *costs["F"], *costs["B"]) < 0:
        raise ValueError("negative")
    spans, ends = [[] for _ in schedule.actions], {}
    for action in run_order(schedule):
        rank = schedule.placement[action.stage]
        free = spans[rank][-1].end if spans[rank] else 0
        there = [ends[need] + transfer for need in schedule.needs(action)]
        start = max([free, *there])
        ends[action] = start + costs[action.kind][action.stage]
        spans[rank].append(Span(action, start, ends[action]))
    return Timeline(tuple(map(tuple, spans)))
