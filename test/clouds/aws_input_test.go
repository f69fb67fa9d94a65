// SPDX-License-Identifier: Apache-2.0

package clouds

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/aws/ec2stub"
	"github.com/drover-io/drover/test/internal/rig"
	"github.com/drover-io/drover/test/internal/scenario"
)

// badMachines are machines that each have one error that only EC2 can detect.
var badMachines = []struct {
	name   string
	fields string // the wrong fields, by the API's types without "AWS"
	change func(*infrav1.AWSMachine)
	reason string
	words  []string
}{
	{"type", "Machine.instanceType", func(m *infrav1.AWSMachine) { m.InstanceType = "t3.enormous" }, invalid,
		[]string{"t3.enormous", "instanceType: name a type"}},
	{"region", "Image.id", func(m *infrav1.AWSMachine) { m.Image.ID = "ami-0dead" }, invalid,
		[]string{"ami-0dead", "image: name an AMI of this region"}},
	{"processor", "Image.id", func(m *infrav1.AWSMachine) { m.Image.ID = "ami-0c" }, invalid,
		[]string{"arm64", "image, instanceType: choose both"}},
	{"parameter", "Image.ssmParameter", func(m *infrav1.AWSMachine) { m.Image = infrav1.AWSImage{SSMParameter: "/none"} },
		notFound, []string{"/none", "image.ssmParameter: name a parameter"}},
	{"lookup-owner", "ImageLookup.owners", lookup("111111111111", "node-*", "", nil), notFound,
		[]string{"no available AMI of 111111111111", "check image.lookup"}},
	{"lookup-name", "ImageLookup.name", lookup("099720109477", "none", "", nil), notFound, []string{"none", "check image.lookup"}},
	{"lookup-processor", "ImageLookup.architecture", lookup("099720109477", "node-*", "arm64", nil), invalid,
		[]string{"arm64", "image, instanceType: choose both"}},
	{"lookup-tags", "ImageLookup.tags", lookup("099720109477", "node-*", "", map[string]string{"release": "none"}), notFound,
		[]string{"check image.lookup"}},

	{"subnet", "Selector.ids", func(m *infrav1.AWSMachine) { m.Subnets = infrav1.AWSSelector{IDs: []string{"subnet-0dead"}} },
		notFound, []string{"subnet-0dead", "subnets: name subnets"}},
	{"subnet-tags", "Selector.tags", func(m *infrav1.AWSMachine) { m.Subnets = infrav1.AWSSelector{Tags: map[string]string{"role": "none"}} },
		notFound, []string{"no subnet of this region has the tags", "subnets.tags"}},
	{"vpc", "Selector.ids", func(m *infrav1.AWSMachine) {
		m.Subnets, m.SecurityGroups = infrav1.AWSSelector{IDs: []string{"subnet-0d1"}}, &infrav1.AWSSelector{IDs: []string{"sg-01"}}
	}, invalid, []string{"sg-01", "subnet-0d1", "different networks", "securityGroups: name groups"}},
	{"group", "Selector.ids", func(m *infrav1.AWSMachine) { m.SecurityGroups = &infrav1.AWSSelector{IDs: []string{"sg-0dead"}} },
		notFound, []string{"sg-0dead", "securityGroups: name groups"}},
	{"group-tags", "Selector.tags", func(m *infrav1.AWSMachine) {
		m.SecurityGroups = &infrav1.AWSSelector{Tags: map[string]string{"role": "none"}}
	}, notFound, []string{"vpc-01", "securityGroups.tags"}},

	{"ipv6", "Machine.ipv6AddressCount Machine.primaryIPv6",
		func(m *infrav1.AWSMachine) { m.IPv6AddressCount, m.PrimaryIPv6 = 1, infrav1.FeatureEnabled },
		invalid, []string{"subnet-0", "ipv6AddressCount, subnets: use subnets with IPv6"}},
	{"efa", "Machine.efa", func(m *infrav1.AWSMachine) { m.EFA = infrav1.FeatureEnabled }, invalid,
		[]string{"t3.small", "efa, networkInterfaces: choose an instanceType"}},
	{"interfaces", "Machine.instanceType", interfaces(infrav1.AWSNetworkInterface{DeviceIndex: ptr.To[int32](1)},
		infrav1.AWSNetworkInterface{DeviceIndex: ptr.To[int32](2)},
		infrav1.AWSNetworkInterface{DeviceIndex: ptr.To[int32](3)}), invalid,
		[]string{"Interface count 4", "t3.small", "volumes, networkInterfaces: use fewer"}},
	{"interface-type", "NetworkInterface.type", interfaces(infrav1.AWSNetworkInterface{Type: "efa-only", DeviceIndex: ptr.To[int32](1)}),
		invalid, []string{"t3.small", "efa, networkInterfaces: choose an instanceType"}},
	{"interface-card", "NetworkInterface.networkCard",
		interfaces(infrav1.AWSNetworkInterface{NetworkCard: ptr.To[int32](1), DeviceIndex: ptr.To[int32](1)}),
		invalid, []string{"t3.small", "networkInterfaces.networkCard: name a card"}},
	{"interface-device", "NetworkInterface.deviceIndex", interfaces(infrav1.AWSNetworkInterface{DeviceIndex: ptr.To[int32](0)}),
		invalid, []string{"unique device index", "networkInterfaces.deviceIndex: give each its own"}},

	{"root-size", "Volume.sizeGiB", root(infrav1.AWSVolume{SizeGiB: 4}), invalid, []string{"size 4GB", "rootVolume, volumes: use at least"}},
	{"root-type", "Volume.type", root(infrav1.AWSVolume{Type: "st1"}), invalid, []string{"st1", "rootVolume.type: use a bootable type"}},
	{"iops", "Volume.iops", root(infrav1.AWSVolume{Type: "io1", SizeGiB: 8, IOPS: 10000}),
		invalid, []string{"ratio of 1250", "rootVolume, volumes: choose a type, sizeGiB, iops"}},
	{"throughput", "Volume.throughputMiBps", root(infrav1.AWSVolume{Type: "gp3", SizeGiB: 8, ThroughputMiBps: 1000}),
		invalid, []string{"ratio of 0.333", "rootVolume, volumes: choose a type, sizeGiB, iops and throughputMiBps"}},
	{"encryption", "Volume.encryption", func(m *infrav1.AWSMachine) { m.InstanceType = "m1.small" },
		invalid, []string{"m1.small", "use one that supports encrypted disks, or set encryption to Disabled"}},
	{"key", "Volume.kmsKeyID", root(infrav1.AWSVolume{KMSKeyID: ec2stub.DeniedKey}),
		infrav1.InstanceGoneReason, []string{"Client error on launch", "rootVolume.kmsKeyID"}},
	{"volumes", "DataVolume.deviceName", func(m *infrav1.AWSMachine) {
		for i := range 27 {
			m.Volumes = append(m.Volumes, infrav1.AWSDataVolume{DeviceName: fmt.Sprintf("/dev/sd%c%c", 'f'+i/10, 'a'+i%10),
				AWSVolume: infrav1.AWSVolume{SizeGiB: 1}})
		}
	}, invalid, []string{"volumes, networkInterfaces: use fewer"}},
	{"device", "DataVolume.deviceName", func(m *infrav1.AWSMachine) {
		m.Volumes = []infrav1.AWSDataVolume{{DeviceName: "/dev/sda1", AWSVolume: infrav1.AWSVolume{SizeGiB: 1}}} // the image's root
	}, invalid, []string{"/dev/sda1", "rootVolume, volumes:", "each device once"}},
	{"snapshot", "DataVolume.snapshotID", func(m *infrav1.AWSMachine) {
		m.Volumes = []infrav1.AWSDataVolume{{DeviceName: "/dev/sdf", SnapshotID: "snap-0dead"}}
	}, notFound, []string{"snap-0dead", "volumes: name snapshots"}},
	{"size", "Volume.sizeGiB", func(m *infrav1.AWSMachine) {
		m.Volumes = []infrav1.AWSDataVolume{{DeviceName: "/dev/sdf", SnapshotID: "snap-01", AWSVolume: infrav1.AWSVolume{SizeGiB: 1}}}
	}, invalid, []string{"snap-01", "volumes: use at least the snapshot's size"}},

	{"login", "Machine.keyName", func(m *infrav1.AWSMachine) { m.KeyName = ec2stub.Nobody }, notFound, []string{"keyName: name a key pair"}},
	{"profile", "Machine.instanceProfile", func(m *infrav1.AWSMachine) { m.InstanceProfile = ec2stub.Nobody }, notFound,
		[]string{"instanceProfile: name one"}},
	{"organization", "Machine.tags", func(m *infrav1.AWSMachine) { m.Tags = map[string]string{"cost-center": ec2stub.Nobody} },
		invalid, []string{"cost-center", "tags: set them as the organization's tag policy"}},

	{"tenancy", "Machine.tenancy", func(m *infrav1.AWSMachine) { m.Tenancy = "host" }, noCapacity,
		[]string{"tenancy, hostID: allocate a dedicated host"}},
	{"host", "Machine.hostID", func(m *infrav1.AWSMachine) { m.Tenancy, m.HostID = "host", "h-"+ec2stub.Nobody }, notFound,
		[]string{"hostID: name a dedicated host"}},
	{"placement", "PlacementGroup.name", func(m *infrav1.AWSMachine) { m.PlacementGroup = infrav1.AWSPlacementGroup{Name: ec2stub.Nobody} },
		notFound, []string{"placementGroup: name one"}},
	{"strategy", "PlacementGroup.name", func(m *infrav1.AWSMachine) {
		m.PlacementGroup = infrav1.AWSPlacementGroup{
			Name: ec2stub.ClusterGroup}
	},
		invalid, []string{"t3.small", "placementGroup: use one whose strategy"}},
	{"partition", "PlacementGroup.partition", func(m *infrav1.AWSMachine) {
		m.PlacementGroup = infrav1.AWSPlacementGroup{Name: "spread", Partition: 3}
	}, invalid, []string{"spread", "placementGroup: use one whose strategy supports the instanceType and partition"}},
	{"reservation", "CapacityReservation.id", func(m *infrav1.AWSMachine) {
		m.CapacityReservation = &infrav1.AWSCapacityReservation{ID: "cr-" + ec2stub.Nobody}
	}, notFound, []string{"capacityReservation: name one"}},
	{"reservations", "CapacityReservation.resourceGroupARN", func(m *infrav1.AWSMachine) {
		m.CapacityReservation = &infrav1.AWSCapacityReservation{ResourceGroupARN: "arn:aws:resource-groups:us-east-1:123456789012:group/" +
			ec2stub.Nobody}
	}, invalid, []string{"capacityReservation: name reservations"}},
	{"reserved-only", "CapacityReservation.preference", func(m *infrav1.AWSMachine) {
		m.CapacityReservation = &infrav1.AWSCapacityReservation{Preference: "capacity-reservations-only"}
	}, noCapacity, []string{"capacityReservation: enlarge it"}},
	{"cores", "CPUOptions.coreCount CPUOptions.threadsPerCore", func(m *infrav1.AWSMachine) {
		m.InstanceType, m.CPUOptions = "t2.small", infrav1.AWSCPUOptions{CoreCount: 1, ThreadsPerCore: 1}
	}, invalid, []string{"t2.small", "cpuOptions: remove them"}},
	{"memory", "CPUOptions.amdSEVSNP", func(m *infrav1.AWSMachine) { m.CPUOptions = infrav1.AWSCPUOptions{AMDSEVSNP: infrav1.FeatureEnabled} },
		invalid, []string{"t3.small", "cpuOptions.amdSEVSNP: choose"}},
	{"nesting", "CPUOptions.nestedVirtualization", func(m *infrav1.AWSMachine) {
		m.CPUOptions = infrav1.AWSCPUOptions{NestedVirtualization: infrav1.FeatureEnabled}
	}, invalid, []string{"t3.small", "cpuOptions.nestedVirtualization: choose"}},
	{"price", "Market.maxPriceUSD", func(m *infrav1.AWSMachine) { m.Market = infrav1.AWSMarket{Type: "spot", MaxPriceUSD: "0.001"} },
		noCapacity, []string{"0.001", "market.maxPriceUSD: raise it"}},
	{"block", "Market.type", func(m *infrav1.AWSMachine) {
		m.Market, m.CapacityReservation = infrav1.AWSMarket{Type: "capacity-block"}, &infrav1.AWSCapacityReservation{ID: "cr-0a"}
	}, noCapacity, []string{"capacityReservation: the Capacity Block has not started"}},
}

