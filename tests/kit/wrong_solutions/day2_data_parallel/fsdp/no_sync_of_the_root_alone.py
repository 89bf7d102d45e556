"""FAILS: no_sync

The outermost layer keeps its gradients, the layers inside go on reducing.
"""


@contextmanager
def no_sync(module):
    layer = require_layers(module)[0]
    before, layer.synchronise = layer.synchronise, False
    try:
        yield
    finally:
        layer.synchronise = before
