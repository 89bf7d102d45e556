"""The small real models that lessons split.

A Llama-style `Transformer` for text and a `DigitsNet` for 28x28 images. `build(config, seed)` gives the same
weights in every process, on any number of ranks; `initialise` gives them to a model made on the meta device,
sharded or not. Projections are separate linear layers, so that tensor parallelism and `fully_shard` can take them.
"""

from shardlab.models.build import build, initialise
from shardlab.models.config import TransformerConfig
from shardlab.models.digits import DigitsConfig, DigitsNet
from shardlab.models.loss import next_token_loss
from shardlab.models.transformer import Attention, Block, FeedForward, Transformer, rotary_embedding

__all__ = [
    "Attention",
    "Block",
    "DigitsConfig",
    "DigitsNet",
    "FeedForward",
    "Transformer",
    "TransformerConfig",
    "build",
    "initialise",
    "next_token_loss",
    "rotary_embedding",
]
