// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"cmp"
	"fmt"
	"math"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// ownerKey stands for the owner of a VM on KubeVirt, as a tag that the Tagger reports.
const ownerKey = "metadata.ownerReferences"

// instanceOnKubeVirt returns the VM's name in a Node's provider ID, or "".
func instanceOnKubeVirt(providerID string) string {
	name, ok := strings.CutPrefix(providerID, "kubevirt://")
	if !ok || len(validation.IsDNS1123Label(name)) > 0 {
		return ""
	}
	return name
}

// sizeOnKubeVirt returns a machine's size as the driver has it, or "".
func sizeOnKubeVirt(m *infrav1.KubeVirtMachine) string {
	switch {
	case m.Instancetype.Name != "":
		return strings.ToLower(string(cmp.Or(m.Instancetype.Kind, infrav1.KubeVirtClusterInstancetype))) + " " + m.Instancetype.Name
	case m.CPU.Cores == 0 || m.MemoryMiB == 0:
		return ""
	}
	return fmt.Sprintf("%d CPUs, %d MiB", m.CPU.Cores*max(m.CPU.Sockets, 1)*max(m.CPU.Threads, 1), m.MemoryMiB)
}

// imageOnKubeVirt returns the URL of a machine's image as the driver has it, or "".
func imageOnKubeVirt(m *infrav1.KubeVirtMachine) string {
	switch v := m.RootDisk.DataVolume; {
	case v == nil:
	case v.Source.Registry != nil:
		return v.Source.Registry.URL
	case v.Source.HTTP != nil:
		return v.Source.HTTP.URL
	}
	return ""
}

// quantity returns an amount in units of 1<<shift, rounded up, as Drover has it; 0 for none.
func (s findings) quantity(field, text string, shift int) int32 {
	if text == "" {
		return 0
	}
	q, err := resource.ParseQuantity(text)
	if err != nil {
		s.addRefused(field, "it is %q: %s", text, err)
		return 0
	}
	n := q.Value() >> shift
	if n<<shift != q.Value() {
		n++
	}
	if n < 0 || n > math.MaxInt32 {
		s.addRefused(field, "it is %s, which no machine can have", text)
		return 0
	}
	if unit := map[int]string{20: "MiB", 30: "GiB"}[shift]; unit != "" && n<<shift != q.Value() {
		s.addNote(field, "it is %s: new machines get %d %s", text, n, unit)
	}
	return int32(n)
}

// nodes returns the condition that a node's label has one of the values, or, without any, that the
// node has the label.
func nodes(key string, values ...string) infrav1.KubeVirtNodeCondition {
	operator := corev1.NodeSelectorOpExists
	if len(values) > 0 {
		operator = corev1.NodeSelectorOpIn
	}
	return infrav1.KubeVirtNodeCondition{Key: key, Operator: operator, Values: values}
}
