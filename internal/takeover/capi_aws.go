// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// capaKey is the tag key by which Cluster API's provider for AWS recognizes the resources of a
// Cluster, without its name. The value is "owned".
const capaKey = "sigs.k8s.io/cluster-api-provider-aws/cluster/"

// These types have the fields of Cluster API's provider for AWS, v2.13. Of an AWSCluster, they have
// those that the provider makes machines from.
type (
	capaMachine struct {
		ProviderID            *string           `json:"providerID"`
		InstanceID            *string           `json:"instanceID"`
		Metadata              *capaMetadata     `json:"instanceMetadataOptions"`
		AMI                   capaImage         `json:"ami"`
		ImageLookupFormat     string            `json:"imageLookupFormat"`
		ImageLookupOrg        string            `json:"imageLookupOrg"`
		ImageLookupBaseOS     string            `json:"imageLookupBaseOS"`
		InstanceType          string            `json:"instanceType"`
		CPU                   capaCPU           `json:"cpuOptions"`
		Tags                  map[string]string `json:"additionalTags"`
		InstanceProfile       string            `json:"iamInstanceProfile"`
		PublicIP              *bool             `json:"publicIP"`
		ElasticIPPool         map[string]any    `json:"elasticIpPool"`
		SecurityGroups        []capaReference   `json:"additionalSecurityGroups"`
		Subnet                *capaReference    `json:"subnet"`
		GroupOverrides        map[string]string `json:"securityGroupOverrides"`
		KeyName               *string           `json:"sshKeyName"`
		RootVolume            *capaVolume       `json:"rootVolume"`
		Volumes               []capaVolume      `json:"nonRootVolumes"`
		NetworkInterfaces     []string          `json:"networkInterfaces"`
		NetworkInterfaceType  string            `json:"networkInterfaceType"`
		PrimaryIPv6           string            `json:"assignPrimaryIPv6"`
		UncompressedUserData  *bool             `json:"uncompressedUserData"`
		CloudInit             map[string]any    `json:"cloudInit"`
		Ignition              map[string]any    `json:"ignition"`
		Spot                  *capaSpot         `json:"spotMarketOptions"`
		PlacementGroup        string            `json:"placementGroupName"`
		Partition             int32             `json:"placementGroupPartition"`
		Tenancy               string            `json:"tenancy"`
		PrivateDNSName        map[string]any    `json:"privateDnsName"`
		CapacityReservation   *string           `json:"capacityReservationId"`
		MarketType            string            `json:"marketType"`
		HostID                *string           `json:"hostID"`
		HostAffinity          *string           `json:"hostAffinity"`
		DynamicHostAllocation map[string]any    `json:"dynamicHostAllocation"`
		Preference            string            `json:"capacityReservationPreference"`
	}
	capaImage struct {
		ID  *string `json:"id"`
		EKS *string `json:"eksLookupType"`
	}
	capaReference struct {
		ID      *string      `json:"id"`
		Filters []capaFilter `json:"filters"`
	}
	capaFilter struct {
		Name   string   `json:"name"`
		Values []string `json:"values"`
	}
	capaVolume struct {
		DeviceName    string `json:"deviceName"`
		Size          int32  `json:"size"`
		Type          string `json:"type"`
		IOPS          int32  `json:"iops"`
		Throughput    *int32 `json:"throughput"`
		Encrypted     *bool  `json:"encrypted"`
		EncryptionKey string `json:"encryptionKey"`
	}
	capaSpot struct {
		MaxPrice *string `json:"maxPrice"`
	}
	capaMetadata struct {
		Endpoint string `json:"httpEndpoint"`
		IPv6     string `json:"httpProtocolIpv6"`
		HopLimit int32  `json:"httpPutResponseHopLimit"`
		Tokens   string `json:"httpTokens"`
		Tags     string `json:"instanceMetadataTags"`
	}
	capaCPU struct {
		ConfidentialCompute  string `json:"confidentialCompute"`
		NestedVirtualization string `json:"nestedVirtualization"`
	}
	capaCluster struct {
		Metadata struct {
			Annotations map[string]string `json:"annotations"`
		} `json:"metadata"`
		Spec struct {
			Region  string            `json:"region"`
			KeyName *string           `json:"sshKeyName"`
			Tags    map[string]string `json:"additionalTags"`
			Network struct {
				Subnets []capaSubnet `json:"subnets"`
			} `json:"network"`
		} `json:"spec"`
		Status struct {
			Network struct {
				SecurityGroups map[string]struct {
					ID string `json:"id"`
				} `json:"securityGroups"`
			} `json:"networkStatus"`
		} `json:"status"`
	}
	capaSubnet struct {
		ID         string            `json:"id"`
		ResourceID string            `json:"resourceID"`
		Zone       string            `json:"availabilityZone"`
		ZoneType   string            `json:"zoneType"`
		Public     bool              `json:"isPublic"`
		Tags       map[string]string `json:"tags"`
	}
)

