"""FAILS: TopKRouter, ExpertParallelMoE

Gates sum to 1 whatever the config says: softmax before and after top-k would be one and the same.
"""


class TopKRouter(TopKRouter):
    def forward(self, tokens):
        experts, gates, probabilities, logits = super().forward(tokens)
        return Routing(experts, gates / gates.sum(-1, keepdim=True), probabilities, logits)
