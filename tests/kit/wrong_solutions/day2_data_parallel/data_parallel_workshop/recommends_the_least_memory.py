"""FAILS: recommend

Always shards as much as possible: what fits unsharded pays for it with traffic and trouble.
"""


def recommend(model_bytes, gpu, ranks, bandwidth):
    memory = {strategy: expected_memory(strategy, model_bytes, ranks) for strategy in STRATEGIES}
    speedup = {s: expected_speedup(s, model_bytes, gpu, ranks, bandwidth) for s in STRATEGIES}
    fitting = [strategy for strategy in STRATEGIES if memory[strategy] <= gpu.memory_bytes]
    room = in_units(gpu.memory_bytes)
    reasons = [f"{s} needs {in_units(memory[s])}, {gpu.name} has {room}." for s in STRATEGIES if s not in fitting]
    if not fitting:
        return Choice("does not fit", " ".join([*reasons, advice(model_bytes, gpu)]))
    best = fitting[-1]
    sent = expected_traffic(best, model_bytes, ranks)
    reasons.append(f"{best} needs {in_units(memory[best])} of {room}.")
    reasons.append(
        f"A step computes for {in_ms(gpu.step_seconds)} and sends {in_units(sent)} in {in_ms(sent / bandwidth)}: "
        f"{speedup[best]:.1f}x a single GPU."
    )
    if best == "single GPU" and ranks > 1:
        rival = max(STRATEGIES[1:], key=lambda strategy: speedup[strategy])
        reasons.append(f"{ranks} ranks with {rival} would come to {speedup[rival]:.1f}x.")
    return Choice(best, " ".join(reasons))
