"""The loss of language modelling."""

import torch.nn.functional as F
from torch import Tensor


def next_token_loss(logits: Tensor, tokens: Tensor, ignore_index: int = -100) -> Tensor:
    """Mean cross-entropy, in nats, of predicting token t+1 from the logits at t.

    Args:
        logits: [B, T, vocab].
        tokens: [B, T] int64; a position that holds `ignore_index` is not a target.

    Returns:
        0-d float32 tensor, averaged over the valid targets (0, with zero gradients, when there are none: a rank whose
        share is all padding must not turn the others' sum into NaN).

    Raises:
        ValueError: shapes that do not belong together, or a single position, which predicts nothing.

    Example:
        uniform logits over 8 tokens give log 8 = 2.079 whatever the tokens are.
    """
    if logits.dim() != 3 or logits.shape[:2] != tokens.shape:
        raise ValueError(
            f"logits must be [B, T, vocab] for tokens [B, T], got {list(logits.shape)} and {list(tokens.shape)}"
        )
    if tokens.shape[1] < 2:
        raise ValueError("a sequence of one token has no next token to predict")
    targets = tokens[:, 1:].flatten()
    total = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), targets, ignore_index=ignore_index, reduction="sum")
    return total / (targets != ignore_index).sum().clamp(min=1)
