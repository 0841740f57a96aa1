"""Bring the console's third-party files from npm, at the versions of `vendor.json`, and write their checksums into it.

Needs the command `npm`. `--check` compares the files of the package with the checksums and downloads nothing.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
MANIFESTS = (ROOT / "src/ottla/console/vendor/vendor.json", ROOT / "tests/console/vendor/vendor.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only")
    check_only = parser.parse_args().check
    problems = [problem for path in MANIFESTS for problem in (check(path) if check_only else download(path))]
    for problem in problems:
        print(problem, file=sys.stderr)
    sys.exit(1 if problems else 0)


def check(manifest: Path) -> list[str]:
    """Return what differs from the checksums of a manifest."""
    problems = []
    for package in json.loads(manifest.read_text())["packages"]:
        for file in package["files"]:
            path = manifest.parent / file["name"]
            if not path.exists():
                problems.append(f"{path} is missing")
            elif hashlib.sha256(path.read_bytes()).hexdigest() != file["sha256"]:
                problems.append(f"{path} differs from its checksum")
    return problems


def download(manifest: Path) -> list[str]:
    """Download the packages of a manifest; return those whose archive differs from its integrity."""
    tree = json.loads(manifest.read_text())
    problems = []
    for package in tree["packages"]:
        specification = f"{package['name']}@{package['version']}"
        with tempfile.TemporaryDirectory() as directory:
            subprocess.run(
                ["npm", "pack", "--silent", specification], cwd=directory, check=True, stdout=subprocess.DEVNULL
            )
            archive = next(Path(directory).glob("*.tgz"))
            integrity = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
            if package.setdefault("integrity", integrity) != integrity:
                problems.append(f"{specification}: the archive's integrity is {integrity}")
                continue
            with tarfile.open(archive) as opened:
                for file in package["files"]:
                    member = opened.extractfile("package/" + file["source"])
                    assert member is not None
                    content = member.read()
                    (manifest.parent / file["name"]).write_bytes(content)
                    file["sha256"] = hashlib.sha256(content).hexdigest()
    manifest.write_text(json.dumps(tree, indent=2) + "\n")
    return problems


if __name__ == "__main__":
    main()
