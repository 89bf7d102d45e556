"""FAILS: Mailbox.advance

Waits for each send to be received. Two ranks that send to each other first then wait until the deadline; a schedule
without that is only slower.
"""


class Mailbox(Mailbox):
    def advance(self):
        for peer, queue in self.queues.items():
            while queue:
                number, message = queue[0]
                sends = message.source == self.rank
                if sends and message.action not in self.outbox:
                    break
                queue.popleft()
                if sends:
                    dist.send(self.outbox.pop(message.action), group=self.group, group_dst=peer, tag=number)
                else:
                    tensor = self.new_buffer(message.action)
                    work = dist.irecv(tensor, group=self.group, group_src=peer, tag=number)
                    self.started[peer].append((message, work, tensor))