// capa maps an AWSMachineTemplate to the fields of a machine, with what the provider takes from the
// AWSCluster.
func (m *CAPI) capa(p *Plan, pool *Pool, o *unstructured.Unstructured, target *Target) {
	const at = "spec.template.spec"
	s := p.findingsFor("AWSMachineTemplate", o.GetName())
	template, _, _ := unstructured.NestedMap(o.Object, "spec", "template")
	spec := &capaMachine{}
	if !s.decode(map[string]any{at: template["spec"]}, at, spec) {
		return
	}
	cluster := m.capaCluster(p, target)
	if cluster == nil {
		return
	}
	a := &infrav1.AWSMachine{
		InstanceType: spec.InstanceType, InstanceProfile: spec.InstanceProfile,
		KeyName: ptr.Deref(cmp.Or(spec.KeyName, cluster.Spec.KeyName), cluster.defaultKey()),
		EFA:     enabledIf(spec.NetworkInterfaceType == "efa"), Tags: map[string]string{},
		Image: infrav1.AWSImage{ID: ptr.Deref(spec.AMI.ID, "")}, RootVolume: &infrav1.AWSVolume{Encryption: infrav1.FeatureDisabled},
	}
	if spec.PublicIP != nil {
		a.PublicIP = stateOf(*spec.PublicIP)
	}
	maps.Copy(a.Tags, cluster.Spec.Tags)
	maps.Copy(a.Tags, spec.Tags)
	a.Tags[mcmClusterKey+m.Cluster.GetName()] = "owned" // AWS's cloud controller looks for it
	s.capaNetwork(a, spec, cluster, pool.Deployment.Template.Spec.FailureDomain)
	s.capaDisks(a, spec)
	s.capaPurchase(a, spec)
	s.capaRest(a, spec)
	pool.Machine, pool.Keys = target.fields(infrav1.DroverMachineFields{Cloud: infrav1.MachineCloud{AWS: a}}),
		[]string{capaKey + m.Cluster.GetName()}
}

// capaCluster returns the AWSCluster, or nil if there is none.
func (m *CAPI) capaCluster(p *Plan, target *Target) *capaCluster {
	cluster := &capaCluster{}
	s, ok := m.infrastructureCluster(p, "AWSCluster", cluster)
	if !ok {
		return nil
	}
	if region := target.Account.Spec.Cloud.AWS.Region; cluster.Spec.Region != region {
		s.addRefused("spec.region", "it is %q, and the DroverAccount's is %q", cluster.Spec.Region, region)
	}
	return cluster
}

// external reports whether somebody else manages the network of the AWSCluster.
func (c *capaCluster) external() bool {
	_, is := c.Metadata.Annotations[clusterv1.ManagedByAnnotation]
	return is
}

// defaultKey is the key of machines for which nobody chooses one.
func (c *capaCluster) defaultKey() string {
	if c.external() {
		return ""
	}
	return "default"
}

