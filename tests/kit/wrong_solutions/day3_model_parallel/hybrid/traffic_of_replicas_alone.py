"""FAILS: plan_traffic, plan_seconds, search

Takes the gradients over dp alone, where cp ranks average them too; and a pipeline without a bubble.
"""

_plan_traffic, _plan_seconds = plan_traffic, plan_seconds


def plan_traffic(plan):
    layout = plan.layout
    per_rank = _plan_traffic(replace(plan, layout=replace(layout, cp=1, dp=layout.dp * 2)))["data"]
    alone = per_rank / (1 - 1 / (2 * layout.dp)) * (1 - 1 / layout.dp)
    return {**_plan_traffic(plan), "data": alone}


def plan_seconds(plan, cluster, traffic_seconds):
    m, p = plan.micro_batches, plan.layout.pp
    whole = _plan_seconds(plan, cluster, {**traffic_seconds, "data": 0})
    return whole * m / (m + p - 1) + _plan_seconds(plan, cluster, traffic_seconds) - whole
