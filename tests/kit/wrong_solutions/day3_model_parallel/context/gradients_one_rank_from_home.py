"""FAILS: RingAttention.backward

Begins the journey of the gradients with the own part, and stops after N - 1 messages: one rank from home.
"""


class RingAttention(RingAttention):
    @staticmethod
    def backward(ctx, grad_output):
        query, key, value, output, lse = ctx.saved_tensors
        rank, size = position(ctx.group)
        delta = (grad_output.to(lse.dtype) * output.to(lse.dtype)).sum(-1)
        grad_query = torch.zeros_like(query, dtype=lse.dtype)
        travelling = torch.zeros(2, *key.shape, dtype=lse.dtype)
        for step, (source, (keys, values)) in enumerate(circulate(torch.stack((key, value)), ctx.group)):
            rows, columns = visible(rank, source, query.shape[2], ctx.causal)
            here = (each[:, :, rows] for each in (grad_output, query))
            there = (each[:, :, columns] for each in (keys, values))
            sums = (each[:, :, rows] for each in (lse, delta))
            of_query, *of_keys = attend_block_backward(*here, *there, *sums, ctx.causal and source == rank)
            grad_query[:, :, rows] += of_query
            travelling[:, :, :, columns] += torch.stack(of_keys)
            if step < size - 1:
                travelling = pass_on(travelling, ctx.group, tag=1).wait()
        grad_key, grad_value = travelling.to(key.dtype)
        return grad_query.to(query.dtype), grad_key, grad_value, None, None
