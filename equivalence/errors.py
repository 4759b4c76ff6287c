"""The two errors of the harness; says nothing about differences, which are findings and not errors."""


class UsageError(ValueError):
    """The command line asks for something that does not exist; the command ends with status 2."""


class SetupError(RuntimeError):
    """What a check needs is absent or unreadable (a pack folder, a replay file); nothing was compared."""
