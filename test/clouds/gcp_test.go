// SPDX-License-Identifier: Apache-2.0

package clouds

import (
	"maps"
	"strings"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/gcp/gcpstub"
	"github.com/drover-io/drover/test/internal/rig"
	"github.com/drover-io/drover/test/takeover"
)

// onGCP is a stand-in for Compute Engine.
var onGCP = row{
	start:   rig.StartOnGCP,
	standIn: func(s *rig.Stage) standIn { return s.GCP },
	prefix:  func(s *rig.Stage) string { return "gce://" + rig.GCPProject(s.Tenant) + "/" + gcpstub.Region + "-" },
	id:      "[a-z]/NAME",
	disks:   1,
	lose:    func(s *stage, id string) { s.GCP.Remove(id) },
	endpoint: &endpoint{
		spec:  infrav1.LoadBalancerCloud{GCP: &infrav1.GCPLoadBalancer{Network: gcpstub.Network}},
		host:  `^198\.51\.`,
		zones: gcpstub.Zones(),
		once:  []string{"POST networkEndpointGroups/attachNetworkEndpoints"},
	},
	fleet:  fleetOfGCP,
	mcm:    &handover{place: managedGCP, writes: map[string]int{"POST instances/setLabels": (3 + 2) * 2, "POST instances/setTags": 2}},
	mc:     &handover{place: controlledGCP, writes: map[string]int{"POST instances/setLabels": (3 + 2 + 1) * 2}},
	change: func(m *infrav1.DroverMachineFields) { m.Cloud.GCP.Labels = map[string]string{"team": "blue"} },
}

// managedGCP is Compute Engine for machine-controller-manager, which knows its VMs by network tags.
func managedGCP(s *rig.Stage) takeover.Place {
	const cluster, role = "kubernetes-io-cluster-taken", "kubernetes-io-role-node"
	place := oldGCP(s)
	place.Cloud, place.Role, place.Tags = "GCP", role, map[string]string{cluster: "", role: ""}
	place.Spec = map[string]any{
		"canIpForward": true, "region": gcpstub.Region, "zone": gcpstub.Zones()[0], "machineType": "e2-standard-2", "tags": []any{cluster, role},
		"disks": []any{map[string]any{"boot": true, "autoDelete": true, "sizeGb": int64(10), "type": "pd-balanced",
			"image": image(s)}},
		"networkInterfaces": []any{map[string]any{"disableExternalIP": true, "subnetwork": gcpstub.Subnet}},
		"scheduling":        map[string]any{"automaticRestart": true, "onHostMaintenance": "MIGRATE"},
	}
	return place
}

// controlledGCP is Compute Engine for machine-controller, which knows its VMs by a label.
func controlledGCP(s *rig.Stage) takeover.Place {
	place := oldGCP(s)
	place.Cloud, place.UID, place.Role = "gce", "machine_uid", "machine_uid"
	place.Spec = map[string]any{
		"zone": gcpstub.Zones()[0], "machineType": "e2-standard-2", "diskSize": int64(10), "diskType": "pd-ssd", "subnetwork": gcpstub.Subnet,
		"assignPublicIPAddress": false, "customImage": image(s), "disableMachineServiceAccount": true,
	}
	return place
}

// image is the path of the image that the stand-in has.
func image(s *rig.Stage) string {
	return "projects/" + rig.GCPProject(s.Tenant) + "/global/images/" + gcpstub.Image
}

// oldGCP is Compute Engine as the old systems see it. Tags without a value are network tags, others
// labels.
func oldGCP(s *rig.Stage) takeover.Place {
	zone := gcpstub.Zones()[0]
	return takeover.Place{
		Launch: func(name string, tags map[string]string) (id, own, node string) {
			labels, network := map[string]string{}, []string{}
			for key, value := range tags {
				if value == "" {
					network = append(network, key)
				} else {
					labels[key] = value
				}
			}
			s.GCP.LaunchWith(zone, name, labels, network...)
			path := rig.GCPProject(s.Tenant) + "/" + zone + "/" + name
			return name, "gce:///" + path, "gce://" + path
		},
		VMs: func() map[string]takeover.VM {
			all := map[string]takeover.VM{}
			for _, e := range s.GCP.Books() {
				if e.State == "" { // a disk has none
					continue
				}
				tags := maps.Clone(e.Labels)
				for _, tag := range e.NetworkTags {
					tags[tag] = ""
				}
				all[e.Name] = takeover.VM{State: strings.ToLower(e.State), Tags: tags}
			}
			return all
		},
		Calls: func() map[string]int {
			calls := s.GCP.Calls()
			maps.DeleteFunc(calls, func(op string, _ int) bool { return strings.HasPrefix(op, "GET ") || strings.HasSuffix(op, "token") })
			return calls
		},
	}
}
