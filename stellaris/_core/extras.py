"""Optional packages: if one is missing, the error names the extra that installs it."""

import contextlib
from collections.abc import Iterator

#: The extra that installs each package, by import name.
EXTRAS = {
    "cloudpickle": "dask",
    "distributed": "dask",
    "envpool": "experiments",
    "flax": "experiments",
    "gymnasium": "experiments",
    "gymnax": "lab",
    "h5py": "replay",
    "imageio": "experiments",
    "imageio_ffmpeg": "video",
    "matplotlib": "experiments",
    "mujoco": "experiments",
    "pandas": "experiments",
    "pyarrow": "experiments",
    "pygame": "video",
    "ray": "ray",
    "rich": "experiments",
    "safetensors": "replay",
    "scipy": "experiments",
    "tensorboardX": "tensorboard",
    "torch": "torch",
    "wandb": "wandb",
    "xarray": "lab",
}


@contextlib.contextmanager
def needs(what: str) -> Iterator[None]:
    """Wraps imports: if a package of an extra is missing, the error says what needs it and how to install it.

    Args:
      what: the feature that needs the imported packages.

    Raises:
      ModuleNotFoundError: if a package is missing.

    Example:
      >>> with needs("a net of butterflies"):
      ...     raise ModuleNotFoundError("No module named 'flax'", name="flax")
      Traceback (most recent call last):
        ...
      ModuleNotFoundError: a net of butterflies needs flax: pip install 'stellaris-rl[experiments]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = missing(error)
        if package is None:
            raise
        raise ModuleNotFoundError(f"{what} needs {install(package)}", name=error.name) from error


def missing(error: BaseException | None) -> str | None:
    """The package of an extra whose absence is the error; None if it is another error.

    Example:
      >>> missing(ModuleNotFoundError("No module named 'flax.linen'", name="flax.linen"))
      'flax'
    """
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else None
    return package if package in EXTRAS else None


def install(package: str) -> str:
    """A package's name, and the command that installs it.

    Example:
      >>> install("ray")
      "ray: pip install 'stellaris-rl[ray]'"
    """
    return f"{package}: pip install 'stellaris-rl[{EXTRAS[package]}]'"
