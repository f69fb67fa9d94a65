// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// These are the API versions of Cluster API's provider for OpenStack. Later ones serve v1beta1,
// too.
var (
	capoAPI       = schema.GroupVersion{Group: "infrastructure.cluster.x-k8s.io", Version: "v1beta1"}
	capoServerAPI = schema.GroupVersion{Group: "infrastructure.cluster.x-k8s.io", Version: "v1alpha1"}
)

// These types have the fields of Cluster API's provider for OpenStack, v0.14. Of an
// OpenStackCluster and an OpenStackServer, they have those that say what the provider makes
// machines from.
type (
	capoMachine struct {
		ProviderID        *string         `json:"providerID"`
		Flavor            *string         `json:"flavor"`
		FlavorID          *string         `json:"flavorID"`
		Image             capoImage       `json:"image"`
		KeyName           string          `json:"sshKeyName"`
		Ports             []capoPort      `json:"ports"`
		SecurityGroups    []capoReference `json:"securityGroups"`
		Trunk             bool            `json:"trunk"`
		Tags              []string        `json:"tags"`
		ServerMetadata    []capoPair      `json:"serverMetadata"`
		ConfigDrive       *bool           `json:"configDrive"`
		RootVolume        *capoRootVolume `json:"rootVolume"`
		BlockDevices      []capoDevice    `json:"additionalBlockDevices"`
		ServerGroup       *capoReference  `json:"serverGroup"`
		IdentityRef       *capoIdentity   `json:"identityRef"`
		FloatingIPPoolRef map[string]any  `json:"floatingIPPoolRef"`
		SchedulerHints    []capoHint      `json:"schedulerHintAdditionalProperties"`
	}
	capoImage struct {
		ID       *string          `json:"id"`
		Filter   *capoImageFilter `json:"filter"`
		ImageRef map[string]any   `json:"imageRef"`
	}
	capoImageFilter struct {
		Name *string  `json:"name"`
		Tags []string `json:"tags"`
	}
	// capoReference is to a network, a subnet, a security group or a server group.
	capoReference struct {
		ID     *string        `json:"id"`
		Filter map[string]any `json:"filter"`
	}
	capoPort struct {
		Network               *capoReference   `json:"network"`
		Description           *string          `json:"description"`
		NameSuffix            *string          `json:"nameSuffix"`
		FixedIPs              []capoFixedIP    `json:"fixedIPs"`
		SecurityGroups        []capoReference  `json:"securityGroups"`
		Tags                  []string         `json:"tags"`
		Trunk                 *bool            `json:"trunk"`
		AdminStateUp          *bool            `json:"adminStateUp"`
		MACAddress            *string          `json:"macAddress"`
		AllowedAddressPairs   []capoAddresses  `json:"allowedAddressPairs"`
		HostID                *string          `json:"hostID"`
		VNICType              *string          `json:"vnicType"`
		Profile               *capoProfile     `json:"profile"`
		DisablePortSecurity   *bool            `json:"disablePortSecurity"`
		PropagateUplinkStatus *bool            `json:"propagateUplinkStatus"`
		ValueSpecs            []map[string]any `json:"valueSpecs"`
	}
	capoFixedIP struct {
		Subnet    *capoReference `json:"subnet"`
		IPAddress *string        `json:"ipAddress"`
	}
	capoAddresses struct {
		IPAddress  string  `json:"ipAddress"`
		MACAddress *string `json:"macAddress"`
	}
	capoProfile struct {
		OVSHWOffload *bool `json:"ovsHWOffload"`
		TrustedVF    *bool `json:"trustedVF"`
	}
	capoPair struct {
		Key   string `json:"key"`
		Value string `json:"value"`
	}
	capoRootVolume struct {
		SizeGiB          int32     `json:"sizeGiB"`
		Type             string    `json:"type"`
		AvailabilityZone *capoZone `json:"availabilityZone"`
	}
	capoZone struct {
		From string `json:"from"`
		Name string `json:"name"`
	}
	capoDevice struct {
		Name    string      `json:"name"`
		SizeGiB int32       `json:"sizeGiB"`
		Storage capoStorage `json:"storage"`
	}
	capoStorage struct {
		Type   string      `json:"type"`
		Volume *capoVolume `json:"volume"`
	}
	capoVolume struct {
		Type             string    `json:"type"`
		AvailabilityZone *capoZone `json:"availabilityZone"`
	}
	capoIdentity struct {
		Type      string `json:"type"`
		Name      string `json:"name"`
		CloudName string `json:"cloudName"`
		Region    string `json:"region"`
	}
	capoHint struct {
		Name  string    `json:"name"`
		Value capoValue `json:"value"`
	}
	capoValue struct {
		Type   string  `json:"type"`
		Bool   *bool   `json:"bool"`
		Number *int64  `json:"number"`
		String *string `json:"string"`
	}
	capoCluster struct {
		Spec struct {
			IdentityRef capoIdentity    `json:"identityRef"`
			Tags        []string        `json:"tags"`
			Subnets     []capoReference `json:"subnets"`
			Primary     *capoReference  `json:"primarySubnet"` // from v0.15 on
			Groups      map[string]any  `json:"managedSecurityGroups"`
		} `json:"spec"`
		Status struct {
			Network struct {
				ID string `json:"id"`
			} `json:"network"`
			WorkerGroup struct {
				ID string `json:"id"`
			} `json:"workerSecurityGroup"`
		} `json:"status"`
	}
	capoServerStatus struct {
		InstanceID string    `json:"instanceID"`
		Resolved   capoFound `json:"resolved"`
		Resources  struct {
			Ports []struct {
				ID string `json:"id"`
			} `json:"ports"`
		} `json:"resources"`
	}
	// capoFound is what the provider has found by the references of a template.
	capoFound struct {
		ServerGroupID string          `json:"serverGroupID"`
		ImageID       string          `json:"imageID"`
		Ports         []capoFoundPort `json:"ports"`
	}
	capoFoundPort struct {
		NetworkID string `json:"networkID"`
		FixedIPs  []struct {
			SubnetID string `json:"subnet"`
		} `json:"fixedIPs"`
		SecurityGroups []string `json:"securityGroups"`
	}
)

