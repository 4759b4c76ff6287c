"""Where a model's files are: the bundled checkpoint, a local folder, or a repository of the hub.

Knows names and folders; knows nothing about what is in the files.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
from pathlib import Path

from optimized.environ import parse_bool
from reference.spec.errors import CheckpointError, ConfigError, shown

BUNDLED = "tiny"
_BUNDLED_PACKAGE = "reference.tiny"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_FILES = ["*.json", "*.safetensors"]

_log = logging.getLogger(__name__)


def locate(model: str | os.PathLike[str], revision: str | None = None) -> Path:
    """The folder of a model.

    Args:
        model: "tiny" (the bundled checkpoint), a folder, or a hub id such as "deepseek-ai/DeepSeek-V4.1-Flash". A
            folder that exists wins over a hub id of the same spelling; a folder named tiny is reached as "./tiny".
        revision: branch, tag or commit of a hub repository.
    Raises:
        ConfigError: not a model's name at all, or a revision of something that has none.
        CheckpointError: the folder or the repository cannot be had.
    """
    if not isinstance(model, str | os.PathLike) or not os.fspath(model):
        raise ConfigError(f"model: got {model!r}; accepted: {BUNDLED!r}, a folder, or a hub id 'owner/name'")
    if revision is not None and not isinstance(revision, str):
        raise ConfigError(f"revision: got {revision!r}; accepted: a branch, tag or commit, as a string")
    name = os.fspath(model)
    try:
        folder = bundled_folder() if name == BUNDLED else Path(name).expanduser()
        found = folder.is_dir()
    except (OSError, RuntimeError, ValueError) as error:  # an overlong name, a ~user who does not exist, …
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"model: {shown(name)} cannot be looked up: {error}") from error
    if found:
        if revision is not None:
            raise ConfigError(f"revision: got {revision!r}, but {name} is a folder; accepted: None")
        if not (folder / "config.json").is_file():
            raise CheckpointError(f"{folder}: holds no config.json")
        return folder
    if not isinstance(model, str) or not _HUB_ID.fullmatch(name):
        raise CheckpointError(
            f"model: {name!r} is neither {BUNDLED!r}, nor a folder that exists, nor a hub id 'owner/name'"
        )
    return _from_hub(name, revision)


def bundled_folder() -> Path:
    """The folder of the bundled checkpoint.

    Raises:
        CheckpointError: this installation does not hold it.
    """
    spec = importlib.util.find_spec(_BUNDLED_PACKAGE)
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    for place in places:
        if (Path(place) / "config.json").is_file():
            return Path(place)
    raise CheckpointError(
        f"the bundled checkpoint is not part of this installation (looked in {places or _BUNDLED_PACKAGE})"
    )


def _from_hub(repository: str, revision: str | None) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise CheckpointError(
            f"model: {repository!r} is not a folder, and a hub id needs the package huggingface_hub, which is missing"
        ) from error
    offline = _is_offline()
    _log.info("looking for %s on the hub%s", repository, " (offline: local cache only)" if offline else "")
    try:
        folder = snapshot_download(repository, revision=revision, allow_patterns=_HUB_FILES, local_files_only=offline)
    except Exception as error:
        where = "its local cache (HF_HUB_OFFLINE is set)" if offline else "the hub"
        raise CheckpointError(f"model: {repository!r} cannot be had from {where}: {error}") from error
    return Path(folder)


def _is_offline() -> bool:
    text = os.environ.get("HF_HUB_OFFLINE", "")
    try:
        return bool(text) and parse_bool(text)
    except ValueError as error:
        raise ConfigError(f"HF_HUB_OFFLINE: got {text!r}; accepted: {error}") from error
