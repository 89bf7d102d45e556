"""FAILS: DataParallel.no_sync

What torch does: where forward runs decides. A forward inside and its backward outside leave
6.0 and 7.0 on the ranks where both should have 6.5.
"""


class DataParallel(DataParallel):
    _decided = True

    def forward(self, *args, **kwargs):
        self._decided = self._synchronise
        return super().forward(*args, **kwargs)

    def _gradient_ready(self, bucket, parameter):
        now, self._synchronise = self._synchronise, self._decided
        super()._gradient_ready(bucket, parameter)
        self._synchronise = now
