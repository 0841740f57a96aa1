"""Tests of `ottla.schemas`."""
