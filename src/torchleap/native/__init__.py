"""The C code of the library: its sources, their compilation (`build`) and the loading of the result (`library`)."""
