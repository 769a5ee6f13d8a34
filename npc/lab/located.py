"""YAML that remembers where each mapping and list stood, for error messages that name the line."""

from __future__ import annotations

from typing import Any, Self

import yaml


class ScenarioError(Exception):
    """A scenario cannot be used; the message begins with its file and line."""


class LocatedDict(dict[str, Any]):
    """A mapping and the line that it began at."""

    line = 0

    @classmethod
    def at(cls, line: int, **items: Any) -> Self:
        """A mapping that stands for one at a line."""
        made = cls(items)
        made.line = line
        return made


class LocatedList(list[Any]):
    """A list and the line that it began at."""

    line = 0


class _Loader(yaml.SafeLoader):
    pass


def _mapping(loader: _Loader, node: yaml.MappingNode) -> LocatedDict:
    loader.flatten_mapping(node)
    made = LocatedDict()
    made.line = node.start_mark.line + 1
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if key in made:
            raise yaml.MarkedYAMLError(
                problem=f"{key!r} stands twice", problem_mark=key_node.start_mark
            )
        made[key] = loader.construct_object(value_node, deep=True)
    return made


def _sequence(loader: _Loader, node: yaml.SequenceNode) -> LocatedList:
    made = LocatedList(loader.construct_object(child, deep=True) for child in node.value)
    made.line = node.start_mark.line + 1
    return made


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_SEQUENCE_TAG, _sequence)


def load_all(text: str, path: str) -> list[Any]:
    """Every document of a YAML text that is not empty.

    :raises ScenarioError: if it is no YAML
    """
    try:
        documents = yaml.load_all(text, _Loader)
        return [document for document in documents if document is not None]
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ScenarioError(f"{path}:{line}: {error.problem}") from error
    except yaml.YAMLError as error:
        raise ScenarioError(f"{path}:1: {error}") from error
