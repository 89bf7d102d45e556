"""FAILS: Load

The busiest expert over the idlest one, where it should be over the mean; and drops per claim that was kept.
"""


@dataclass(frozen=True)
class Load(Load):
    @property
    def drop_rate(self):
        return (self.asked - self.kept).sum().item() / max(self.kept.sum().item(), 1)

    @property
    def imbalance(self):
        return self.asked.max().item() / max(self.asked.min().item(), 1)
