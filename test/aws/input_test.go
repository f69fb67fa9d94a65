// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/aws/ec2stub"
	"github.com/drover-io/drover/test/rig"
	"github.com/drover-io/drover/test/scenario"
)

// TestBadMachines: each field is wrong once; the machine says which field and what to do, and no instance is left.
func TestBadMachines(t *testing.T) {
	s := start(t, "bad")
	s.AWS.SetKeep(false)         // a machine that ends at once leaves what somebody makes it leave, until it is deleted
	long := make([]byte, 40<<10) // of chance, which nothing packs
	_, _ = rand.Read(long)
	for _, c := range []struct {
		name   string
		change func(*infrav1.AWSMachine)
		data   string // user data; "" is a few words
		reason string
		words  []string
	}{
		{"type", func(m *infrav1.AWSMachine) { m.InstanceType = "t3.enormous" }, "", string(cloud.InvalidSpec), []string{"t3.enormous", "instanceType: name a type"}},
		{"region", func(m *infrav1.AWSMachine) { m.Image.ID = "ami-0dead" }, "", string(cloud.InvalidSpec), []string{"ami-0dead", "image: name an AMI of this region"}},
		{"processor", func(m *infrav1.AWSMachine) { m.Image.ID = "ami-0c" }, "", string(cloud.InvalidSpec), []string{"arm64", "image, instanceType: choose both"}},
		{"subnet", func(m *infrav1.AWSMachine) { m.Subnets = infrav1.AWSSelector{IDs: []string{"subnet-0dead"}} }, "",
			string(cloud.NotFound), []string{"subnet-0dead", "subnets: name subnets"}},
		{"vpc", func(m *infrav1.AWSMachine) {
			m.Subnets, m.SecurityGroups = infrav1.AWSSelector{IDs: []string{"subnet-0d1"}}, &infrav1.AWSSelector{IDs: []string{"sg-01"}}
		}, "", string(cloud.InvalidSpec), []string{"sg-01", "subnet-0d1", "different networks", "securityGroups: name groups"}},
		{"group", func(m *infrav1.AWSMachine) { m.SecurityGroups = &infrav1.AWSSelector{IDs: []string{"sg-0dead"}} }, "",
			string(cloud.NotFound), []string{"sg-0dead", "securityGroups: name groups"}},
		{"volumes", func(m *infrav1.AWSMachine) {
			for i := range 27 {
				m.Volumes = append(m.Volumes, infrav1.AWSDataVolume{DeviceName: fmt.Sprintf("/dev/sd%c%c", 'f'+i/10, 'a'+i%10), AWSVolume: infrav1.AWSVolume{SizeGiB: 1}})
			}
		}, "", string(cloud.InvalidSpec), []string{"volumes, networkInterfaces: ask for fewer"}},
		{"interfaces", func(m *infrav1.AWSMachine) {
			for i := range int32(3) {
				m.NetworkInterfaces = append(m.NetworkInterfaces, infrav1.AWSNetworkInterface{DeviceIndex: i + 1})
			}
		}, "", string(cloud.InvalidSpec), []string{"Interface count 4", "t3.small", "volumes, networkInterfaces: ask for fewer"}},
		{"snapshot", func(m *infrav1.AWSMachine) {
			m.Volumes = []infrav1.AWSDataVolume{{DeviceName: "/dev/sdf", SnapshotID: "snap-0dead"}}
		}, "",
			string(cloud.NotFound), []string{"snap-0dead", "volumes: name snapshots"}},
		{"size", func(m *infrav1.AWSMachine) {
			m.Volumes = []infrav1.AWSDataVolume{{DeviceName: "/dev/sdf", SnapshotID: "snap-01", AWSVolume: infrav1.AWSVolume{SizeGiB: 1}}}
		}, "", string(cloud.InvalidSpec), []string{"snap-01", "volumes: ask for no less than the snapshot holds"}},
		{"iops", func(m *infrav1.AWSMachine) { m.RootVolume = &infrav1.AWSVolume{Type: "io1", SizeGiB: 8, IOPS: 10000} }, "",
			string(cloud.InvalidSpec), []string{"ratio of 1250", "rootVolume, volumes: choose a type, sizeGiB, iops"}},
		{"login", func(m *infrav1.AWSMachine) { m.KeyName = ec2stub.Nobody }, "", string(cloud.NotFound), []string{"keyName: name a key pair"}},
		{"profile", func(m *infrav1.AWSMachine) { m.InstanceProfile = ec2stub.Nobody }, "", string(cloud.InvalidSpec), []string{"instanceProfile: name one"}},
		{"placement", func(m *infrav1.AWSMachine) { m.PlacementGroup = &infrav1.AWSPlacementGroup{Name: ec2stub.Nobody} }, "",
			string(cloud.NotFound), []string{"placementGroup: name one"}},
		{"host", func(m *infrav1.AWSMachine) { m.Tenancy, m.HostID = "host", "h-"+ec2stub.Nobody }, "", string(cloud.NotFound), []string{"hostID: name a dedicated host"}},
		{"reservation", func(m *infrav1.AWSMachine) {
			m.CapacityReservation = &infrav1.AWSCapacityReservation{ID: "cr-" + ec2stub.Nobody}
		}, "",
			string(cloud.NotFound), []string{"capacityReservation: name one"}},
		{"price", func(m *infrav1.AWSMachine) { m.Market = &infrav1.AWSMarket{Type: "spot", MaxPriceUSD: "0.001"} }, "",
			string(cloud.NoCapacity), []string{"0.001", "market.maxPriceUSD: raise it"}},
		{"parameter", func(m *infrav1.AWSMachine) { m.Image = infrav1.AWSImage{SSMParameter: "/none"} }, "",
			string(cloud.NotFound), []string{"/none", "image.ssmParameter: name a parameter"}},
		{"lookup", func(m *infrav1.AWSMachine) {
			m.Image = infrav1.AWSImage{Lookup: &infrav1.AWSImageLookup{Owners: []string{"self"}, Name: "none"}}
		}, "", string(cloud.NotFound), []string{"no AMI of self", "image.lookup: ask for another"}},
		{"tags", func(m *infrav1.AWSMachine) { m.Subnets = infrav1.AWSSelector{Tags: map[string]string{"role": "none"}} }, "",
			string(cloud.NotFound), []string{"no subnet has the tags", "subnets.tags: put them"}},
		{"group-tags", func(m *infrav1.AWSMachine) {
			m.SecurityGroups = &infrav1.AWSSelector{Tags: map[string]string{"role": "none"}}
		}, "",
			string(cloud.NotFound), []string{"vpc-01", "securityGroups.tags: put them"}},
		{"key", func(m *infrav1.AWSMachine) { m.RootVolume = &infrav1.AWSVolume{KMSKeyID: ec2stub.DeniedKey} }, "",
			infrav1.InstanceGoneReason, []string{"Client error on launch", "rootVolume.kmsKeyID"}},
		{"data", func(*infrav1.AWSMachine) {}, base64.StdEncoding.EncodeToString(long), string(cloud.InvalidSpec), []string{"user data", "EC2 takes 16384", "shorten files and commands"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &rig.Stage{T: t, Tenant: s.Tenant, House: s.House, Ctx: s.Ctx}
			pool := s.NewPool(c.name, 1)
			template := pool.Template(pool.Name, pool.Machine)
			template.Spec.Template.Spec.AWS.Image.ID = "ami-0a" // which keeps nothing
			c.change(template.Spec.Template.Spec.AWS)
			secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: pool.Name}, Data: map[string][]byte{"value": []byte("#cloud-config\n" + c.data)}}
			md := pool.Deployment()
			md.Spec.Template.Spec.Bootstrap = clusterv1.Bootstrap{DataSecretName: ptr.To(secret.Name)}
			s.Do(scenario.Create(s.Ctx, s.Rig.Client, secret, template, md))
			s.Until("the machine says what is wrong", func(ctx context.Context) (string, error) {
				list := &infrav1.CloudMachineList{}
				if err := s.Rig.Client.List(ctx, list, client.InNamespace(s.Namespace), client.MatchingLabels{clusterv1.MachineDeploymentNameLabel: md.Name}); err != nil {
					return "", err
				}
				if len(list.Items) != 1 {
					return missing(1, len(list.Items)), nil
				}
				return says(&list.Items[0], c.reason, c.words...), nil
			})
		})
	}
	var living []string
	for _, r := range s.Live(s.Books()) {
		living = append(living, r.ID)
	}
	if len(living) > 0 {
		t.Errorf("there are %v", living)
	}
}