// capaNetwork chooses the subnet and the security groups as the provider does.
func (s findings) capaNetwork(a *infrav1.AWSMachine, spec *capaMachine, cluster *capaCluster, zone string) {
	const at = "spec.template.spec."
	public := ptr.Deref(spec.PublicIP, false)
	usable := func(n capaSubnet) bool {
		return n.Public == public && (zone == "" || n.Zone == zone) &&
			n.Tags["sigs.k8s.io/cluster-api-provider-aws/association"] != "secondary" &&
			(n.ZoneType == "" || n.ZoneType == "availability-zone")
	}
	switch subnet := spec.Subnet; {
	case subnet != nil && subnet.ID != nil:
		a.Subnets.IDs = []string{*subnet.ID}
	case subnet != nil && len(subnet.Filters) > 0:
		a.Subnets.Tags = map[string]string{}
		for _, f := range subnet.Filters {
			key, is := strings.CutPrefix(f.Name, "tag:")
			if !is || len(f.Values) != 1 || strings.ContainsAny(f.Values[0], "*?") {
				s.addRefused(at+"subnet.filters", "Drover can't filter by %s: name the subnet's ID, or tags with one value", f.Name)
				continue
			}
			a.Subnets.Tags[key] = f.Values[0]
		}
	default:
		i := slices.IndexFunc(cluster.Spec.Network.Subnets, usable)
		if i < 0 {
			s.addRefused(at+"subnet", "there is none, and the AWSCluster has no subnet for it")
			break
		}
		n := cluster.Spec.Network.Subnets[i]
		a.Subnets.IDs = []string{cmp.Or(n.ResourceID, n.ID)}
	}
	groups := &infrav1.AWSSelector{}
	add := func(id string) {
		if !slices.Contains(groups.IDs, id) {
			groups.IDs = append(groups.IDs, id)
		}
	}
	if !cluster.external() {
		for _, role := range []string{"node", "lb"} {
			id := cmp.Or(spec.GroupOverrides[role], cluster.Status.Network.SecurityGroups[role].ID)
			if id == "" {
				s.addRefused(at+"securityGroupOverrides", "the AWSCluster has no security group for the role %s", role)
				continue
			}
			add(id)
		}
	}
	for _, g := range spec.SecurityGroups {
		if g.ID == nil {
			s.addLost(at+"additionalSecurityGroups.filters", "new machines are only in the groups with an ID")
			continue
		}
		add(*g.ID)
	}
	if len(groups.IDs) > 0 {
		a.SecurityGroups = groups
	}
	if len(spec.ElasticIPPool) > 0 {
		s.addLost(at+"elasticIpPool", "new machines get no addresses of a pool, and nobody releases those of the old machines")
	}
	if len(spec.NetworkInterfaces) > 0 {
		s.addLost(at+"networkInterfaces", "new machines do not get interfaces that exist")
	}
	if spec.PrimaryIPv6 == "enabled" {
		a.PrimaryIPv6, a.IPv6AddressCount = infrav1.FeatureEnabled, 1
	}
	if len(spec.PrivateDNSName) > 0 {
		s.addLost(at+"privateDnsName", "the subnet says which names new machines get")
	}
}

func (s findings) capaDisks(a *infrav1.AWSMachine, spec *capaMachine) {
	const at = "spec.template.spec."
	volume := func(v *capaVolume) infrav1.AWSVolume {
		return infrav1.AWSVolume{
			SizeGiB: v.Size, Type: infrav1.AWSVolumeType(v.Type), IOPS: v.IOPS, ThroughputMiBps: ptr.Deref(v.Throughput, 0),
			Encryption: stateOf(ptr.Deref(v.Encrypted, false) || v.EncryptionKey != ""), KMSKeyID: v.EncryptionKey,
		}
	}
	if root := spec.RootVolume; root != nil {
		if *a.RootVolume = volume(root); root.DeviceName != "" {
			s.addNote(at+"rootVolume.deviceName", "the image says which device is the root volume")
		}
	}
	for i := range spec.Volumes {
		a.Volumes = append(a.Volumes, infrav1.AWSDataVolume{DeviceName: spec.Volumes[i].DeviceName, AWSVolume: volume(&spec.Volumes[i])})
	}
}

