"""Saves a run every few rounds, and resumes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stellaris.runtime.contract import Platform, Resumable
from stellaris.runtime.functions import Function
from stellaris.runtime.state.checkpoint import Checkpoints
from stellaris.systems.environments import Environments
from stellaris.systems.run_state import RunState
from stellaris.types import Tree


@dataclass
class Checkpointing:
    """Saves a run every few rounds, and loads the run to be resumed.

    Args:
      checkpoints: the folder in which the run is saved; None to save nothing.
      resume: whether to load the newest checkpoint, if there is one.
      configuration: the configuration of the whole run, as returned by `describe`; a resumed run must have the same.
      params: parameters of the policy. The classes in this tree may belong to another library, so checkpoints store
        only the leaves, and a resumed run takes the structure from `params`.
    """

    checkpoints: Checkpoints | None
    resume: bool
    configuration: Mapping[str, Any]
    params: Tree
    programs: dict[str, Function] = field(default_factory=dict)  #: not saved: a resumed run supplies programs again.

    def due(self, before: int, now: int) -> bool:
        """Returns whether a checkpoint is due after round `now`, if rounds up to `before` were reported already."""
        # Several rounds may end before they are reported, so `now` may have passed a multiple of `every`.
        return self.checkpoints is not None and now // self.checkpoints.every > before // self.checkpoints.every

    def save(self, platform: Platform, acts: str, env: Environments, state: RunState) -> None:
        """Saves the run. Environments cannot be saved, so they restart here, as they do in a resumed run."""
        assert self.checkpoints is not None
        assert isinstance(platform, Resumable)  # `train` has checked this
        # The restart is counted before the state is saved: a resumed run restarts its environments under this number,
        # with the same seeds.
        state.restarts += 1
        # The trace's row about the checkpoint is also added before saving, so that a resumed run has it in its trace.
        platform.trace.append(platform.now, "checkpoint", value=state.restarts)
        # Containers are reset before environments restart: this ends the bodies that still step the old environments.
        platform.reinitialise(acts)
        env.restart(state.restarts)
        # The number is one above the newest checkpoint, even if the run was resumed from an earlier one because the
        # newest was damaged.
        step = (self.checkpoints.newest() or 0) + 1
        self.checkpoints.save(step, platform, state, **self._supplied)

    def load(self, platform: Platform, env: Environments) -> RunState | None:
        """Restores platform and environments; returns the state of the run, or None if there is no run to resume."""
        if self.checkpoints is None or not self.resume or self.checkpoints.newest() is None:
            return None
        assert isinstance(platform, Resumable)
        state: RunState = self.checkpoints.load(platform, **self._supplied)
        env.restart(state.restarts)
        return state

    @property
    def _supplied(self) -> dict[str, Any]:
        """The objects that a checkpoint does not hold, and the configuration that must equal the checkpoint's."""
        return {"externals": self.programs, "like": {"params": self.params}, "configuration": self.configuration}
