// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"os"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-io/drover/internal/test/playground"
)

// oldKinds tests that a manager does not start with the CRDs of an older release, because the API
// server would drop fields that it writes. The error names an unknown field and a remedy.
func oldKinds(t *testing.T, management *playground.Management, server client.Client) {
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	key := client.ObjectKey{Name: "drovermachines.infrastructure.cluster.x-k8s.io"}
	change := func(change func(spec map[string]any)) {
		t.Helper()
		err := server.Get(t.Context(), key, crd)
		if err == nil {
			versions := crd.Object["spec"].(map[string]any)["versions"].([]any)
			fields, ok, _ := unstructured.NestedFieldNoCopy(versions[0].(map[string]any), "schema", "openAPIV3Schema", "properties", "spec",
				"properties")
			if !ok {
				t.Fatal("the CRD has no fields")
			}
			change(fields.(map[string]any))
			err = server.Update(t.Context(), crd)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var field any
	creation := func(fields map[string]any) map[string]any {
		return fields["creation"].(map[string]any)["properties"].(map[string]any)
	}
	change(func(fields map[string]any) {
		field = creation(fields)["failureDomain"]
		delete(creation(fields), "failureDomain")
	})
	p, err := management.StartDrover(t.Context(), playground.DroverOptions{})
	if err == nil {
		p.Kill()
		t.Error("the manager begins")
	} else if said := err.Error(); !strings.Contains(said,
		"DroverMachine of infrastructure.cluster.x-k8s.io/v1beta1 does not have the field spec.creation.failureDomain") {
		t.Error(said)
	}
	change(func(fields map[string]any) { creation(fields)["failureDomain"] = field })
}

// TestWithoutClusterAPI tests that the manager reports a missing Cluster API.
func TestWithoutClusterAPI(t *testing.T) {
	plane, err := playground.StartControlPlane(t.Context(), playground.ControlPlaneOptions{Progress: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := plane.Stop(); err != nil {
			t.Error(err)
		}
	})
	binary, err := playground.Build(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	p, err := playground.Run("drover", t.TempDir(), nil, binary, "--kubeconfig="+plane.AdminKubeconfig(), "--leader-elect=false",
		"--diagnostics-address=127.0.0.1:0", "--health-addr=127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	select {
	case <-p.Done():
	case <-time.After(2 * time.Minute):
		t.Fatal("the manager goes on")
	}
	if err := p.Wait(); err == nil || !strings.Contains(err.Error(),
		"does not serve cluster.x-k8s.io/v1beta2: install Cluster API v1.11 or newer first (clusterctl init)") {
		t.Error(err)
	}
}
