"""FAILS: scaling_table

Divides by the number of ranks, although the smallest measured was not one: 2 ranks come out half as efficient as they
are.
"""


def scaling_table(measurements):
    rows = sorted(measurements, key=lambda each: each.ranks)
    if not rows or len({each.ranks for each in rows}) < len(rows):
        raise ValueError("need one measurement or more, each at another number of ranks")
    first = rows[0]
    strong = all(each.tokens == first.tokens for each in rows)
    if not strong and any(each.tokens * first.ranks != first.tokens * each.ranks for each in rows):
        raise ValueError("neither strong nor weak")
    kind = "strong" if strong else "weak"
    speedups = [each.tokens_per_second / first.tokens_per_second for each in rows]
    return [
        ScalingRow(kind, each.ranks, each.tokens_per_second, speedup, speedup / each.ranks)
        for each, speedup in zip(rows, speedups, strict=True)
    ]
