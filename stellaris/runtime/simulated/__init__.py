"""The simulated platform: the contract of `stellaris.runtime.contract`, kept in virtual and in wall time."""