const (
	invalid    = infrav1.InvalidSpecReason
	notFound   = infrav1.CloudNotFoundReason
	noCapacity = infrav1.NoCapacityReason
)

func lookup(owner, name string, architecture infrav1.AWSArchitecture, tags map[string]string) func(*infrav1.AWSMachine) {
	return func(m *infrav1.AWSMachine) {
		m.Image = infrav1.AWSImage{Lookup: infrav1.AWSImageLookup{Owners: []string{owner}, Name: name, Architecture: architecture, Tags: tags}}
	}
}

func interfaces(all ...infrav1.AWSNetworkInterface) func(*infrav1.AWSMachine) {
	return func(m *infrav1.AWSMachine) { m.NetworkInterfaces = all }
}

func root(v infrav1.AWSVolume) func(*infrav1.AWSMachine) {
	return func(m *infrav1.AWSMachine) { m.RootVolume = &v }
}

// badManners are machines with errors that the API server can detect and refuses.
var badManners = []struct {
	fields string
	change func(*infrav1.AWSMachine)
	words  string
}{
	{"Machine.publicIP", func(m *infrav1.AWSMachine) {
		m.PublicIP, m.NetworkInterfaces = infrav1.FeatureEnabled, []infrav1.AWSNetworkInterface{{DeviceIndex: ptr.To[int32](1)}}
	}, "leave out publicIP, or networkInterfaces"},
	{"Machine.hostID", func(m *infrav1.AWSMachine) { m.HostID = "h-01" }, "hostID needs tenancy host"},
	{"Metadata.tokens", func(m *infrav1.AWSMachine) { m.Metadata.Tokens = "never" }, "metadata.tokens"},
	{"Metadata.hopLimit", func(m *infrav1.AWSMachine) { m.Metadata.HopLimit = 65 }, "metadata.hopLimit"},
	{"Volume.iops", root(infrav1.AWSVolume{Type: "gp2", IOPS: 3000}), "iops is for type gp3"},
	{"CPUOptions.coreCount", func(m *infrav1.AWSMachine) { m.CPUOptions = infrav1.AWSCPUOptions{CoreCount: 2} },
		"coreCount and threadsPerCore go together"},
	{"CapacityReservation.id", func(m *infrav1.AWSMachine) {
		m.CapacityReservation = &infrav1.AWSCapacityReservation{ID: "cr-01", Preference: "open"}
	}, "exactly one of id, resourceGroupARN and preference"},
	{"Market.maxPriceUSD", func(m *infrav1.AWSMachine) {
		m.Market = infrav1.AWSMarket{Type: "capacity-block", MaxPriceUSD: "1"}
	}, "maxPriceUSD needs type spot"},
}

