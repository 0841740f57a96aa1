"""Records of a topic: browse, search, tail, open one, download, produce."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import threading
import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from starlette.responses import Response, StreamingResponse

from ottla.client.connection import ConnectionFailedError
from ottla.console.data.records import (
    FILTERS,
    CancelledError,
    RecordQuery,
    make_filter,
    produce_record,
    read_record,
    scan,
    tail,
)
from ottla.console.data.topics import describe_topic
from ottla.console.data.values import FORMS, WHOLE, WRITTEN_FORMS, ValueReader, hexdump, tree_lines
from ottla.console.forms import Form
from ottla.console.page import FieldError, event, event_stream, parse_number
from ottla.console.pages.topics import page
from ottla.protocol.errors import KafkaError
from ottla.quantities import parse_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from ottla.client.reading import Read
    from ottla.console.data.records import RecordDetails, Scan
    from ottla.console.data.values import ShownValue
    from ottla.console.page import Call

LIMITS: Final = (20, 50, 100, 200, 500)
DOWNLOADED: Final = 10_000
TAIL_ROWS: Final = 25
"""Records of one report of a tail; others are counted only."""
REPORTS_SECONDS: Final = 0.4
COMPRESSIONS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


@page.get("/topics/{name}/records")
async def show(call: Call) -> Response:
    """Show the form; the records come as a stream."""
    name = call.path["name"]
    details = await call.run(describe_topic, name)
    errors: dict[str, str] = {}
    try:
        parse_query(call, most=LIMITS[-1])
    except FieldError as error:
        errors[error.name] = error.message
    query = urlencode([(key, value) for key, value in call.query.items() if value])
    return call.render(
        "records.html",
        200 if not errors else 422,
        topic=details,
        tab="records",
        errors=errors,
        stream="" if errors else f"/topics/{name}/records/stream?{query}",
        downloads=f"/topics/{name}/records/download?{query}",
        filters=FILTERS,
        forms=FORMS,
        limits=LIMITS,
        tailing=call.query.get("from") == "tail",
    )


def parse_query(call: Call, *, most: int) -> RecordQuery:
    """Return what the address asks for; FieldError for a part that cannot be read."""
    start = call.query.get("from", "newest")
    if start not in ("newest", "oldest", "offset", "time", "tail"):
        raise FieldError("from", f"{start[:40]!r}: begin at newest, oldest, offset, time or tail")
    at = 0
    text = call.query.get("at", "").strip()
    if start == "offset":
        at = parse_number("at", text)
    elif start == "time":
        try:
            at = parse_time(text)
        except (ValueError, OverflowError) as error:
            raise FieldError("at", str(error)) from error
        if not -1 < at < 2**62:
            raise FieldError("at", "write a time after 1970")
    partitions = []
    if call.query.get("partition", "").strip():
        partitions = [
            parse_number("partition", word, most=2**31 - 1)
            for word in call.query["partition"].replace(",", " ").split()
        ]
    limit = parse_number("limit", call.query.get("limit") or "50", least=1, most=most)
    for field in ("key", "value"):
        if call.query.get(field, "auto") not in dict(FORMS):
            raise FieldError(field, "there is no such form")
    try:
        matches = make_filter(call.query.get("by", "any"), call.query.get("q", ""))
    except (ValueError, RecursionError, MemoryError) as error:
        raise FieldError("q", str(error) or "the filter is too deep") from error
    committed = call.query.get("committed") == "1"
    return RecordQuery(call.path["name"], partitions, start, at, limit, committed, matches)


def values_of(call: Call) -> ValueReader:
    """Return the reader of keys and values that all pages of a console share."""
    shared = call.console.shared
    if "values" not in shared:
        shared["values"] = ValueReader(call.console.options.registry)
    reader: ValueReader = shared["values"]
    return reader


# Streams


@page.get("/topics/{name}/records/stream")
async def stream(call: Call) -> Response:
    """Stream matching records with progress, or new records of a tail; closing the stream cancels it."""
    query = parse_query(call, most=LIMITS[-1])
    return event_stream(_tail_events(call, query) if query.start == "tail" else _scan_events(call, query))


async def _scan_events(call: Call, query: RecordQuery) -> AsyncIterator[bytes]:
    """Run a scan on a thread; yield its reports as events."""
    loop = asyncio.get_running_loop()
    cancelled = threading.Event()
    queue: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

    def report(state: Scan) -> None:
        rows = [_row(call, read) for read in state.records]
        progress = {
            "scanned": state.scanned,
            "total": state.total,
            "matched": state.matched,
            "finished": state.finished,
            "limit": query.limit,
        }
        loop.call_soon_threadsafe(queue.put_nowait, ("report", (rows, progress)))

    task = loop.create_task(call.console.access.stream(scan, query, report, cancelled))
    task.add_done_callback(lambda done: _ended(done, lambda: queue.put_nowait(("end", None))))
    try:
        yield b"retry: 60000\n\n"
        while True:
            kind, content = await queue.get()
            if kind == "end":
                break
            rows, progress = content
            if rows:
                yield event("rows", call.block("records.html", "rows", rows=rows, name=query.topic))
            yield event("progress", json.dumps(progress))
        yield event("end", _problem_of(task))
    finally:
        cancelled.set()


def _ended(task: asyncio.Task[None], then: Callable[[], None]) -> None:
    """Note that a scan ended. A page that was closed does not ask for its error, which asyncio would log."""
    if not task.cancelled():
        task.exception()
    then()


def _problem_of(task: asyncio.Task[None]) -> str:
    """Return why a scan or tail ended; empty if it was complete or cancelled."""
    try:
        task.result()
    except (CancelledError, asyncio.CancelledError):
        return ""
    except (KafkaError, ConnectionFailedError, OSError) as error:
        return str(error)
    return ""


async def _tail_events(call: Call, query: RecordQuery) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    cancelled = threading.Event()
    query.limit = TAIL_ROWS
    pending: list[Read] = []
    counted = 0
    news = asyncio.Event()

    def receive(sample: Sequence[Read], count: int) -> None:
        nonlocal counted
        counted += count
        room = TAIL_ROWS - len(pending)
        pending.extend(sample[:room] if room > 0 else ())
        news.set()

    def report(sample: Sequence[Read], count: int) -> None:
        if count:
            loop.call_soon_threadsafe(receive, list(sample), count)

    task = loop.create_task(call.console.access.stream(tail, query, report, cancelled))
    task.add_done_callback(lambda done: _ended(done, news.set))
    try:
        yield b"retry: 2000\n\n"
        yield event("progress", json.dumps({"tail": True, "shown": 0, "count": 0, "seconds": 1}))
        while not task.done():
            before = time.monotonic()
            try:
                async with asyncio.timeout(15):
                    await news.wait()
            except TimeoutError:
                yield b": still here\n\n"
                continue
            news.clear()
            rows, count = [_row(call, read) for read in reversed(pending)], counted
            pending.clear()
            counted = 0
            if rows:
                yield event("rows", call.block("records.html", "rows", rows=rows, name=query.topic))
            await asyncio.sleep(REPORTS_SECONDS)
            seconds = time.monotonic() - before
            yield event(
                "progress", json.dumps({"tail": True, "shown": len(rows), "count": count, "seconds": round(seconds, 2)})
            )
        yield event("end", _problem_of(task))
    finally:
        cancelled.set()


def _row(call: Call, read: Read) -> dict[str, Any]:
    """Return what the list shows of a record."""
    reader = values_of(call)
    record, batch = read.record, read.batch
    headers = dict(record.headers)
    internal = reader.show_internal(read.topic, record.key, record.value)
    value = internal or reader.show(record.value, call.query.get("value", "auto"), headers=headers)
    if value.problem and value.kind == "binary":
        value = reader.show(record.value, "auto", headers=headers)
    return {
        "partition": read.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": reader.show(record.key, call.query.get("key", "auto"), headers=headers, is_key=True),
        "value": value,
        "headers": len(record.headers),
        "transactional": batch.is_transactional,
    }


# One record


@page.get("/topics/{name}/records/{partition:int}/{offset:int}")
async def open_record(call: Call) -> Response:
    """Show one record with all its parts."""
    details = await _record(call)
    return call.fragment("record.html", "record", **await asyncio.to_thread(_parts, call, details))


async def _record(call: Call) -> RecordDetails:
    return await call.run(read_record, call.path["name"], int(call.path["partition"]), int(call.path["offset"]))


def _parts(call: Call, details: RecordDetails) -> dict[str, Any]:
    reader, record, name = values_of(call), details.record, call.path["name"]
    headers = dict(record.headers)
    key = reader.show(record.key, call.query.get("key", "auto"), headers=headers, is_key=True, limit=WHOLE)
    value = reader.show(record.value, call.query.get("value", "auto"), headers=headers, limit=WHOLE)
    internal = reader.show_internal(name, record.key, record.value, WHOLE)
    return {
        "name": name,
        "details": details,
        "key": key,
        "value": value,
        "internal": internal,
        "tree": _tree(internal or value),
        "key_tree": _tree(key),
        "hex": hexdump(record.value or b""),
        "headers": [(header, reader.show(data, limit=2000)) for header, data in record.headers],
    }


def _tree(value: ShownValue) -> list[Any]:
    return tree_lines(value.tree) if isinstance(value.tree, dict | list) else []


@page.get("/topics/{name}/records/{partition:int}/{offset:int}/{part:str}")
async def download_part(call: Call) -> Response:
    """Return the bytes of a key or value as a file."""
    details = await _record(call)
    if call.path["part"] not in ("key", "value"):
        raise FieldError("part", "A record has a key and a value.")
    data = details.record.key if call.path["part"] == "key" else details.record.value
    name = f"{call.path['name']}-{details.partition}-{details.record.offset}.{call.path['part']}"
    return Response(data or b"", headers=_attachment(name), media_type="application/octet-stream")


@page.get("/topics/{name}/records/download")
async def download(call: Call) -> Response:
    """Return up to DOWNLOADED matching records as JSON lines or CSV."""
    query = parse_query(call, most=DOWNLOADED)
    query.limit = DOWNLOADED
    if query.start == "tail":
        query.start = "newest"
    as_csv = call.query.get("format") == "csv"
    extension, media = ("csv", "text/csv; charset=utf-8") if as_csv else ("jsonl", "application/jsonl")
    return StreamingResponse(
        _lines(call, query, as_csv), headers=_attachment(f"{query.topic}.{extension}"), media_type=media
    )


def _attachment(name: str) -> dict[str, str]:
    plain = "".join(character if character.isalnum() or character in "._-" else "_" for character in name)
    return {"Content-Disposition": f'attachment; filename="{plain.encode("ascii", "replace").decode()}"'}


async def _lines(call: Call, query: RecordQuery, as_csv: bool) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    cancelled = threading.Event()
    queue: asyncio.Queue[list[Read] | None] = asyncio.Queue()
    reader = values_of(call)

    def report(state: Scan) -> None:
        loop.call_soon_threadsafe(queue.put_nowait, list(state.records))

    task = loop.create_task(call.console.access.stream(scan, query, report, cancelled))
    task.add_done_callback(lambda done: _ended(done, lambda: queue.put_nowait(None)))
    columns = ("partition", "offset", "timestamp", "key", "value", "headers")
    if as_csv:
        yield (",".join(columns) + "\r\n").encode()
    try:
        while (reads := await queue.get()) is not None:
            for read in reads:
                row = _plain_row(reader, read, as_csv)
                if as_csv:
                    buffer = io.StringIO()
                    csv.writer(buffer).writerow([row[column] for column in columns])
                    yield buffer.getvalue().encode("utf-8", "replace")
                else:
                    yield (json.dumps(row, ensure_ascii=False, default=str) + "\n").encode("utf-8", "replace")
        task.result()
    finally:
        cancelled.set()


def _plain_row(reader: ValueReader, read: Read, as_csv: bool) -> dict[str, Any]:
    record = read.record
    headers = dict(record.headers)
    key = reader.show(record.key, headers=headers, is_key=True, limit=2**31)
    value = reader.show(record.value, headers=headers, limit=2**31)
    listed = [[name, None if data is None else data.decode("utf-8", "replace")] for name, data in record.headers]
    return {
        "partition": read.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _plain_value(key, as_csv),
        "value": _plain_value(value, as_csv),
        "headers": json.dumps(listed, ensure_ascii=False) if as_csv else listed,
    }


def _plain_value(value: ShownValue, as_csv: bool) -> Any:
    if value.kind == "null":
        return "" if as_csv else None
    if value.tree is None:
        return value.text
    return json.dumps(value.tree, ensure_ascii=False, default=str) if as_csv else value.tree


# Produce


@page.get("/topics/{name}/produce")
async def produce_form(call: Call) -> Response:
    """Show the form of a new record, filled from a shown record if one is named."""
    form: dict[str, Any] = {"key_form": "text", "value_form": "text", "compression": "none"}
    if call.query.get("offset"):
        partition = call.number("partition", 0, most=2**31 - 1)
        details = await call.run(read_record, call.path["name"], partition, call.number("offset", 0))
        form |= _form_of(details)
    return call.fragment("produce.html", "produce", **_produce_values(call, form))


def _form_of(details: RecordDetails) -> dict[str, Any]:
    form: dict[str, Any] = {"partition": str(details.partition)}
    for field, data in (("key", details.record.key), ("value", details.record.value)):
        try:
            text = (data or b"").decode("utf-8")
            kind = "text"
        except UnicodeDecodeError:
            text, kind = (data or b"").hex(), "hex"
        form |= {field: text, f"{field}_form": kind, f"{field}_null": "1" if data is None else ""}
    form["headers"] = "\n".join(
        f"{name}: {(data or b'').decode('utf-8', 'replace')}" for name, data in details.record.headers
    )
    return form


def _produce_values(call: Call, form: dict[str, Any]) -> dict[str, Any]:
    forms = [entry for entry in WRITTEN_FORMS if entry[0] != "schema" or values_of(call).has_registry]
    return {"name": call.path["name"], "form": form, "forms": forms, "compressions": COMPRESSIONS}


@page.post("/topics/{name}/produce")
async def produce(call: Call) -> Response:
    """Write a record."""
    name, form = call.path["name"], Form(await call.form())
    with form.checked():
        values = form.values
        partition = values.get("partition", "").strip()
        chosen = None if not partition else parse_number("partition", partition, most=2**31 - 1)
        key = await asyncio.to_thread(_written, call, values, "key")
        value = await asyncio.to_thread(_written, call, values, "value")
        headers = _written_headers(values.get("headers", ""))
        compression = values.get("compression", "none")
        if compression not in COMPRESSIONS:
            raise FieldError("compression", "there is no such compression")
        written, offset = await call.run(produce_record, name, key, value, headers, chosen, compression)
        query = urlencode({"from": "offset", "at": max(offset, 0), "partition": written})
        return call.done(f"/topics/{name}/records?{query}", f"Written to partition {written} at offset {offset}.")
    rest = _produce_values(call, form.values)
    del rest["form"]
    return form.again(call, "produce.html", "produce", **rest)


def _written(call: Call, values: dict[str, str], field: str) -> bytes | None:
    if values.get(f"{field}_null") == "1":
        return None
    subject = values.get(f"{field}_subject") or f"{call.path['name']}-{field}"
    form = values.get(f"{field}_form", "text")
    if form not in dict(WRITTEN_FORMS):
        raise FieldError(field, "there is no such form")
    text = values.get(field, "")
    try:
        # Browsers send line breaks of text areas as CR LF.
        return values_of(call).encode(text.replace("\r\n", "\n"), form, subject)
    except (ValueError, OverflowError) as error:
        raise FieldError(field, f"not in the form {form}: {error}") from error


def _written_headers(text: str) -> list[tuple[str, bytes | None]]:
    headers: list[tuple[str, bytes | None]] = []
    for line in text.splitlines():
        if not line.strip():
            continue
        name, colon, value = line.partition(":")
        if not colon:
            raise FieldError("headers", f"{line[:60]!r}: write one NAME: VALUE per line")
        headers.append((name.strip(), value.strip().encode("utf-8", "surrogateescape")))
    return headers
