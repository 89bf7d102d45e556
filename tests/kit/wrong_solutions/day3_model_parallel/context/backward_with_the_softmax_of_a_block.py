"""FAILS: attend_block_backward, RingAttention.backward

Recomputes the softmax of these keys alone: weights that add up to 1 in every block, and to N in all.
"""

right_attend_block_backward = attend_block_backward


def attend_block_backward(grad_output, query, key, value, lse, delta, causal):
    _, local = attend_block(query, key, value, causal)
    return right_attend_block_backward(grad_output, query, key, value, local, delta, causal)
