"""FAILS: warmup_cosine

``step / warmup_steps``, the form in many code bases: the first update has learning rate 0 and wastes a batch.
"""

_right_warmup_cosine = warmup_cosine


def warmup_cosine(step, peak, warmup_steps, total_steps, floor=0.0):
    rate = _right_warmup_cosine(step, peak, warmup_steps, total_steps, floor)
    return peak * step / warmup_steps if step < warmup_steps else rate
