"""The config: every key described and defaulted, every mistake one line that tells the mending."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT
from snakemake.utils import update_config

from layerwise.config import Config, read_config, schema
from layerwise.config.base import parse
from layerwise.config.corpora import FileTexts
from layerwise.config.reading import read_yaml
from layerwise.errors import LayerwiseError


def quickstart() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "config.yaml").read_text())


def put(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(config: dict[str, Any]) -> None:
        *parents, last = path.split("/")
        for part in parents:
            config = config.setdefault(part, {})
        config[last] = value

    return change


def drop(key: str) -> Callable[[dict[str, Any]], None]:
    return lambda config: config.pop(key)


# (change, what the one line must hold: where, what came, what is accepted or nearest)
BROKEN: list[tuple[str, Callable[[dict[str, Any]], None], tuple[str, ...]]] = [
    ("unknown top key", put("modles", {}), ("'modles'", "did you mean 'models'")),
    ("no models", drop("models"), ("'models'", "missing")),
    ("no study", put("studies", {}), ("studies", "{}", "at least 1")),
    ("models a list", put("models", ["a"]), ("models", '["a"]', "object")),
    ("unknown model key", put("models/minilm-l6/max_lenght", 9), ("minilm-l6", "did you mean 'max_length'")),
    ("source missing", put("models/x", {}), ("models.x", "'source'", "missing")),
    ("two sources", put("models/x", {"source": {"hub": "a", "folder": "b"}}), ("models.x.source", "unknown key")),
    ("hub no string", put("models/x", {"source": {"hub": 3}}), ("models.x.source.hub", "3", "string")),
    ("revisions empty", put("models/minilm-l6/revisions", []), ("minilm-l6.revisions", "[]", "at least 1")),
    ("revision twice", put("models/minilm-l6/revisions", ["a", "a"]), ("revisions", "once")),
    ("hostile name", put("models/..%2F", None) and put("models", {"../../x": {"source": {"hub": "a"}}}), ("../../x", "cannot be a name", "'..'")),
    ("device typo", put("extract/device", "gpu"), ("extract.device", '"gpu"', "auto")),
    ("dtype typo", put("extract/dtype", "float23"), ("extract.dtype", "did you mean 'float32'")),
    ("tokens typo", put("extract/tokens", ["all", "dropfirst"]), ("extract.tokens", "did you mean 'drop_first'")),
    ("threads nought", put("extract/threads", 0), ("extract.threads", "0", "1 or more")),
    ("states negative", put("extract/keep_states", -1), ("keep_states", "-1", "0 or more")),
    ("number as text", put("nano/pythia-nano/layers", "six"), ("nano.pythia-nano.layers", '"six"', "integer")),
    ("architecture typo", put("nano/pythia-nano/architecture", "gpt-neox"), ("architecture", "did you mean 'gpt_neox'")),
    ("nano not a model", put("nano/other", {"architecture": "mamba2"}), ("nano", "'other'", "pythia-nano")),
    ("kind typo", put("studies/a", {"kind": "score_by_dept"}), ("studies.a.kind", "did you mean 'score_by_depth'")),
    ("study's model", put("studies/a", {"kind": "score_by_depth", "models": ["minilm"]}), ("studies.a.models", "did you mean 'minilm-l6'")),
    ("study's task", put("studies/a", {"kind": "score_by_depth", "tasks": ["PangLee"]}), ("studies.a.tasks", "did you mean 'PangLeePolarity'")),
    ("study's revision", put("studies/a", {"kind": "metrics_by_depth", "models": ["pythia-nano"], "revisions": ["step3"]}), ("studies.a.revisions", "'step3'", "step32")),
    ("study key", put("studies/a", {"kind": "score_by_depth", "shade": "red"}), ("studies.a", "unknown key 'shade'")),
    ("corpus without source", put("corpora/c", {}), ("corpora.c", "one of the keys source, images")),
    ("filter typo", put("corpora/wikipedia/filters/min_token", 3), ("wikipedia.filters", "did you mean 'min_tokens'")),
    ("views negative", put("corpora/wikipedia/views/n", -2), ("wikipedia.views.n", "-2")),
    ("metric settings", put("metrics/alphas", [0]), ("metrics.alphas", "0")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "expected"), [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN]
)
def test_broken_configs_are_told_in_one_line(
    change: Callable[[dict[str, Any]], None], expected: tuple[str, ...]
) -> None:
    config = quickstart()
    change(config)
    with pytest.raises(LayerwiseError) as caught:
        Config.of(config)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 700
    for part in expected:
        assert part in message


def test_the_quickstart_is_valid_and_filled() -> None:
    config = read_config([ROOT / "config.yaml"])
    assert config.extract.dtype == "float32"
    assert config.models["minilm-l6"].revisions == ("main",)
    assert config.nano["pythia-nano"].layers == 6
    assert config.studies["score_by_depth"].models is None
    assert Config.of(config.plain()) == config


def test_several_files_are_one_config_as_snakemake_makes_it(tmp_path: Path) -> None:
    given: list[dict[str, Any]] = [
        {"extract": {"tokens": ["all"], "threads": 3}, "tasks": ["STS12"], "jobs": None},
        {"extract": {"dtype": "bfloat16", "threads": 4}, "tasks": ["STS13"], "jobs": {"items": 2}},
        {"models": {"m": {"source": {"package": "json"}}}, "tasks": {"STS14": None}},
    ]
    files, merged = [], dict[str, Any]()
    for number, document in enumerate(given):
        files.append(tmp_path / f"{number}.yaml")
        files[-1].write_text(yaml.safe_dump(document))
        update_config(merged, document)
    assert read_yaml(files) == merged
    assert merged["extract"] == {"tokens": ["all"], "threads": 4, "dtype": "bfloat16"}


@pytest.mark.parametrize("config", [None, [], "text"])
def test_a_config_that_is_no_mapping(config: Any) -> None:
    with pytest.raises(LayerwiseError, match="must be a mapping"):
        Config.of(config)


# What one section asks of another: found before any job, not after hours

UNFIT: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("protocol not extracted", {"metrics/protocols": ["paper"], "extract/protocols": ["reference"]}, ("metrics.protocols", "'paper'", "extract.protocols")),
    ("tokens not extracted", {"metrics/tokens": ["drop_sinks"]}, ("metrics.tokens", "'drop_sinks'")),
    ("metric of a study", {"studies/a": {"kind": "metrics_by_depth", "metrics": ["prompt_entropi"]}}, ("studies.a", "prompt_entropi", "did you mean 'prompt_entropy'")),
    ("alpha of a study", {"studies/a": {"kind": "metrics_by_depth", "metrics": ["prompt_entropy"], "alpha": 3}}, ("studies.a", "alpha", "3")),
    ("lidar without views", {"corpora/wikipedia/views/n": 0, "studies": {"a": {"kind": "metrics_by_depth", "metrics": ["lidar"]}}}, ("studies.a", "lidar", "views")),
    ("lidar asked for without views", {"corpora/wikipedia/views/n": 0, "metrics/metrics": ["lidar"], "studies": {"a": {"kind": "metrics_by_depth", "metrics": ["lidar"]}}}, ("lidar", "views")),
    ("several corpora", {"corpora/other": {"source": {"package": "lee"}}, "studies": {"a": {"kind": "checkpoint_heatmap", "models": ["pythia-nano"]}}}, ("studies.a", "mix several values of corpus", "name one")),
    ("a task of another type", {"tasks": ["PangLeePolarity", "BitextMining"], "studies": {"a": {"kind": "score_by_depth"}}}, ("tasks", "'BitextMining'")),
    ("a task that isn't", {"tasks": ["STS22222"], "studies": {"a": {"kind": "score_by_depth"}}}, ("tasks", "'STS22222'", "did you mean")),
    ("names that a file system takes for one", {"models/MiniLM-L6": {"source": {"hub": "a/b"}}}, ("models", "capitals")),
    ("a corpus named like its views", {"corpora/mine.views": {"source": {"package": "lee"}}}, ("corpora", "'mine.views'")),
    ("results at home", {"results": "~/x"}, ("results", "'~/x'")),
    ("results nowhere", {"results": ""}, ("results", '""')),
    ("results at the root", {"results": "/"}, ("results", "'/'")),
    ("trained models elsewhere", {"results": "other"}, ("models.pythia-nano.source", "folder: other/nano/pythia-nano/{revision}")),
    ("a trained model of the hub", {"models/pythia-nano/source": {"hub": "a/b"}}, ("models.pythia-nano.source", "'hub': 'a/b'")),
    ("results with braces", {"results": "a{b}"}, ("results", "braces")),
    ("a study of nothing published", {"studies/a": {"kind": "score_by_depth", "published": "pythia"}}, ("studies.a.published", "'pythia'")),
    ("texts of images", {"corpora/digits": {"images": {"package": "digits"}}, "studies/a": {"kind": "prompt_groups", "corpora": ["digits"]}}, ("studies.a", "'prompt_groups'", "texts", "digits holds images")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"), [u[1:] for u in UNFIT], ids=[u[0] for u in UNFIT]
)
def test_sections_that_do_not_fit_together(
    changes: dict[str, Any], expected: tuple[str, ...]
) -> None:
    config = quickstart()
    for path, value in changes.items():
        put(path, value)(config)
    with pytest.raises(LayerwiseError) as caught:
        Config.of(config)
    for part in expected:
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_metrics_follow_the_extraction() -> None:
    config = quickstart()
    put("extract/protocols", ["reference"])(config)
    put("studies", {"a": {"kind": "metrics_by_depth", "protocol": "reference"}})(config)
    assert Config.of(config).metrics.protocols is None


# Files

STRICT: list[tuple[str, str, tuple[str, ...]]] = [
    ("a key twice", "models: {}\ntasks: []\nmodels: {}\n", ("'models'", "twice", "line 3")),
    ("a key twice, deep", "models:\n  a: {source: {hub: x}}\n  a: {source: {hub: y}}\n", ("'a'", "twice")),
    ("no YAML", "models: [", ("no valid YAML",)),
    ("a date", "results: 2024-01-01\n", ("date", "quotes")),
    ("a number for a key", "models: {1: {source: {hub: x}}}\n", ("1", "quotes")),
    ("a list", "- a\n", ("mapping",)),
    ("bytes", "results: !!binary aGk=\n", ("bytes",)),
    ("an object", "results: !!python/object/apply:os.getcwd []\n", ("no valid YAML",)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), [s[1:] for s in STRICT], ids=[s[0] for s in STRICT])
def test_files_are_read_strictly(tmp_path: Path, text: str, expected: tuple[str, ...]) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(LayerwiseError) as caught:
        read_config([tmp_path / "c.yaml"])
    for part in expected:
        assert part in str(caught.value)


def test_a_bomb_of_aliases_is_refused_at_once(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]" for k in range(1, 12)]
    (tmp_path / "c.yaml").write_text("\n".join(lines))
    with pytest.raises(LayerwiseError, match="entries once its aliases are written out"):
        read_config([tmp_path / "c.yaml"])


# The schema


def nodes(schema: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(schema, dict):
        for name, sub in schema.get("properties", {}).items():
            yield f"{path}.{name}", sub
        for key, sub in schema.items():
            yield from nodes(sub, f"{path}/{key}")
    elif isinstance(schema, list):
        for sub in schema:
            yield from nodes(sub, path)


def test_every_key_is_described_and_no_object_takes_unknown_keys() -> None:
    for path, sub in nodes(schema.schema()):
        target = schema.schema()["$defs"][sub["$ref"].split("/")[-1]] if "$ref" in sub else sub
        assert target.get("description") or sub.get("description"), path
        if target.get("type") == "object":
            assert "additionalProperties" in target, path


def test_the_committed_schema_is_that_of_the_models() -> None:
    committed = (ROOT / "workflow" / "schemas" / "config.schema.yaml").read_text(encoding="utf-8")
    assert committed == schema.text(), "run: make schema"


def test_a_csv_of_prompts_is_told_how_to_become_parquet() -> None:
    with pytest.raises(LayerwiseError, match=r'"a/p\.csv"\)\.to_parquet\("a/p\.parquet"\)'):
        parse(FileTexts, {"file": "a/p.csv"})
