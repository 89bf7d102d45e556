"""FAILS: balance_stages

As many layers for each stage, whatever they cost: the stage with the head is the slowest by far.
"""


def balance_stages(costs, stages):
    if not 1 <= stages <= len(costs) or not all(cost >= 0 for cost in costs):
        raise ValueError("no such cut")
    return [len(part) for part in torch.arange(len(costs)).tensor_split(stages)]
