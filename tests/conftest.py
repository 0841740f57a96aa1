"""What holds for all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# How long an example takes, or takes to be made, says more about the machine than about the code.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same examples on every machine and in every run, so that what passes passes; `--hypothesis-profile explore` looks
# for others.
settings.register_profile("ottla", settings.get_profile("explore"), derandomize=True)
settings.load_profile("ottla")
