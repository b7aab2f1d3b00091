"""Exports of a run predict what the run predicts in a process without equidp, and hold nothing else of it."""

from __future__ import annotations

import html
import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from safetensors import safe_open

import equidp
from equidp.accounting.target import Target
from equidp.data import Recipe
from equidp.data.dataset import uncovered_notes
from equidp.display import shown_epsilon
from equidp.errors import DataError, MissingExtraError, ModelError, SettingError
from equidp.kernel.ledger import ReleaseEvent, StepEvent
from equidp.report.format import upper
from equidp.report.guarantee import guarantee_sentences, mechanisms
from equidp.runs import layout
from equidp.runs.begin import begin
from equidp.runs.config import RunData, TrainConfig
from equidp.runs.exports import FORMATS
from equidp.runs.exports.format import ExportedRun
from equidp.runs.exports.pipeline import write_skops
from equidp.runs.exports.programs import write_torch_export
from equidp.runs.prepare import prepare
from equidp.runs.releases import CountsRelease, PreprocessingRelease
from equidp.runs.saved import open_run
from equidp.runs.train import train
from support.errors import raises_field

BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "equidp":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocked())
try:
    import equidp
except ModuleNotFoundError:
    pass
else:
    raise SystemExit("equidp is not blocked")
import json
import numpy as np
"""


def elsewhere(folder, code: str, *, inputs: torch.Tensor | None = None) -> np.ndarray:
    """Return `outputs` of code that reads an export's folder and the inputs, in a process without equidp."""
    if inputs is not None:
        np.save(folder.parent / "inputs.npy", inputs.numpy())
    program = f"{BLOCKED}{code}\nnp.save(sys.argv[1] + '/../outputs.npy', outputs)"
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return np.load(folder.parent / "outputs.npy")


READ = "inputs = np.load(sys.argv[1] + '/../inputs.npy')\n"
BY_TORCH = (
    READ
    + """
import torch
files = {"model.json": ""}
model = torch.export.load(sys.argv[1] + "/model.pt2", extra_files=files).module()
assert json.loads(files["model.json"])["unit"] == "example"
parts = [model(torch.from_numpy(part)) for part in (inputs[:1], inputs[1:])]
outputs = torch.cat(parts).detach().numpy()
"""
)
BY_ONNX = (
    READ
    + """
import onnx
from onnx.reference import ReferenceEvaluator
model = onnx.load(sys.argv[1] + "/model.onnx")
onnx.checker.check_model(model, full_check=True)
assert {each.key: each.value for each in model.metadata_props}["unit"] == "example"
run = ReferenceEvaluator(model).run
outputs = np.concatenate([run(["outputs"], {"inputs": part})[0] for part in (inputs[:1], inputs[1:])])
"""
)


def run_on(folder, data: str, recipe: Recipe = Recipe(), *, epsilon=None, releases=(), encoding=None, **plan):
    """Return the folder of a finished run; releases are shares of an epsilon, 3 by default."""
    given = equidp.Plan(**{"batch_size": 40, "epochs": 1, "noise_multiplier": 2.0, **plan})
    epsilon = 3.0 if releases else epsilon
    target = Target(epsilon, accountant="rdp")
    if epsilon is not None:
        given = given.with_changes({"noise_multiplier": None, "delta": 1e-3})
    config = TrainConfig(
        RunData(data, recipe, encoding=encoding), "dpsgd", given, target, releases=tuple(releases)
    )
    train(folder, prepared=begin(prepare(config), folder))
    return folder


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """A run on a table of bounded numbers alone, of three classes; nothing of it is without cover."""
    place, rng = tmp_path_factory.mktemp("numbers"), np.random.default_rng(0)
    table = pd.DataFrame(rng.uniform(-3, 3, (200, 3)).round(3), columns=["a", "b", "c"])
    table.assign(kind=np.select([table.a > 1, table.b > 0], ["x", "y"], "z")).to_csv(
        place / "numbers.csv", index=False
    )
    bounds = (("a", -2.0, 2.0), ("b", -4.0, 4.0), ("c", -1.0, 5.0))
    return run_on(
        place / "run", str(place / "numbers.csv"), Recipe(target="kind", group=("kind",), bounds=bounds)
    )


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return run_on(tmp_path_factory.mktemp("images") / "run", "digits", model="small-cnn", epochs=0.2)


