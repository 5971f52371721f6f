"""Damaged files and hostile names: the right values or one error sentence, and no code runs."""

import copy
import csv
import gzip
import json
import logging
import random
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st

from layerwise.config import Config, read_config
from layerwise.config.corpora import FileTexts
from layerwise.corpora.sources import open_texts
from layerwise.errors import ConfigError, LayerwiseError, printable
from layerwise.figures.render import Drawn
from layerwise.io import tables
from layerwise.io.tables import read_table
from layerwise.run import report
from layerwise.run.plan import Plan
from layerwise.run.script import Plain
from papers.published import published_metrics, published_scores

T = TypeVar("T")


def attempt(action: Callable[[], T]) -> T | None:
    """The result, or None if the action raises an error for users: one short line."""
    try:
        return action()
    except LayerwiseError as error:
        assert str(error).isprintable()
        assert 0 < len(str(error)) < 800
        return None


# Configs

TEXTS_AND_NAMES = [
    "",
    "a\n",
    "a\0b",
    "\x1b[31mred",
    "x" * 5000,
    "../../x",
    "=cmd|' /C calc'!A0",
    "x\n\n.. raw:: html\n\n   <script>alert(1)</script>",
    *("~/x", "{x}", ";", "'", '"', "#", "-rf", "$\\frac{$"),
]
NUMBERS = [float("nan"), float("inf"), -1, 0, 1.5, 10**30]
OTHERS: list[Any] = ["\ud800", True, None, [], {}, [[]], [1], ["a"], {"a": 1}]
VALUES = [*TEXTS_AND_NAMES, *NUMBERS, *OTHERS]


