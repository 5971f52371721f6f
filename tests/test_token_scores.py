"""Tasks of token states: the lens, matching, and the tables, against other routes."""

from __future__ import annotations

import itertools
import json
import math
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tiny
import torch
import transformers as hf
from encoding import store
from scipy import stats

from layerwise import tables
from layerwise.activations.embed import embed
from layerwise.activations.extract import token_ids
from layerwise.config.studies import Study
from layerwise.config.tasks import ChoiceTask, FileQuestions, PackageQuestions, PairTask
from layerwise.corpora.paragraphs import Paragraph
from layerwise.errors import LayerwiseError
from layerwise.figures.studies import Order, Tables, draw
from layerwise.models.load import LoadedModel, load
from layerwise.statistics import rank
from layerwise.tasks import catalog, items, lens, matching, texts, token_scores
from layerwise.tasks.items import Question
from layerwise.tasks.layout import Reading
from layerwise.tasks.score import score_task
from layerwise.tasks.surprisal import surprisals

CAUSAL = {
    "gpt_neox": hf.GPTNeoXForCausalLM, "llama": hf.LlamaForCausalLM,
    "gemma2": hf.Gemma2ForCausalLM, "mamba2": hf.Mamba2ForCausalLM,
    "granite": hf.GraniteForCausalLM, "phi": hf.PhiForCausalLM,
}  # fmt: skip


def causal(family: str, folder: Path) -> tuple[Any, LoadedModel]:
    """A tiny language model with its unembedding, and the same as the workflow loads it."""
    torch.manual_seed(3)
    config = tiny.FAMILIES[family]()
    if family == "gemma2":
        config.final_logit_softcapping = 2.0
    if family == "granite":
        config.logits_scaling = 3.0
    model = CAUSAL[family](config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2) if parameter.ndim > 1 else None
    model.save_pretrained(folder)
    tiny.nano.train_tokenizer(tiny.WORDS, tiny.VOCABULARY).save_pretrained(folder)
    return model.eval(), load("m", tiny.entry(folder), "main", device="cpu")


def questions(n: int, seed: int = 0) -> list[Question]:
    rng = np.random.default_rng(seed)
    made = []
    for text in tiny.texts(n, seed):
        choices = tuple(" ".join(rng.choice(tiny.WORDS, k)) for k in (1, 2, 3, 1))
        made.append(Question("", text, choices, int(rng.integers(4))))
    return made


def task(**settings: Any) -> ChoiceTask:
    return ChoiceTask(questions=PackageQuestions(package="wikipedia"), **settings)


def by_hand(model: Any, loaded: LoadedModel, text: str, after: str) -> tuple[np.ndarray, float]:
    """Log-likelihood of what follows at each layer, text by text; and by the model itself."""
    tokenizer = loaded.tokenizer
    before, whole = tokenizer(text)["input_ids"], tokenizer(text + after)["input_ids"]
    assert whole[: len(before)] == before
    ids = torch.tensor([whole])
    at = list(range(len(before) - 1, len(whole) - 1))
    with torch.no_grad():
        out = model(ids, output_hidden_states=True, use_cache=False)
        final = torch.log_softmax(out.logits[0].double(), -1)
        own = float(final[at, whole[len(before) :]].sum())
        found = []
        norm, head = loaded.anatomy.final_norm, model.get_output_embeddings()
        streams = list(out.hidden_states[:-1])
        if model.config.model_type == "mamba2":  # its list begins after the first block
            streams = [model.get_input_embeddings()(ids), *streams[:-1]]
        for states in streams:
            logits = head(norm(states[0])).double()
            config = model.config
            if getattr(config, "final_logit_softcapping", None):
                logits = config.final_logit_softcapping * torch.tanh(
                    logits / config.final_logit_softcapping
                )
            if config.model_type == "granite":
                logits = logits / config.logits_scaling
            found.append(float(torch.log_softmax(logits, -1)[at, whole[len(before) :]].sum()))
    return np.array(found), own


