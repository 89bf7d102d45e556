"""FAILS: PipelineStage.summed_tied_gradients, run_schedule

The mean of both copies' gradients, by habit from data parallelism. One parameter used twice gets the sum.
"""


class PipelineStage(PipelineStage):
    @contextmanager
    def summed_tied_gradients(self, schedule):
        with super().summed_tied_gradients(schedule):
            yield
        if schedule.placement[0] != schedule.placement[-1]:
            for copy in self.tied:
                copy.grad /= 2
