"""A model cut at a layer: the same embeddings as the whole model's, in plain libraries."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from helpers import tiny
from helpers.project import call
from helpers.refused import refused
from transformers import AutoModel, AutoTokenizer
from typer.testing import CliRunner

from layerwise import cli
from layerwise import export as cut
from layerwise.cli import app
from layerwise.config.models import HubSource, Model
from layerwise.errors import Code, LayerwiseError
from layerwise.export import Recipe, export

TEXTS = tiny.texts(8)
RECIPES = [
    Recipe(1),
    Recipe(0),
    Recipe(3),
    Recipe(1, readout="residual"),
    Recipe(3, readout="residual", pooling="max"),
    Recipe(2, pooling="last_token", normalize=False),
    Recipe(2, tokens="drop_first", pooling="weighted_mean", readout="residual"),
    Recipe(2, tokens="drop_sinks", pooling="cls"),
    Recipe(3, "drop_sinks", "last_token", normalize=True),
]


# By transformers' own hidden states: lists of what goes into blocks (llama), of what comes out
# (mamba), of blocks that end in their norm (bert), and of blocks of two classes (lfm2).
@pytest.mark.parametrize(
    "family", tiny.families(["llama", "bert", "mamba", "lfm2", "gemma3_text", "mpt"])
)
def test_a_cut_model_gives_the_layer(family: str, tmp_path: Path) -> None:
    whole = tiny.loaded(family, tmp_path / "whole")
    for place, recipe in enumerate(RECIPES):
        # `export` itself compares the embeddings; here we see that it kept what it had to.
        done = export(whole, recipe, tmp_path / str(place), TEXTS)
        assert done.difference <= 1e-6
        assert recipe.layer > 1 or done.parameters < done.whole_parameters
        _, info = AutoModel.from_pretrained(done.folder, output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"]


def test_plain_sentence_transformers_loads_it(tmp_path: Path) -> None:
    """In a process that cannot import layerwise."""
    whole = tiny.loaded("llama", tmp_path / "whole")
    recipes = {
        str(tmp_path / f"cut {layer}"): Recipe(
            layer, "drop_first", readout="final_norm", normalize=True
        )
        for layer in (1, 2)
    }
    for folder, recipe in recipes.items():
        export(whole, recipe, Path(folder), TEXTS)
    script = tmp_path / "plain.py"
    script.write_text(
        "import json, sys\n"
        "for name in list(sys.modules):\n"
        "    if name.partition('.')[0] == 'layerwise':\n"
        "        sys.modules[name] = None\n"
        "from sentence_transformers import SentenceTransformer\n"
        "folders, texts = json.loads(sys.argv[1])\n"
        "models = (SentenceTransformer(f, trust_remote_code=True) for f in folders)\n"
        "print(json.dumps([m.encode(texts).tolist() for m in models]))"
    )
    out = call([str(script), json.dumps([[*recipes], TEXTS])], tmp_path, {})
    assert not out.returncode, out.stderr
    for found, recipe in zip(map(np.array, json.loads(out.stdout)), recipes.values(), strict=True):
        wanted = cut._whole(whole, recipe, TEXTS)
        assert found.shape == (len(TEXTS), whole.anatomy.hidden)
        np.testing.assert_allclose(found, wanted, atol=1e-6)
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)


def test_texts_are_no_chat(tmp_path: Path) -> None:
    """sentence-transformers puts texts into the chat template of a tokenizer that has one."""
    whole = tiny.loaded("llama", tmp_path / "whole")
    tokenizer = whole.texts.tokenizer
    tokenizer.chat_template = "{% for m in messages %}user says {{ m.content }}{% endfor %}"
    assert export(whole, Recipe(2), tmp_path / "cut", TEXTS).difference <= 1e-6
    assert tokenizer.chat_template is not None


def test_the_final_norm_comes_before_the_pooling(tmp_path: Path) -> None:
    """A cut model's last hidden state is normed, and no block more is kept."""
    whole = tiny.loaded("llama", tmp_path / "whole")
    named = replace(whole, entry=Model(source=HubSource(hub="acme/tiny")))
    export(named, Recipe(2, pooling="max"), tmp_path / "cut", TEXTS)
    card = (tmp_path / "cut/README.md").read_text()
    assert yaml.safe_load(card.split("---")[1])["base_model"] == "acme/tiny"
    assert "| readout | final norm |" in card
    assert len(AutoModel.from_pretrained(tmp_path / "cut").layers) == 2


def test_plain_transformers_loads_it(tmp_path: Path) -> None:
    """The card says which hidden state the layer is."""
    whole = tiny.loaded("llama", tmp_path / "whole")
    recipe = Recipe(2, readout="residual", normalize=False)
    export(whole, recipe, tmp_path / "cut", TEXTS, origin="best in {models}")
    card = (tmp_path / "cut/README.md").read_text()
    assert "hidden_states[2]" in card and "Why this layer: best in {models}." in card
    assert f"sentence-transformers {version('sentence-transformers')}, trans" in card
    model = AutoModel.from_pretrained(tmp_path / "cut")
    assert len(model.layers) == 3
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "cut")
    wanted = cut._whole(whole, recipe, TEXTS[:1])
    with torch.no_grad():
        states = model(**tokenizer(TEXTS[0], return_tensors="pt")).hidden_states[2]
    np.testing.assert_allclose(states[0].mean(dim=0), wanted[0], atol=1e-5)


