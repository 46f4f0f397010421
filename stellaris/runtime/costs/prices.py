"""The prices of functions and machines on the papers' clouds, read from `prices.toml`."""

import functools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib.resources import files
from typing import Any

from stellaris.runtime.costs.price_sheets import Machine, Rate


@functools.cache
def catalogue() -> Mapping[str, Mapping[str, Any]]:
    """Returns all entries of `prices.toml`: prices in USD, with their region, source and date.

    Example:
      >>> catalogue()["aws_lambda"]["dated"]
      '2025-10-01'
    """
    return tomllib.loads(files("stellaris.runtime.costs").joinpath("prices.toml").read_text("utf-8"))


def rate(service: str) -> Rate:
    """Returns the rate of a function's use at a service.

    Args:
      service: `"aws_lambda"`, `"aws_lambda_provisioned"` or `"azure_aci"`.

    Returns:
      The rate; its prices are multiplied by the function's resources.

    Raises:
      LookupError: if the service is unknown, or rents machines and has no rates.

    Example:
      >>> from stellaris.runtime.resources import Resources
      >>> rate("aws_lambda").usd_per_second(Resources(memory=1.0))
      1.66667e-05
    """
    entries = {name: entry for name, entry in catalogue().items() if "per_hour" not in entry}
    if service not in entries:
        raise LookupError(f"service={service!r} has no rates: choose one of {', '.join(entries)}")
    # Only prices are passed on: an entry also has its region, source and date.
    known = {item.name for item in fields(Rate)}
    return Rate(**{key: value for key, value in entries[service].items() if key in known})


def machine(provider: str, kind: str, *, runs: Sequence[str] = (), places: float = 1) -> Machine:
    """Returns a machine with its price per second.

    Args:
      provider: `"aws_ec2"` or `"azure_vm"`.
      kind: the type of the machine, such as `"p3.2xlarge"`.
      runs: names of the functions whose invocations run on it.
      places: number of invocations that run at once when the machine is fully used.

    Returns:
      The machine with its price.

    Raises:
      LookupError: if the provider or the kind is unknown.

    Example:
      >>> round(machine("aws_ec2", "p3.2xlarge").per_second * 3600, 2)
      3.06
    """
    kinds = {name: entry["per_hour"] for name, entry in catalogue().items() if "per_hour" in entry}
    if provider not in kinds:
        raise LookupError(f"provider={provider!r} rents no machines: choose one of {', '.join(kinds)}")
    if kind not in kinds[provider]:
        raise LookupError(f"kind={kind!r} is unknown at {provider}: choose one of {', '.join(kinds[provider])}")
    # The catalogue has prices per hour, as providers publish them; the platform's unit is the second.
    return Machine(kinds[provider][kind] / 3600, runs=runs, places=places)
