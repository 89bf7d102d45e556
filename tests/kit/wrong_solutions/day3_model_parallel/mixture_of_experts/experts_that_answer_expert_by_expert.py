"""FAILS: ExpertParallelMoE, average_gradients, expert_layout

Answers go back in the order in which the experts computed them, and not in that in which the rows came.
"""


class ExpertParallelMoE(ExpertParallelMoE):
    def run_experts(self, rows, counts):
        parts = rows.split(counts.flatten().tolist())
        own = [torch.cat(parts[j :: len(self.experts)]) for j in range(len(self.experts))]
        return torch.cat([expert(part) for expert, part in zip(self.experts.values(), own, strict=True)])
