"""Draft of an entry for the Differential Privacy Deployments Registry of OpenDP and others."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from equidp._extras import require_extra
from equidp._provenance import versions
from equidp.data.dataset import uncovered_notes
from equidp.display import shown_epsilon
from equidp.errors import SettingError, count_text
from equidp.report.guarantee import mechanisms, privacy_unit
from equidp.training.run import Run

SCHEMA = (
    "github.com/opendp/deployments-registry-data, schemas/deployments-schema.yaml at 3e9c812 (15 July 2026)"
)
"""Version of the registry's schema that entries follow."""

_HEAD = f"""\
# Draft of an entry for the Differential Privacy Deployments Registry, by
# {SCHEMA}.
# Empty values are for the publisher: data_curators, intended_use, data_product_region and
# registry_authors; data_product_sector, actors and justification can be added. Set publication_date to
# the day of publication, and url_slug, in the first line, by scripts/update_slug.py of the registry.
"""


def registry_entry(
    run: Run,
    data: str,
    *,
    target: str | None,
    columns: Sequence[str],
    notes: Sequence[str],
    day: date,
) -> str:
    """Return the entry in YAML.

    Args:
        run: with a guarantee.
        data: name of the data.
        target: column that is predicted; None: the name of the data says it.
        columns: of a table that the model reads.
        notes: sentences on how the data was prepared.
        day: of publication.

    Raises:
        SettingError: the run has no guarantee.
    """
    if math.isinf(run.epsilon()):
        raise SettingError(
            "the run was trained without privacy; the registry is for deployments with a guarantee. Leave "
            "the format registry out.",
            field="to",
        )
    name = f"Model of {data}"
    entry = {
        "url_slug": f"{_slug(name)}--{day.year}",
        "status": "Draft",
        "tier": 2,
        "deployment": {
            "basic": _basic(name, data, target, columns, day),
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": _domain(run, columns),
                "unprotected_quantities": _public_quantities(uncovered_notes(notes)),
            },
            "privacy_loss": _privacy_loss(run),
            "deployment_model": {
                "model_name": "Central",
                "release_type": "One release",
                "data_source_type": "Static",
                "access_type": "Non-interactive",
            },
            "accounting": _accounting(run),
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": _preparation(notes),
                "mechanisms": _mechanisms(run),
            },
            "administrative": {
                "notes": f"Drafted by equidp {versions()['equidp']} from the record of the run.",
                "registry_authors": [""],
            },
        },
    }
    slug, rest = _to_yaml(entry).split("\n", 1)
    return f"{slug}\n{_HEAD}{rest}"


def _to_yaml(entry: Mapping[str, Any]) -> str:
    """Return plain values in YAML; texts of several lines in the style | that the registry asks for."""
    with require_extra("export"):
        import yaml

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]
        pass

    def represent(dumper: Any, text: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    Dumper.add_representer(str, represent)
    text: str = yaml.dump(entry, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=1_000_000)
    return text


def _slug(name: str) -> str:
    return re.sub(r"\W+", "-", name.lower()).replace("_", "-").strip("-")


def _basic(name: str, data: str, target: str | None, columns: Sequence[str], day: date) -> dict[str, Any]:
    read = f" from {', '.join(columns)}" if columns else ""
    of_target = f" that predicts {target}{read}" if target else ""
    return {
        "name": name,
        "data_curators": [""],
        "intended_use": "",
        "data_product_type": "Machine learning model",
        "data_product_region": "",
        "description": f"Weights of a model{of_target}, trained on {data} with differential privacy.",
        "publication_date": day.isoformat(),
    }


def _domain(run: Run, columns: Sequence[str]) -> str:
    rows = "examples" if run.facts.rows is None else f"people with at most {run.facts.rows:,} rows each"
    what = f" with the columns {', '.join(columns)}" if columns else ""
    return f"All sets of {rows}{what}."


def _public_quantities(uncovered: Sequence[str]) -> str:
    public = (
        "The number of training examples or people, names of columns, groups and classes, and all settings "
        "count as public. Metrics on held-out examples are exact."
    )
    return _items([public, *uncovered])


def _privacy_loss(run: Run) -> dict[str, Any]:
    who = privacy_unit(run.facts)
    unit = "Training example" if run.facts.rows is None else f"Person, with at most {run.facts.rows:,} rows"
    return {
        "privacy_unit": unit,
        "privacy_unit_details": (
            f"Two training sets are adjacent if one is the other with one {who} added or removed: symmetric "
            "distance, at most 1."
        ),
        "privacy_parameters": {"epsilon": shown_epsilon(run.epsilon()), "delta": run.delta},
        "privacy_parameters_details": (
            f"Epsilon is that of all that the run released, by {run.accountant} of dp-accounting."
        ),
    }


def _accounting(run: Run) -> dict[str, str]:
    queries = [f"{count_text(each.times, each.noun)}, {each.event}" for each in mechanisms(run)]
    return {
        "post_processing": (
            "The optimizer's steps, schedules of the learning rate, averages of weights and predictions "
            "follow from released values and public settings alone."
        ),
        "composition": _items(
            [f"Adaptive composition of all queries to the data, by {run.accountant}.", *queries]
        ),
    }


def _preparation(notes: Sequence[str]) -> str:
    tuned = "Settings that were chosen by results on the same data would cost more than is stated here."
    return _items([*notes, tuned])


def _mechanisms(run: Run) -> str:
    return _items(
        [
            *(each.sentence for each in mechanisms(run)),
            f"Library: equidp {versions()['equidp']}, with PyTorch {versions()['torch']} and dp-accounting.",
            "Noise comes from the operating system's entropy, is added in double precision and rounded to a "
            "grid, against attacks on floating-point numbers.",
            "Timing and memory of the machine are not covered.",
        ]
    )


def _items(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {each}" for each in sentences)
