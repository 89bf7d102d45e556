"""FAILS: TopKRouter, ExpertParallelMoE

In the type of the tokens, and under autocast in whatever that makes of it. Logits are off by up to 0.4 %.
"""


class TopKRouter(TopKRouter):
    def forward(self, tokens):
        logits = F.linear(tokens, self.weight.to(tokens.dtype))
        probabilities = logits.float().softmax(-1)
        chosen, experts = logits.float().topk(self.config.top_k)
        gates = chosen.softmax(-1) if self.config.softmax == "after" else probabilities.gather(-1, experts)
        return Routing(experts, gates, probabilities, logits.float())
