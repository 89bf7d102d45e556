"""The same weights everywhere: on any number of ranks, whole or sharded, whatever was drawn before."""

import zlib

import torch
from torch import Tensor, nn

from shardlab.models.config import TransformerConfig
from shardlab.models.digits import DigitsConfig, DigitsNet
from shardlab.models.transformer import Transformer

MODEL_OF_CONFIG = {TransformerConfig: Transformer, DigitsConfig: DigitsNet}


def build(config: TransformerConfig | DigitsConfig, seed: int = 0) -> nn.Module:
    """Make the model of this config on the CPU, with weights that depend on config and seed alone.

    The global random state is neither read nor moved, and the default device is ignored: every rank that calls
    this holds bit-equal weights, without a broadcast.

    Raises:
        ValueError: no model belongs to this type of config.
    """
    if type(config) not in MODEL_OF_CONFIG:
        known = ", ".join(kind.__name__ for kind in MODEL_OF_CONFIG)
        raise ValueError(f"no model for a {type(config).__name__}; build takes one of: {known}")
    with torch.device("meta"):  # no memory, no random numbers
        model = MODEL_OF_CONFIG[type(config)](config)
    return initialise(model.to_empty(device="cpu"), seed)


@torch.no_grad()
def initialise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Fill the parameters of a course model in place; returns it.

    Each parameter is drawn on the CPU from a generator of its own, seeded by `seed` and its name. A rank that holds
    only some layers, or a shard of each (DTensor), so gets the same numbers as one that holds all of them, with one
    whole parameter in memory at a time and nothing communicated.

    Args:
        model: made by `Transformer(config)` or `DigitsNet(config)`, its parameters allocated (after `to_empty`).
    """
    if isinstance(model, Transformer):
        model.tie_weights()
    for name, parameter in model.named_parameters():
        full = initial_value(model, name, parameter, seed)
        parameter.copy_(shard_like(parameter, full) if hasattr(parameter, "device_mesh") else full)
    return model


def shard_like(parameter: nn.Parameter, full: Tensor) -> Tensor:
    """The DTensor that holds `full` as the DTensor `parameter` is laid out, cut out locally."""
    from torch.distributed.tensor import distribute_tensor  # takes 0.7 s, which unsharded models need not pay

    full = full.to(parameter.device)
    return distribute_tensor(full, parameter.device_mesh, parameter.placements, src_data_rank=None)


def initial_value(model: nn.Module, name: str, parameter: nn.Parameter, seed: int) -> Tensor:
    """The whole value of one parameter: ones for a norm, zeros for a bias, normal with the model's std otherwise."""
    like = {"size": parameter.shape, "dtype": parameter.dtype, "device": "cpu"}
    if parameter.dim() == 1:
        return torch.zeros(**like) if name.endswith("bias") else torch.ones(**like)
    own_seed = zlib.crc32(f"{seed} {name}".encode())  # 32 bits: the CPU generator ignores any bit above
    generator = torch.Generator().manual_seed(own_seed)
    return torch.empty(**like).normal_(std=model.initial_std(name, parameter.shape), generator=generator)
