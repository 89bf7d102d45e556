"""FAILS: HybridTrainer.step

Takes ``zero=1`` and shards nothing: right numbers, all states on every rank.
"""


class HybridTrainer(HybridTrainer):
    def __init__(self, layout, config, *, zero=0, **options):
        super().__init__(layout, config, zero=0, **options)
