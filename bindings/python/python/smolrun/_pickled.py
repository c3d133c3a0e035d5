"""What a pickled model becomes again."""

from typing import Any

from smolrun._smolrun import Model, load


def model(arguments: dict[str, Any]) -> Model:
    """The model that was loaded with these arguments."""
    return load(**arguments)
