"""The process of `fedpriv`, by its name or as `python -m fedpriv`.

Nothing is imported before it is said: the command line takes a second to load, and PyTorch several.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys

_INTERRUPTED = {128 + int(signal.SIGINT), 128 + int(signal.SIGTERM)}
#: Commands that load PyTorch before they have anything to say.
_TRAINS = {"audit", "attack", "run", "study", "tune", "uncertainty"}


def main() -> None:
    """Run the command line; what interrupts it, while modules load too, is its exit status."""
    try:
        if _TRAINS.intersection(sys.argv[1:2]) and "--json" not in sys.argv:
            print("loading fedpriv and PyTorch …", file=sys.stderr, flush=True)
        from fedpriv.training.stopping import interruptible

        with interruptible():
            from fedpriv.cli import main as command_line

            command_line()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        _end(130)
    except SystemExit as ended:
        if ended.code in _INTERRUPTED:
            _end(int(ended.code))
        raise


def _end(status: int) -> None:
    """End the process as at its end, but for the interpreter's own teardown.

    What was open has been closed. Libraries that were interrupted in the middle of a native call
    may crash while the interpreter is taken down (Ray's threads do), which would be the status.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # its reader is gone
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
