"""Configuration of the site: `make docs` builds it without the internet, with warnings as errors."""

import os
import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))

from _site import docstrings, links, pages  # noqa: E402

import equidp  # noqa: E402

project = "equidp"
author = "The equidp maintainers"
html_show_copyright = False
version = release = equidp.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
sphinx_gallery_conf = {
    "examples_dirs": "tutorials",
    "gallery_dirs": "generated/tutorials",
    "within_subsection_order": "_site.gallery.tutorial_place",
    "abort_on_example_error": True,
    "capture_repr": ("_repr_html_",),
    "matplotlib_animations": False,
    "min_reported_time": 10**6,
    "remove_config_comments": True,
    "show_memory": False,
    "write_computation_times": False,
}
if os.environ.get("EQUIDP_DOCS_ONLINE"):  # inventories of other projects are on the internet
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "torch": ("https://docs.pytorch.org/docs/stable", None),
        "sklearn": ("https://scikit-learn.org/stable", None),
    }
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build", "_site", "tutorials", "README.md"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
nitpicky = False
smartquotes = False  # of "--option"
html_theme = "furo"
html_title = f"equidp {release}"
html_static_path = ["_static"]
html_css_files = ["equidp.css"]
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def setup(app):
    """Write generated pages, and read docstrings and links as the site needs them."""
    pages.write_pages(DOCS / "generated")
    app.connect("autodoc-process-docstring", docstrings.to_rest, priority=400)  # before napoleon
    app.connect("autodoc-skip-member", docstrings.skip_request_methods)
    app.connect("source-read", links.rewrite)
