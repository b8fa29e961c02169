# Checks manifests by the schemas of these releases of Kubernetes, and prints the manifests as JSON:
# validate.py RELEASE…, YAML on standard input.
import json
import sys

import kubernetes_validate
import yaml

documents = [document for document in yaml.safe_load_all(sys.stdin) if document]
for document in documents:
    for release in sys.argv[1:]:
        try:
            kubernetes_validate.validate(document, release, strict=True)
        except kubernetes_validate.ValidationError as error:
            name = f"{document['kind']} {document['metadata']['name']}"
            sys.exit(f"{name}, Kubernetes {release}: {list(error.path)}: {error.message}")
json.dump(documents, sys.stdout)
