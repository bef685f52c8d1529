"""The command line: `skylark` with nouns and verbs, and RocketMQ's own commands.

main.py says which command lives where. Starting a server imports neither typer nor rich.
"""
