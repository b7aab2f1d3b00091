"""Datasets with groups: the table of names, and any CSV or Parquet file. Names load on first use."""

from typing import TYPE_CHECKING

from equidp._lazy import lazy_names

if TYPE_CHECKING:
    from equidp.data.dataset import DataSource, DataSplit, GroupedDataset
    from equidp.data.sources import SOURCES, open_source
    from equidp.data.table import TableSource
    from equidp.tables.recipe import Recipe

__all__ = ["SOURCES", "DataSource", "DataSplit", "GroupedDataset", "Recipe", "TableSource", "open_source"]

__getattr__ = lazy_names(
    __name__,
    {
        "equidp.data.dataset": "DataSource DataSplit GroupedDataset",
        "equidp.data.sources": "SOURCES open_source",
        "equidp.data.table": "TableSource",
        "equidp.tables.recipe": "Recipe",
    },
)
