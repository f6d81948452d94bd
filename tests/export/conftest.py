"""A pruned model and its batches, for the tests of files."""

import pytest

from tests.architectures import attached


@pytest.fixture
def pruned():
    _, plugin, make = attached("wide_deep")
    return plugin.prune(plugin.select(share=0.6)).eval(), make
