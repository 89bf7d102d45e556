"""FAILS: expand_nodelist

Commas inside brackets separate numbers, not names.
"""


def expand_nodelist(nodelist):
    if not nodelist or nodelist.count("[") != nodelist.count("]") or re.search(r"\[[a-z]", nodelist):
        raise ValueError(nodelist)
    hosts = []
    for name in nodelist.split(","):
        stem, _, ranges = name.partition("[")
        hosts += [stem + number for number in numbers(ranges.strip("]"))] if ranges else [stem]
    return hosts
