"""A file altered by one byte, or cut off: never another value, always one sentence.

Each of our kinds of file is altered at random places, in its data and in what describes them. A
reader must either say so, with the file's name, or give the values that were written.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import re
import shutil
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
from broken import whole
from same_values import assert_same

from layerwise import tables
from layerwise.activations.store import Activations
from layerwise.corpora.paragraphs import read_paragraphs
from layerwise.corpora.table import read_prompts
from layerwise.errors import LayerwiseError
from layerwise.tasks.layout import Embeddings
from layerwise.tasks.texts import read_texts
from layerwise.workflow import stamps

ALTERATIONS = 300
CUTS = 30
# A reader that takes longer never comes to an end.
PATIENCE_S = 30


def read_activations(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    about = {"model": "second", "revision": "step2", "corpus": "mine"}
    with Activations(path, **about) as file:
        found["prompts"] = np.array(file.prompts)
        for layer in file.layers:
            for tokens in file.tokens:
                found[f"n_tokens {tokens} {layer}"] = file.n_tokens("paper", tokens, layer)
                for protocol in file.protocols:
                    at = (protocol, tokens, layer)
                    found[f"views {at}"] = file.views(*at)
                    found[f"spectrum {at}"] = file.spectrum(*at)
                    found[f"curvature {at}"] = file.curvature(*at)
    return found


def read_embeddings(path: Path) -> dict[str, Any]:
    about = {"model": "second", "revision": "step2", "task": "LeeNewsSimilarity"}
    with Embeddings(path, **about) as file:
        found: dict[str, Any] = {"keys": np.array(file.keys)}
        for reading in file.readings:
            for layer in range(file.n_layers):
                found[f"{reading} {layer}"] = file.layer(reading, layer)
    return found


def read_table(path: Path) -> dict[str, Any]:
    return {"table": tables.read(path, "scores")}


def read_corpus(path: Path) -> dict[str, Any]:
    corpus, _ = read_prompts(path, None)
    return {"all": pd.DataFrame({"id": corpus.prompt_ids, "text": corpus.texts})}


def read_views(path: Path) -> dict[str, Any]:
    _, views = read_prompts(whole().results / "corpora" / "mine.parquet", path)
    return {"all": pd.DataFrame(views)}


def read_task_texts(path: Path) -> dict[str, Any]:
    return {"all": pd.DataFrame({"text": read_texts(path, "LeeNewsSimilarity").texts})}


def read_wikipedia(path: Path) -> dict[str, Any]:
    return {"all": pd.DataFrame(read_paragraphs(path)[0])}


FILES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "activations/second/step2/mine.h5": read_activations,
    "embeddings/second/step2/LeeNewsSimilarity.h5": read_embeddings,
    "metrics/second/step2/mine.parquet": read_table,
    "scores/second/step2/LeeNewsSimilarity.parquet": read_table,
    "associations/both.parquet": read_table,
    "corpora/mine.parquet": read_corpus,
    "corpora/mine.views.parquet": read_views,
    "tasks/LeeNewsSimilarity.texts.parquet": read_task_texts,
    "texts/wikipedia.parquet": read_wikipedia,
}


def check(path: Path, read: Callable[[Path], dict[str, Any]], expected: dict[str, Any]) -> bool:
    """Whether the reader noticed. What it says must be one sentence that names the file."""
    stamps.read(path)  # as a plan does, of every file: whatever is wrong with it is no error
    try:
        found = read(path)
    except LayerwiseError as error:
        assert path.name in str(error)
        assert "\n" not in str(error)
        return True
    assert_same(found, expected)
    return False


class Reader:
    """A process that checks files, and is killed if it does not come to an end."""

    def __init__(self, path: Path, name: str, expected: dict[str, Any]) -> None:
        self._what = (path, FILES[name], expected)
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("fork")
        self._asked, theirs = context.Pipe()
        self._process = context.Process(target=_answer, args=(theirs, *self._what), daemon=True)
        self._process.start()
        theirs.close()

    def check(self) -> str:
        """``noticed``, ``same``, ``ended`` (by a signal) or ``hung``; else what went wrong."""
        self._asked.send(None)
        answer = "hung"
        with contextlib.suppress(EOFError, ConnectionResetError):
            if self._asked.poll(PATIENCE_S):
                answer = "ended"
                return str(self._asked.recv())
        self.stop()
        self._start()
        return answer

    def stop(self) -> None:
        self._process.kill()
        self._process.join()


def _answer(asked: Any, *what: Any) -> None:
    while True:
        asked.recv()
        try:
            answer = "noticed" if check(*what) else "same"
        except BaseException:
            answer = traceback.format_exc()
        asked.send(answer)


@pytest.mark.parametrize("name", FILES)
def test_one_altered_byte_is_noticed_or_changes_nothing(name: str, tmp_path: Path) -> None:
    content = (whole().results / name).read_bytes()
    copy = tmp_path / Path(name).name
    copy.write_bytes(content)
    reader = Reader(copy, name, FILES[name](copy))
    places = random.Random(0)
    # The ends hold what describes the rest.
    ends = [*range(0, 60, 3), *range(len(content) - 1200, len(content), 17)]
    strings = [] if len(content) > 2**20 else [
        found.start() for found in re.finditer(rb"GCOL", content)
    ]  # fmt: skip
    # Where HDF5 keeps strings of any length, which it has no checksum of.
    heaps = [place + k for place in strings for k in range(4, 200, 3)][:ALTERATIONS]
    answers = Counter[str]()
    try:
        for place in [*ends, *heaps, *places.sample(range(len(content)), ALTERATIONS)]:
            altered = bytearray(content)
            altered[place] ^= 1 << places.randrange(8)
            copy.write_bytes(altered)
            answer = reader.check()
            about = f"byte {place} of {len(content)} in {name}: {answer}"
            assert answer in ("noticed", "same"), about
            answers[answer] += 1
    finally:
        reader.stop()
    assert answers["noticed"] > ALTERATIONS // 10


@pytest.mark.parametrize("name", FILES)
def test_a_cut_file_is_refused(name: str, tmp_path: Path) -> None:
    content = (whole().results / name).read_bytes()
    copy = tmp_path / Path(name).name
    for length in np.linspace(0, len(content) - 1, CUTS, dtype=int):
        copy.write_bytes(content[:length])
        assert check(copy, FILES[name], {}), f"cut at {length} of {len(content)}"


def test_files_without_a_seal_are_read_as_ever(tmp_path: Path) -> None:
    """Published tables have none, nor have files that an earlier layerwise wrote."""
    name = "scores/second/step2/LeeNewsSimilarity.parquet"
    path = whole().results / name
    pd.read_parquet(path).to_parquet(tmp_path / "plain.parquet")
    assert_same(read_table(tmp_path / "plain.parquet"), read_table(path))
    name = "activations/second/step2/mine.h5"
    older = Path(shutil.copy(whole().results / name, tmp_path))
    with h5py.File(older, "a") as file:
        del file.attrs["seal"]
    assert_same(read_activations(older), read_activations(whole().results / name))
