"""What a config takes from this machine, checked before any job starts."""

from __future__ import annotations

from layerwise.config import Config
from layerwise.config.images import FolderImages, ImageCorpus
from layerwise.config.tasks import FileQuestions
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
    files |= {
        f"own_tasks.{name}.file": entry.file
        for name, entry in config.own_tasks.items()
        if entry.file is not None
    }
    files |= {
        f"token_tasks.{name}.questions.{key}": file
        for name, entry in config.token_tasks.items()
        if isinstance(questions := getattr(entry, "questions", None), FileQuestions)
        for key in ("file", "examples")
        if (file := getattr(questions, key)) is not None
    }
    for where, file in files.items():
        if not is_file(file):
            raise LayerwiseError(f"{where}: there is no file {file}.")
    folders = {f"task_folders.{task}": folder for task, folder in config.task_folders.items()}
    folders |= {
        f"corpora.{name}.images.folder": entry.images.folder
        for name, entry in config.corpora.items()
        if isinstance(entry, ImageCorpus) and isinstance(entry.images, FolderImages)
    }
    for where, folder in folders.items():
        if not is_folder(folder):
            raise LayerwiseError(f"{where}: there is no folder {folder}.")
