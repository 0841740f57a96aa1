"""The third-party files of the console are those of their checksums, with licences."""

import hashlib
import json
from pathlib import Path

import pytest

import ottla.console

FOLDERS = [Path(ottla.console.__file__).parent / "vendor", Path(__file__).parent / "vendor"]


@pytest.mark.parametrize("folder", FOLDERS, ids=["package", "tests"])
def test_vendored_files_match_checksums(folder):
    packages = json.loads((folder / "vendor.json").read_text())["packages"]
    listed = {file["name"]: file["sha256"] for package in packages for file in package["files"]}
    present = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    present.pop("vendor.json")
    assert present == listed
    for package in packages:
        assert package["integrity"].startswith("sha512-")
        assert any(file["name"].endswith("LICENSE") for file in package["files"])
