# SPDX-License-Identifier: Apache-2.0
"""Fills a new OpenStack: "services" registers the services with Keystone, "contents" makes what a tenant finds there.

The tenants are users of projects that are called as they are, as are their passwords: TENANTS. Their cloud has the zones az-1 and az-2,
the flavors small (1 CPU, 512 MiB), gpu (the same, with two of them) and huge (more memory than any host has), the images node-image and
doomed-image, whose servers' host gives up building them, and the volume type fast. Each tenant has the networks nodes and storage, and
a router from nodes to the network public.
"""

import json
import sys
import urllib.request

KEYSTONE, PLACEMENT, GLANCE, NOVA, NEUTRON = (f"http://127.0.0.1:{port}" for port in range(25001, 25006))
CINDER = "http://127.0.0.1:25010/v3"
OCTAVIA = "http://127.0.0.1:25012"
TENANTS = ("demo", "test-1", "test-2", "test-3")  # so many tests can change their quotas, and count what there is, at the same time
DOOMED = "00000000-0000-4000-8000-00000000dead"  # the scheduler knows it ("inside")


class Session:
    def __init__(self, user, password, project):
        self.token = None
        domain = {"id": "default"}
        headers, answer = self.send("POST", KEYSTONE + "/v3/auth/tokens", {"auth": {
            "identity": {"methods": ["password"], "password": {"user": {"name": user, "password": password, "domain": domain}}},
            "scope": {"project": {"name": project, "domain": domain}}}})
        self.token, self.project = headers["X-Subject-Token"], answer["token"]["project"]["id"]

    def send(self, method, url, body=None, kind="application/json"):
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        headers = {"Content-Type": kind}
        if self.token:
            headers["X-Auth-Token"] = self.token
        with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method)) as answer:
            text = answer.read()
            return answer.headers, json.loads(text) if text else {}

    def call(self, *args, **more):
        return self.send(*args, **more)[1]


def services():
    admin = Session("admin", "admin", "admin")
    v3 = KEYSTONE + "/v3"

    def make(kind, **fields):
        return admin.call("POST", f"{v3}/{kind}s", {kind: fields})[kind]["id"]

    roles = {role["name"]: role["id"] for role in admin.call("GET", v3 + "/roles")["roles"]}
    for name in ("service", "load-balancer_member"):
        if name not in roles:
            roles[name] = make("role", name=name)

    def user(name, password, project, *granted):
        account = make("user", name=name, password=password, domain_id="default")
        for role in granted:
            admin.call("PUT", f"{v3}/projects/{project}/users/{account}/roles/{roles[role]}")

    project = make("project", name="service", domain_id="default")
    for name in ("placement", "glance", "nova", "neutron", "cinder", "octavia"):
        user(name, "service", project, "admin", "service")
    for tenant in TENANTS:
        user(tenant, tenant, make("project", name=tenant, domain_id="default"), "member", "load-balancer_member")
    for kind, name, url in (("placement", "placement", PLACEMENT), ("image", "glance", GLANCE),
                            ("compute", "nova", NOVA + "/v2.1"), ("network", "neutron", NEUTRON),
                            ("volumev3", "cinder", CINDER + "/$(project_id)s"), ("load-balancer", "octavia", OCTAVIA)):
        service = make("service", type=kind, name=name)
        for interface in ("public", "internal"):
            make("endpoint", service_id=service, interface=interface, url=url, region_id="RegionOne")


def contents():
    admin = Session("admin", "admin", "admin")
    nova = NOVA + "/v2.1"
    for zone, hosts in (("az-1", ("compute-1",)), ("az-2", ("compute-2", "compute-3"))):
        aggregate = admin.call("POST", nova + "/os-aggregates", {"aggregate": {"name": zone, "availability_zone": zone}})["aggregate"]["id"]
        for host in hosts:
            admin.call("POST", f"{nova}/os-aggregates/{aggregate}/action", {"add_host": {"host": host}})
    for name, cpus, memory, extra in (("small", 1, 512, {}), ("gpu", 1, 512, {"resources:VGPU": "2"}), ("huge", 4, 16 << 20, {})):
        flavor = admin.call("POST", nova + "/flavors", {"flavor": {"name": name, "vcpus": cpus, "ram": memory, "disk": 1}})["flavor"]["id"]
        if extra:
            admin.call("POST", f"{nova}/flavors/{flavor}/os-extra_specs", {"extra_specs": extra})
    for name, more in (("node-image", {"tags": ["node"]}), ("doomed-image", {"id": DOOMED})):
        image = admin.call("POST", GLANCE + "/v2/images", {
            "name": name, "disk_format": "raw", "container_format": "bare", "visibility": "public",
            "architecture": "x86_64", "os_type": "linux", **more})["id"]
        admin.call("PUT", f"{GLANCE}/v2/images/{image}/file", b"no hypervisor reads this", kind="application/octet-stream")
    admin.call("POST", f"{CINDER}/{admin.project}/types", {"volume_type": {"name": "fast"}})
    public, _ = network(admin, "public", "198.51.100.0/24", **{"router:external": True})
    for tenant in TENANTS:
        user = Session(tenant, tenant, tenant)
        _, nodes = network(user, "nodes", "10.0.0.0/16")
        network(user, "storage", "10.1.0.0/16")
        router = user.call("POST", NEUTRON + "/v2.0/routers", {"router": {"name": "out", "external_gateway_info": {"network_id": public}}})["router"]["id"]
        user.call("PUT", f"{NEUTRON}/v2.0/routers/{router}/add_router_interface", {"subnet_id": nodes})


def network(user, name, cidr, **fields):
    """Makes a network and its subnet."""
    made = user.call("POST", NEUTRON + "/v2.0/networks", {"network": {"name": name, **fields}})["network"]["id"]
    return made, user.call("POST", NEUTRON + "/v2.0/subnets", {"subnet": {"name": name, "network_id": made, "ip_version": 4, "cidr": cidr}})["subnet"]["id"]


{"services": services, "contents": contents}[sys.argv[1]]()
