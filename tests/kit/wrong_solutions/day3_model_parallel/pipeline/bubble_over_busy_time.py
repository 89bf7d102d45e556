"""FAILS: Timeline.bubble

Idle time over busy time, which is (p - 1) / m: the ratio that the Megatron-LM paper gives, and no share of the whole.
"""


class Timeline(Timeline):
    @property
    def bubble(self):
        busy = sum(span.end - span.start for span in chain(*self.spans))
        return (len(self.spans) * self.makespan - busy) / busy