// neverWrong lists the fields for which EC2 accepts both values on every machine.
var neverWrong = []string{"Machine.detailedMonitoring", "Metadata.ipv6", "Metadata.instanceTags"}

// TestEachFieldIsWrong tests that the tables cover every field of a machine.
func TestEachFieldIsWrong(t *testing.T) {
	needs(t, *where == "aws")
	wrong := strings.Join(neverWrong, " ")
	for _, c := range badMachines {
		wrong += " " + c.fields
	}
	for _, c := range badManners {
		wrong += " " + c.fields
	}
	want, have := map[string]bool{}, map[string]bool{}
	fieldsOf(reflect.TypeFor[infrav1.AWSMachine](), want)
	for _, field := range strings.Fields(wrong) {
		have[field] = true
	}
	for field := range want {
		if !have[field] {
			t.Errorf("%s is never wrong", field)
		}
	}
	for field := range have {
		if !want[field] {
			t.Errorf("there is no field %s", field)
		}
	}
}

// fieldsOf collects the fields without subfields, by the name of their type.
func fieldsOf(of reflect.Type, into map[string]bool) {
	for i := range of.NumField() {
		f, held := of.Field(i), of.Field(i).Type
		for held.Kind() == reflect.Pointer || held.Kind() == reflect.Slice {
			held = held.Elem()
		}
		if held.Kind() == reflect.Struct {
			fieldsOf(held, into)
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		into[strings.TrimPrefix(of.Name(), "AWS")+"."+name] = true
	}
}

// TestBadManners tests that the API server refuses what it can detect immediately, and names the
// field.
func TestBadManners(t *testing.T) {
	s := startOn(t, "aws", "manners")
	for _, c := range badManners {
		pool := s.NewPool("md", 0)
		template := pool.Template(pool.Name, pool.Machine)
		c.change(template.Spec.Template.Spec.Cloud.AWS)
		if err := s.Rig.Client.Create(s.Ctx, template); err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v, want %q", c.fields, err, c.words)
		}
	}
}