def outputs_of(kept, inputs: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        return kept.run.model(inputs).numpy()


@pytest.mark.soak
def test_weights_and_facts_rebuild_the_model_elsewhere(numbers, tmp_path):
    equidp.export_run(numbers, "safetensors", tmp_path / "out")
    inputs = torch.rand(7, 3)
    code = f"""{READ}
from safetensors import safe_open
facts = json.load(open(sys.argv[1] + "/model.json"))
[linear] = [each for each in facts["modules"] if each["type"] == "torch.nn.modules.linear.Linear"]
with safe_open(sys.argv[1] + "/model.safetensors", framework="numpy") as file:
    weight, bias = (file.get_tensor(f"{{linear['name']}}.{{part}}") for part in ("weight", "bias"))
    stated = file.metadata()
assert (stated["epsilon"], stated["unit"]) == (str(facts["epsilon"]), "example")
outputs = inputs @ weight.T + bias
"""
    kept = open_run(numbers)
    assert np.allclose(elsewhere(tmp_path / "out", code, inputs=inputs), outputs_of(kept, inputs), atol=1e-5)
    facts = json.loads((tmp_path / "out" / "model.json").read_text())
    assert facts["epsilon"] == kept.run.epsilon()
    assert facts["outputs"]["classes"] == ["x", "y", "z"]
    assert facts["inputs"] == {"shape": [3], "columns": ["a", "b", "c"]}


@pytest.mark.soak
def test_a_graph_runs_in_torch_alone_on_any_number_of_rows(images, tmp_path):
    equidp.export_run(images, "torch-export", tmp_path / "out")
    inputs = torch.rand(5, 1, 8, 8)
    found = elsewhere(tmp_path / "out", BY_TORCH, inputs=inputs)
    assert np.allclose(found, outputs_of(open_run(images), inputs), atol=1e-5)


@pytest.mark.soak
def test_a_graph_runs_by_onnx_on_any_number_of_rows(images, tmp_path):
    pytest.importorskip("onnx")
    equidp.export_run(images, "onnx", tmp_path / "out")
    inputs = torch.rand(5, 1, 8, 8)
    found = elsewhere(tmp_path / "out", BY_ONNX, inputs=inputs)
    assert np.allclose(found, outputs_of(open_run(images), inputs), atol=1e-5)
    content = (tmp_path / "out" / "model.onnx").read_bytes()
    assert not [path for path in (str(images.parent), *sys.path) if path and path.encode() in content]


BY_SKOPS = """
import pandas as pd
import skops.io
pipeline = skops.io.load(sys.argv[1] + "/model.skops", trusted=["numpy.dtype"])
table = pd.read_csv(sys.argv[1] + "/../table.csv")
outputs = pipeline.predict_proba(table) if hasattr(pipeline, "predict_proba") else pipeline.predict(table)
"""


@pytest.mark.soak
def test_a_pipeline_predicts_from_raw_columns(numbers, tmp_path):
    pytest.importorskip("skops")
    rng = np.random.default_rng(1)
    table = pd.DataFrame(rng.uniform(-9, 9, (50, 4)), columns=["c", "b", "a", "further"])
    table.to_csv(tmp_path / "table.csv", index=False)
    equidp.export_run(numbers, "skops", tmp_path / "out")
    kept = open_run(numbers)
    expected = torch.softmax(kept.run.model(kept.inputs(tmp_path / "table.csv")), 1).detach().numpy()
    assert np.allclose(elsewhere(tmp_path / "out", BY_SKOPS), expected, atol=1e-5)


@pytest.mark.soak
@pytest.mark.parametrize("encoding", [None, "cut:3,8"])
def test_a_pipeline_marks_missing_values_and_unknown_texts_as_the_run_does(tmp_path, encoding):
    pytest.importorskip("skops")
    index = range(200)
    table = pd.DataFrame(
        {
            "age": [None if i % 9 == 0 else 20 + i % 37 for i in index],
            "job": [None if i % 7 == 0 else "clerk" if i % 3 else "cook" for i in index],
            "same": [5.0] * 200,
            "sex": ["F" if i % 2 else "M" for i in index],
            "income": [1000.0 + 10 * (i % 37) for i in index],
        }
    )
    table.to_csv(tmp_path / "people.csv", index=False)
    recipe = Recipe(target="income", group=("sex",), target_bounds=(0, 3000), missing="category")
    run = run_on(tmp_path / "run", str(tmp_path / "people.csv"), recipe, encoding=encoding)
    new = table.assign(job=["cleaner", *table.job[1:]]).drop(columns="income")
    new.to_csv(tmp_path / "table.csv", index=False)
    equidp.export_run(run, "skops", tmp_path / "out", include_sensitive=True)
    kept = open_run(run)
    with pytest.warns(equidp.DataWarning):
        expected = outputs_of(kept, kept.inputs(tmp_path / "table.csv"))[:, 0]
    assert np.allclose(elsewhere(tmp_path / "out", BY_SKOPS), expected, rtol=1e-6)


@pytest.mark.soak
def test_a_pipeline_of_few_rows_of_numbers_takes_the_constant_input_as_an_intercept(tmp_path):
    pytest.importorskip("skops")
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(300, 6))).add_prefix("x")
    table["group"], table["y"] = ["A", "B"] * 150, np.where(table["x0"] > 0, "yes", "no")
    table.to_csv(tmp_path / "people.csv", index=False)
    recipe = Recipe(target="y", group=("group",), missing="refuse")
    run = run_on(tmp_path / "run", str(tmp_path / "people.csv"), recipe, encoding="cut")
    table.drop(columns="y").to_csv(tmp_path / "table.csv", index=False)
    equidp.export_run(run, "skops", tmp_path / "out", include_sensitive=True)
    kept = open_run(run)
    assert kept.encoder.constant > 0
    expected = torch.softmax(kept.run.model(kept.inputs(tmp_path / "table.csv")), 1).detach().numpy()
    assert np.allclose(elsewhere(tmp_path / "out", BY_SKOPS), expected, atol=1e-5)


