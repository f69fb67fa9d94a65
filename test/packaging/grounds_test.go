// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/drover-io/drover/cloud/aws/ec2stub"
	"github.com/drover-io/drover/cloud/azure/armstub"
	"github.com/drover-io/drover/cloud/gcp/gcpstub"
	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/internal/test/vcenter"
	"github.com/drover-io/drover/test/internal/rig"
	"github.com/drover-io/drover/test/internal/stack"
	"github.com/drover-io/drover/test/internal/virt"
)

// grounds are the clouds of the pages, by the first part of their flavor's name.
var grounds = map[string]ground{
	"simulated": {
		title: "The simulated cloud", start: onSimulated,
		other: []string{"TOKEN=$(openssl rand -hex 16)", "make build && bin/drover simulate --listen :8080 --token $TOKEN &"},
	},
	"aws":       {title: "AWS", tool: "aws", start: onAWS},
	"azure":     {title: "Azure", tool: "az", start: onAzure},
	"gcp":       {title: "Google Cloud", tool: "gcloud", start: onGCP},
	"kubevirt":  {title: "KubeVirt", start: onKubeVirt},
	"openstack": {title: "OpenStack", tool: "openstack", start: onOpenStack},
	"vsphere":   {title: "vSphere", tool: "govc", start: onVSphere},
}

const password = "the-password"

func onSimulated(_ *testing.T, w *walk, _ *body.Fleet) stand {
	return stand{env: []string{"TOKEN=" + w.simulated.Token}, provider: "simulated://"}
}

func onAWS(t *testing.T, w *walk, fleet *body.Fleet) stand {
	cloud := ec2stub.New(t, ec2stub.Options{
		Keys: map[string]string{rig.AWSKey: password}, Boot: 150 * time.Millisecond, Stop: 200 * time.Millisecond,
		Power: count(&w.running, rig.Power(fleet)),
	})
	return stand{
		env: []string{"KEY=" + rig.AWSKey, "SECRET=" + password}, provider: "aws:///us-east-1",
		values: []string{
			"eu-central-1", "us-east-1", "t3.large", "t3.small", "m6i.large", "t3.small", "ami-0123456789abcdef0", "ami-0b",
			"subnet-0123456789abcdef0", "subnet-0a2", "subnet-0123456789abcdef1", "subnet-0b1", "sg-0123456789abcdef0", "sg-01",
		},
		account: [2]string{"      region: ${DROVER_AWS_REGION}", "      endpoint: " + cloud.URL + "\n"},
	}
}

