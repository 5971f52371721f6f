"""A change of one weight changes a local model's identity; nothing else does."""

import os
from hashlib import sha256
from pathlib import Path

import pytest
from helpers.refused import refused

from layerwise.config.models import FolderAdapter, FolderSource, HubSource, Model
from layerwise.io import files
from layerwise.io.files import cached_sha256
from layerwise.models.source import identity


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text("{}")
    (made / "model.safetensors").write_bytes(bytes(2**20))
    return made


def of(folder: Path) -> str:
    return identity(Model(source=FolderSource(folder=str(folder))))


def test_place_touch_and_files_that_nothing_reads_do_not_count(folder: Path) -> None:
    before = of(folder)
    os.utime(folder / "model.safetensors")
    (folder / "optimizer.pt").write_bytes(b"1")
    moved = folder.rename(folder.with_name("elsewhere"))
    assert of(moved) == before


def test_a_file_is_hashed_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "model.safetensors"
    first = cached_sha256(path)
    monkeypatch.setattr(files, "sha256_file", lambda _: pytest.fail("hashed again"))
    assert cached_sha256(path) == first


def test_hashing_large_weights_is_announced(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(files, "LARGE", 2**20 - 1)
    weights = folder / "model.safetensors"
    assert files.sha256_file(weights) == sha256(weights.read_bytes()).hexdigest()
    files.sha256_file(folder / "config.json")
    assert [record.args[0] for record in caplog.records if record.args] == [weights]


def test_one_byte_in_the_middle_of_a_file_of_the_same_size_and_time_is_noticed(
    folder: Path,
) -> None:
    path = folder / "model.safetensors"
    before, state = of(folder), path.stat()
    path.write_bytes(bytes(2**19 + 12345) + b"x" + bytes(2**19 - 12346))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert of(folder) != before


@pytest.mark.parametrize("home", ["none", "read-only", "of others"])
def test_no_cache_is_shared_with_other_users(
    folder: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    place = folder / "home"
    place.mkdir()
    shared = place / ".cache/layerwise/hashes"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(place))
    path = folder / "config.json"
    if home == "none":
        monkeypatch.setattr(Path, "home", lambda: raised(RuntimeError("no home")))
    elif home == "read-only":
        place.joinpath(".cache").write_text("a file, since root may write in any folder")
    else:
        shared.mkdir(parents=True)
        shared.parent.chmod(0o777)
        state = files._state(path)
        (shared / state).write_text("0" * 64)
    assert cached_sha256(path) == sha256(b"{}").hexdigest()
    with pytest.raises(OSError):
        files.user_cache()


def raised(error: Exception) -> Path:
    raise error


def test_hub_models_go_by_name_and_revision() -> None:
    entry = Model(source=HubSource(hub="EleutherAI/pythia-14m"))
    assert identity(entry, "step1") != identity(entry, "step2")
    other = Model(source=HubSource(hub="EleutherAI/pythia-31m"))
    assert identity(entry, "step1") != identity(other, "step1")


def test_adapters_and_gguf_files_count(folder: Path) -> None:
    source = FolderSource(folder=str(folder))
    (adapter := folder.parent / "adapter").mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    adapted = Model(source=source, adapters=(FolderAdapter(folder=str(adapter)),))
    assert identity(adapted) != identity(Model(source=source))
    (folder / "q.gguf").write_bytes(b"1")
    quantised = Model(source=FolderSource(folder=str(folder), gguf_file="q.gguf"))
    before = identity(quantised)
    (folder / "config.json").write_text("{ }")
    assert identity(quantised) == before
    (folder / "q.gguf").write_bytes(b"2")
    assert identity(quantised) != before


def test_a_folder_without_a_model_is_not_hashed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "sha256_file", lambda _: pytest.fail("hashed"))
    for place in (folder.parent, folder / "none"):
        with refused("missing_file"):
            of(place)
