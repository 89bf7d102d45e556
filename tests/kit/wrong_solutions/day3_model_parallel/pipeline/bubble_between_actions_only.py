"""FAILS: Timeline.bubble

Counts the gaps between a rank's own actions; waiting for the first and after the last is idle time too.
"""


class Timeline(Timeline):
    @property
    def bubble(self):
        rests = ((own[k + 1].start - own[k].end) for own in self.spans for k in range(len(own) - 1))
        return sum(rests) / (len(self.spans) * self.makespan)
