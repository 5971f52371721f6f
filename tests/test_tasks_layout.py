"""The embeddings file: what goes in comes out, under names, and nothing else is taken for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np
import pytest

from layerwise.errors import LayerwiseError
from layerwise.tasks import layout
from layerwise.tasks.layout import Embeddings, Reading

KEYS = [f"{i:064x}" for i in range(5)]
ABOUT = {"model": "m", "revision": "step1", "task": "STS12"}


def _write(
    path: Path,
    values: np.ndarray,
    readings: Sequence[Reading] = (Reading("all"), Reading("drop_first")),
) -> Path:
    with layout.create(
        path, readings=readings, n_layers=values.shape[1], texts_keys=KEYS, hidden=values.shape[3],
        attributes=ABOUT,
    ) as file:  # fmt: skip
        for start in range(0, len(KEYS), 2):
            stop = min(start + 2, len(KEYS))
            firsts = layout.first_stored(readings, values.shape[1])
            slabs = [v[f:, start:stop] for v, f in zip(values, firsts, strict=True)]
            layout.fill(file, range(start, stop), slabs)
    return path


@pytest.fixture
def values() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(2, 3, 5, 4)).astype(np.float32)


def test_layers_come_back_as_they_were_written(tmp_path: Path, values: np.ndarray) -> None:
    path = _write(tmp_path / "e.h5", values)
    with Embeddings(path, model="m", revision="step1", task="STS12") as file:
        assert file.keys == tuple(KEYS)
        assert (file.n_layers, file.hidden) == (3, 4)
        assert file.readings == (Reading("all"), Reading("drop_first"))
        for choice, reading in enumerate(file.readings):
            for layer in range(3):
                np.testing.assert_array_equal(file.layer(reading, layer), values[choice, layer])


def test_poolings_and_readouts_stand_side_by_side(tmp_path: Path, values: np.ndarray) -> None:
    wanted = Reading("all", "last_token", "final_norm")
    path = _write(tmp_path / "e.h5", values, [Reading(), wanted])
    with Embeddings(path) as file:
        np.testing.assert_array_equal(file.layer(wanted, 2), values[1, 2])
        with pytest.raises(LayerwiseError, match="read as all/mean/final_norm"):
            file.layer(Reading("all", "mean", "final_norm"), 0)
        with pytest.raises(LayerwiseError, match="layers 0 to 2"):
            file.layer(wanted, 3)


def test_the_output_is_stored_at_the_last_layer_alone(tmp_path: Path, values: np.ndarray) -> None:
    readings = [Reading(), Reading(readout="output")]
    path = _write(tmp_path / "e.h5", values, readings)
    with h5py.File(path) as file:
        assert np.isnan(file["embedding"][1, :2]).all()
    with Embeddings(path) as file:
        for layer in range(3):
            of = values[1 if layer == 2 else 0, layer]
            np.testing.assert_array_equal(file.layer(readings[1], layer), of)
    alone = _write(tmp_path / "a.h5", values[1:], readings[1:])
    with Embeddings(alone) as file:
        np.testing.assert_array_equal(file.layer(readings[1], 0), values[1, 0])


def test_plain_readers_see_named_dimensions(tmp_path: Path, values: np.ndarray) -> None:
    path = _write(tmp_path / "e.h5", values)
    with h5py.File(path) as file:
        dims = [d[0].name.strip("/") for d in file["embedding"].dims]
        assert dims == ["reading", "layer", "text", "hidden"]
    xarray = pytest.importorskip("xarray")
    with xarray.open_dataset(path, engine="h5netcdf") as data:
        assert dict(data["embedding"].sizes) == {"reading": 2, "layer": 3, "text": 5, "hidden": 4}
        assert data["reading"].values[1] == "drop_first/mean/residual"
        for name, labels in (("tokens", ["all", "drop_first"]), ("pooling", ["mean"] * 2)):
            assert data[name].dims == ("reading",)
            assert data[name].values.tolist() == labels


@pytest.mark.parametrize(("readings", "keys"), [([Reading()], "aa"), ([Reading()] * 2, "ab")])
def test_a_key_or_reading_twice_is_refused(
    tmp_path: Path, readings: list[Reading], keys: str
) -> None:
    with (
        pytest.raises(ValueError, match="twice"),
        layout.create(
            tmp_path / "e.h5", readings=readings, n_layers=1, texts_keys=list(keys), hidden=1,
            attributes=ABOUT,
        ),
    ):  # fmt: skip
        pass
    assert not list(tmp_path.iterdir())


def test_readings_are_every_choice_of_tokens_with_every_pooling_and_readout() -> None:
    made = layout.readings(["all", "drop_first"], ["mean", "cls"], ["residual", "final_norm"])
    assert len(set(made)) == len(made) == 8
    assert list(map(str, made[:3])) == [
        "all/mean/residual", "all/mean/final_norm", "all/cls/residual",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "said"),
    [({"model": "other"}, "model 'm'"), ({"revision": "x"}, "'step1'"), ({"task": "T"}, "task")],
)
def test_a_file_about_something_else_is_refused(
    tmp_path: Path, values: np.ndarray, wanted: dict[str, str], said: str
) -> None:
    path = _write(tmp_path / "e.h5", values)
    with pytest.raises(LayerwiseError, match=said):
        Embeddings(path, **wanted)


def test_a_changed_byte_is_an_error(tmp_path: Path, values: np.ndarray) -> None:
    path = _write(tmp_path / "e.h5", values)
    raw = bytearray(path.read_bytes())
    at = raw.find(values[1, 2, 0].tobytes())
    assert at > 0
    raw[at] ^= 1
    path.write_bytes(bytes(raw))
    with Embeddings(path) as file, pytest.raises(LayerwiseError, match=r"e\.h5 is damaged"):
        file.layer(Reading("drop_first"), 2)


def test_fingerprint_depends_on_values_and_texts_alone(tmp_path: Path, values: np.ndarray) -> None:
    def fingerprints(name: str, array: np.ndarray) -> list[str]:
        with Embeddings(_write(tmp_path / name, array)) as file:
            return [file.fingerprint(file.layer(Reading("all"), layer)) for layer in range(3)]

    first, again = fingerprints("a.h5", values), fingerprints("b.h5", values)
    assert first == again
    assert len(set(first)) == 3
    changed = values.copy()
    changed[0, 1, 3, 2] += 1e-6
    other = fingerprints("c.h5", changed)
    assert [a == b for a, b in zip(first, other, strict=True)] == [True, False, True]
