"""FAILS: torchtitan_config, megatron_arguments, nemo_recipe

Sharding and replicating swapped for TorchTitan; for Megatron-LM the mean of micro-batches' means; for NeMo the recipe's
own interleaving left on.
"""

_torchtitan_config, _megatron_arguments, _nemo_recipe = torchtitan_config, megatron_arguments, nemo_recipe


def torchtitan_config(plan):
    config = _torchtitan_config(plan)
    ways = config["parallelism"]
    first, second = "data_parallel_replicate_degree", "data_parallel_shard_degree"
    ways[first], ways[second] = ways[second], ways[first]
    return config


def megatron_arguments(plan):
    return [word for word in _megatron_arguments(plan) if word != "--calculate-per-token-loss"]


def nemo_recipe(plan, gpus_per_node=8):
    recipe = _nemo_recipe(plan, gpus_per_node)
    del recipe["trainer.strategy.virtual_pipeline_model_parallel_size"]
    return recipe
