"""Models of sentence-transformers: the output is what `SentenceTransformer.encode` gives."""

import json
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from helpers import tiny
from helpers.refused import refused
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules
from tokenizers.processors import TemplateProcessing

import layerwise as lw
from layerwise.activations.embedding import embed, prompt_length, representations_of
from layerwise.analysis import embed_labels, labels_of
from layerwise.config.settings import ExtractSettings, ScoringSettings
from layerwise.export import Recipe, export
from layerwise.models.load import load
from layerwise.models.opening import open_model
from layerwise.tasks.task import normalized, set_up

TEXTS = [text.upper() for text in tiny.texts(6, longest=40)]
LABELLED = tiny.texts(40, seed=5)
CLASSES = [n % 2 for n in range(40)]
PROMPT = {"prompts": {"q": "the quick brown fox "}, "default_prompt_name": "q"}
TEMPLATE = "{% for m in messages %}the {{ m['role'] }} says {{ m['content'] }} over {% endfor %}"


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny encoder, and a tiny decoder whose tokenizer has a chat template."""
    home = tmp_path_factory.mktemp("base")
    folders = {"bert": tiny.save("bert", home / "bert"), "chat": tiny.save("llama", home / "chat")}
    tokenizer = hf.AutoTokenizer.from_pretrained(folders["chat"])
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folders["chat"])
    return folders


@pytest.fixture
def base(bases: dict[str, Path]) -> Path:
    return bases["bert"]


def pooled(mode: Any = "mean", **settings: Any) -> modules.Pooling:
    return modules.Pooling(32, pooling_mode=mode, **settings)


def cut() -> modules.Dense:
    torch.manual_seed(0)
    return modules.Dense(32, 24, activation_function=torch.nn.Tanh())


def weighted() -> modules.WeightedLayerPooling:
    weights = torch.nn.Parameter(torch.tensor([0.5, 2.0, 1.0]))
    return modules.WeightedLayerPooling(
        32, num_hidden_layers=3, layer_start=1, layer_weights=weights
    )


def save(
    bases: dict[str, Path],
    folder: Path,
    chain: Sequence[Callable[[], Any]] = (pooled,),
    base: str = "bert",
    file: str = "sentence_bert_config.json",
    inner: str = "",
    model: dict[str, Any] | None = None,
    first: dict[str, Any] | None = None,
    **settings: Any,
) -> SentenceTransformer:
    """Save a model; returns it as sentence-transformers reads it.

    Parameters
    ----------
    chain : sequence of functions
        They make the modules after the transformer.
    inner : str
        Folder of the transformer, as older versions have it.
    model, first : dict
        Options of the model, and of the transformer.
    **settings
        Changed in the file of the transformer's settings, named `file`; None deletes one.
    """
    transformer = modules.Transformer(str(bases[base]), **(first or {"max_seq_length": 16}))
    chained = [transformer, *(make() for make in chain)]
    made = SentenceTransformer(modules=chained, device="cpu", **(model or {}))
    made.save(str(folder), create_model_card=False)
    path = folder / "sentence_bert_config.json"
    values = json.loads(path.read_text()) | settings
    path.write_text(json.dumps({k: v for k, v in values.items() if v is not None}))
    path.rename(folder / file)
    if inner:
        (folder / inner).mkdir()
        for each in [path for path in folder.iterdir() if path.is_file()]:
            if each.name not in ("modules.json", "config_sentence_transformers.json"):
                each.rename(folder / inner / each.name)
        listed = folder / "modules.json"
        listed.write_text(listed.read_text().replace('"path": ""', f'"path": "{inner}"', 1))
    # What is cut is no part of the saved files.
    options = {k: v for k, v in (model or {}).items() if k == "truncate_dim"}
    return SentenceTransformer(str(folder), device="cpu", **options)


FLAT = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
TEXT = {"max_length": 8, "truncation": True}
OF_TOKENS = {"module_input_name": "token_embeddings"}
STATES = {"config_kwargs": {"output_hidden_states": True}}
UNIT = modules.Normalize
square = partial(modules.Dense, 32, 32)
case = partial(partial, save)
CASES: dict[str, partial[SentenceTransformer]] = {
    **{
        mode: case(chain=[partial(pooled, mode), square, partial(modules.LayerNorm, 32)])
        for mode in ("cls", "mean", "max", "lasttoken", "weightedmean")
    },
    "normalized": case(chain=[pooled, modules.Dropout, UNIT]),
    "normalized in the middle": case(chain=[pooled, UNIT, cut]),
    "twice": case(chain=[pooled, cut, partial(modules.LayerNorm, 24), UNIT]),
    "residual": case(chain=[pooled, partial(square, use_residual=True)]),
    "layers": case(chain=[weighted, pooled, UNIT], first=STATES),
    "tokens": case(chain=[partial(square, **OF_TOKENS), pooled]),
    "matryoshka": case(chain=[pooled, UNIT], model={"truncate_dim": 8}),
    "matryoshka behind a Dense": case(chain=[pooled, cut], model={"truncate_dim": 16}),
    "prompt": case(chain=[pooled, UNIT], model=PROMPT),
    "prompt that does not count": case(
        chain=[partial(pooled, include_prompt=False)], model=PROMPT
    ),
    "wider": case(chain=[partial(pooled, ("cls", "max")), partial(modules.Dense, 64, 48), UNIT]),
    "no pooling of ours": case(chain=[partial(pooled, "mean_sqrt_len_tokens"), cut]),
    "chat": case(chain=[partial(pooled, "lasttoken")], base="chat", first={"model_kwargs": {}}),
    "cut chat with a prompt": case(base="chat", model=PROMPT),
    "flat text of a chat model": case(base="chat", modality_config=FLAT),
    "lower case": case(do_lower_case=True),
    "length of each call": case(processing_kwargs={"text": TEXT}),
    "no special tokens": case(processing_kwargs={"text": {"add_special_tokens": False}}),
    "cut on the left": case(tokenizer_args={"truncation_side": "left"}),
    "length of the tokenizer": case(
        max_seq_length=None, processor_kwargs={"model_max_length": 12}
    ),
    "a decoder by settings": case(config_args={"is_decoder": True}),
    "fewer layers by settings": case(config_args={"num_hidden_layers": 2}),
    "older layout": case(inner="0_Transformer"),
    "older file name": case(file="sentence_roberta_config.json", max_seq_length=10),
}


@pytest.mark.parametrize("name", CASES)
def test_every_door_agrees_with_encode(
    bases: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    folder = tmp_path / "saved"
    model = CASES[name](bases, folder)
    expected, width = model.encode(TEXTS), model.get_embedding_dimension()
    before = tiny.facts(model.transformers_model)
    place = [*CASES].index(name)
    doors: list[Any] = [model]
    if "truncate_dim" not in CASES[name].keywords.get("model", {}):
        (repository := tmp_path / "hub" / "models--someone--embedder" / "refs").mkdir(parents=True)
        (repository / "main").write_text("a" * 40)
        (repository.parent / "snapshots").mkdir()
        (repository.parent / "snapshots" / ("a" * 40)).symlink_to(folder)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
        package = tmp_path / "packages" / f"package_{place}"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "model").symlink_to(folder)
        monkeypatch.syspath_prepend(package.parent)
        others = [
            torch.nn.DataParallel(model),
            "someone/embedder",
            f"package:{package.name}/model",
        ]
        # All doors but the first two only find one of these: the cases take turns.
        doors += [str(folder), others[place % 3]]
    for number, door in enumerate(doors):
        caplog.clear()
        with caplog.at_level(logging.WARNING), open_model(door) as loaded:
            assert caplog.text.count("apply to its output only") == bool(loaded.embedder.modules)
            assert "tokenizer.json" not in caplog.text
            setup = set_up(loaded, ExtractSettings(), ScoringSettings())
            ways = representations_of(loaded, ["all"], setup.scoring.poolings, ["final_norm"])
            prompts = [setup.prompts.of("T", SimpleNamespace(task_type="STS"), "")] * len(TEXTS)
            counts = setup.prompts.include_prompt
            scored = embed(loaded, TEXTS, ways, prompts=prompts, include_prompt=counts)[0, -1]
            labelled = embed_labels(loaded, labels_of(LABELLED, CLASSES), "all")[-1]
            normalizes = setup.scoring.normalize
            if number < 2:
                last = loaded.anatomy.n_layers - 1
                if (number + place) % 2:
                    export(loaded, Recipe(1), tmp_path / f"middle {number}", TEXTS)
                export(loaded, Recipe(last), tmp_path / f"exported {number}", TEXTS)
                exported = SentenceTransformer(str(tmp_path / f"exported {number}"), device="cpu")
                assert exported.tokenizer.padding_side == "right"
                np.testing.assert_allclose(exported.encode(TEXTS), expected, atol=1e-5)
        vectors = lw.embed(door, TEXTS).values[-1]
        for ours, theirs in (
            (vectors, expected),
            (scored, expected),
            (labelled, model.encode(LABELLED)),
        ):
            ours = normalized(ours) if normalizes else ours
            np.testing.assert_allclose(ours[:, :width], theirs, atol=1e-5)
            assert not ours[:, width:].any()
    assert tiny.facts(model.transformers_model) == before


def test_another_pooling_is_the_users_word(
    bases: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(bases, tmp_path / "saved", [partial(pooled, "cls")])
    prompts = {"": "", "default": ""}
    entry = tiny.entry(tmp_path / "saved", max_length=20, prompts=prompts)
    loaded = load("m", entry, "main", device="cpu")
    assert loaded.max_length == 20
    with caplog.at_level(logging.INFO):
        setup = set_up(loaded, ExtractSettings(), ScoringSettings(poolings=("max",)))
    assert setup.scoring.poolings == ("max",) and dict(setup.prompts.by_name) == prompts
    assert "pooled by max; its own pooling is cls" in caplog.text


def test_an_export_cuts_where_the_user_says(bases: dict[str, Path], tmp_path: Path) -> None:
    saved, texts = tmp_path / "saved", [" ".join(TEXTS)]
    CASES["length of each call"](bases, saved)
    loaded = load("m", tiny.entry(saved, max_length=5), "main", device="cpu")
    export(loaded, Recipe(loaded.anatomy.n_layers - 1), tmp_path / "exported", texts)
    exported = SentenceTransformer(str(tmp_path / "exported"), device="cpu")
    cut = SentenceTransformer(str(saved), device="cpu")
    cut[0].processing_kwargs["text"]["max_length"] = 5
    np.testing.assert_allclose(exported.encode(texts), cut.encode(texts), atol=1e-5)


def test_a_saved_model_is_read_and_exported_as_asked(
    bases: dict[str, Path], tmp_path: Path
) -> None:
    CASES["normalized"](bases, tmp_path / "saved")
    loaded = load("m", tiny.entry(tmp_path / "saved"), "main", device="cpu")
    asked = [Recipe(1, normalize=normalize).of(loaded) for normalize in (None, True, False)]
    assert [recipe.normalize for recipe in asked] == [True, True, False]
    entry = tiny.entry(tmp_path / "saved", special_tokens=False)
    bare = load("m", entry, "main", device="cpu")
    for each, n_special in ((loaded, 1), (bare, 0)):
        first = TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
        each.texts.tokenizer.backend_tokenizer.post_processor = first
        (ids,), _ = each.texts.prompts(["the"])
        assert ids[:-1] == [1] * n_special


def test_modules_that_need_more_than_states_are_named(
    base: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chain = [modules.Transformer(str(base)), modules.CNN(32, 16), pooled()]
    model = SentenceTransformer(modules=chain, device="cpu")
    with caplog.at_level(logging.WARNING):
        values = lw.embed(model, TEXTS).values
    assert values.shape[-1] == 32
    assert caplog.text.count("left out") == 1 and "CNN" in caplog.text
    router = modules.Router({"query": [modules.Transformer(str(base)), pooled()]})
    SentenceTransformer(modules=[router], device="cpu").save(str(tmp_path / "router"))
    with refused("unsupported"):
        lw.embed(str(tmp_path / "router"), TEXTS)


def test_layers_of_a_token_are_not_averaged_without_each_ones_sinks(base: Path) -> None:
    first = modules.Transformer(str(base), config_kwargs={"output_hidden_states": True})
    model = SentenceTransformer(modules=[first, weighted(), pooled()], device="cpu")
    with refused("unsupported"):
        lw.embed(model, TEXTS, tokens="drop_sinks")


@pytest.mark.parametrize(
    ("settings", "use"),
    [
        ({"special_tokens": False}, lambda loaded: loaded),
        ({}, lambda loaded: loaded.texts.offsets(TEXTS)),
        ({}, lambda loaded: prompt_length(loaded, "the ")),
    ],
)
def test_a_chat_template_refuses_what_it_hides(
    bases: dict[str, Path], tmp_path: Path, settings: dict[str, Any], use: Callable[[Any], Any]
) -> None:
    save(bases, tmp_path / "saved", base="chat")
    with refused("conflict" if settings else "unsupported"):
        use(load("m", tiny.entry(tmp_path / "saved", **settings), "main", device="cpu"))


def test_another_output_than_the_last_state_is_refused(
    bases: dict[str, Path], tmp_path: Path
) -> None:
    way = {"text": {"method": "forward", "method_output_name": ["hidden_states", 1]}}
    model = save(bases, tmp_path / "saved", modality_config=way)
    for door in (model, str(tmp_path / "saved")):
        with refused("unsupported"):
            lw.embed(door, TEXTS)
