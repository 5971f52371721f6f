"""A corpus in shards reads as one file, with the values of an extraction in one go."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st
from test_workflow import Project, changed

from layerwise.activations.extract import extract
from layerwise.activations.shards import extract_shard, join, split
from layerwise.activations.store import Activations
from layerwise.config import Config
from layerwise.section import parse
from layerwise.config.extraction import ExtractSettings
from layerwise.config.metrics import MetricsSettings
from layerwise.errors import LayerwiseError
from layerwise.metrics import table
from layerwise.models.load import LoadedModel, load
from layerwise.workflow.plan import Plan
from layerwise.workflow.targets import Job

N = 23
SETTINGS: dict[str, Any] = {
    "prefixes": True,
    "tokens": ("all", "drop_first", "drop_sinks"), "sublayers": ("mixer", "mlp"), "shards": 3,
    "keep_states": 9,
}  # fmt: skip


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tiny.save("llama", tmp_path_factory.mktemp("model"))
    return load("m", tiny.entry(folder), "main", device="cpu")


def given_texts(n: int = N) -> dict[str, Any]:
    # Lengths differ between the shards, so that each has a rank of its own.
    views = [
        [
            text
            for k in range(3)
            for text in tiny.texts(n, seed=10 * v + k, shortest=4, longest=12 + 9 * k)[k::3]
        ]
        for v in range(3)
    ]
    return {"corpus": "c", "prompts": [f"p{i}" for i in range(n)], "views": views}


@pytest.fixture(scope="module")
def files(loaded: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The whole, and the same from shards."""
    folder = tmp_path_factory.mktemp("files")
    settings = ExtractSettings(**SETTINGS)
    whole, joined = folder / "whole.h5", folder / "joined.h5"
    extract(
        loaded, **given_texts(), settings=settings, target=whole, attributes={"corpus_sha256": "x"}
    )
    make_shards(loaded, joined, settings)
    return whole, joined


def make_shards(loaded: LoadedModel, joined: Path, settings: ExtractSettings, n: int = N) -> None:
    paths = [joined.with_suffix(".shards") / f"{k}.h5" for k in range(settings.shards)]
    for k, path in enumerate(paths):
        extract_shard(
            loaded, **given_texts(n), settings=settings, shard=k, target=path,
            attributes={"corpus_sha256": "x"},
        )  # fmt: skip
    join(paths, joined, {"key": "of the joined one"})


def copied(files: tuple[Path, Path], folder: Path) -> Path:
    shutil.copytree(files[1].parent, folder, dirs_exist_ok=True)
    return folder / files[1].name


@given(st.integers(0, 500), st.integers(1, 60))
def test_shards_cover_all_prompts_evenly(n: int, shards: int) -> None:
    parts = split(n, shards)
    assert [i for part in parts for i in part] == list(range(n))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_every_array_is_that_of_one_extraction(files: tuple[Path, Path]) -> None:
    with h5py.File(files[0]) as whole, h5py.File(files[1]) as joined:
        names: list[str] = []
        whole.visit(names.append)
        found: list[str] = []
        joined.visit(found.append)
        assert found == names
        compared = 0
        for name in names:
            a, b = whole[name], joined[name]
            if not isinstance(a, h5py.Dataset):
                continue
            assert a.shape == b.shape, name
            assert a.dtype == b.dtype, name
            assert [d[0].name for d in a.dims if len(d)] == [d[0].name for d in b.dims if len(d)]
            if a.dtype.kind == "f":
                x, y = a[()], b[()]
                if name.startswith("sublayers") and name.endswith("spectrum"):
                    # Nobody reads the embedding output's parts: there are none.
                    x, y = x[:, :, 1:], y[:, :, 1:]
                if name.startswith("sublayers") and name.endswith("/norm"):
                    x, y = x[1:], y[1:]
                # Other batches round otherwise.
                assert np.allclose(x, y, rtol=1e-4, atol=1e-5, equal_nan=True), name
                compared += 1
            else:
                assert np.array_equal(a[()], b[()]), name
        assert compared > 6
        assert joined["pooled"].is_virtual
        assert joined.attrs["key"] == "of the joined one"
        assert joined.attrs["model"] == whole.attrs["model"]


def test_states_of_the_first_prompts_cross_the_border_of_a_shard(
    files: tuple[Path, Path],
) -> None:
    with Activations(files[0]) as whole, Activations(files[1]) as joined:
        a, b = whole.states(1), joined.states(1)
    assert len(a) == len(b) == 9 > N // 3
    for x, y in zip(a, b, strict=True):
        assert np.allclose(x, y, atol=1e-5)


def test_metrics_do_not_know(files: tuple[Path, Path]) -> None:
    settings = parse(MetricsSettings, {"metrics": ["prompt_entropy", "curvature", "infonce"]})
    frames = []
    for path in files:
        with Activations(path) as activations:
            frames.append(table.compute(activations, settings)[0])
    a, b = frames
    assert len(a) == len(b) > 0
    assert np.allclose(a["value"], b["value"], rtol=1e-4)
    same = [column for column in a.columns if column not in ("value", "stderr")]
    assert a[same].equals(b[same])