@pytest.mark.soak
def test_the_card_has_front_matter_for_programs_and_the_whole_card(numbers, tmp_path):
    equidp.export_run(numbers, "hf-card", tmp_path / "out")
    text, kept = (tmp_path / "out" / "README.md").read_text(), open_run(numbers)
    _, front, card = text.split("---\n", 2)
    assert card == "\n" + (numbers / layout.CARD).read_text()
    facts = yaml.safe_load(front)
    assert (facts["pipeline_tag"], facts["library_name"]) == ("tabular-classification", "equidp")
    stated = facts["differential_privacy"]
    assert stated["delta"] == kept.run.delta
    assert 0 <= stated["epsilon"] - kept.run.epsilon() < 1e-3
    assert (stated["unit"], stated["accountant"]) == ("example", "rdp")
    assert stated["steps"] == sum(steps for _, steps in kept.run.entries)


@pytest.mark.soak
def test_the_card_of_images_and_of_a_run_without_privacy(images, tmp_path):
    kept = open_run(images)
    export = ExportedRun.of(kept, include_sensitive=False)
    FORMATS["hf-card"].write(export, tmp_path / "README.md")
    assert yaml.safe_load((tmp_path / "README.md").read_text().split("---\n")[1])["pipeline_tag"] == (
        "image-classification"
    )
    without = replace(export, kept=replace(kept, run=replace(kept.run, entries=open_entries())))
    FORMATS["hf-card"].write(without, tmp_path / "README.md")
    front = yaml.safe_load((tmp_path / "README.md").read_text().split("---\n")[1])
    assert "differential-privacy" not in front["tags"]
    assert front["differential_privacy"]["guarantee"] == "none"
    with raises_field(SettingError, "to"):
        FORMATS["registry"].write(without, tmp_path / "entry.yaml")


