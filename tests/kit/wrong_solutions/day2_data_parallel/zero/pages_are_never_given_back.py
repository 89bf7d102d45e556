"""FAILS: StateFile.keep

Mapped, so the states are in a file, and after the first step all of them are in memory again: nobody told the system
that the pages are not needed.
"""

_real_mmap = mmap


class _Clinging(_real_mmap.mmap):
    def madvise(self, *_):
        pass


class mmap:
    ALLOCATIONGRANULARITY, MADV_DONTNEED = _real_mmap.ALLOCATIONGRANULARITY, _real_mmap.MADV_DONTNEED
    mmap = _Clinging
