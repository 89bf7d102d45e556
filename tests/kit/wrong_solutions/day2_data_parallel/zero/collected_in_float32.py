"""FAILS: Bucket.collect

What was collected is float32, whatever the parameters are.
"""


def _collect(self, parameter):
    if self._collected is None:
        self._collected = torch.zeros(self.full.shape, device=self.full.device)
    place = self._collected[self.places[parameter]].view(self.views[parameter].shape)
    if parameter.grad is None:
        place.fill_(-0.0)
    else:
        torch.add(place.new_zeros(()), parameter.grad, alpha=1 / self.ranks, out=place)
        self.used.add(parameter)
        parameter.grad = None
    self.missing.discard(parameter)


Bucket.collect = _collect
