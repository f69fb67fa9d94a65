// SPDX-License-Identifier: Apache-2.0

// Package gcp is the driver for virtual machines of Google's Compute Engine. It makes its own
// calls, without Google's SDK. It imports no Kubernetes client and no other driver. All its traffic
// goes through the account's transport.
package gcp

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

const (
	// maxMetadataValue is Compute Engine's limit for one value of the metadata, in bytes.
	maxMetadataValue = 256 << 10
	// maxDelete is how many deletions one Delete carries: at deletesAtOnce, they end within the
	// time of one call.
	maxDelete, deletesAtOnce = 100, 20
	// maxDescribe is how many machines one Describe carries: one page of a listing.
	maxDescribe = 500
	// maxTokens is how many tokens a filter names; more machines are read by a whole listing.
	maxTokens = 10
)

const (
	// readLag is how long a listing may miss an instance whose operation has begun. Google
	// documents no figure.
	readLag = 10 * time.Second
	// shutdown is how long an instance usually takes to be deleted.
	shutdown = 45 * time.Second
	// leftoversTTL is how often a listing looks for disks without an instance.
	leftoversTTL = 5 * time.Minute
	// machineTypeTTL is how long what is known of a machine type is cached.
	machineTypeTTL = 24 * time.Hour
	// zonesTTL is how long the region's zones are cached.
	zonesTTL = time.Hour
	// pollInterval is how often instances that are being made are looked at, all together.
	pollInterval = 2 * time.Second
	// maxCooldown is how long they are not looked at, at most, after a look that took long.
	maxCooldown = 30 * time.Second
	// replayAfter is how long an instance that is being made may be missing in reads before its
	// operation is asked for, and how long until the next time.
	replayAfter = 5 * time.Second
	// maxSkew is how much Google's clock and the manager's may differ, and maxReplays how many old
	// operations of one attempt are passed over in one call.
	maxSkew, maxReplays = time.Minute, 3
	// undecided is how long an instance that is being made is not returned because Compute Engine
	// may still refuse it.
	undecided = 2 * time.Minute
)

// googleapis is the domain of Google's own services.
const googleapis = "googleapis.com"

// union selects GCP's members of DroverAccount and DroverMachine.
var union = driverkit.Fields[infrav1.GCPAccount, infrav1.GCPMachine]{
	Account:      func(a *infrav1.DroverAccountSpec) *infrav1.GCPAccount { return a.Cloud.GCP },
	Machine:      func(m *infrav1.DroverMachineFields) *infrav1.GCPMachine { return m.Cloud.GCP },
	CheckAccount: validateAccount,
	CheckMachine: validateMachine,
}

// Cloud returns GCP's entry in the registry.
func Cloud() cloud.Cloud {
	return cloud.Cloud{
		Name:  "gcp",
		Union: union,
		New:   newDriver,
		Endpoint: func(spec *infrav1.DroverAccountSpec) string {
			a := spec.Cloud.GCP
			if a.Endpoint == "" && a.CABundle == "" && universeOf(a) == googleapis {
				return ""
			}
			return strings.Join([]string{a.Endpoint, universeOf(a), a.CABundle}, "\n")
		},
		// "Compute Engine API rate quotas": 1,500 creates and deletes a minute for each project and
		// region, but only 750 listings of all zones a minute for each project. Others share them.
		Limits: cloud.Limits{
			Create: cloud.Limit{PerSecond: 10, Burst: 100},
			Delete: cloud.Limit{PerSecond: 10, Burst: 100},
			Read:   cloud.Limit{PerSecond: 5, Burst: 50},
		},
		Traits: cloud.Traits{
			ReadLag:          readLag,
			TerminationTime:  shutdown,
			CascadesDelete:   true, // each disk has autoDelete
			ZonalIdempotency: true,
			Named:            true,
		},
		CheckUserData: func(data []byte) error {
			value, _ := encodeUserData(data)
			return driverkit.MaxUserData(maxMetadataValue)([]byte(value))
		},
		Batch: cloud.Batch{Read: maxDescribe, Delete: maxDelete},
		ProviderID: func(spec *infrav1.DroverAccountSpec) string {
			return providerID(spec.Cloud.GCP.ProjectID, "{{ v1.availability_zone }}", "{{ v1.local_hostname }}")
		},
	}
}

