"""`python -m quire_client VERB ...`."""

import sys

from quire_client.command import main

sys.exit(main())
