"""The papers' clouds: what functions and machines cost there, read from `prices.toml`."""

import functools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib.resources import files
from typing import Any

from stellaris.runtime.costs.price_sheets import Machine, Rate


@functools.cache
def catalogue() -> Mapping[str, Mapping[str, Any]]:
    """Every entry of `prices.toml`: prices in USD, with their region, source and date.

    Example:
      >>> catalogue()["aws_lambda"]["dated"]
      '2025-10-01'
    """
    return tomllib.loads(files("stellaris.runtime.costs").joinpath("prices.toml").read_text("utf-8"))


def rate(service: str) -> Rate:
    """What a function's use costs at a service.

    Args:
      service: `"aws_lambda"`, `"aws_lambda_provisioned"` or `"azure_aci"`.

    Returns:
      The rate; its prices apply to the function's resources.

    Raises:
      LookupError: if the service is unknown, or rents machines instead.

    Example:
      >>> from stellaris.runtime.resources import Resources
      >>> rate("aws_lambda").usd_per_second(Resources(memory=1.0))
      1.66667e-05
    """
    entries = {name: entry for name, entry in catalogue().items() if "per_hour" not in entry}
    if service not in entries:
        raise LookupError(f"service={service!r}: there are the rates of {', '.join(entries)}")
    known = {item.name for item in fields(Rate)}
    return Rate(**{key: value for key, value in entries[service].items() if key in known})


def machine(provider: str, kind: str, *, runs: Sequence[str] = (), places: float = 1) -> Machine:
    """A machine by the second.

    Args:
      provider: `"aws_ec2"` or `"azure_vm"`.
      kind: such as `"p3.2xlarge"`.
      runs: functions whose invocations run on it.
      places: how many of them run at once when it is fully used.

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
        raise LookupError(f"provider={provider!r}: there are the machines of {', '.join(kinds)}")
    if kind not in kinds[provider]:
        raise LookupError(f"kind={kind!r}: of {provider} there are {', '.join(kinds[provider])}")
    return Machine(kinds[provider][kind] / 3600, runs=runs, places=places)
