"""``mmgrpo check`` and ``mmgrpo data``: words in, one call of ``mmgrpo.api.data``, a page and an exit code out.

Imports stand inside the functions: reading this file loads neither torch nor pydantic.
"""

from __future__ import annotations

import argparse
import json
import sys


def at_least_one(text: str) -> int:
    """Read a count from the command line.

    Raises:
        ArgumentTypeError: It is no whole number, or below 1.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number, 1 or more, got {text!r}")
    return int(text)


def check_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``mmgrpo check``."""
    parser.add_argument("config", help="the YAML")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="override of a key")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if any row is refused")
    parser.add_argument(
        "--rows", type=at_least_one, metavar="N", help="look at the first N rows of each source; default: all"
    )
    parser.add_argument(
        "--threads", type=at_least_one, metavar="N", help="rows looked at side by side; default: one per CPU"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a page")


def check(arguments: argparse.Namespace) -> int:
    """Run ``mmgrpo check``."""
    from mmgrpo.api.data import check

    report = check(arguments.config, overrides=arguments.overrides, rows=arguments.rows, threads=arguments.threads)
    print(json.dumps(report.summary(), indent=2, ensure_ascii=False) if arguments.json else report.text())
    return 1 if arguments.strict and report.refused else 0


def data_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``mmgrpo data``."""
    told = "head: show the first prompts of a YAML; convert: write rows of any form as parquet with media inside"
    parser.add_argument("action", choices=["head", "convert"], help=told)
    told = "head: the YAML, then overrides; convert: data file or YAML, the parquet to write, then overrides"
    parser.add_argument("words", nargs="+", metavar="WORD", help=told)
    parser.add_argument("-n", type=at_least_one, default=5, metavar="N", help="head: how many rows (5)")
    parser.add_argument("--format", default="auto", metavar="NAME", help="convert: the form of the rows (auto)")


def data(arguments: argparse.Namespace) -> int:
    """Run ``mmgrpo data``."""
    from mmgrpo.api.data import convert, head

    first, *rest = arguments.words
    if arguments.action == "head":
        print("\n\n".join(head(first, overrides=rest, count=arguments.n)))
        return 0
    if not rest or "=" in rest[0]:
        from mmgrpo.errors import ConfigError, explain

        raise ConfigError(explain("No file to write is given", fix="Write mmgrpo data convert IN OUT.parquet."))
    count = convert(first, rest[0], overrides=rest[1:], form=arguments.format)
    print(f"{count:,} rows written to {rest[0]}", file=sys.stderr)
    return 0
