// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/drover-io/drover/test/internal/rig"
)

// start starts a stage of this name with pools of machine-controller-manager.
func start(t *testing.T, name string, pools ...Pool) *Stage {
	t.Helper()
	s := startEmpty(t, MachineControllerManager(), name, managed)
	for _, p := range pools {
		s.Old.AddMCM(p)
	}
	return s
}

// startEmpty starts a stage for an old system that has nothing yet.
func startEmpty(t *testing.T, of System, name string, place func(*rig.Stage) Place) *Stage {
	t.Helper()
	s := house.Stage(t, name)
	return Start(s, of, place(s))
}

// managed is EC2 for machine-controller-manager.
func managed(s *rig.Stage) Place {
	const role = "kubernetes.io/role/node"
	p := onAWS(s, "aws:///us-east-1/")
	p.Cloud, p.Role, p.Tags = "AWS", role, map[string]string{"kubernetes.io/cluster/" + s.Tenant.Name: "1", role: "1"}
	p.Spec = map[string]any{
		"ami": "ami-0a", "machineType": "t3.small", "region": "us-east-1", "iam": map[string]any{"name": "nodes"}, "tags": anys(p.Tags),
		"blockDevices":      []any{map[string]any{"ebs": map[string]any{"volumeSize": int64(20), "volumeType": "gp3", "encrypted": true}}},
		"networkInterfaces": []any{map[string]any{"subnetID": "subnet-0a1", "securityGroupIDs": []any{"sg-01"}}},
	}
	return p
}

// controlled is EC2 for machine-controller.
func controlled(s *rig.Stage) Place {
	p := onAWS(s, "aws:///us-east-1a/")
	p.Cloud, p.UID, p.Role = "aws", "Machine-UID", "Machine-UID"
	p.Spec = map[string]any{
		"region": "us-east-1", "subnetId": "subnet-0a1", "securityGroupIDs": []any{"sg-01"}, "instanceProfile": "nodes",
		"instanceType": "t3.small", "diskSize": int64(20), "diskType": "gp3", "ebsVolumeEncrypted": true,
	}
	return p
}

// provided is EC2 for Cluster API's provider.
func provided(s *rig.Stage) Place {
	const zone = "us-east-1a"
	p, group := onAWS(s, "aws:///"+zone+"/"), map[string]any{"id": "sg-01", "name": "nodes"}
	p.Role = "sigs.k8s.io/cluster-api-provider-aws/cluster/" + oldCluster
	p.Tags = map[string]string{p.Role: "owned", "sigs.k8s.io/cluster-api-provider-aws/role": "node", "kubernetes.io/cluster/" +
		oldCluster: "owned"}
	p.Spec = map[string]any{
		"instanceType": "t3.small", "iamInstanceProfile": "nodes", "ami": map[string]any{"id": "ami-0a"}, "sshKeyName": "",
		"rootVolume": map[string]any{"size": int64(20), "type": "gp3", "encrypted": true},
		"cloudInit":  map[string]any{"insecureSkipSecretsManager": true},
	}
	p.ClusterSpec = map[string]any{
		"region": "us-east-1", "network": map[string]any{"subnets": []any{map[string]any{"id": "subnet-0a1", "availabilityZone": zone,
			"isPublic": false}}},
	}
	p.ClusterStatus = map[string]any{"networkStatus": map[string]any{"securityGroups": map[string]any{"node": group, "lb": group}}}
	p.Complete = func(machine *unstructured.Unstructured, id string) {
		s.Do(unstructured.SetNestedField(machine.Object, id, "spec", "instanceID"))
	}
	return p
}

// onAWS is EC2. own is what old Machines have before the ID in their provider ID.
func onAWS(s *rig.Stage, own string) Place {
	return Place{
		Launch: func(name string, tags map[string]string) (string, string, string) {
			all := map[string]string{"Name": name}
			for key, value := range tags {
				all[key] = value
			}
			id, _ := s.AWS.Launch(all)
			return id, own + id, "aws:///us-east-1a/" + id
		},
		VMs: func() map[string]VM {
			all := map[string]VM{}
			for _, e := range s.AWS.Books() {
				if e.State != "" { // a volume has none
					all[e.ID] = VM{State: e.State, Tags: e.Tags}
				}
			}
			return all
		},
	}
}

// anys returns tags as the API server has them.
func anys(tags map[string]string) map[string]any {
	all := map[string]any{}
	for key, value := range tags {
		all[key] = value
	}
	return all
}
