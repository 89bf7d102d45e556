"""FAILS: observe_step, measure_strategy

Observes the first step: states are not there yet at its fullest moment, and what warms up is counted.
"""


def observe_step(build, batch):
    with PeakMemory() as memory:
        step = build()
        memory.reset_peak()
        with Traffic() as traffic:
            losses = [step(batch).item()]
    return step, Observation(losses, memory.peak_bytes, traffic.sent_bytes())
