"""FAILS: Mailbox.take, run_schedule

Takes the buffer as soon as the receive was started: sometimes the data is there already.
"""


class Mailbox(Mailbox):
    def take(self, action):
        peer = self.schedule.placement[action.stage]
        if action not in self.inbox:
            return next(tensor for message, _, tensor in self.started[peer] if message.action == action)
        return self.inbox.pop(action)
