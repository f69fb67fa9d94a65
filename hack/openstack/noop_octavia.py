# SPDX-License-Identifier: Apache-2.0
"""A network driver of Octavia for amphorae that do not exist: Nova attaches and detaches no ports. Addresses, ports and groups are real."""

from octavia.network import data_models
from octavia.network.drivers.neutron import allowed_address_pairs


class Noop(allowed_address_pairs.AllowedAddressPairsDriver):
    def plug_port(self, amphora, port):
        self.neutron_client.update_port(port.id, {"port": {"device_id": amphora.compute_id}})
        return data_models.Interface(compute_id=amphora.compute_id, network_id=port.network_id, port_id=port.id, fixed_ips=port.fixed_ips)

    def unplug_network(self, compute_id, network_id):
        pass  # the port is deleted next