def open_entries():
    return ((equidp.kernel.ledger.StepEvent(0.1, 0.0), 5),)


REGISTRY = {
    "": {"url_slug", "status", "tier", "deployment"},
    "basic": {
        *("name", "data_curators", "description", "intended_use"),
        *("data_product_type", "data_product_region", "publication_date"),
    },
    "dp_variant": {"variant_name", "data_domain", "unprotected_quantities"},
    "privacy_loss": {
        *("privacy_unit", "privacy_unit_details", "privacy_parameters", "privacy_parameters_details"),
    },
    "deployment_model": {"model_name", "release_type", "data_source_type", "access_type"},
    "accounting": {"post_processing", "composition"},
    "implementation": {"preprocessing_and_hyperparameter_tuning", "mechanisms"},
    "administrative": {"notes", "registry_authors"},
}
"""Keys of the registry's schema that an entry has."""


@pytest.mark.soak
def test_the_entry_for_the_registry_has_the_keys_of_its_schema(finished, tmp_path):
    equidp.export_run(finished.folder, "registry", tmp_path / "out")
    text = (tmp_path / "out" / "registry_entry.yaml").read_text()
    entry = yaml.safe_load(text)
    parts = entry["deployment"]
    assert set(entry) == REGISTRY[""]
    assert {name: set(part) for name, part in parts.items()} == {
        name: keys for name, keys in REGISTRY.items() if name
    }
    assert entry["status"] == "Draft"
    assert parts["basic"]["data_product_type"] == "Machine learning model"
    assert parts["dp_variant"]["variant_name"] == "Approximate DP"
    assert "lists of categories of job" in parts["dp_variant"]["unprotected_quantities"]
    stated = parts["privacy_loss"]["privacy_parameters"]
    assert stated["delta"] == finished.run.delta
    assert 0 <= stated["epsilon"] - finished.run.epsilon() < 1e-3
    styles = {token.style for token in yaml.scan(text) if hasattr(token, "style")}
    assert styles <= {None, "|", '"', "'"}, "the registry refuses folded texts"


@pytest.mark.soak
def test_pages_name_each_mechanism_and_list_what_is_uncovered_alone(finished, tmp_path):
    releases = (PreprocessingRelease(0.2), CountsRelease(0.1))
    recipe = Recipe(target="income", group=("sex",), group_as_input=True)
    folder = run_on(tmp_path / "other", str(finished.table), recipe, releases=releases, recalibration=0.1)
    equidp.export_run(folder, ("registry", "hf-card"), tmp_path / "out")
    entry = yaml.safe_load((tmp_path / "out" / "registry_entry.yaml").read_text())["deployment"]
    card = (tmp_path / "out" / "README.md").read_text().split("---")[1]
    guarantee = yaml.safe_load(card)["differential_privacy"]
    run = open_run(folder).run
    events = [str(event) for event, _ in run.entries]
    assert len(events) == 4
    assert [each["event"] for each in guarantee["queries"]] == events
    named = {each["name"]: each["mechanism"] for each in guarantee["queries"]}
    assert named == {
        **dict.fromkeys(("preprocessing", "class counts", "recalibration"), "Gaussian mechanism"),
        "gradient": "Poisson-subsampled Gaussian mechanism",
    }
    stated = entry["implementation"]["mechanisms"].splitlines()
    for event, each in zip(events, guarantee["queries"], strict=True):
        assert sum(each["of"] in line and event in line for line in stated) == 1
    assert len(guarantee["notes"]) == 2
    assert guarantee["not_covered"] == []
    assert len(entry["dp_variant"]["unprotected_quantities"].splitlines()) == 1


