"""FAILS: rank_logger

Every module that asks for the logger adds a handler: each message appears twice, then three times.
"""


def rank_logger(name):
    logger = logging.getLogger(name)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(RankHandler())
    return logger
