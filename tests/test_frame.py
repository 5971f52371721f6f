"""The frame: names and paths, whole files, fingerprints of computations."""

from __future__ import annotations

import ast
import os
import time
from pathlib import Path

import pytest
import yaml
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st

from layerwise import fingerprint as module
from layerwise.errors import LayerwiseError
from layerwise.files import replacing, sha256_text
from layerwise.paths import decode, encode

NAMES = st.text(min_size=1, max_size=40).filter(
    lambda n: "\0" not in n and ".." not in n.replace("\\", "/").split("/") and n.isprintable()
)


@given(NAMES)
def test_names_map_to_paths_and_back(name: str) -> None:
    component = encode(name)
    assert decode(component) == name
    assert "/" not in component
    assert not component.startswith(".")


@given(NAMES, NAMES)
def test_different_names_have_different_paths(a: str, b: str) -> None:
    assert (encode(a) == encode(b)) == (a == b)


@pytest.mark.parametrize("name", ["", "..", "../../x", "a/../b", "a\\..\\b", "a\0b"])
def test_hostile_names_are_refused(name: str) -> None:
    with pytest.raises(LayerwiseError, match="cannot be the name"):
        encode(name)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "file.txt"
    with replacing(target) as partial:
        partial.write_text("old")
    with pytest.raises(RuntimeError), replacing(target) as partial:
        partial.write_text("half")
        raise RuntimeError
    assert target.read_text() == "old"
    assert [p.name for p in target.parent.iterdir()] == ["file.txt"]


def test_leftovers_of_dead_writers_go(tmp_path: Path) -> None:
    import socket

    target = tmp_path / "file.h5"
    dead = tmp_path / f".file.h5.{socket.gethostname()}.999999999.partial"
    dead.write_text("half")
    with replacing(target) as partial:
        partial.write_text("new")
    assert [p.name for p in tmp_path.iterdir()] == ["file.h5"]


def test_leftovers_of_other_hosts_go_after_a_day(tmp_path: Path) -> None:
    target = tmp_path / "file.h5"
    old, new = (tmp_path / f".file.h5.{host}.{os.getpid()}.partial" for host in ("n1.x.org", "n2"))
    other = tmp_path / ".file.h5.more.n1.1.partial"
    for path in (old, new, other):
        path.write_text("half")
    yesterday = time.time() - 25 * 3600
    os.utime(old, (yesterday, yesterday))
    with replacing(target) as partial:
        partial.write_text("whole")
    assert {p.name for p in tmp_path.iterdir()} == {"file.h5", new.name, other.name}


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(LayerwiseError, match="Could not write"),
        replacing(tmp_path / "file" / "x"),
    ):
        pass


@given(st.lists(st.text(), max_size=4), st.lists(st.text(), max_size=4))
def test_text_hashes_do_not_run_together(a: list[str], b: list[str]) -> None:
    assert (sha256_text(*a) == sha256_text(*b)) == (a == b)


def test_lone_surrogates_have_a_hash() -> None:
    assert sha256_text("\ud800") != sha256_text("\ud801")


def test_the_conda_environment_agrees_with_the_lock() -> None:
    lock = (ROOT / "envs" / "requirements.lock").read_text().splitlines()
    pins = [line for line in lock if line and not line.startswith("#")]
    environment = yaml.safe_load((ROOT / "envs" / "environment.yaml").read_text())
    assert environment["dependencies"][-1]["pip"] == pins
    assert "torch==2.13.0" in pins


# Fingerprints


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "errors.py").write_text("A = 1\n")
    (tmp_path / "low.py").write_text("def f(x: int) -> int:\n    return x + 1\n")
    (tmp_path / "other.py").write_text("B = 2\n")
    (tmp_path / "high.py").write_text(
        '"""Doc."""\nfrom layerwise.errors import A\nfrom layerwise import low\n\n'
        "def g(x):\n    return low.f(x) * 2\n"
    )
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return tmp_path


def current() -> str:
    module.fingerprint.cache_clear()
    module._read.cache_clear()
    return module.fingerprint("layerwise.high")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("low.py", "def f(x: int) -> int:\n    return x + 2\n"),
        ("high.py", "from layerwise import low\n\ndef g(x):\n    return low.f(x) * 3\n"),
    ],
)
def test_an_edited_computation_changes_it(package: Path, file: str, text: str) -> None:
    before = current()
    (package / file).write_text(text)
    assert current() != before


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("low.py", '# A comment.\ndef f(x):\n    """Now with words."""\n\n    return (x + 1)\n'),
        ("low.py", "def f(x: float) -> 'float':\n    return x + 1\n"),
        ("errors.py", "A = 2\n"),
        ("other.py", "B = 3\n"),
        (
            "high.py",
            '"""New doc."""\nfrom layerwise.errors import A\nfrom layerwise import low\n\n\n'
            "def g(x):\n    log.info('%s', x)\n    return low.f(x) * 2\n",
        ),
    ],
)
def test_reformatting_and_strangers_do_not(package: Path, file: str, text: str) -> None:
    before = current()
    ast.parse(text)
    (package / file).write_text(text)
    assert current() == before


def test_the_extraction_depends_on_the_readout_but_not_on_the_metrics() -> None:
    seen = _closure("layerwise.activations.extract")
    assert "layerwise.activations.readout" in seen
    assert "layerwise.models.load" in seen
    assert not any(name.startswith("layerwise.metrics") for name in seen)
    assert not any(name.startswith("layerwise.config") for name in seen)


def _closure(root: str) -> set[str]:
    pending, seen = [root], set()
    while pending:
        name = pending.pop()
        if name not in seen:
            seen.add(name)
            pending += module._read(name)[0]
    return seen
