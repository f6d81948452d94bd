import sys

import pytest

from torchleap._common.errors import DataError, SurgeryError, TorchleapError
from torchleap._common.optional import missing, need, needing


def test_an_installed_module_is_imported():
    assert need("json.decoder", "bench", "This method").JSONDecoder


@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("sklearn.linear_model", "scikit-learn"),
        ("xgboost", "xgboost-cpu"),
        ("scipy.stats", "scipy"),
    ],
)
def test_a_missing_package_is_named_with_the_line_that_installs_it(monkeypatch, module, package):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SurgeryError) as found:
        need(module, "bench", "This method", refused=SurgeryError)
    assert str(found.value) == missing(module, "bench", "This method")
    assert str(found.value) == (
        f"This method needs the package {package}. Install it: pip install 'torchleap[bench]'."
    )
    assert isinstance(found.value.__cause__, ImportError)


def test_a_package_missing_inside_another_module_is_explained():
    def import_polars():
        raise ModuleNotFoundError("No module named 'polars'", name="polars")

    with (
        pytest.raises(
            DataError, match=r"^A task needs the package polars. Install it: .*\[data\]'.$"
        ),
        needing("polars", "pyarrow", extra="data", purpose="A task", refused=DataError),
    ):
        import_polars()


def test_a_missing_module_of_nobody_is_a_mistake_and_passes():
    with pytest.raises(ModuleNotFoundError), needing("polars", extra="data", purpose="A task"):
        raise ModuleNotFoundError("No module named 'torchleap.oops'", name="torchleap.oops")


def test_by_default_a_missing_package_is_an_error_of_the_project():
    with pytest.raises(TorchleapError, match="A chart needs the package not_there"):
        need("not_there.charts", "report", "A chart")
