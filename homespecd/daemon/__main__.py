"""`python -m homespecd.daemon` is `homespecd`."""

import sys

from homespecd.daemon.main import main

sys.exit(main())
