"""FAILS: own_pieces, ZeroOptimizer, ShardedOptimizer.load_state_dict

The last rank's piece reaches to the end of its shard: padding is updated as if it were the last parameter's, has states,
and in a checkpoint makes that parameter too long.
"""

_right_own_pieces = own_pieces


def own_pieces(sizes, rank, ranks):
    pieces = _right_own_pieces(sizes, rank, ranks)
    length = -(-sum(sizes) // ranks)
    held = sum(stop - start for _, start, stop in pieces)
    if pieces and held < length:
        index, start, stop = pieces[-1]
        pieces[-1] = (index, start, stop + length - held)
    return pieces
