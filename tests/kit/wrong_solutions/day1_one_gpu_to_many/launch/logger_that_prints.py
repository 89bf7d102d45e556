"""FAILS: rank_logger

The standard handler: a message of two lines has one prefix.
"""


def rank_logger(name):
    logger = logging.getLogger(name)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(f"[rank {dist.get_rank()}] %(name)s: %(message)s"))
    logger.handlers = [handler]
    return logger
