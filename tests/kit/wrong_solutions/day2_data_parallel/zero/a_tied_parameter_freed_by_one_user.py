"""FAILS: ZeroThree

Whoever is through with a layer frees it, whoever else still needs it: a layer that is recomputed in backward frees what
its own backward is about to read.
"""


class ZeroThree(ZeroThree):
    def _release(self, unit, phase):
        for bucket in unit.buckets:
            bucket.free()
