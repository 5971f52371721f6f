"""What a job takes, how large it is, and whose turn it is; embeddings in parts and in half."""

from __future__ import annotations

import importlib.util
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from same_values import assert_same
from test_workflow import Project, changed

from layerwise.activations.store import prefix_sizes
from layerwise.cli import Run
from layerwise.config import Config
from layerwise.errors import LayerwiseError
from layerwise.tasks import layout
from layerwise.tasks.layout import Embeddings, Reading
from layerwise.tasks.texts import TaskTexts, write_texts
from layerwise.workflow import sizes
from layerwise.workflow.plan import Bundle, Plan, in_turn
from layerwise.workflow.sizes import Shape
from layerwise.workflow.targets import Job

BOTH = (Reading(), Reading(readout="output"))
L, N, D = 3, 40, 24


def write(
    path: Path, values: np.ndarray, keys: Sequence[str], center: np.ndarray | None = None,
    **attributes: str,
) -> Path:  # fmt: skip
    """Embeddings of shape (R, L, N, D), those of `BOTH`."""
    with layout.create(
        path, readings=BOTH, n_layers=values.shape[1], texts_keys=keys, hidden=values.shape[3],
        attributes={"model": "m", "revision": "r", "task": "t", "key": "k", **attributes},
        center=center,
    ) as file:  # fmt: skip
        layout.fill(file, range(len(keys)), [values[0], values[1, -1:]])
    return path


@pytest.fixture
def values() -> np.ndarray:
    rng = np.random.default_rng(0)
    common = 30 * rng.normal(size=(2, L, 1, D))
    made = (common + rng.normal(size=(2, L, N, D))).astype(np.float32)
    made[1, :-1] = made[0, :-1]
    return made


def center(values: np.ndarray) -> np.ndarray:
    return layout.center_of([values[0, :, :5], values[1, -1:, :5]])


KEYS = [f"{i:064x}" for i in range(N)]


def layers(path: Path) -> np.ndarray:
    with Embeddings(path) as file:
        return np.array([[file.layer(r, layer) for layer in range(L)] for r in BOTH])


# Half precision


@pytest.mark.parametrize("size", [1.0, 1e-12, 1e7], ids=["ordinary", "tiny", "past float16"])
def test_half_precision_is_right_to_a_2048th_of_the_distance_from_the_center(
    tmp_path: Path, values: np.ndarray, size: float
) -> None:
    values = (values * size).astype(np.float32)
    middle = center(values)
    found = layers(write(tmp_path / "e.h5", values, KEYS, middle))
    apart = np.abs(values.astype(np.float64) - middle[:, :, None])
    # Float32's own rounding of the sum comes on top.
    allowed = apart / 2048 + np.abs(values) * 2.0**-23
    wrong = np.abs(found.astype(np.float64) - values)
    wrong[1, :-1] = 0  # stored with the first reading, which has its own center
    assert (wrong <= allowed + apart.max() * 2.0**-29).all()
    assert wrong.max() > 0


def test_a_zero_embedding_stays_zero(tmp_path: Path, values: np.ndarray) -> None:
    values[:, :, 7] = 0
    found = layers(write(tmp_path / "e.h5", values, KEYS, center(values)))
    assert not found[:, :, 7].any()
    assert found[:, :, :7].all()


def test_equal_embeddings_stay_equal(tmp_path: Path, values: np.ndarray) -> None:
    values[:, :, 9] = values[:, :, 3]
    found = layers(write(tmp_path / "e.h5", values, KEYS, center(values)))
    np.testing.assert_array_equal(found[:, :, 9], found[:, :, 3])


# Parts


def in_parts(folder: Path, values: np.ndarray, middle: np.ndarray | None = None) -> Path:
    path = folder / "t.h5"
    for number, rows in enumerate([slice(0, 16), slice(16, 32), slice(32, N)]):
        write(
            layout.part(path, number), values[:, :, rows], KEYS[rows], middle, parts="3"
        )  # fmt: skip
    return path


