"""FAILS: Bucket.collect

A parameter that no rank used gets a gradient of zeros: weight decay and momentum move it, which in one process
they would not.
"""


class Bucket(Bucket):
    def collect(self, parameter, scale):
        super().collect(parameter, scale)
        self.views[parameter].add_(0.0)
