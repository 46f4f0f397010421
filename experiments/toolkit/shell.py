"""Handles a command's signals, its exit status, and output that may fail.

The module imports only modules that load within milliseconds, so that the signal handlers are installed before the
imports that take seconds.
"""

import contextlib
import errno
import functools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn, ParamSpec

P = ParamSpec("P")

#: The meanings of a command's exit status, for its `--help`.
STATUSES = (
    "Exit status: 0 after success, 1 if something failed, 2 if an option or the results folder is unusable, "
    "130 after Ctrl-C, 143 after SIGTERM and 129 after SIGHUP; results computed by then are kept. A print that fails "
    "does not stop the command: the status is 1 at the end, or 0 if only the reader closed the pipe (`| head`)."
)
FAILED, UNUSABLE, INTERRUPTED = 1, 2, 130

#: Seconds of real time after which an interruption that had no effect is raised again, at any point of the work.
PATIENCE = 3.0
_HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_INTERRUPTED = "interrupted: ending with the results computed so far (Ctrl-\\ quits at once)"


class UsageError(Exception):
    """Raised if a request cannot be carried out; the message names the option and the reason in one line."""


class _Signals:
    """Handles the first signal: before the work it ends the process, and during the work it interrupts the work.

    After the work has ended or been interrupted, results are being written, and the first signal is only recorded.
    Later signals are ignored.
    """

    def __init__(self) -> None:
        self.number = 0  #: the first signal.
        self.phase = "starting"  #: "starting", then "working", then "ending".
        self.polled = False  #: whether the work calls `check` where an interruption is safe.

    def install(self) -> None:
        for number in _HEARD:
            if signal.getsignal(number) is not signal.SIG_IGN:  # ignored in the background and under nohup
                signal.signal(number, self._came)
        signal.signal(signal.SIGALRM, self._again)

    def _came(self, number: int, frame: Any) -> None:
        if self.number:
            return
        self.number = number
        _write_error(_INTERRUPTED)
        if self.phase == "starting":
            os._exit(128 + number)
        if self.phase == "working":
            signal.setitimer(signal.ITIMER_REAL, PATIENCE, PATIENCE)
            if not self.polled:
                raise KeyboardInterrupt

    def _again(self, number: int, frame: Any) -> None:
        """Raises once more: the work has not called `check` for seconds, or a finalizer swallowed the interruption."""
        if self.phase == "working":
            raise KeyboardInterrupt

    def check(self) -> None:
        self.polled = True
        if self.number and self.phase == "working":
            raise KeyboardInterrupt


_signals = _Signals()


def start(main: Callable[[], int]) -> NoReturn:
    """Runs a command, and ends the process with its exit status.

    Args:
      main: the function that runs the command and returns the exit status. It makes the imports that take seconds.
    """
    _signals.install()
    _keep_standard_streams_apart()
    report = sys.unraisablehook
    # A finalizer cannot raise an interruption; the timer raises it again.
    sys.unraisablehook = lambda what: None if what.exc_type is KeyboardInterrupt else report(what)
    try:
        status = main()
    except SystemExit as ending:
        status = ending.code if isinstance(ending.code, int) else FAILED
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = FAILED
    _signals.phase = "ending"
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            _Forgiving(stream).flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)  # from here on a signal is too late to change the status
    # Skip the interpreter's shutdown: it crashes if a thread is compiling, as the threads of function bodies may be.
    os._exit(128 + _signals.number if _signals.number else status)


def command(main: Callable[P, int]) -> Callable[P, int]:
    """Makes `main` report errors as one line on stderr and an exit status, and survive output that fails."""

    @functools.wraps(main)
    def ending_well(*args: P.args, **kwargs: P.kwargs) -> int:
        streams = sys.stdout, sys.stderr
        output, errors = (_Forgiving(stream) if stream is not None else None for stream in streams)
        sys.stdout, sys.stderr = output, errors
        try:
            status = main(*args, **kwargs)
        except UsageError as error:
            complain(error)
            status = UNUSABLE
        except KeyboardInterrupt:
            _say_interrupted()
            status = INTERRUPTED
        finally:
            if output is not None:
                output.flush()
            sys.stdout, sys.stderr = streams
        if output is not None and output.lost:
            complain(f"standard output: {reason(output.error)}: some output was lost")
            status = status or FAILED
        return status

    return ending_well


def interruptible(work: Callable[[], None]) -> bool:
    """Runs `work` until it ends or is interrupted, and ignores later interruptions.

    Args:
      work: the function to run, which must store its results elsewhere, such as in a list. An interruption raises a
        KeyboardInterrupt at once, anywhere in the function. If the function has called `check` before, its next `check`
        raises the error instead; if `PATIENCE` seconds pass without a `check`, the error is raised anywhere.

    Returns:
      Whether the work was interrupted.
    """
    interrupted = False
    _signals.polled = False
    _signals.phase = "working"
    try:
        try:
            work()
        finally:
            _signals.phase = "ending"
    except KeyboardInterrupt:
        _signals.phase = "ending"  # again: the interruption may have come just before the line above
        _say_interrupted()
        interrupted = True
    if _signals.number:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
    return interrupted


def check() -> None:
    """Raises a KeyboardInterrupt if the work was interrupted. Call it often, where stopping is safe."""
    _signals.check()


def complain(error: object) -> None:
    """Prints an error as one line on stderr."""
    print("error:", " ".join(str(error).split()), file=sys.stderr)


def reason(error: object) -> str:
    """Returns why a file could not be written, without the file's name: the caller names the option instead."""
    return getattr(error, "strerror", None) or str(error)


class _Forgiving:
    """A stream that drops all output after a failed write instead of raising."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.error: OSError | ValueError | None = None

    @property
    def lost(self) -> bool:
        """Whether output was lost, other than by a reader that closed the pipe."""
        return self.error is not None and getattr(self.error, "errno", None) != errno.EPIPE

    def write(self, text: str) -> int:
        if self.error is None:
            try:
                self._stream.write(text)
            except UnicodeEncodeError as error:
                self._stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))
            except (OSError, ValueError) as error:  # ValueError: the stream is closed
                self.error = error
        return len(text)

    def flush(self) -> None:
        if self.error is None:
            try:
                self._stream.flush()
            except (OSError, ValueError) as error:
                self.error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _say_interrupted() -> None:
    if not _signals.number:  # otherwise the handler has printed it
        print(_INTERRUPTED, file=sys.stderr)


def _write_error(line: str) -> None:
    """Writes to the descriptor: in a signal handler, Python's stream may be half-way through a line."""
    with contextlib.suppress(OSError):
        os.write(2, f"{line}\n".encode())


def _keep_standard_streams_apart() -> None:
    """Opens /dev/null for each standard stream that the shell closed.

    Otherwise the first file of results would get the closed stream's descriptor, and everything that is printed.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
