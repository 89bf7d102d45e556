"""FAILS: assert_same_on_all_ranks

Right, and 4 ranks with 16 GB of weights exchange 48 GB each.
"""


def assert_same_on_all_ranks(tensor, name, group=None):
    everyone = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, (bytes(digest(tensor).tolist()), tensor), group)
    versions = [version for version, _ in everyone]
    if len(set(versions)) > 1:
        members = dist.get_process_group_ranks(group)
        parts = []
        for version, _ in Counter(versions).most_common():
            parts.append(ranks_in_words([rank for rank, own in zip(members, versions, strict=True) if own == version]))
        raise AssertionError(f"{name} differs: {' ; '.join(parts)} ")
