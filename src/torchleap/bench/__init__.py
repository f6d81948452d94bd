"""The benchmark: methods compared under one protocol, for the paper's three tables."""

from .grid import Grid
from .prune import Prunings
from .record import record_of
from .roi import Roi, roi
from .run import Runner, Standing, cores
from .search_retrain import SearchRetrain, search_retrain
from .sets import DataSet, Recipe, file_recipe, industrial_recipe
from .stepwise import Stepwise, stepwise
from .store import Store
from .tables import Table, write_tables

__all__ = [
    "DataSet",
    "Grid",
    "Prunings",
    "Recipe",
    "Roi",
    "Runner",
    "SearchRetrain",
    "Standing",
    "Stepwise",
    "Store",
    "Table",
    "cores",
    "file_recipe",
    "industrial_recipe",
    "record_of",
    "roi",
    "search_retrain",
    "stepwise",
    "write_tables",
]