// id returns the ID of what is referred to, or "".
func (r *capoReference) id() string {
	if r == nil {
		return ""
	}
	return ptr.Deref(r.ID, "")
}

// text returns the ID of what is referred to, or its name if the filter has nothing else, or "".
func (r *capoReference) text() string {
	if name, _ := r.Filter["name"].(string); len(r.Filter) == 1 {
		return cmp.Or(r.id(), name)
	}
	return r.id()
}

// capo maps an OpenStackMachineTemplate to the fields of a machine, with what the provider takes
// from the OpenStackCluster. Its servers have no metadata of the provider's: it knows them by their
// ID.
func (m *CAPI) capo(p *Plan, pool *Pool, o *unstructured.Unstructured, target *Target) {
	const at = "spec.template.spec"
	s := p.findingsFor("OpenStackMachineTemplate", o.GetName())
	template, _, _ := unstructured.NestedMap(o.Object, "spec", "template")
	spec := &capoMachine{}
	if !s.decode(map[string]any{at: template["spec"]}, at, spec) {
		return
	}
	cluster := &capoCluster{}
	about, ok := m.infrastructureCluster(p, "OpenStackCluster", cluster)
	if !ok {
		return
	}
	about.region("spec.identityRef.region", cluster.Spec.IdentityRef.Region, target)
	if spec.IdentityRef != nil {
		s.region(at+".identityRef.region", spec.IdentityRef.Region, target)
	}
	found := m.capoFound(o.GetName())
	a := &infrav1.OpenStackMachine{
		Flavor: ptr.Deref(cmp.Or(spec.FlavorID, spec.Flavor), ""), KeyName: spec.KeyName,
		ConfigDrive: stateOf(ptr.Deref(spec.ConfigDrive, false)),
		Image:       s.capoImage(&spec.Image, found),
	}
	for _, pair := range spec.ServerMetadata {
		if a.Metadata == nil {
			a.Metadata = map[string]string{}
		}
		a.Metadata[pair.Key] = pair.Value
	}
	for _, tag := range slices.Concat(spec.Tags, cluster.Spec.Tags) {
		if !slices.Contains(a.Tags, tag) {
			a.Tags = append(a.Tags, tag)
		}
	}
	if len(a.Tags) > 0 {
		s.addNote(at+".tags", "new servers have them, and those of the OpenStackCluster, but their ports and trunks do not")
	}
	s.capoPorts(a, spec, cluster, found)
	s.capoDisks(a, spec)
	s.capoPlace(a, spec, found)
	pool.Machine, pool.Keys, pool.sizeByID = target.fields(infrav1.DroverMachineFields{Cloud: infrav1.MachineCloud{OpenStack: a}}),
		[]string{nameKey}, spec.FlavorID != nil
}