// TestBadMachines tests one error in each field. The machine reports the field and the remedy, and
// no instance is left.
func TestBadMachines(t *testing.T) {
	s := startOn(t, "aws", "bad")
	s.AWS.SetKeep(false)         // otherwise a machine that fails at once would leave a volume until it is deleted
	long := make([]byte, 40<<10) // random, so it can't be compressed
	_, _ = rand.Read(long)
	s.bad("data", func(*infrav1.AWSMachine) {}, base64.StdEncoding.EncodeToString(long))
	for _, c := range badMachines {
		s.bad(c.name, c.change, "a few words")
	}
	s.complains(t, "data", infrav1.SecretInvalidReason, "user data", "EC2 accepts at most 16384", "shorten the files and commands")
	for _, c := range badMachines {
		t.Run(c.name, func(t *testing.T) { s.complains(t, c.name, c.reason, c.words...) })
	}
	var living []string
	for _, r := range s.Live(s.Books()) {
		living = append(living, r.ID)
	}
	if len(living) > 0 {
		t.Errorf("there are %v", living)
	}
}

// bad creates a pool of one machine.
func (s *stage) bad(name string, change func(*infrav1.AWSMachine), data string) {
	s.Helper()
	pool := s.NewPool(name, 1)
	template := pool.Template(pool.Name, pool.Machine)
	template.Spec.Template.Spec.Cloud.AWS.Image.ID = "ami-0a" // an image without volumes that outlive the instance
	change(template.Spec.Template.Spec.Cloud.AWS)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: pool.Name},
		Data: map[string][]byte{"value": []byte("#cloud-config\n" + data)}}
	md := pool.Deployment()
	md.Spec.Template.Spec.Bootstrap = clusterv1.Bootstrap{DataSecretName: ptr.To(secret.Name)}
	s.Do(scenario.Create(s.Ctx, s.Rig.Client, secret, template, md))
}