def test_more_shards_than_prompts(loaded: LoadedModel, tmp_path: Path) -> None:
    make_shards(loaded, tmp_path / "few.h5", ExtractSettings(shards=7), n=4)
    with Activations(tmp_path / "few.h5") as few:
        assert few.prompts == ("p0", "p1", "p2", "p3")
        assert np.isfinite(few.pooled("paper", "all", 2)).all()


def test_the_folder_may_move(files: tuple[Path, Path], tmp_path: Path) -> None:
    with Activations(copied(files, tmp_path)) as moved, Activations(files[1]) as before:
        assert np.array_equal(moved.pooled("paper", "all", 1), before.pooled("paper", "all", 1))
        assert moved.pooled("paper", "all", 1).any()


@pytest.mark.parametrize("wrong", ["gone", "another", "damaged"])
def test_a_shard_that_is_not_what_it_was_is_an_error(
    wrong: str, files: tuple[Path, Path], tmp_path: Path
) -> None:
    path = copied(files, tmp_path)
    shard = path.with_suffix(".shards") / "1.h5"
    if wrong == "gone":
        shard.unlink()
    elif wrong == "another":
        shutil.copy(shard.with_name("2.h5"), shard)
    else:
        with h5py.File(shard) as file:
            at = file["pooled"].id.get_chunk_info(0).byte_offset
        content = bytearray(shard.read_bytes())
        content[at + 5] ^= 1
        shard.write_bytes(content)
    said = {"gone": "is not there", "another": "another by now", "damaged": "damaged"}[wrong]
    with pytest.raises(LayerwiseError, match=said), Activations(path) as activations:
        activations.pooled("paper", "all", 0)


def test_shards_of_different_models_are_refused(
    files: tuple[Path, Path], loaded: LoadedModel, tmp_path: Path
) -> None:
    path = copied(files, tmp_path)
    paths = sorted(path.with_suffix(".shards").iterdir())
    with h5py.File(paths[1], "a") as file:
        del file.attrs["seal"]
        file.attrs["weights_sha256"] = "other"
    with pytest.raises(LayerwiseError, match="no shards of one extraction"):
        join(paths, tmp_path / "again.h5", {})


CONFIG: dict[str, Any] = {
    "models": {"m": {"source": {"hub": "a/b"}}},
    "corpora": {"c": {"source": {"package": "lee"}}},
    "studies": {"s": {"kind": "metrics_by_depth"}},
}


def plan_of(**extract: Any) -> Plan:
    return Plan(Config.of({**CONFIG, "extract": extract}))


def test_one_shard_is_no_shard_and_the_number_decides_no_key_of_its_own() -> None:
    job = Job("extract_activations", ("m", "main", "c"))
    assert plan_of().key(job) == plan_of(shards=1).key(job)
    assert not plan_of().jobs_of("extract_shard")
    assert "shards" not in plan_of(shards=3).recipe(job)["settings"]["extract"]


def test_a_lost_shard_alone_is_made_again(
    loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = plan_of(shards=3)
    shards = plan.jobs_of("extract_shard")
    assert [job.names[-1] for job in shards] == ["0", "1", "2"]
    settings = ExtractSettings(shards=3)
    for shard, job in enumerate(shards):
        extract_shard(
            loaded, **given_texts(), settings=settings, shard=shard, target=plan.stamped(job),
            attributes=plan.stamp(job).facts(),
        )  # fmt: skip
    Path(plan.paths(shards[1])["activations"]).unlink()
    due = [job for job in plan_of(shards=3).jobs_due() if job.stage.startswith("extract")]
    assert due == [shards[1], Job("extract_activations", ("m", "main", "c"))]


@pytest.mark.slow
def test_the_workflow_runs_shards_as_jobs_and_joins_them(tmp_path: Path) -> None:
    project = Project(tmp_path)
    config = changed(extract__shards=3)
    config["studies"] = {"s": {"kind": "metrics_by_depth", "models": ["first"]}}
    project.write(config)
    assert project.jobs()["extract_shard"] == 3
    project.snakemake()
    folder = tmp_path / "results" / "activations" / "first" / "main"
    with Activations(folder / "mine.h5") as joined:
        assert len(joined.prompts) > 100
    assert project.jobs() == {}
    # As if the job of one of them had been killed, before they were joined.
    (folder / "mine.h5").unlink()
    (folder / "mine.shards" / "1.h5").unlink()
    for made in ("metrics", "figures", "tables"):
        shutil.rmtree(tmp_path / "results" / made)
    left = project.jobs()
    assert left["extract_shard"] == 1
    assert left["run_model"] == 1
    project.snakemake()
    with Activations(folder / "mine.h5") as joined:
        assert np.isfinite(joined.pooled("paper", "all", 1)).all()
