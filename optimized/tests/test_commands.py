"""The other commands, the speed of --help, and where a model is looked for."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from optimized import model_source
from optimized.cli import main
from optimized.tests.stub import byte_level_tokenizer, model_folder
from optimized.tokenizer import Tokenizer
from reference.spec.errors import CheckpointError, ConfigError

pytestmark = pytest.mark.ci


@pytest.mark.parametrize("arguments", [["--help"], ["generate", "--help"], ["ops", "--help"]])
def test_help_is_instant_and_loads_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys; from optimized.cli import main\ntry:\n    main(sys.argv[1:])\nfinally:\n    "
        "assert not {'torch', 'numpy', 'tokenizers'} & set(sys.modules), 'heavy'"
    )
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
        seconds.append(time.perf_counter() - start)
    assert "usage: counterpoint" in done.stdout
    assert min(seconds) < 0.5


def test_python_m_optimized_is_the_same_command() -> None:
    done = subprocess.run([sys.executable, "-m", "optimized", "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: counterpoint")


def test_ops_prints_a_row_for_each_operation_and_backend(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"op", "backend", "provider", "state", "row_invariant"} == set(rows[0])
    assert {row["backend"] for row in rows if row["op"] == "draw"} == {"cpu", "cuda", "ascend"}
    assert {row["state"] for row in rows if row["backend"] == "cpu"} == {"measured"}
    assert main(["ops"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(rows) + 1


def test_collect_env_names_versions_devices_and_variables(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPINFER_BATCH_INVARIANT", "1")
    assert main(["collect-env", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["DEEPINFER_BATCH_INVARIANT"] == "1"
    assert {"python", "torch", "C++ core", "device cpu"} <= set(report)
    assert main(["collect-env"]) == 0
    assert "torch" in capsys.readouterr().out


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no config.json"):
        model_source.locate(tmp_path)
    model_folder(tmp_path)
    assert model_source.locate(tmp_path) == model_source.locate(str(tmp_path)) == tmp_path
    with pytest.raises(ConfigError, match=r"revision: got 'main', but"):
        model_source.locate(tmp_path, "main")


@pytest.mark.parametrize("name", ["no-such-folder", "/no/such", "a/b/c", "./owner/name", "owner/", Path("owner/name")])
def test_what_is_no_folder_and_no_hub_id_says_so(name: Any) -> None:
    with pytest.raises(CheckpointError, match=r"neither 'tiny', nor a folder that exists, nor a hub id"):
        model_source.locate(name)


@pytest.mark.parametrize("name", ["", None, 5, b"tiny"])
def test_what_is_no_name_at_all_says_so(name: Any) -> None:
    with pytest.raises(ConfigError, match=r"model: got .*; accepted: 'tiny', a folder, or a hub id"):
        model_source.locate(name)


def test_a_hub_id_is_looked_for_in_the_cache_only_when_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    asked: dict[str, Any] = {}

    class Hub:
        @staticmethod
        def snapshot_download(repository: str, **options: Any) -> str:
            asked.update(options, repository=repository)
            raise FileNotFoundError("not in the cache")

    monkeypatch.setitem(sys.modules, "huggingface_hub", Hub)
    with pytest.raises(
        CheckpointError, match=r"'owner/name' cannot be had from its local cache .HF_HUB_OFFLINE is set."
    ):
        model_source.locate("owner/name", "v1")
    assert (asked["local_files_only"], asked["revision"], asked["repository"]) == (True, "v1", "owner/name")
    monkeypatch.setenv("HF_HUB_OFFLINE", "perhaps")
    with pytest.raises(ConfigError, match=r"HF_HUB_OFFLINE: got 'perhaps'; accepted: one of 1, true"):
        model_source.locate("owner/name")


def test_without_the_hub_package_a_hub_id_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(CheckpointError, match=r"needs the package huggingface_hub, which is missing"):
        model_source.locate("owner/name")


def test_the_bundled_checkpoint_is_found() -> None:
    assert (model_source.bundled_folder() / "config.json").is_file()


@pytest.mark.parametrize(
    ("settings", "ids"),
    [(None, [2]), ('{"add_bos_token": true}', [0, 2]), ('{"add_bos_token": false}', [2]), ("{}", [2])],
)
def test_a_bos_token_is_put_first_where_the_settings_ask_for_it(
    tmp_path: Path, settings: str | None, ids: list[int]
) -> None:
    byte_level_tokenizer().save(str(tmp_path / "tokenizer.json"))
    if settings is not None:
        (tmp_path / "tokenizer_config.json").write_text(settings)
    tokenizer = Tokenizer.from_folder(tmp_path, bos_token_id=0)
    assert tokenizer is not None
    assert tokenizer.encode("!") == ids
    assert tokenizer.encode("<s>!") == [0, 2]
    assert tokenizer.decode(ids) == "!"


@pytest.mark.parametrize("settings", ["{", "[]", '{"add_bos_token": 1}'])
def test_bad_tokenizer_settings_are_refused(tmp_path: Path, settings: str) -> None:
    byte_level_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(settings)
    with pytest.raises(CheckpointError, match=r"tokenizer_config.json"):
        Tokenizer.from_folder(tmp_path, bos_token_id=0)


def test_a_broken_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer.json: not a tokenizer"):
        Tokenizer.from_folder(tmp_path, bos_token_id=0)
