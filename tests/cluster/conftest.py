# SPDX-License-Identifier: Apache-2.0
import os
import signal

import pytest

from harness import Cluster

TEXT = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "demo-text.txt")

# A shell starts what goes to the background without Ctrl-C, and children inherit that; ours must end by it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """One of each, for tests that do no harm."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="session")
def prompt():
    """Some 400 tokens of English: six blocks and a part of one."""
    with open(TEXT) as file:
        return file.read()[:1800]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A test that fails shows the end of what each process of its own clusters logged."""
    report = yield
    if report.failed:
        for world in (value for value in item.funcargs.values() if isinstance(value, Cluster)):
            for process in world.all:
                report.sections.append((f"log of {os.path.basename(process.log_path)}", process.log_text()[-6000:]))
    return report
