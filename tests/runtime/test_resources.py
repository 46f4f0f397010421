"""Machines that there are none of."""

import math

import pytest

from stellaris.runtime import Node, Resources


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Resources(memory=-1.0), "memory=-1.0 is negative"),
        (lambda: Resources(vcpus=math.nan), "vcpus=nan is negative"),
        (lambda: Resources(memory=math.inf), "memory=inf is negative or not finite"),
        (lambda: Resources(gpu_slots=-1), "gpu_slots=-1 is negative"),
        (lambda: Node("n", memory=-1.0), "node 'n': memory=-1.0 is negative"),
        (lambda: Node("n", gpus=-1), "node 'n': gpus=-1 is negative"),
        (lambda: Node("n", slots_per_gpu=0), "node 'n': slots_per_gpu=0 is below 1"),
        (lambda: Node("n", slots_per_gpu=math.nan), "node 'n': slots_per_gpu=nan is below 1"),
        (lambda: Node("n", gpu_sharing=1.5), "node 'n': gpu_sharing=1.5 is above 1"),
        (lambda: Node("n", gpu_sharing=-0.5), "node 'n': gpu_sharing=-0.5 is negative"),
    ],
)
def test_machines_that_there_are_none_of(unchecked, make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Resources(gpu_slots=0.5), r"gpu_slots=0\.5 is not a whole number"),
        (lambda: Node("n", gpus=1.5), r"gpus=1\.5 is not a whole number"),
        (lambda: Node("n", gpus=math.inf), "gpus=inf is not a whole number"),
        (lambda: Node("n", gpus=1, slots_per_gpu=1.5), r"slots_per_gpu=1\.5 is not a whole number"),
    ],
)
def test_gpus_and_their_slots_are_whole(make, message):
    with pytest.raises(TypeError, match=message):
        make()
