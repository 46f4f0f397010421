"""stellaris: reinforcement learning from stale data and stale gradients."""

import lazy_loader

# A trainer that needs one loss should not wait for the import of aggregators, platforms and systems, so each name of
# `__init__.pyi` is imported when it is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

__version__ = "0.1.0"
