"""``python -m reink.cli``: the ``reink`` command where it is not installed."""

from reink.cli import main

if __name__ == "__main__":
    main()
