from importlib.metadata import PackageNotFoundError

import pytest

from torchleap._common.errors import AttachError
from torchleap.integrations import versions


def installed(monkeypatch, found):
    def version(package):
        if found is None:
            raise PackageNotFoundError(package)
        return found

    monkeypatch.setattr(versions, "version", version)


@pytest.mark.parametrize("found", ["1.2.1", "1.2.1+cpu"])
def test_a_supported_version_is_accepted(monkeypatch, found):
    installed(monkeypatch, found)
    versions.require("recbole")


def test_another_version_is_refused_with_the_supported_ones(monkeypatch):
    installed(monkeypatch, "1.1.0")
    with pytest.raises(AttachError, match=r"Expected recbole 1\.2\.1, but found 1\.1\.0"):
        versions.require("recbole")


def test_a_missing_zoo_is_refused_with_the_line_that_installs_it(monkeypatch):
    installed(monkeypatch, None)
    with pytest.raises(AttachError, match=r"not installed. Use pip install recbole==1\.2\.1"):
        versions.require("recbole")
