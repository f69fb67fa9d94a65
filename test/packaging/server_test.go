// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-io/drover/test/playground"
)

// TestServerAccepts hands the manifests to a real API server with Cluster API: what it refuses, no user could install.
func TestServerAccepts(t *testing.T) {
	ctl := newClusterctl(t)
	management, err := playground.StartManagement(t.Context(), playground.ManagementOptions{
		ControlPlaneOptions: playground.ControlPlaneOptions{Progress: os.Stderr},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := management.Stop(); err != nil {
			t.Error(err)
		}
	})
	plain, err := client.New(management.AdminConfig(), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	server := client.WithFieldValidation(plain, metav1.FieldValidationStrict)

	components := objects(t, ctl.run(t, "generate", "provider", "--infrastructure", "drover:"+version))
	install(t, server, components)

	t.Run("the manager's pod under the restricted policy", func(t *testing.T) {
		template := only[appsv1.Deployment](t, components, "Deployment")[0].Spec.Template
		pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
		pod.Namespace, pod.GenerateName = namespace, "drover-"
		if err := server.Create(t.Context(), pod, client.DryRunAll); err != nil {
			t.Error(err)
		}
		pod.Spec.Containers[0].SecurityContext = nil
		if err := server.Create(t.Context(), pod, client.DryRunAll); !apierrors.IsForbidden(err) {
			t.Errorf("the policy is not enforced: a pod without security context is answered with %v", err)
		}
	})
	for _, flavor := range []string{"adopted", "kubevirt", "vsphere"} {
		t.Run("flavour "+flavor+", strictly", func(t *testing.T) {
			out := ctl.run(t, "generate", "cluster", "blue", "--infrastructure", "drover:"+version, "--flavor", flavor,
				"--target-namespace", "default", "--kubernetes-version", "v1.36.3", "--worker-machine-count", "3")
			for _, o := range objects(t, out) {
				accept(t, server, o, client.DryRunAll)
			}
		})
	}
	t.Run("the adopted flavour makes machines", func(t *testing.T) { adoptedFlavourWorks(t, ctl, management) })
}

// install creates what others stand on, and tries the rest. cert-manager is not there, and the webhooks' service has
// nobody behind it: so certificates are left out, and webhooks are only tried.
func install(t *testing.T, server client.Client, components []*unstructured.Unstructured) {
	t.Helper()
	var rest []*unstructured.Unstructured
	for _, o := range components {
		switch kind := o.GetKind(); {
		case kind == "Namespace", kind == "ServiceAccount", kind == "CustomResourceDefinition":
			accept(t, server, o)
		case strings.HasPrefix(o.GetAPIVersion(), "cert-manager.io/"):
		default:
			rest = append(rest, o)
		}
	}
	for _, o := range rest {
		accept(t, server, o, client.DryRunAll)
	}
}

// accept creates an object. A kind that was defined a moment ago may not be served yet.
func accept(t *testing.T, server client.Client, o *unstructured.Unstructured, options ...client.CreateOption) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		last = server.Create(ctx, o.DeepCopy(), options...)
		return !apimeta.IsNoMatchError(last) && !apierrors.IsNotFound(last), nil
	})
	if err != nil || last != nil {
		t.Errorf("%s %s: %v", o.GetKind(), o.GetName(), last)
	}
}