@pytest.mark.parametrize("family", CAUSAL)
def test_every_layer_answers_as_by_hand_and_the_last_as_the_model(
    family: str, tmp_path: Path
) -> None:
    model, loaded = causal(family, tmp_path)
    asked, examples = questions(12), questions(2, seed=9)
    found = lens.answer(
        loaded, lens.lens_of(loaded, tiny.entry(tmp_path)), task(shots=2), asked, examples, 256
    )
    assert found.chance == 0.25
    for f, form in enumerate(found.forms):
        for k, question in enumerate(asked):
            text, after = lens.prompts(question, form, examples)
            values = [by_hand(model, loaded, text, one) for one in after]
            size = [len(c) if form == "answer_per_character" else 1 for c in question.choices]
            layers = np.array([v for v, _ in values]) / np.array(size)[:, None]
            own = np.array([v for _, v in values]) / size
            assert list(found.right[f, :-1, k]) == list(layers.argmax(axis=0) == question.answer)
            assert found.right[f, -1, k] == (own.argmax() == question.answer)


def test_batches_change_nothing(tmp_path: Path) -> None:
    _, loaded = causal("llama", tmp_path)
    readout = lens.lens_of(loaded, tiny.entry(tmp_path))
    asked = questions(9)
    one = lens.answer(loaded, readout, task(), asked, (), 1)
    all_of_them = lens.answer(loaded, readout, task(), asked, (), 10_000)
    assert np.array_equal(one.right, all_of_them.right)


