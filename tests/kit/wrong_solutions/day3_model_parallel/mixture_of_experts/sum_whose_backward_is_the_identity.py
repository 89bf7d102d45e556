"""FAILS: SumOverRanks, load_balancing_loss, router_z_loss, ExpertParallelMoE, average_gradients, expert_layout

As in tensor parallelism, where all ranks compute one loss. Here each has its own: the gradient is N times too small.
"""


class SumOverRanks(SumOverRanks):
    @staticmethod
    def backward(ctx, gradient):
        return gradient.clone(), None
