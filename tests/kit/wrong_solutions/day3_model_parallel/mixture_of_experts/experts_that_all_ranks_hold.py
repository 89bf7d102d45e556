"""FAILS: ExpertParallelMoE, use_experts, average_gradients, expert_layout

Every rank has all experts and sends nothing: outputs are right, no memory is saved, and an expert learns from a rank's own tokens alone.
"""


class ExpertParallelMoE(ExpertParallelMoE):
    def __init__(self, config, group=None, batch_group=None):
        super().__init__(config, group, batch_group)
        self.experts = nn.ModuleDict({str(expert): FeedForward(config) for expert in range(config.experts)})

    def forward(self, x):
        tokens = x.reshape(-1, self.config.hidden)
        routing = self.router(tokens)
        claims = gather_claims(routing.experts, self.config.experts, self.batch_group)
        capacity = self.config.capacity(int(claims.sum()))
        kept, ahead = share_capacity(claims, capacity)
        ahead = ahead[self.members[self.rank]]
        rows, slots, counts = dispatch(tokens, routing.experts, capacity, self.config.experts, ahead)
        y = combine(self.run_experts(rows, counts.view(1, -1)), slots, routing.gates)
        if self.shared is not None:
            y = y + self.shared(tokens)
        self.auxiliary = self.losses_of(routing)
        self.load = Load(claims.sum((0, 1)), kept.sum((0, 1)))
        return y.view(x.shape)
