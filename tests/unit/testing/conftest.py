"""The plugin's marker, for runs in which its entry point is not installed."""

from skylark.testing.pytest_plugin import pytest_configure as pytest_configure
