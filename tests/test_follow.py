"""What `make demo` says while it runs, and at the end."""

from __future__ import annotations

import importlib.util
import io
import sys
from itertools import count
from pathlib import Path

import pytest
from conftest import ROOT

from layerwise.workflow import follow as module
from layerwise.workflow.follow import Follower, follow

SAID = """\
Job stats:
job                  count
total                    3

[Sun Nov 22 02:04:12 2026]
Job 4: Cleaning the texts
Reason: Missing output files: a
2026-11-22 02:04:21,663 INFO layerwise: words of a job
[Sun Nov 22 02:04:12 2026]
Job 35: Drawing power_law
[Sun Nov 22 02:04:25 2026]
Finished jobid: 35 (Rule: draw_study)
1 of 3 steps (33%) done
Finished jobid: 4 (Rule: unpack)
localrule all:
    jobid: 0
Finished jobid: 0 (Rule: all)
"""


def test_jobs_are_counted_and_named() -> None:
    seconds = count(0, 10)
    follower = Follower(lambda: next(seconds))
    shown = [text[8:] for line in SAID.splitlines() for text in follower.read(line)]
    assert [text.split(" (")[0] for text in shown] == [
        "job 1 of 2: Cleaning the texts",
        "job 2 of 2: Drawing power_law",
        "     1 of 2 done: Drawing power_law",
        "     2 of 2 done: Cleaning the texts",
    ]
    assert not list(follower.still())


def test_a_quiet_while_says_what_is_at_work_and_what_is_left() -> None:
    now = 0.0
    follower = Follower(lambda: now)
    for line in SAID.splitlines()[:8]:
        list(follower.read(line))
    now = 95.0
    (line,) = follower.still()
    assert line == "  1:35       still at: Cleaning the texts (95 s); 2 jobs left"


@pytest.mark.parametrize(
    "trouble",
    [
        "Error in rule draw_study:",
        "WorkflowError:",
        "Traceback (most recent call last):",
        "2026-11-22 02:04:21,663 ERROR layerwise: no room",
        "Nothing to be done (all requested files are present and up to date).",
    ],
)
def test_all_is_shown_from_the_first_trouble_on(trouble: str) -> None:
    follower = Follower()
    said = [trouble, "    jobid: 4", "whatever comes"]
    assert [text for line in said for text in follower.read(line)] == said


def test_the_status_is_the_commands_and_silence_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUIET_S", 0.1)
    code = (
        "import time; print('total 2', flush=True); print('Job 1: Sleeping', flush=True); "
        "time.sleep(0.5); raise SystemExit(3)"
    )
    out = io.StringIO()
    assert follow([sys.executable, "-c", code], out) == 3
    first, *rest = out.getvalue().splitlines()
    assert first.endswith("job 1 of 1: Sleeping")
    assert "still at: Sleeping" in rest[0]


def test_the_end_says_where_to_look_and_the_result_in_three_lines(tmp_path: Path) -> None:
    path = ROOT / "scripts" / "run_quickstart.py"
    spec = importlib.util.spec_from_file_location("run_quickstart", path)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    page = tmp_path / "report" / "best_layers.rst"
    page.parent.mkdir()
    sentences = [f"- **model\\_{k}**: layer {k} of 9, 72.3.\n" for k in range(5)]
    page.write_text("".join(sentences) + "\n.. list-table::\n\n   * - Model\n     - Best\n")
    look, about, *result = script.summary(tmp_path)
    assert "report.html" in look
    assert about.endswith(":")
    assert result == [f"  model_{k}: layer {k} of 9, 72.3." for k in range(3)]
