# SPDX-License-Identifier: GPL-2.0-only
"""A program whose first one or two arguments name the function that it runs."""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Mapping

from .common import run_main

# MODULE:FUNCTION of each verb, and what it does.
Verbs = Mapping[str, tuple[str, str]]


def usage(program: str, verbs: Verbs) -> str:
    """The list of all verbs."""
    lines = [f"  {verb:20}{text}" for verb, (_, text) in verbs.items()]
    return "\n".join([f"usage: {program} VERB [ARGUMENT...]", "", *lines, "",
                      f"{program} VERB --help describes the arguments."])


def dispatch(program: str, verbs: Verbs, package: str = "") -> int:
    """Run the function that the command line names; returns the exit status.

    The names of the modules follow `package`, which ends with a dot.
    """
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage(program, verbs))
        return 0
    for count in (1, 2):
        verb = " ".join(words[:count])
        if verb in verbs:
            module, _, function = verbs[verb][0].partition(":")
            # As ^C: undo a step that is half done.
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            sys.argv = [f"{program} {verb}", *words[count:]]
            found = importlib.import_module(package + module)
            return run_main(sys.argv[0], getattr(found, function))
    print(f"{program}: error: no verb '{' '.join(words[:2])}': `{program} help` lists them",
          file=sys.stderr)
    return 1
