"""`python -m hotlap`."""

from hotlap.cli import main

if __name__ == "__main__":
    main()
