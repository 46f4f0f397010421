"""Ray in this process: it is initialised, used by any number of platforms, and shut down; perhaps more than once."""

import ray


class Session:
    """The Ray that is initialised now.

    Once it is over none of Ray's functions is to be called: most of them would have Ray initialise itself.
    """

    def __init__(self) -> None:
        self.number = _number()  #: no other has it.

    @property
    def over(self) -> bool:
        """Whether it was shut down."""
        return not ray.is_initialized() or _number() != self.number

    def check(self) -> None:
        """Raises a RuntimeError if it is over."""
        if self.over:
            raise RuntimeError(
                "Ray was shut down in this process, and with it this platform's containers and versions: make another "
                "platform"
            )


def _number() -> tuple[str, str]:
    """Where the cluster's head is, and the number that it gave this process."""
    context = ray.get_runtime_context()
    return context.gcs_address, context.get_job_id()
