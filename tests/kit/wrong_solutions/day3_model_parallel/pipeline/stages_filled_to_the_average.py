"""FAILS: balance_stages

Fills each stage up to the average cost and leaves the rest to the last one.
"""


def balance_stages(costs, stages):
    if not 1 <= stages <= len(costs) or not all(cost >= 0 for cost in costs):
        raise ValueError("no such cut")
    sizes, start, average = [], 0, sum(costs) / stages
    for left in range(stages - 1, 0, -1):
        stop = start + 1
        while stop < len(costs) - left and sum(costs[start : stop + 1]) <= average:
            stop += 1
        sizes.append(stop - start)
        start = stop
    return [*sizes, len(costs) - start]
