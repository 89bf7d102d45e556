"""FAILS: tokens_to_heads, heads_to_tokens, ulysses_attention

Every rank gets everything and keeps its part: N times the bytes and the memory.
"""


def gather_and_keep(x, group, gathered, kept):
    rank, size = position(group)
    if size == 1:
        return x
    blocks = x.new_empty(size, *x.shape)
    all_gather_single(blocks.view(-1), x.contiguous().view(-1), group)
    return torch.cat(blocks.unbind(), gathered).chunk(size, kept)[rank]


def tokens_to_heads(x, group=None):
    return gather_and_keep(x, group, 2, 1)


def heads_to_tokens(x, group=None):
    return gather_and_keep(x, group, 1, 2)
