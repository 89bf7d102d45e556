"""FAILS: FlashAttention.forward, FlashAttention.backward

Forward in tiles, all of which stay until backward: no large tensor, but T x T bytes in small ones.
"""


class FlashAttention(FlashAttention):
    @staticmethod
    def apply(query, key, value, causal, block):
        pieces = []
        for rows in tiles(query.shape[1], block):
            largest = torch.full((len(query), rows.stop - rows.start, 1), torch.finfo(torch.float32).min)
            total, mixed = torch.zeros_like(largest), 0.0
            for columns in tiles(key.shape[1], block):
                scores = tile_scores(query, key, rows, columns, causal)
                if scores is None:
                    break
                larger = torch.maximum(largest, scores.detach().amax(-1, keepdim=True))
                weights, shrink = (scores - larger).exp(), (largest - larger).exp()
                total = total * shrink + weights.sum(-1, keepdim=True)
                mixed = mixed * shrink + weights @ value[:, columns].float()
                largest = larger
            pieces.append(mixed / total.clamp(min=1) + torch.zeros(1, 1, value.shape[2]))
        return torch.cat([piece.expand(len(query), -1, -1) for piece in pieces], 1).to(query.dtype)
