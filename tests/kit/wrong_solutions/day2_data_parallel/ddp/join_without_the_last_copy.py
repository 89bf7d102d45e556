"""FAILS: DataParallel.join

A rank that runs out of data shadows the others and keeps the weights it left with.
"""


class DataParallel(DataParallel):
    @contextmanager
    def join(self):
        self._joining = True
        yield
        while self._announce(active=False):
            self._shadow_backward()
        self._joining, self._source = False, 0
