"""How Sphinx builds the site: `make docs`."""

import sys
from pathlib import Path

from jupyter_client.manager import KernelManager

import stellaris

sys.path.insert(0, str(Path(__file__).parent))

project = "stellaris"
author = "The stellaris authors"
project_copyright = f"2026, {author}"
release = stellaris.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "site_reference",
]
exclude_patterns = ["_build"]

# Pages. GitHub makes an anchor for every heading, and the pages link to them.
myst_heading_anchors = 4
highlight_language = "none"

# Notebooks are pages with cells. Every build executes them, so their output is never old.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
# A limit for a notebook that hangs: on a busy machine a cell takes several times its usual seconds.
nb_execution_timeout = 900
nb_merge_streams = True
# Without this setting ipykernel warns of a port without encryption.
KernelManager.transport_encryption.default_value = "auto"

# Reference. Backticks in a docstring are code; `site_reference` links them where they name a part of the library.
default_role = "literal"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autosummary_generate = False
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False
napoleon_custom_sections = [("Source", "returns_style")]
# In signatures: classes of other packages, which the site does not link; type variables; and parts of the runtime and
# of the systems' bookkeeping that a user neither makes nor reads.
nitpick_ignore_regex = [
    (
        "py:class",
        r"(_queue|collections|concurrent|jax|jaxlib|jaxtyping|numpy|optax|os|pathlib|pd|types|xr)\..*|ndarray|dict\[int",
    ),
    ("py:class", r"stellaris\..*\.[A-Z]"),
    ("py:class", r"stellaris\.runtime\.engine\.(clock\.Clock|course\.Course|placement\.Place|recorded\.RecordedCall)"),
    ("py:class", r"stellaris\.systems\.(checkpointing|deliveries|environments|rounds|session)\.[A-Za-z]+"),
    ("py:class", r"stellaris\.(aggregation\.gradient_queue\.Layout|lab\.rounds\.program\.Row)"),
    ("py:class", r"stellaris\.lab\.language\.(environment\.Writing|transformer\.Cache)"),
]
toc_object_entries_show_parents = "hide"
python_maximum_signature_line_length = 88

html_theme = "sphinx_book_theme"
html_title = f"stellaris {release}"
html_theme_options = {"show_toc_level": 2, "use_download_button": False}
html_static_path = ["_static"]
html_css_files = ["site.css"]
