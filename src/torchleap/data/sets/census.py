"""Census-Income (KDD) 1994-95."""

import os
from typing import Unpack

from ..files.open import open_source
from ..files.options import ReadOptions
from ..files.read import read_sources
from ..task import Task
from .options import Options, with_defaults
from .places import Place, cut

FIELDS = [
    "age",
    "class_of_worker",
    "industry_code",
    "occupation_code",
    "education",
    "wage_per_hour",
    "enrolled_in_education",
    "marital_status",
    "major_industry",
    "major_occupation",
    "race",
    "hispanic_origin",
    "sex",
    "union_member",
    "reason_for_unemployment",
    "employment",
    "capital_gains",
    "capital_losses",
    "dividends",
    "tax_filer_status",
    "previous_region",
    "previous_state",
    "household_detail",
    "household_summary",
    "instance_weight",
    "migration_msa",
    "migration_region",
    "migration_within_region",
    "same_house_a_year_ago",
    "migration_sunbelt",
    "persons_worked_for",
    "family_under_18",
    "birth_country_father",
    "birth_country_mother",
    "birth_country_self",
    "citizenship",
    "own_business",
    "veterans_questionnaire",
    "veterans_benefits",
    "weeks_worked",
    "year",
]
PLACE = Place(
    "census",
    "Census-Income (KDD): get it from the UCI repository "
    "and put its two files, as train.csv.gz and test.csv.gz,",
)


def census_income(
    path: str | os.PathLike[str], *, width: int | None = None, **options: Unpack[Options]
) -> Task:
    """Return Census-Income as a task of 41 fields, numbers among them.

    The label is an income above 50,000; the last tenth of the train file validates.

    Args:
        path: A folder with train.csv and test.csv, perhaps packed.
        width: The width of the embeddings; None follows the rule of `read`.
        options: As for `read`.
    """
    folder = PLACE.folder(path)
    names = [*FIELDS, "income"]
    train = PLACE.find(folder, ["train.csv*", "census-income.data*"])
    test = PLACE.find(folder, ["test.csv*", "census-income.test*"])
    first, last = cut(open_source(train, separator=",", names=names), 0.9)
    sources = [first, last, open_source(test, separator=",", names=names)]
    chosen = ReadOptions(label="income", positive="50000+.", width=width, **with_defaults(options))
    return read_sources(sources, chosen)
