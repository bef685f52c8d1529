"""`skylark`: the table of contents of the command line.

skylark namesrv …        a role: plain argparse, since servers should be there at once
skylark produce …        a verb on messages, the same way
skylark config explain … a noun and a verb: typer, built only when asked for
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from .. import __version__
from . import exits

# Command to module; each module has main(argv, program=...) and returns an exit code.
ROLES = {
    "up": ("skylark.cli.up", "Run a name server and brokers in one process until SIGTERM."),
    "namesrv": ("skylark.cli.namesrv", "Run a name server until SIGTERM."),
    "broker": ("skylark.cli.broker", "Run a broker until SIGTERM."),
}
# The same for what works on messages: it ends by itself, and should be there at once as well.
VERBS = {
    "produce": ("skylark.cli.produce", "Send messages to a topic."),
    "consume": ("skylark.cli.consume", "Show the messages of a topic."),
    "prove": ("skylark.cli.prove", "Break a cluster on purpose, and see what its promises hold."),
}
# Noun to module; each module has a typer app of its verbs.
NOUNS = {
    "cluster": "skylark.cli.cluster",
    "topic": "skylark.cli.topic",
    "group": "skylark.cli.group",
    "message": "skylark.cli.message",
    "dlq": "skylark.cli.dlq",
    "filter": "skylark.cli.filter",
    "transaction": "skylark.cli.transaction",
    "config": "skylark.cli.config",
    "store": "skylark.cli.store",
    "schedule": "skylark.cli.schedule",
    "pipeline": "skylark.cli.pipeline",
}
# Command to module; each module has a function `command`.
COMMANDS = {"lag": "skylark.cli.lag", "doctor": "skylark.cli.doctor"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] and arguments[0] in {**ROLES, **VERBS}:
        module, _ = {**ROLES, **VERBS}[arguments[0]]
        collecting = gc.isenabled()
        if arguments[0] in ROLES:
            gc.disable()  # Nothing becomes garbage while modules load; a server enables it.
        try:
            code: int = importlib.import_module(module).main(
                arguments[1:], program=f"skylark {arguments[0]}"
            )
        finally:
            if collecting:
                gc.enable()  # A program that called us goes on as it was.
        return code
    if arguments in (["--version"], ["version"]):
        print(f"skylark {__version__}")
        return exits.DONE
    return _run_app(arguments)


def build_app() -> Any:
    """Build the typer app that has every command."""
    import typer

    from . import render

    app = typer.Typer(
        name="skylark",
        help="SkylarkMQ: a message broker that RocketMQ clients can use unchanged.",
        epilog="Exit codes: 0 done, 1 failed, 2 wrong use or configuration, 3 not reachable.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name, (_, summary) in {**ROLES, **VERBS}.items():
        # main() has taken these already; they are here to be listed and suggested.
        app.command(name, help=summary)(_listed)

    @app.command("version")
    def version(json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
        """Print the version."""
        render.show_record({"version": __version__}, {"version": "skylark"}, as_json=json)

    for name, module in COMMANDS.items():
        app.command(name)(importlib.import_module(module).command)
    for noun, module in NOUNS.items():
        app.add_typer(importlib.import_module(module).app, name=noun)
    return app


def _listed() -> None:
    raise AssertionError("a role or verb is dispatched before the app is built")


def _run_app(arguments: list[str]) -> int:
    try:
        result = build_app()(args=arguments, prog_name="skylark", standalone_mode=False)
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except BrokenPipeError:
        # The reader, such as head, has what it wanted; the rest of the buffer must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.READER_GONE
    except Exception as error:
        # typer's own errors say what was wrong with the words; its base class moved between
        # versions, its method stayed.
        if hasattr(error, "format_message"):
            _complain_of_words(error, str(error.format_message()))
            return exits.WRONG_USE
        known = exits.failure(error)
        if known is None:
            raise
        exits.complain("skylark", known[0])
        return known[1]
    return result if isinstance(result, int) else exits.DONE


def _complain_of_words(error: Exception, message: str) -> None:
    if message.startswith("Usage:"):  # No command at all: typer's message is the whole help.
        print(message, file=sys.stderr)
        return
    context = getattr(error, "ctx", None)
    command = "skylark" if context is None else context.command_path
    message = " ".join(message.split()).rstrip(".")
    exits.complain("skylark", message if message.endswith("?") else f"{message}; see {command} -h")


if __name__ == "__main__":
    raise SystemExit(main())
