"""FAILS: scaling_table

Takes the first measurement in the list for the smallest.
"""


def scaling_table(measurements):
    rows = list(measurements)
    if not rows or len({each.ranks for each in rows}) < len(rows):
        raise ValueError("need one measurement or more, each at another number of ranks")
    first = rows[0]
    strong = all(each.tokens == first.tokens for each in rows)
    if not strong and any(each.tokens * first.ranks != first.tokens * each.ranks for each in rows):
        raise ValueError("neither strong nor weak")
    return [
        ScalingRow(
            "strong" if strong else "weak",
            each.ranks,
            each.tokens_per_second,
            each.tokens_per_second / first.tokens_per_second,
            each.tokens_per_second / first.tokens_per_second * first.ranks / each.ranks,
        )
        for each in rows
    ]
