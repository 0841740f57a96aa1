"""`ottla decode`: text, JSON, dumps in every format, damaged frames."""

from __future__ import annotations

import base64
import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from ottla.cli import COMMANDS, build
from ottla.protocol.framing import encode_request
from ottla.protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.messages.k18_api_versions import ApiVersionsRequest
from ottla.protocol.messages.k36_sasl_authenticate import SaslAuthenticateRequest
from ottla.records.builder import build_batch
from ottla.records.iterate import Record

REQUEST = (
    "00 00 00 23 00 12 00 04 25 ed c0 ae 00 09 6b 61 66 6b 61 2d 63 6c 69 "
    "00 0a 6b 61 66 6b 61 2d 63 6c 69 04 30 2e 31 00"
)
RESPONSE = "00 00 00 13 25 ed c0 ae 00 00 02 00 12 00 00 00 04 00 00 00 00 00 00"


def run(*words: str, stdin: str | bytes = "") -> tuple[int, str]:
    result = CliRunner().invoke(build(list(COMMANDS)), ["decode", *words], input=stdin)
    return result.exit_code, result.output


def tree(output: str) -> list[str]:
    """Return names and values of a printed tree, with their indentation and without byte positions."""
    return [line[8:] for line in output.splitlines() if line[8:].lstrip().startswith("- .")]


def test_request_is_printed_field_by_field() -> None:
    code, output = run(stdin=REQUEST)
    assert code == 0
    assert tree(output) == [
        "- .message_size (35)",
        "- .RequestHeader",
        "  - .request_api_key (18)",
        "  - .request_api_version (4)",
        "  - .correlation_id (636338350)",
        "  - .client_id (kafka-cli)",
        "  - .TAG_BUFFER",
        "- .RequestBody",
        "  - .client_software_name (kafka-cli)",
        "  - .client_software_version (0.1)",
        "  - .TAG_BUFFER",
    ]


def test_hexdump_precedes_the_tree() -> None:
    _, output = run(stdin=REQUEST)
    assert "00000000  00 00 00 23 00 12 00 04  25 ed c0 ae 00 09 6b 61  |...#....%.....ka|" in output


def test_response_is_decoded_with_its_request() -> None:
    code, output = run("--no-hexdump", stdin=f"{REQUEST}\n{RESPONSE}")
    assert code == 0
    assert tree(output)[-13:] == [
        "- .message_size (19)",
        "- .ResponseHeader",
        "  - .correlation_id (636338350)",
        "- .ResponseBody",
        "  - .error_code (0)",
        "  - .num_api_keys (1)",
        "    - .ApiKeys[0]",
        "      - .api_key (18)",
        "      - .min_version (0)",
        "      - .max_version (4)",
        "      - .TAG_BUFFER",
        "  - .throttle_time_ms (0)",
        "  - .TAG_BUFFER",
    ]


@pytest.mark.parametrize("api", ["ApiVersions", "api_versions", "18"])
def test_response_alone_is_decoded_with_api_and_version(api: str) -> None:
    code, output = run("--api", api, "--version", "4", stdin=RESPONSE)
    assert code == 0
    assert "ApiVersionsResponse v4, 23 bytes, correlation id 636338350" in output


def test_unsupported_version_response_is_decoded_as_v0() -> None:
    # KIP-511: error 35 and the supported range in version 0's format, whatever the requested version.
    frame = "00 00 00 10 00 00 00 07 00 23 00 00 00 01 00 12 00 00 00 04"
    code, output = run("--api", "ApiVersions", "--version", "9", stdin=frame)
    assert code == 0
    assert "ApiVersionsResponse v0" in output
    assert "  - .error_code (35)" in tree(output)


def test_trailing_bytes_are_an_error_with_position() -> None:
    code, output = run("--api", "18", "--version", "4", stdin="00 00 00 15" + RESPONSE[11:] + " 00 00")
    assert code == 1
    assert "stopped at byte 23 (0x17)" in output
    assert "2 bytes left after ApiVersionsResponse v4" in output


def test_truncated_field_names_the_expected_type() -> None:
    # The size is 17, and the throttle time has three of its four bytes.
    code, output = run("--api", "18", "--version", "4", stdin="00 00 00 11" + RESPONSE[11:-6])
    assert code == 1
    assert "expected int32 to be 4 bytes, got 3" in output
    assert "  - .num_api_keys (1)" in tree(output)


def test_frame_shorter_than_its_size_is_an_error() -> None:
    code, output = run("--api", "18", "--version", "4", stdin=RESPONSE[:-3])
    assert code == 1
    assert "- .message_size (19, but 18 bytes follow)" in tree(output)


@pytest.mark.parametrize("cut", range(1, 39))
def test_request_truncated_anywhere_is_decoded_up_to_the_cut(cut: int) -> None:
    code, output = run("--json", stdin=bytes.fromhex(REQUEST)[:cut].hex())
    parsed = json.loads(output)
    assert code == 1
    assert parsed["error"]["position"] <= cut
    assert parsed["error"]["expected"].startswith("expected")


def test_unknown_api_and_unknown_version_have_different_errors() -> None:
    code, output = run("--json", stdin="00 00 00 0a 03 e7 00 00 00 00 00 01 ff ff")
    assert code == 1
    assert json.loads(output)["error"]["path"] == "request_api_key"
    code, output = run("--json", stdin="00 00 00 0a 00 12 00 63 00 00 00 01 ff ff")
    assert code == 1
    assert json.loads(output)["error"]["path"] == "request_api_version"


