"""How a program runs in its container: the container's state first, then one body, or a batch of them in one call."""

from typing import Any

import jax

from stellaris.runtime.engine.calls import BodyContext
from stellaris.runtime.engine.threads import Outcome
from stellaris.runtime.functions import Function

#: The keys of containers are folded from this number, which no invocation has.
_CONTAINERS = 2**32 - 1


def run_body(program: Function, context: BodyContext, arguments: tuple[Any, ...]) -> Outcome:
    """Runs the body of one invocation, whose container gets its state first; returns its value, or its error."""
    try:
        if not context.container.initialised:
            initialise(program, context)
        return program.body(context, *arguments), None
    except Exception as error:
        return None, error


def run_batch(programs: list[Function], contexts: list[BodyContext], arguments: list[tuple[Any, ...]]) -> list[Outcome]:
    """Runs a batch in the one call that its programs share; returns the value or the error of each invocation.

    An invocation whose container gets no state fails alone. An error of the call itself fails all others.
    """
    batched = programs[0].batched
    assert batched is not None
    outcomes: list[Outcome] = [(None, None)] * len(contexts)
    ready = []
    for i, context in enumerate(contexts):
        try:
            initialise(programs[i], context)
            ready.append(i)
        except Exception as error:
            outcomes[i] = None, error
    if not ready:
        return outcomes
    try:
        results = batched([contexts[i] for i in ready], [arguments[i] for i in ready])
        if len(results) != len(ready):
            raise ValueError(f"batched returned {len(results)} results for {len(ready)} invocations")
    except Exception as error:
        results = [error] * len(ready)
    for i, result in zip(ready, results, strict=True):
        outcomes[i] = (None, result) if isinstance(result, BaseException) else (result, None)
    return outcomes


def initialise(program: Function, context: BodyContext) -> None:
    """Makes the state of a container that has none yet; if `init` raises, the next invocation tries again."""
    container = context.container
    if not container.initialised:
        if program.init is not None:
            # A key of its own, so that the first body does not draw what `init` drew.
            keys = jax.random.fold_in(context.root_key, _CONTAINERS)
            container.state = program.init(container.slot, jax.random.fold_in(keys, container.number))
        container.initialised = True
