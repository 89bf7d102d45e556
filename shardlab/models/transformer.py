"""A Llama-style decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

One idea per class and the names of the papers, so that a lesson that splits the model can point at a line.
No module holds a buffer: a model made on the meta device needs nothing but its parameters filled.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shardlab.models.config import TransformerConfig

INITIAL_STD = 0.02  # of every weight matrix, as GPT-2 and Llama have it


def rotary_embedding(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Turn each pair of features (i, i + head_dim/2) of x by position * theta^(-2i / head_dim).

    Angles are computed in float32 whatever the dtype of x: at position 4,000 bfloat16 cannot tell neighbours apart.
    Source: RoFormer, arXiv 2104.09864, section 3.2.2, with the halves paired as in the Llama checkpoints.

    Args:
        x: [B, T, heads, head_dim], head_dim even.
        positions: [T], or [B, T] where sequences differ, integers.
        theta: base of the frequencies.

    Returns:
        Tensor like x.
    """
    half = x.shape[-1] // 2
    exponents = torch.arange(half, dtype=torch.float32, device=x.device) / half
    angles = positions.to(torch.float32).unsqueeze(-1) * theta**-exponents  # [(B,) T, half]
    cos, sin = angles.cos().unsqueeze(-2), angles.sin().unsqueeze(-2)  # one angle for all heads
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Args: query, key, value [B, heads, T, head_dim]. Returns the same shape: each position mixes those up to it."""
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


class Attention(nn.Module):
    """Causal grouped-query attention; the heads per rank are read off the projections, so they may be sharded.

    Attributes:
        mix: `causal_attention`, or what a lesson puts in its place: a function of the same three tensors.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.rope_theta = config.rope_theta
        self.mix = causal_attention
        kv_width = config.kv_heads * config.head_dim
        self.query = nn.Linear(config.hidden, config.hidden, bias=False)
        self.key = nn.Linear(config.hidden, kv_width, bias=False)
        self.value = nn.Linear(config.hidden, kv_width, bias=False)
        self.output = nn.Linear(config.hidden, config.hidden, bias=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Args: x [B, T, hidden], positions [T] or [B, T]. Returns [B, T, hidden]."""
        query, key, value = (
            projection(x).unflatten(-1, (-1, self.head_dim)) for projection in (self.query, self.key, self.value)
        )  # [B, T, heads, head_dim] and [B, T, kv_heads, head_dim]
        query = rotary_embedding(query, positions, self.rope_theta)
        key = rotary_embedding(key, positions, self.rope_theta)
        queries_per_kv_head = query.shape[2] // key.shape[2]
        key = key.repeat_interleave(queries_per_kv_head, dim=2)
        value = value.repeat_interleave(queries_per_kv_head, dim=2)
        mixed = self.mix(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
        return self.output(mixed.transpose(1, 2).flatten(-2))


class FeedForward(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x)). Source: arXiv 2002.05202."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.hidden, config.ffn, bias=False)
        self.up = nn.Linear(config.hidden, config.ffn, bias=False)
        self.down = nn.Linear(config.ffn, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Args: x [B, T, hidden]. Returns the same shape."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)).

    It takes positions, not ready-made cosines: mixed-precision policies cast floating inputs and leave integers alone.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.hidden, eps=1e-5)
        self.attention = Attention(config)
        self.mlp_norm = nn.RMSNorm(config.hidden, eps=1e-5)
        self.mlp = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Args: x [B, T, hidden], positions [T] or [B, T]. Returns [B, T, hidden]."""
        x = x + self.dropout(self.attention(self.attention_norm(x), positions))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class Transformer(nn.Module):
    """Embedding, blocks, norm, head. `Transformer(config)` has torch's default weights; `build` gives the course's.

    Example:
        >>> config = TransformerConfig(vocab=10, hidden=8, layers=1, heads=2, kv_heads=1, ffn=16, sequence=4)
        >>> Transformer(config)(torch.zeros(3, 4, dtype=torch.int64)).shape
        torch.Size([3, 4, 10])
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab, config.hidden)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.hidden, eps=1e-5)
        self.head = nn.Linear(config.hidden, config.vocab, bias=False)
        self.tie_weights()

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Logits of the next token at every position.

        Args:
            tokens: [B, T] int64, T <= config.sequence.
            positions: [T] or [B, T] int64, for the rotary embedding; None: 0 .. T-1. A rank that holds a part of the
                sequence gives the positions of that part.

        Returns:
            [B, T, vocab].

        Raises:
            ValueError: tokens of another rank of tensor, or longer than config.sequence.
        """
        if tokens.dim() != 2:
            raise ValueError(f"tokens must be [batch, sequence], got a tensor of shape {list(tokens.shape)}")
        if tokens.shape[1] > self.config.sequence:
            raise ValueError(f"{tokens.shape[1]} tokens are more than the model's sequence of {self.config.sequence}")
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, positions)
        return self.head(self.norm(x))

    def tie_weights(self) -> None:
        """Make the head share the embedding's weight where the config says so; again after `to_empty`, which unties."""
        if self.config.tied:
            self.head.weight = self.embedding.weight

    def initial_std(self, name: str, shape: torch.Size) -> float:
        """Standard deviation to draw the weight `name` with: 0.02, less for those that add to the residual stream.

        2 * layers branches add up, so each starts 1/sqrt(2 * layers) as large (GPT-2 report, section 2.3). The ``down``
        of a feed-forward network inside another module, as an expert is, adds to it too.
        """
        adds_to_residual = name.endswith(("attention.output.weight", ".down.weight"))
        return INITIAL_STD / math.sqrt(2 * self.config.layers) if adds_to_residual else INITIAL_STD