// complains waits until the machine of such a pool reports the error.
func (s *stage) complains(t *testing.T, name, reason string, words ...string) {
	t.Helper()
	in := &rig.Stage{T: t, Tenant: s.Tenant, House: s.House, Ctx: s.Ctx}
	in.Until("the machine says what is wrong", func(ctx context.Context) (string, error) {
		list := &infrav1.DroverMachineList{}
		pool := client.MatchingLabels{clusterv1.MachineDeploymentNameLabel: s.NewPool(name, 1).Name}
		if err := s.Rig.Client.List(ctx, list, client.InNamespace(s.Namespace), pool); err != nil {
			return "", err
		}
		if len(list.Items) != 1 {
			return missing(1, len(list.Items)), nil
		}
		return says(&list.Items[0], reason, words...), nil
	})
}

// says returns the Ready condition if it lacks the reason or the words, and "" otherwise.
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

// TestBadAccounts tests that the account reports expired credentials, and an endpoint that is not
// EC2, with the remedy.
func TestBadAccounts(t *testing.T) {
	s := startOn(t, "aws", "accounts")
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("<html><body>Welcome</body></html>"))
	}))
	t.Cleanup(site.Close)
	expired := ec2stub.New(t, ec2stub.Options{})
	expired.Expire()
	foreign := infrav1.AWSAssumeRole{ARN: "arn:aws:iam::210987654321:role/foreign", ExternalID: "another"}
	other := scenario.Credentials(metav1.ObjectMeta{Namespace: s.Namespace, Name: "other"}, "aws",
		map[string][]byte{"aws_access_key_id": []byte(rig.AWSKey), "aws_secret_access_key": []byte("of-another-key")})
	s.Do(s.Rig.Client.Create(s.Ctx, other))
	for _, c := range []struct {
		name   string
		change func(*infrav1.DroverAccountSpec)
		reason string
		words  []string
	}{
		{"expired", func(a *infrav1.DroverAccountSpec) { a.Cloud.AWS.Endpoint = expired.URL },
			infrav1.UnauthorizedReason, []string{"ExpiredToken", "credentialsRef: renew the credentials"}},
		{"secret", func(a *infrav1.DroverAccountSpec) { a.CredentialsRef.Name = other.Name },
			infrav1.UnauthorizedReason, []string{"SignatureDoesNotMatch", "credentialsRef: put the access key's own secret"}},
		{"role", func(a *infrav1.DroverAccountSpec) { a.Cloud.AWS.AssumeRole = foreign },
			infrav1.UnauthorizedReason, []string{"AccessDenied", "assumeRole: let the role's trust policy"}},
		{"site", func(a *infrav1.DroverAccountSpec) { a.Cloud.AWS.Endpoint = site.URL }, infrav1.CloudErrorUnknownReason,
			[]string{"check spec.cloud.aws.endpoint"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &rig.Stage{T: t, Tenant: s.Tenant, House: s.House, Ctx: s.Ctx}
			account := s.Account()
			s.Dress(account)
			account.Name = c.name
			c.change(&account.Spec)
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