@pytest.mark.parametrize("half", [False, True])
def test_parts_read_as_one_file(tmp_path: Path, values: np.ndarray, half: bool) -> None:
    middle = center(values) if half else None
    path = in_parts(tmp_path / "parts", values, middle)
    whole = write(tmp_path / "whole.h5", values, KEYS, middle)
    np.testing.assert_array_equal(layers(path), layers(whole))
    with Embeddings(path) as one, Embeddings(whole) as other:
        assert one.keys == other.keys
        for n in (3, 16, 20, 40):
            np.testing.assert_array_equal(one.layer(BOTH[0], 1, n), other.layer(BOTH[0], 1, n))
        assert one.alike() == other.alike()
    layout.remove(path)
    assert not list((tmp_path / "parts").iterdir())


def test_a_removal_that_is_cut_short_leaves_no_file_that_says_the_task_is_done(
    tmp_path: Path, values: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = in_parts(tmp_path, values)
    unlink = Path.unlink

    def once(file: Path) -> None:
        monkeypatch.setattr(Path, "unlink", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        unlink(file)

    monkeypatch.setattr(Path, "unlink", once)
    with pytest.raises(KeyboardInterrupt):
        layout.remove(path)
    assert not path.exists()
    assert len(layout.parts_in(path)) == 2


def test_a_part_that_is_missing_or_of_another_job_is_an_error(
    tmp_path: Path, values: np.ndarray
) -> None:
    path = in_parts(tmp_path, values)
    write(layout.part(path, 2), values[:, :, 32:], KEYS[32:], parts="3", key="other")
    with pytest.raises(LayerwiseError, match=r"2\.h5 is about key 'other'"):
        Embeddings(path)
    layout.part(path, 1).unlink()
    with pytest.raises(LayerwiseError, match=r"There is no file .*1\.h5"):
        Embeddings(path)


def test_a_part_is_there_if_it_is_of_the_job_and_the_texts(
    tmp_path: Path, values: np.ndarray
) -> None:
    path = in_parts(tmp_path, values)
    about = {"model": "m", "revision": "r", "task": "t", "key": "k", "parts": "3"}
    part = layout.part(path, 1)
    assert layout.is_part(part, about, KEYS[16:32])
    assert not layout.is_part(part, about, KEYS[16:31])
    assert not layout.is_part(part, about | {"key": "new"}, KEYS[16:32])
    assert not layout.is_part(layout.part(path, 3), about, [])
    part.write_bytes(part.read_bytes()[:-100])
    assert not layout.is_part(part, about, KEYS[16:32])


# Texts that are embedded already


@pytest.mark.parametrize("half", [False, True])
def test_known_texts_are_copied_as_if_embedded_anew(
    tmp_path: Path, values: np.ndarray, half: bool
) -> None:
    middle = center(values) if half else None
    write(tmp_path / "there" / "a.h5", values[:, :, 5:30], KEYS[5:30])
    known, there = layout.known_in(tmp_path / "there", lambda attributes: True)
    assert there is None
    path = tmp_path / "new.h5"
    with layout.create(
        path, readings=BOTH, n_layers=L, texts_keys=KEYS, hidden=D, center=middle,
        attributes={"model": "m", "revision": "r", "task": "t"},
    ) as file:  # fmt: skip
        new = layout.copy_known(file, KEYS, known)
        assert new == [*range(5), *range(30, 40)]
        some = values[:, :, new]
        layout.fill(file, new, [some[0], some[1, -1:]])
    fresh = write(tmp_path / "fresh.h5", values, KEYS, middle)
    np.testing.assert_array_equal(layers(path), layers(fresh))
    with h5py.File(path) as file:  # what a twin holds takes no room
        assert np.isnan(file["embedding"][1, :-1]).all() or half


def copied(folder: Path, target: Path, middle: np.ndarray | None, **fits: Any) -> list[int]:
    """The texts that are left when a new file has taken those of a folder."""
    known, _ = layout.known_in(folder, fits.get("fits", lambda attributes: True))
    if fits.get("gone"):
        layout.remove(folder / "a.h5")
    with layout.create(
        target, readings=BOTH, n_layers=L, texts_keys=KEYS, hidden=D, center=middle,
        attributes={"model": "m", "revision": "r", "task": "t"},
    ) as file:  # fmt: skip
        return layout.copy_known(file, KEYS, known)


def test_what_is_less_exact_or_gone_is_not_copied(tmp_path: Path, values: np.ndarray) -> None:
    folder, middle = tmp_path / "there", center(values)
    write(folder / "a.h5", values, KEYS, middle)
    target = tmp_path / "new.h5"
    assert layout.known_in(folder, lambda attributes: True)[1].tolist() == middle.tolist()  # type: ignore[union-attr]
    assert copied(folder, target, middle) == []
    np.testing.assert_array_equal(layers(target), layers(folder / "a.h5"))
    everything = list(range(N))
    assert copied(folder, target, None) == everything
    assert copied(folder, target, middle + 1) == everything
    assert copied(folder, target, middle, fits=lambda attributes: False) == everything
    assert copied(folder, target, middle, gone=True) == everything


@pytest.mark.parametrize("kept", [slice(0, N - 1), slice(N - 1, 0, -1), slice(5, 3, -1)])
def test_texts_are_looked_up_in_the_file_that_is_there_by_now(
    tmp_path: Path, values: np.ndarray, kept: slice
) -> None:
    """A task is embedded anew while the files of others are read."""
    folder = tmp_path / "there"
    write(folder / "a.h5", values, KEYS)
    known, _ = layout.known_in(folder, lambda attributes: True)
    write(folder / "a.h5", values[:, :, kept], KEYS[kept])
    with layout.create(
        tmp_path / "new.h5", readings=BOTH, n_layers=L, texts_keys=KEYS, hidden=D,
        attributes={"model": "m", "revision": "r", "task": "t"},
    ) as file:  # fmt: skip
        new = layout.copy_known(file, KEYS, known)
        assert new == sorted(set(range(N)) - set(range(N)[kept]))
        some = values[:, :, new]
        layout.fill(file, new, [some[0], some[1, -1:]])
    np.testing.assert_array_equal(layers(tmp_path / "new.h5"), values)


# Sizes


def config(**jobs: Any) -> Config:
    return Config.of(
        {
            "models": {"n": {"source": {"folder": "results/nano/n/{revision}"},
                             "revisions": ["step0", "step1"]}},
            "nano": {"n": {"architecture": "gpt_neox", "layers": 2, "hidden": 32,
                           "train_steps": 1}},
            "tasks": ["STS12", "STS13", "TwentyNewsgroupsClustering", "BIOSSES"],
            "studies": {"s": {"kind": "scores_over_checkpoints"}},
            "jobs": jobs,
        }
    )  # fmt: skip


def test_the_papers_tasks_have_as_many_texts_as_mteb_counted() -> None:
    from layerwise.tasks.names import PAPER

    found = {task: sizes.statistics(task) for task in PAPER}
    assert sum(texts.distinct for texts in found.values() if texts) == 1_392_829
    assert found["ArxivClusteringS2S"] == (628_078, 732_723, 46_494_679, "Clustering", 0)
    # English alone of those that are in many languages.
    assert found["STS17"].distinct == 500  # type: ignore[union-attr]
    assert found["MassiveIntentClassification"].rows == 2974  # type: ignore[union-attr]
    assert sizes.statistics("PangLeePolarity") is None


def test_a_job_that_scores_pairs_asks_for_the_memory_that_one_was_seen_to_take() -> None:
    """2.32 GB: STS12 of embeddings 16,384 wide, the process' high-water mark."""
    known = sizes.Sizes(config(), {"shapes": {"n": (2, 16_384)}})
    asked = known.score_memory("n", "STS12")
    assert asked is not None
    assert 2.32e9 < asked < 1.3 * 2.32e9


def test_a_job_that_scores_a_retrieval_asks_for_the_memory_that_one_was_seen_to_take() -> None:
    """1.51 GB: 60,000 documents and 2,000 queries, 512 wide, the process' high-water mark."""
    texts = (62_000, 62_000, 0, "Retrieval", 2_000)
    known = sizes.Sizes(config(), {"shapes": {"n": (1, 512)}, "texts": {"NFCorpus": texts}})
    asked = known.score_memory("n", "NFCorpus")
    assert asked is not None
    assert 1.51e9 < asked < 1.3 * 1.51e9
    assert sizes.statistics("NFCorpus").queries == 323  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("told", "shape"),
    [
        ('{"num_hidden_layers": 24, "hidden_size": 1024}', Shape(25, 1024)),
        ('{"n_layer": 12, "n_embd": 768, "n_positions": 1024}', Shape(13, 768, 1024)),
        (
            '{"num_hidden_layers": 12, "hidden_size": 384, "image_size": 224, "patch_size": 16, '
            '"max_position_embeddings": 512}',
            Shape(13, 384, 14 * 14 + 1),
        ),
        ('{"text_config": {"num_hidden_layers": 2, "hidden_size": 8}}', Shape(3, 8)),
        ('{"hidden_size": 8}', None),
        ("[]", None),
        ("{", None),
    ],
)
def test_shapes_are_read_off_configurations(
    tmp_path: Path, told: str, shape: Shape | None
) -> None:
    (tmp_path / "config.json").write_text(told)
    assert sizes._shape_in(tmp_path) == shape


def test_what_is_kept_of_tokens_needs_the_length_of_prompts() -> None:
    def told(longest: int | None, **corpus: Any) -> int | None:
        given = {"models": {"m": {"source": {"hub": "owner/m"}}},
                 "corpora": {"c": {"source": {"hub": "owner/c"}, "sample": {"n": 1000},
                                   "views": {"n": 0}, **corpus}},
                 "metrics": {"metrics": ["prompt_entropy"]},
                 "studies": {"s": {"kind": "metrics_by_depth", "metrics": ["prompt_entropy"]}},
                 }  # fmt: skip
        known = sizes.Sizes(Config.of(given), {"shapes": {"m": (25, 1024, longest)}})
        return known.bytes_of(Job("extract_activations", ("m", "main", "c")))

    pooled = 2 * 2 * 25 * 1000 * 1024 * 4
    a_token = 25 * 1000 * (4 * 8 + 4)
    assert told(None) is None
    assert told(2048) == pooled + 2048 * a_token
    assert told(2048, filters={"max_tokens": 60}) == pooled + 120 * a_token
    assert told(100, filters={"max_tokens": 60}) == pooled + 100 * a_token


def test_texts_are_counted_without_reading_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which may be gigabytes: here none of them can be read."""
    monkeypatch.chdir(tmp_path)
    path, names = Path("results/tasks/t.texts.parquet"), [f"{k:064x}" for k in range(50)]
    listed = TaskTexts("t", "ImageClassification", names, [""] * 50, {}, [b"image"] * 50)
    write_texts(path, listed)
    columns = pq.ParquetFile(path).metadata.row_group(0)
    (images,) = (c for c in map(columns.column, range(3)) if c.path_in_schema == "image")
    with path.open("r+b") as file:
        file.seek(images.dictionary_page_offset or images.data_page_offset)
        file.write(b"\xff" * images.total_compressed_size)
    found = sizes.Sizes(config()).texts("t")
    assert found is not None
    assert (found.distinct, found.characters) == (50, 3200)


def test_prefixes_take_at_most_what_is_told() -> None:
    for longest in range(1, 3000, 7):
        assert sum(prefix_sizes(longest)) <= sizes.PREFIXES * longest


@pytest.mark.parametrize("half", [False, True])
def test_bytes_of_embeddings_are_those_of_the_file(tmp_path: Path, half: bool) -> None:
    values = np.random.default_rng(0).normal(size=(2, 5, 3000, 64)).astype(np.float32)
    keys = [f"{i:064x}" for i in range(3000)]
    path = write(tmp_path / "e.h5", values, keys, values[:, :, 0] if half else None)
    told = 3000 * layout.bytes_per_text(BOTH, 5, 64, half=half)
    # Texts' keys, and chunks that are not full, come on top.
    assert told < path.stat().st_size < 1.35 * told


# Which job takes what


def parts(rule: str, **jobs: Any) -> dict[str, set[str]]:
    """The tasks of each of a checkpoint's jobs of a rule."""
    plan = Plan(config(**jobs))
    found: dict[str, set[str]] = {}
    for bundle, members in plan._bundles.items():
        if bundle.rule == rule and bundle.revision == "step0":
            found[bundle.part] = {job.names[2] for job in members}
    return found


def test_jobs_take_as_many_tasks_as_gigabytes_let_them() -> None:
    each = layout.bytes_per_text(
        layout.readings(["all", "drop_first"], ["mean"], ["residual", "output"]), 3, 32, half=False
    )
    sts12 = 5033 * each / 1e9
    assert parts("run_model") == {"0": set(config().tasks)}
    found = parts("run_model", gigabytes=sts12 * 1.1)
    # The clustering has 5,242 texts, which is one job's; the next is full of STS13 and BIOSSES.
    assert found == {
        "0": {"STS12", "BIOSSES"}, "1": {"STS13"}, "2": {"TwentyNewsgroupsClustering"}
    }  # fmt: skip
    assert parts("score_tasks", gigabytes=sts12 * 1.1) == found
    alone = parts("run_model", gigabytes=1e-9)
    assert sorted(map(len, alone.values())) == [1, 1, 1, 1]


def test_a_corpus_and_a_task_of_one_name_are_two_things() -> None:
    """As where a corpus is a task's own texts."""
    given = config(gigabytes=1e-9).plain()
    given["corpora"] = {
        "STS12": {"source": {"package": "wikipedia"}, "sample": {"n": 16},
                  "filters": {"min_tokens": 1, "max_tokens": 20}}
    }  # fmt: skip
    given["studies"]["d"] = {"kind": "metrics_by_depth", "corpora": ["STS12"]}
    plan = Plan(Config.of(given))
    jobs = [Job(stage, ("n", "step0", "STS12")) for stage in ("extract_activations", "embed_task")]
    of_corpus, of_task = (plan.sizes.bytes_of(job) for job in jobs)
    assert of_corpus and of_task and of_corpus != of_task
    assert [plan._written("n", plan._item(job)) for job in jobs] == [of_corpus, of_task]
    assert len({plan.bundle(job) for job in jobs}) == 2


def test_long_scorings_are_apart_and_short_ones_together() -> None:
    plan = Plan(config())
    seconds = {t: plan.sizes.score_seconds("n", t) for t in plan.config.tasks}
    longest = max(seconds, key=lambda t: seconds[t] or 0)
    assert longest == "TwentyNewsgroupsClustering"
    many = {"PangLeePolarity"}
    lots = parts("score_tasks", minutes=1)
    assert sorted(task for lot in lots.values() for task in lot) == sorted(plan.config.tasks)
    assert plan.sizes.score_seconds("n", *many) is None
    # What one job embeds is scored by jobs of its own.
    several = parts("score_tasks", minutes=1, items=2)
    embedded = parts("run_model", items=2)
    for lot in several.values():
        assert any(lot <= group for group in embedded.values())


def test_what_a_job_takes_does_not_change_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither when texts are listed nor when models come."""
    monkeypatch.chdir(tmp_path)
    plan = Plan(config(gigabytes=0.001, minutes=1))
    plan.save(tmp_path / "snapshot.json", "config.yaml")
    before = plan._bundles
    monkeypatch.setattr(sizes, "statistics", lambda task: None)
    assert Plan.open(tmp_path / "snapshot.json")._bundles == before
    assert Plan(plan.config)._bundles != before


# Whose turn it is


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30), st.integers(1, 100), st.randoms())
@settings(deadline=None)
def test_the_disk_holds_what_is_in_flight(
    sizes: list[int], limit: int, moments: random.Random
) -> None:
    """Whatever starts and ends when; and all get their turn."""
    jobs = [Bundle("run_model", "m", str(k), "0") for k in range(len(sizes))]
    waits = in_turn(
        ((job, size, [f"{job.revision} read"]) for job, size in zip(jobs, sizes, strict=True)),
        limit,
    )
    read: set[str] = set()
    waiting, flying = set(range(len(jobs))), set[int]()
    while waiting or flying:
        ready = [k for k in sorted(waiting) if read.issuperset(waits[jobs[k]])]
        assert ready or flying
        if ready and (not flying or moments.random() < 0.7):
            chosen = moments.choice(ready)
            waiting.remove(chosen)
            flying.add(chosen)
            taken = sum(sizes[k] for k in flying)
            assert taken <= limit or len(flying) == 1
        else:
            done = moments.choice(sorted(flying))
            flying.remove(done)
            read.add(f"{jobs[done].revision} read")


def test_a_job_waits_for_those_that_score_what_had_its_place() -> None:
    plan = Plan(config(disk=1e-9))
    first, second = (Bundle("run_model", "n", r, "0") for r in ("step0", "step1"))
    assert plan.turns[first] == []
    assert plan.turns[second] == ["results/jobs/score_tasks/n/step0/0.json"]
    assert Plan(config()).turns == {}
    assert Plan(config(disk=1000)).turns[second] == []


def test_without_activations_metrics_are_no_reason_to_run_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(config())
    embed = Job("embed_task", ("n", "step0", "STS12"))
    assert plan.passing(embed) > 0
    assert Plan(config(keep_embeddings=True)).passing(embed) == 0


def script(name: str) -> Any:
    """A script as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_job_that_the_disk_has_no_room_for_says_so_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = Plan(config())
    runs = [Run(plan, job, 1) for job in plan.members(Bundle("run_model", "n", "step0", "0"))]
    need = sum(plan.sizes.bytes_of(run.job) or 0 for run in runs)
    run_model = script("run_model")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=need))
    run_model.check_room(runs)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=need - 1))
    with pytest.raises(LayerwiseError, match=r"This job will write 0\.0 GB.* has 0\.0 GB free"):
        run_model.check_room(runs)
    # Parts that lie there of the same job need no room; of another one, they do.
    values = np.zeros((2, L, N, D), dtype=np.float32)
    for key in ("another", runs[0].stamp.key):
        part = layout.part(runs[0].files["embeddings"], 1)
        write(part, values, KEYS, key=key, parts="2")
        there = part.stat().st_size if key == runs[0].stamp.key else 0
        assert run_model.written_already(runs[0]) == there
    run_model.check_room(runs)