// capaPurchase maps how machines are bought, and where they are placed.
func (s findings) capaPurchase(a *infrav1.AWSMachine, spec *capaMachine) {
	const at = "spec.template.spec."
	switch {
	case spec.Spot != nil || spec.MarketType == "Spot":
		a.Market = infrav1.AWSMarket{Type: infrav1.AWSMarketSpot}
		if spec.Spot != nil {
			a.Market.MaxPriceUSD = ptr.Deref(spec.Spot.MaxPrice, "")
		}
	case spec.MarketType == "CapacityBlock":
		a.Market = infrav1.AWSMarket{Type: infrav1.AWSMarketCapacityBlock}
	}
	preference := map[string]infrav1.AWSCapacityPreference{
		"Open": infrav1.AWSCapacityOpen, "None": infrav1.AWSCapacityNone, "CapacityReservationsOnly": infrav1.AWSCapacityReservationsOnly,
	}[spec.Preference]
	if id := ptr.Deref(spec.CapacityReservation, ""); id != "" {
		a.CapacityReservation = &infrav1.AWSCapacityReservation{ID: id}
	} else if preference != "" {
		a.CapacityReservation = &infrav1.AWSCapacityReservation{Preference: preference}
	}
	a.Tenancy, a.HostID = infrav1.AWSTenancy(spec.Tenancy), ptr.Deref(spec.HostID, "")
	if spec.PlacementGroup != "" {
		a.PlacementGroup = infrav1.AWSPlacementGroup{Name: spec.PlacementGroup, Partition: spec.Partition}
	}
	if ptr.Deref(spec.HostAffinity, "default") != "default" {
		s.addLost(at+"hostAffinity", "new machines are not bound to their host while they are stopped")
	}
	if spec.DynamicHostAllocation != nil {
		s.addLost(at+"dynamicHostAllocation", "new machines use hosts that exist, and nobody releases those of the old machines")
	}
	a.CPUOptions = infrav1.AWSCPUOptions{
		AMDSEVSNP:            enabledIf(spec.CPU.ConfidentialCompute == "AMDEncryptedVirtualizationNestedPaging"),
		NestedVirtualization: enabledIf(spec.CPU.NestedVirtualization == "enabled"),
	}
}

// capaRest maps how machines get their data.
func (s findings) capaRest(a *infrav1.AWSMachine, spec *capaMachine) {
	const at = "spec.template.spec."
	o := ptr.Deref(spec.Metadata, capaMetadata{})
	a.Metadata = infrav1.AWSMetadata{
		Tokens: cmp.Or(infrav1.AWSMetadataTokens(o.Tokens), infrav1.AWSMetadataTokensOptional), HopLimit: cmp.Or(o.HopLimit, 1),
		IPv6: enabledIf(o.IPv6 == "enabled"), InstanceTags: enabledIf(o.Tags == "enabled"),
	}
	if o.Endpoint == "disabled" {
		s.addLost(at+"instanceMetadataOptions.httpEndpoint", "new machines reach the instance metadata service")
	}
	if insecure, _ := spec.CloudInit["insecureSkipSecretsManager"].(bool); !insecure && spec.Ignition == nil {
		s.addNote(at+"cloudInit", "new machines have their user data in the instance metadata, with a token that lets only them join")
	}
	if spec.Ignition != nil {
		s.addNote(at+"ignition", "new machines have their user data in the instance metadata, with a token that lets only them join")
		for _, field := range []string{"proxy", "tls"} {
			if spec.Ignition[field] != nil {
				s.addLost(at+"ignition."+field, "new machines fetch their user data from nowhere else: what else they fetch, they fetch without it")
			}
		}
	}
	if spec.UncompressedUserData != nil {
		s.addNote(at+"uncompressedUserData", "Drover decides which user data are compressed")
	}
}