def test_json_tree_has_positions() -> None:
    code, output = run("--json", stdin=REQUEST)
    parsed = json.loads(output)
    assert code == 0
    assert (parsed["name"], parsed["kind"], parsed["api_key"], parsed["version"]) == (
        "ApiVersionsRequest v4",
        "request",
        18,
        4,
    )
    header = parsed["tree"][1]
    assert header["name"] == "RequestHeader"
    assert header["fields"][2] == {
        "name": "correlation_id",
        "position": 8,
        "end": 12,
        "type": "int32",
        "value": 636338350,
    }
    assert parsed["error"] is None


HEXDUMP_C = """\
00000000  00 00 00 23 00 12 00 04  25 ed c0 ae 00 09 6b 61  |...#....%.....ka|
00000010  66 6b 61 2d 63 6c 69 00  0a 6b 61 66 6b 61 2d 63  |fka-cli..kafka-c|
00000020  6c 69 04 30 2e 31 00                              |li.0.1.|
00000027
"""
XXD = """\
00000000: 0000 0023 0012 0004 25ed c0ae 0009 6b61  ...#....%.....ka
00000010: 666b 612d 636c 6900 0a6b 6166 6b61 2d63  fka-cli..kafka-c
00000020: 6c69 0430 2e31 00                        li.0.1.
"""
TCPDUMP = """\
        0x0000:  0000 0023 0012 0004 25ed c0ae 0009 6b61  ...#....%.....ka
        0x0010:  666b 612d 636c 6900 0a6b 6166 6b61 2d63  fka-cli..kafka-c
        0x0020:  6c69 0430 2e31 00                        li.0.1.
"""


@pytest.mark.parametrize(
    "shape",
    [
        REQUEST,
        REQUEST.replace(" ", ""),
        REQUEST.upper(),
        ", ".join(f"0x{byte}" for byte in REQUEST.split()),
        "".join(f"\\x{byte}" for byte in REQUEST.split()),
        HEXDUMP_C,
        XXD,
        TCPDUMP,
        base64.b64encode(bytes.fromhex(REQUEST)).decode(),
        bytes.fromhex(REQUEST),
    ],
    ids=["pairs", "plain", "upper", "0x", "escapes", "hexdump -C", "xxd", "tcpdump", "base64", "binary"],
)
def test_dump_format_is_detected(shape: str | bytes) -> None:
    code, output = run("--json", stdin=shape)
    assert code == 0
    assert json.loads(output)["correlation_id"] == 636338350


@pytest.mark.parametrize(
    ("words", "stdin", "says"),
    [
        ((), "", "empty"),
        ((), "what is this?", "neither a hexdump nor base64"),
        (("--format", "hex"), "00 0", "odd number"),
        (("--format", "hex"), "zz", "not hexadecimal"),
        (("--format", "nonsense"), REQUEST, "--format nonsense"),
        (("--api", "Fetsh"), REQUEST, "no such API"),
        (("--version", "3"), REQUEST, "--api"),
        (("--values", "nonsense"), REQUEST, "--values nonsense"),
        (("no-such-file.hex",), "", "no-such-file.hex"),
    ],
)
def test_wrong_usage_exits_with_2_and_the_reason(words: tuple[str, ...], stdin: str, says: str) -> None:
    code, output = run(*words, stdin=stdin)
    assert code == 2
    assert says in output


def produce_frame() -> bytes:
    batch = build_batch([Record(0, 1_700_000_000_000, b"k", b"hello", (("h", None),))])
    request = ProduceRequest(
        acks=-1,
        topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch)])],
    )
    return bytes(encode_request(0, 9, 7, "me", request))


def test_record_batches_are_decoded_to_records() -> None:
    code, output = run("--no-hexdump", stdin=produce_frame())
    assert code == 0
    lines = [line.strip() for line in tree(output)]
    assert "- .RecordBatch[0]" in lines
    assert "- .attributes (0: none, create_time)" in lines
    assert "- .Record[0]" in lines
    assert "- .key (1 byte: k)" in lines
    assert "- .value (5 bytes: hello)" in lines
    assert "- .Header[0]" in lines
    assert any(line.startswith("- .crc (0x") and line.endswith(", right)") for line in lines)


def test_flipped_bit_shows_as_wrong_crc() -> None:
    frame = bytearray(produce_frame())
    frame[frame.index(b"hello")] ^= 1
    _, output = run("--no-hexdump", stdin=bytes(frame))
    assert "WRONG" in output


def test_passwords_are_hidden_without_show_secrets() -> None:
    frame = bytes(encode_request(36, 2, 1, "me", SaslAuthenticateRequest(auth_bytes=b"\0alice\0hunter2")))
    for words in ((), ("--json",)):
        code, output = run(*words, stdin=frame)
        assert code == 0
        assert "hunter2" not in output
        assert b"hunter2".hex(" ") not in output
        assert b"hunter2".hex() not in output
    _, output = run("--show-secrets", stdin=frame)
    assert b"hunter2".hex(" ")[:8] in output


def test_control_characters_of_a_client_id_are_escaped() -> None:
    frame = bytes(encode_request(18, 0, 1, "\x1b[2Jme", ApiVersionsRequest()))
    code, output = run("--no-hexdump", stdin=frame)
    assert (code, "\x1b[2J" in output) == (0, False)
    assert "[2Jme" in output


def test_installed_command_reads_standard_input() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ottla", "decode", "--json"], input=REQUEST.encode(), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["name"] == "ApiVersionsRequest v4"
