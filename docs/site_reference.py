"""A Sphinx extension for the reference: the directive `api`, and links from code in backticks to it."""

import functools
import importlib
import inspect
import re
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.domains.python import ObjectEntry
from sphinx.environment import BuildEnvironment
from sphinx.ext.napoleon import GoogleDocstring
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import make_refnode

CLASSES = {"class", "exception"}
KINDS = CLASSES | {"function", "method"}


def directive_for(target: Any) -> str:
    """Returns the name of autodoc's directive for an object."""
    if inspect.isclass(target):
        return "autoexception" if issubclass(target, BaseException) else "autoclass"
    return "autofunction" if callable(target) else "autodata"


class Api(Directive):
    """Shows a table of parts of the library, and then the docstring of each.

    The argument is the module from which a user imports them; the lines of the content are their names.
    """

    required_arguments = 1
    has_content: ClassVar[bool] = True

    def run(self) -> list[nodes.Node]:
        module, names = self.arguments[0], [line.strip() for line in self.content if line.strip()]
        home = importlib.import_module(module)
        lines = [f".. currentmodule:: {module}", "", ".. autosummary::", "   :nosignatures:", ""]
        lines += [f"   {name}" for name in names]
        for name in names:
            directive = directive_for(getattr(home, name))
            lines += ["", f".. {directive}:: {name}"]
            lines += ["   :members:"] * (directive == "autoclass")
        inner = nodes.Element()
        text = ["```{eval-rst}", *lines, "```"]
        self.state.nested_parse(type(self.content)(text, source=self.content.source(0)), self.content_offset, inner)
        return inner.children


def places(env: BuildEnvironment) -> dict[str, ObjectEntry]:
    """Returns the entries of the reference by every name that means one of them.

    A name without a dot must be exported from `stellaris`, or be the only class of this name. Other names need
    their module, as in `replay.insert`.
    """
    found: dict[str, list[ObjectEntry]] = {}
    for name, entry in env.domains.python_domain.objects.items():
        parts = name.split(".")
        if entry.aliased or entry.objtype not in KINDS:
            continue
        short = len(parts) == 2 or entry.objtype in CLASSES
        for first in range(len(parts) - (not short)):
            found.setdefault(".".join(parts[first:]), []).append(entry)
    return {name: entries[0] for name, entries in found.items() if len(entries) == 1}


class Links(SphinxPostTransform):
    """Links code in backticks to the reference, if it names a part of the library and nothing else."""

    default_priority = 5

    def run(self, **kwargs: Any) -> None:
        named = places(self.env)
        for literal in list(self.document.findall(nodes.literal)):
            entry = named.get(literal.astext().removesuffix("()"))
            if entry and not isinstance(literal.parent, nodes.reference | addnodes.pending_xref):
                link = make_refnode(
                    self.app.builder, self.env.docname, entry.docname, entry.node_id, literal.deepcopy()
                )
                literal.replace_self(link)


def resolve(app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, inside: nodes.Node) -> nodes.Node | None:
    """Finds a class that a signature, or an exception that a docstring names without its module."""
    entry = places(env).get(node["reftarget"]) if node["reftype"] in {"class", "exc"} else None
    return entry and make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, inside)


def section(self: GoogleDocstring, **kwargs: Any) -> list[tuple[str, str, list[str]]]:
    """Returns the sections `Returns` and `Source` unchanged: a colon in their first line does not end a type."""
    return [("", "", self._dedent(self._consume_to_next_section()))]


def attribute(self: GoogleDocstring) -> tuple[str, list[str]]:
    """Returns the docstring of a property or a field unchanged, for the same reason."""
    return "", self._dedent(self._consume_to_end())


def signature(
    app: Sphinx, kind: str, name: str, target: Any, options: Any, given: str | None, returned: str | None
) -> Any:
    """Shortens what Sphinx could not parse: defaults without an expression, and the parameters of `NDArray`."""
    shorten = functools.partial(re.sub, r"<[^<>]*>|\[~typing.Any, ~numpy.dtype\[~typing.Any\]\]", _short)
    return given and shorten(given), returned and shorten(returned)


def _short(match: re.Match[str]) -> str:
    return "..." if match[0].startswith("<") else ""


def setup(app: Sphinx) -> dict[str, bool]:
    """Connects the extension."""
    GoogleDocstring._consume_returns_section = section
    GoogleDocstring._consume_inline_attribute = attribute
    app.add_directive("api", Api)
    app.add_post_transform(Links)
    app.connect("autodoc-process-signature", signature)
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
