"""Keys of results: each changes with what its file is made of, and with nothing else."""

from __future__ import annotations

import copy
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from layerwise.config import Config
from layerwise.metrics import registry
from layerwise.run.plan import SEQUENCE, Plan

CONFIG: dict[str, Any] = {
    "models": {"m": {"source": {"hub": "o/m"}}},
    "corpora": {"c": {"source": {"hub": "owner/news"}, "sample": {"n": 40}, "views": {"n": 2}}},
    "tasks": {"STS12": {}, "own": {"file": "own.csv", "kind": "classification"}},
    "extract": {"tokens": ["all"]},
    "metrics": {},
    "scoring": {},
    "studies": {"s": {"kind": "metric_vs_score"}},
}
OF_STUDY = {"associate", "select", "figure", "explore"}
OF_METRICS = {"metrics", *OF_STUDY}
OF_TEXTS = {"corpus", "views", "extract", *OF_METRICS}
OF_SCORES = {"score", "own score", "best_layers", *OF_STUDY}
OF_MODEL = {"extract", *OF_METRICS, *OF_SCORES}


def keys(place: str = "", value: Any = None) -> dict[str, str]:
    """Keys of a config with one setting changed; ``/`` separates keys."""
    given = copy.deepcopy(CONFIG)
    inside: Any = given
    *parents, last = place.split("/")
    for part in parents:
        inside = inside.setdefault(part, {})
    if place:
        inside[last] = value
    made = Plan(Config.of(given))
    return {
        "corpus": made.key("corpus", corpus="c"),
        "views": made.key("views", corpus="c"),
        "extract": made.key("extract", model="m", revision="main", corpus="c"),
        "metrics": made.key("metrics", model="m", revision="main", corpus="c"),
        "score": made.key("score", model="m", revision="main", task="STS12"),
        "own score": made.key("score", model="m", revision="main", task="own"),
        "associate": made.key("associate", study="s"),
        "select": made.key("select", study="s"),
        "figure": made.key("figure", study="s"),
        "best_layers": made.key("best_layers"),
        "explore": made.key("explore"),
        "report": made.key("report"),
    }


@pytest.mark.parametrize(
    ("place", "value", "changed"),
    [
        ("corpora/c/sample", {"n": 30}, OF_TEXTS),
        ("corpora/c/filters", {"min_tokens": 7}, OF_TEXTS),
        ("corpora/c/views", {"n": 3}, OF_TEXTS - {"corpus"}),
        ("models/m/source", {"hub": "o/other"}, OF_MODEL),
        ("models/m/max_length", 50, OF_MODEL),
        ("models/m/prompts", {"query": "q: "}, OF_SCORES),
        ("models/m/include_prompt", False, OF_SCORES),
        ("extract/tokens", ["all", "drop_first"], OF_MODEL),
        ("extract/dtype", "bfloat16", OF_MODEL),
        ("extract/sink_ratio", 3.0, OF_MODEL),
        ("extract/arrays", ["dimension"], {"extract"}),
        ("extract/arrays", ["dimension_share"], {"extract", *OF_METRICS}),
        ("metrics/metrics", ["rankme"], OF_METRICS),
        ("metrics/metrics", ["largest_dimension"], {"extract", *OF_METRICS}),
        ("scoring/poolings", ["max"], OF_SCORES),
        ("tasks/own/label", "topic", OF_SCORES - {"score"}),
        ("tasks/own/kind", "regression", OF_SCORES - {"score"}),
        ("association/directions", {"rankme": -1}, OF_STUDY | {"best_layers"}),
        ("association/text_sources", {"own": "sts"}, OF_STUDY | {"best_layers"}),
        ("association/own_texts", {"c": "STS12"}, OF_STUDY | {"best_layers"}),
        ("extract/threads", 3, set()),
        ("extract/batch_tokens", 64, set()),
        ("extract/device", "cpu", set()),
        ("extract/keep_activations", False, set()),
        ("studies/s/title", "A title", {"figure"}),
    ],
)
def test_keys_follow_settings(place: str, value: Any, changed: set[str]) -> None:
    before, after = keys(), keys(place, value)
    of_page = {"report"} if changed & {"figure", "best_layers"} else set()
    assert {name for name in before if before[name] != after[name]} == changed | of_page