def test_parts_of_a_task_of_unknown_size_make_no_room_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = Plan(Config.of({**config().plain(), "tasks": ["STS12", "PangLeePolarity"]}))
    known, unknown = (Run(plan, Job("embed_task", ("n", "step0", task)), 1)
                      for task in ("STS12", "PangLeePolarity"))  # fmt: skip
    need = plan.sizes.bytes_of(known.job)
    assert need and plan.sizes.bytes_of(unknown.job) is None
    values = np.zeros((2, L, N, D), dtype=np.float32)
    write(layout.part(unknown.files["embeddings"], 1), values, KEYS, key=unknown.stamp.key)
    run_model = script("run_model")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=need - 1))
    with pytest.raises(LayerwiseError, match="This job will write"):
        run_model.check_room([known, unknown])


# The real thing

TASKS = ["LeeNewsSimilarity", "WikipediaArticlePairs", "WikipediaArticleReranking"]


def limited(**jobs: Any) -> dict[str, Any]:
    """The config of the workflow's tests with several tasks."""
    return changed(tasks=TASKS, jobs=jobs)


class Tiny(Project):
    """A project whose embeddings are in parts of a few texts."""

    def model(self) -> subprocess.Popen[bytes]:
        """Run the first model on what is due."""
        small = (
            "import runpy, sys; from layerwise.tasks import layout; layout.PART_BYTES = 30000; "
            "sys.argv = ['run_model.py', '--model', 'first', '--log', 'log.txt']; "
            "runpy.run_path('scripts/run_model.py', run_name='__main__')"
        )
        return subprocess.Popen(
            [sys.executable, "-c", small], cwd=self.folder, env=self.environment()
        )

    def scores(self) -> dict[str, pd.DataFrame]:
        """The tables of scores by their paths."""
        folder = self.folder / "results" / "scores"
        paths = folder.glob("*/*/*.parquet")
        return {str(path.relative_to(folder)): pd.read_parquet(path) for path in paths}

    def log(self) -> str:
        return (self.folder / "log.txt").read_text()

    def embeddings(self, task: str) -> np.ndarray:
        with Embeddings(self.folder / "results/embeddings/first/main" / f"{task}.h5") as file:
            return np.array([[file.layer(r, layer) for layer in range(file.n_layers)]
                             for r in file.readings])  # fmt: skip


