// SPDX-License-Identifier: Apache-2.0

// Package aws is the driver for Amazon EC2: it turns requests into calls of AWS's SDK, and answers
// into resources. It imports no Kubernetes client and no other driver. All its traffic goes through
// the account's transport.
package aws

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

const (
	// maxUserData is the driver's limit in bytes; above EC2's limit the driver compresses the data.
	maxUserData = 64 << 10
	// maxBatch is the maximum number of values in one EC2 filter.
	maxBatch = 200

	maxTagKey, maxTagValue = 128, 256
)

// union selects AWS's members of DroverAccount and DroverMachine.
var union = driverkit.Fields[infrav1.AWSAccount, infrav1.AWSMachine]{
	Account:      func(a *infrav1.DroverAccountSpec) *infrav1.AWSAccount { return a.Cloud.AWS },
	Machine:      func(m *infrav1.DroverMachineFields) *infrav1.AWSMachine { return m.Cloud.AWS },
	CheckAccount: validateAccount,
	CheckMachine: validateMachine,
}

// Cloud returns AWS's entry in the registry.
func Cloud() cloud.Cloud {
	return cloud.Cloud{
		Name:     "aws",
		Union:    union,
		New:      newDriver,
		Endpoint: func(spec *infrav1.DroverAccountSpec) string { return spec.Cloud.AWS.Endpoint },
		// EC2's user guide, "Request throttling for the Amazon EC2 API". The limits apply to each
		// region of an AWS account, and others may share it, so deletes use half of the limit.
		Limits: cloud.Limits{
			Create: cloud.Limit{PerSecond: 2, Burst: 5},
			Delete: cloud.Limit{PerSecond: 2.5, Burst: 50},
			Read:   cloud.Limit{PerSecond: 20, Burst: 100},
		},
		Traits: cloud.Traits{
			ReadLag:          consistency,
			TerminationTime:  shutdown,
			CascadesDelete:   true, // set in blockDevices and networkInterfaces
			ZonalIdempotency: true,
		},
		CheckUserData: func(data []byte) error {
			_, err := userData(data)
			return err
		},
		Batch: cloud.Batch{Read: maxBatch, Delete: maxBatch},
		ProviderID: func(*infrav1.DroverAccountSpec) string {
			return providerID("{{ v1.availability_zone }}", "{{ v1.instance_id }}")
		},
	}
}

// providerID returns the provider ID as AWS's cloud controller writes it, in every partition.
func providerID(zone, id string) string { return "aws:///" + zone + "/" + id }

func validateAccount(spec *infrav1.DroverAccountSpec, path *field.Path) (all field.ErrorList) {
	a := spec.Cloud.AWS
	path = path.Child("cloud", "aws")
	if a.Endpoint != "" && spec.CredentialsRef.Name == "" {
		all = append(all, field.Forbidden(path.Child("endpoint"), "a custom endpoint needs its own credentials: set credentialsRef"))
	}
	if queue := a.InterruptionQueue; queue.URL != "" && a.Endpoint == "" && !inRegion(queue.URL, a.Region) {
		all = append(all, field.Invalid(path.Child("interruptionQueue", "url"), queue.URL,
			fmt.Sprintf("must be the https:// URL of a queue in the account's region, %s", a.Region)))
	}
	return all
}

// inRegion reports whether a queue's URL, in any of AWS's forms, is in the region.
func inRegion(queue, region string) bool {
	u, err := url.Parse(queue)
	return err == nil && u.Scheme == "https" && slices.Contains(strings.Split(u.Hostname(), "."), region)
}

func validateMachine(m *infrav1.AWSMachine, path *field.Path) field.ErrorList {
	path = path.Child("cloud", "aws")
	all := validateTags(m.Tags, path.Child("tags"))
	if root := m.RootVolume; root != nil {
		all = append(all, validateVolume(root, path.Child("rootVolume"))...)
	}
	for i := range m.Volumes {
		volume, path := &m.Volumes[i], path.Child("volumes").Index(i)
		if volume.SizeGiB == 0 && volume.SnapshotID == "" {
			all = append(all, field.Required(path.Child("sizeGiB"), "required for a disk without a snapshot"))
		}
		all = append(all, validateVolume(&volume.AWSVolume, path)...)
	}
	if m.PrimaryIPv6 == infrav1.FeatureEnabled && m.IPv6AddressCount == 0 {
		all = append(all, field.Required(path.Child("ipv6AddressCount"), "primaryIPv6 requires an IPv6 address"))
	}
	if m.Market.Type == infrav1.AWSMarketCapacityBlock &&
		(m.CapacityReservation == nil || m.CapacityReservation.ID == "") {
		all = append(all, field.Required(path.Child("capacityReservation", "id"),
			"market type capacity-block requires the ID of the Capacity Block"))
	}
	return all
}

func validateVolume(v *infrav1.AWSVolume, path *field.Path) field.ErrorList {
	if v.KMSKeyID != "" && v.Encryption == infrav1.FeatureDisabled {
		return field.ErrorList{field.Forbidden(path.Child("kmsKeyID"), "only an encrypted disk has a key")}
	}
	return nil
}

func validateTags(tags map[string]string, path *field.Path) (all field.ErrorList) {
	for key, value := range tags {
		switch {
		case key == "" || len(key) > maxTagKey || len(value) > maxTagValue:
			all = append(all, field.Invalid(path.Key(cloud.Clip(key, maxTagKey)), cloud.Clip(value, maxTagValue),
				fmt.Sprintf("a tag must have a key of 1 to %d bytes and a value of at most %d bytes", maxTagKey, maxTagValue)))
		case strings.HasPrefix(strings.ToLower(key), "aws:"), strings.HasPrefix(key, "drover-"):
			all = append(all, field.Forbidden(path.Key(key), "the prefixes \"aws:\" and \"drover-\" are reserved"))
		}
	}
	return all
}
