"""Where this rank computes: the one place that asks for a GPU."""

from __future__ import annotations

import os

import torch


def device() -> torch.device:
    """This rank's device: its own GPU under NCCL, else the CPU."""
    if name := os.environ.get("SHARDLAB_DEVICE"):
        return torch.device(name)
    return local_device(None, int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1)))


def local_device(backend: str | None, local_rank: int, local_ranks: int) -> torch.device:
    """The device for a rank of this machine: a GPU when every local rank can have its own.

    Args:
        backend: ``"gloo"`` asks for the CPU, ``"nccl"`` for a GPU, None for what the machine has.

    Raises:
        ValueError: NCCL was asked for and there are fewer GPUs than ranks.
    """
    if backend == "gloo":
        return torch.device("cpu")
    gpus = torch.cuda.device_count()
    if gpus >= local_ranks:
        return torch.device("cuda", local_rank)
    if backend == "nccl":
        raise ValueError(f"NCCL needs one GPU per rank: {local_ranks} ranks here, {gpus} GPUs. Use backend='gloo'")
    return torch.device("cpu")
