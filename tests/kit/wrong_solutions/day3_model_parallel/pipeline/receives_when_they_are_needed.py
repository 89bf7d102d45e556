"""FAILS: Mailbox.advance

Starts a receive when somebody asks for it: nothing arrives while the rank computes.
"""


class Mailbox(Mailbox):
    wanted = None

    def advance(self):
        if self.wanted is None:
            held, self.queues = self.queues, {}
            for peer, queue in held.items():
                self.queues[peer] = deque()
                while queue and queue[0][1].source == self.rank and queue[0][1].action in self.outbox:
                    self.queues[peer].append(queue.popleft())
            super().advance()
            self.queues = held
        else:
            super().advance()

    def take(self, action):
        self.wanted = action
        self.advance()
        self.wanted = None
        return super().take(action)
