"""The structure of the packages: imports go one way, light imports stay light, no fact is twice."""

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
from offline_rl.generation.behavior import Behavior
from offline_rl.generation.ogbench import Collection, OGBenchSet
from offline_rl.generation.recipes import Agent, Recipe
from offline_rl.generation.scripted import Script
from offline_rl.utils.options import build

ROOT = Path(__file__).resolve().parents[1]
ARROWS = {
    "policies": set(),
    "envs": set(),
    "real_robot": {"policies", "offline_rl.utils"},
    "offline_rl": {"policies", "envs", "real_robot.recording"},  # recordings are a data format
}
LAYERS = [  # of offline_rl: a package imports from itself and from the layers above it in this list
    {"utils"},
    {"data"},
    {"replay"},
    {"algorithms"},
    {"engine"},
    {"online"},
    {"evaluation"},
    {"runs"},
    {"training"},
    {"reporting", "generation"},
    {"suite", "search"},
    {"cli"},
]
ALGORITHMS = registry.algorithm_names()
CONFIGS = {f.stem: f for f in (ROOT / "configs" / "algorithm").glob("*.yaml")}
RECIPES = sorted((ROOT / "configs" / "recipe").glob("*.yaml"))


def imports(tree: ast.AST) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (module, imported names) of all imports, those inside functions included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            yield node.module or "", tuple(alias.name for alias in node.names)


def python(code: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run `code` in `folder`, with this repository on the path after the folder itself."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True
    )


def packages_loaded_by(statement: str) -> set[str]:
    """Return the top-level packages, without the standard library, that `statement` loads."""
    process = python(
        f"import sys; before = set(sys.modules); {statement}; "
        "print(*{m.split('.')[0] for m in set(sys.modules) - before})"
    )
    assert process.returncode == 0, process.stderr
    return set(process.stdout.split()) - sys.stdlib_module_names


@pytest.mark.parametrize("package", ARROWS)
def test_imports_follow_the_arrows(package: str) -> None:
    for file in (ROOT / package).rglob("*.py"):
        for module, _ in imports(ast.parse(file.read_text())):
            name = module.split(".")[0]
            allowed = ARROWS[package] | {package}
            subpackage = ".".join(module.split(".")[:2])
            assert name not in ARROWS or name in allowed or subpackage in allowed, (
                f"{file} imports {module}"
            )


def test_imports_inside_offline_rl_go_down_its_layers() -> None:
    layer = {name: k for k, names in enumerate(LAYERS) for name in names}
    folder = ROOT / "offline_rl"
    assert layer.keys() == {p.name for p in folder.iterdir() if (p / "__init__.py").is_file()}
    for file in folder.rglob("*.py"):
        importer = file.relative_to(folder).parts[0]
        for module, _ in imports(ast.parse(file.read_text())):
            _, _, rest = module.partition("offline_rl.")
            name = rest.split(".")[0]
            if importer in layer and name in layer and name != importer:
                assert layer[name] < layer[importer], f"{file} imports {module}"


@pytest.mark.parametrize("package", ARROWS)
def test_a_package_has_at_most_twelve_files_and_its_init_only_imports(package: str) -> None:
    """The folder of algorithms, with one file each, has more; see CONTRIBUTING."""
    for init in (ROOT / package).rglob("__init__.py"):
        files = [f for f in init.parent.glob("*.py") if f != init]
        assert len(files) <= 12 or init.parent.name == "algorithms", f"{init.parent}: {len(files)}"
        if init.parent in (ROOT / "offline_rl", ROOT / "real_robot", ROOT / "policies"):
            continue  # these import lazily, define `load`, or check for packages of the same name
        for node in ast.parse(init.read_text()).body:
            names = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
            text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            assert names or text or isinstance(node, ast.ImportFrom), f"{init}: {ast.unparse(node)}"


