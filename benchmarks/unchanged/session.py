"""A process that runs command lines of fedpriv one after the other, as asked on its stdin.

One line of JSON in, `{"argv": [...]}`, one line out: the exit status, what was printed, the end of
what was said on stderr. Importing fedpriv takes seconds, so runs share a process where they can.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import sys
import traceback

from same_noise import draw_same_noise


def main() -> None:
    draw_same_noise()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library or a worker prints shall not be taken for an answer
    for line in sys.stdin:
        code, out, err = run(json.loads(line)["argv"])
        answers.write(json.dumps({"code": code, "out": out, "err": err[-4000:]}) + "\n")
        answers.flush()


def run(argv: list[str]) -> tuple[int, str, str]:
    """Return exit status, stdout and stderr of `fedpriv ARGV`."""
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["fedpriv", *argv]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            runpy.run_module("fedpriv", run_name="__main__")
            code = 0
        except SystemExit as done:
            code = done.code if isinstance(done.code, int) else int(done.code is not None)
        except Exception:
            traceback.print_exc()
            code = 1
    return code, out.getvalue(), err.getvalue()


if __name__ == "__main__":
    main()
