"""An option of training is one field: help, TOML, plain form, card and key of results follow from it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from equidp.cli.options import TRAINING, options_of, settings_in
from equidp.errors import SettingError
from equidp.training.option import option
from equidp.training.plan import Plan
from support.errors import raises_field


def _check_positive(name, value):
    if value <= 0:
        raise SettingError(f"{name}={value}; expected a number above 0.")


@dataclass(frozen=True, kw_only=True)
class WarmPlan(Plan):
    warm_up: float = option(
        0.1, "Share of steps until the rate is reached.", _check_positive, label="warm-up"
    )


PLAN = WarmPlan(noise_multiplier=1.0, epochs=2, batch_size=50)


def test_a_new_option_has_help_and_a_type_on_the_command_line_and_in_toml():
    (setting,) = settings_in(WarmPlan, ["warm_up"])
    assert (setting.type, setting.help) == (float, "Share of steps until the rate is reached.")
    Options = options_of("Options", [(setting, TRAINING)])
    assert Options(warm_up=0.3).warm_up == 0.3
    assert Options().warm_up is None


def test_a_new_option_is_checked_and_changed_as_the_others():
    with raises_field(SettingError, "warm_up"):
        WarmPlan(warm_up=0.0)
    assert PLAN.with_changes(warm_up=0.2).warm_up == 0.2


def test_a_new_option_is_in_the_plain_form():
    plain = PLAN.with_changes(warm_up=0.2).to_plain()
    assert plain["warm_up"] == 0.2
    assert WarmPlan.from_plain(plain).warm_up == 0.2


def test_a_new_option_is_on_the_card_and_in_the_key_where_it_differs_from_its_default():
    plain, changed = PLAN.resolve(1000), PLAN.with_changes(warm_up=0.2).resolve(1000)
    assert "warm-up" not in plain.card_options
    assert changed.card_options["warm-up"] == 0.2
    assert plain.key_parts == Plan(noise_multiplier=1.0, epochs=2, batch_size=50).resolve(1000).key_parts
    assert {**plain.key_parts, "warm_up": 0.2} == changed.key_parts


@pytest.mark.parametrize("option", ["workers", "physical_batch_size"])
def test_what_no_result_depends_on_is_in_no_key(option):
    assert PLAN.with_changes({option: 2}).resolve(1000).key_parts == PLAN.resolve(1000).key_parts
