"""Options of the Python tests."""
import pathlib

import pytest


def pytest_addoption(parser):
    parser.addoption("--speed", action="store_true", help="also run the tests that time something; they need a machine of their own")
    parser.addoption("--bin-dir", default="build/release/bin", help="where the build put its programs")


@pytest.fixture(scope="session")
def bin_dir(request):
    return pathlib.Path(request.config.getoption("--bin-dir")).resolve()


def pytest_collection_modifyitems(config, items):
    if config.getoption("--speed"):
        return
    for item in items:
        if "speed" in item.name:
            item.add_marker(pytest.mark.skip(reason="a timing: make bench runs it"))