// capoFound returns what the provider has found for a machine of a template.
func (m *CAPI) capoFound(template string) (found capoFound) {
	at := slices.IndexFunc(m.VMs, func(vm unstructured.Unstructured) bool {
		return vm.GetKind() == "OpenStackMachine" && vm.GetAnnotations()[clusterv1.TemplateClonedFromNameAnnotation] == template &&
			m.capoServer(&vm) != nil
	})
	if at >= 0 {
		found = capoStatus(m.capoServer(&m.VMs[at])).Resolved
	}
	return found
}

// capoServer returns the OpenStackServer of an OpenStackMachine, or nil.
func (m *CAPI) capoServer(vm *unstructured.Unstructured) *unstructured.Unstructured {
	at := slices.IndexFunc(m.Servers, func(o unstructured.Unstructured) bool {
		return o.GetName() == vm.GetName() && slices.ContainsFunc(o.GetOwnerReferences(),
			func(ref metav1.OwnerReference) bool { return ref.UID == vm.GetUID() })
	})
	if at < 0 {
		return nil
	}
	return &m.Servers[at]
}

// capoStatus returns the status of an OpenStackServer. What can't be read is as if it were missing.
func capoStatus(o *unstructured.Unstructured) (status capoServerStatus) {
	data, err := json.Marshal(o.Object["status"])
	if err != nil || json.Unmarshal(data, &status) != nil {
		return capoServerStatus{}
	}
	return status
}

func (s findings) capoImage(from *capoImage, found capoFound) (image infrav1.OpenStackImage) {
	const at = "spec.template.spec.image."
	switch {
	case from.ID != nil:
		image.ID = *from.ID
	case from.Filter != nil:
		image.Name, image.Tags = ptr.Deref(from.Filter.Name, ""), from.Filter.Tags
	case found.ImageID != "":
		image.ID = found.ImageID
		s.addNote(at+"imageRef", "new machines get the image that the Image has now, %s", image.ID)
	default:
		s.addRefused(at+"imageRef", "no OpenStackServer of this template says which image it is: name its ID")
	}
	return image
}

// capoPorts maps the ports as the provider completes them: one without a network is in that of the
// cluster, and one without groups in that of the cluster's workers.
func (s findings) capoPorts(a *infrav1.OpenStackMachine, spec *capoMachine, cluster *capoCluster, found capoFound) {
	ports := spec.Ports
	if len(ports) == 0 {
		ports = make([]capoPort, 1)
	}
	for i := range ports {
		from, is := &ports[i], capoFoundPort{}
		if i < len(found.Ports) {
			is = found.Ports[i]
		}
		port := infrav1.OpenStackPort{
			MACAddress: ptr.Deref(from.MACAddress, ""), VNICType: infrav1.OpenStackVNICType(ptr.Deref(from.VNICType, "")),
			Trunk: enabledIf(ptr.Deref(from.Trunk, spec.Trunk)),
		}
		s.capoNetwork(&port, from, cluster, is)
		if from.DisablePortSecurity != nil {
			port.PortSecurity = stateOf(!*from.DisablePortSecurity)
		}
		if !ptr.Deref(from.DisablePortSecurity, false) {
			port.SecurityGroups = s.capoGroups(from, spec, cluster, is)
			for _, pair := range from.AllowedAddressPairs {
				port.AllowedAddressPairs = append(port.AllowedAddressPairs,
					infrav1.OpenStackAddressPair{IPAddress: pair.IPAddress, MACAddress: ptr.Deref(pair.MACAddress, "")})
			}
		}
		if ptr.Deref(ptr.Deref(from.Profile, capoProfile{}).TrustedVF, false) {
			port.BindingProfile = map[string]string{"trusted": "true"}
		}
		s.capoPortRest(from, &port)
		a.Ports = append(a.Ports, port)
	}
}

