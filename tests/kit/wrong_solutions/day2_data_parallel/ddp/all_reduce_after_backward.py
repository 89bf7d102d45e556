"""FAILS: DataParallel

Right gradients, right buckets, and all of them leave together when backward has nothing left to overlap with.
"""


class DataParallel(DataParallel):
    def _launch_complete_buckets(self):
        if not any(bucket.missing for bucket in self._buckets):
            super()._launch_complete_buckets()
