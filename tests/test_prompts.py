"""Prompts in front of texts, against sentence-transformers and mteb on a model that has them."""

from __future__ import annotations

import itertools
import json
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tiny
import torch
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from mteb.models.abs_encoder import get_prompt_name
from mteb.models.instruct_wrapper import InstructSentenceTransformerModel
from mteb.models.sentence_transformer_wrapper import SentenceTransformerEncoderWrapper
from mteb.types import PromptType
from tokenizers.processors import TemplateProcessing

from layerwise.activations import representation as readout
from layerwise.activations.embed import embed
from layerwise.activations.representation import POOLINGS, pool
from layerwise.config import Config
from layerwise.config.models import HubSource, Model
from layerwise.errors import LayerwiseError
from layerwise.models.load import load
from layerwise.models.source import Location
from layerwise.tasks import catalog, layout, prompts, texts
from layerwise.tasks.names import DEFAULT, PROMPT_TYPES
from layerwise.tasks.score import score_task
from layerwise.tasks.texts import TaskTexts
from layerwise.workflow.stages import STAGES

sys.path.insert(0, str(ROOT / "scripts"))
import run_model

sbert = pytest.importorskip("sentence_transformers")

pytest_plugins = ["task_fixtures"]

SAID = {
    "query": "quick fox: ", "document": "lazy dog: ", "STS": "seven sailors watch ",
    "Reranking-query": "sing about storms: ", "passage": "no name of mteb's ",
}  # fmt: skip
THEIRS = {"weighted_mean": "weightedmean", "last_token": "lasttoken"}
TEXTS = tiny.texts(12, seed=3)


def folder_of(
    folder: Path,
    family: str = "bert",
    *,
    pooling: str = "mean",
    include_prompt: bool = True,
    **saved: Any,
) -> Path:
    """A sentence-transformers folder of a tiny random model, with special tokens around texts."""
    from sentence_transformers.models import Pooling, Transformer
    from transformers import AutoTokenizer

    tiny.save(family, folder / "plain")
    tokenizer = AutoTokenizer.from_pretrained(folder / "plain")
    end = tokenizer.eos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{end} $A {end}", special_tokens=[(end, tokenizer.eos_token_id)]
    )
    tokenizer.model_max_length = 120
    tokenizer.save_pretrained(folder / "plain")
    transformer = Transformer(str(folder / "plain"))
    pool = Pooling(32, THEIRS.get(pooling, pooling), include_prompt=include_prompt)
    model = sbert.SentenceTransformer(modules=[transformer, pool], device="cpu", **saved)
    model.save(str(folder / "st"))
    return folder / "st"


def ours(
    folder: Path, given: list[str], prompt: str, *, include_prompt: bool, tokens: str = "all"
) -> dict[str, np.ndarray]:
    """The model's output under every pooling."""
    loaded = load("m", tiny.entry(folder), "main", device="cpu")
    readings = [layout.Reading(tokens, pooling, "output") for pooling in POOLINGS]
    parts: list[layout.Array] = []
    embed(
        loaded, given, lambda _a, _b, slabs: parts.append(np.stack(slabs)), readings=readings,
        prompts=[prompt] * len(given), include_prompt=include_prompt, budget=200,
    )  # fmt: skip
    return dict(zip(POOLINGS, np.concatenate(parts, axis=2)[:, -1], strict=True))


@pytest.mark.parametrize("family", ["bert", "qwen3"])
@pytest.mark.parametrize("include_prompt", [True, False])
def test_every_pooling_is_that_of_sentence_transformers(
    tmp_path: Path, family: str, include_prompt: bool
) -> None:
    folder = folder_of(tmp_path, family)
    model = sbert.SentenceTransformer(str(folder), device="cpu")
    for prompt in ("", "quick fox: ", "seven sailors", "longer than all it takes " * 60):
        found = ours(folder, TEXTS, prompt, include_prompt=include_prompt)
        for pooling, values in found.items():
            model[1].pooling_mode = THEIRS.get(pooling, pooling)
            model[1].include_prompt = include_prompt
            wanted = model.encode(TEXTS, prompt=prompt, batch_size=5)
            np.testing.assert_allclose(values, wanted, atol=2e-5, err_msg=f"{pooling} {prompt!r}")