// capoNetwork chooses the network and the subnets of a port.
func (s findings) capoNetwork(port *infrav1.OpenStackPort, from *capoPort, cluster *capoCluster, found capoFoundPort) {
	const at = "spec.template.spec.ports."
	fixed := from.FixedIPs
	switch {
	case from.Network != nil:
		port.Network = cmp.Or(from.Network.text(), found.NetworkID)
	case cluster.Status.Network.ID != "":
		port.Network, fixed = cluster.Status.Network.ID, nil
		if primary := cluster.Spec.Primary; primary != nil {
			// It may have changed since the machines were made, so what they have does not say which one it is.
			if primary.id() == "" {
				s.addRefused(at+"fixedIPs.subnet", "the OpenStackCluster's primarySubnet has no ID: name its ID")
				break
			}
			fixed = []capoFixedIP{{Subnet: primary}}
			break
		}
		for i := range cluster.Spec.Subnets {
			fixed = append(fixed, capoFixedIP{Subnet: &cluster.Spec.Subnets[i]})
		}
	default:
		port.Network = found.NetworkID
	}
	if port.Network == "" {
		s.addRefused(at+"network", "it has no ID and not only a name, and no OpenStackServer of this template says which one it is: name its ID")
	}
	for i, ip := range fixed {
		one := infrav1.OpenStackFixedIP{SubnetID: ip.Subnet.id(), IPAddress: ptr.Deref(ip.IPAddress, "")}
		if ip.Subnet != nil && one.SubnetID == "" && i < len(found.FixedIPs) {
			one.SubnetID = found.FixedIPs[i].SubnetID
		}
		if ip.Subnet != nil && one.SubnetID == "" {
			s.addRefused(at+"fixedIPs.subnet", "it has no ID, and no OpenStackServer of this template says which one it is: name its ID")
			continue
		}
		if one != (infrav1.OpenStackFixedIP{}) { // any address
			port.FixedIPs = append(port.FixedIPs, one)
		}
	}
}

// capoGroups returns the security groups of a port. Those of the machine are added to its own.
func (s findings) capoGroups(from *capoPort, spec *capoMachine, cluster *capoCluster, found capoFoundPort) (groups []string) {
	all := slices.Clone(from.SecurityGroups)
	if id := cluster.Status.WorkerGroup.ID; len(all) == 0 && cluster.Spec.Groups != nil && id != "" {
		all = append(all, capoReference{ID: &id})
	}
	for _, group := range append(all, spec.SecurityGroups...) {
		text := group.text()
		if text == "" && len(found.SecurityGroups) > 0 {
			return found.SecurityGroups
		}
		if text == "" {
			s.addRefused("spec.template.spec.securityGroups",
				"one has no ID and not only a name, and no OpenStackServer of this template says which one it is: name its ID")
		} else if !slices.Contains(groups, text) {
			groups = append(groups, text)
		}
	}
	return groups
}

// capoPortRest says what ports of new machines lack.
func (s findings) capoPortRest(from *capoPort, port *infrav1.OpenStackPort) {
	const at = "spec.template.spec.ports."
	if port.Trunk == infrav1.FeatureEnabled {
		s.addNote(at+"trunk", "a trunk goes with its machine, and the ports of its subports stay: the provider deletes these, too")
	}
	if len(from.Tags) > 0 {
		s.addLost(at+"tags", "new ports have none: set DroverMachine.spec.cloud.openstack.ports[].tags in the next template, if your Neutron accepts tags for new ports")
	}
	if !ptr.Deref(from.AdminStateUp, true) {
		s.addLost(at+"adminStateUp", "new ports are up")
	}
	if from.HostID != nil {
		s.addLost(at+"hostID", "new ports are bound to the host of their server")
	}
	if ptr.Deref(ptr.Deref(from.Profile, capoProfile{}).OVSHWOffload, false) {
		s.addLost(at+"profile.ovsHWOffload", "Nova asks for the offload itself, from the release Yoga (2022) on")
	}
	if from.PropagateUplinkStatus != nil {
		s.addLost(at+"propagateUplinkStatus", "new ports have Neutron's default")
	}
	if len(from.ValueSpecs) > 0 {
		s.addLost(at+"valueSpecs", "new ports are made without them")
	}
}