def test_a_card_has_a_row_for_each_part_of_the_recipe(tmp_path: Path) -> None:
    whole = tiny.loaded("llama", tmp_path / "whole")
    recipe = Recipe(2, "drop_first", "weighted_mean", "residual", True).of(whole)
    card = cut.card_of(whole, recipe, None, "it leads")
    _, head, table = card.split("---\n", 2)
    assert yaml.safe_load(head)["library_name"] == "sentence-transformers"
    assert "# Layer 2 of llama\n" in table
    assert f"llama at main (weights {whole.weights[:12]}), cut after block 2 of 3\n" in table
    assert "| layer | 2 of 3 |\n" in table
    assert "| pooling | weighted_mean |\n| readout | residual stream |\n" in table
    assert "| unit length | yes |" in table and "Why this layer: it leads." in table
    assert 'SentenceTransformer(".", trust_remote_code=True)' in table
    assert "The code in this folder drops tokens, because" in table
    assert "hidden_states" not in table
    plain = cut.card_of(whole, Recipe(1, normalize=False).of(whole), 1, "")
    assert "# Layer 1 of llama\n" in plain and "| layer | 1 of 3 |\n" in plain
    assert "cut after block 1 of 3" in plain and "| unit length | no |" in plain
    assert 'SentenceTransformer(".")' in plain and "The code in this folder" not in plain
    assert "hidden_states[1]" in plain and "Why this layer" not in plain
    drops = cut.card_of(whole, Recipe(1, "drop_sinks").of(whole), None, "")
    assert "The code in this folder drops tokens, because" in drops


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"layer": 4}, "out_of_range"),
        ({"pooling": "means"}, "unknown_name"),
    ],
)
def test_the_shell_refuses_before_it_loads(
    wrong: dict[str, Any], code: Code, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny.save("llama", tmp_path / "m")
    monkeypatch.setattr("layerwise.models.opening.load", lambda *_, **__: pytest.fail("loaded"))
    with refused(code):
        cli.export(str(folder), tmp_path / "out", **{"layer": 1, **wrong})


@pytest.mark.parametrize(
    ("recipe", "code"),
    [
        (Recipe(9), "out_of_range"),
        (Recipe(1, tokens="first"), "unknown_name"),
        (Recipe(1, pooling="means"), "unknown_name"),
        (Recipe(1, readout="output"), "unknown_name"),
    ],
)
def test_bad_recipes_are_one_sentence(recipe: Recipe, code: Code, tmp_path: Path) -> None:
    whole = tiny.loaded("llama", tmp_path / "whole")
    with refused(code):
        export(whole, recipe, tmp_path / "cut", TEXTS)
    assert not (tmp_path / "cut").exists()


def test_a_folder_with_something_in_it_stays(tmp_path: Path) -> None:
    whole = tiny.loaded("llama", tmp_path / "whole")
    target = tmp_path / "cut"
    target.mkdir()
    (target / "mine.txt").write_text("mine")
    with refused("exists"):
        export(whole, Recipe(1), target, TEXTS)
    assert [p.name for p in target.iterdir()] == ["mine.txt"]


def test_a_wrong_cut_is_never_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tiny.loaded("llama", tmp_path / "whole")
    (tmp_path / ".cut.partial/3").mkdir(parents=True)  # of an export that was killed
    monkeypatch.setattr(cut, "_cuts", lambda *_: [(1, 0), (3, 2)])
    with refused("unsupported"):
        export(whole, Recipe(1), tmp_path / "cut", TEXTS)
    assert [p.name for p in tmp_path.iterdir()] == ["whole"]


def test_encoders_of_encoder_decoders_are_refused(tmp_path: Path) -> None:
    whole = tiny.loaded("t5", tmp_path / "whole")
    with refused("unsupported"):
        export(whole, Recipe(1), tmp_path / "cut", TEXTS)


def test_the_command(tmp_path: Path) -> None:
    tiny.save("bert", tmp_path / "whole")
    command = ["export", str(tmp_path / "whole"), str(tmp_path / "cut"), "--layer"]
    done = CliRunner().invoke(app, [*command, "2"])
    assert done.exit_code == 0, done.exception
    assert "layer 2 of 3" in done.output
    assert (tmp_path / "cut/modules.json").is_file()
    shutil.rmtree(tmp_path / "cut")
    failed = CliRunner().invoke(app, [*command, "7"]).exception
    assert isinstance(failed, LayerwiseError) and "got 7" in str(failed)


def test_a_full_disk_is_not_the_familys_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tiny.loaded("llama", tmp_path / "whole")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cut, "_save", full)
    with pytest.raises(OSError, match="No space left"):
        export(whole, Recipe(1), tmp_path / "cut", TEXTS)
    assert not (tmp_path / "cut").exists()