def test_the_first_token_goes_with_a_prompt_that_does_not_count(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    whole = ours(folder, TEXTS, "quick fox: ", include_prompt=False)
    dropped = ours(folder, TEXTS, "quick fox: ", include_prompt=False, tokens="drop_first")
    for pooling in POOLINGS:
        np.testing.assert_array_equal(whole[pooling], dropped[pooling])
    bare = ours(folder, TEXTS, "", include_prompt=False, tokens="drop_first")
    plain = ours(folder, TEXTS, "", include_prompt=True, tokens="drop_first")
    np.testing.assert_array_equal(bare["mean"], plain["mean"])


def test_a_text_of_which_nothing_is_left_is_zero() -> None:
    states = torch.randn(3, 5, 4)
    left = readout.after(readout.pack(states, torch.tensor([5, 4, 2])), torch.tensor([2, 0, 2]))
    assert left.lengths.tolist() == [3, 4, 0]
    assert torch.equal(left.states[0, :3], states[0, 2:])
    for pooling in POOLINGS:
        assert not pool(left, pooling, torch.tensor([2, 0, 2]))[2].any()


# Which prompt

NAMES = [
    "STS12", "STS12-query", "STS", "STS-query", "STS-document", "query", "document", "Reranking",
    "STS12-document",
]  # fmt: skip


@given(st.sets(st.sampled_from(NAMES)), st.sampled_from(["", *PROMPT_TYPES]))
@settings(max_examples=300, deadline=None)
def test_the_prompt_is_the_one_that_mteb_takes(there: set[str], prompt_type: str) -> None:
    given = {name: f"{name}: " for name in there}
    metadata: Any = SimpleNamespace(name="STS12", type="STS")
    wanted = get_prompt_name(given, metadata, PromptType(prompt_type) if prompt_type else None)
    asked = TaskTexts("STS12", "STS", ["a"], [prompt_type])
    found = prompts.Prompts(given).of(asked)
    assert found == ({prompt_type: f"{wanted}: "} if wanted else {})


def test_default_is_for_texts_without_a_prompt_type() -> None:
    asked = TaskTexts("T", "Reranking", ["a", "a", "b"], ["query", "document", ""])
    assert prompts.Prompts({DEFAULT: "d ", "query": "q "}).of(asked) == {"query": "q ", "": "d "}


def test_an_instruction_is_filled_in_where_there_is_one() -> None:
    asked = TaskTexts("T", "STS", ["a", "b"], ["", "query"], {"": "Find {it}.", "query": ""})
    own = prompts.Prompts({"STS": "Instruct: {instruction}\nQuery:"})
    assert own.of(asked) == {"": "Instruct: Find {it}.\nQuery:"}


def test_each_pair_is_embedded_once() -> None:
    asked = TaskTexts("T", "Reranking", ["a", "b", "a", "b"], ["query", "query", "document", ""])
    both = prompts.pairs(asked, {"query": "q: ", "document": "d: "})
    assert list(both.values()) == [("q: ", "a"), ("q: ", "b"), ("d: ", "a"), ("", "b")]
    assert len(prompts.pairs(asked, {})) == 2
    alike = prompts.pairs(asked, {"query": "x: ", "document": "x: ", "": "x: "})
    assert list(alike.values()) == [("x: ", "a"), ("x: ", "b")]
    assert prompts.key_of("", "q: a") != prompts.key_of("q: ", "a") != prompts.key_of("q:", " a")


# From texts to scores, as the workflow goes


def run_as_workflow(
    root: Path, folder: Path, task: str, folders: dict[str, str], **entry: Any
) -> tuple[pd.DataFrame, Path]:
    """The scores of a model's output, by the workflow's own steps."""
    config = Config.of(
        {
            "models": {"m": {"source": {"folder": str(folder)}, "readouts": ["output"], **entry}},
            "tasks": [task],
            "extract": {"tokens": ["all"], "device": "cpu"},
            # mteb takes embeddings as they are.
            "scoring": {"normalize": False},
            "studies": {"s": {"kind": "power_law"}},
        }
    )
    root.mkdir(exist_ok=True)
    listed, stored = root / f"{task}.texts.parquet", root / f"{task}.h5"
    texts.write_texts(listed, texts.distinct_texts(catalog.load(catalog.get_task(task, folders))))
    run: Any = SimpleNamespace(
        names={"task": task}, config=config, input={"texts": listed}.get, inputs={"texts": listed},
        files={"embeddings": stored}, stamp=SimpleNamespace(facts=lambda: {"key": "k"}, recipe={}),
        loadable=lambda: config.models["m"],
    )  # fmt: skip
    loaded = load("m", config.models["m"], "main", device="cpu")
    run_model.Texts(loaded, run).embed(run)
    score_task(
        stored, task, root / "scores.parquet", root / "layers", config.scoring_of("m"),
        folders=folders,
    )  # fmt: skip
    table = pd.read_parquet(root / "scores.parquet")
    return table[table["depth"] == 1], stored


def mtebs_own(encoder: Any, task: str, folders: dict[str, str]) -> float:
    import mteb

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = mteb.evaluate(
            encoder, catalog.get_task(task, folders), cache=None, co2_tracker=False,
            show_progress_bar=False, encode_kwargs={"batch_size": 64},
        ).task_results[0]  # fmt: skip
    return float(result.get_score())


@pytest.mark.parametrize(
    ("task", "include_prompt"),
    [
        ("WikipediaArticleReranking", True), ("WikipediaArticleReranking", False),
        ("LeeNewsSimilarity", True), ("LeeNewsSimilarity", False),
        ("WikipediaArticlePairs", True),
    ],
)  # fmt: skip
def test_saved_prompts_score_as_mteb_does(
    tmp_path: Path, folders: dict[str, str], task: str, include_prompt: bool
) -> None:
    # Pairs have no prompt of their own, so they get the default, which is no name of mteb's.
    folder = folder_of(
        tmp_path, include_prompt=include_prompt, prompts=SAID, default_prompt_name="passage"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = SentenceTransformerEncoderWrapper(
            sbert.SentenceTransformer(str(folder), device="cpu")
        )
    wanted = mtebs_own(theirs, task, folders)
    table, stored = run_as_workflow(tmp_path / "run", folder, task, folders, prompts="saved")
    assert table["main_score"].item() == pytest.approx(wanted, abs=2e-4)
    with layout.Embeddings(stored) as file:
        before = json.loads(file.attributes["prompts"])
        assert before == {
            "WikipediaArticleReranking": {
                "query": SAID["Reranking-query"], "document": SAID["document"],
            },
            "LeeNewsSimilarity": {"": SAID["STS"]},
            "WikipediaArticlePairs": {"": SAID["passage"]},
        }[task]  # fmt: skip
    bare, _ = run_as_workflow(tmp_path / "bare", folder, task, folders)
    assert abs(bare["main_score"].item() - wanted) > 1e-3, "prompts change nothing here"


def test_instructions_score_as_mteb_does(
    tmp_path: Path, shared: Path, folders: dict[str, str]
) -> None:
    """As Qwen3-Embedding and E5's instruct models are run: the task's own instruction, in front of
    all but documents."""
    template = "Instruct: {instruction}\nQuery:"
    folder = folder_of(tmp_path, "qwen3", pooling="last_token")
    theirs = InstructSentenceTransformerModel(
        str(folder), "main", device="cpu", instruction_template=template,
        apply_instruction_to_passages=False,
    )  # fmt: skip
    given = {"BIOSSES": str(shared / "tasks" / "BIOSSES"), **folders}
    for task in ("BIOSSES", "WikipediaArticleReranking"):
        wanted = mtebs_own(theirs, task, given)
        table, _ = run_as_workflow(
            tmp_path / "run", folder, task, given, poolings=["last_token"],
            prompts={"query": template, DEFAULT: template},
        )  # fmt: skip
        assert table["main_score"].item() == pytest.approx(wanted, abs=2e-4), task


# What is saved with a model


def test_saved_prompts_are_read_as_sentence_transformers_does(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, include_prompt=False, prompts=SAID, default_prompt_name="STS")
    found = prompts.saved(Location(str(folder), None))
    assert not found.include_prompt
    assert found.by_name == {**SAID, DEFAULT: SAID["STS"]}
    entry = tiny.entry(folder, prompts="saved", include_prompt=True)
    assert prompts.of_model(entry, "main").include_prompt


def test_a_folder_without_prompts_is_refused(tmp_path: Path) -> None:
    for folder in (folder_of(tmp_path), tmp_path / "plain"):
        with pytest.raises(LayerwiseError, match="has no prompts in a config_sentence"):
            prompts.of_model(tiny.entry(folder, prompts="saved"), "main")


def test_a_pooling_that_was_not_fetched_is_said(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, prompts=SAID)
    (folder / "1_Pooling" / "config.json").unlink()
    with pytest.raises(LayerwiseError, match=r"no 1_Pooling/config\.json, which says"):
        prompts.saved(Location(str(folder), None))


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cached files of a model on the hub, of which only those of prompts are there."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    model = tmp_path / "models--org--m"
    for path, content in (("refs/main", "c0"), (f"snapshots/c0/{prompts.SETTINGS}", "")):
        (model / path).parent.mkdir(parents=True)
        (model / path).write_text(content or json.dumps({"prompts": SAID}))
    (model / ".no_exist" / "c0").mkdir(parents=True)
    return model


def test_a_hub_that_is_not_reached_is_not_taken_for_one_without_the_file(cached: Path) -> None:
    entry = Model(source=HubSource(hub="org/m"), prompts="saved")
    with pytest.raises(LayerwiseError, match=r"modules\.json of org/m .*keeps it from the hub"):
        prompts.of_model(entry, "main")
    told = entry.model_copy(update={"include_prompt": False})
    assert prompts.of_model(told, "main").by_name.items() >= SAID.items()
    # The hub was asked before, and had none.
    (cached / ".no_exist" / "c0" / prompts.MODULES).touch()
    assert prompts.of_model(entry, "main").include_prompt
    (cached / "snapshots" / "c0" / prompts.SETTINGS).unlink()
    with pytest.raises(LayerwiseError, match=r"config_sentence.* of org/m .*from the hub"):
        prompts.of_model(entry, "main")
    (cached / ".no_exist" / "c0" / prompts.SETTINGS).touch()
    with pytest.raises(LayerwiseError, match="has no prompts in a config_sentence"):
        prompts.of_model(entry, "main")


# The config


def configured(**entry: Any) -> Config:
    return Config.of(
        {
            "models": {"m": {"source": {"hub": "a/b"}, **entry}, "n": {"source": {"hub": "c/d"}}},
            "tasks": ["LeeNewsSimilarity"],
            "corpora": {"c": {"source": {"file": "x.txt"}}},
            "studies": {"s": {"kind": "score_by_depth"}},
        }
    )


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"prompts": {"passage": "p: "}}, r"models\.m\.prompts: 'passage' came.*document"),
        ({"prompts": {"STS12-passage": "p: "}}, r"'STS12-passage' came"),
        ({"prompts": {"STS1222-query": "p: "}}, r"'STS1222-query' came"),
        ({"prompts": {"quary": "p: "}}, r"did you mean 'query'"),
        ({"prompts": "own"}, r"models\.m\.prompts: \"own\" came"),
        ({"prompts": {"query": 3}}, r"models\.m\.prompts.*3 came"),
        ({"include_prompt": False}, r"include_prompt: false came, but the model has no prompts"),
    ],
)
def test_bad_prompts_are_one_sentence(entry: dict[str, Any], said: str) -> None:
    with pytest.raises(LayerwiseError, match=said) as caught:
        configured(**entry)
    assert "\n" not in str(caught.value)


