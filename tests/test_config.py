"""The config: every key described and defaulted, every mistake one line that tells the mending."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from conftest import ROOT

from layerwise.config import complete, read_schema
from layerwise.errors import LayerwiseError
from layerwise.plan import Plan

SCHEMA = read_schema(ROOT / "workflow" / "schemas" / "config.schema.yaml")


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
    ("study key", put("studies/a", {"kind": "score_by_depth", "colour": "red"}), ("studies.a", "unknown key 'colour'")),
    ("corpus without source", put("corpora/c", {}), ("corpora.c", "'source'")),
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
        complete(config, SCHEMA)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 600
    for part in expected:
        assert part in message


def test_the_quickstart_is_valid_and_filled() -> None:
    given = quickstart()
    config = complete(given, SCHEMA)
    assert config["extract"]["dtype"] == "float32"
    assert config["models"]["minilm-l6"]["revisions"] == ["main"]
    assert config["nano"]["pythia-nano"]["layers"] == 6
    assert config["studies"]["score_by_depth"]["models"] is None
    assert given == quickstart()
    assert complete(config, SCHEMA) == config


@pytest.mark.parametrize("config", [None, [], "text"])
def test_a_config_that_is_no_mapping(config: Any) -> None:
    with pytest.raises(LayerwiseError, match="must be a mapping"):
        complete(config, SCHEMA)


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
    for path, sub in nodes(SCHEMA):
        target = SCHEMA["$defs"][sub["$ref"].split("/")[-1]] if "$ref" in sub else sub
        assert target.get("description") or sub.get("description"), path
        if target.get("type") == "object":
            assert "additionalProperties" in target, path


# Plans: what a change of the config reruns


def plan(**changes: Any) -> Plan:
    config = quickstart()
    for path, value in changes.items():
        put(path.replace("__", "/"), value)(config)
    return Plan(complete(config, SCHEMA))


def keys(p: Plan) -> dict[str, str]:
    found = {}
    for study in p.config["studies"]:
        found[f"study {study}"] = p.study_key(study)
        for m, r in p.points(study):
            for c in p.study(study)["corpora"]:
                found[f"extract {m} {r} {c}"] = p.extract_key(m, r, c)
                found[f"metrics {m} {r} {c}"] = p.metrics_key(m, r, c)
            for t in p.study(study)["tasks"]:
                found[f"embed {m} {r} {t}"] = p.embed_key(m, r, t)
                found[f"score {m} {r} {t}"] = p.score_key(m, r, t)
    return found


def changed(before: Plan, after: Plan) -> set[str]:
    a, b = keys(before), keys(after)
    return {k for k in a.keys() & b.keys() if a[k] != b[k]}


def test_device_batch_size_and_threads_rerun_nothing() -> None:
    other = plan(extract__device="cpu", extract__batch_tokens=512, extract__threads=1)
    assert changed(plan(), other) == set()


def test_another_dtype_reruns_all_forward_passes() -> None:
    touched = changed(plan(), plan(extract__dtype="bfloat16"))
    assert {k for k in keys(plan()) if k.startswith(("extract", "embed"))} <= touched


def test_metric_settings_rerun_metrics_and_their_figures_alone() -> None:
    touched = changed(plan(), plan(metrics__seed=1))
    assert any(k.startswith("metrics") for k in touched)
    assert "study metrics_by_depth" in touched
    assert not any(k.startswith(("extract", "embed", "score")) for k in touched)
    assert "study score_by_depth" not in touched


def test_a_new_checkpoint_changes_no_other_checkpoint() -> None:
    config = quickstart()
    steps = [s for s in config["models"]["pythia-nano"]["revisions"] if s != "step64"]
    fewer = plan(**{"models__pythia-nano__revisions": steps})
    touched = changed(fewer, plan())
    assert touched == {"study metrics_over_checkpoints"}


def test_a_new_view_reruns_its_corpus_and_no_task() -> None:
    touched = changed(plan(), plan(corpora__wikipedia__views__n=3))
    assert {k.split()[0] for k in touched} == {"extract", "metrics", "study"}


def test_changed_texts_of_a_file_rerun_the_corpus(tmp_path: Any) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("one\n")
    config = copy.deepcopy(quickstart())
    config["corpora"]["mine"] = {"source": {"file": str(file)}}
    before = Plan(complete(config, SCHEMA)).corpus_key("mine")
    assert Plan(complete(config, SCHEMA)).corpus_key("mine") == before
    file.write_text("two\n")
    assert Plan(complete(config, SCHEMA)).corpus_key("mine") != before


@pytest.mark.parametrize(
    ("model", "revision", "words"),
    [
        (
            "pythia-nano",
            "step65",
            "no revision 'step65' of 'pythia-nano' in this config (did you mean 'step64'?)",
        ),
        ("minilm-l6", "other", "no revision 'other' of 'minilm-l6'"),
        ("pythia-mano", "step64", "no 'pythia-mano' under models in this config (did you mean"),
    ],
)
def test_files_asked_for_by_hand_have_to_be_of_the_config(
    model: str, revision: str, words: str
) -> None:
    with pytest.raises(LayerwiseError, match=re.escape(words)):
        plan().model_key(model, revision)


def test_weights_changed_anywhere_are_noticed(tmp_path: Any) -> None:
    weights = tmp_path / "model.safetensors"
    size = 24 * 2**20

    def key() -> str:
        return plan(**{"models__minilm-l6__source": {"folder": str(tmp_path)}}).model_key(
            "minilm-l6", "main"
        )

    weights.write_bytes(bytes(size))
    before = key()
    assert key() == before
    for start, length in ((size // 2, 2**18), (size - 1, 1), (0, 1)):
        changed = bytearray(size)
        changed[start : start + length] = b"x" * length
        weights.write_bytes(changed)
        assert key() != before, start
