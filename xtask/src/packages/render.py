# Lints a chart and renders it with each set of values: render.py CHART, a JSON list on standard input.
# Prints {"lint": […], "rendered": [{"files": {…}} or {"error": …}, …]}.
import json
import sys

import helm_python

chart = sys.argv[1]
rendered = []
with helm_python.Chart.load(chart) as loaded:
    for values in json.load(sys.stdin):
        try:
            files = loaded.render(values, name="demo", namespace="prod")
            rendered.append({"files": files})
        except helm_python.HelmError as error:
            rendered.append({"error": str(error)})
# Values without a token are refused: the chart is linted with one.
found = helm_python.lint(chart, {"token": {"value": "x"}}, strict=True)
lint = found["errors"] + [
    f"{message['path']}: {message['error']}"
    for message in found["messages"]
    # Notes, such as that there is no icon, are 1.
    if message["severity"] >= 2
]
json.dump({"lint": lint, "rendered": rendered}, sys.stdout)
