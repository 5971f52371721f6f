"""Results in Snakemake's default storage: where a job finds them, and what stored files carry.

Without `--default-storage-provider` all paths are those of the results folder itself.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from layerwise.config import Config
from layerwise.errors import ConfigError, LayerwiseError
from layerwise.run.stale import facts_of
from layerwise.run.validate import local_files


class Storage:
    """The place of a run's results.

    Parameters
    ----------
    workflow : snakemake.workflow.Workflow

    Attributes
    ----------
    is_remote : bool
        True if results are in a storage, and jobs work on local copies.
    shares_files : bool
        True if all jobs see the files of this machine.
    shares_sources : bool
        True if all jobs run in this working directory.
    """

    def __init__(self, workflow: Any) -> None:
        from snakemake.settings.types import SharedFSUsage

        self._modifier = workflow.modifier.path_modifier
        self._provider = workflow.storage_registry.default_storage_provider
        shared = workflow.storage_settings.shared_fs_usage
        self.is_remote = self._provider is not None
        self.shares_files = SharedFSUsage.INPUT_OUTPUT in shared
        self.shares_sources = SharedFSUsage.SOURCES in shared

    def check(self, config: Config, workflow_folder: str) -> None:
        """Refuse what jobs cannot read without this machine's files.

        Parameters
        ----------
        config : Config
        workflow_folder : str
            Folder of the rules.

        Raises
        ------
        ConfigError, LayerwiseError
        """
        if not self.is_remote:
            return
        if Path(config.results).is_absolute():
            problem = f"in a storage it is below the prefix; {config.results} cannot be absolute."
            raise ConfigError("results", problem, code="bad_name")
        fetched = Path(config.results, "fetched")
        if fetched.is_dir():
            raise LayerwiseError(
                f"{fetched} has commits of a run without storage, which jobs cannot read; remove "
                "the folder, or name other results in the config.",
                code="conflict",
            )
        if self.shares_sources:
            return
        for where, path in local_files(config):
            if not Path(path).is_absolute():
                problem = (
                    f"jobs that share no files cannot read {path}; name a folder of a volume that "
                    "all of them mount, by its absolute path, or a model or data set of the hub."
                )
                raise ConfigError(where, problem, code="conflict")
        if os.path.relpath(workflow_folder).startswith(".."):
            raise LayerwiseError(
                "Jobs that share no files get the files of the working directory, and the "
                "workflow is not among them; start the run in a clone of the workflow.",
                code="conflict",
            )

    def local(self, path: str) -> str:
        """The path of a job's copy of a file or folder."""
        return str(self._modifier.apply_default_storage(path))

    def facts(self, path: str) -> dict[str, Any] | None:
        """`layerwise.run.stale.facts_of` a file, which is copied if it is stored; None if absent.

        The copy is removed at once, since a dry run leaves nothing behind.
        """
        if not self.is_remote:
            return facts_of(Path(path)) if Path(path).is_file() else None
        stored = self._stored(path)
        if not stored.exists():
            return None
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, Path(path).name)
            stored.set_local_path(copy)
            stored.retrieve_object()
            return facts_of(copy)

    def store(self, path: Path) -> None:
        """Store a file that this process wrote under its own path, if there is a storage."""
        if self.is_remote:
            stored = self._stored(path.as_posix())
            stored.set_local_path(path)
            stored.store_object()

    def _stored(self, path: str) -> Any:
        named = self._modifier.apply_default_storage(path)
        return self._provider.object(named.flags["storage_object"].query)
