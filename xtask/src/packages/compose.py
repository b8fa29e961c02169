# Parses a Compose file as strictly as the specification allows: compose.py FILE
import re
import sys

from compose_spec import PyCompose

text = open(sys.argv[1]).read()
# The parser takes values, not references to variables: their defaults, and a text where one is required.
text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)
text = re.sub(r"\$\{\w+:\?[^}]*\}", "value", text)
try:
    services = PyCompose.from_yaml(text).service_names()
except ValueError as error:
    sys.exit(f"{sys.argv[1]}: {error}")
if services != ["quell"]:
    sys.exit(f"{sys.argv[1]}: the services are {services}")
