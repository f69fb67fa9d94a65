// SPDX-License-Identifier: Apache-2.0

package armstub

import (
	"k8s.io/utils/ptr"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

func networkID(path string) string {
	return "/subscriptions/" + Subscription + "/resourceGroups/net/providers/Microsoft.Network/" + path
}

// Everything sets all fields of a machine that can be set together.
func Everything(m *infrav1.AzureMachine) {
	const on = infrav1.FeatureEnabled
	m.NetworkInterfaces = []infrav1.AzureNetworkInterface{{
		SubnetID: Subnet, AcceleratedNetworking: on, IPForwarding: on, IPv6: on,
		PublicIP: &infrav1.AzurePublicIP{PrefixID: networkID("publicIPPrefixes/p")}, SecurityGroupID: networkID("networkSecurityGroups/g"),
		ApplicationSecurityGroupIDs:      []string{networkID("applicationSecurityGroups/g")},
		LoadBalancerBackendPoolIDs:       []string{networkID("loadBalancers/l/backendAddressPools/p")},
		ApplicationGatewayBackendPoolIDs: []string{networkID("applicationGateways/g/backendAddressPools/p")}, DNSServers: []string{"10.0.0.10"},
	}, {SubnetID: Subnet}}
	m.OSDisk = &infrav1.AzureOSDisk{SizeGiB: 64, Type: infrav1.AzureOSDiskPremiumLRS, DiskEncryptionSetID: "/subscriptions/s/des",
		SecurityEncryptionType: infrav1.AzureDiskWithVMGuestState}
	m.DataDisks = []infrav1.AzureDataDisk{{LUN: new(int32), SizeGiB: 10, Type: infrav1.AzureDataDiskUltraSSDLRS, IOPS: 5000, MBPS: 200},
		{LUN: ptr.To[int32](3), SnapshotID: "/subscriptions/s/snap", Caching: infrav1.AzureCachingReadOnly}}
	m.ScaleSetID, m.ProximityPlacementGroupID, m.CapacityReservationGroupID = "/subscriptions/s/vmss", "/subscriptions/s/ppg",
		"/subscriptions/s/crg"
	domain := int32(1)
	m.FaultDomain = &domain
	m.Identity = &infrav1.AzureIdentity{System: on, UserIDs: []string{"/subscriptions/s/identity"}}
	m.Spot = &infrav1.AzureSpot{EvictionPolicy: infrav1.AzureEvictionDelete, MaxPriceUSD: "0.05"}
	m.Security = infrav1.AzureSecurity{EncryptionAtHost: on, Type: infrav1.AzureSecurityConfidentialVM, SecureBoot: on, VTPM: on}
	m.UltraSSD, m.DiskController, m.LicenseType, m.Extensions = on, infrav1.AzureDiskControllerNVMe, "RHEL_BYOS", on
	m.BootDiagnosticsStorageURI, m.AdminUsername, m.SSHKeys = "https://x.blob.core.windows.net/", "ops", []string{"ssh-ed25519 AAAA ops"}
	m.Image = infrav1.AzureImage{ID: PaidImage, Plan: infrav1.AzurePlan{Publisher: Paid, Product: Paid, Name: Paid}}
	m.Tags = map[string]string{"cost-center": "4711", cloud.TagToken: "stolen"}
}
