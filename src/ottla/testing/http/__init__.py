"""The control API: the test kit over HTTP, for tests in any language."""
