"""Bad inputs: a table of what came and what was said.

Each input either works, with a result that is defined, or ends in one sentence that says what came
and what is accepted, or how to mend it. Configs go through the check that every run begins with;
texts through corpus, views, one model and the metrics; models through loading and one forward
pass; files through whatever reads them.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
import tiny
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from test_workflow import CONFIG

from layerwise import tables
from layerwise.activations import store as layout
from layerwise.activations.extract import extract
from layerwise.association.published import published_scores, read_table
from layerwise.config import Config
from layerwise.section import parse
from layerwise.config.corpora import FileTexts, Filters, Sample, ViewSettings
from layerwise.config.extraction import ExtractSettings
from layerwise.config.metrics import MetricsSettings
from layerwise.corpora.augment import augment
from layerwise.corpora.filters import select
from layerwise.corpora.sources import open_source
from layerwise.corpora.table import Corpus, read_corpus, write_corpus
from layerwise.errors import LayerwiseError
from layerwise.metrics import table
from layerwise.models.load import load
from layerwise.tasks import layout as tasks_layout
from layerwise.tasks.results import read_result
from layerwise.tasks.texts import read_texts
from layerwise.workflow.plan import Plan
from layerwise.workflow.sources import check_sources
from layerwise.workflow.targets import Job, targets


def said(action: Callable[[], Any]) -> tuple[str | None, Any]:
    """The one sentence of an error, or None and the result."""
    try:
        return None, action()
    except LayerwiseError as error:
        message = str(error)
        assert "\n" not in message
        assert len(message) < 800
        return message, None


# Configs: (what came, path in the config, value, what was said)

LONG = "m" * 300
CONFIGS: list[tuple[str, str, Any, str]] = [
    ("results no text", "results", 3, "results: 3 came; accepted is string"),
    ("study's name climbs", "studies/..", {"kind": "metrics_by_depth"}, "cannot be a name"),
    ("absolute model", "models//etc/passwd", {"source": {"hub": "a/b"}}, "cannot be a name"),
    ("model of no letters", "models/", {"source": {"hub": "a/b"}}, "cannot be a name"),
    ("model '.'", "models/.", {"source": {"hub": "a/b"}}, "cannot be a name"),
    ("model with NUL", "models/a\0b", {"source": {"hub": "a/b"}}, "holds the character U+0000"),
    ("model of 300 letters", f"models/{LONG}", {"source": {"hub": "a/b"}}, "is too long"),
    ("hostile revision", "models/second/revisions", ["../../x"], "models.second.revisions"),
    ("hostile task", "tasks", ["LeeNewsSimilarity", "../../x"], "tasks[1]"),
    ("task of 300 letters", "tasks", ["LeeNewsSimilarity", LONG], "is too long"),
    ("model a number", "models/first", 7, "models.first: 7 came"),
    ("folder not there", "models/first/source", {"folder": "models/absent"}, "There is no model folder models/absent; check the model's source"),
    ("package not there", "models/first/source", {"package": "no_such_package"}, "is not installed; run: pip install"),
    ("file not there", "corpora/mine/source", {"file": "absent.txt"}, "corpora.mine.source.file: there is no file absent.txt"),
    ("published not there", "published", {"p": {"scores": "no.csv", "metrics": "no.csv"}}, "published.p.scores: there is no file no.csv"),
    ("seed a text", "corpora/mine/sample", {"seed": "zero"}, 'corpora.mine.sample.seed: "zero" came'),
    ("threads true", "extract/threads", True, "extract.threads: true came"),
    ("permutations", "association/permutations", 5040, "association: the key 'permutations' is gone"),
    ("alphas a word", "metrics/alphas", ["two"], "metrics.alphas"),
    ("p over 1", "corpora/mine/views/p", 1.5, "corpora.mine.views.p: 1.5 came; accepted is 1 or less"),
    ("device number -1", "extract/device", "cuda:-1", "extract.device"),
    ("tasks a text", "tasks", "LeeNewsSimilarity", 'tasks: "LeeNewsSimilarity" came; accepted is array'),
    ("study without kind", "studies/both", {}, "'kind' is missing"),
    ("revision a number", "models/second/revisions", [1000], "models.second.revisions[0]: 1000 came"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "sentence"), [c[1:] for c in CONFIGS], ids=[c[0] for c in CONFIGS])  # fmt: skip
def test_configs(
    path: str, value: Any, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("llama", "step0", "step1"):
        (tmp_path / "models" / folder).mkdir(parents=True)
    (tmp_path / "mine.txt").write_text("x")
    monkeypatch.chdir(tmp_path)
    config = copy.deepcopy(CONFIG)
    depth = {"corpora": -1, "models": 1}.get(path.split("/")[0], -1)
    if path.split("/")[-1] in ("source", "revisions"):
        depth = -1  # other names of models may hold slashes
    *parents, last = path.split("/", depth)
    place: Any = config
    for part in parents:
        place = place.setdefault(part, {})
    place[last] = value

    def check() -> list[Job]:
        checked = Config.of(config)
        check_sources(checked)
        return list(Plan(checked).jobs_due(targets(checked)))

    message, _ = said(check)
    assert message is not None
    assert sentence in message


# Texts: (what came, the file's name, its bytes, settings, prompts that are left or what was said)

WORDS = tiny.texts(1, shortest=12, longest=12)[0]
ARABIC = "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645 " * 4
EMOJI = "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea " * 5
KEEP = {"drop_duplicates": False}


def lines(*texts: str) -> bytes:
    return "\n".join(texts).encode()


def as_json(*rows: Any) -> bytes:
    return "\n".join(map(json.dumps, rows)).encode()


TEXTS: list[tuple[str, str, bytes, dict[str, Any], int | str]] = [
    ("nothing", "t.txt", b"", {}, "t.txt is empty"),
    ("blanks", "t.txt", b"  \n\t\n \n", {}, "No prompt is left of the 3 texts of this source (3 read, 3 blank"),
    ("one token each", "t.txt", lines("fox", "dog", "pier"), {}, 3),
    ("one token, default filters", "t.txt", b"fox", {"min_tokens": 30}, "1 short"),
    ("one prompt", "t.txt", lines(WORDS), {}, 1),
    ("a megabyte", "t.txt", lines("storm " * 175_000, *tiny.texts(3)), {}, 4),
    ("a megabyte without a space", "t.txt", lines("x" * 2**20, *tiny.texts(3)), {}, 4),
    ("NULs", "t.txt", lines(f"a\0b {WORDS}", "\0\0\0", WORDS), {}, 3),
    ("lone surrogates", "t.jsonl", as_json({"text": f"\ud800 {WORDS}"}, {"text": "\udfff\udfff"}), {}, 2),
    ("right to left", "t.txt", lines(ARABIC, "\u202e" + WORDS), {}, 2),
    ("emoji", "t.txt", lines(EMOJI, "\U0001f600"), {}, 2),
    ("the same 1,000 times", "t.txt", lines(*[WORDS] * 1000), {}, 1),
    ("the same 1,000 times, wanted", "t.txt", lines(*[WORDS] * 1000), KEEP, 1000),
    ("Latin-1", "t.txt", "caf\u00e9".encode("latin-1"), {}, "t.txt is not UTF-8: line 1 has the byte 0xe9"),
    ("a number for a text", "t.jsonl", as_json({"text": 5}), {}, "'text' holds int '5', not text"),
    ("half a JSON line", "t.jsonl", b'{"text": "a', {}, "line 1: not JSON"),
    ("another column", "t.jsonl", as_json({"txt": "a"}), {}, "there is no column 'text' (did you mean 'txt'?)"),
    ("no table", "t.parquet", b"hello", {}, "t.parquet is cut off or no parquet file"),
    ("a spreadsheet", "t.xlsx", b"hello", {}, "accepted are files that end in"),
    ("least over most", "t.txt", lines(WORDS), {"max_tokens": 2, "min_tokens": 5}, "at least min_tokens, which is 5"),
]  # fmt: skip


@cache
def small_model(folder: Path) -> Any:
    return load("m", tiny.entry(tiny.save("gpt_neox", folder)), "main", device="cpu")


@pytest.mark.parametrize(("name", "content", "filters", "outcome"), [t[1:] for t in TEXTS], ids=[t[0] for t in TEXTS])  # fmt: skip
def test_texts(
    name: str, content: bytes, filters: dict[str, Any], outcome: int | str,
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    path = tmp_path / name
    path.write_bytes(content)
    model = small_model(tmp_path_factory.getbasetemp() / "small")

    def run() -> tuple[int, pd.DataFrame]:
        rows = open_source(parse(FileTexts, {"file": str(path)}))
        chosen = select(rows, parse(Filters, {"min_tokens": 0, **filters}), Sample())
        corpus = Corpus("c", chosen.prompt_ids, chosen.texts, chosen.n_tokens)
        write_corpus(tmp_path / "c.parquet", corpus)
        corpus = read_corpus(tmp_path / "c.parquet")
        views = augment(corpus, ViewSettings(n=1, on_failure="drop"))
        assert all(v is None or v[0] != t for v, t in zip(views, corpus.texts, strict=True))
        extract(
            model, corpus="c", prompts=corpus.prompt_ids, views=[corpus.texts],
            settings=ExtractSettings(), target=tmp_path / "a.h5", attributes={},
        )  # fmt: skip
        wanted = ["prompt_entropy", "dataset_entropy", "effective_rank", "curvature"]
        with layout.Activations(tmp_path / "a.h5") as file:
            made, _ = table.compute(file, parse(MetricsSettings, {"metrics": wanted}), 1)
        return len(corpus), made

    message, result = said(run)
    if isinstance(outcome, str):
        assert message is not None
        assert outcome in message
        return
    assert message is None, message
    n_prompts, made = result
    assert n_prompts == outcome
    # A value is a number of so many prompts, or is not there.
    assert np.isfinite(made["value"]).all()
    assert made["n"].between(1, n_prompts * 100).all()
    entropy = made[(made["metric"] == "prompt_entropy") & (made["tokens"] == "all")]
    assert len(entropy)


# Models: (what came, how a good folder was broken, what was said, or None if it works)


def weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def in_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def shards(folder: Path) -> list[Path]:
    model = hf.AutoModel.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="60KB")
    found = sorted(folder.glob("model-*.safetensors"))
    assert len(found) > 1
    return found


def no_tokenizer(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()


def no_pad_token(folder: Path) -> None:
    in_json(folder / "tokenizer_config.json", pad_token=None)


def pickle_weights(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def remote_code(folder: Path) -> None:
    (folder / "own.py").write_text("raise SystemExit('this code was run')")
    auto = {"AutoConfig": "own.Config", "AutoModel": "own.Model"}
    in_json(folder / "config.json", model_type="own", auto_map=auto)


def cut_shard(folder: Path) -> None:
    shard = shards(folder)[1]
    shard.write_bytes(shard.read_bytes()[:-100])


def lost_shard(folder: Path) -> None:
    shards(folder)[1].unlink()


def nan(tensors: dict[str, torch.Tensor]) -> None:
    name = next(n for n in tensors if n.endswith("layers.1.mlp.dense_h_to_4h.weight"))
    tensors[name][0, 0] = float("nan")


def one_lost(tensors: dict[str, torch.Tensor]) -> None:
    del tensors[next(n for n in tensors if n.endswith("layers.1.mlp.dense_h_to_4h.weight"))]


def larger_vocabulary(folder: Path) -> None:
    """The tokenizer has words that the model has no embedding for."""
    path = folder / "tokenizer.json"
    state = json.loads(path.read_text())
    state["model"]["vocab"] = {w: i + 290 for w, i in state["model"]["vocab"].items()}
    state["added_tokens"] = []
    path.write_text(json.dumps(state))


MODELS: list[tuple[str, Callable[[Path], object], str | None]] = [
    ("good", lambda f: None, None),
    ("missing", shutil.rmtree, "There is no model folder"),
    ("an empty folder", lambda f: [p.unlink() for p in f.iterdir()], "has no config.json"),
    ("a file", lambda f: [shutil.rmtree(f), f.write_text("x")], "There is no model folder"),
    ("config no JSON", lambda f: (f / "config.json").write_text("{"), "not a valid JSON"),
    ("config a list", lambda f: (f / "config.json").write_text("[]"), "key in its config.json"),
    ("unknown type", lambda f: in_json(f / "config.json", model_type="no_such"), "no_such"),
    ("another type", lambda f: in_json(f / "config.json", model_type="bert"), "config.json is of another model"),
    ("no tokenizer", no_tokenizer, "tokenizer"),
    ("tokenizer no JSON", lambda f: (f / "tokenizer.json").write_text("{"), "tokenizer.json is not a valid JSON file"),
    ("no pad token", no_pad_token, None),
    ("pickle weights", pickle_weights, "pickle files are not read"),
    ("code of its own", remote_code, "needs code of its own to be run"),
    ("no weights", lambda f: (f / "model.safetensors").unlink(), "has no weights as safetensors"),
    ("corrupt weights", lambda f: (f / "model.safetensors").write_bytes(b"x" * 99), "safetensors file is damaged"),
    ("cut shard", cut_shard, "safetensors file is damaged"),
    ("lost shard", lost_shard, "model-00002"),
    ("NaN in the weights", lambda f: weights(f, nan), "gives NaN or infinity at layer 2"),
    ("a tensor lost", lambda f: weights(f, one_lost), "layers.1.mlp.dense_h_to_4h.weight"),
    ("other shapes", lambda f: in_json(f / "config.json", intermediate_size=64), "dense_4h_to_h"),
    ("tokenizer of another model", larger_vocabulary, "has embeddings of tokens 0 to 299 alone"),
]  # fmt: skip


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save("gpt_neox", tmp_path_factory.mktemp("good") / "m")


@pytest.mark.parametrize(("breaking", "sentence"), [m[1:] for m in MODELS], ids=[m[0] for m in MODELS])  # fmt: skip
def test_models(
    breaking: Callable[[Path], object], sentence: str | None, good: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "m"
    shutil.copytree(good, folder)
    breaking(folder)
    target = tmp_path / "a.h5"
    target.write_text("from an earlier run")

    def run() -> Any:
        model = load("m", tiny.entry(folder), "main", device="cpu")
        texts = tiny.texts(20)
        extract(
            model, corpus="c", prompts=list(map(str, range(20))), views=[texts],
            settings=ExtractSettings(), target=target, attributes={},
        )  # fmt: skip
        with layout.Activations(target) as file:
            return np.stack([file.pooled("paper", "all", layer) for layer in file.layers])

    message, values = said(run)
    if sentence is None:
        assert message is None, message
        assert np.isfinite(values).all()
    else:
        assert message is not None
        assert sentence in message
        assert target.read_text() == "from an earlier run"


# Files: (what came, how it was made at a path, who reads it, what was said)


def copied(kind: str, **attributes: Any) -> Callable[[Path, Path], object]:
    """One of our own files with other attributes."""

    def make(path: Path, source: Path) -> None:
        shutil.copy(source / kind, path)
        with h5py.File(path, "a") as file:
            file.attrs.update(attributes)

    return make


def written(content: bytes) -> Callable[[Path, Path], object]:
    return lambda path, _: path.write_bytes(content)


def foreign_hdf5(path: Path, _: Path) -> None:
    with h5py.File(path, "w") as file:
        file["data"] = np.arange(3)


def foreign_parquet(path: Path, _: Path) -> None:
    pd.DataFrame({"a": [1]}).to_parquet(path)


def foreign_csv(path: Path, _: Path) -> None:
    path.write_text("a,b\n1,2\n")


def activations(path: Path) -> Any:
    return layout.Activations(path, model="m", revision="main", corpus="c")


def embeddings(path: Path) -> Any:
    return tasks_layout.Embeddings(path, model="m", revision="main", task="t")


AGAIN = "delete it and run snakemake again"
FILES: list[tuple[str, Callable[[Path, Path], object], Callable[[Path], Any], str]] = [
    ("no activations", lambda p, s: None, activations, "There is no file"),
    ("text as HDF5", written(b"hello"), activations, f"it is no HDF5 at all); {AGAIN}"),
    ("an empty HDF5", written(b""), activations, "is not a readable HDF5 file"),
    ("foreign HDF5", foreign_hdf5, activations, "was not written by layerwise as layerwise.activations"),
    ("old schema", copied("a.h5", schema_version=1), activations, f"has version 1 of the schema layerwise.activations, this layerwise reads version {layout.VERSION}; {AGAIN}"),
    ("schema of the future", copied("a.h5", schema_version=99), activations, "has version 99"),
    ("not complete", copied("a.h5", complete=False), activations, f"is incomplete: its writer was stopped; {AGAIN}"),
    ("wrong model", copied("a.h5", model="other"), activations, f"is about model 'other', wanted was 'm'; {AGAIN}"),
    ("wrong revision", copied("a.h5", revision="step3"), activations, "is about revision 'step3', wanted was 'main'"),
    ("wrong corpus", copied("a.h5", corpus="d"), activations, "is about corpus 'd', wanted was 'c'"),
    ("activations as embeddings", copied("a.h5"), embeddings, "was not written by layerwise as layerwise.embeddings"),
    ("no metrics table", written(b"hello"), lambda p: tables.read(p, "metrics", table.COLUMNS), "is no readable parquet table of metrics"),
    ("foreign metrics table", foreign_parquet, lambda p: tables.read(p, "metrics", table.COLUMNS), "lacks the columns"),
    ("no score table", written(b""), lambda p: tables.read(p, "scores"), "is no readable parquet table of scores"),
    ("no score tables at all", lambda p, s: None, lambda p: tables.read([], "scores"), "give at least one parquet file"),
    ("foreign corpus", foreign_parquet, read_corpus, "was not written by layerwise as layerwise.corpus"),
    ("foreign list of texts", foreign_parquet, read_texts, "was not written by layerwise as"),
    ("foreign published table", foreign_csv, lambda p: published_scores(read_table(p.rename(p.with_suffix(".csv")))), "column"),
]  # fmt: skip


@pytest.fixture(scope="session")
def ours(good: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ours")
    extract(
        load("m", tiny.entry(good), "main", device="cpu"), corpus="c", prompts=["a", "b"],
        views=[tiny.texts(2)], settings=ExtractSettings(), target=folder / "a.h5", attributes={},
    )  # fmt: skip
    return folder


@pytest.mark.parametrize(("make", "read", "sentence"), [f[1:] for f in FILES], ids=[f[0] for f in FILES])  # fmt: skip
def test_files(
    make: Callable[[Path, Path], object], read: Callable[[Path], Any], sentence: str,
    ours: Path, tmp_path: Path,
) -> None:  # fmt: skip
    path = tmp_path / "file"
    make(path, ours)
    content = path.read_bytes() if path.exists() else None
    message, _ = said(lambda: read(path))
    assert message is not None
    assert sentence in message
    there = [p for p in tmp_path.iterdir() if p.stem == "file"]
    assert [p.read_bytes() for p in there] == ([] if content is None else [content])


@pytest.mark.parametrize(
    "content",
    ["", "{", "null", "[]", "3", '"text"', "{}", '{"layerwise": 3}', '{"layerwise": {"key": "k"}}',
     '{"task_name": "T", "scores": {"test": [{"main_score": 0.5}]}}', "\udcff", "\0"],
)  # fmt: skip
def test_a_foreign_result_is_no_score(content: str, tmp_path: Path) -> None:
    """JSON that is not ours, or was edited, is scored again and not believed."""
    path = tmp_path / "T.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    assert read_result(path, "k") is None


def test_the_table_is_long_enough() -> None:
    assert len(CONFIGS) >= 20
    assert len(CONFIGS) + len(TEXTS) + len(MODELS) + len(FILES) >= 60