@pytest.mark.parametrize("family", ["llama", "gemma2", "mamba2"])
def test_surprisal_is_the_models_own_loss(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, loaded = causal(family, tmp_path)
    texts = tiny.texts(7)
    ids = token_ids(loaded, [f"p{k}" for k in range(7)], texts)
    found = surprisals(loaded, tiny.entry(tmp_path), "c", [f"p{k}" for k in range(7)], ids, 60)
    monkeypatch.setattr(lens, "LOGITS_BYTES", 4 * 300 * 5)  # five states at a time
    again = surprisals(loaded, tiny.entry(tmp_path), "c", [f"p{k}" for k in range(7)], ids)
    for k, own in enumerate(ids):
        tokens = torch.tensor([own])
        with torch.no_grad():
            loss = float(model(tokens, labels=tokens, use_cache=False).loss)
        assert found["surprisal"][k] == pytest.approx(loss, rel=1e-4)
        assert again["surprisal"][k] == pytest.approx(loss, rel=1e-4)
        assert found["n_predicted"][k] == len(own) - 1


def test_models_that_predict_no_next_token_have_no_surprisal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tiny.save("bert", tmp_path)
    loaded = load("m", tiny.entry(folder), "main", device="cpu")
    found = surprisals(loaded, tiny.entry(folder), "c", ["p"], token_ids(loaded, ["p"], ["a b c"]))
    assert found.empty
    assert set(found) == {"model", "revision", "corpus", "prompt_id", "surprisal", "n_predicted"}
    assert "sees later tokens" in caplog.text


def test_the_letters_stand_as_in_mmlu() -> None:
    question = Question("high school physics", "How fast?", ("slow", "fast"), 1)
    text, after = lens.prompts(question, "letter", [question])
    assert after == (" A", " B")
    assert text == (
        "The following are multiple choice questions (with answers) about high school physics.\n\n"
        "How fast?\nA. slow\nB. fast\nAnswer: B\n\nHow fast?\nA. slow\nB. fast\nAnswer:"
    )


@pytest.mark.parametrize(
    ("family", "says"), [("bert", "sees later tokens"), ("llama", "no unembedding in its files")]
)
def test_models_without_a_readout_are_refused(family: str, says: str, tmp_path: Path) -> None:
    folder = tiny.save(family, tmp_path)  # the body alone
    loaded = load("m", tiny.entry(folder), "main", device="cpu")
    with pytest.raises(LayerwiseError, match=says):
        lens.lens_of(loaded, tiny.entry(folder))


def test_questions_too_long_are_left_out_and_counted(tmp_path: Path) -> None:
    causal("llama", tmp_path)
    loaded = load("m", tiny.entry(tmp_path, max_length=150), "main", device="cpu")
    readout = lens.lens_of(loaded, tiny.entry(tmp_path))
    long = questions(1)[0]._replace(question=" ".join(tiny.WORDS * 9))
    found = lens.answer(loaded, readout, task(forms=("answer",)), [*questions(3), long], ())
    assert found.n_left_out == 1
    assert found.right.shape[2] == 3
    with pytest.raises(LayerwiseError, match="longer than the 150 tokens"):
        lens.answer(loaded, readout, task(), [long], ())


# Questions


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pd.DataFrame(rows).to_parquet(path)
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        frame = pd.DataFrame(rows)
        frame["choices"] = frame["choices"].map(json.dumps)
        frame.to_csv(path, index=False)
    return path


ROWS: list[dict[str, Any]] = [
    {"question": f"Q{k}?", "choices": ["a", "b", "c"], "answer": k % 3, "subject": "some_algebra"}
    for k in range(20)
]  # fmt: skip


@pytest.mark.parametrize("kind", [".parquet", ".jsonl", ".csv"])
def test_files_in_the_schema_of_mmlu(kind: str, tmp_path: Path) -> None:
    source = write(tmp_path / f"q{kind}", ROWS)
    shown = write(tmp_path / f"dev{kind}", ROWS[:3])
    entry = ChoiceTask(
        questions=FileQuestions(file=str(source), examples=str(shown)), shots=2, sample=7
    )
    items.write_items(tmp_path / "items.parquet", entry)
    asked, examples = items.read_questions(tmp_path / "items.parquet")
    assert len(asked) == 7
    assert len(examples) == 3
    assert asked[0].subject == "some algebra"
    assert {q.question: q.answer for q in asked}.items() <= {
        r["question"]: r["answer"] for r in ROWS
    }.items()


@pytest.mark.parametrize(
    ("change", "says"),
    [({"answer": 3}, "is no question"), ({"choices": ["a"]}, "is no question"),
     ({"question": " "}, "is no question"), ({"answer": 1.5}, "is no question")],
)  # fmt: skip
def test_what_is_no_question_is_refused(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    source = write(tmp_path / "q.jsonl", [ROWS[0], {**ROWS[1], **change}])
    with pytest.raises(LayerwiseError, match=rf"row 1 {says}"):
        items.write_items(
            tmp_path / "i.parquet", ChoiceTask(questions=FileQuestions(file=str(source)))
        )


def test_too_few_examples_are_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "q.jsonl", ROWS)
    entry = ChoiceTask(questions=FileQuestions(file=str(source), examples=str(source)), shots=21)
    with pytest.raises(LayerwiseError, match="there are 20 examples of the subject"):
        items.write_items(tmp_path / "i.parquet", entry)


def test_questions_made_of_articles() -> None:
    ends = ["ing", "tion", "ment"]
    rng = np.random.default_rng(0)

    def word() -> str:
        return "".join(rng.choice(list("bcdfgklmnprst"), 5)) + str(rng.choice(ends))

    paragraphs = [
        Paragraph(a, f"T{a}", p, " ".join(f"The {' '.join(word() for _ in range(14))}."
                                          for _ in range(4)))
        for a in range(8) for p in range(4)
    ]  # fmt: skip
    asked, examples = items.cloze(paragraphs)
    again, _ = items.cloze(paragraphs[::-1])
    assert sorted(asked + examples) == sorted(again + _)
    assert len(examples) == items.EXAMPLES
    for question in asked:
        assert len(set(question.choices)) == 4
        right = question.choices[question.answer]
        assert not any(c in question.question for c in question.choices)
        assert len({c[-2:] for c in question.choices}) == 1
        whole = question.question.removeprefix("Which word is missing from this sentence? ")
        assert any(whole.replace("____", right) in p.text for p in paragraphs)
    assert {q.answer for q in asked} == {0, 1, 2, 3}


# Matching


def route(states: np.ndarray, ids: list[int], special: set[int], idf: Any) -> Any:
    unit = states / np.linalg.norm(states, axis=1, keepdims=True)
    return unit, np.array([0 if i in special else idf(i) for i in ids], dtype=float)


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_matching_in_double_precision(family: str, tmp_path: Path) -> None:
    loaded = load("m", tiny.entry(tiny.save(family, tmp_path)), "main", device="cpu")
    loaded.tokenizer.add_special_tokens({"additional_special_tokens": [tiny.WORDS[0]]})
    firsts, seconds = tiny.texts(9, 1), tiny.texts(9, 2)
    found = matching.similarities(
        loaded, firsts, seconds, tokens=("all", "drop_first"), readouts=("residual", "output"),
        budget=120,
    )  # fmt: skip
    special = set(loaded.tokenizer.all_special_ids)
    tokens = {t: loaded.tokenizer(t)["input_ids"] for t in (*firsts, *seconds)}
    assert any(special & set(ids) for ids in tokens.values())
    counts = Counter(i for t in firsts for i in set(tokens[t]))
    n = len(firsts)
    loaded.model.double()
    states = {}
    for text, ids in tokens.items():
        with torch.no_grad():
            out = loaded.model(torch.tensor([ids]), output_hidden_states=True)
        states[text] = [h[0].numpy() for h in out.hidden_states]
    for drop in (0, 1):
        for layer in range(loaded.anatomy.n_layers):
            readout = int(layer == loaded.anatomy.n_layers - 1)  # hidden_states end in the output
            for k, pair in enumerate(zip(firsts, seconds, strict=True)):
                wanted = []
                for idf in (lambda _: 1.0, lambda i: math.log((n + 1) / (counts[i] + 1))):
                    (a, of_a), (b, of_b) = (
                        route(states[t][layer][drop:], tokens[t][drop:], special, idf)
                        for t in pair
                    )
                    alike = a @ b.T
                    recall = (alike.max(1) * of_a).sum() / of_a.sum()
                    precision = (alike.max(0) * of_b).sum() / of_b.sum()
                    wanted += [precision, recall, 2 * precision * recall / (precision + recall)]
                one, other = (states[t][layer][drop:].mean(0) for t in pair)
                cosine = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
                got = found[drop, readout, :, layer, k]
                np.testing.assert_allclose(got, [cosine, *wanted], atol=2e-5)


def test_each_text_runs_once(tmp_path: Path) -> None:
    """All pairs of seven texts: the values of each pair alone, and no text twice."""
    loaded = load("m", tiny.entry(tiny.save("llama", tmp_path)), "main", device="cpu")
    texts_ = tiny.texts(7, 1)
    firsts, seconds = zip(*itertools.combinations(texts_, 2), strict=True)
    ran: list[int] = []
    loaded.model.register_forward_pre_hook(
        lambda _, __, given: ran.append(len(given["input_ids"])), with_kwargs=True
    )
    asked: dict[str, Any] = {"tokens": ("all", "drop_first"), "readouts": ("residual",)}
    found = matching.similarities(loaded, firsts, seconds, **asked)[:, :, [0, 1, 2, 3]]
    assert sum(ran) == len(texts_)
    for budget in (20, 60):
        again = matching.similarities(loaded, firsts, seconds, **asked, budget=budget)
        np.testing.assert_allclose(again[:, :, :4], found, atol=1e-5)
    for k in (0, 9, 20):
        alone = matching.similarities(loaded, firsts[k : k + 1], seconds[k : k + 1], **asked)
        np.testing.assert_allclose(alone[:, :, :4, :, 0], found[..., k], atol=1e-5)


def test_pairs_that_share_texts_go_together() -> None:
    pairs = [(0, 1), (2, 3), (1, 4), (5, 5), (4, 0)]
    lengths = [5, 5, 9, 9, 5, 2]
    found = matching.batches_of(pairs, lengths, 18, 18)
    assert sorted(map(sorted, found)) == [[0, 2, 4], [1], [3]]
    assert sorted(itertools.chain(*matching.batches_of(pairs, lengths, 1, 1))) == [0, 1, 2, 3, 4]
    found = matching.batches_of(pairs, lengths, 6, 15)
    assert sorted(map(sorted, found)) == [[0, 2, 4], [1], [3]]


def test_matching_is_bert_scores(tmp_path: Path) -> None:
    """The authors' package, on the last layer of a tiny BERT."""
    bert_score = pytest.importorskip("bert_score.utils", reason="package bert-score")
    loaded = load("m", tiny.entry(tiny.save("bert", tmp_path)), "main", device="cpu")
    loaded.tokenizer.model_max_length = 512
    loaded.tokenizer.cls_token = loaded.tokenizer.sep_token = loaded.tokenizer.eos_token
    firsts, seconds = tiny.texts(7, 1), tiny.texts(7, 2)
    found = matching.similarities(
        loaded, firsts, seconds, tokens=("all",), readouts=("residual",)
    )[0, 0, :, -1]
    plain: Any = dict.fromkeys(range(tiny.VOCABULARY), 1.0) | {0: 0}
    weighted = bert_score.get_idf_dict(firsts, loaded.tokenizer, nthreads=0)
    weighted[0] = 0
    for start, idf in ((1, plain), (4, weighted)):
        want = bert_score.bert_cos_score_idf(
            loaded.model, firsts, seconds, loaded.tokenizer, idf, device="cpu", batch_size=3
        )
        np.testing.assert_allclose(found[start : start + 3], want.T, atol=1e-5)


def test_sinks_count_as_the_readout_has_it() -> None:
    from layerwise.activations.representation import choose, counted, pack

    torch.manual_seed(0)
    states = torch.randn(4, 9, 5)
    states[:, 2] *= 100
    packed = pack(states, torch.tensor([9, 7, 5, 3]))
    for tokens in ("all", "drop_first", "drop_sinks"):
        counts = counted(packed, tokens)
        chosen = choose(packed, tokens)
        for row in range(4):
            mine = packed.states[row][counts[row]]
            assert torch.equal(mine, chosen.states[row, : chosen.lengths[row]])


def test_matching_drops_sinks_as_the_config_says(tmp_path: Path) -> None:
    loaded = load("m", tiny.entry(tiny.save("llama", tmp_path)), "main", device="cpu")

    def found(tokens: str, **more: Any) -> np.ndarray:
        return matching.similarities(
            loaded, tiny.texts(5, 1), tiny.texts(5, 2), tokens=(tokens,), readouts=("residual",),
            **more,
        )  # fmt: skip

    np.testing.assert_array_equal(found("drop_sinks", sink_ratio=1e6), found("all"))
    assert not np.allclose(found("drop_sinks", sink_ratio=1.0), found("all"), atol=1e-3)
    for tokens in ("class", "patches"):
        with pytest.raises(LayerwiseError, match=f"tokens: '{tokens}' came, but m .* takes texts"):
            found(tokens)


def test_what_sinks_are_is_in_the_key_of_pairs_alone() -> None:
    given = {
        "models": {"m": {"source": {"hub": "a/b"}, "revisions": ["main"]}},
        "token_tasks": {"pairs": {"pairs": "BIOSSES"},
                        "mmlu": {"questions": {"package": "wikipedia"}}},
        "studies": {"s": {"kind": "scores_over_checkpoints"}},
    }  # fmt: skip
    from layerwise.config import Config
    from layerwise.workflow.stages import STAGES

    def settings(task: str, **extract: Any) -> Any:
        config = Config.of({**given, "extract": extract}, checked=True)
        return STAGES["score_tokens"].settings(config, "m", "main", task)

    assert settings("pairs", sink_ratio=3.0) != settings("pairs")
    assert settings("mmlu", sink_ratio=3.0) == settings("mmlu")


def test_a_text_without_tokens_is_read_as_the_end_of_one(tmp_path: Path) -> None:
    """Also where that has the id 0 and pads are others."""
    loaded = load("m", tiny.entry(tiny.save("llama", tmp_path)), "main", device="cpu")
    loaded.tokenizer.pad_token = loaded.tokenizer.convert_ids_to_tokens(5)
    end = loaded.tokenizer.eos_token
    assert loaded.tokenizer(["", end])["input_ids"] == [[], [0]]
    found = matching.similarities(
        loaded, [""], [end], tokens=("all",), readouts=("residual",)
    )  # fmt: skip
    assert found[0, 0, 0] == pytest.approx(1)
    slabs: list[Any] = []
    embed(loaded, ["", end], lambda _start, _stop, made: slabs.append(made), readings=[Reading()])
    np.testing.assert_array_equal(*slabs[0][0].transpose(1, 0, 2))


def test_empty_fields_and_those_that_read_like_none(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    path.write_text(
        "question,choices,answer,subject\n"
        'Which?,"[""x"", ""NA""]",1,\n'
        'None,"[""x"", ""y""]",0,NA\n'
    )
    source = FileQuestions(file=str(path), subject="subject")
    asked = ChoiceTask(questions=source, shots=0)
    items.write_items(tmp_path / "i.parquet", asked)
    found, _ = items.read_questions(tmp_path / "i.parquet")
    assert found == [Question("", "Which?", ("x", "NA"), 1), Question("NA", "None", ("x", "y"), 0)]


# Statistics and tables


def test_the_differences_drawn_are_those_of_the_table() -> None:
    rows = [
        {"model": "m", "revision": r, "task": "t", "task_type": "STS", "subset": "default",
         "split": "test", "layer": layer, "depth": layer / 3, "tokens": "all", "pooling": pooling,
         "readout": "residual", "against": "mean", "score": 0.5 + gain, "other": 0.5,
         "difference": gain, "low": gain - 0.05, "high": gain + 0.05, "n": 99,
         "p": p / 4, "p_holm": p}
        for r in ("a", "b")
        for pooling in ("match_f1", "match_f1_idf")
        for layer, (gain, p) in enumerate([(0.2, 0.01), (-0.1, 0.02), (0.01, 0.9), (0.0, 1.0)])
    ]  # fmt: skip
    tables_ = Tables(paired=pd.DataFrame(rows))
    drawn = draw(Study(kind="paired_by_depth"), tables_, Order(["m"], {"m": ["a", "b"]}))
    assert set(drawn.table["revision"]) == {"b"}
    assert "above the pooled cosine at 2 and below it at 2" in drawn.title
    assert "layer 0 with 70.0, by +20.0" in drawn.caption
    with pytest.raises(LayerwiseError, match="shows one checkpoint of a model"):
        draw(Study(kind="paired_by_depth", revisions="all"), tables_, Order(["m"]))


def test_rows_of_models_have_room() -> None:
    rows = [
        {"model": model, "revision": "a", "task": "t", "task_type": "MultipleChoice",
         "subset": "default", "split": "test", "layer": layer, "depth": layer / 3, "tokens": "all",
         "pooling": "letter", "readout": "final_norm", "against": "output", "score": 0.5,
         "other": 0.4, "difference": 0.1, "low": 0.0, "high": 0.2, "p": 0.1, "p_holm": 0.1, "n": 9}
        for model in "mno" for layer in range(3)
    ]  # fmt: skip
    order = Order(["m", "n", "o"], {m: ["a"] for m in "mno"})
    drawn = draw(Study(kind="paired_by_depth"), Tables(paired=pd.DataFrame(rows)), order)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib's, where it lays nothing out
        drawn.figure.draw_without_rendering()


def test_spearman_is_scipys_and_its_error_that_of_draws() -> None:
    rng = np.random.default_rng(0)
    n, draws = 80, 3000
    y = np.round(rng.normal(size=(draws, n)), 1)
    noise = rng.normal(size=(draws, n))
    x = np.stack([y + noise, y + 0.6 * noise + rng.normal(size=(draws, n))], axis=1)
    values, own = [], []
    for one, judged in zip(x, y, strict=True):
        rho, influence = rank.spearman(one, judged)
        values.append(rho)
        errors = rank.errors(influence)
        own.append([*errors, rank.errors(influence[0] - influence[1])])
    np.testing.assert_allclose(values[0][0], stats.spearmanr(x[0, 0], y[0])[0], atol=1e-12)
    found = np.array(values)
    drawn = [*found.std(axis=0), (found[:, 0] - found[:, 1]).std()]
    np.testing.assert_allclose(np.mean(own, axis=0), drawn, rtol=0.06)


def test_pairs_that_share_texts_are_not_independent() -> None:
    """Of all pairs of T texts, each with an effect of its own, the mean has variance 4 s² / T."""
    rng = np.random.default_rng(4)
    first, second = np.triu_indices(30, 1)
    effects = rng.normal(size=(400, 30))
    values = effects[:, first] + effects[:, second]
    centred = values - values.mean(axis=1, keepdims=True)
    found = np.square(rank.errors(centred, [first, second])).mean()
    assert found == pytest.approx(values.mean(axis=1).var(), rel=0.2)
    assert np.square(rank.errors(centred)).mean() < 0.2 * found
    by_hand = [
        centred[0][[{i, j} & {k, m} != set() for k, m in zip(first, second, strict=True)]].sum()
        for i, j in zip(first, second, strict=True)
    ]
    n = len(first)
    expected = (centred[0] * by_hand).sum() / (n * (n - 1))
    assert rank.errors(centred[0], [second, first]) ** 2 == pytest.approx(expected)
    # Without a text in common, or with one text twice, they are as before.
    alone = np.arange(2 * n).reshape(2, n)
    for pairs in (alone, [np.arange(n), np.arange(n)]):
        assert rank.errors(centred[0], pairs) == pytest.approx(rank.errors(centred[0]))


def test_what_does_not_vary_has_no_correlation() -> None:
    rho, influence = rank.spearman(np.ones((1, 12)), np.arange(12.0))
    assert np.isnan(rho).all()
    assert np.isnan(influence).all()
    with pytest.raises(LayerwiseError, match="at least 10"):
        rank.spearman(np.ones((1, 9)), np.arange(9.0))


def test_a_model_that_cannot_answer_has_no_scores_and_says_why(tmp_path: Path) -> None:
    from layerwise.association.curves import score_curves

    frame = pd.DataFrame([("question", *q) for q in questions(20)],
                         columns=["role", *Question._fields])  # fmt: skip
    tables.write(tmp_path / "i.parquet", frame, kind=items.QUESTIONS)
    found = []
    for family in ("llama", "bert"):
        folder = tmp_path / family
        loaded = (
            causal(family, folder)[1]
            if family in CAUSAL
            else load(family, tiny.entry(tiny.save(family, folder)), "main", device="cpu")
        )
        targets = {name: tmp_path / f"{family}.{name}.parquet" for name in ("scores", "paired")}
        token_scores.score_tokens(
            loaded, tiny.entry(folder), "mmlu", task(forms=("answer",)), tmp_path / "i.parquet",
            targets, tokens=("all",), readouts=("residual",), confidence=0.95,
        )  # fmt: skip
        found.append(tables.read(targets["scores"], "scores"))
    assert found[1]["main_score"].isna().all()
    assert found[1]["why"].str.contains("sees later tokens").all()
    both = score_curves(pd.concat(found, ignore_index=True))
    assert [c.model for c in both] == ["m"]
    with pytest.raises(LayerwiseError, match=r"None of the models has a score: bert .*later"):
        score_curves(found[1])


def test_accuracies_on_the_same_questions() -> None:
    one = np.array([True] * 30 + [False] * 10)
    other = np.array([True] * 20 + [False] * 10 + [True] * 2 + [False] * 8)
    difference, (low, high), p = token_scores.accuracies(one, other, 0.95)
    assert difference == pytest.approx(one.mean() - other.mean())
    assert low < difference < high
    assert p == pytest.approx(stats.binomtest(10, 12).pvalue)


def test_both_tables_of_questions(tmp_path: Path) -> None:
    _, loaded = causal("gpt_neox", tmp_path / "m")
    frame = pd.DataFrame([("question", *q) for q in questions(40)],
                         columns=["role", *Question._fields])  # fmt: skip
    tables.write(tmp_path / "i.parquet", frame, kind=items.QUESTIONS)
    targets = {name: tmp_path / f"{name}.parquet" for name in ("scores", "paired")}
    token_scores.score_tokens(
        loaded, tiny.entry(tmp_path / "m"), "mmlu", task(), tmp_path / "i.parquet", targets,
        tokens=("all",), readouts=("residual",), confidence=0.95,
    )  # fmt: skip
    scores = tables.read(targets["scores"], "scores")
    paired = tables.read(targets["paired"], "paired")
    assert len(scores) == 3 * loaded.anatomy.n_layers
    assert set(scores["chance"]) == {0.25}
    assert (scores["score_low"] < scores["main_score"]).all()
    last = scores[scores["depth"] == 1].set_index("pooling")["main_score"]
    assert len(paired) == 3 * (loaded.anatomy.n_layers - 1)
    np.testing.assert_allclose(
        paired["difference"], paired["score"] - last[paired["pooling"]].to_numpy()
    )
    assert (paired["p_holm"] >= paired["p"]).all()


def test_the_pooled_cosine_is_mtebs(shared: Path, tmp_path: Path) -> None:
    """On a real task, the reading `mean` is what the ordinary scoring of the task gives."""
    folders = {"BIOSSES": str(shared / "tasks" / "BIOSSES")}
    some = PairTask(pairs="BIOSSES", sample=9)
    items.write_items(tmp_path / "i.parquet", some, folders=folders)
    drawn = items.read_pairs(tmp_path / "i.parquet")
    items.write_items(tmp_path / "i.parquet", PairTask(pairs="BIOSSES"), folders=folders)
    assert len(drawn.merge(items.read_pairs(tmp_path / "i.parquet"))) == len(drawn) == 9
    loaded = load("m", tiny.entry(tiny.save("bert", tmp_path / "m")), "main", device="cpu")
    targets = {name: tmp_path / f"{name}.parquet" for name in ("scores", "paired")}
    token_scores.score_tokens(
        loaded, tiny.entry(tmp_path / "m"), "tokens", PairTask(pairs="BIOSSES"),
        tmp_path / "i.parquet", targets, tokens=("all",), readouts=("residual",), confidence=0.95,
    )  # fmt: skip
    scores = tables.read(targets["scores"], "scores")
    listed = texts.distinct_texts(catalog.load(catalog.get_task("BIOSSES", folders)))
    pooled = []
    for text in listed.texts:
        with torch.no_grad():
            out = loaded.model(
                torch.tensor([loaded.tokenizer(text)["input_ids"]]), output_hidden_states=True
            )
        pooled.append([h[0].mean(0).numpy() for h in out.hidden_states])
    path = store(tmp_path / "e.h5", "BIOSSES", listed.texts, np.array(pooled).transpose(1, 0, 2))
    score_task(path, "BIOSSES", tmp_path / "t.parquet", tmp_path / "layers", folders=folders)
    ordinary = tables.read(tmp_path / "t.parquet", "scores")
    mine = scores[scores["pooling"] == "mean"]
    np.testing.assert_allclose(mine["main_score"], ordinary["main_score"], atol=1e-3)
    paired = tables.read(targets["paired"], "paired")
    assert set(paired["against"]) == {"mean"}
    assert np.isfinite(paired[["difference", "low", "high", "p_holm"]]).all().all()
