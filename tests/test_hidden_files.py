"""Files that programs leave behind are no data, and change no hash."""

from pathlib import Path

import pytest
from PIL import Image

from layerwise.corpora.prompts import in_folder
from layerwise.io.files import folder_sha256
from layerwise.models.source import folder_hashes

LEFT = (".DS_Store", "Thumbs.db", ".ipynb_checkpoints/config-checkpoint.json", "._test.parquet")


@pytest.mark.parametrize("name", LEFT)
def test_hidden_files_change_no_hash(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    before = folder_sha256(tmp_path), folder_hashes(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"Bud1")
    assert (folder_sha256(tmp_path), folder_hashes(tmp_path)) == before
    (tmp_path / "a.json").write_text("{}")
    with_another = folder_sha256(tmp_path)
    (tmp_path / "a.json").rename(tmp_path / "b.json")  # in a corpus, a name may be a label
    assert len({before[0], with_another, folder_sha256(tmp_path)}) == 3


def test_hidden_folders_are_no_classes(tmp_path: Path) -> None:
    places = (
        "cat",
        "dog",
        ".ipynb_checkpoints",
        "cat/.ipynb_checkpoints",
        "@eaDir",
        "__MACOSX/cat",
    )
    for place in places:
        (tmp_path / place).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / place / "1.png")
    files = in_folder(tmp_path)
    assert (files.ids, files.labels) == (["cat/1.png", "dog/1.png"], ["cat", "dog"])
