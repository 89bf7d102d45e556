"""FAILS: rank_logger

With a root logger, as most programs have one, every message comes out once more without its rank.
"""


def rank_logger(name):
    logger = logging.getLogger(name)
    logger.setLevel(logging.INFO)
    logger.handlers = [RankHandler()]
    return logger