// providerID returns the provider ID as GCP's cloud controller writes it.
func providerID(project, zone, name string) string {
	return "gce://" + project + "/" + zone + "/" + name
}

// universeOf returns the domain of the account's services.
func universeOf(account *infrav1.GCPAccount) string {
	if account.UniverseDomain == "" {
		return googleapis
	}
	return account.UniverseDomain
}

func validateAccount(spec *infrav1.DroverAccountSpec, path *field.Path) (all field.ErrorList) {
	if spec.CredentialsRef.Name != "" {
		return nil
	}
	if spec.Cloud.GCP.Endpoint != "" {
		all = append(all, field.Forbidden(path.Child("cloud", "gcp", "endpoint"),
			"a custom endpoint needs its own credentials: set credentialsRef"))
	}
	if spec.Cloud.GCP.CABundle != "" {
		all = append(all, field.Forbidden(path.Child("cloud", "gcp", "caBundle"),
			"authorities of your own need your own credentials: set credentialsRef"))
	}
	if universeOf(spec.Cloud.GCP) != googleapis {
		all = append(all, field.Forbidden(path.Child("cloud", "gcp", "universeDomain"),
			"another universe needs its own credentials: set credentialsRef"))
	}
	return all
}

var (
	labelKey      = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,62}$`)
	labelValue    = regexp.MustCompile(`^[a-z0-9_-]{0,63}$`)
	metadataKey   = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)
	managerTagKey = regexp.MustCompile(`^(tagKeys/[0-9]+|[^\s/]+/[^\s/]+)$`)
)

func validateMachine(m *infrav1.GCPMachine, path *field.Path) (all field.ErrorList) {
	path = path.Child("cloud", "gcp")
	for key, value := range m.Labels {
		at := path.Child("labels").Key(cloud.Clip(key, 63))
		switch {
		case strings.HasPrefix(key, "drover-"):
			all = append(all, field.Forbidden(at, "the prefix \"drover-\" is reserved"))
		case !labelKey.MatchString(key) || !labelValue.MatchString(value):
			all = append(all, field.Invalid(at, cloud.Clip(value, 63),
				"keys and values must have lower-case letters, digits, \"_\" and \"-\", and a key must begin with a letter"))
		}
	}
	for key := range m.Metadata {
		if !metadataKey.MatchString(key) {
			all = append(all, field.Invalid(path.Child("metadata").Key(cloud.Clip(key, 128)), "",
				"a key must have letters, digits, \"_\" and \"-\""))
		}
	}
	for key := range m.ResourceManagerTags {
		if !managerTagKey.MatchString(key) {
			all = append(all, field.Invalid(path.Child("resourceManagerTags").Key(cloud.Clip(key, 128)), "",
				"a key must be tagKeys/NUMBER or PARENT/NAME"))
		}
	}
	return append(all, validateScheduling(m, path)...)
}

// validateScheduling checks what Compute Engine refuses of machines that it takes back.
func validateScheduling(m *infrav1.GCPMachine, path *field.Path) (all field.ErrorList) {
	if m.ProvisioningModel != infrav1.GCPProvisioningSpot {
		return nil
	}
	if m.AutomaticRestart == infrav1.FeatureEnabled {
		all = append(all, field.Forbidden(path.Child("automaticRestart"), "a spot machine is not restarted"))
	}
	if m.OnHostMaintenance == infrav1.GCPHostMaintenanceMigrate {
		all = append(all, field.Forbidden(path.Child("onHostMaintenance"),
			fmt.Sprintf("provisioningModel %s needs TERMINATE", m.ProvisioningModel)))
	}
	return all
}
