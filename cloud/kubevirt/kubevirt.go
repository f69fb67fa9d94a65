// SPDX-License-Identifier: Apache-2.0

// Package kubevirt is the driver for KubeVirt. It turns requests into calls to a Kubernetes API
// server and answers into resources, with the API types of KubeVirt and CDI. It speaks HTTP over
// the account's transport. It uses no Kubernetes client, because those sleep and retry on their
// own, which a driver must not do. It imports no other driver.
package kubevirt

import (
	"strings"

	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

const (
	// maxUserData is the largest user data, in bytes. It leaves half of a Secret (1 MiB) for the
	// network configuration and for encodings.
	maxUserData = 512 << 10
	// maxBatch keeps a selector of tokens within a URL of 4 KiB, and the deletes of one step within
	// seconds.
	maxBatch = 50
	// reserved is the prefix of the label and annotation keys that belong to Drover.
	reserved = "drover-"
)

// union accesses KubeVirt's member of the unions in DroverAccount and DroverMachine.
var union = driverkit.Fields[infrav1.KubeVirtAccount, infrav1.KubeVirtMachine]{
	Account:      func(a *infrav1.DroverAccountSpec) *infrav1.KubeVirtAccount { return a.Cloud.KubeVirt },
	Machine:      func(m *infrav1.DroverMachineFields) *infrav1.KubeVirtMachine { return m.Cloud.KubeVirt },
	CheckAccount: validateAccount,
	CheckMachine: validateMachine,
}

// Cloud returns KubeVirt's entry in the registry.
func Cloud() cloud.Cloud {
	return cloud.Cloud{
		Name:  "kubevirt",
		Union: union,
		New:   newDriver,
		// Conservative guesses: Kubernetes has no fixed rate limits. API Priority and Fairness
		// shares the capacity, and answers 429 to excess requests. A machine takes two creates.
		Limits: cloud.Limits{
			Create: cloud.Limit{PerSecond: 20, Burst: 50},
			Delete: cloud.Limit{PerSecond: 20, Burst: 50},
			Read:   cloud.Limit{PerSecond: 20, Burst: 50},
		},
		// etcd reads its own writes, and a listing without a resource version is just as current.
		Traits:        cloud.Traits{ReadLag: 0},
		CheckUserData: driverkit.MaxUserData(maxUserData),
		Batch:         cloud.Batch{Read: maxBatch, Delete: maxBatch},
		ProviderID:    func(*infrav1.DroverAccountSpec) string { return providerID(instanceVariable) },
	}
}

// instanceVariable stands for the VM's name in user data that is rendered before the VM has one.
// secretData replaces it in the Secret, because the instance ID that KubeVirt gives a guest is a
// UUID, and was something else in older versions.
const instanceVariable = "{{ v1.instance_id }}"

// providerID returns the provider ID in the format of KubeVirt's cloud controller manager.
func providerID(name string) string { return "kubevirt://" + name }

func validateAccount(spec *infrav1.DroverAccountSpec, path *field.Path) (all field.ErrorList) {
	a := spec.Cloud.KubeVirt
	path = path.Child("cloud", "kubevirt", "failureDomains")
	for i, domain := range a.FailureDomains {
		all = append(all, metav1validation.ValidateLabels(domain.NodeSelector, path.Index(i).Child("nodeSelector"))...)
	}
	return all
}

func validateMachine(m *infrav1.KubeVirtMachine, path *field.Path) (all field.ErrorList) {
	path = path.Child("cloud", "kubevirt")
	all = append(all, metav1validation.ValidateLabels(m.NodeSelector, path.Child("nodeSelector"))...)
	all = append(all, metav1validation.ValidateLabels(m.Labels, path.Child("labels"))...)
	all = append(all, notReserved(m.Labels, path.Child("labels"))...)
	all = append(all, notReserved(m.Annotations, path.Child("annotations"))...)
	for key := range m.Annotations {
		all = append(all, qualified(strings.ToLower(key), path.Child("annotations").Key(cloud.Clip(key, 317)))...)
	}
	for _, conditions := range []struct {
		name string
		all  []infrav1.KubeVirtNodeCondition
	}{{"requiredNodes", m.RequiredNodes}, {"preferredNodes", m.PreferredNodes}} {
		for i, condition := range conditions.all {
			at := path.Child(conditions.name).Index(i)
			all = append(all, qualified(condition.Key, at.Child("key"))...)
			for j, value := range condition.Values {
				for _, wrong := range validation.IsValidLabelValue(value) {
					all = append(all, field.Invalid(at.Child("values").Index(j), value, wrong))
				}
			}
		}
	}
	for i, spread := range m.Spread {
		at := path.Child("spread").Index(i)
		all = append(all, qualified(spread.TopologyKey, at.Child("topologyKey"))...)
		all = append(all, metav1validation.ValidateLabels(spread.MatchLabels, at.Child("matchLabels"))...)
	}
	for name, devices := range map[string][]infrav1.KubeVirtDevice{"gpus": m.GPUs, "hostDevices": m.HostDevices} {
		for i, device := range devices {
			all = append(all, qualified(device.DeviceName, path.Child(name).Index(i).Child("deviceName"))...)
		}
	}
	return append(all, validateNetworks(m.Networks, path.Child("networks"))...)
}

// validateNetworks allows the pod network at most once, because a pod has only one.
func validateNetworks(networks []infrav1.KubeVirtNetwork, path *field.Path) (all field.ErrorList) {
	pods := 0
	for i, network := range networks {
		if network.Multus != "" {
			continue
		}
		if pods++; pods > 1 {
			all = append(all, field.Invalid(path.Index(i), network.Name, "only one interface can be in the pod network: set multus for the others"))
		}
	}
	return all
}

func notReserved(keys map[string]string, path *field.Path) (all field.ErrorList) {
	for key := range keys {
		if strings.HasPrefix(key, reserved) {
			all = append(all, field.Forbidden(path.Key(key), `keys that begin with "drover-" are Drover's`))
		}
	}
	return all
}

func qualified(key string, path *field.Path) (all field.ErrorList) {
	for _, wrong := range validation.IsQualifiedName(key) {
		all = append(all, field.Invalid(path, cloud.Clip(key, 317), wrong))
	}
	return all
}
