"""These tests run only with the clients that `make clients` installs into a separate folder."""

import os

collect_ignore_glob = [] if os.environ.get("WHARF_CLIENTS") else ["test_*.py"]
