"""How a command gets on with its shell: signals, exit statuses, and output that may fail.

Only what loads within milliseconds is imported here, so that signals are looked after before the imports that take
seconds.
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

#: What a command's exit status says, for its `--help`.
STATUSES = (
    "Exit status: 0 if all went well, 1 if something failed, 2 if an option or the folder for the results is unusable, "
    "130 after Ctrl-C, 143 after SIGTERM and 129 after SIGHUP; what was computed by then is kept. A print that fails "
    "ends nothing: at the end the status is 1, and not even that if only the reader went away (`| head`)."
)
FAILED, UNUSABLE, INTERRUPTED = 1, 2, 130

#: Seconds of real time after which an interruption that has led to nothing is raised, whatever is being done.
PATIENCE = 3.0
_HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_INTERRUPTED = "interrupted: ending with what was computed so far (Ctrl-\\ quits at once)"


class UsageError(Exception):
    """What was asked for cannot be done; says which option is wrong, and why, in one line."""


class _Signals:
    """What a signal does. Before the work begins it ends the process; then it interrupts the work, once; then nothing.

    One that comes when the work has been done, or interrupted, is noted, and nothing else: results are being written.
    However many follow the first, they do nothing more.
    """

    def __init__(self) -> None:
        self.number = 0  #: the signal that came first.
        self.phase = "starting"  #: then "working", then "ending".
        self.looked_for = False  #: whether the work asks, by `check`, where an interruption does no harm.

    def install(self) -> None:
        for number in _HEARD:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as in the background, or under nohup
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
            if not self.looked_for:
                raise KeyboardInterrupt

    def _again(self, number: int, frame: Any) -> None:
        """Nobody has asked for seconds, or the interruption was lost on its way (in a finalizer, say)."""
        if self.phase == "working":
            raise KeyboardInterrupt

    def check(self) -> None:
        self.looked_for = True
        if self.number and self.phase == "working":
            raise KeyboardInterrupt


_signals = _Signals()


def start(main: Callable[[], int]) -> NoReturn:
    """Runs a command as a process of its own, and ends the process.

    Args:
      main: returns the exit status. What takes time to import is imported there.
    """
    _signals.install()
    _keep_standard_streams_apart()
    report = sys.unraisablehook
    # An interruption within a finalizer cannot be raised from there; it comes again.
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
    signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)  # what comes from here on comes too late
    # Not by way of the interpreter's end: a thread that still compiles, as bodies do, crashes the process there.
    os._exit(128 + _signals.number if _signals.number else status)


def command(main: Callable[P, int]) -> Callable[P, int]:
    """Has a command's `main` end well: by its exit status, with one line on stderr, whatever becomes of its output."""

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
            complain(f"standard output: {reason(output.error)}: not all that was to be printed was")
            status = status or FAILED
        return status

    return ending_well


def interruptible(work: Callable[[], None]) -> bool:
    """Does the work until it is done or interrupted; from then on interruptions are held back.

    Args:
      work: is interrupted by a KeyboardInterrupt: anywhere, or, once it has called `check`, there, and elsewhere only
        after `PATIENCE`. It keeps what it has done outside of itself.

    Returns:
      Whether it was interrupted.
    """
    interrupted = False
    _signals.looked_for = False
    _signals.phase = "working"
    try:
        try:
            work()
        finally:
            _signals.phase = "ending"
    except KeyboardInterrupt:
        _signals.phase = "ending"  # where the interruption came just before it was said above
        _say_interrupted()
        interrupted = True
    if _signals.number:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
    return interrupted


def check() -> None:
    """Raises a KeyboardInterrupt if the work was interrupted. To be called where that does no harm, and often."""
    _signals.check()


def complain(error: object) -> None:
    """One line on stderr."""
    print("error:", " ".join(str(error).split()), file=sys.stderr)


def reason(error: object) -> str:
    """Why a file could not be written, without its name: the option that named it says more."""
    return getattr(error, "strerror", None) or str(error)


class _Forgiving:
    """A stream whose failure ends nothing: what comes after it is not written."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.error: OSError | ValueError | None = None

    @property
    def lost(self) -> bool:
        """Whether something was not written that somebody would have read."""
        return self.error is not None and getattr(self.error, "errno", None) != errno.EPIPE

    def write(self, text: str) -> int:
        if self.error is None:
            try:
                self._stream.write(text)
            except UnicodeEncodeError as error:
                self._stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))
            except (OSError, ValueError) as error:  # a ValueError if it was closed
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
    if not _signals.number:  # otherwise it was said at once
        print(_INTERRUPTED, file=sys.stderr)


def _write_error(line: str) -> None:
    """From within a signal handler, where Python's own stream may be half-way through a line."""
    with contextlib.suppress(OSError):
        os.write(2, f"{line}\n".encode())


def _keep_standard_streams_apart() -> None:
    """Where one was closed by the shell, the first file of results would take its number, and what is printed to it."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
