"""The C code of the package: the sources, their compilation (`build`) and loading (`library`)."""
