"""Feeds mutated messages to the codecs until it is stopped.

    python tools/fuzz_codec.py --cases 1000000 --start 0

A case is a number; a finding prints it, and `--start N --cases 1` replays it.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.protocol.fuzzing import run_case  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--start", type=int, default=0)
    options = parser.parse_args()
    findings = messages = 0
    began = time.monotonic()
    for number in range(options.start, options.start + options.cases):
        try:
            messages += run_case(number)
        except Exception:
            findings += 1
            print(f"case {number}:\n{traceback.format_exc(limit=-3)}")
            if findings == 20:
                print("stopping after 20 findings")
                break
    seconds = time.monotonic() - began
    tried = number - options.start + 1
    print(f"{tried} cases in {seconds:.0f} s: {messages} still messages, {tried - messages - findings} refused,")
    print(f"{findings} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
