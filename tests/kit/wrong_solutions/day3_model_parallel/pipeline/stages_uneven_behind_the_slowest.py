"""FAILS: balance_stages

The slowest stage is right. The others are cut as it comes: the first stages are full, and hold the most activations.
"""


def balance_stages(costs, stages):
    if not 1 <= stages <= len(costs) or not all(cost >= 0 for cost in costs):
        raise ValueError("no such cut")
    sums = {sum(costs[a:b]) for a in range(len(costs)) for b in range(a + 1, len(costs) + 1)}
    return next(sizes for sizes in (fill(costs, stages, limit) for limit in sorted(sums)) if sizes)


def fill(costs, stages, limit):
    sizes, start = [], 0
    for left in range(stages - 1, -1, -1):
        stop = start + 1
        while stop < len(costs) - left and sum(costs[start : stop + 1]) <= limit:
            stop += 1
        if sum(costs[start:stop]) > limit:
            return None
        sizes.append(stop - start)
        start = stop
    return sizes if start == len(costs) else None
