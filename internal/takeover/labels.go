// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	kubeletapis "k8s.io/kubelet/pkg/apis"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// nodeLabels gives new Nodes the labels of a field: those that a kubelet may set by its kubelet,
// and those that Cluster API sets by the Machine. The other system sets any label itself.
func (s findings) nodeLabels(pool *Pool, field string, labels map[string]string) {
	var lost []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		into := &pool.NodeLabels
		switch domain, _, _ := strings.Cut(key, "/"); {
		case len(validation.IsQualifiedName(key))+len(validation.IsValidLabelValue(labels[key])) > 0:
			lost = append(lost, key)
			continue
		case domain == clusterv1.NodeRoleLabelPrefix, within(domain, clusterv1.NodeRestrictionLabelDomain):
			into = &pool.MachineLabels
		case domain != key && (within(domain, "kubernetes.io") || within(domain, "k8s.io")) && !kubeletapis.IsKubeletLabel(key):
			lost = append(lost, key)
			continue
		}
		if *into == nil {
			*into = map[string]string{}
		}
		(*into)[key] = labels[key]
	}
	if len(lost) > 0 {
		s.addLost(field, "new Nodes do not get the labels %s, which neither a kubelet nor Cluster API may set", strings.Join(lost, ", "))
	}
}

func within(domain, of string) bool { return domain == of || strings.HasSuffix(domain, "."+of) }
