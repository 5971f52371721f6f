"""Stand-ins for all that the presets take from the hub, in the layout of the hub's own caches.

Models are tiny and random, of the architecture behind the name, at the revisions that a config
names. Data sets are a few rows: real ones where `shared` has them, and else made of gensim's news
texts, in the schema of the data set. So the presets run unchanged, offline.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import torch
import transformers as hf
from conftest import SHARED
from datasets.naming import camelcase_to_snakecase
from helpers import tiny, tiny_audio, tiny_images
from peft import LoraConfig, get_peft_model

from layerwise.config import Config
from layerwise.config.corpora import data_of
from layerwise.config.tasks import MtebEntry
from media.settings import AudioCorpus, ImageCorpus
from papers.choice import ChoiceTask
from papers.questions import HubQuestions
from quickstart import nano
from quickstart.tasks import news
from quickstart.wikipedia import gensim_file

# The architecture behind a name on the hub; the first that fits.
FAMILY = {
    r"EleutherAI/pythia": "gpt_neox",
    r"cerebras/Cerebras-GPT|openai-community/gpt2": "gpt2",
    r"(meta-llama|ruslanmv)/.*Llama-?3|HuggingFaceTB/SmolLM2": "llama",
    r"HuggingFaceTB/SmolLM3": "smollm3",
    r"allenai/OLMo-2": "olmo2",
    r"Qwen/Qwen2\.5": "qwen2",
    r"state-spaces/mamba": "mamba",
    r"AntonV/mamba2": "mamba2",
    r"Zyphra/Zamba2": "zamba2",
    r"ai21labs/Jamba": "jamba",
    r"google-bert/|intfloat/e5|BAAI/bge": "bert",
    r"FacebookAI/roberta|intfloat/multilingual-e5": "roberta",
    r"Qwen/Qwen3-Embedding": "qwen3",
    r"nomic-ai/nomic-embed": "nomic_bert",
    r"google/gemma-2b": "gemma",
    r"google/gemma-2-": "gemma2",
    r"google/gemma-3-": "gemma3_text",
    r"google/vit-": "vit",
    r"microsoft/beit-": "beit",
    r"facebook/dinov2-with-registers-": "dinov2_with_registers",
    r"facebook/dinov2-": "dinov2",
    r"facebook/vit-mae-": "vit_mae",
    r"apple/aimv2-": "aimv2_vision_model",
    r"openai/imagegpt-": "imagegpt",
    r"facebook/wav2vec2-": "wav2vec2",
    r"facebook/w2v-bert-": "wav2vec2_bert",
    r"openai/whisper-": "whisper",
    r"MIT/ast-": "ast",
}
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}{{ eos_token }}\n"
    "{% endfor %}"
)
LAYERS = {"14m": 2, "70m": 3, "370m": 4, "410m": 4, "1b": 4}
ADAPTER_OF = "llama"


def family_of(repository: str) -> str:
    """The family of `tiny` that replaces a model of the hub."""
    for pattern, family in FAMILY.items():
        if re.match(pattern, repository):
            return family
    raise KeyError(f"{repository}: say in FAMILY of tests/presets/hub.py what architecture it is")


def fill(home: Path, config: Config) -> None:
    """Put all that a config takes from the hub into the caches below `home`."""
    for model in config.models.values():
        if hasattr(model.source, "hub"):
            add_model(home, model.source.hub, model.revisions)
        for adapter in model.adapters:
            add_adapter(home, adapter.hub)
    for corpus in config.corpora.values():
        source = data_of(corpus.source)
        if hasattr(source, "hub"):
            of_media = {ImageCorpus: add_images, AudioCorpus: add_recordings}
            add = of_media.get(type(corpus), add_texts)
            split, _, _ = source.split.partition("[")
            add(home, source.hub, source.name, split)
    for name in [*config.tasks, *config.own_texts.values()]:
        task = config.tasks.get(name, MtebEntry())
        if isinstance(task, ChoiceTask) and isinstance(task.questions, HubQuestions):
            add_questions(home, task.questions)
        if isinstance(task, MtebEntry) and task.folder is None:
            add_task(home, name)


# Models


def commit(*names: str) -> str:
    """Forty hexadecimal digits, as a commit's name has."""
    return hashlib.sha1("/".join(names).encode()).hexdigest()


def seed_of(*names: str) -> int:
    """A seed that is always the same for a name."""
    return int(commit(*names)[:6], 16)


def snapshot(home: Path, repository: str, revision: str) -> tuple[Path, bool]:
    """The folder of a repository at a revision in the hub's cache, and whether it is new."""
    root = home / "hub" / f"models--{repository.replace('/', '--')}"
    found = root / "snapshots" / commit(repository, revision)
    if found.is_dir():
        return found, False
    (root / "refs").mkdir(parents=True, exist_ok=True)
    (root / "refs" / revision).write_text(found.name)
    found.mkdir(parents=True)
    return found, True


