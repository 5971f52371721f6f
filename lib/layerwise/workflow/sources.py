"""What a config takes from this machine, checked before any job starts."""

from __future__ import annotations

from layerwise.config import Config
from layerwise.errors import LayerwiseError
from layerwise.files import is_file, is_folder
from layerwise.models.source import locate


def check_sources(config: Config) -> None:
    """Make sure that packages, folders and files named in the config are there.

    Raises
    ------
    LayerwiseError
        Naming the key, what is missing, and how to get it.
    """
    for name, entry in config.models.items():
        for revision in entry.revisions if name not in config.nano else ():
            try:
                locate(entry.source, revision)
                for adapter in entry.adapters:
                    locate(adapter, "main")
            except LayerwiseError as error:
                raise LayerwiseError(f"models.{name}: {error}") from error
    files = {
        f"published.{name}.{table}": getattr(entry, table)
        for name, entry in config.published.items()
        for table in ("scores", "metrics")
        if getattr(entry, table) is not None
    }
    files |= {
        f"corpora.{name}.source.file": entry.source.file
        for name, entry in config.corpora.items()
        if hasattr(entry.source, "file")
    }
    for where, file in files.items():
        if not is_file(file):
            raise LayerwiseError(f"{where}: there is no file {file}.")
    for task, folder in config.task_folders.items():
        if not is_folder(folder):
            raise LayerwiseError(f"task_folders.{task}: there is no folder {folder}.")
