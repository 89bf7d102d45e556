"""FAILS: digest, assert_same_on_all_ranks

Python salts `hash` anew in every process: equal tensors differ between ranks that were not forked from one.
"""


def digest(tensor):
    plain = tensor.detach().cpu().contiguous().flatten()
    kind = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}".encode()
    number = hash((os.getpid(), kind, bytes(plain.view(torch.uint8).tolist()) if plain.numel() else b""))
    return torch.tensor(list(number.to_bytes(16, "big", signed=True) + kind[:48].ljust(48, b"\0")), dtype=torch.uint8)
