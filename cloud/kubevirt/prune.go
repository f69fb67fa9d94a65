// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/drover-io/drover/cloud"
)

// A followed account keeps thousands of objects in memory. It keeps only what resources reads, in
// KubeVirt's own types, which is about half of the 10 KiB of a VM.

func pruneVM(vm *kubevirtv1.VirtualMachine) (slim kubevirtv1.VirtualMachine) {
	slim.TypeMeta, slim.ObjectMeta = vm.TypeMeta, pruneMeta(&vm.ObjectMeta)
	slim.Spec.RunStrategy, slim.Spec.Running = vm.Spec.RunStrategy, vm.Spec.Running
	if vm.Spec.Template != nil && vm.Spec.Template.Spec.EvictionStrategy != nil {
		slim.Spec.Template = &kubevirtv1.VirtualMachineInstanceTemplateSpec{}
		slim.Spec.Template.Spec.EvictionStrategy = vm.Spec.Template.Spec.EvictionStrategy
	}
	slim.Status.PrintableStatus = vm.Status.PrintableStatus
	for _, c := range vm.Status.Conditions {
		if c.Type == kubevirtv1.VirtualMachineFailure {
			slim.Status.Conditions = append(slim.Status.Conditions, c)
		}
	}
	return slim
}

func pruneVMI(vmi *kubevirtv1.VirtualMachineInstance) (slim kubevirtv1.VirtualMachineInstance) {
	slim.TypeMeta, slim.ObjectMeta = vmi.TypeMeta, pruneMeta(&vmi.ObjectMeta)
	if owner := metav1.GetControllerOf(vmi); owner != nil && owner.Kind == virtualMachines.kind {
		slim.OwnerReferences = []metav1.OwnerReference{{Kind: owner.Kind}}
	}
	slim.Spec.EvictionStrategy = vmi.Spec.EvictionStrategy
	slim.Status.Phase, slim.Status.Reason = vmi.Status.Phase, vmi.Status.Reason
	slim.Status.EvacuationNodeName = vmi.Status.EvacuationNodeName
	for _, c := range vmi.Status.Conditions {
		if slices.Contains(guestConditions, c.Type) {
			slim.Status.Conditions = append(slim.Status.Conditions, c)
		}
	}
	for _, i := range vmi.Status.Interfaces {
		if i.Name != "" {
			slim.Status.Interfaces = append(slim.Status.Interfaces, kubevirtv1.VirtualMachineInstanceNetworkInterface{
				Name: i.Name, IP: i.IP, IPs: i.IPs, InfoSource: i.InfoSource,
			})
		}
	}
	return slim
}

func pruneVolume(v *cdiv1.DataVolume) (slim cdiv1.DataVolume) {
	slim.TypeMeta, slim.ObjectMeta = v.TypeMeta, pruneMeta(&v.ObjectMeta)
	slim.Status.Phase = v.Status.Phase
	for _, c := range v.Status.Conditions {
		if slices.Contains(volumeConditions, c.Type) {
			slim.Status.Conditions = append(slim.Status.Conditions, c)
		}
	}
	return slim
}

func pruneSecret(s *metav1.PartialObjectMetadata) metav1.PartialObjectMetadata {
	return metav1.PartialObjectMetadata{TypeMeta: s.TypeMeta, ObjectMeta: pruneMeta(&s.ObjectMeta)}
}

func pruneService(s *corev1.Service) (slim corev1.Service) {
	slim.TypeMeta, slim.ObjectMeta = s.TypeMeta, pruneMeta(&s.ObjectMeta)
	if host, ok := s.Annotations[annotationHost]; ok {
		slim.Annotations = map[string]string{annotationHost: host}
	}
	slim.Spec.Type, slim.Spec.ClusterIP, slim.Spec.Ports = s.Spec.Type, s.Spec.ClusterIP, s.Spec.Ports
	slim.Status.LoadBalancer = s.Status.LoadBalancer
	return slim
}

func pruneSlice(s *discoveryv1.EndpointSlice) (slim discoveryv1.EndpointSlice) {
	slim.TypeMeta, slim.ObjectMeta = s.TypeMeta, pruneMeta(&s.ObjectMeta)
	slim.Endpoints = s.Endpoints
	return slim
}

func pruneMeta(m *metav1.ObjectMeta) metav1.ObjectMeta {
	slim := metav1.ObjectMeta{
		Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion,
		CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp,
	}
	for _, key := range []string{cloud.TagToken, cloud.TagOwnership, labelDomain} {
		if value, ok := m.Labels[key]; ok {
			if slim.Labels == nil {
				slim.Labels = make(map[string]string, 3)
			}
			slim.Labels[key] = value
		}
	}
	return slim
}
