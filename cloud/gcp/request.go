// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
	"github.com/drover-io/drover/internal/naming"
)

// maxName is the longest name of an instance.
const maxName = 63

// instanceName returns the name of the instance: its Node's, because the cloud controller looks for
// some resources by that. But a name in Compute Engine has no dots, and begins with a letter.
func instanceName(req cloud.Request) string {
	name := naming.NodeName(req.Name)
	if name[0] >= '0' && name[0] <= '9' {
		name = "m." + name // the dot leads to a digest, so that no other machine has the name
	}
	return driverkit.HostName(name, maxName)
}

// requestID returns the ID by which Compute Engine recognizes a repeated request. It returns the
// first operation again, even one that failed: so the ID differs after each failure, and in each
// zone.
func requestID(req cloud.Request, zone string, failures int) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{req.Token, strconv.Itoa(req.Attempt), zone, strconv.Itoa(failures)}, "/")))
	id := uuid.UUID(sum[:16])
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80 // version 8: made from a digest (RFC 9562)
	return id.String()
}

// encodeUserData returns the user data as a value of the metadata, and how it is encoded: "" or
// "base64". A value is text.
func encodeUserData(data []byte) (value, encoding string) {
	control := func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' && r != '\r' }
	if utf8.Valid(data) && !strings.ContainsFunc(string(data), control) {
		return string(data), ""
	}
	return base64.StdEncoding.EncodeToString(data), "base64"
}

// maker makes the request that creates a whole machine.
type maker struct {
	account *infrav1.GCPAccount
	zone    string
	spec    *infrav1.GCPMachine
	labels  map[string]string
}

func (d *driver) instanceRequest(req cloud.Request, spec *infrav1.GCPMachine, zone string) *instance {
	m := maker{account: d.account, zone: zone, spec: spec, labels: labelsFor(req, spec)}
	out := &instance{
		Name:                instanceName(req),
		Description:         cloud.Clip("DroverMachine "+req.Namespace+"/"+req.Name, 512),
		MachineType:         "zones/" + zone + "/machineTypes/" + spec.MachineType,
		MinCPUPlatform:      spec.MinCPUPlatform,
		CanIPForward:        spec.IPForwarding == infrav1.FeatureEnabled,
		Labels:              m.labels,
		Disks:               m.disks(),
		NetworkInterfaces:   m.networkInterfaces(),
		Metadata:            metadataFor(req, spec),
		Scheduling:          schedulingFor(spec),
		ReservationAffinity: reservationFor(spec.Reservation),
	}
	if len(spec.NetworkTags) > 0 {
		out.Tags = &networkTags{Items: spec.NetworkTags}
	}
	if a := spec.ServiceAccount; a != nil {
		scopes := a.Scopes
		if len(scopes) == 0 {
			scopes = []string{scopeAll}
		}
		out.ServiceAccounts = []serviceAccount{{Email: cmp.Or(a.Email, "default"), Scopes: scopes}}
	}
	for _, a := range spec.Accelerators {
		out.GuestAccelerators = append(out.GuestAccelerators, accelerator{m.zonal("acceleratorTypes", a.Type), a.Count})
	}
	if s := spec.Shielded; s != (infrav1.GCPShielded{}) {
		out.Shielded = &shielded{driverkit.Bool(s.SecureBoot), driverkit.Bool(s.VTPM), driverkit.Bool(s.IntegrityMonitoring)}
	}
	if spec.ConfidentialType != "" {
		out.Confidential = &confidential{true, string(spec.ConfidentialType)}
	}
	if nested := spec.NestedVirtualization == infrav1.FeatureEnabled; nested || spec.ThreadsPerCore > 0 || spec.VisibleCores > 0 {
		out.AdvancedFeatures = &advancedFeatures{nested, spec.ThreadsPerCore, spec.VisibleCores}
	}
	if spec.PlacementPolicy != "" {
		out.ResourcePolicies = []string{"projects/" + d.account.ProjectID + "/regions/" + d.account.Region + "/resourcePolicies/" +
			spec.PlacementPolicy}
	}
	if len(spec.ResourceManagerTags) > 0 {
		out.Params = &instanceParams{spec.ResourceManagerTags}
	}
	return out
}

// zonal returns the path of a resource in the machine's zone.
func (m maker) zonal(collection, name string) string {
	return "projects/" + m.account.ProjectID + "/zones/" + m.zone + "/" + collection + "/" + name
}

