// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"encoding/json"
	"net/http"
	"net/url"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/conformance/damage"
	"github.com/drover-io/drover/cloud/driverkit"
)

// examples are the objects of one machine and one load balancer, by their kind.
func examples() map[string]any {
	vm := kubevirtv1.VirtualMachine{TypeMeta: metav1.TypeMeta{Kind: "VirtualMachine", APIVersion: "kubevirt.io/v1"},
		ObjectMeta: meta("token-1")}
	vm.Name, vm.ResourceVersion, vm.CreationTimestamp = nameOf("token-1"), "11", metav1.Now()
	vm.Spec.RunStrategy = ptr.To(kubevirtv1.RunStrategyOnce)
	vm.Spec.Template = &kubevirtv1.VirtualMachineInstanceTemplateSpec{Spec: kubevirtv1.VirtualMachineInstanceSpec{
		PriorityClassName: "p",
		Domain: kubevirtv1.DomainSpec{CPU: &kubevirtv1.CPU{Cores: 2},
			Memory: &kubevirtv1.Memory{Guest: ptr.To(resource.MustParse("2Gi"))}},
		Volumes: []kubevirtv1.Volume{{Name: "root",
			VolumeSource: kubevirtv1.VolumeSource{DataVolume: &kubevirtv1.DataVolumeSource{Name: "dv"}}}},
	}}
	vm.Status = kubevirtv1.VirtualMachineStatus{
		PrintableStatus: kubevirtv1.VirtualMachineStatusRunning, Created: true, Ready: true,
		Conditions: []kubevirtv1.VirtualMachineCondition{{Type: kubevirtv1.VirtualMachineFailure, Status: "True", Reason: "FailedCreate",
			Message: "exceeded quota: x"}},
	}
	vmi := kubevirtv1.VirtualMachineInstance{TypeMeta: metav1.TypeMeta{Kind: "VirtualMachineInstance", APIVersion: "kubevirt.io/v1"},
		ObjectMeta: vm.ObjectMeta}
	vmi.Status = kubevirtv1.VirtualMachineInstanceStatus{
		Phase: kubevirtv1.Running, NodeName: "n", EvacuationNodeName: "n", ActivePods: map[types.UID]string{"a": "n"},
		Conditions: []kubevirtv1.VirtualMachineInstanceCondition{
			{Type: kubevirtv1.VirtualMachineInstanceReady, Status: "True"},
			{Type: "PodScheduled", Status: "False", Reason: "Unschedulable", Message: "0/3"},
			{Type: "LiveMigratable", Status: "False"},
		},
		Interfaces: []kubevirtv1.VirtualMachineInstanceNetworkInterface{
			{IP: "10.0.0.1", IPs: []string{"10.0.0.1", "fe80::1"}, Name: "default", InterfaceName: "eth0", InfoSource: "domain, guest-agent"},
		},
		PhaseTransitionTimestamps: []kubevirtv1.VirtualMachineInstancePhaseTransitionTimestamp{{Phase: kubevirtv1.Running,
			PhaseTransitionTimestamp: metav1.Now()}},
	}
	dv := cdiv1.DataVolume{TypeMeta: metav1.TypeMeta{Kind: "DataVolume"}, ObjectMeta: vm.ObjectMeta}
	dv.Status.Phase = cdiv1.ImportInProgress
	dv.Status.Conditions = []cdiv1.DataVolumeCondition{{Type: cdiv1.DataVolumeRunning, Status: "False", Reason: "Error", Message: "no"}}
	service := corev1.Service{TypeMeta: metav1.TypeMeta{Kind: "Service"}, ObjectMeta: meta("balancer-1")}
	service.Name, service.ResourceVersion = balancerName("balancer-1"), "11"
	service.Spec = corev1.ServiceSpec{Type: "LoadBalancer", ClusterIP: "10.9.0.1", Ports: []corev1.ServicePort{{Port: 6443}}}
	service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "10.8.0.1"}, {Hostname: "h"}}
	slice := discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{Kind: "EndpointSlice"}, ObjectMeta: service.ObjectMeta, AddressType: "IPv4",
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}}},
		Ports:     []discoveryv1.EndpointPort{{Port: ptr.To(int32(6443))}},
	}
	slice.OwnerReferences = []metav1.OwnerReference{{Kind: "Service", Name: service.Name, UID: "uid-1"}}
	partial := metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: "meta.k8s.io/v1"},
		ObjectMeta: vm.ObjectMeta}
	return map[string]any{"VirtualMachine": vm, "VirtualMachineInstance": vmi, "DataVolume": dv, "Secret": partial, "Service": service,
		"EndpointSlice": slice}
}

