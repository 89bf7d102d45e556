"""FAILS: average_gradients, expert_layout

Averaged over those that hold the expert, as data parallelism does: but each of them has the sum over a whole expert group already.
"""

_average_gradients = average_gradients


def average_gradients(model, batch_group, replicas):
    _average_gradients(model, batch_group, replicas)
    holders = 1 if replicas is None else position(replicas)[1]
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and is_expert(name):
            parameter.grad *= position(batch_group)[1] / holders
