"""Runs programs in containers: `init` if the container is new, then one body or a batch in one call."""

from typing import Any

import jax

from stellaris.runtime.engine.calls import BodyContext
from stellaris.runtime.engine.threads import Outcome
from stellaris.runtime.functions import Function

#: Folded into the root key before a container's number. No invocation has this number, so that a container's key
#: differs from the keys of all invocations.
CONTAINERS = 2**32 - 1


def run_body(program: Function, context: BodyContext, arguments: tuple[Any, ...]) -> Outcome:
    """Runs the body of one invocation, after `init` if its container is new; returns its value and its error."""
    try:
        if not context.container.initialised:
            initialise(program, context)
        return program.body(context, *arguments), None
    except KeyboardInterrupt:
        raise  # on the calling thread it is the user's, and must end the run
    except BaseException as error:  # a `SystemExit` ends the body, as it would end a process
        return None, error


def run_batch(programs: list[Function], contexts: list[BodyContext], arguments: list[tuple[Any, ...]]) -> list[Outcome]:
    """Runs a batch in the one call that its programs share; returns the value and the error of each invocation.

    If `init` raises for a container, only that container's invocation fails. An error of the shared call fails all
    other invocations.
    """
    batched = programs[0].batched
    assert batched is not None
    outcomes: list[Outcome] = [(None, None)] * len(contexts)
    ready = []
    for i, context in enumerate(contexts):
        try:
            initialise(programs[i], context)
            ready.append(i)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            outcomes[i] = None, error
    if not ready:
        return outcomes
    try:
        results = batched([contexts[i] for i in ready], [arguments[i] for i in ready])
        if len(results) != len(ready):
            raise ValueError(
                f"batched returned {len(results)} results for {len(ready)} invocations: return one per invocation"
            )
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        results = [error] * len(ready)
    for i, result in zip(ready, results, strict=True):
        outcomes[i] = (None, result) if isinstance(result, BaseException) else (result, None)
    return outcomes


def initialise(program: Function, context: BodyContext) -> None:
    """Makes the state of a new container; if `init` raises, the next invocation tries again."""
    container = context.container
    if not container.initialised:
        if program.init is not None:
            # The key follows from the container's number and not from the invocation's, so that `init` and the first
            # body draw different numbers.
            keys = jax.random.fold_in(context.root_key, CONTAINERS)
            container.state = program.init(container.slot, jax.random.fold_in(keys, container.number))
        container.initialised = True
