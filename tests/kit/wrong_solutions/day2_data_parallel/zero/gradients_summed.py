"""FAILS: ZeroOptimizer, ZeroThree, Bucket.collect, ShardedOptimizer.clip_grad_norm, ShardedOptimizer.load_state_dict

The sum over the ranks in place of the average: a learning rate that grows with every rank that is added.
"""


class Bucket(Bucket):
    def collect(self, parameter):
        if parameter.grad is not None:
            parameter.grad.mul_(self.ranks)
        super().collect(parameter)
