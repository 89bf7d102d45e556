"""FAILS: DataParallel, DataParallel.no_sync, DataParallel.join

Not divided by the number of ranks: the learning rate grows with every rank that is added, and nobody said so.
"""


class Bucket(Bucket):
    def collect(self, parameter, scale):
        super().collect(parameter, 1.0)
