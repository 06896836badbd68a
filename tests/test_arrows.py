"""The plan of the house: imports go one way, light doors stay light, one fact has one place."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from docs.generate.algorithms import code_lines
from envs import cards
from offline_rl.algorithms.common import registry
from offline_rl.generation.recipes import Agent, Recipe
from offline_rl.generation.scripted import Script
from offline_rl.utils.options import build

ROOT = Path(__file__).resolve().parents[1]
ARROWS = {
    "policies": set(),
    "envs": set(),
    "real_robot": {"policies", "offline_rl.utils"},
    "offline_rl": {"policies", "envs", "real_robot.recording"},  # whose files are data, too
}
FLOORS = [  # of offline_rl: a package imports from those before its own floor, and from itself
    {"utils"},
    {"data"},
    {"replay"},
    {"algorithms"},
    {"engine"},
    {"online"},
    {"evaluation"},
    {"training"},
    {"reporting", "generation"},
    {"suite"},
    {"cli"},
]
ALGORITHMS = registry.algorithm_names()
CONFIGS = {f.stem: f for f in (ROOT / "configs" / "algorithm").glob("*.yaml")}
RECIPES = sorted((ROOT / "configs" / "recipe").glob("*.yaml"))


def imports(tree: ast.AST, *, everywhere: bool) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(module, imported names); not everywhere: without functions and TYPE_CHECKING blocks."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            yield node.module or "", tuple(alias.name for alias in node.names)
        elif everywhere or not (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        ):
            yield from imports(node, everywhere=everywhere)


def python(code: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Runs `code` in `folder` with this clone's packages on the path, after the folder itself."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True
    )


def loaded_by(statement: str) -> set[str]:
    """Top-level packages outside the standard library that a new interpreter loads for it."""
    found = python(
        f"import sys; before = set(sys.modules); {statement}; "
        "print(*{m.split('.')[0] for m in set(sys.modules) - before})"
    )
    assert found.returncode == 0, found.stderr
    return set(found.stdout.split()) - sys.stdlib_module_names


@pytest.mark.parametrize("package", ARROWS)
def test_imports_follow_the_arrows(package: str) -> None:
    for file in (ROOT / package).rglob("*.py"):
        for module, _ in imports(ast.parse(file.read_text()), everywhere=True):
            name = module.split(".")[0]
            allowed = ARROWS[package] | {package}
            room = ".".join(module.split(".")[:2])
            assert name not in ARROWS or name in allowed or room in allowed, (
                f"{file} imports {module}"
            )


def test_imports_inside_offline_rl_go_down_its_floors() -> None:
    floor = {name: k for k, names in enumerate(FLOORS) for name in names}
    here = ROOT / "offline_rl"
    assert floor.keys() == {p.name for p in here.iterdir() if (p / "__init__.py").is_file()}
    for file in here.rglob("*.py"):
        own = file.relative_to(here).parts[0]
        for module, _ in imports(ast.parse(file.read_text()), everywhere=True):
            _, _, rest = module.partition("offline_rl.")
            name = rest.split(".")[0]
            if own in floor and name in floor and name != own:
                assert floor[name] < floor[own], f"{file} imports {module}"


@pytest.mark.parametrize("package", ARROWS)
def test_a_package_is_a_room_and_its_door_only_hands_names_on(package: str) -> None:
    """At most a dozen files beside the algorithms, each of which is one; see CONTRIBUTING."""
    for door in (ROOT / package).rglob("__init__.py"):
        files = [f for f in door.parent.glob("*.py") if f != door]
        assert len(files) <= 12 or door.parent.name == "algorithms", f"{door.parent}: {len(files)}"
        if door.parent in (ROOT / "offline_rl", ROOT / "real_robot", ROOT / "policies"):
            continue  # these load names when they are asked for, or look for false neighbors
        for node in ast.parse(door.read_text()).body:
            names = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
            text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            assert names or text or isinstance(node, ast.ImportFrom), f"{door}: {ast.unparse(node)}"


def test_no_module_imports_itself_by_a_detour() -> None:
    files = {
        ".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): f
        for package in ARROWS
        for f in (ROOT / package).rglob("*.py")
    }
    graph = {}
    for module, file in files.items():
        found = imports(ast.parse(file.read_text()), everywhere=False)
        wanted = {
            f"{m}.{n}" if f"{m}.{n}" in files else m for m, names in found for n in names or "-"
        }
        graph[module] = {name for name in wanted if name in files}
    TopologicalSorter(graph).prepare()  # raises CycleError, naming the modules


def test_policies_need_numpy_and_safetensors_only() -> None:
    loaded = loaded_by("import policies, policies.bundle, policies.spec, policies.policy")
    assert loaded <= {"policies", "numpy", "safetensors"}


def test_the_robots_part_of_the_suite_loads_no_torch() -> None:
    modules = [f.stem for f in (ROOT / "offline_rl" / "utils").glob("[a-z]*.py")]
    loaded = loaded_by("import " + ", ".join(f"offline_rl.utils.{name}" for name in modules))
    assert not loaded & {"torch", "gymnasium", "mujoco", "h5py", "hydra"}


def test_envs_know_nothing_of_learning() -> None:
    assert not loaded_by("import envs; envs.task('hopper-medium-v2')") & {
        "torch",
        "policies",
        "offline_rl",
    }


def test_the_command_line_starts_without_torch() -> None:
    assert "torch" not in loaded_by("import offline_rl.cli.main, offline_rl.cli.verbs")


def common_names(folder: Path) -> Path:
    """A folder with packages of the names of ours, and of our folders of data."""
    for name in ("envs", "policies", "real_robot", "configs", "datasets", "tests"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("OWN = 1\n")
    return folder


def test_packages_of_the_same_names_beside_the_script_do_not_stand_in_for_ours(
    tmp_path: Path,
) -> None:
    code = "import offline_rl, envs, datasets; print(envs.task('none').name, datasets.OWN)"
    done = python(code, common_names(tmp_path))
    assert done.stdout == "none 1\n"
    remedy = f"Rename your folder {tmp_path}/envs to import it."
    assert f"offline_rl uses its own package 'envs'. {remedy}" in done.stderr


@pytest.mark.parametrize("code", ["from envs import mine", "import policies.mine.part"])
def test_a_module_in_a_folder_that_our_package_hides_is_named_with_the_remedy(
    code: str, tmp_path: Path
) -> None:
    """The folders have no __init__.py, so that ours are found instead."""
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "mine.py").write_text("")
    (tmp_path / "policies" / "mine").mkdir(parents=True)
    (tmp_path / "policies" / "mine" / "part.py").write_text("")
    done = python(f"import offline_rl, envs.vector\n{code}", tmp_path)
    name = "envs" if "envs" in code else "policies"
    words = f"offline_rl uses its own package '{name}'. Rename your folder {tmp_path}/{name} to"
    assert done.stderr.splitlines()[-1] == f"ImportError: {words} import it."


def test_a_package_that_is_imported_in_place_of_ours_is_named_with_the_remedy(
    tmp_path: Path,
) -> None:
    done = python("import envs, offline_rl", common_names(tmp_path))
    words = f"needs its own package 'envs', and {tmp_path}/envs is imported under that name."
    assert done.stderr.splitlines()[-1].startswith("ImportError: offline_rl " + words)


@pytest.mark.parametrize("folder", ["datasets", "configs"])
def test_data_folders_hold_no_python(folder: str) -> None:
    assert not list((ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_is_a_page_with_a_config_and_a_test(name: str) -> None:
    page = ROOT / "offline_rl" / "algorithms" / f"{name}.py"
    assert code_lines(page) <= 120
    for file in (f"configs/algorithm/{name}.yaml", f"tests/offline_rl/algorithms/test_{name}.py"):
        assert (ROOT / file).is_file(), f"CONTRIBUTING asks for {file}"


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_says_only_what_differs(name: str) -> None:
    assert name in ALGORITHMS
    assert registry.algorithm_yaml(name).keys() <= {"tuned", "online", "parity"}
    cls = registry.algorithm_class(name)
    for pattern, row in (registry.algorithm_yaml(name).get("tuned") or {}).items():
        assert_differs(cls.Config, row, f"{name}.yaml, {pattern}")
    for pattern, row in (registry.algorithm_yaml(name).get("online") or {}).items():
        task = registry.alternatives(pattern)[0].replace("*", "any")
        offline = vars(registry.algorithm_config(name, task, {})[0])
        before = offline | vars(cls.Online()) | dict(cls.Online.changes)
        assert not {k for k, v in row.items() if before[k] == v}, f"{name}.yaml, online {pattern}"


def test_our_own_sets_take_what_d4rls_sets_of_the_same_name_take() -> None:
    ours = {card: f"{card[4:]}-v2" for card in cards() if card.startswith("gym/")}
    mazes = {maze: f"maze2d-{maze}-v1" for maze in ("umaze", "medium", "large")}
    mazes["umaze-200k"] = mazes["umaze"]
    ours |= {f"gym/pointmaze-{maze}": card for maze, card in mazes.items()}
    ours |= {f"d4rl:{card}": card for card, told in cards().items() if told.suite == "d4rl"}
    assert all(theirs in cards() for theirs in ours.values() if "binary" not in theirs)
    for name in ALGORITHMS:
        for card, theirs in ours.items():
            own = (name, card[:13]) == ("decision_transformer", "gym/pointmaze")  # 280 is far off
            assert own or registry.tuned(name, card) == registry.tuned(name, theirs), (name, card)
    assert registry.tuned("iql", "gym/antmaze-umaze")[1]["expectile"] == 0.9
    assert registry.tuned("iql", "neorl2/antmaze-umaze")[0] == "neorl2/*"


@pytest.mark.parametrize(
    "name", [n for n in ALGORITHMS if registry.algorithm_class(n).follows_card]
)
def test_in_the_kitchen_finishing_pays(name: str) -> None:
    """Its rewards count what is done; finishing terminates, and staying at three goes on."""
    cfg, _ = registry.algorithm_config(name, "kitchen-mixed-v0", {})
    assert 4 * cfg.reward_scale + cfg.reward_shift == 0
    assert registry.algorithm_config("decision_transformer", "kitchen-mixed-v0", {})[0].counted


def test_what_a_card_says_of_preprocessing_is_said_once_and_yields_to_the_command_line() -> None:
    assert registry.prepared("iql", "d4rl:kitchen-complete-v0") == {"reward_shift": -4.0}
    assert registry.prepared("bc", "kitchen-complete-v0") == {}
    own, _ = registry.algorithm_config("iql", "kitchen-mixed-v0", {"reward_shift": -1.0})
    assert own.reward_shift == -1.0
    tables = ROOT.glob("configs/algorithm/*.yaml")
    assert not [path.name for path in tables if "reward_shift: -4" in path.read_text()]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_says_only_what_differs(path: Path) -> None:
    values = OmegaConf.to_container(OmegaConf.load(path))
    assert_differs(Script if "controller" in values else Recipe, values, path.name)
    assert_differs(Agent, values.get("agent", {"task": "any", "num_env_steps": 1}), path.name)


def assert_differs(cls: type, values: dict[str, object], where: str) -> None:
    """Every value is of a field (build refuses others) and is not its default."""
    built = build(cls, values)
    for field in fields(cls):
        if field.name in values:
            value = getattr(built, field.name)
            assert value != field.default, f"{where}: {field.name}={value} is the default"
