"""Stores to begin tests with, and ways to look into them."""

import numpy as np

from stellaris.runtime import Store


def filled(versions: int, **options) -> Store:
    """A store whose `p` has `versions` versions, version `v` of value `10 v`."""
    store = Store(**options)
    for version in range(versions):
        assert store.publish("p", 10 * version) == version
    return store


def start(store: Store, *arguments, invocation: int = 0, function: str = "f") -> tuple:
    """What an invocation that starts now is given."""
    return store.resolve(arguments, invocation=invocation, function=function)


def bytes_of(n: int):
    """An array of so many bytes."""
    return np.zeros(n, np.uint8)


def gone(store: Store, reference) -> bool:
    """Whether an object has been removed."""
    try:
        store.resolve((reference,), invocation=10**6, function="probe")
    except LookupError:
        return True
    finally:
        store.release(10**6)
    return False