@pytest.mark.soak
def test_the_label_states_the_guarantee_its_releases_and_what_it_does_not_cover(finished, tmp_path):
    recipe = Recipe(target="income", group=("sex",), bounds=(("age", 0.0, 100.0),))
    budgets = {"epsilon_by_group": {"F": 1.0, "*": 3.0}, "recalibration": 0.1, "training_loss": 0.1}
    folder = run_on(tmp_path / "other", str(finished.table), recipe, epsilon=3.0, epochs=2, **budgets)
    equidp.export_run(folder, "label", tmp_path / "out")
    label, kept = (tmp_path / "out" / "privacy_label.html").read_text(), open_run(folder)
    stated = guarantee_sentences(kept.run)  # warnings on weights, delta and groups too
    assert len(stated) > 3
    assert all(sentence in html.unescape(label) for sentence in stated)
    assert f"({shown_epsilon(kept.run.epsilon()):g}, {kept.run.delta:g})-differentially private" in label
    by_group = kept.run.epsilon_by_group()
    assert f"F {upper(by_group['F'])}, M {upper(by_group['M'])}" in label
    losses = sum(count for event, count in kept.run.entries if "loss" in getattr(event, "name", ""))
    assert f"Gaussian mechanism, {losses} releases." in label
    assert kept.facts["kernel_sha256"] in label
    assert layout.file_digest(folder / layout.MODEL) in label
    assert all(note in label for note in uncovered_notes(kept.facts["notes"]))
    without = replace(kept, run=replace(kept.run, entries=open_entries()))
    FORMATS["label"].write(ExportedRun.of(without, include_sensitive=False), tmp_path / "none.html")
    found = (tmp_path / "none.html").read_text()
    assert "No guarantee" in found
    assert "Epsilon" not in found


def test_steps_without_sampling_are_said_to_be_without():
    step, release = StepEvent(1.0, 2.0), ReleaseEvent(1.0, 3.0, name="counts of groups")
    run = equidp.Run(torch.nn.Linear(1, 1), ((step, 1), (release, 1)), 1e-5, torch.nn.CrossEntropyLoss())
    stated = mechanisms(run)
    assert [each.mechanism for each in stated] == ["Gaussian mechanism"] * 2
    assert "counts of groups" in stated[1].query


@pytest.mark.soak
def test_an_encoder_that_epsilon_does_not_cover_is_left_out_unless_it_is_asked_for(finished, tmp_path):
    equidp.export_run(finished.folder, "safetensors", tmp_path / "out")
    assert "clerk" not in (tmp_path / "out" / "model.json").read_text()
    assert "encoder" not in json.loads((tmp_path / "out" / "model.json").read_text())
    export = equidp.export_run(finished.folder, "safetensors", tmp_path / "all", include_sensitive=True)
    assert export.is_sensitive
    columns = json.loads((tmp_path / "all" / "model.json").read_text())["encoder"]["columns"]
    assert columns[1]["values"] == ["clerk", "cook"]


@pytest.mark.soak
def test_an_encoder_of_public_bounds_or_of_private_preprocessing_is_exported(numbers, finished, tmp_path):
    export = equidp.export_run(numbers, "safetensors", tmp_path / "bounds")
    assert export.encoder is not None
    assert not export.is_sensitive
    recipe = Recipe(target="income", group=("sex",), drop=("job",))
    run = run_on(tmp_path / "other", str(finished.table), recipe, releases=[PreprocessingRelease(0.1)])
    export = equidp.export_run(run, "safetensors", tmp_path / "private")
    assert export.encoder is not None
    assert not export.is_sensitive


@pytest.mark.soak
def test_exports_hold_no_path_fingerprint_or_row(finished, tmp_path):
    kept = open_run(finished.folder)
    secrets = (
        kept.facts["sensitive_data_sha256"],
        str(finished.table.parent),
        str(tmp_path),
        *(str(path) for path in sys.path if path),
    )
    names = ["safetensors", "torch-export", "hf-card", "label", "registry"]
    equidp.export_run(finished.folder, names, tmp_path / "out")
    for path in (tmp_path / "out").iterdir():
        found = [each for each in secrets if each.encode() in path.read_bytes()]
        assert not found, path.name