// labelsFor returns the labels of the instance and its disks. A label can't hold cloud.TagMachine.
func labelsFor(req cloud.Request, spec *infrav1.GCPMachine) map[string]string {
	labels := maps.Clone(spec.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[cloud.TagOwnership], labels[cloud.TagToken] = req.OwnershipID, req.Token
	return labels
}

func metadataFor(req cloud.Request, spec *infrav1.GCPMachine) *metadata {
	value, encoding := encodeUserData(req.UserData)
	out := &metadata{Items: []metadataItem{{"user-data", value}}}
	if encoding != "" {
		out.Items = append(out.Items, metadataItem{"user-data-encoding", encoding})
	}
	for _, key := range slices.Sorted(maps.Keys(spec.Metadata)) {
		if key != "user-data" && key != "user-data-encoding" {
			out.Items = append(out.Items, metadataItem{key, spec.Metadata[key]})
		}
	}
	return out
}

func (m maker) disks() []attachedDisk {
	first := m.disk(&m.spec.BootDisk, &m.spec.Image)
	first.Boot = true
	all := []attachedDisk{first}
	for i := range m.spec.Disks {
		d := m.disk(&m.spec.Disks[i].GCPDisk, &m.spec.Disks[i].Source)
		d.DeviceName = m.spec.Disks[i].DeviceName
		all = append(all, d)
	}
	for range m.spec.LocalSSDs.Count {
		all = append(all, attachedDisk{
			Type: "SCRATCH", AutoDelete: true, Interface: string(cmp.Or(m.spec.LocalSSDs.Interface, infrav1.GCPDiskInterfaceNVMe)),
			InitializeParams: &initializeParams{DiskType: m.zonal("diskTypes", "local-ssd")},
		})
	}
	return all
}

func (m maker) disk(spec *infrav1.GCPDisk, source *infrav1.GCPImage) attachedDisk {
	params := &initializeParams{
		DiskSizeGB: spec.SizeGiB, ProvisionedIOPS: spec.IOPS, ProvisionedThroughput: spec.ThroughputMiBps,
		Labels: m.labels, ResourceManagerTags: m.spec.ResourceManagerTags,
	}
	if spec.Type != "" {
		params.DiskType = m.zonal("diskTypes", spec.Type)
	}
	if spec.StoragePool != "" {
		params.StoragePool = m.zonal("storagePools", spec.StoragePool)
	}
	if *source != (infrav1.GCPImage{}) {
		global := "projects/" + cmp.Or(source.Project, m.account.ProjectID) + "/global/"
		switch {
		case source.Snapshot != "":
			params.SourceSnapshot = global + "snapshots/" + source.Snapshot
		case source.Family != "":
			params.SourceImage = global + "images/family/" + source.Family
		default:
			params.SourceImage = global + "images/" + source.Name
		}
	}
	out := attachedDisk{Type: "PERSISTENT", AutoDelete: true, InitializeParams: params}
	if key := spec.KMSKey; key.Name != "" {
		out.EncryptionKey = &encryptionKey{key.Name, key.ServiceAccount}
	}
	return out
}

func (m maker) networkInterfaces() (all []networkInterface) {
	for i := range m.spec.NetworkInterfaces {
		spec := &m.spec.NetworkInterfaces[i]
		project := "projects/" + cmp.Or(spec.HostProject, m.account.ProjectID)
		out := networkInterface{StackType: string(spec.StackType), NICType: string(spec.NICType), QueueCount: spec.QueueCount}
		if spec.Network != "" {
			out.Network = networkPath(m.account, spec.HostProject, spec.Network)
		}
		if spec.Subnetwork != "" {
			out.Subnetwork = project + "/regions/" + m.account.Region + "/subnetworks/" + spec.Subnetwork
		}
		if public := spec.PublicIP; public != nil {
			out.AccessConfigs = []accessConfig{{Type: "ONE_TO_ONE_NAT", Name: "External NAT", NetworkTier: string(public.NetworkTier)}}
		}
		if spec.PublicIPv6 == infrav1.FeatureEnabled {
			out.IPv6AccessConfigs = []accessConfig{{Type: "DIRECT_IPV6", Name: "External IPv6", NetworkTier: string(infrav1.GCPNetworkTierPremium)}}
		}
		for _, r := range spec.AliasIPRanges {
			out.AliasIPRanges = append(out.AliasIPRanges, aliasIPRange{r.Range, r.SecondaryRange})
		}
		all = append(all, out)
	}
	return all
}

// networkPath returns the path of a network, which may be another project's.
func networkPath(account *infrav1.GCPAccount, hostProject, name string) string {
	return "projects/" + cmp.Or(hostProject, account.ProjectID) + "/global/networks/" + name
}

func schedulingFor(spec *infrav1.GCPMachine) *scheduling {
	out := &scheduling{
		ProvisioningModel: string(spec.ProvisioningModel), TerminationAction: string(spec.TerminationAction),
		AutomaticRestart: driverkit.Bool(spec.AutomaticRestart), OnHostMaintenance: string(spec.OnHostMaintenance),
	}
	if spec.MaxRunSeconds > 0 {
		out.MaxRunDuration = &duration{spec.MaxRunSeconds}
	}
	takenBack := spec.ProvisioningModel != "" && spec.ProvisioningModel != infrav1.GCPProvisioningStandard
	if (takenBack || spec.MaxRunSeconds > 0) && out.TerminationAction == "" {
		out.TerminationAction = string(infrav1.GCPTerminationDelete) // a stopped machine would stay as a Node that is not ready
	}
	if takenBack && out.AutomaticRestart == nil {
		out.AutomaticRestart = new(bool)
	}
	if spec.ProvisioningModel == infrav1.GCPProvisioningSpot {
		out.OnHostMaintenance = string(infrav1.GCPHostMaintenanceTerminate)
	}
	for _, a := range spec.NodeAffinities {
		out.NodeAffinities = append(out.NodeAffinities, nodeAffinity{a.Key, string(cmp.Or(a.Operator, infrav1.GCPNodeAffinityIn)), a.Values})
	}
	return out
}

func reservationFor(spec infrav1.GCPReservation) *reservationAffinity {
	if spec.Type == "" {
		return nil
	}
	out := &reservationAffinity{Type: string(spec.Type)}
	if spec.Name != "" {
		out.Key, out.Values = "compute.googleapis.com/reservation-name", []string{spec.Name}
	}
	return out
}

// tokensFilter returns a filter for the tokens, or for everything of Drover's if there are many.
func tokensFilter(wanted map[string]bool) string {
	if len(wanted) > maxTokens {
		return ownFilter
	}
	var terms []string
	for _, token := range slices.Sorted(maps.Keys(wanted)) {
		terms = append(terms, fmt.Sprintf("(labels.%s = %q)", cloud.TagToken, token))
	}
	return strings.Join(terms, " OR ")
}

// ownFilter selects everything of Drover's.
const ownFilter = "labels." + cloud.TagOwnership + ":*"
