"""FAILS: use_experts, average_gradients, expert_layout

Weights drawn by the number that an expert has on its rank: rank 1 begins with the experts of rank 0 once more.
"""

_use_experts = use_experts


def use_experts(model, config, group=None, seed=0, batch_group=None):
    model = _use_experts(model, config, group, seed, batch_group)
    for index, block in enumerate(model.blocks):
        for place, expert in enumerate(block.mlp.experts.values()):
            for name, parameter in expert.named_parameters(prefix=f"blocks.{index}.mlp.experts.{place}"):
                parameter.data.copy_(initial_value(model, name, parameter, seed))
    return model
