"""Sends every request of the security matrix to a real Apache Kafka 4.3.1 and records the responses for the tests.

python tools/record_security_answers.py       write tests/security/recorded/matrix.json (needs Java and Maven)
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.interop.apache_kafka import ApacheKafka  # noqa: E402
from tests.reviewable_json import reviewable_json  # noqa: E402
from tests.security.matrix import SETTINGS, run_matrix  # noqa: E402

TARGET = ROOT / "tests" / "security" / "recorded" / "matrix.json"


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        kafka = ApacheKafka(Path(directory) / "data", settings=SETTINGS, sasl=True)
        with kafka:
            host, _, port = kafka.sasl_bootstrap.rpartition(":")
            responses = run_matrix(host, int(port))
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(reviewable_json(json.loads(json.dumps(responses, sort_keys=True)), 2) + "\n")
    print(f"{sum(len(entry) for entry in responses.values())} answers of Apache Kafka in {TARGET.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
