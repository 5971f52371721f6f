"""The table of verified models, and the command that writes it."""

from pathlib import Path

import pandas as pd
from helpers import tiny
from helpers.scripts import script
from typer.testing import CliRunner

from layerwise.cli import app
from tools import verify

ROOT = Path(__file__).resolve().parents[2]


def test_the_command_says_what_it_measured_and_writes_the_table(tmp_path: Path) -> None:
    good, bad = tiny.save("llama", tmp_path / "llama"), tiny.save("canine", tmp_path / "canine")
    table = tmp_path / "verified.csv"
    arguments = ["verify", str(good), "--random", "--table", str(table)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    for line in ("layers: 4", "readout: LlamaRMSNorm", "hidden_states: 4 of 4", "streams: 1"):
        assert line in done.output
    assert "MB of memory" in done.output
    refused = CliRunner().invoke(app, ["verify", str(bad), str(good), "--table", str(table)])
    assert refused.exit_code == 1 and "refused: " in refused.output
    CliRunner().invoke(app, arguments)
    rows = pd.read_csv(table, dtype=str).fillna("")
    assert list(rows) == list(verify.COLUMNS)
    assert len(rows) == 3 and not rows.duplicated(list(verify.KEY)).any()
    assert rows.set_index("model")["refused"].ne("").loc[str(bad)]


def test_a_model_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["verify", str(tmp_path / "none")])
    assert done.exit_code and done.exception is not None and "none" in str(done.exception)


def test_layers_that_differ_are_counted(tmp_path: Path) -> None:
    """transformers gives what blocks give, and not what they receive."""
    row = verify.verify(tiny.save("hrm_text", tmp_path / "m"), weights="random")
    assert row["hidden_states"] != "4 of 4" and row["output_difference"] < 1e-5
    mamba = verify.verify(tiny.save("mamba", tmp_path / "mamba"), weights="random")
    assert mamba["hidden_states"] == "3 of 4"


def test_the_table_has_every_family() -> None:
    page = script("verified", ROOT / "docs")
    rows = pd.read_csv(ROOT / "docs" / "verified.csv", dtype=str).fillna("")
    random = rows[rows["weights"] == "random"].set_index("model")
    assert set(random.index) == set(page.SAVES)
    assert set(random.index[random["refused"] != ""]) == set(tiny.OTHER)
    read = random[random["refused"] == ""]
    assert (read["output_difference"].astype(float) <= verify.EQUAL).all()