@cache
def tokenizer() -> Any:
    """One for all models, that knows pieces of news texts."""
    return nano.train_tokenizer(list(news("lee_background"))[:100], tiny.VOCABULARY)


def network(repository: str, progress: float = 1.0) -> Any:
    """A random model; the larger `progress`, the further it is from its start."""
    config = tiny.FAMILIES[family_of(repository)]()
    size = repository.rpartition("-")[2].lower()
    if config.model_type == "gpt_neox":
        config.num_hidden_layers = LAYERS.get(size, 3)
    torch.manual_seed(seed_of(repository))
    # Language models come with their unembedding, as on the hub.
    encoder = config.model_type in ("bert", "roberta", "nomic_bert")
    model = (hf.AutoModel if encoder else hf.AutoModelForCausalLM).from_config(config)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.05 + 0.15 * progress)
    return model


def add_model(home: Path, repository: str, revisions: Iterable[str]) -> None:
    """A model at some checkpoints, whose weights grow from one to the next."""
    names = list(revisions)
    for place, revision in enumerate(names):
        folder, new = snapshot(home, repository, revision)
        makers = (tiny_images, tiny_audio)
        family = family_of(repository)
        maker = next((maker for maker in makers if family in maker.FAMILIES), None)
        if new and maker:
            maker.save(family, folder, seed=seed_of(repository))
        elif new:
            network(repository, (place + 1) / len(names)).save_pretrained(folder)
            made = tokenizer()
            # Math models have one too.
            chats = re.search(r"Instruct|Math", repository)
            made.chat_template = CHAT_TEMPLATE if chats else None
            made.save_pretrained(folder)


def add_adapter(home: Path, repository: str) -> None:
    """A LoRA adapter for the stand-in of Llama 3."""
    folder, new = snapshot(home, repository, "main")
    if not new:
        return
    torch.manual_seed(seed_of(repository))
    model = hf.AutoModel.from_config(tiny.FAMILIES[ADAPTER_OF]())
    lora = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
    lora.init_lora_weights = False
    made = get_peft_model(model, lora)
    made.save_pretrained(folder)
    path = folder / "adapter_config.json"
    settings = json.loads(path.read_text()) | {"init_lora_weights": True}
    path.write_text(json.dumps(settings))


# Data sets


def add_data(
    home: Path, repository: str, revision: str, tables: Mapping[str, Mapping[str, Any]]
) -> None:
    """Tables, by configuration and split, as `datasets` keeps a data set that it has loaded."""
    owner, name = repository.split("/")
    name = camelcase_to_snakecase(name)
    for config, splits in tables.items():
        folder = home / "datasets" / f"{owner}___{name}" / config / "0.0.0" / revision
        if folder.is_dir():
            continue
        folder.mkdir(parents=True)
        infos = datasets.SplitDict(dataset_name=name)
        features = None
        for split, table in splits.items():
            data = table
            if isinstance(table, pd.DataFrame):
                data = datasets.Dataset.from_pandas(table, preserve_index=False)
            features = data.features
            with datasets.arrow_writer.ArrowWriter(
                features=features, path=str(folder / f"{name}-{split}.arrow")
            ) as writer:
                writer.write_table(data.data.table)
                writer.finalize()
            infos.add(datasets.SplitInfo(split, num_examples=len(data), dataset_name=name))
        info = datasets.DatasetInfo(
            features=features,
            splits=infos,
            builder_name="parquet",
            dataset_name=name,
            config_name=config,
            version="0.0.0",
        )
        info.write_to_directory(folder)


def add_texts(home: Path, repository: str, config: str | None, split: str) -> None:
    """News texts, in the columns of the data set, with a row that lacks something.

    WikiText's stand between headings and blank lines, as there.
    """
    if repository == "Salesforce/wikitext":
        texts = list(news("lee_background"))
        lines = [line for text in texts for line in (" = A heading = \n", "", text)]
        table = pd.DataFrame({"text": lines})
    else:
        rows = [COLUMNS[repository](first, second) for first, second in _halves()]
        table = pd.DataFrame([*rows, dict.fromkeys(rows[0])])
    # All of them, since presets that share a cache read different ones.
    splits = dict.fromkeys(("train", "validation", "test", split), table)
    add_data(home, repository, commit(repository), {config or "default": splits})


def add_images(home: Path, repository: str, config: str | None, split: str) -> None:
    """Squares of colours."""
    data = squares(120, "image")
    add_data(home, repository, commit(repository), {config or "default": {split: data}})