def test_names_that_mteb_knows_are_taken() -> None:
    assert configured(prompts={"query": "Instruct: {instruction}\nQuery:"})
    with pytest.raises(LayerwiseError, match=r"U\+001B"):
        configured(prompts={"query": "\x1b[0m"})
    named = ["query", "STS", "STS12-query", "Reranking-document", "SciFact", "LeeNewsSimilarity"]
    assert configured(prompts=dict.fromkeys(named, "p: ")).models["m"].prompts


def test_prompts_are_in_the_key_of_embeddings_alone() -> None:
    plain, more = configured(), configured(prompts={"query": "q: "}, include_prompt=False)

    def key(config: Config, stage: str, *names: str) -> Any:
        return STAGES[stage].settings(config, *names)

    jobs = [("embed_task", "m", "main", "LeeNewsSimilarity")]
    apart = [
        ("embed_task", "n", "main", "LeeNewsSimilarity"),
        ("extract_activations", "m", "main", "c"),
        ("score_task", "m", "main", "LeeNewsSimilarity"), ("fetch_model", "m", "main"),
    ]  # fmt: skip
    for stage, *names in jobs:
        assert key(plain, stage, *names) != key(more, stage, *names)
        assert not set(prompts_of(key(plain, stage, *names)))
    for stage, *names in apart:
        assert key(plain, stage, *names) == key(more, stage, *names)
    saved = configured(prompts="saved")
    assert key(saved, "fetch_model", "m", "main") != key(plain, "fetch_model", "m", "main")


def prompts_of(settings_: dict[str, Any]) -> list[str]:
    everywhere = [
        *settings_,
        *settings_["model"],
        *itertools.chain(*map(list, settings_.values())),
    ]
    return [name for name in everywhere if "prompt" in str(name)]