@pytest.mark.slow
def test_a_kill_costs_a_part_and_a_new_task_its_new_texts(tmp_path: Path) -> None:
    project = Tiny(tmp_path / "project")
    texts = [f"results/tasks/{task}.texts.parquet" for task in TASKS]
    corpus = [f"results/corpora/mine.{suffix}" for suffix in ("parquet", "views.parquet")]
    jobs = {"half_from": 60}  # the pairs in half precision, LeeNewsSimilarity not
    first = limited(**jobs)
    first["tasks"] = TASKS[:2]
    project.write(first)
    project.snakemake(*corpus, *texts[:2])
    running = project.model()
    folder = project.folder / "results/embeddings/first/main/WikipediaArticlePairs"
    deadline = time.monotonic() + 120
    while running.poll() is None and not list(folder.glob("[0-9].h5")):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    running.kill()
    running.wait()
    done = {path: path.stat().st_mtime_ns for path in folder.parent.rglob("*.h5")}
    assert done
    assert not folder.with_suffix(".h5").exists()
    assert project.model().wait() == 0
    again = re.findall(r"WikipediaArticlePairs: part \d+ of \d+ is there", project.log())
    assert len(again) == len([path for path in done if path.parent == folder])
    assert {path: path.stat().st_mtime_ns for path in done} == done
    pairs = project.embeddings("WikipediaArticlePairs")
    # An unbroken run has the same values.
    shutil.rmtree(folder)
    folder.with_suffix(".h5").unlink()
    assert project.model().wait() == 0
    assert "is there" not in project.log()
    assert re.search(r"[\d.]+ s to the first batch so far, [\d.]+ s of passes", project.log())
    np.testing.assert_array_equal(project.embeddings("WikipediaArticlePairs"), pairs)
    # The reranking has the texts of the pairs.
    project.write(limited(**jobs))
    project.snakemake(texts[2])
    assert project.model().wait() == 0
    new = re.findall(r"(\w+): \d+ texts, (\d+) of them not embedded yet", project.log())
    assert new and {task for task, _ in new} == {TASKS[2]}
    assert {int(n) for _, n in new} == {0}
    assert project.embeddings(TASKS[2]).shape == pairs.shape


