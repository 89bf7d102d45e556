"""FAILS: ExpertParallelMoE

An expert without a token does not run, so it has no gradient, where its replicas wait for one.
"""


class ExpertParallelMoE(ExpertParallelMoE):
    def run_experts(self, rows, counts):
        parts = rows.split(counts.flatten().tolist())
        answers = []
        for j, expert in enumerate(self.experts.values()):
            own = torch.cat(parts[j :: len(self.experts)])
            answers.append((expert(own) if len(own) else own).split(counts[:, j].tolist()))
        return torch.cat([part for of_rank in zip(*answers, strict=True) for part in of_rank])