def places(document: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a document, inner ones too."""
    if isinstance(document, dict | list):
        inside = document.items() if isinstance(document, dict) else enumerate(document)
        for key, value in inside:
            yield (*here, key)
            yield from places(value, (*here, key))


@pytest.mark.parametrize("name", ["config", "presets/imagenet", "presets/findings"])
def test_any_value_anywhere_in_a_config_is_read_or_refused(name: str) -> None:
    base = read_config(ROOT / f"{name}.yaml").plain()
    draw, everywhere = random.Random(name), list(places(base))
    for _ in range(150):
        document = copy.deepcopy(base)
        *parents, last = draw.choice(everywhere)
        inside, value = document, draw.choice(VALUES)
        for key in parents:
            inside = inside[key]
        if isinstance(value, str) and isinstance(last, str) and draw.random() < 0.2:
            inside[value] = inside.pop(last)
        else:
            inside[last] = value
        try:
            config = Config.of(document)
        except ConfigError as error:
            assert "\n" not in str(error)
        else:
            assert Config.of(config.plain()) == config


# Texts


def texts_of(path: Path, **columns: Any) -> list[tuple[str, str]]:
    return list(open_texts(FileTexts(file=str(path), **columns))[0])


def damaged(content: bytes, n: int = 60) -> Iterator[bytes]:
    """A file cut short, with a bit flipped, and with bytes removed, zeroed or doubled."""
    draw = random.Random(0)
    for k in range(n):
        at, length = draw.randrange(len(content)), draw.choice([1, 4, 64, 1000])
        altered = bytearray(content)
        if k % 5 == 0:
            del altered[at:]
        elif k % 5 == 1:
            altered[at] ^= 1 << draw.randrange(8)
        elif k % 5 == 2:
            del altered[at : at + length]
        elif k % 5 == 3:
            altered[at : at + length] = bytes(len(altered[at : at + length]))
        else:
            altered[at:at] = altered[at : at + length]
        yield bytes(altered)


TEXTS = [f"The fox number {k} jumps over {k * 7} lazy dogs." for k in range(200)]
ROWS_OF_TEXTS = pd.DataFrame({"text": TEXTS, "id": range(len(TEXTS))})
FILES: dict[str, bytes] = {
    "t.txt": "\n".join(TEXTS).encode(),
    "t.jsonl": ROWS_OF_TEXTS.to_json(orient="records", lines=True).encode(),
    "t.csv": (of_csv := ROWS_OF_TEXTS.to_csv(index=False).encode()),
    "t.csv.gz": gzip.compress(of_csv),
    "t.parquet": ROWS_OF_TEXTS.to_parquet(),
}


@pytest.mark.parametrize("name", FILES)
def test_damaged_files(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    for content in (b"", b"\0" * 100, *damaged(FILES[name])):
        path.write_bytes(content)
        if name.startswith("t.csv"):
            attempt(lambda: read_table(path))
        if not name.endswith("gz"):
            found = attempt(lambda: texts_of(path))
            assert found is None or all(isinstance(text, str) for _, text in found)


ROWS = [
    *VALUES,
    *({"text": value} for value in VALUES),
    *({"text": "a", "id": value} for value in VALUES),
]
JSON = [
    b"[" * 100_000,
    b'{"text": "\\ud800"}',
    b'{"text": "a"} {"text": "b"}',
    b'{"text": NaN}',
    b"\xef\xbb\xbf" + b'{"text": "a"}',
    b"\xff\xfe{\x00",
    b'{"text": "\x00"}',
    b"9" * 10_000,
    *(
        json.dumps({"text": "fine", "id": "a"}).encode() + b"\n" + json.dumps(row).encode()
        for row in ROWS
    ),
]


def test_odd_json(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    for content in JSON:
        path.write_bytes(content)
        for column in (None, "id"):
            found = attempt(lambda c=column: texts_of(path, id=c))
            assert found is None or all(isinstance(text, str) for _, text in found)


COLUMNS: list[Any] = [
    [None, None],
    [1, 2],
    [1.5, np.nan],
    [True, False],
    [b"a", b"\xff"],
    [["a"], ["b"]],
    [{"a": 1}, {"a": 2}],
    pd.to_datetime(["2020-01-01", "2021-01-01"]),
    pd.Categorical(["a", "b"]),
    [],
]


def test_columns_that_hold_no_texts(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    for values in COLUMNS:
        pd.DataFrame({"text": values}).to_parquet(path)
        found = attempt(lambda: texts_of(path))
        assert found is None or all(isinstance(text, str) for _, text in found)
    pd.DataFrame({f"column {k}": [k] for k in range(5000)}).to_parquet(path)
    assert attempt(lambda: texts_of(path)) is None


# Published tables


PUBLISHED: dict[str, Any] = {
    "scores": (published_scores, ("family", "size", "revision", "task", "task_type")),
    "metrics": (published_metrics, ("family", "size", "revision", "dataset", "metric")),
}


@cache
def published(kind: str) -> pd.DataFrame:
    """Some rows of the authors' own."""
    return read_table(ROOT / f"lib/layerwise/data/published/{kind}.parquet").head(8)


@pytest.mark.parametrize("kind", PUBLISHED)
def test_published_names(kind: str) -> None:
    convert, columns = PUBLISHED[kind]
    for column in columns:
        for value in (*TEXTS_AND_NAMES, " ", None, float("nan")):
            table = published(kind).assign(**{column: value})
            found = attempt(lambda t=table: convert(t))
            names = pd.DataFrame() if found is None else found.select_dtypes(exclude="number")
            # Metrics of one variant have none.
            for cell in names.drop(columns="variant", errors="ignore").to_numpy():
                assert all(str(name)[0].isalnum() and str(name).isprintable() for name in cell)


@pytest.mark.parametrize(
    ("kind", "column", "value"),
    [
        *(("scores", "main_score", v) for v in (71.7, -1.5, float("nan"), float("inf"), "good")),
        *(("scores", "layer", v) for v in (-1, 1.5, float("nan"), "three", 1e30)),
        *(("metrics", "layer", v) for v in (-1, 0.5, None, float("inf"))),
        ("metrics", "value", "high"),
    ],
)
def test_published_values_out_of_range(kind: str, column: str, value: Any) -> None:
    convert, _ = PUBLISHED[kind]
    with pytest.raises(LayerwiseError, match=column):
        convert(published(kind).assign(**{column: value}))


# Pages, tables and logs

MARKUP = '<script>boom()</script>"><img src=x onerror=boom()>.. raw:: html\n\n `x <javascript:x>`_'


def test_a_report_shows_markup_as_text(tmp_path: Path) -> None:
    name = 'a "quoted" & <b>bold</b>'
    for part in ("figures", "tables"):
        (tmp_path / part).mkdir()
    drawn = Drawn(figure=None, table=pd.DataFrame(), title="", caption=MARKUP)  # type: ignore[arg-type]
    config = Config.of({"results": str(tmp_path), "studies": {"law": {"kind": "power_law"}}})
    config = config.model_copy(update={"studies": {name: config.studies["law"]}})
    encoded = report.encode(name)
    (tmp_path / "figures" / f"{encoded}.png").write_bytes(b"png" * 9)
    (tmp_path / "figures" / f"{encoded}.rst").write_text(drawn.rst())
    page = report.render(Plan(config), '"><script>')
    for tag in ("<script", "<img src=x", "<b>"):
        assert tag not in page
    assert "&lt;script&gt;boom()&lt;/script&gt;" in page


@pytest.mark.parametrize("text", ["=cmd|' /C calc'!A0", "+1", "-2+3", "@SUM(A1)", "\t=1", "\n=1"])
def test_formulas_in_tables_are_text(tmp_path: Path, text: str) -> None:
    table = pd.DataFrame({"prompt": [text, "fine"], "value": [-1.5, 2.0], "n": [-1, 1]})
    tables.write_csv(tmp_path / "t.csv", table)
    with (tmp_path / "t.csv").open(newline="") as handle:
        rows = list(csv.reader(handle))
    assert rows[1:] == [[f"'{printable(text)}", "-1.5", "-1"], ["fine", "2.0", "1"]]


@given(text=st.text() | st.just(MARKUP))
def test_logs_and_errors_hold_no_control_characters(text: str) -> None:
    record = logging.LogRecord("layerwise", logging.INFO, "x.py", 1, "%s", (text,), None)
    lines = Plain("%(asctime)s %(message)s").format(record).split("\n")
    assert all(line.isprintable() for line in lines)
    # No text can pass for a further entry.
    assert all(line.startswith("  ") for line in lines[1:])
    attempt(lambda: (_ for _ in ()).throw(LayerwiseError(f"Got {text}.")))
