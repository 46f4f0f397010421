"""The papers' testbeds: their cores, GPUs and costs."""

import pytest

from experiments.tasks.testbeds import LEARNERS_PER_GPU, minionsrl_azure, stellaris_gpu, stellaris_hpc


@pytest.mark.parametrize(
    ("testbed", "nodes", "cores", "gpus", "an_hour"),
    [
        (stellaris_gpu, 3, 128, 2, 4.896 + 2 * 3.06),
        (stellaris_hpc, 7, 960, 16, 5 * 7.20 + 2 * 24.48),
        (minionsrl_azure, 5, 32, 1, 3.06 + 4 * 1.008),
    ],
)
def test_testbeds(testbed, nodes, cores, gpus, an_hour):
    """Cores are those of the machines without a GPU; machines of a kind cost together; learners share the GPUs."""
    bed = testbed()
    assert len(bed.nodes) == len({node.name for node in bed.nodes}) == nodes
    assert sorted({node.name.rpartition("-")[0] for node in bed.nodes}) == sorted(bed.machines)
    assert sum(node.vcpus for node in bed.nodes if not node.gpus) == cores
    assert sum(node.gpus for node in bed.nodes) == gpus
    assert sum(m.per_second for m in bed.machines.values()) * 3600 == pytest.approx(an_hour)
    assert bed.source
    for kind, vm in bed.machines.items():
        alike = [node for node in bed.nodes if node.name.startswith(kind)]
        assert {node.slots_per_gpu for node in alike} == {LEARNERS_PER_GPU}
        gpus_there, cores_there = sum(node.gpus for node in alike), sum(node.vcpus for node in alike)
        assert (vm.runs, vm.places) == ((("learner",), gpus_there * 4) if gpus_there else (("actor",), cores_there))
