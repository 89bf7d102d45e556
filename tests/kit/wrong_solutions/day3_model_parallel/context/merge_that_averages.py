"""FAILS: merge_attention, RingAttention.forward, RingAttention.backward, context_parallel

Each part counts one half, whether it has seen one key or a thousand.
"""


def merge_attention(out_a, lse_a, out_b, lse_b):
    return (out_a + out_b) / 2, torch.logaddexp(lse_a, lse_b)
