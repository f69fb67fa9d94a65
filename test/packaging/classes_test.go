// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/test/internal/scenario"
)

// classes tests that each cloud's ClusterClass and its flavor, given the same variables, lead to
// the same objects. The clouds do not exist, and the pools have no machines.
func (l *life) classes(t *testing.T) {
	const namespace = "team-d"
	if err := scenario.Create(t.Context(), l.admin, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		t.Fatal(err)
	}
	pairs := map[string]string{"topology-kubeadm": "kubeadm"}
	for _, cloud := range clouds {
		pairs["topology-"+cloud] = cloud
	}
	for _, cloud := range wholeClouds {
		pairs["topology-"+cloud+"-kubeadm"] = cloud + "-kubeadm"
	}
	for _, class := range slices.Sorted(maps.Keys(pairs)) {
		flavor := pairs[class]
		t.Run(flavor, func(t *testing.T) {
			args := func(from string) []string {
				return []string{"generate", "cluster", flavor, "--infrastructure", "drover:" + version, "--flavor", from,
					"--target-namespace", namespace, "--kubernetes-version", "v1.36.3", "--worker-machine-count", "0"}
			}
			var account *infrav1.DroverAccount
			for _, o := range objects(t, l.ctl.run(t, args(class)...)) {
				accept(t, l.admin, o)
				if o.GetKind() == "DroverAccount" {
					account = &infrav1.DroverAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: o.GetName()}}
				}
			}
			for _, want := range objects(t, l.ctl.run(t, args(flavor)...)) {
				if kind := want.GetKind(); kind != "Cluster" && kind != "DroverAccount" {
					until(t, l.written(namespace, flavor, want))
				}
			}
			l.abandon(t, namespace)
			meta := metav1.ObjectMeta{Namespace: namespace, Name: flavor}
			if err := scenario.Delete(t.Context(), l.admin, &clusterv1.Cluster{ObjectMeta: meta}); err != nil {
				t.Error(err)
			}
			until(t, scenario.Empty(l.admin, &clusterv1.ClusterList{}, namespace))
			if err := scenario.Delete(t.Context(), l.admin, account); err != nil {
				t.Error(err)
			}
			until(t, scenario.Empty(l.admin, &infrav1.DroverAccountList{}, namespace))
		})
	}
}

// abandon lets go of load balancers, which can't be deleted in clouds that do not exist.
func (l *life) abandon(t *testing.T, namespace string) {
	list := &infrav1.DroverClusterList{}
	if err := l.admin.List(t.Context(), list, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		c := &list.Items[i]
		if err := scenario.Patch(t.Context(), l.admin, c,
			func() { metav1.SetMetaDataAnnotation(&c.ObjectMeta, infrav1.AbandonAnnotation, c.Name) }); err != nil {
			t.Fatal(err)
		}
	}
}

// written waits for an object of the cluster of want's kind. The object must have all fields of
// want's spec, except names.
func (l *life) written(namespace, cluster string, want *unstructured.Unstructured) scenario.Check {
	return func(ctx context.Context) (string, error) {
		found := &unstructured.UnstructuredList{}
		found.SetGroupVersionKind(want.GroupVersionKind())
		if err := l.admin.List(ctx, found, client.InNamespace(namespace),
			client.MatchingLabels{clusterv1.ClusterNameLabel: cluster}); err != nil {
			return "", err
		}
		missing := "there is no " + want.GetKind()
		for i := range found.Items {
			if missing = lacks(want.GetKind()+".spec", found.Items[i].Object["spec"], want.Object["spec"]); missing == "" {
				return "", nil
			}
		}
		return missing, nil
	}
}

// named holds the fields that refer to other objects by name. Cluster API generates its own names.
var named = []string{"bootstrap", "infrastructureRef", "selector"}

// lacks returns the path and values of the first difference, or "" if is contains all of want.
func lacks(path string, is, want any) string {
	if items, ok := want.([]any); ok {
		has, _ := is.([]any)
		if len(has) != len(items) {
			return fmt.Sprintf("%s has %d items, not %d", path, len(has), len(items))
		}
		for i, item := range items {
			if missing := lacks(fmt.Sprintf("%s[%d]", path, i), has[i], item); missing != "" {
				return missing
			}
		}
		return ""
	}
	fields, ok := want.(map[string]any)
	if !ok {
		has, e1 := json.Marshal(is) // numbers from YAML have another type
		wants, e2 := json.Marshal(want)
		if err := errors.Join(e1, e2); err != nil || !bytes.Equal(has, wants) {
			return fmt.Sprintf("%s is %s, not %s (%v)", path, has, wants, err)
		}
		return ""
	}
	has, _ := is.(map[string]any)
	for name, value := range fields {
		if slices.Contains(named, name) {
			continue
		}
		if missing := lacks(path+"."+name, has[name], value); missing != "" {
			return missing
		}
	}
	return ""
}