func onAzure(t *testing.T, w *walk, fleet *body.Fleet) stand {
	cloud, err := rig.StartAzureStub(password, "nodes", 0, count(&w.running, rig.AzurePower(fleet)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cloud.Close)
	secret := rig.AzureCredentials(password)
	const page = "/subscriptions/00000000-1111-2222-3333-444444444444/resourceGroups/"
	return stand{
		env:      []string{"TENANT=" + secret["tenantID"], "CLIENT=" + secret["clientID"], "SECRET=" + secret["clientSecret"]},
		provider: "azure:///subscriptions/" + armstub.Subscription,
		values: []string{
			page + "network/providers/Microsoft.Network/virtualNetworks/vnet/subnets/nodes", armstub.Subnet,
			page + "images/providers/Microsoft.Compute/galleries/gallery/images/node/versions/1.36.3", armstub.Image,
			"00000000-1111-2222-3333-444444444444", armstub.Subscription, "westeurope", armstub.Location, "Standard_D4s_v5", "Standard_D2s_v5",
		},
		account: [2]string{"      resourceGroup: ${DROVER_AZURE_RESOURCE_GROUP}",
			fmt.Sprintf("      custom: {endpoint: %[1]q, authorityHost: %[1]q, caBundle: %[2]q}\n", "https://"+cloud.Address, cloud.CA)},
	}
}

func onGCP(t *testing.T, w *walk, fleet *body.Fleet) stand {
	cloud, err := rig.StartGCPStub("key", gcpstub.Project, 0, count(&w.running, rig.GCPPower(fleet)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cloud.Close)
	secret, err := rig.GCPCredentials("key")
	if err != nil {
		t.Fatal(err)
	}
	return stand{
		files: map[string]string{"key.json": secret["credentials"]}, provider: "gce://" + gcpstub.Project,
		values: []string{
			"nodes-4711", gcpstub.Project, "europe-west4", gcpstub.Region, "ubuntu-2404-v1-36-3", gcpstub.Image, "DROVER_GCP_SUBNETWORK=nodes",
			"DROVER_GCP_SUBNETWORK=" + gcpstub.Subnet, "DROVER_GCP_NETWORK=vpc", "DROVER_GCP_NETWORK=" + gcpstub.Network, "e2-standard-4",
			"e2-standard-2",
		},
		account: [2]string{"      region: ${DROVER_GCP_REGION}",
			fmt.Sprintf("      universeDomain: %s\n      endpoint: %q\n      caBundle: %q\n", gcpstub.Universe, "https://"+cloud.Address, cloud.CA)},
	}
}

func onVSphere(t *testing.T, w *walk, fleet *body.Fleet) stand {
	cloud, err := vcenter.Start(vcenter.Options{Username: rig.VSphereUser, Password: password,
		Power: count(&w.running, rig.VMPower(fleet, 0))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cloud.Close)
	return stand{
		files: map[string]string{"password.txt": password + "\n", "vcenter-ca.pem": string(cloud.CA)}, provider: "vsphere://",
		values: []string{
			"vcenter.example.com", strings.TrimPrefix(cloud.URL, "https://"), "DATACENTER=dc1", "DATACENTER=" + vcenter.Datacenter,
			"templates/ubuntu-2404-kube-v1.36.3", vcenter.Template, "cluster-a/Resources", vcenter.ResourcePool, "san-a", vcenter.Datastore,
		},
	}
}

// onKubeVirt has nothing done for the user but the cluster with KubeVirt, and its administrator.
func onKubeVirt(t *testing.T, w *walk, fleet *body.Fleet) stand {
	cluster, err := virt.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Error(err)
		}
	})
	power := virt.Power(count(&w.running, *virt.Bodies(fleet)))
	cluster.Node.Power.Store(&power)
	return stand{
		files: map[string]string{
			"infra.kubeconfig": string(read(t, cluster.AdminKubeconfig())),
			"role.yaml":        pageBlock(t, "docs/clouds/kubevirt.md", "yaml", "kind: Role\nmetadata:\n  name: drover\n"),
		},
		provider: "kubevirt://",
		values:   []string{"SERVICE_TYPE=LoadBalancer", "SERVICE_TYPE=ClusterIP"}, // nothing here gives a Service an address
	}
}

// onOpenStack needs the OpenStack of hack/openstack, which must be running.
func onOpenStack(t *testing.T, w *walk, fleet *body.Fleet) stand {
	cloud, err := stack.Enter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cloud.Leave)
	cloud.Power(t.Context(), count(&w.running, rig.OpenStackPower(fleet)))
	keystone := cloud.Door() + "/identity/v3"
	return stand{
		files: map[string]string{"clouds.yaml": fmt.Sprintf(
			"clouds: {demo: {auth: {auth_url: %s, username: %s, password: %s, user_domain_id: default}}}\n",
			keystone, stack.User, stack.Password)},
		provider: "openstack:///",
		values: []string{
			"https://keystone.example.com/v3", keystone, "8fe3a5a1c1f04e0b8c8b6f1d2d7f9a10", cloud.Project,
			"m1.large", "small", "ubuntu-24.04-v1.36.3", "node-image", "NETWORK=machines", "NETWORK=nodes", "machines-v4", "nodes",
		},
	}
}
