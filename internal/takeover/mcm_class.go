// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// classes plans the machine's fields of each pool from its MachineClass.
func (m *MCM) classes(p *Plan, target *Target) {
	done := map[string]*Pool{}
	for i := range p.Pools {
		pool := &p.Pools[i]
		if first := done[pool.Template]; first != nil {
			pool.Machine, pool.Keys, pool.cluster, pool.named = first.Machine, first.Keys, first.cluster, first.named
			continue
		}
		done[pool.Template] = pool
		at := slices.IndexFunc(m.Classes, func(c unstructured.Unstructured) bool { return c.GetName() == pool.Template })
		if at < 0 {
			p.findingsFor("MachineDeployment", pool.Name).addRefused("spec.template.spec.class", "MachineClass %s does not exist", pool.Template)
			continue
		}
		class := m.Classes[at].DeepCopy()
		s := p.findingsFor("MachineClass", class.GetName())
		s.settled(class)
		s.ignored(class)
		if capacity, _, _ := unstructured.NestedMap(class.Object, "nodeTemplate", "virtualCapacity"); len(capacity) > 0 {
			s.addLost("nodeTemplate.virtualCapacity", "new Nodes do not get it")
		}
		provider, _, _ := unstructured.NestedString(class.Object, "provider")
		switch account := &target.Account.Spec; {
		case provider == "AWS" && account.Cloud.AWS != nil:
			spec := &mcmAWS{}
			if s.decode(class.Object, "providerSpec", spec) {
				pool.Machine = target.fields(infrav1.DroverMachineFields{Cloud: infrav1.MachineCloud{AWS: s.aws(spec, account.Cloud.AWS.Region)}})
				pool.Keys = s.keys("providerSpec.tags", spec.Tags, mcmClusterKey, mcmRoleKey)
			}
		case (provider == "" || strings.EqualFold(provider, "KubeVirt")) && account.Cloud.KubeVirt != nil: // its driver does not look
			s.kubevirt(pool, class, target)
		case provider == "OpenStack" && account.Cloud.OpenStack != nil:
			s.openstack(pool, class, target)
		case strings.EqualFold(provider, "vSphere") && account.Cloud.VSphere != nil:
			s.vsphere(pool, class, target)
		case strings.EqualFold(provider, "Azure") && account.Cloud.Azure != nil:
			s.azure(pool, class, target)
		case strings.EqualFold(provider, "GCP") && account.Cloud.GCP != nil:
			s.gcp(pool, class, target)
		default:
			s.addRefused("provider", "it is %q: Drover takes over machines of AWS, Azure, Google Cloud, KubeVirt, OpenStack and vSphere, with a DroverAccount of the same cloud", provider)
		}
	}
}

// ignored takes out of a class what real ones have in their providerSpec, and no driver reads: the
// class itself has these fields.
func (s findings) ignored(class *unstructured.Unstructured) {
	for _, field := range []string{"secretRef", "credentialsSecretRef"} {
		if _, has, _ := unstructured.NestedFieldNoCopy(class.Object, "providerSpec", field); has {
			unstructured.RemoveNestedField(class.Object, "providerSpec", field)
			s.addNote("providerSpec."+field, "machine-controller-manager ignores it here")
		}
	}
}

// fields completes the fields of machines.
func (t *Target) fields(f infrav1.DroverMachineFields) *infrav1.DroverMachineFields {
	f.AccountRef = infrav1.LocalReference{Name: t.Account.Name}
	return &f
}

// given returns settings, or nil if they set nothing: an object without fields is refused.
func given[T comparable](settings T) *T {
	if settings == *new(T) {
		return nil
	}
	return &settings
}

// enabledIf returns "Enabled" if the feature is on, otherwise nothing, for a feature that is off by
// default.
func enabledIf(on bool) infrav1.FeatureState {
	if on {
		return infrav1.FeatureEnabled
	}
	return ""
}

// stateOf returns the state of a feature that is set explicitly.
func stateOf(on bool) infrav1.FeatureState {
	return cmp.Or(enabledIf(on), infrav1.FeatureDisabled)
}

// stateIfSet returns the state of a feature that may be left to the cloud.
func stateIfSet(on *bool) infrav1.FeatureState {
	if on == nil {
		return ""
	}
	return stateOf(*on)
}

// The tag keys by which machine-controller-manager recognizes its VMs have these parts.
const (
	mcmClusterKey = "kubernetes.io/cluster/"
	mcmRoleKey    = "kubernetes.io/role/"
)

// keys returns the two keys by which the class's VMs are recognized.
func (s findings) keys(field string, tags map[string]string, parts ...string) (keys []string) {
	for _, part := range parts {
		var found []string
		for _, key := range slices.Sorted(maps.Keys(tags)) {
			if strings.Contains(key, part) {
				found = append(found, key)
			}
		}
		if len(found) != 1 {
			s.addRefused(field, "%d keys contain %s, and exactly one must", len(found), part)
			return nil
		}
		keys = append(keys, found...)
	}
	return keys
}
