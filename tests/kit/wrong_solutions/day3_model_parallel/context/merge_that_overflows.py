"""FAILS: merge_attention

The softmax's sums as they are: exp(200) is inf in float32, and inf / inf is NaN. Small scores give the right answer.
"""


def merge_attention(out_a, lse_a, out_b, lse_b):
    sum_a, sum_b = lse_a.exp().unsqueeze(-1), lse_b.exp().unsqueeze(-1)
    total = sum_a + sum_b
    return (sum_a * out_a + sum_b * out_b) / total, total.log().squeeze(-1)