def test_the_place_of_a_model_in_the_config_decides_its_colour() -> None:
    study = {"s": {"kind": "metrics_by_depth", "models": ["m"], "metrics": ["rankme"]}}
    own, other = CONFIG["models"], {"n": {"source": {"hub": "o/n"}}}
    first, second = (
        Plan(Config.of({**CONFIG, "studies": study, "models": models}))
        for models in ({**own, **other}, {**other, **own})
    )
    assert first.key("figure", study="s") != second.key("figure", study="s")
    assert first.key("select", study="s") != second.key("select", study="s")


def test_associations_of_published_tables_are_of_the_models_of_the_study() -> None:
    given = {"published": {"p": {"scores": "s.csv", "metrics": "m.csv"}}}
    study = {"kind": "metric_vs_score", "published": "p"}
    first, second = (
        Plan(Config.of({**given, "studies": {"s": {**study, "models": [model]}}}))
        for model in ("a", "b")
    )
    assert first.key("associate", study="s") != second.key("associate", study="s")
    assert first.key("published", published="p") == second.key("published", published="p")


def test_a_perturbed_corpus_has_keys_of_its_own() -> None:
    plain = {**CONFIG["corpora"]["c"], "views": {"n": 0}}
    before = keys("corpora/c", plain)
    after = keys("corpora/c", {**plain, "perturb": {"repetition": 0.5}})
    changed = {name for name in before if before[name] != after[name]}
    assert changed == OF_TEXTS - {"corpus", "views"} | {"report"}


@pytest.mark.parametrize(
    ("place", "value", "same"),
    [
        ("generate/max_new_tokens", 7, False),
        ("generate/prompts/column", "question", False),
        ("m/source", {"hub": "o/other"}, False),
        ("m/dtype", "bfloat16", False),
        ("m/poolings", ["max"], True),
    ],
)
def test_generated_texts_have_the_key_of_model_and_prompts(
    place: str, value: Any, same: bool
) -> None:
    prompts = {"hub": "o/q"}
    source = {"generate": {"model": "m", "prompts": prompts}}
    given = copy.deepcopy(CONFIG) | {"corpora": {"c": {"source": source, "views": {"n": 0}}}}
    plan = Plan(Config.of(given))
    before = plan.key("generate", corpus="c"), plan.key("corpus", corpus="c")
    inside: Any = {**given["models"], **source}
    *parents, last = place.split("/")
    for part in parents:
        inside = inside[part]
    inside[last] = value
    keys = Plan(Config.of(given))
    assert ((keys.key("generate", corpus="c"), keys.key("corpus", corpus="c")) == before) is same
    assert (keys.key("generate", corpus="c") == before[0]) is (
        keys.key("corpus", corpus="c") == before[1]
    )


@pytest.mark.parametrize("source", ["images", "hub", "questions", "task"])
def test_local_data_are_compared_by_content(tmp_path: Path, source: str) -> None:
    file = tmp_path / "a" / "train.jsonl"
    file.parent.mkdir()
    file.write_text('{"text": "one"}')
    folder = str(file.parent)
    entries: dict[str, Any] = {
        "images": {"images": {"folder": folder}},
        "hub": {"source": {"hub": folder}},
        "questions": {"task": "papers.choice.ChoiceTask", "questions": {"hub": folder}},
        "task": {"folder": folder},
    }
    section = "tasks" if source in ("questions", "task") else "corpora"

    def key() -> str:
        config = Config.of({section: {"c": entries[source]}, "studies": CONFIG["studies"]})
        made = Plan(config)
        return made.key("task", task="c") if section == "tasks" else made.key("corpus", corpus="c")

    before, state = key(), file.stat()
    file.write_text('{"text": "two"}')
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert key() != before
    changed = key()
    (file.parent / "README.md").write_text("---\nconfigs: []\n---\n")
    assert key() != changed


