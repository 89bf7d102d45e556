"""FAILS: assert_same_on_all_ranks

Names ranks of the group: in the group of the ranks 1, 2 and 3 it accuses rank 2 for what rank 3 did.
"""


def assert_same_on_all_ranks(tensor, name, group=None):
    mine = digest(tensor).to(device())
    everyone = mine.new_empty(dist.get_world_size(group) * DIGEST_BYTES)
    all_gather_single(everyone, mine, group)
    versions = [bytes(row) for row in everyone.view(-1, DIGEST_BYTES).tolist()]
    if len(set(versions)) == 1:
        return
    parts = []
    for version, _ in Counter(versions).most_common():
        ranks = [rank for rank, own in enumerate(versions) if own == version]
        parts.append(f"{ranks_in_words(ranks)} have {version_in_words(version)}")
    raise AssertionError(f"{name} differs: {'; '.join(parts)}")
