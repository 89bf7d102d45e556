"""FAILS: search

Ranks by time and looks at memory only to explain: the fastest plan is one that cannot run.
"""

_search = search


def search(config, cluster, batch=512):
    found = _search(config, cluster, batch)
    more = []
    for plan, reason in found.rejected:
        if "GiB" in reason:
            placement = place_on_topology(plan.layout, cluster, plan_traffic(plan), [DIMENSIONS])
            more.append(Estimate(plan, plan_memory(plan), placement, plan_seconds(plan, cluster, placement.seconds)))
    return Search(sorted([*found.plans, *more], key=lambda each: each.seconds), found.rejected)
