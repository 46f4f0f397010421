"""The simulated platform: the engine in virtual or in wall time, with bodies that run on threads of this process."""