def test_shareable_files_of_a_run_are_exported_alike(finished, tmp_path):
    part = tmp_path / "part"
    part.mkdir()
    for name, (kind, _) in layout.files(open_run(finished.folder).config).items():
        if kind == layout.SHAREABLE and (finished.folder / name).exists():
            (part / name).write_bytes((finished.folder / name).read_bytes())
    for place, out in ((finished.folder, "whole"), (part, "shared")):
        equidp.export_run(place, ["safetensors", "hf-card", "label"], tmp_path / out)
    for read in (load_safetensors, lambda folder: (folder / "README.md").read_text()):
        assert read(tmp_path / "whole") == read(tmp_path / "shared")


def load_safetensors(folder) -> tuple[dict, dict]:
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return {name: file.get_tensor(name).tolist() for name in sorted(file.keys())}, file.metadata()


class Turning(torch.nn.Module):
    """A model whose path depends on the values."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, inputs):
        return self.linear(inputs) if inputs.sum() > 0 else -self.linear(inputs)


@pytest.mark.soak
def test_a_graph_that_depends_on_values_is_refused(numbers, tmp_path, capfd):
    export = ExportedRun.of(open_run(numbers), include_sensitive=False)
    turning = replace(export, kept=replace(export.kept, run=replace(export.kept.run, model=Turning().eval())))
    with raises_field(ModelError, "model"):
        write_torch_export(turning, tmp_path / "model.pt2")
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.soak
def test_what_scikit_learn_lacks_is_refused(numbers, images, finished, tmp_path):
    pytest.importorskip("skops")
    export = ExportedRun.of(open_run(numbers), include_sensitive=False)
    deep = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3)).eval()
    deep = replace(export, kept=replace(export.kept, run=replace(export.kept.run, model=deep)))
    with raises_field(ModelError, "model"):
        write_skops(deep, tmp_path / "model.skops")
    with raises_field(SettingError, "to"):
        write_skops(ExportedRun.of(open_run(images), include_sensitive=False), tmp_path / "model.skops")
    with raises_field(SettingError, "include_sensitive"):
        write_skops(ExportedRun.of(open_run(finished.folder), include_sensitive=False), tmp_path / "m.skops")
    assert not [*tmp_path.glob("*.skops")]


def test_an_export_is_whole_or_absent(numbers, tmp_path, monkeypatch):
    for given, field in ((["onyx"], "format"), ([], "to")):
        with raises_field(SettingError, field):
            equidp.export_run(numbers, given, tmp_path / "out")
    with raises_field(DataError, "folder"):
        equidp.export_run(tmp_path / "nothing", "safetensors", tmp_path / "out")

    def fail(export, path):
        path.write_text("half")
        raise ModelError("no.", field="model")

    monkeypatch.setitem(FORMATS, "registry", replace(FORMATS["registry"], write=fail))
    with raises_field(ModelError, "model"):
        equidp.export_run(numbers, ["safetensors", "registry"], tmp_path / "out")
    monkeypatch.setitem(sys.modules, "yaml", None)
    with raises_field(MissingExtraError, "export"):
        equidp.export_run(numbers, "registry", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "out").mkdir()
    with raises_field(SettingError, "path"):
        equidp.export_run(numbers, "safetensors", tmp_path / "out")


def test_unfinished_diverged_and_damaged_runs_are_refused(begun, finished, tmp_path, monkeypatch):
    with raises_field(DataError, "folder"):
        equidp.export_run(begun, "safetensors", tmp_path / "out")
    diverged = open_run(finished.folder)
    next(diverged.run.model.parameters()).data.fill_(torch.nan)
    with monkeypatch.context() as patch, raises_field(DataError, "model"):
        patch.setattr("equidp.runs.exports.export.open_run", lambda folder: diverged)
        equidp.export_run(finished.folder, "safetensors", tmp_path / "out")
    (finished.folder / layout.MODEL).write_bytes(b"damaged")
    with raises_field(DataError, layout.MODEL):
        equidp.export_run(finished.folder, "safetensors", tmp_path / "out")
    assert not (tmp_path / "out").exists()
