# SPDX-License-Identifier: Apache-2.0
"""Reads cloud-configs as cloud-init does: fills in the template, then checks the result against cloud-init's own schema."""
import sys

import yaml
from cloudinit.config.schema import get_schema, validate_cloudconfig_schema
from cloudinit.handlers.jinja_template import render_jinja_payload

schema = get_schema()
instance = {"v1": {"availability_zone": "zone-1", "instance_id": "i-1"}}
for name in sys.argv[1:]:
    with open(name) as f:
        payload = f.read()
    text = render_jinja_payload(payload, name, instance)
    before = yaml.safe_load(payload.split("\n", 1)[1].replace("{{ v1.availability_zone }}", "zone-1").replace("{{ v1.instance_id }}", "i-1"))
    if yaml.safe_load(text) != before:
        sys.exit(name + ": the template engine changed more than the provider ID")
    validate_cloudconfig_schema(before, schema=schema, strict=True)
