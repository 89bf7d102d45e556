"""FAILS: minimum_gpus

16 bytes per parameter divided by the memory of a GPU: not a byte is left for activations.
"""


def minimum_gpus(config, recipe, gpu):
    per_parameter = recipe.parameter_bytes + recipe.gradient_bytes + recipe.optimizer_bytes
    return share(per_parameter * count_parameters(config), budget_bytes(gpu))