def test_no_module_imports_itself_through_others() -> None:
    """Imports inside functions count: such an import hides that a file holds two things."""
    files = {
        ".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): f
        for package in ARROWS
        for f in (ROOT / package).rglob("*.py")
    }
    graph = {}
    for module, file in files.items():
        imported = {
            f"{m}.{n}" if f"{m}.{n}" in files else m
            for m, names in imports(ast.parse(file.read_text()))
            for n in names or "-"
        }
        graph[module] = {name for name in imported if name in files}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules


def test_policies_need_numpy_and_safetensors_only() -> None:
    loaded = packages_loaded_by("import policies, policies.bundle, policies.spec, policies.policy")
    assert loaded <= {"policies", "numpy", "safetensors"}


def test_the_utilities_that_robots_use_load_no_torch() -> None:
    modules = [f.stem for f in (ROOT / "offline_rl" / "utils").glob("[a-z]*.py")]
    names = ", ".join(f"offline_rl.utils.{name}" for name in modules)
    loaded = packages_loaded_by(f"import {names}")
    assert not loaded & {"torch", "gymnasium", "mujoco", "h5py", "hydra"}


def test_envs_load_no_learning_code() -> None:
    assert not packages_loaded_by("import envs; envs.task('hopper-medium-v2')") & {
        "torch",
        "policies",
        "offline_rl",
    }


def test_the_command_line_starts_without_torch() -> None:
    assert "torch" not in packages_loaded_by("import offline_rl.cli.main, offline_rl.cli.verbs")


def make_packages_of_the_same_names(folder: Path) -> Path:
    """Fill `folder` with packages that have the names of our packages and data folders."""
    for name in ("envs", "policies", "real_robot", "configs", "datasets", "tests"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("OWN = 1\n")
    return folder


def test_packages_of_the_same_names_next_to_the_script_do_not_replace_ours(
    tmp_path: Path,
) -> None:
    code = "import offline_rl, envs, datasets; print(envs.task('none').name, datasets.OWN)"
    done = python(code, make_packages_of_the_same_names(tmp_path))
    assert done.stdout == "none 1\n"
    remedy = f"Rename your folder {tmp_path}/envs to import it."
    assert f"offline_rl uses its own package 'envs'. {remedy}" in done.stderr


@pytest.mark.parametrize("code", ["from envs import mine", "import policies.mine.part"])
def test_importing_a_module_that_our_package_hides_names_the_remedy(
    code: str, tmp_path: Path
) -> None:
    """The folders have no __init__.py, so that Python imports our packages instead."""
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "mine.py").write_text("")
    (tmp_path / "policies" / "mine").mkdir(parents=True)
    (tmp_path / "policies" / "mine" / "part.py").write_text("")
    done = python(f"import offline_rl, envs.vector\n{code}", tmp_path)
    name = "envs" if "envs" in code else "policies"
    words = f"offline_rl uses its own package '{name}'. Rename your folder {tmp_path}/{name} to"
    assert done.stderr.splitlines()[-1] == f"ImportError: {words} import it."


def test_a_package_imported_in_place_of_ours_is_named_with_the_remedy(
    tmp_path: Path,
) -> None:
    done = python("import envs, offline_rl", make_packages_of_the_same_names(tmp_path))
    words = f"needs its own package 'envs', and {tmp_path}/envs is already imported under this name"
    assert done.stderr.splitlines()[-1].startswith("ImportError: offline_rl " + words)