def add_recordings(home: Path, repository: str, config: str | None, split: str) -> None:
    """Tones."""
    data = datasets.Dataset(tiny_audio.tones(120))
    add_data(home, repository, commit(repository), {config or "default": {split: data}})


def squares(n: int, column: str) -> Any:
    """Images of four classes that have nothing to do with their colours."""
    labels = datasets.ClassLabel(names=["a", "b", "c", "d"])
    features = datasets.Features({column: datasets.Image(), "label": labels})
    held = [{"bytes": picture.data, "path": None} for picture in tiny_images.pictures(n)]
    given = {column: held, "label": [number % 4 for number in range(n)]}
    return datasets.Dataset.from_dict(given, features=features)


def _halves() -> list[tuple[str, str]]:
    texts = [text.split() for text in news("lee_background")]
    return [(" ".join(t[: len(t) // 2]), " ".join(t[len(t) // 2 : len(t)])) for t in texts]


def _messages(first: str, second: str) -> dict[str, Any]:
    messages = [("user", first), ("assistant", second)]
    return {
        "prompt": first,
        "prompt_id": str(seed_of(first)),
        "category": "Chat",
        "messages": [{"content": content, "role": role} for role, content in messages],
    }


# The columns of data sets, and how two pieces of a text fill them.
COLUMNS: dict[str, Callable[[str, str], dict[str, Any]]] = {
    "ruslanmv/ai-medical-chatbot": lambda first, second: {
        "Description": first[:60],
        "Patient": first,
        "Doctor": second,
    },
    "databricks/databricks-dolly-15k": lambda first, second: {
        "instruction": first,
        "context": "",
        "response": second,
        "category": "open_qa",
    },
    "ruslanmv/ai-medical-dataset": lambda first, second: {"question": first, "context": second},
    "emozilla/pg19-test": lambda first, second: {"text": f"{first} {second}"},
    "openai/gsm8k": lambda first, second: {"question": first, "answer": second},
    "HuggingFaceH4/no_robots": _messages,
}


def add_questions(home: Path, source: HubQuestions) -> None:
    """Questions in MMLU's schema: which word comes next in a sentence?"""
    rows = []
    for number, sentences in enumerate(documents()[:40]):
        words = sentences[0].split()
        rows.append(
            (" ".join(words[:-2]), f"subject_{number % 2}", [words[-2], *words[:3]], number % 4)
        )
    table = pd.DataFrame(rows, columns=["question", "subject", "choices", "answer"])
    splits = {source.split: table, source.examples: table.head(12)}
    add_data(home, source.hub, commit(source.hub), {source.name or "default": splits})


def add_task(home: Path, name: str) -> None:
    """A task's data set, under the name and revision that mteb asks for."""
    import mteb

    metadata = mteb.get_task(name).metadata
    source = metadata.dataset
    add_data(home, source["path"], source["revision"], task_tables(name, metadata.type))


SETS, PER_SET = 2, 4
LABELS, TRAIN, TEST = 3, 12, 6


@cache
def documents() -> list[list[str]]:
    """News texts as lists of sentences, the longest texts first."""
    found = []
    for text in news("lee_background"):
        parts = re.split(r"(?<=[.?!]) +(?=[A-Z])", text.strip())
        found.append(list(dict.fromkeys(p for p in parts if 5 <= len(p.split()) <= 40)))
    return sorted(found, key=len, reverse=True)


def task_tables(name: str, kind: str) -> dict[str, dict[str, Any]]:
    """The tables of a task by configuration and split: real rows if there are any."""
    if kind.startswith("Image"):
        return {"default": {split: squares(48, "img") for split in ("train", "test")}}
    if kind.startswith("Audio"):
        data = datasets.Dataset(tiny_audio.tones(48))
        return {"default": dict.fromkeys(("train", "test"), data)}
    real = SHARED / "tasks" / name
    if real.is_dir():
        return {config: _few(splits) for config, splits in _read(real).items()}
    made: Mapping[str, Any] = {
        "Classification": _classification,
        "Clustering": _clustering,
        "PairClassification": _pairs,
        "Reranking": _reranking,
        "STS": _similarity,
    }
    return made[kind](name)  # type: ignore[no-any-return]


def _read(folder: Path) -> dict[str, dict[str, pd.DataFrame]]:
    inner = [p for p in sorted(folder.iterdir()) if p.is_dir()]
    by_config = {p.name: p for p in inner} or {"default": folder}
    return {
        config: {file.stem: pd.read_parquet(file) for file in sorted(place.glob("*.parquet"))}
        for config, place in by_config.items()
    }


def _few(splits: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Some rows of each split; of labelled ones, as many of each of the commonest labels."""
    found = {}
    for split, table in splits.items():
        if "label" in table:
            common = splits["test"]["label"].value_counts().index[:LABELS]
            size = TRAIN if split == "train" else TEST
            chosen = table[table["label"].isin(common)].groupby("label").head(size)
        elif "sentences" in table:
            chosen = table.head(SETS).copy()
            for column in ("sentences", "labels"):
                chosen[column] = [list(values[:40]) for values in chosen[column]]
        else:
            chosen = table.iloc[:: max(1, len(table) // 40)].head(40)
        found[split] = chosen.reset_index(drop=True)
    return found


def _classification(name: str) -> dict[str, dict[str, pd.DataFrame]]:
    if name.startswith("Toxic"):
        lines = gensim_file("pang_lee_polarity.cor").read_text(encoding="cp1252").splitlines()
        rows = [(line.split(maxsplit=1)[1], int("pos" in line[:12])) for line in lines]
        table = pd.DataFrame(rows, columns=["text", "label"])
        split = {"train": table[::2], "test": table[1::2]}
        return {"default": {k: v.reset_index(drop=True) for k, v in split.items()}}
    start = seed_of(name) % 20
    labelled = [
        (text, label, place)
        for label in range(LABELS)
        for place, text in enumerate(documents()[start + label])
    ]
    table = pd.DataFrame(labelled, columns=["text", "label", "place"])
    table["label_text"] = table["label"].map("document {}".format)
    train = table["place"] % 2 == 0
    split = {"train": table[train], "validation": table[~train], "test": table[~train]}
    tables = {k: v.drop(columns="place").reset_index(drop=True) for k, v in split.items()}
    if name.startswith("MassiveScenario"):  # all languages are in one configuration
        return {"default": {k: v.assign(lang="en") for k, v in tables.items()}}
    return {"en" if re.match("Amazon|MTOP", name) else "default": tables}


def _clustering(name: str) -> dict[str, dict[str, pd.DataFrame]]:
    start = seed_of(name) % 20
    rows = []
    for number in range(SETS):
        chosen = range(start + number * PER_SET, start + (number + 1) * PER_SET)
        pairs = [(text, f"document {d}") for d in chosen for text in documents()[d][:8]]
        rows.append(([t for t, _ in pairs], [d for _, d in pairs]))
    return {"default": {"test": pd.DataFrame(rows, columns=["sentences", "labels"])}}


def _pairs(name: str) -> dict[str, dict[str, pd.DataFrame]]:
    start = seed_of(name) % 20
    here, there = documents()[start : start + 10], documents()[start + 10 : start + 20]
    rows = [(d[0], d[1], 1) for d in here] + [
        (d[0], e[1], 0) for d, e in zip(here, there, strict=True)
    ]
    first, second, labels = (list(column) for column in zip(*rows, strict=True))
    # All pairs are one row, under names of old.
    table = pd.DataFrame({"sent1": [first], "sent2": [second], "labels": [labels]})
    return {"default": {"test": table, "validation": table}}


def _reranking(name: str) -> dict[str, dict[str, pd.DataFrame]]:
    start = seed_of(name) % 20
    own = documents()[start : start + 12]
    queries, corpus, judged, ranked = [], [], [], []
    for number, document in enumerate(own):
        other = own[(number + 1) % len(own)]
        candidates = [(text, 1) for text in document[2:4]] + [(t, 0) for t in other[3:6]]
        names = [f"d{number}-{k}" for k in range(len(candidates))]
        corpus += [(one, text, "") for one, (text, _) in zip(names, candidates, strict=True)]
        # MIND has several queries of one reader, whose id is the part before the last "_".
        for part in range(2 if name.startswith("Mind") else 1):
            query = f"q{number}_{part}"
            queries.append((query, document[part]))
            judged += [(query, one, n) for one, (_, n) in zip(names, candidates, strict=True)]
            ranked.append((query, names))
    tables = {
        "corpus": pd.DataFrame(corpus, columns=["_id", "text", "title"]),
        "queries": pd.DataFrame(queries, columns=["_id", "text"]),
        "default": pd.DataFrame(judged, columns=["query-id", "corpus-id", "score"]),
        "top_ranked": pd.DataFrame(ranked, columns=["query-id", "corpus-ids"]),
    }
    return {config: {"test": table} for config, table in tables.items()}


def _similarity(_name: str) -> dict[str, dict[str, pd.DataFrame]]:
    texts = [" ".join(text.split()[:30]) for text in news("lee")]
    similarity = np.loadtxt(gensim_file("similarities0-1.txt"))
    step = seed_of(_name) % 7 + 1
    rows = [
        (texts[i], texts[(i + step) % len(texts)], 5 * similarity[i, (i + step) % len(texts)])
        for i in range(len(texts))
    ]
    table = pd.DataFrame(rows, columns=["sentence1", "sentence2", "score"])
    return {"default": {"test": table}}
