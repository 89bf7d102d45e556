"""FAILS: ShardedOptimizer.load_state_dict

What a rank loads are views of the whole states: all of them stay in memory, and training changes the checkpoint.
"""


def _cut(value, piece, shape):
    if not isinstance(value, Tensor) or (value.dim() == 0 and shape != value.shape):
        return value
    if value.shape != shape:
        raise ValueError(f"a state of shape {list(value.shape)} for a parameter of shape {list(shape)}")
    return value.flatten()[piece.start : piece.stop]
