"""Tables: what is written is read, what was altered is noticed, and the file says what it is."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.refused import refused

from layerwise.errors import LayerwiseError
from layerwise.io import tables
from layerwise.io.tables import Kind


def frame(n: int = 4) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "model": ["m", "ü", "", "m"][:n],
            "layer": np.arange(n, dtype=np.int32),
            "value": [0.5, np.nan, np.inf, -0.0][:n],
            "whole": [True, False, True, True][:n],
        }
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    for given in (frame(), pa.Table.from_pandas(frame())):
        tables.write(path, given, key="abc", recipe={"n": 3}, corpus="wiki", counts={"read": 7})
        pd.testing.assert_frame_equal(tables.read(path, "metrics"), frame())
        pd.testing.assert_frame_equal(pd.read_parquet(path), frame())
        assert pq.read_table(path).column("value").null_count == 1, "null, not NaN"
        facts = tables.facts(path)
        assert (facts["key"], facts["corpus"]) == ("abc", "wiki")
        assert json.loads(facts["recipe"]) == {"n": 3}
        assert json.loads(facts["counts"]) == {"read": 7}
        assert "pandas" in json.loads(facts["versions"]) or "numpy" in facts["versions"]


def test_several_are_stacked_and_columns_picked(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.parquet", "b.parquet", "none.parquet")]
    for path, n in zip(paths, (4, 2, 0), strict=True):
        tables.write(path, frame(n))
    found = tables.read(paths, "metrics", ["value", "layer"])
    assert list(found.columns) == ["value", "layer"]
    assert found["layer"].tolist() == [0, 1, 2, 3, 0, 1]
    assert found.index.tolist() == list(range(6))
    assert len(tables.read(paths[2], "metrics")) == 0


def test_every_altered_byte_of_the_values_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    tables.write(path, frame())
    content = path.read_bytes()
    (group,) = [pq.read_metadata(path).row_group(0)]
    for number in range(group.num_columns):
        column = group.column(number)
        start = column.dictionary_page_offset or column.data_page_offset
        for place in range(start, start + column.total_compressed_size):
            altered = bytearray(content)
            altered[place] ^= 1 << place % 8
            path.write_bytes(altered)
            try:
                found = tables.read(path, "metrics")
            except LayerwiseError as error:
                assert "t.parquet" in str(error)
            else:  # in the head of a page
                pd.testing.assert_frame_equal(found, frame())


def test_a_table_cut_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    tables.write(path, frame())
    content = path.read_bytes()
    for length in range(0, len(content), 37):
        path.write_bytes(content[:length])
        for read in (lambda: tables.read(path, "metrics"), lambda: tables.facts(path)):
            with refused("unreadable"):
                read()


def test_tables_from_elsewhere_are_read_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    frame().to_parquet(path)
    pd.testing.assert_frame_equal(tables.read(path, "metrics"), frame())


def test_what_is_missing_or_of_another_kind_is_said(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    kind = Kind("layerwise.test", 1)
    for read in (lambda: tables.read(path, "scores"), lambda: tables.facts(path)):
        with refused("missing_file"):
            read()
    with refused("missing_file"):
        tables.read([], "scores")
    tables.write(path, frame(), kind=kind)
    with refused("unknown_name"):
        tables.read(path, "scores", ["depth", "value", "task"])
    with refused("mismatch"):
        tables.read(path, "scores", kind=Kind("layerwise.other", 1))
    with refused("mismatch"):
        tables.read(path, "scores", kind=Kind("layerwise.test", 2))


def test_a_failed_write_leaves_the_earlier_table(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    tables.write(path, frame())
    with pytest.raises(pa.ArrowException):
        tables.write(path, pd.DataFrame({"mixed": [1, "a"]}))
    assert [p.name for p in tmp_path.iterdir()] == ["t.parquet"]
    pd.testing.assert_frame_equal(pq.read_table(path).to_pandas(), frame())
