"""Kill -9 at random moments, over all stages; resume after each; count and report.

``KILLS=20 pytest tests/faults/test_kills.py`` for fewer than the 100 of a full run.
"""

from __future__ import annotations

import collections
import logging
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

from broken import Faulty, config, copy_to, kill_group, unbroken
from same_values import assert_same

log = logging.getLogger(__name__)

KILLS = int(os.environ.get("KILLS", "100"))
SEED = int(os.environ.get("SEED", "0"))
# In one way through the workflow each stage is struck so often, and then left to finish.
STRIKES = 3
# Half of the kills fall into a job's start, half into all of it.
WAITS_S = (1.5, 8.0)
STAGES = {
    "unpack_wikipedia", "make_corpus", "make_views", "make_tasks", "list_task_texts", "train_nano",
    "run_model", "compute_metrics", "score_tasks", "associate_metrics", "compare_choices",
    "compare_weights", "find_best_layers", "draw_study", "build_explorer",
    "account_run",
}  # fmt: skip


def test_no_kill_costs_finished_work_or_changes_a_value(tmp_path: Path) -> None:
    """Nor does it cost what a job has finished of the several things that it does."""
    moments = random.Random(SEED)
    project = Faulty(tmp_path / "project")
    # As it is by default: what is scored has no embeddings any more.
    project.write(config(keep_embeddings=False))
    expected = {n: v for n, v in unbroken().items() if not n.startswith("embeddings/")}
    struck: collections.Counter[str] = collections.Counter()
    half: collections.Counter[str] = collections.Counter()
    on_the_way: collections.Counter[str] = collections.Counter()
    kills = completed = kept = 0
    done: dict[str, tuple[int, int]] = {}
    wanted = STAGES if KILLS >= 100 else set()
    while not completed or kills < KILLS or on_the_way or (wanted - set(struck) and completed < 9):
        running = project.start()
        wait_for_a_victim(project, running, on_the_way, set(struck), moments)
        at_work = project.at_work()
        if running.poll() is None:
            kill_group(running)
            kills += 1
            struck.update(at_work or {"between jobs"})
            half.update(
                path.relative_to(project.results).parts[0]
                for path in project.results.rglob("*.partial")
            )
            assert not project.half_files()
        else:
            assert running.returncode == 0, (project.folder / "run.txt").read_text()[-5000:]
            completed += 1
            assert_same(project.values(), expected)
            assert not list(project.results.rglob("*.partial"))
        now = project.finished()
        redone = [
            name
            for name, stamp in done.items()
            if now.get(name) != stamp and not project.served(name)
        ]
        assert not redone, f"finished before kill {kills}, made again after it: {redone}"
        kept += len(done)
        done = now
        unlock = project.folder / ".snakemake" / "locks"
        shutil.rmtree(unlock, ignore_errors=True)  # as `snakemake --unlock` does, but faster
        if running.returncode == 0:
            shutil.rmtree(project.results)
            shutil.rmtree(project.folder / ".snakemake")
            done = {}
            on_the_way.clear()
            log.warning("%d kills after %d ways through", kills, completed)
    log.warning(
        "%d kills (%s), while writing in %s; %d runs completed with all values equal; finished "
        "files found untouched %d times, none made again, no half file",
        kills, ", ".join(f"{n} in {stage}" for stage, n in struck.most_common()), dict(half),
        completed, kept,
    )  # fmt: skip
    missed = wanted - set(struck)
    assert not missed, f"never killed in {missed}"


def wait_for_a_victim(
    project: Faulty,
    running: subprocess.Popen[bytes],
    on_the_way: collections.Counter[str],
    struck: set[str],
    moments: random.Random,
) -> None:
    """Wait until a stage that has not been struck enough is at work, and for a random moment."""
    deadline = time.monotonic() + 600
    while running.poll() is None:
        assert time.monotonic() < deadline, "the run does not end"
        due = [stage for stage in project.at_work() if on_the_way[stage] < STRIKES]
        if due:
            on_the_way.update(due)
            # A stage of a second would be over before most moments.
            waits = WAITS_S if struck.issuperset(due) else WAITS_S[:1]
            time.sleep(moments.uniform(0, moments.choice(waits)))
            return
        time.sleep(0.05)


def test_a_kill_costs_a_job_only_the_corpus_or_task_at_hand(tmp_path: Path) -> None:
    """Killed as soon as the first of its files is there; what is missing is then done."""
    project = copy_to(tmp_path / "project")
    folders = ("activations", "embeddings", "scores", "metrics")
    for part in (*folders, "associations", "choices", "figures", "tables", "report"):
        shutil.rmtree(project.results / part)
    command = [
        sys.executable, "scripts/run_model.py", "--config", "results/config.json",
        "--model", "second", "--revision", "step2",
    ]  # fmt: skip
    running = subprocess.Popen(command, cwd=project.folder, env=project.environment())
    while not (first := list(project.results.rglob("*.h5"))) and running.poll() is None:
        time.sleep(0.002)
    running.kill()
    running.wait()
    assert running.returncode < 0, "it came to its end before the kill"
    first = list(project.results.rglob("*.h5"))
    assert not project.half_files()
    stamps = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in first}
    subprocess.run(command, cwd=project.folder, env=project.environment(), check=True)
    for path, stamp in stamps.items():
        assert (path.stat().st_ino, path.stat().st_mtime_ns) == stamp
    parts = ("activations/second/step2/", "embeddings/second/step2/")
    made = {name: value for name, value in project.values().items() if name.startswith(parts)}
    assert len({name.rpartition("/")[0] for name in made}) == 3 > len(first)
    assert_same(made, {name: unbroken()[name] for name in made})
    assert not list(project.results.rglob("*.partial"))
