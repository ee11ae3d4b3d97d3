"""Floor 5: the command line. Shows what the floors below it found; every command is one file."""

import sys

from hotlap.records.errors import PackageMissing, missing_named


def main() -> None:
    """Run the command line and end the process."""
    try:
        with missing_named():
            from .app import main as started
    except PackageMissing as error:
        print(f"hotlap: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    started()


__all__ = ["main"]
