"""The shape of a Transformer, checked when it is written down."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TransformerConfig:
    """Shape of a Llama-style decoder (Touvron et al., arXiv 2302.13971; grouped queries as in arXiv 2305.13245).

    Args:
        vocab: number of token ids.
        hidden: width of the residual stream. Divisible by `heads`, with an even quotient (RoPE turns pairs).
        layers: number of blocks.
        heads: number of query heads.
        kv_heads: number of key and value heads; divides `heads`. Equal: multi-head; 1: multi-query attention.
        ffn: inner width of the SwiGLU feed-forward network.
        sequence: longest sequence, in tokens.
        rope_theta: base of the rotary frequencies.
        tied: the output head shares the embedding's weight.
        dropout: probability of dropping an element of each residual branch while training, 0 <= p < 1.

    Raises:
        ValueError: a field that cannot be; the message says which, its value and what is allowed.
    """

    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    sequence: int
    rope_theta: float = 10000.0
    tied: bool = True
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("vocab", "hidden", "layers", "heads", "kv_heads", "ffn", "sequence"):
            require_positive_int(name, getattr(self, name))
        if self.hidden % self.heads:
            raise ValueError(f"hidden must be divisible by heads: got hidden={self.hidden}, heads={self.heads}")
        if self.head_dim % 2:
            raise ValueError(
                f"hidden / heads must be even, because RoPE rotates pairs: "
                f"got {self.hidden} / {self.heads} = {self.head_dim}"
            )
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads must divide heads: got kv_heads={self.kv_heads}, heads={self.heads}")
        if not 0 < self.rope_theta < float("inf"):
            raise ValueError(f"rope_theta must be a positive number, got {self.rope_theta}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.hidden // self.heads

    @property
    def parameters(self) -> int:
        """Number of trainable parameters, a tied weight counted once.

        >>> TransformerConfig(vocab=32000, hidden=4096, layers=32, heads=32, kv_heads=32, ffn=11008,
        ...                   sequence=2048, tied=False).parameters  # Llama 7B, arXiv 2302.13971 table 2
        6738415616
        """
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * self.kv_heads * self.head_dim
        feed_forward = 3 * self.hidden * self.ffn
        norms = 2 * self.hidden
        embeddings = self.vocab * self.hidden * (1 if self.tied else 2)
        return embeddings + self.layers * (attention + feed_forward + norms) + self.hidden


def require_positive_int(name: str, value: object) -> None:
    """Raise ValueError unless `value` is an int of 1 or more (True is not a size)."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be an integer of 1 or more, got {value!r}")