// written returns a tape with answers as an API server would give them.
func written(t *testing.T) *damage.Tape {
	t.Helper()
	var tape damage.Tape
	add := func(operation string, status int, what any) {
		text, err := json.Marshal(what)
		if err != nil {
			t.Fatal(err)
		}
		tape.Add(operation, status, http.Header{"Content-Type": {"application/json"}}, text)
	}
	list := func(kind string, items ...any) map[string]any {
		return map[string]any{"kind": kind + "List", "apiVersion": "v1", "metadata": map[string]any{"resourceVersion": "10", "continue": ""},
			"items": items}
	}
	exists := refusal(409, metav1.StatusReasonAlreadyExists, "exists")
	all := examples()
	add("ListVirtualMachines", 200, list("PartialObjectMetadata", all["Secret"]))
	for kind, o := range all {
		listed := kind
		if kind == "Secret" {
			listed = "PartialObjectMetadata"
		}
		for range 3 {
			add("List"+kind+"s", 200, list(listed, o))
		}
		for _, changed := range []string{"MODIFIED", "DELETED", "BOOKMARK"} {
			add("Watch"+kind+"s", 200, map[string]any{"type": changed, "object": o})
		}
		add("Watch"+kind+"s", 200, map[string]any{"type": "ERROR", "object": refusal(410, metav1.StatusReasonExpired, "old")})
		add("Create"+kind, 201, o)
		add("Create"+kind, 409, exists)
		add("Get"+kind, 200, o)
		add("Patch"+kind, 200, all["Secret"]) // the driver asks for metadata only, except of an EndpointSlice
		add("Patch"+kind, 200, o)
		add("Delete"+kind, 200, map[string]any{"kind": "Status", "status": "Success"})
	}
	add("DeleteSecrets", 200, list("PartialObjectMetadata", all["Secret"]))
	add("ListPods", 200, list("PartialObjectMetadata", all["Secret"]))
	add("GetNamespace", 200, all["Secret"])
	add("GetInstancetype", 200, map[string]any{"kind": "VirtualMachineClusterInstancetype", "spec": map[string]any{
		"cpu": map[string]any{"guest": 2}, "memory": map[string]any{"guest": "2Gi"}, "gpus": []any{map[string]any{"deviceName": "nvidia.com/x"}},
	}})
	tape.Add("GetPodLog", 200, http.Header{"Content-Type": {"text/plain"}}, []byte("hello\nworld\n"))
	return &tape
}

func TestDamagedAnswers(t *testing.T) {
	address := &url.URL{Scheme: "https", Host: "10.0.0.1"}
	spec := &infrav1.DroverMachineFields{Cloud: infrav1.MachineCloud{
		KubeVirt: &infrav1.KubeVirtMachine{Instancetype: infrav1.KubeVirtInstancetype{Name: "u1"}}}}
	damage.Run(t, written(t), damage.Target{
		Connect: func(transport http.RoundTripper) (cloud.Driver, error) {
			to := endpoint{server: address, bearer: func() (string, error) { return "marked-token", nil }}
			return &driver{
				client: newClient(to, transport), namespace: "vms", page: 2, streamTimeout: time.Second, absentInterval: time.Hour,
				shapes: driverkit.Memo[shape]{TTL: time.Minute}, domains: []infrav1.KubeVirtFailureDomain{{Name: "a"}},
			}, nil
		},
		Machine: cloud.Request{Token: "token-1", OwnershipID: "blue", Namespace: "ns", Name: "m", Spec: spec},
		Balancer: cloud.BalancerRequest{Token: "balancer-1", OwnershipID: "blue", Namespace: "ns", Name: "lb", Port: 6443,
			Targets: []string{"10.0.0.1"}, Spec: &infrav1.LoadBalancerCloud{KubeVirt: &infrav1.KubeVirtLoadBalancer{}}},
		Secrets: []string{"marked-token"},
		Drivers: 1000,
	})
}
