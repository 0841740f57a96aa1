"""Forms of pages: checked input, errors beside their fields, errors of the cluster at the top."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ottla.client.connection import ConnectionFailedError
from ottla.console.page import FieldError
from ottla.protocol.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.responses import Response

    from ottla.console.page import Call

REFUSED = 422


class Form:
    """A submitted form: its values, and the errors to show if it is refused.

    form = Form(await call.form())
    with form.checked():
        count = parse_number("count", form.values.get("count", ""))
        await call.run(create_partitions, topic, count)
        return call.done(f"/topics/{topic}", "Partitions added")
    return form.again(call, "topic_forms.html", "partitions", topic=topic)
    """

    def __init__(self, values: dict[str, str]) -> None:
        self.values = values
        self.errors: dict[str, str] = {}

    @contextmanager
    def checked(self, field: str = "") -> Iterator[None]:
        """Keep an error of the input, or of the cluster (shown at `field`), to be shown in the form."""
        try:
            yield
        except FieldError as error:
            self.errors[error.name] = error.message
        except KafkaError as error:
            self.errors[field] = str(error)
        except (ConnectionFailedError, TimeoutError) as error:
            self.errors[""] = f"The cluster does not answer: {error}"

    def again(self, call: Call, template: str, block: str, **values: Any) -> Response:
        """Return the form with its errors."""
        return call.fragment(template, block, REFUSED, form=self.values, errors=self.errors, **values)