def started(output: str) -> int:
    """How many jobs of ``run_model`` a run has started, by Snakemake's messages."""
    return len(re.findall(r"^Job \d+: Running ", output, re.MULTILINE))


@pytest.mark.slow
def test_a_run_within_limits_ends_with_the_same_scores(tmp_path: Path) -> None:
    project = Tiny(tmp_path / "project")
    project.write(limited(keep_activations=False))
    output = project.snakemake()
    plain = project.scores()
    assert started(output) == 3
    shutil.rmtree(project.folder / ".snakemake")
    for path in (project.folder / "results").iterdir():
        if path.is_dir() and path.name not in ("tasks", "corpora"):  # which tell how many
            shutil.rmtree(path)
    # Each task and corpus a job of its own, one at a time on the disk.
    project.write(limited(gigabytes=1e-9, disk=1e-9, minutes=1, keep_activations=False))
    output = project.snakemake()
    assert started(output) == 4 + 4 + 1  # no study wants scores of the third checkpoint
    assert_same(project.scores(), plain)
    left = [p for n in ("activations", "embeddings")
            for p in (project.folder / "results" / n).rglob("*") if p.is_file()]  # fmt: skip
    assert not left
    assert project.jobs() == {}


@pytest.mark.parametrize("stage", ["score_task", "score_tokens", "score_labels"])
def test_what_a_job_that_scores_leaves_is_of_its_layers(
    monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """Whatever the task's name: it is no corpus."""
    known = sizes.Sizes(config(), {"shapes": {"n": (2, 64)}})
    monkeypatch.setattr(known, "shape", lambda _model: sizes.Shape(2, 64))
    assert known.stays(Job(stage, ("n", "main", "of no corpus"))) > 0
