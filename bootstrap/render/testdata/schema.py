# SPDX-License-Identifier: Apache-2.0
"""Reads cloud-configs as cloud-init does: fills in the template, then checks the result against cloud-init's own schema."""
import sys

import yaml
from cloudinit.config.schema import get_schema, validate_cloudconfig_schema
from cloudinit.handlers.jinja_template import render_jinja_payload

schema = get_schema()
# The names as a datasource has them; templates have "_" for "-".
instance = {"v1": {"availability_zone": "zone-1", "instance_id": "i-1"}, "ds": {"meta_data": {"local-hostname": "ip-1.internal"}}}
values = {"v1.availability_zone": "zone-1", "v1.instance_id": "i-1", "ds.meta_data.local_hostname": "ip-1.internal"}
for name in sys.argv[1:]:
    with open(name) as f:
        payload = f.read()
    text = render_jinja_payload(payload, name, instance)
    before = payload.split("\n", 1)[1]
    for variable, value in values.items():
        before = before.replace("{{ %s }}" % variable, value)
    before = yaml.safe_load(before)
    if yaml.safe_load(text) != before:
        sys.exit(name + ": the template engine changed more than the provider ID and the Node's name")
    validate_cloudconfig_schema(before, schema=schema, strict=True)
