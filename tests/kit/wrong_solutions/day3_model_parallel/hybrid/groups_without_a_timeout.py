"""FAILS: ParallelLayout.make_groups

Leaves the timeout at new_group's own: half an hour of silence when a rank is lost.
"""


class ParallelLayout(ParallelLayout):
    def make_groups(self, timeout=TIMEOUT):
        if dist.get_world_size() != self.ranks:
            raise ValueError("another number of ranks")
        own = {}
        for name in GROUPS:
            for members in self.groups(name):
                group = dist.new_group(members)
                if dist.get_rank() in members:
                    own[name] = group
        return own
