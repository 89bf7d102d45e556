"""FAILS: TopKRouter, ExpertParallelMoE, average_gradients, expert_layout

Gates from numbers outside autograd: outputs are right, and no gradient tells the router which expert was good.
"""


class TopKRouter(TopKRouter):
    def forward(self, tokens):
        experts, gates, probabilities, logits = super().forward(tokens)
        return Routing(experts, gates.detach(), probabilities, logits)