def test_the_order_of_names_that_changes_no_value_changes_no_key() -> None:
    lists = {
        ("extract", "tokens"): ["all", "drop_first"],
        ("extract", "protocols"): ["paper", "reference"],
        ("extract", "sublayers"): ["mixer", "mlp"],
        ("metrics", "metrics"): ["prompt_entropy", "curvature"],
        ("scoring", "poolings"): ["mean", "max"],
        ("scoring", "readouts"): ["residual", "final_norm"],
    }
    keys = []
    for step in (1, -1):
        document = copy.deepcopy(CONFIG)
        for (section, name), values in lists.items():
            document[section] = document[section] | {name: values[::step]}
        made = Plan(Config.of(document))
        keys.append(
            [
                made.key("metrics", model="m", revision="main", corpus="c"),
                made.key("evaluate", model="m", revision="main"),
            ]
        )
    assert keys[0] == keys[1]


def test_a_metrics_own_key_follows_its_formula_settings_and_orders() -> None:
    def of_metrics(**settings: Any) -> dict[str, str]:
        given = copy.deepcopy(CONFIG) | {"metrics": settings}
        return Plan(Config.of(given)).metric_keys("m", "main", "c")

    before = of_metrics()

    def changed(**settings: Any) -> set[str]:
        after = of_metrics(**settings)
        return {name for name in after if after[name] != before[name]}

    assert changed(metrics=["rankme", "dime"]) == set()
    assert changed(settings={"infonce": {"temperature": 0.5}}) == {"infonce", "infonce_mi_bound"}
    assert changed(settings={"infonce": {}}) == set()
    orders = {"dataset_entropy", "dime", "lidar", "prompt_entropy", SEQUENCE}
    assert changed(alphas=[1.0]) == orders
    assert changed(normalizations=["logD"]) == orders | {"curvature"}
    assert changed(seed=1) == before.keys() - {SEQUENCE}


def test_directions_are_in_the_keys_of_what_uses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    before = keys()
    corrected = registry.all_metrics() | {
        "rankme": replace(registry.all_metrics()["rankme"], direction=-1)
    }
    monkeypatch.setattr(registry, "all_metrics", lambda: corrected)
    after = keys()
    changed = {n for n in before if before[n] != after[n]}
    assert changed == {"select", "figure", "explore", "report"}


def test_weights_are_compared_of_models_with_several_checkpoints_that_are_read() -> None:
    def of(*steps: str, **more: Any) -> Plan:
        models = {"m": {"source": {"hub": "o/m"}, "revisions": list(steps), **more}}
        study = {"s": {"kind": "metrics_by_depth", "metrics": ["rankme"], "revisions": "all"}}
        return Plan(Config.of({**CONFIG, "models": models, "studies": study}))

    assert of("step1").swept == []
    assert of("step1", "step2").swept == [("m", "step1"), ("m", "step2")]
    two, three = of("step1", "step2"), of("step1", "step2", "step3")
    assert two.key("weights") != three.key("weights") and two.key("report") != three.key("report")
    assert two.key("weights") != of("step1", "step2", max_length=9).key("weights")
    assert two.key("weights") == of("step1", "step2").key("weights")


def test_similarities_are_of_the_tokens_of_the_study() -> None:
    def key(*tokens: str) -> str:
        study = {"kind": "layer_similarity", "tokens": list(tokens) or None}
        return Plan(Config.of({**CONFIG, "studies": {"s": study}})).key("similarity", study="s")

    assert len({key(), key("all"), key("drop_first")}) == 3
