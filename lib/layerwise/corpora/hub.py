"""Texts from a data set on the Hugging Face hub, or from the local cache of one."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from layerwise.config.corpora import HubTexts
from layerwise.config.images import HubImages
from layerwise.corpora.local import Rows, until_damage
from layerwise.corpora.rows import Prompts, no_column
from layerwise.errors import LayerwiseError, closest, first_line, listed

log = logging.getLogger(__name__)

COMMIT = re.compile(r"[0-9a-f]{40}")


def read_hub(source: HubTexts, prompts: Prompts | None = None) -> Rows:
    """The texts of a data set, with row numbers from 0 as ids.

    Without the network (or with ``HF_HUB_OFFLINE=1``) a data set that was loaded before comes from
    the cache. A data set's own code is never run.

    Parameters
    ----------
    source : HubTexts
    prompts : Prompts, optional
        How a row becomes a prompt; by default as the source says.

    Returns
    -------
    Rows
        (id, text) pairs; its facts are the ``fingerprint`` of the data, and the ``commit`` where
        the cache tells it.

    Raises
    ------
    LayerwiseError
        If the hub cannot be reached and the cache has no copy, or the data set, configuration,
        split, revision or column does not exist; the message says which of these.
    """
    prompts = prompts or Prompts.of_source(source)
    data, facts = load(source, prompts.columns)
    path, asked = source.hub, _asked(source)

    def pairs() -> Iterator[tuple[str, str]]:
        number = 0
        wanted = data.select_columns(list(prompts.columns))
        for batch in until_damage(wanted.iter(batch_size=1000), f"the {asked}"):
            for values in zip(*(batch[column] for column in prompts.columns), strict=True):
                row = dict(zip(prompts.columns, values, strict=True))
                yield str(number), prompts.of(row, f"{path}, row {number}")
                number += 1

    return Rows(len(data), pairs(), facts)


def load(source: HubTexts | HubImages, columns: Sequence[str]) -> tuple[Any, dict[str, str]]:
    """A data set with some columns, and what is known of where it came from.

    Raises
    ------
    LayerwiseError
        As `read_hub`.
    """
    import datasets

    path, name, split, revision = source.hub, source.name, source.split, source.revision
    asked = _asked(source)
    try:
        data: Any = datasets.load_dataset(path, name, split=split, revision=revision)
    except datasets.exceptions.DatasetNotFoundError as error:
        raise LayerwiseError(
            f"The hub has no {asked}, or not for you ({first_line(error)}); check the name and "
            "revision, and log in if it is gated."
        ) from error
    except ConnectionError as error:
        raise LayerwiseError(
            f"Could not reach the hub for the {asked}, and it is not in the local cache "
            f"({first_line(error)}); run once with a network, or give a local file by "
            "{'file': …}."
        ) from error
    except FileNotFoundError as error:
        raise LayerwiseError(
            f"Found no data files of the {asked} ({first_line(error)}); check the name: "
            "'owner/name' as on the hub, or an existing folder."
        ) from error
    except MemoryError:
        raise
    except Exception as error:  # a damaged file fails in any of the libraries that read files
        raise LayerwiseError(_explain(error, asked, name, split)) from error
    for column in columns:
        if column not in data.column_names:
            raise no_column(column, data.column_names, f"The {asked}, split {split!r}")
    facts = {"fingerprint": str(data._fingerprint)}
    found = _commit(data)
    if found:
        facts["commit"] = found
        log.info("The %s is commit %s", asked, found)
        # Offline, datasets takes the newest copy in the cache, whatever the revision asked for.
        if revision and COMMIT.fullmatch(revision) and found != revision:
            raise LayerwiseError(
                f"The cache holds commit {found} of {path!r}, not {revision!r}; run once with a "
                "network, or ask for that commit."
            )
    return data, facts


def _asked(source: HubTexts | HubImages) -> str:
    return f"data set {source.hub!r}" + (f" at {source.revision!r}" if source.revision else "")


def _commit(data: Any) -> str | None:
    """The commit that the cached files are of: datasets names their folder by it."""
    for file in data.cache_files:
        folder = Path(file["filename"]).parent.name
        if COMMIT.fullmatch(folder):
            return folder
    return None


def _explain(error: Exception, asked: str, name: str | None, split: str) -> str:
    said = str(error)
    known = re.findall(r"'([^']+)'", said.partition("[")[2])
    if "Unknown split" in said:
        return (
            f"There is no split {split!r}{closest(split, known)} in the {asked}; there are "
            f"{listed(known)}."
        )
    if "BuilderConfig" in said or "Config name is missing" in said or "for config" in said:
        configs = ", ".join(map(repr, known)) or "none others known"
        if name is None:
            return f"The {asked} has several configurations; name one: {configs}."
        return (
            f"There is no configuration {name!r}{closest(name, known)} of the {asked}; {configs}."
        )
    if "Dataset scripts are no longer supported" in said:
        return f"The {asked} comes as code, which is not run; give a copy of it in parquet."
    because = error.__cause__ or error
    return f"Could not load the {asked} ({first_line(because)}); check its files."
