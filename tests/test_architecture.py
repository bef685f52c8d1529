"""The house in one table: which folder may import from which.

    layer        imports from, besides model, errors, clock and config
    see LAYERS

An import that points upward fails here, with the arrow in the message.
"""

import ast
import pathlib

import pytest

SOURCE = pathlib.Path(__file__).parent.parent / "src" / "skylark"

COMMON = {"model", "errors", "clock", "collector", "config", "lazy", "logs", "skylark"}
LAYERS = {
    "config": set(),
    "model": set(),
    "protocol": set(),
    "filter": set(),
    "sandbox": set(),
    "store": {"protocol"},
    "net": {"protocol"},
    "remote": {"net", "protocol"},
    "replication": {"store", "protocol"},
    "nameserver": {"store", "replication", "remote", "filter", "protocol"},
    "broker": {"store", "replication", "remote", "filter", "protocol", "sandbox"},
    "client": {"remote", "net", "filter", "protocol"},
    "sync": {"client"},
    "admin": {"client", "remote"},
    "compat": {"client", "sync", "remote", "protocol"},
    "sql": {"client", "sync", "protocol"},
    "console": {"admin", "client"},
    "spark": {"admin", "client", "remote", "filter", "protocol"},
    "prove": {"admin", "client", "remote", "protocol", "store", "net"},
    "cli": {
        "admin",
        "prove",
        "client",
        "nameserver",
        "broker",
        "store",
        "console",
        "spark",
        "sql",
        "net",
        "filter",
        "protocol",
    },
    "testing": None,  # Anything; only tests and examples import it.
}
# Files that know more than their folder: they build the parts and run them.
WIDER = {
    "__main__.py": {"cli"},
    "log_shipper.py": {"client"},
    "__init__.py": {"client", "remote"},
    "nameserver/app.py": {"net"},
    "nameserver/address_service.py": {"net"},
    "broker/app.py": {"net"},
    "broker/process.py": {"net"},
    "replication/links.py": {"net"},
    "replication/raft_links.py": {"net"},
    "replication/controller/app.py": {"net"},
}
# The state machines and codecs take time, chance, disk and network from outside.
DETERMINISTIC = {
    "model",
    "protocol",
    "filter",
    "nameserver",
    "store",
    "replication",
    "broker",
    "client",
}
FORBIDDEN_CALLS = {
    ("time", "time"), ("time", "monotonic"), ("time", "time_ns"), ("time", "monotonic_ns"),
    ("time", "sleep"), ("random", "random"), ("random", "randint"), ("random", "choice"),
    ("random", "shuffle"), ("random", "uniform"), ("datetime", "now"), ("datetime", "utcnow"),
    ("uuid", "uuid4"), ("os", "urandom"), ("asyncio", "sleep"), ("socket", "socket"),
}  # fmt: skip
OPEN_ALLOWED = {"store/files.py"}
BANNED_MODULES = {"pickle", "marshal", "shelve"}
BANNED_NAMES = {"eval", "exec"}
EXEC_ALLOWED = {"sandbox/child.py"}  # Users' predicates, in a process that can only compute.


def _modules() -> list[pathlib.Path]:
    return sorted(path for path in SOURCE.rglob("*.py"))


def _layer(path: pathlib.Path) -> str:
    relative = path.relative_to(SOURCE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def _imported_layers(path: pathlib.Path) -> set[str]:
    """The top folders of skylark that a module imports from, lazily or not."""
    parts = ("skylark", *path.relative_to(SOURCE).with_suffix("").parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            if node.level:
                base = parts[: len(parts) - node.level]
                target = (*base, *(node.module or "").split(".")) if node.module else base
            else:
                target = tuple((node.module or "").split("."))
            if target[:1] != ("skylark",):
                continue
            if len(target) > 1:
                found.add(target[1])
            else:
                found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                target = tuple(alias.name.split("."))
                if target[0] == "skylark":
                    found.add(target[1] if len(target) > 1 else "skylark")
    return found


@pytest.mark.parametrize("path", _modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_downward(path: pathlib.Path) -> None:
    layer = _layer(path)
    if layer not in LAYERS:
        allowed: set[str] | None = set()  # A top-level module stands below every folder.
    else:
        allowed = LAYERS[layer]
    if allowed is None:
        return
    allowed = allowed | COMMON | {layer} | WIDER.get(str(path.relative_to(SOURCE)), set())
    upward = sorted(_imported_layers(path) - allowed - {"__version__"})
    assert not upward, f"{layer} → {', '.join(upward)}: this arrow points the wrong way"


def test_every_folder_has_its_place_in_the_table() -> None:
    folders = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    assert folders <= set(LAYERS)


def test_product_code_does_not_import_the_test_kit() -> None:
    users = [p for p in _modules() if _layer(p) != "testing" and "testing" in _imported_layers(p)]
    assert not users


@pytest.mark.parametrize("path", _modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_time_chance_disk_and_network_come_from_outside(path: pathlib.Path) -> None:
    relative = str(path.relative_to(SOURCE))
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            call = (function.value.id, function.attr)
            if _layer(path) in DETERMINISTIC and call in FORBIDDEN_CALLS:
                found.append(f"line {node.lineno}: {'.'.join(call)}")
        if isinstance(function, ast.Name):
            is_disk = function.id == "open" and _layer(path) in DETERMINISTIC
            is_banned = function.id in BANNED_NAMES and relative not in EXEC_ALLOWED
            if is_banned or (is_disk and relative not in OPEN_ALLOWED):
                found.append(f"line {node.lineno}: {function.id}()")
    assert not found, f"{relative}: {found}"


@pytest.mark.parametrize("path", _modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_unpickles_what_it_is_sent(path: pathlib.Path) -> None:
    banned = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            banned |= {alias.name.split(".")[0] for alias in node.names} & BANNED_MODULES
        elif isinstance(node, ast.ImportFrom) and not node.level:
            banned |= {(node.module or "").split(".")[0]} & BANNED_MODULES
    assert not banned
