"""FAILS: PipelineStage.summed_tied_gradients, run_schedule

Each copy of the embedding learns from its own end of the model: after the first step there are two embeddings.
"""


class PipelineStage(PipelineStage):
    @contextmanager
    def summed_tied_gradients(self, schedule):
        yield
