// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/drover-io/drover/api/controlplane/v1alpha1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/test/playground"
	"github.com/drover-io/drover/test/scenario"
)

// adoptedFlavourWorks does what docs/adopt-a-cluster.md tells a user to do, with the real programs: two Secrets, the
// output of clusterctl, three machines; and in the end it lets go of the cluster. The management cluster adopts itself,
// with a kubeconfig that may do no more than the book asks for.
func adoptedFlavourWorks(t *testing.T, ctl clusterctl, management *playground.Management) {
	ctx := t.Context()
	cloud, err := playground.StartSimulator(ctx, playground.SimulatorOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cloud.Stop(); err != nil {
			t.Error(err)
		}
	})
	if _, err := management.StartDrover(ctx, playground.DroverOptions{Args: []string{"--simulated-endpoint=" + cloud.URL}}); err != nil {
		t.Fatal(err)
	}
	admin, err := scenario.NewClient(management.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := management.Kubeconfig("drover")
	if err != nil {
		t.Fatal(err)
	}
	const team = "team-a"
	secrets := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: team}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "adopted-kubeconfig"}, Data: map[string][]byte{"value": kubeconfig}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "simulated-credentials"}, Data: map[string][]byte{"token": []byte(cloud.Token)}},
	}
	if err := scenario.Create(ctx, admin, append(scenario.Rights("drover"), secrets...)...); err != nil {
		t.Fatal(err)
	}
	out := ctl.run(t, "generate", "cluster", "blue", "--infrastructure", "drover:"+version, "--flavor", "adopted",
		"--target-namespace", team, "--kubernetes-version", "v1.36.3", "--worker-machine-count", "3")
	for _, o := range objects(t, out) {
		if err := admin.Create(ctx, o); err != nil {
			t.Fatalf("%s %s: %v", o.GetKind(), o.GetName(), err)
		}
	}

	blue := scenario.Adopted{Namespace: team, Name: "blue"}
	until(t, blue.Available(admin))
	until(t, scenario.Pool{Cluster: blue, Name: "blue-md-0"}.Ready(admin, 3))

	// First the machines, which are drained, and then the Cluster: while a Cluster goes, Cluster API neither drains nor
	// removes Nodes.
	for _, step := range []struct {
		end  client.Object
		gone []client.ObjectList
	}{
		{&clusterv1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "blue-md-0"}},
			[]client.ObjectList{&clusterv1.MachineList{}, &infrav1.CloudMachineList{}, &corev1.NodeList{}}},
		{&clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "blue"}},
			[]client.ObjectList{&clusterv1.ClusterList{}, &infrav1.CloudClusterList{}, &controlplanev1.AdoptedControlPlaneList{}}},
	} {
		if err := admin.Delete(ctx, step.end); err != nil {
			t.Fatal(err)
		}
		for _, list := range step.gone {
			until(t, scenario.Empty(admin, list, ""))
		}
	}
	if err := admin.Get(ctx, client.ObjectKeyFromObject(secrets[1]), &corev1.Secret{}); err != nil {
		t.Errorf("the user's kubeconfig: %v", err)
	}
}

// until waits until nothing is missing.
func until(t *testing.T, check scenario.Check) {
	t.Helper()
	var missing string
	err := wait.PollUntilContextTimeout(t.Context(), 200*time.Millisecond, 3*time.Minute, true, func(ctx context.Context) (bool, error) {
		var err error
		missing, err = check(ctx)
		return missing == "" && err == nil, err
	})
	if err != nil {
		t.Fatalf("%v: %s", err, missing)
	}
}