// says tells what Ready lacks of a reason and some words; "" when it says so.
func says(o conditions.Getter, reason string, words ...string) string {
	c := conditions.Get(o, clusterv1.ReadyCondition)
	if c == nil {
		return "it says nothing"
	}
	lacks := slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(c.Message, word) })
	if c.Status != metav1.ConditionFalse || c.Reason != reason || lacks {
		return fmt.Sprintf("Ready=%s %s: %s", c.Status, c.Reason, c.Message)
	}
	return ""
}

// TestBadAccounts: credentials that have expired, and an endpoint that is not EC2, show in the account, with what to do.
func TestBadAccounts(t *testing.T) {
	s := start(t, "accounts")
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("<html><body>Welcome</body></html>"))
	}))
	t.Cleanup(site.Close)
	expired := ec2stub.New(t, ec2stub.Options{})
	expired.Expire()
	for _, c := range []struct {
		name, endpoint, reason string
		words                  []string
	}{
		{"expired", expired.URL, string(cloud.Unauthorized), []string{"ExpiredToken", "credentialsRef: renew the credentials"}},
		{"site", site.URL, string(cloud.Unknown), []string{"does the endpoint belong to AWS?"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &rig.Stage{T: t, Tenant: s.Tenant, House: s.House, Ctx: s.Ctx}
			account := s.Account()
			s.Dress(account)
			account.Name, account.Spec.AWS.Endpoint = c.name, c.endpoint
			s.Do(s.Rig.Client.Create(s.Ctx, account))
			s.Until("the account says what is wrong", func(ctx context.Context) (string, error) {
				if err := s.Rig.Client.Get(ctx, client.ObjectKeyFromObject(account), account); err != nil {
					return "", err
				}
				return says(account, c.reason, c.words...), nil
			})
		})
	}
}
