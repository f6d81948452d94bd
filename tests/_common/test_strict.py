"""TORCHLEAP_STRICT=1 raises mistakes; declared reasons are never raised."""

import pytest

from torchleap._common.errors import FieldError, SurgeryError
from torchleap._common.strict import InexactError, is_strict, raise_mistake


@pytest.mark.parametrize("value", ["1", "true", "yes"])
def test_it_is_strict_where_the_variable_is_set(monkeypatch, value):
    monkeypatch.setenv("TORCHLEAP_STRICT", value)
    assert is_strict()


@pytest.mark.parametrize("value", [None, "", "0"])
def test_it_is_not_strict_by_default(monkeypatch, value):
    monkeypatch.delenv("TORCHLEAP_STRICT", raising=False)
    if value is not None:
        monkeypatch.setenv("TORCHLEAP_STRICT", value)
    assert not is_strict()
    raise_mistake(KeyError("x"))


@pytest.mark.parametrize("mistake", [KeyError("x"), AssertionError(), InexactError("by 1")])
def test_mistakes_are_raised_in_strict_mode(monkeypatch, mistake):
    monkeypatch.setenv("TORCHLEAP_STRICT", "1")
    with pytest.raises(type(mistake)):
        raise_mistake(mistake)


@pytest.mark.parametrize("reason", [SurgeryError("no"), FieldError("no")])
def test_declared_reasons_are_not_raised(monkeypatch, reason):
    monkeypatch.setenv("TORCHLEAP_STRICT", "1")
    assert is_strict()
    assert raise_mistake(reason) is None
