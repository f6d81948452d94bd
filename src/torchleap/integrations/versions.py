"""Refuse a version of a zoo that its recipe was not tried with."""

from importlib.metadata import PackageNotFoundError, version

from .._common.errors import AttachError

SUPPORTED = {
    "deepctr-torch": ("0.3.0",),
    "fuxictr": ("2.3.10",),
    "skorch": ("1.4.0",),
    "deeptab": ("2.1.0",),
    "pytorch-frame": ("0.3.0",),
    "pytorch-tabular": ("1.2.0",),
    "pytorch-widedeep": ("1.7.0",),
    "recbole": ("1.2.1",),
    "torch-rechub": ("0.9.0",),
    "torchfm": ("0.7.0",),
}


def require(package: str) -> None:
    """Raise an error unless a supported version of a package is installed.

    A recipe reads attributes that the zoo does not promise to keep, so that another version could
    be read wrongly without an error.

    Args:
        package: The name of the package, as pip calls it.
    """
    supported = " or ".join(SUPPORTED[package])
    cure = f"pip install {package}=={SUPPORTED[package][-1]}, or name the places in attach(at=)"
    try:
        found = version(package)
    except PackageNotFoundError as error:
        raise AttachError(
            f"Expected {package} {supported}, but it is not installed. Use {cure}."
        ) from error
    if found.split("+")[0] not in SUPPORTED[package]:
        raise AttachError(f"Expected {package} {supported}, but found {found}. Use {cure}.")
