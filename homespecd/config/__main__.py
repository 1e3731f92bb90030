"""`python -m homespecd.config` prints the JSON schema of the configuration file."""

import json
import sys

from homespecd.config.schema import json_schema

sys.stdout.write(json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n")
