"""FAILS: ZeroOptimizer

Stage 1 that reduces during backward: right, and accumulation over k micro-batches sends k times as much as it has to.
"""


class ZeroOptimizer(ZeroOptimizer):
    def __init__(self, params, optimizer_class, stage, group=None, offload=None, bucket_mb=25.0, **defaults):
        super().__init__(params, optimizer_class, 2 if stage == 1 else stage, group, offload, bucket_mb, **defaults)
