"""What every script shares: arguments as JSON, a log to file and stderr, one-line errors."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from layerwise.errors import LayerwiseError
from layerwise.files import DISK_REMEDY, disk_fault

log = logging.getLogger("layerwise")

# Bars of the libraries we call would fill a log with half lines; ours write a line a minute.
if not sys.stderr.isatty():
    os.environ.setdefault("TQDM_DISABLE", "1")

# Torch's idle threads would spin for milliseconds on the cores that our own threads want next.
# Read when torch is loaded, so set before.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def json_argument(text: str) -> Any:
    """Parse a JSON argument.

    Raises
    ------
    argparse.ArgumentTypeError
        If it is not JSON.
    """
    try:
        return json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {text[:80]!r} ({error})") from error


def parser(description: str | None) -> argparse.ArgumentParser:
    """An argument parser with the options that all scripts have (`--log`, `--threads`).

    ``@file`` stands for the arguments that the file holds, one a line: a sweep has more tables
    than fit a command line.
    """
    made = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        fromfile_prefix_chars="@",
    )
    made.add_argument("--log", type=Path, help="also write the log to this file")
    made.add_argument("--threads", type=int, default=1, help="CPU threads to use (default 1)")
    return made


def run(main: Callable[[argparse.Namespace], None], arguments: argparse.Namespace) -> None:
    """Set up logging, run `main`, and turn a `LayerwiseError` into one line and exit status 1."""
    # A log that the disk does not take must not cost the work, nor fill the terminal.
    logging.raiseExceptions = False
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    unlogged = None
    if arguments.log:
        try:
            arguments.log.parent.mkdir(parents=True, exist_ok=True)
            handlers.append(logging.FileHandler(arguments.log, mode="w"))
        except OSError as error:
            unlogged = error.strerror
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        handlers=handlers,
        force=True,
    )
    logging.captureWarnings(True)
    if unlogged:
        log.warning("There will be no log file %s: %s", arguments.log, unlogged)
    try:
        main(arguments)
    except LayerwiseError as error:
        log.error("%s", error)
        sys.exit(1)
    except MemoryError:
        log.error(
            "The memory did not suffice; close other programs, lower threads or batch_tokens, or "
            "ask the cluster for more."
        )
        sys.exit(1)
    except Exception as error:  # libraries tell of a full disk in errors of all kinds
        fault = disk_fault(error)
        if fault:
            given = vars(arguments)
            where = getattr(error, "filename", None) or given.get("output") or given.get("folder")
            log.error("Could not write %s: %s; %s", where, fault, DISK_REMEDY)
            sys.exit(1)
        log.exception("Unexpected failure; this is a bug in layerwise")
        sys.exit(2)
