"""The default model, fetched and converted once for all tests: `make test` has done it before they start."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.execution.models.prepare import prepare_model


@pytest.fixture(scope="session")
def default_folder() -> Path:
    return prepare_model("smollm2")
