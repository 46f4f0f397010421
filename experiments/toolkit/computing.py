"""How JAX computes in a command's process: on how many threads, and where it keeps what it has compiled."""

import os
import warnings
from pathlib import Path
from typing import Any

import jax

#: Programs whose compilation takes at least this many seconds are kept for other processes.
_WORTH_KEEPING = 0.1


def use_one_thread() -> None:
    """Lets XLA compute with one thread in this process; call it before JAX computes anything.

    Sums are then added in the same order on machines with any number of cores, and workers do not compete for cores.
    """
    os.environ["NPROC"] = "1"  # from which XLA takes the size of its pool of threads


def keep_compiled(folder: Path) -> None:
    """Keeps compiled programs in a folder, for later processes, unless the user has set such a folder."""
    # A failure to read or write the cache costs only time, but on a full disk every program would warn.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry")
    config: Any = jax.config
    if config.jax_compilation_cache_dir is None:
        config.update("jax_compilation_cache_dir", str(folder.resolve()))
        config.update("jax_persistent_cache_min_compile_time_secs", _WORTH_KEEPING)
