"""FAILS: parallelize

Distributing a tied weight twice makes two of it.
"""


def parallelize(model, mesh):
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
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
    whole = Replicate()
    plan["blocks.*.attention"] = PrepareModuleInput(input_layouts=(whole, None), desired_input_layouts=(whole, None))
    plan["blocks.*.mlp"] = PrepareModuleInput(input_layouts=whole, desired_input_layouts=whole)
    parallelize_module(model, mesh, plan)
    return model
