import os

import pytest
import torch
from hypothesis import settings

settings.register_profile("torchleap", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("torchleap")


def pytest_configure(config):
    if os.environ.get("PYTEST_XDIST_WORKER"):
        torch.set_num_threads(1)  # one worker a core


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
