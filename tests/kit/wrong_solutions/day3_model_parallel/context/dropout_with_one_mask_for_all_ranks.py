"""FAILS: sequence_parallel

The residual stream is cut, and yet its dropouts draw from the stream that is equal everywhere: rank 1 drops the same
elements of its tokens as rank 0.
"""

right_sequence_parallel = sequence_parallel


def sequence_parallel(model, group=None, seed=0):
    right_sequence_parallel(model, group, seed)
    streams = RandomStreams(seed, group)
    for block in model.blocks:
        block.dropout = ParallelDropout(block.dropout.p, streams, sharded=False)
    return model
