"""Datasets with groups: the table of names, and any CSV or Parquet file. Names load on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from equidp.data.dataset import DataSource, DataSplit, GroupedDataset
    from equidp.data.sources import SOURCES, open_source
    from equidp.data.table import TableSource
    from equidp.tables.recipe import Recipe

__all__ = ["SOURCES", "DataSource", "DataSplit", "GroupedDataset", "Recipe", "TableSource", "open_source"]

_MODULES = {
    "SOURCES": "data.sources",
    "open_source": "data.sources",
    "TableSource": "data.table",
    "Recipe": "tables.recipe",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"equidp.{_MODULES.get(name, 'data.dataset')}"), name)
