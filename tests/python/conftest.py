"""Options of the Python tests."""
import pathlib

import pytest


def pytest_addoption(parser):
    parser.addoption("--bin-dir", default="build/release/bin", help="where the build put its programs")


@pytest.fixture(scope="session")
def bin_dir(request):
    return pathlib.Path(request.config.getoption("--bin-dir")).resolve()
