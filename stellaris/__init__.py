"""stellaris: reinforcement learning from stale data and stale gradients.

An installed package has the library alone. The papers' figures (`python -m experiments`) and the checks of their bounds
(`python -m theory_checks`) run from a checkout of the repository.
"""

import lazy_loader

__version__ = "0.1.0"

# A trainer that needs one loss should not wait for the import of aggregators, platforms and systems, so each name of
# `__init__.pyi` is imported when it is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
