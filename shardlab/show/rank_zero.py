"""Who speaks when several ranks run the same line."""

import os
import sys


def is_rank_zero() -> bool:
    """Whether this process is rank 0, or no rank at all.

    Asks the process group where there is one, else the RANK variable that torchrun sets. Does not import torch.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank() == 0
    return os.environ.get("RANK", "0") == "0"
