"""FAILS: Timeline.peak_in_flight

Counts all forwards of a rank: no backward gives anything back.
"""


class Timeline(Timeline):
    @property
    def peak_in_flight(self):
        return tuple(sum(span.action.kind == "F" for span in own) for own in self.spans)