@pytest.mark.parametrize("folder", ["datasets", "configs"])
def test_data_folders_contain_no_python(folder: str) -> None:
    assert not list((ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_has_a_short_file_a_config_and_a_test(name: str) -> None:
    page = ROOT / "offline_rl" / "algorithms" / f"{name}.py"
    assert code_lines(page) <= 120
    for file in (f"configs/algorithm/{name}.yaml", f"tests/offline_rl/algorithms/test_{name}.py"):
        assert (ROOT / file).is_file(), f"CONTRIBUTING asks for {file}"


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_contains_no_defaults(name: str) -> None:
    assert name in ALGORITHMS
    assert registry.algorithm_yaml(name).keys() <= {"tuned", "online", "parity"}
    cls = registry.algorithm_class(name)
    for pattern, row in (registry.algorithm_yaml(name).get("tuned") or {}).items():
        assert_differs(cls.Config, row, f"{name}.yaml, {pattern}")
    for pattern, row in (registry.algorithm_yaml(name).get("online") or {}).items():
        task = registry.expand_braces(pattern)[0].replace("*", "any")
        offline = vars(registry.algorithm_config(name, task, {})[0])
        before = offline | vars(cls.Online()) | dict(cls.Online.config_changes)
        assert not {k for k, v in row.items() if before[k] == v}, f"{name}.yaml, online {pattern}"


def test_our_data_sets_have_the_tuned_options_of_the_d4rl_data_sets_of_the_same_name() -> None:
    ours = {card: f"{card[4:]}-v2" for card in cards() if card.startswith("gym/")}
    mazes = {maze: f"maze2d-{maze}-v1" for maze in ("umaze", "medium", "large")}
    mazes["umaze-200k"] = mazes["umaze-200k-no-velocity"] = mazes["umaze"]
    ours |= {f"gym/pointmaze-{maze}": card for maze, card in mazes.items()}
    ours |= {f"d4rl:{name}": name for name, card in cards().items() if card.suite == "d4rl"}
    assert all(theirs in cards() for theirs in ours.values() if "binary" not in theirs)
    for name in ALGORITHMS:
        for card, theirs in ours.items():
            if (name, card[:13]) == ("decision_transformer", "gym/pointmaze"):
                continue  # our episodes do not come near D4RL's target_return of 280
            assert registry.tuned(name, card) == registry.tuned(name, theirs), (name, card)
    assert registry.tuned("iql", "gym/antmaze-umaze")[1]["expectile"] == 0.9
    assert registry.tuned("iql", "neorl2/antmaze-umaze")[0] == "neorl2/*"


@pytest.mark.parametrize(
    "name", [n for n in ALGORITHMS if registry.algorithm_class(n).follows_card]
)
def test_in_the_kitchen_finishing_all_subtasks_has_the_highest_return(name: str) -> None:
    """The reward is the number of completed subtasks, and completing all four ends the episode.

    Without a shift, an episode that stays at three subtasks would have a higher return.
    """
    cfg, _ = registry.algorithm_config(name, "kitchen-mixed-v0", {})
    assert 4 * cfg.reward_scale + cfg.reward_shift == 0
    assert registry.algorithm_config("decision_transformer", "kitchen-mixed-v0", {})[0].counted


def test_the_preprocessing_of_a_card_is_stated_once_and_the_command_line_overrides_it() -> None:
    assert registry.card_preprocessing("iql", "d4rl:kitchen-complete-v0") == {"reward_shift": -4.0}
    assert registry.card_preprocessing("bc", "kitchen-complete-v0") == {}
    cfg, _ = registry.algorithm_config("iql", "kitchen-mixed-v0", {"reward_shift": -1.0})
    assert cfg.reward_shift == -1.0
    tables = ROOT.glob("configs/algorithm/*.yaml")
    assert not [path.name for path in tables if "reward_shift: -4" in path.read_text()]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_contains_no_defaults(path: Path) -> None:
    values = OmegaConf.to_container(OmegaConf.load(path))
    if "collector" in values:
        assert_differs(Collection, values, path.name)
        for name, size in values["sets"].items():
            assert_differs(OGBenchSet, size, f"{path.name}: {name}")
        return
    if "networks" in values:
        assert_differs(Behavior, values, path.name)
        return
    assert_differs(Script if "controller" in values else Recipe, values, path.name)
    assert_differs(Agent, values.get("agent", {"task": "any", "num_env_steps": 1}), path.name)


def assert_differs(cls: type, values: dict[str, object], where: str) -> None:
    """Assert that every value belongs to a field and is not its default."""
    built = build(cls, values)
    for field in fields(cls):
        if field.name in values:
            value = getattr(built, field.name)
            assert value != field.default, f"{where}: {field.name}={value} is the default"
