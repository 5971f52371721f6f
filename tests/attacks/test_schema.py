"""Values of every kind at every key: valid, or one sentence before any job starts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from attack import REFUSED, Tally, tally
from configs import (
    TEXTS,
    VALUES,
    Place,
    all_places,
    filled,
    furnish,
    put,
    renamed,
    sections,
    used,
)
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from layerwise.config import Config, read_config
from layerwise.workflow import targets
from layerwise.workflow.plan import Plan
from layerwise.workflow.sources import check_sources
from layerwise.workflow.stages import STAGES

__all__ = ["tally"]

AREA = "schema"
# Reading the source takes a moment, and is no part of this.
CODE: dict[str, dict[str, str]] = {stage: {} for stage in STAGES}
QUICK = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("configs")
    furnish(made)
    return made


@pytest.fixture(autouse=True)
def _there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def start(document: Any) -> Config:
    """What every run begins with."""
    config = Config.of(document)
    check_sources(config)
    plan = Plan(config, CODE)
    plan.jobs_due()
    for job in [*targets.targets(config), *targets.fetched(config)]:
        plan.paths(job)
    # Jobs read the config as the start wrote it.
    assert Config.of(json.loads(json.dumps(config.plain())), checked=True) == config
    return config


def attack(tally: Tally, document: Any) -> Config | None:
    _, config = tally.attack(AREA, lambda: start(document), outcome=REFUSED)
    if config is not None:
        reasonable(config.plain())
    return config


def reasonable(value: Any) -> None:
    """No number that could only fail later: not finite, or so large that nothing could hold it."""
    if isinstance(value, dict):
        for part in value.values():
            reasonable(part)
    elif isinstance(value, list):
        for part in value:
            reasonable(part)
    elif isinstance(value, int | float):
        assert abs(value) < 2**32


def test_every_section_stands_in_the_base() -> None:
    assert used(Config.of(filled())) == sections()


def test_the_base_is_valid(tally: Tally) -> None:
    assert attack(tally, filled()) is not None


@QUICK
@given(place=st.deferred(lambda: st.sampled_from(all_places())), value=st.sampled_from(VALUES))
def test_some_values_at_some_places(tally: Tally, place: Place, value: Any) -> None:
    attack(tally, put(filled(), place, value))


@QUICK
@given(
    place=st.deferred(lambda: st.sampled_from(all_places())),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3)
        ),
        max_leaves=6,
    ),
)
def test_anything_at_some_places(tally: Tally, place: Place, value: Any) -> None:
    attack(tally, put(filled(), place, value))


@pytest.mark.slow
@pytest.mark.parametrize("section", sorted({place[0] for place in all_places()}))
def test_all_values_at_all_places(tally: Tally, section: str) -> None:
    document = filled()
    for place in all_places():
        if place[0] == section:
            for value in VALUES:
                try:
                    attack(tally, put(document, place, value))
                except BaseException as error:
                    error.add_note(f"{value!r:.60} at {'.'.join(map(str, place))}")
                    raise


NAMED = [p for p in all_places() if len(p) == 2 and p[0] in (
    "models", "nano", "corpora", "published", "studies", "task_folders")]  # fmt: skip


@QUICK
@given(place=st.sampled_from(NAMED), name=st.sampled_from(TEXTS) | st.text(max_size=40))
def test_names(tally: Tally, place: Place, name: str) -> None:
    config = attack(tally, renamed(filled(), place, name))
    assert config is None or name.isprintable()


def test_names_that_end_in_a_newline_are_none(tally: Tally) -> None:
    for place in NAMED:
        assert attack(tally, renamed(filled(), place, "name\n")) is None


@pytest.mark.parametrize(
    ("section", "names"),
    [
        ("models", ("mini", "MINI")), ("corpora", ("a.views", "b")),
        ("nano", ("a-b", "a_b")), ("nano", ("a b", "a-b")), ("models", ("stra\u00dfe", "b")),
        ("studies", ("A", "a")), ("published", ("P x", "p x")),
    ],
)  # fmt: skip
def test_names_that_one_path_or_rule_would_have(
    tally: Tally, section: str, names: tuple[str, str]
) -> None:
    document = filled()
    entry = next(iter(document[section].values()))
    document[section] |= dict.fromkeys(names, entry)
    if section == "nano":
        document["models"] |= {
            n: {"source": {"folder": f"results/nano/{n}/{{revision}}"}, "revisions": ["step0"]}
            for n in names
        }
    assert attack(tally, document) is None


def test_revisions_that_mean_one_step(tally: Tally) -> None:
    document = put(filled(), ("models", "small", "revisions"), ["step2", "step02"])
    assert attack(tally, document) is None


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("models", "a", "source", "folder"), "models/{x}"),
        (("models", "a", "source", "folder"), "models/{"),
        (("models", "a", "adapters", 1, "folder"), "ad{apter"),
        (("corpora", "texts", "source", "file"), "a{b}.txt"),
        (("corpora", "texts", "views", "n"), 10**9),
        (("extract", "threads"), 10**9),
        (("nano", "small", "vocabulary"), 10**9),
        (("extract", "device"), "cuda:" + "9" * 40),
        (("scoring", "confidence"), float("nan")),
        (("metrics", "alphas"), ["two"]),
        (("metrics", "alphas"), [float("nan")]),
        (("metrics", "seed"), -1),
        (("association", "seed"), 10**30),
        (("results",), "~/x"),
        (("results",), ""),
    ],
)  # fmt: skip
def test_values_that_used_to_fail_later(tally: Tally, place: Place, value: Any) -> None:
    assert attack(tally, put(filled(), place, value)) is None


# YAML itself


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=st.text(alphabet="abc:-[]{}&*!|>'\"#%@`,? \n\t0.~<=", max_size=60))
@example("a: &a [*a]")
@example("&a a: *a")
@example("? [a]\n: b")
@example("<<: 3")
@example("a: !!float x")
@example("a: 0b1\nb: 1_000:60\nc: .nan")
@example("%YAML 9.9\n---\na: 1")
@example("a: 1\n---\nb: 2")
@example("=: 1")
def test_texts_that_may_be_yaml(tally: Tally, folder: Path, text: str) -> None:
    path = folder / "fuzz.yaml"
    path.write_text(text, encoding="utf-8")
    tally.attack(AREA, lambda: read_config([path]), outcome=REFUSED)


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe", b"\x00", b"a: \x07", b"[" * 5000, b"{a: " * 2000, b"- " * 3000,
        b"a: " + b"9" * 5000, b"a: &x [1, *x]", b"a: &x {b: *x}", b"\xef\xbb\xbfa: 1",
        b"a: 2001-99-99", b"a: !!timestamp 2001-13-45", b"a: !!int x", b"a: !!binary '='",
        b"a: !!set {x}", b"a: !!omap [x: 1]", b"a: !!pairs [1]", b"? {a: b}\n: c",
    ],
    ids=lambda c: ascii(c[:20]),
)  # fmt: skip
def test_bytes_that_are_no_yaml(tally: Tally, folder: Path, content: bytes) -> None:
    path = folder / "bytes.yaml"
    path.write_bytes(content)
    message, _ = tally.attack(AREA, lambda: read_config([path]), outcome=REFUSED)
    assert message is not None


def test_the_base_as_yaml_with_any_line_gone_or_twice(tally: Tally, folder: Path) -> None:
    lines = yaml.safe_dump(filled()).splitlines(keepends=True)
    path = folder / "lines.yaml"
    for k in range(0, len(lines), 17):
        for changed in (lines[:k] + lines[k + 1 :], lines[: k + 1] + lines[k:]):
            path.write_text("".join(changed), encoding="utf-8")
            tally.attack(AREA, lambda: read_config([path]), outcome=REFUSED)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_config_that_cannot_be_read(tally: Tally, folder: Path) -> None:
    path = folder / "closed.yaml"
    path.write_text("{}")
    path.chmod(0)
    message, _ = tally.attack(AREA, lambda: read_config([path]), outcome=REFUSED)
    assert message is not None
