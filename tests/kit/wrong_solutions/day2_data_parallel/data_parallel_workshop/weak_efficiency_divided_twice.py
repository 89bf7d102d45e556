"""FAILS: scaling_table

For weak scaling divides by the growth of the batch once more, which tokens/s contain already.
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
    growths = [first.tokens / each.tokens for each in rows]
    return [
        ScalingRow(
            kind,
            each.ranks,
            each.tokens_per_second,
            speedup,
            speedup * first.ranks / each.ranks * growth,
        )
        for each, speedup, growth in zip(rows, speedups, growths, strict=True)
    ]