func (s findings) capoDisks(a *infrav1.OpenStackMachine, spec *capoMachine) {
	const at = "spec.template.spec.additionalBlockDevices"
	volume := func(size int32, kind string, zone *capoZone) infrav1.OpenStackVolume {
		v, z := infrav1.OpenStackVolume{SizeGiB: size, Type: kind}, ptr.Deref(zone, capoZone{})
		if v.InMachineZone = enabledIf(z.From == "Machine"); v.InMachineZone == "" {
			v.AvailabilityZone = z.Name
		}
		return v
	}
	if root := spec.RootVolume; root != nil {
		a.RootVolume = volume(root.SizeGiB, root.Type, root.AvailabilityZone)
	}
	for _, device := range spec.BlockDevices {
		if device.Storage.Type != "Volume" {
			s.addLost(at, "new machines do not have %s, which is on the host", device.Name)
			continue
		}
		of := ptr.Deref(device.Storage.Volume, capoVolume{})
		a.Volumes = append(a.Volumes, volume(device.SizeGiB, of.Type, of.AvailabilityZone))
		s.addNote(at, "the volume %s of new machines has no name and no tag by which they find it: it is one of /dev/vdb, /dev/vdc and so on, in this order", device.Name)
	}
}

// capoPlace maps where servers are placed, and what else they get.
func (s findings) capoPlace(a *infrav1.OpenStackMachine, spec *capoMachine, found capoFound) {
	const at = "spec.template.spec."
	if spec.ServerGroup != nil {
		if a.ServerGroupID = cmp.Or(spec.ServerGroup.id(), found.ServerGroupID); a.ServerGroupID == "" {
			s.addRefused(at+"serverGroup", "it has no ID, and no OpenStackServer of this template says which one it is: name its ID")
		}
	}
	for _, hint := range spec.SchedulerHints {
		if hint.Value.String == nil {
			s.addLost(at+"schedulerHintAdditionalProperties", "new servers do not have the hint %s, which is a %s: Drover's are texts", hint.Name,
				strings.ToLower(hint.Value.Type))
			continue
		}
		if a.SchedulerHints == nil {
			a.SchedulerHints = map[string]string{}
		}
		a.SchedulerHints[hint.Name] = *hint.Value.String
	}
	if len(spec.FloatingIPPoolRef) > 0 {
		s.addLost(at+"floatingIPPoolRef", "new machines get no addresses of a pool, and those of the old machines stay claimed: set DroverMachine.spec.cloud.openstack.ports[].floatingNetwork in the next template")
	}
}

// capoMachine completes a machine with the ports that the provider deletes together with its
// server. Nova deletes the volumes.
func (m *CAPI) capoMachine(p *Plan, vm *unstructured.Unstructured, machine *Machine) {
	o := m.capoServer(vm)
	if o == nil {
		p.findingsFor(vm.GetKind(), vm.GetName()).addRefused("", "it has no OpenStackServer: the provider must be of version 0.12 or later")
		return
	}
	s := p.findingsFor(o.GetKind(), o.GetName())
	if o.GetDeletionTimestamp() != nil {
		s.addRefused("metadata.deletionTimestamp", "it is being deleted")
	}
	if of := o.GetLabels()[clusterv1.ClusterNameLabel]; of != m.Cluster.GetName() {
		s.addRefused("metadata.labels", "%s is %q, so its controller does not see that Cluster %s is paused", clusterv1.ClusterNameLabel, of,
			m.Cluster.GetName())
	}
	status := capoStatus(o)
	if status.InstanceID != machine.Instance {
		s.addRefused("status.instanceID", "it is %q, but Node %s has %q: they are not the same server", status.InstanceID, machine.Node,
			machine.ProviderID)
	}
	if len(status.Resources.Ports) == 0 {
		s.addRefused("status.resources.ports", "there is none: wait until the provider has written which ports are the server's own")
	}
	for _, port := range status.Resources.Ports {
		machine.OwnedResources = append(machine.OwnedResources, port.ID)
	}
}
