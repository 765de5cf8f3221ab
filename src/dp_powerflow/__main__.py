"""The command `dp-powerflow`, and `python -m dp_powerflow`."""

from __future__ import annotations

from dp_powerflow._ending import run


def main() -> None:
    """Run a command; a signal that comes while it is imported ends it as well as any other."""
    run(_command)


def _command() -> None:
    from dp_powerflow.cli import run_command

    run_command()


if __name__ == "__main__":
    main()
