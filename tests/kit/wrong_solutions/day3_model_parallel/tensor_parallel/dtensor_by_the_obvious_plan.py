"""FAILS: parallelize

Equal results, and 5 all-reduces per block in backward.
"""


def parallelize(model, mesh):
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    require_divisible(model.config, mesh.size())
    if model.config.kv_heads % mesh.size():
        raise ValueError("kv_heads cannot be shared out")
    columns = ("attention.query", "attention.key", "attention.value", "mlp.gate", "mlp.up")
    plan = {f"blocks.*.{name}": ColwiseParallel() for name in columns}
    plan |= {f"blocks.*.{name}": RowwiseParallel() for name in ("attention.output", "mlp.down")}
    plan |= {"embedding": RowwiseParallel(input_layouts=Replicate()), "head": ColwiseParallel(use_local_output=False)}
    parallelize_module(model, mesh, plan)
    model.tie_weights()
    return model
