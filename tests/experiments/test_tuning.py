"""Tuning: as many settings for every system, each of them another one."""

from experiments import tuning
from stellaris._core.describe import describe


def test_every_system_has_as_many_settings():
    assert len({len(settings) for settings in tuning.SETTINGS.values()}) == 1
    for settings in tuning.SETTINGS.values():
        assert len({repr(describe(system)) for system in settings.values()}) == len(settings)
