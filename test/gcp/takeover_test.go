// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"maps"
	"strings"
	"testing"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/gcp/gcpstub"
	"github.com/drover-io/drover/test/internal/rig"
	"github.com/drover-io/drover/test/takeover"
)

// TestTakeover takes VMs over that were made as machine-controller-manager makes them, which knows
// them by network tags: there, back, and there again. Then the pool is Drover's: it rolls, goes,
// and nothing is left.
func TestTakeover(t *testing.T) {
	const cluster, role = "kubernetes-io-cluster-taken", "kubernetes-io-role-node"
	s := house.Stage(t, "taken")
	place := onGCP(s)
	place.Cloud, place.Role, place.Tags = "GCP", role, map[string]string{cluster: "", role: ""}
	place.Spec = map[string]any{
		"canIpForward": true, "region": gcpstub.Region, "zone": gcpstub.Zones()[0], "machineType": "e2-standard-2", "tags": []any{cluster, role},
		"disks":             []any{map[string]any{"boot": true, "autoDelete": true, "sizeGb": int64(10), "type": "pd-balanced", "image": image(s)}},
		"networkInterfaces": []any{map[string]any{"disableExternalIP": true, "subnetwork": gcpstub.Subnet}},
		"scheduling":        map[string]any{"automaticRestart": true, "onHostMaintenance": "MIGRATE"},
	}
	takenOver(takeover.Start(s, takeover.MachineControllerManager(), place), (*takeover.Old).AddMCM, map[string]int{
		"POST instances/setLabels": (3 + 2) * 2, "POST instances/setTags": 2,
	})
}

// TestTakeoverFromMachineController is TestTakeover for VMs of machine-controller, which knows them
// by a label.
func TestTakeoverFromMachineController(t *testing.T) {
	s := house.Stage(t, "mc")
	place := onGCP(s)
	place.Cloud, place.UID, place.Role = "gce", "machine_uid", "machine_uid"
	place.Spec = map[string]any{
		"zone": gcpstub.Zones()[0], "machineType": "e2-standard-2", "diskSize": int64(10), "diskType": "pd-ssd", "subnetwork": gcpstub.Subnet,
		"assignPublicIPAddress": false, "customImage": image(s), "disableMachineServiceAccount": true,
	}
	takenOver(takeover.Start(s, takeover.MachineController(), place), (*takeover.Old).AddMC, map[string]int{"POST instances/setLabels": (3 + 2 + 1) * 2})
}

// image is the path of the image that the stand-in has.
func image(s *rig.Stage) string {
	return "projects/" + rig.GCPProject(s.Tenant) + "/global/images/" + gcpstub.Image
}

// takenOver takes a pool of two machines over, which add makes.
func takenOver(s *takeover.Stage, add func(*takeover.Old, takeover.Pool), writes map[string]int) {
	s.Helper()
	s.GCP.SetKeep(false)
	pool := takeover.Pool{Name: "a", Replicas: 2, Labels: map[string]any{"pool": "a"}}
	add(s.Old, pool)
	s.Whole(pool, func(m *infrav1.DroverMachineFields) { m.Cloud.GCP.Labels = map[string]string{"team": "blue"} }, writes)
	s.Empty()
	if objections := s.GCP.Objections(); len(objections) > 0 {
		s.Errorf("Google's discovery document: %v", objections)
	}
}

// onGCP is Compute Engine as the old systems see it. Tags without a value are network tags, others
// labels.
func onGCP(s *rig.Stage) takeover.Place {
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
