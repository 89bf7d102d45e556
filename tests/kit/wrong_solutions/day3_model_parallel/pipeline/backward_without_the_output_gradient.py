"""FAILS: PipelineStage.backward_micro_batch, run_schedule

Takes the sum of the output as if it were a loss: right shapes, a gradient of ones where the stage above sent another.
"""


class PipelineStage(PipelineStage):
    def backward_micro_batch(self, action, gradient, last):
        ones = None if gradient is None else torch.ones_like(gradient)
        return super().backward_micro_batch(action, ones, last)
