"""A session of Ray in this process, from `ray.init` to `ray.shutdown`. One process can have several, one at a time."""

import ray


class Session:
    """The current session of Ray.

    Do not call functions of Ray once `over` is true: most of them would initialise Ray again.
    """

    def __init__(self) -> None:
        self.number = _number()  #: unique to this session.

    @property
    def over(self) -> bool:
        """Whether the session was shut down."""
        # Ray may have been initialised again since, so that it is running but is another session.
        return not ray.is_initialized() or _number() != self.number

    def check(self) -> None:
        """Raises a RuntimeError if the session is over."""
        if self.over:
            raise RuntimeError(
                "Ray was shut down in this process, and with it this platform's containers and versions: make another "
                "platform"
            )


def _number() -> tuple[str, str]:
    """The address of the cluster's head, and the job number that it gave this process."""
    # Both, because two clusters may give the same job number.
    context = ray.get_runtime_context()
    return context.gcs_address, context.get_job_id()
