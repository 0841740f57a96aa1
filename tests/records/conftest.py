from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.records import builder, iterate, kernel, validate
from ottla.records.uncompiled import load_uncompiled_kernel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType


@pytest.fixture(scope="module", params=["compiled", "uncompiled"])
def either_kernel(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """Run the test with the compiled kernel and with the Python kernel."""
    if request.param == "uncompiled":
        form = load_uncompiled_kernel()
        assert not form.COMPILED
    elif kernel.COMPILED:
        form = kernel
    else:
        pytest.skip("the kernel is not compiled here")
    users = [builder, iterate, validate]
    try:
        from ottla.records import columnar
    except ImportError:  # pyarrow is an extra
        pass
    else:
        users.append(columnar)
    with pytest.MonkeyPatch.context() as patch:
        for user in users:
            patch.setattr(user, "kernel", form)
        yield form
