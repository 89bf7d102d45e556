"""Real input for every lesson, offline.

The King James Bible as text and 5,000 handwritten digits come with installed packages and are always there. WikiText-2,
MNIST and IMDB are used where they are on disk or reachable: those loaders print one line that says which data they
gave. Whatever takes seconds to make (a tokenizer, token ids) is cached under .cache/shardlab, or $SHARDLAB_CACHE.
`python -m shardlab.data` prepares it all once.
"""

from shardlab.data.images import Images, digits, mnist
from shardlab.data.labelled import LabelledTexts, imdb
from shardlab.data.text import Text, text_corpus, wikitext2
from shardlab.data.tokens import corpus_tokens, token_batches, token_stream, tokenizer, train_tokenizer

__all__ = [
    "Images",
    "LabelledTexts",
    "Text",
    "corpus_tokens",
    "digits",
    "imdb",
    "mnist",
    "text_corpus",
    "token_batches",
    "token_stream",
    "tokenizer",
    "train_tokenizer",
    "wikitext2",
]
