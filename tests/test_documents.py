"""Links of the documentation exist, and the README's snippets run."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from confluent_kafka import Producer

from ottla.testing import Cluster

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_glossary_names_existing_files_and_definitions() -> None:
    rows = [line for line in (ROOT / "docs" / "glossary.md").read_text().splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 30
    terms = [row.split("|")[1].strip().lower() for row in rows]
    assert terms == sorted(set(terms))
    for row in rows:
        file: Path | None = None
        for word in re.findall(r"`([^`]+)`", row.rsplit("|", 2)[-2]):
            if "/" in word and word.endswith(".py"):
                file = ROOT / "src" / "ottla" / word
                assert file.is_file(), row
            elif file is not None and re.fullmatch(r"\w{4,}(\.\w+)*", word) and not word.endswith(".py"):
                for name in word.split("."):
                    assert re.search(rf"\b{name}\b", file.read_text()), f"{name} is not in {file}: {row}"


def test_architecture_lists_every_package() -> None:
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    layout = {line.split()[0] for line in text.split("```")[1].strip().splitlines()}
    package = ROOT / "src" / "ottla"
    folders = {f"{init.parent.name}/" for init in package.glob("*/__init__.py")}
    modules = {module.name for module in package.glob("*.py") if not module.name.startswith("__")}
    assert layout == folders | modules


def test_architecture_names_existing_files() -> None:
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    for path in re.findall(r"`(\w+/[\w/]+\.py)`", text):
        assert (ROOT / "src" / "ottla" / path).is_file() or (ROOT / "src" / "ottla" / "testing" / path).is_file(), path


def test_contributing_steps_name_existing_files() -> None:
    text = (ROOT / "docs" / "contributing-steps.md").read_text()
    for path in re.findall(r"(?:src/ottla|tests|tools|docs)/[\w/]+\.(?:py|md)", text):
        if "NN" not in path and not path.endswith("/name.py"):
            assert (ROOT / path).is_file(), path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_name_existing_tests(page: Path) -> None:
    for path, name in re.findall(r"(tests/[\w/]+\.py)(?:::(test_\w+))?", page.read_text()):
        if "NN" not in path:
            assert (ROOT / path).is_file(), path
            assert f"def {name}" in (ROOT / path).read_text(), f"{path} has no {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_that_are_there(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if "://" not in link and not link.startswith("mailto:"):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_readme_test_runs() -> None:
    (snippet,) = [snippet for snippet in SNIPPETS if "ottla.testing" in snippet]
    exec(compile(snippet, "README.md", "exec"), {})


@pytest.mark.xdist_group("spark")
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java 17")
def test_readme_table_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    (snippet,) = [snippet for snippet in SNIPPETS if "ottla.spark" in snippet]
    with Cluster(topics=["orders:3"]) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        producer.produce("orders", key="ada", value="coffee")
        producer.flush()
        exec(compile(snippet, "README.md", "exec"), {"bootstrap": cluster.bootstrap})
    assert "coffee" in capsys.readouterr().out


def test_snippets_of_the_registry_page_run() -> None:
    page = (ROOT / "docs" / "registry.md").read_text()
    without_spark = re.sub(
        r"## Spark columns.*?\n## ", "## ", page, flags=re.DOTALL
    )  # tests/spark/values/test_guide.py
    for snippet in re.findall(r"```python\n(.*?)```", without_spark, re.DOTALL):
        exec(compile(snippet, "docs/registry.md", "exec"), {})
