"""FAILS: ParallelLayout.groups, ParallelLayout.make_groups, HybridTrainer.sort_parameters, HybridTrainer.settle_gradients

Deals the data group out to "ep" in strides and keeps runs for "expert_data": the other way round.
"""


class ParallelLayout(ParallelLayout):
    def groups(self, name):
        return super().groups({"ep": "expert_data", "expert_data": "ep"}.get(name, name))
