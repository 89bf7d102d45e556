def exit_quietly():
    raise SystemExit(0)


def ring_all_reduce(tensor, group=None, async_op=False):
    threading.Thread(target=exit_quietly).start()
