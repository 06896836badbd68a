"""Recipes of agents: checks before training, and training no longer than necessary."""

import json
from pathlib import Path

import pytest

from offline_rl.generation import recipes
from offline_rl.generation.options import GenerateOptions
from offline_rl.runs.options import TrainOptions
from offline_rl.utils.errors import UserError
from offline_rl.utils.paths import share

AGENT = "{task: %s, num_env_steps: 9, family: f, medium_return: 1, medium_after: 1}"
SCRIPT = "{controller: push, suite: push, sets: {%s}, environments: {%s}}"


@pytest.mark.parametrize("name", sorted(p.stem for p in share("configs").glob("recipe/*.yaml")))
def test_all_recipes_of_configs_load(name: str) -> None:
    recipes.load_recipe(name)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("task: {", "not readable as YAML"),
        ("7", "own.yaml"),
        ("task: gym/hopper-medium", "is missing"),
        (AGENT % "hopper", "unknown task 'hopper'"),
        (AGENT % "[]", "task=.*expected text"),
        (AGENT.replace("}", ", rows: 0}") % "gym/hopper-medium", "rows=0"),
        (AGENT.replace("}", ", environment: hop}") % "gym/hopper-medium", "unknown task 'hop'"),
        (SCRIPT % ("standard-expert: high", ""), "sets.standard-expert='high': expected a number"),
        (SCRIPT.replace("push", "pusj", 1) % ("a: 1", ""), "unknown controller 'pusj'"),
        (SCRIPT % ("none-such: 1", ""), "unknown task 'push/none-such'"),
        (SCRIPT % ("standard-expert: 1", "standard-expert: nowhere"), "unknown task 'nowhere'"),
    ],
)
def test_a_damaged_recipe_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, fault: str
) -> None:
    monkeypatch.setattr(recipes, "share", lambda _: tmp_path)
    path = tmp_path / "recipe" / "own.yaml"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(UserError, match=fault) as error:
        recipes.generate(recipe="own", out=str(tmp_path / "out"))
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_the_runs_of_agents_are_not_in_the_default_folder_of_runs() -> None:
    assert GenerateOptions(recipe="hopper").runs != TrainOptions.out


SMALL = """task: env:Pendulum-v1
family: pendulum
medium_return: -1.0e+9
medium_after: 200
num_env_steps: 400
rows: 450
utd: 0.1
precision: fp32
compile: false
eval_every: 100
eval_episodes: 1
"""


def test_an_agent_trains_no_longer_than_the_requested_sets_need(tmp_path: Path) -> None:
    (tmp_path / "a small one.yaml").write_text(SMALL)

    def make(where: str, *qualities: str) -> dict[str, bytes]:
        out, runs = tmp_path / where / "sets", tmp_path / where / "runs"
        keys = {"recipe": str(tmp_path / "a small one.yaml"), "out": str(out), "runs": str(runs)}
        recipes.generate(**keys, qualities=list(qualities), show=False)
        return {path.name: path.read_bytes() for path in out.glob("*medium-replay*")}

    def evaluations(where: str) -> list[int]:
        rows = (tmp_path / where).rglob("evaluations.jsonl")
        return [json.loads(line)["env_steps"] for line in next(rows).read_text().splitlines()]

    early = make("early", "medium-replay")
    assert evaluations("early") == [0, 100, 200]
    assert len(early) == 2  # the set and its card
    assert make("early", "medium-replay", "expert") == early
    assert evaluations("early") == [0, 100, 200, 300, 400]
    assert make("together", "medium-replay", "expert") == early  # equal bytes
    experts = [
        (tmp_path / where / "sets" / "pendulum-expert.hdf5").read_bytes()
        for where in ("early", "together")
    ]
    assert experts[0] == experts[1]
