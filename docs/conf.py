"""Configuration of the documentation site, for `sphinx-build`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from fedcore import __version__

project = "fedcore"
author = "the fedcore developers"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "extension"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4
exclude_patterns = ["_build", "generated"]
default_role = "code"
nitpicky = True
nitpick_ignore_regex = [("py:.*", r".*")]  # Types of other packages have no page here.
autodoc_typehints = "none"
autodoc_member_order = "bysource"

html_theme = "furo"
html_title = f"fedcore {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sphinx = html_show_copyright = False
