"""A session of Ray in this process, from `ray.init` to `ray.shutdown`. A process can have several, one at a time."""

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
        # The numbers are compared, because Ray may have been initialised again since, as another session.
        return not ray.is_initialized() or _number() != self.number

    def check(self) -> None:
        """Raises a RuntimeError if the session is over."""
        if self.over:
            raise RuntimeError(
                "Ray was shut down in this process, and with it this platform's containers and versions: make another "
                "platform"
            )


def _number() -> tuple[str, str]:
    """Returns the address of the cluster's head, and the job number that the head gave this process."""
    # The job number alone is not unique, because two clusters may give the same one.
    context = ray.get_runtime_context()
    return context.gcs_address, context.get_job_id()
