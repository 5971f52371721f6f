"""The evaluation pipeline: equal to mteb run by itself, resumable, within its scratch limit."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import mteb
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from helpers import tiny
from helpers.refused import refused
from mteb.models.abs_encoder import AbsEncoder
from sklearn.exceptions import ConvergenceWarning

import layerwise as lw
from layerwise.activations import embedding
from layerwise.activations.representation import Representation
from layerwise.config.settings import ExtractSettings, ScoringSettings
from layerwise.config.tasks import LabelledEntry
from layerwise.io import tables
from layerwise.models.load import LoadedModel, load
from layerwise.tasks import catalog
from layerwise.tasks import evaluate as module
from layerwise.tasks.evaluate import evaluate, join_tables
from layerwise.tasks.labelled import LabelledTask
from layerwise.tasks.mteb_task import MODEL, MtebTask
from layerwise.tasks.task import NoScoreError, normalized
from quickstart.tasks import TYPES
from tools.mteb_results import export_scores


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save("llama", tmp_path_factory.mktemp("models") / "llama", seed=5)


@pytest.fixture(scope="module")
def model(folder: Path) -> LoadedModel:
    return load("m", tiny.entry(folder), "main", device="cpu")


@pytest.fixture
def run(model: LoadedModel, tmp_path: Path) -> Callable[..., pd.DataFrame]:
    """Evaluate tasks and read the table of scores."""

    def evaluated(
        tasks: dict[str, Any],
        *,
        keys: dict[str, str] | None = None,
        load: Callable[[], LoadedModel] = lambda: model,
        threads: int = 1,
        **scoring: Any,
    ) -> pd.DataFrame:
        evaluate(
            load,
            tasks,
            extraction=ExtractSettings(tokens=("all",)),
            scoring=ScoringSettings(**scoring),
            keys=keys or dict.fromkeys(tasks, "1"),
            key="all",
            output=tmp_path / "main.parquet",
            threads=threads,
        )
        return pd.read_parquet(tmp_path / "main.parquet")

    return evaluated


def quickstart(folders: dict[str, str], *names: str) -> dict[str, Any]:
    return {name: MtebTask(name, folders[name], TYPES[name]) for name in names or TYPES}


# What mteb writes beside scores.
UNSCORED = {"hf_subset", "languages", "mteb_version"}


class Plain(AbsEncoder):
    """What anyone would write for mteb: embed the texts with the model, take one layer."""

    mteb_model_meta = MODEL

    def __init__(self, model: LoadedModel, layer: int, normalize: bool) -> None:
        self.loaded, self.layer, self.normalize = model, layer, normalize

    def encode(self, inputs: Any, **_: Any) -> np.ndarray:
        texts = [text for batch in inputs for text in batch["text"]]
        distinct = list(dict.fromkeys(texts))
        found = embedding.embed(self.loaded, distinct, [Representation(readout="final_norm")])
        places = {text: place for place, text in enumerate(distinct)}
        vectors = found[0, self.layer][[places[text] for text in texts]]
        return normalized(vectors) if self.normalize else vectors


@pytest.mark.parametrize("normalize", [None, True])
def test_scores_are_those_of_mteb_run_by_itself(
    run: Any,
    model: LoadedModel,
    folders: dict[str, str],
    normalize: bool | None,
) -> None:
    names = list(TYPES) if normalize else ["PangLeePolarity"]
    table = run(quickstart(folders, *names), normalize=normalize, sub_scores=bool(normalize))
    assert table["sub_scores"].notna().all() == bool(normalize)
    for name in names:
        task = catalog.get_task(name, folders[name], TYPES[name])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = mteb.evaluate(
                Plain(model, 2, bool(normalize)),
                task,
                cache=None,
                co2_tracker=False,
                show_progress_bar=False,
            )
        (scores,) = result.task_results[0].scores["test"]
        row = table[(table["task"] == name) & (table["layer"] == 2)].iloc[0]
        assert row["main_score"] == pytest.approx(scores["main_score"], abs=2e-3), name
        runs = scores.get("v_measures") or scores.get("scores_per_experiment") or [0]
        assert row["n_runs"] == len(runs)
        if normalize:
            assert set(scores) - set(json.loads(row["sub_scores"])) <= UNSCORED


def test_mteb_reads_the_scores_of_each_layer(
    run: Any, folders: dict[str, str], tmp_path: Path
) -> None:
    names = ["PangLeePolarity", "WikipediaArticleClustering"]
    table = run(quickstart(folders, *names), sub_scores=True)
    (tmp_path / "r/scores/m").mkdir(parents=True)
    shutil.copy(tmp_path / "main.parquet", tmp_path / "r/scores/m")
    tasks = {name: {"folder": folders[name], "type": TYPES[name]} for name in names}
    config = {"tasks": tasks, "studies": {"law": {"kind": "power_law"}}}
    (tmp_path / "r/config.json").write_text(json.dumps(config))
    assert export_scores(lw.open(tmp_path / "r"), tmp_path / "out") == 8
    cache = mteb.ResultCache(tmp_path / "out")
    paths = cache.get_cache_paths(load_experiments="match_name")
    assert {path.parent.name for path in paths} == {f"layer_{layer}" for layer in range(4)}
    for path in paths:
        result = mteb.TaskResult.from_disk(path)
        layer = int(path.parent.name.removeprefix("layer_"))
        row = table[(table["task"] == result.task_name) & (table["layer"] == layer)].iloc[0]
        (scores,) = result.scores["test"]
        assert scores["main_score"] == pytest.approx(row["main_score"], abs=1e-6)
        assert {"f1", "v_measures"} & set(scores)
    # Another subset is in the same file, another token selection has files of its own.
    kept = tmp_path / "r/scores/m/main.parquet"
    rows = pd.read_parquet(kept)
    tables.write(kept, pd.concat([rows, rows.assign(subset="more")]), **tables.facts(kept))
    assert export_scores(lw.open(tmp_path / "r"), tmp_path / "subsets") == 8
    written = [*(tmp_path / "subsets").rglob("*Polarity.json")]
    assert {len(json.loads(path.read_text())["scores"]["test"]) for path in written} == {2}
    several = pd.concat([rows, rows.assign(tokens="drop_first")])
    tables.write(kept, several, **tables.facts(kept))
    assert export_scores(lw.open(tmp_path / "r"), tmp_path / "several") == 16
    cache = mteb.ResultCache(tmp_path / "several")
    assert len(cache.get_cache_paths(load_experiments="match_name")) == 16
    plain = run(quickstart(folders, *names), keys=dict.fromkeys(names, "2"))
    pd.testing.assert_series_equal(plain["main_score"], table["main_score"])
    shutil.copy(tmp_path / "main.parquet", tmp_path / "r/scores/m")
    with refused("missing"):
        export_scores(lw.open(tmp_path / "r"), tmp_path / "out")


def test_processes_and_divided_tasks_change_nothing(
    run: Any,
    folders: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    tasks = quickstart(folders, "WikipediaArticleClustering", "LeeNewsSimilarity")
    tasks["mine"] = own_task(tmp_path)
    whole = run(tasks)
    keys = dict.fromkeys(tasks, "2")
    units: list[Any] = []
    submit = module._score_cells
    watched = lambda task, selection, *a: units.append(selection) or submit(task, selection, *a)  # noqa: E731
    monkeypatch.setattr(module, "_score_cells", watched)
    # 96 texts of 3 + 1 layers of 32 numbers are 49 kB.
    monkeypatch.setattr(module, "WAITING_BYTES", 4e4)
    pd.testing.assert_frame_equal(whole, run(tasks, keys=keys))
    assert len({unit for unit in units if unit}) > 2
    monkeypatch.setattr(module, "_score_cells", submit)
    # Processes that score read mteb's data, while the tasks before are embedded.
    monkeypatch.delattr(MtebTask, "units")
    keys = dict.fromkeys(tasks, "3")
    pd.testing.assert_frame_equal(whole, run(tasks, keys=keys, threads=2))
    assert whole["control"].notna().sum() == (whole["task"] == "mine").sum() == 4


def own_task(folder: Path) -> Any:
    texts = tiny.texts(40, seed=21)
    labels = ["long" if len(text) > 60 else "short" for text in texts]
    pd.DataFrame({"text": texts, "label": labels}).to_csv(folder / "own.csv", index=False)
    entry = LabelledEntry(file=str(folder / "own.csv"), kind="classification")
    return LabelledTask(entry)


def damage(path: Path) -> None:
    """Change the last byte of the first column; the rest of the file stays as it is."""
    column = pq.read_metadata(path).row_group(0).column(0)
    start = column.dictionary_page_offset or column.data_page_offset
    content = bytearray(path.read_bytes())
    content[start + column.total_compressed_size - 1] ^= 1
    path.write_bytes(content)


def test_a_killed_job_goes_on_where_it_was(
    run: Any,
    model: LoadedModel,
    folders: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    tasks = quickstart(folders, "LeeNewsSimilarity", "WikipediaArticlePairs")
    embedded: list[int] = []
    embed_into = embedding.embed_into

    def dies(loaded: Any, texts: Any, *args: Any, **options: Any) -> Iterator[int]:
        embedded.append(len(texts))
        if len(embedded) == 2:
            raise KeyboardInterrupt
        return embed_into(loaded, texts, *args, **options)

    monkeypatch.setattr(embedding, "embed_into", dies)
    with pytest.raises(KeyboardInterrupt):
        run(tasks)
    assert not (tmp_path / "main.parquet").exists()
    loads: list[int] = []
    run(tasks, load=lambda: loads.append(1) or model)
    assert embedded == [50, 96, 96] and loads == [1]
    # Nothing is due; then one task has another key; then a part is damaged.
    before = run(tasks, load=lambda: loads.append(1) or model)
    assert loads == [1]
    assert tables.facts(tmp_path / "main.parquet")["key"] == "all"
    run(tasks, keys={"LeeNewsSimilarity": "2", "WikipediaArticlePairs": "1"})
    assert embedded[3:] == [50]
    part = tmp_path / "main/WikipediaArticlePairs.parquet"
    damage(part)
    (tmp_path / "main/other.parquet").write_text("of a task that is not asked for")
    after = run(tasks, keys={"LeeNewsSimilarity": "2", "WikipediaArticlePairs": "1"})
    assert embedded[4:] == [96]
    pd.testing.assert_frame_equal(before, after)
    assert (tmp_path / "main/other.parquet").exists()


def test_tables_of_another_division_into_parts_are_not_joined(
    run: Callable[..., pd.DataFrame], tmp_path: Path
) -> None:
    """A newer version may divide the tasks otherwise while a run is incomplete."""
    run({"own": own_task(tmp_path)})
    part, joined = tmp_path / "main/own.parquet", tmp_path / "joined.parquet"
    for parts, tasks in (([part], ["own", "other"]), ([part], []), ([part, part], ["own"])):
        with refused("mismatch"):
            join_tables(parts, tasks, key="all", output=joined)
    join_tables([part], ["own"], key="all", output=joined)
    assert set(pd.read_parquet(joined)["task"]) == {"own"}


def test_a_joined_table_names_all_versions_and_is_of_the_same_weights(
    run: Callable[..., pd.DataFrame], tmp_path: Path
) -> None:
    run({"own": own_task(tmp_path)})
    part, other, joined = (tmp_path / name for name in ("main/own.parquet", "b", "joined.parquet"))
    facts = tables.facts(part)
    here = json.loads(facts["versions"])
    rows = pd.read_parquet(part).assign(task="other")
    tables.write(other, rows, **facts | {"versions": {**here, "torch": "1.0"}})
    join_tables([part, other], ["own", "other"], key="all", output=joined)
    versions = json.loads(tables.facts(joined)["versions"])
    assert versions == here | {"torch": ", ".join(sorted(["1.0", here["torch"]]))}
    tables.write(other, rows, **facts | {"weights_sha256": "0" * 64})
    with refused("mismatch"):
        join_tables([part, other], ["own", "other"], key="all", output=joined)


def test_a_joined_table_keeps_the_order_of_rows_within_a_task(
    run: Callable[..., pd.DataFrame], tmp_path: Path
) -> None:
    run({"own": own_task(tmp_path)})
    part, many, joined = (tmp_path / name for name in ("main/own.parquet", "b", "joined.parquet"))
    row, tasks = pd.read_parquet(part).head(1), [f"task {n}" for n in range(7)]
    rows = pd.concat([row] * 700).assign(layer=range(700), task=np.resize(tasks, 700))
    tables.write(many, rows, **tables.facts(part))
    join_tables([many], tasks[::-1], key="all", output=joined)
    order = rows.assign(place=-rows["task"].map(tasks.index)).sort_values(["place", "layer"])
    assert pd.read_parquet(joined)["layer"].tolist() == order["layer"].tolist()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_failing_task_does_not_stop_the_others(
    run: Any,
    folders: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    threads: int,
) -> None:
    """Of four tasks one has no data, one a text that cannot be embedded, one labels that fail."""
    (tmp_path / "empty").mkdir()
    tasks: dict[str, Any] = {"BIOSSES": MtebTask("BIOSSES", str(tmp_path / "empty"))}
    tasks |= {"scored": Unscorable(own_task(tmp_path).entry)}
    tasks |= quickstart(folders, "LeeNewsSimilarity", "PangLeePolarity")
    embed_into = embedding.embed_into

    def fails(loaded: Any, texts: Any, *args: Any, **options: Any) -> Iterator[int]:
        if len(texts) >= 200:
            raise RuntimeError("a review")
        return embed_into(loaded, texts, *args, **options)

    monkeypatch.setattr(embedding, "embed_into", fails)
    with refused("missing_file") as caught:
        run(tasks, threads=threads)
    assert "3 of 4 tasks failed" in str(caught.value)
    assert [p.stem for p in (tmp_path / "main").iterdir()] == ["LeeNewsSimilarity"]
    assert not (tmp_path / "main.parquet").exists()


class Unreadable(LabelledTask):
    def representations(self, _: Any) -> Any:
        raise NoScoreError("no readout of this model")


def test_a_task_that_cannot_be_recorded_does_not_stop_the_others(
    run: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    entry = own_task(tmp_path).entry
    with refused("unsupported") as caught:
        run({"unreadable": Unreadable(entry), "own": LabelledTask(entry)})
    assert str(caught.value) == "no readout of this model"
    assert any("no readout" in message for message in caplog.messages), "before the others end"
    assert [p.stem for p in (tmp_path / "main").iterdir()] == ["own"]


class Unscorable(LabelledTask):
    def score(self, *_: Any) -> Any:
        raise ValueError("scikit-learn does not like these labels")


class Unconverged(LabelledTask):
    def score(self, *arguments: Any) -> Any:
        for _ in range(3):
            warnings.warn("lbfgs failed to converge", ConvergenceWarning, stacklevel=2)
        warnings.warn("another", UserWarning, stacklevel=2)
        return super().score(*arguments)


def test_fits_that_do_not_converge_are_counted_in_a_line(
    run: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with pytest.warns(UserWarning, match="another") as caught:
        run({"own": Unconverged(own_task(tmp_path).entry)})
    assert not [one for one in caught if one.category is ConvergenceWarning]
    lines = [line for line in caplog.messages if "converge" in line]
    assert lines == ["own: 12 fits did not converge"]


def test_texts_of_several_tasks_are_embedded_once(
    run: Any, folders: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"WikipediaArticle{kind}" for kind in ("Pairs", "Clustering", "Reranking")]
    alone = [run(quickstart(folders, name)) for name in names]
    embedded: list[int] = []
    embed_into = embedding.embed_into

    def counts(loaded: Any, texts: Any, *args: Any, **options: Any) -> Iterator[int]:
        embedded.append(len(texts))
        return embed_into(loaded, texts, *args, **options)

    monkeypatch.setattr(embedding, "embed_into", counts)
    together = run(quickstart(folders, *names), keys=dict.fromkeys(names, "2"))
    assert embedded == [96]
    pd.testing.assert_frame_equal(together, pd.concat(alone, ignore_index=True))
    # Of tasks that are read in other ways, none has the vectors of another.
    monkeypatch.setattr(MtebTask, "reader", property(lambda task: task.name))
    run(quickstart(folders, *names), keys=dict.fromkeys(names, "3"))
    assert len(embedded) == 1 + len(names) and sum(embedded[1:]) > 96


def test_vectors_that_wait_stay_within_the_limit(
    run: Any,
    folders: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []
    allocate = module.allocate

    def watched(path: Path, shape: tuple[int, ...]) -> Any:
        into = allocate(path, shape)
        sizes.append(sum(file.stat().st_size for file in path.parent.iterdir()))
        return into

    @contextmanager
    def threads(*_: Any) -> Iterator[Executor]:
        with ThreadPoolExecutor(1) as pool:
            yield pool

    monkeypatch.setattr(module, "allocate", watched)
    monkeypatch.setattr(module, "_scorers", threads)
    for key, limit, n_files in (("1", 70_000, 2), ("2", 60_000, 1)):  # A set has 64 texts.
        sizes.clear()
        keys = {"WikipediaArticleClustering": key}
        monkeypatch.setattr(module, "WAITING_BYTES", limit)
        run(quickstart(folders, *keys), keys=keys)
        # The header of a file is 128 bytes.
        assert len(sizes) > 3 and max(sizes) == n_files * (64 * 512 + 128)


def test_a_killed_scoring_process_is_named(
    run: Any, folders: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dies(Executor):
        def submit(self, *_: Any, **__: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.set_exception(BrokenProcessPool("killed"))
            return future

    monkeypatch.setattr(module, "_scorers", lambda *_: nullcontext(Dies()))
    with refused("no_memory"):
        run(quickstart(folders, "LeeNewsSimilarity"))


@pytest.mark.slow
def test_processes_that_score_end_with_a_killed_job() -> None:
    code = (
        "import os, signal\nfrom layerwise.tasks.evaluate import _scorers\n"
        "with _scorers(2, set()) as pool:\n    pool.submit(int).result()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    # Reading ends when no process holds the pipe any more.
    subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=300, check=False)


def test_a_full_scratch_disk_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "posix_fallocate", full)
    with refused("disk"):
        module.allocate(tmp_path / "a.npy", (1, 2, 3, 4))


def test_prompts_stand_in_front_and_need_not_count(
    folder: Path,
    model: LoadedModel,
    folders: dict[str, str],
    tmp_path: Path,
) -> None:
    """Vectors are those of prompt and text together, over all tokens or the text's alone."""
    texts = tiny.texts(4, seed=3)
    ways = [Representation(pooling=pooling) for pooling in ("mean", "weighted_mean")]
    both = embedding.embed(model, [f"quick fox {text}" for text in texts], ways)
    prompted = embedding.embed(model, texts, ways, prompts=["quick fox "] * 4)
    np.testing.assert_allclose(prompted, both, rtol=1e-4, atol=1e-6)
    alone = embedding.embed(model, texts, ways, prompts=["quick fox "] * 4, include_prompt=False)
    # Without a prompt, a text's first token is its own.
    dropped = [Representation("drop_first")]
    mixed = embedding.embed(
        model, texts, dropped, prompts=["quick fox ", "", "", "a "], include_prompt=False
    )
    bare = embedding.embed(model, texts, dropped)
    np.testing.assert_allclose(mixed[:, :, 1:3], bare[:, :, 1:3], atol=1e-6)
    n_all = np.array(
        [len(ids) for ids in model.texts.prompts([f"quick fox {t}" for t in texts])[0]]
    )
    n_prompt = embedding.prompt_length(model, "quick fox ")
    ids = [model.texts.prompts([f"quick fox {t}"])[0][0] for t in texts]
    # Layer 0 has one state for each token, whatever is around it.
    table = model.model.get_input_embeddings().weight.detach().numpy()
    for row in range(4):
        assert n_all[row] == len(ids[row])
        states = table[ids[row][n_prompt:]]
        np.testing.assert_allclose(alone[0, 0, row], states.mean(axis=0), atol=1e-6)
        # A token's weight is its position in prompt and text together.
        weights = np.arange(n_prompt, len(ids[row])) + 1.0
        expected = np.average(states, axis=0, weights=weights)
        np.testing.assert_allclose(alone[1, 0, row], expected, atol=1e-6)
    # The first token is one of the prompt's, which do not count anyway.
    dropped = [Representation("drop_first", pooling) for pooling in ("mean", "weighted_mean")]
    options = {"prompts": ["quick fox "] * 4, "include_prompt": False}
    np.testing.assert_allclose(embedding.embed(model, texts, dropped, **options), alone, atol=1e-6)


def test_final_norm_is_the_models_output_at_the_last_layer(tmp_path: Path) -> None:
    import torch

    for family in ("llama", "bert", "mamba2"):
        entry = tiny.entry(tiny.save(family, tmp_path / family))
        loaded = load(family, entry, "main", device="cpu")
        text = tiny.texts(1)[0]
        ways = [Representation(readout=name) for name in ("residual", "final_norm")]
        vectors = embedding.embed(loaded, [text], ways)
        with torch.inference_mode():
            output = loaded.model(torch.tensor(loaded.texts.prompts([text])[0])).last_hidden_state
        np.testing.assert_allclose(vectors[1, -1, 0], output[0].mean(dim=0), atol=1e-5)
        has_norm = loaded.anatomy.final_norm is not None
        assert np.allclose(vectors[0, :-1], vectors[1, :-1]) == (not has_norm)
