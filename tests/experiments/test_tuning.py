"""Tuning: as many settings for every system, each of them another one."""

from dataclasses import replace

from experiments import tuning
from experiments.tasks.presets import architectures
from stellaris._core.describe import describe


def test_every_system_has_as_many_settings():
    contenders = {contender.name: contender for contender in architectures("Hopper-v4").contenders}
    assert len({len(settings) for settings in tuning.SETTINGS.values()}) == 1
    for system, settings in tuning.SETTINGS.items():
        row = replace(contenders[system], system=tuning.START[system])
        changed = [repr(describe(tuning.changed(row, of).system)) for of in settings.values()]
        assert len(set(changed)) == len(changed)
