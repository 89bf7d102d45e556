"""FAILS: Bucket.collect

A parameter that no rank used gets a gradient of zeros, and AdamW decays it: one process would not.
"""


class Bucket(Bucket):
    def collect(self, parameter):
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        super().collect(parameter)
