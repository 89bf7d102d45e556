"""FAILS: AllToAll, ExpertParallelMoE

Every part padded to the largest: right numbers, and the fullest pair of ranks sets the traffic of all.
"""


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, send, receive, group):
        ctx.send, ctx.receive, ctx.group = send, receive, group
        most = torch.tensor(max(send + receive))
        dist.all_reduce(most, dist.ReduceOp.MAX, group)
        padded = rows.new_zeros(len(send), int(most), *rows.shape[1:])
        for part, own in zip(padded, rows.split(send), strict=True):
            part[: len(own)] = own
        received = torch.empty_like(padded)
        dist.all_to_all_single(received, padded, group=group)
        return torch.cat([part[:count] for part, count in zip(received, receive, strict=True)])

    @staticmethod
    def backward(ctx, gradient):
        return AllToAll.apply(gradient, ctx.receive, ctx.send, ctx.group), None, None, None
