// SPDX-License-Identifier: Apache-2.0

package body

import (
	"context"
	"maps"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	"github.com/drover-io/drover/bootstrap/render"
	"github.com/drover-io/drover/cloud/simulated/simulator/userdata"
)

// droverInput returns the input of Drover's own bootstrap provider.
func droverInput(t *testing.T, spec bootstrapv1.DroverConfigSpec) render.Input {
	t.Helper()
	ca, err := os.ReadFile("../../../../bootstrap/render/testdata/ca.crt")
	if err != nil {
		t.Fatal(err)
	}
	spec.NodeLabels = map[string]string{"pool": "blue"}
	return render.Input{
		Spec: &spec, NodeName: "node-1", ProviderID: "simulated:///{{ v1.availability_zone }}/{{ v1.instance_id }}",
		Server: "https://127.0.0.1:6443", CA: ca, Token: "abcdef.0123456789abcdef", Version: "v1.35.0", ControlPlaneVersion: "v1.36.0",
	}
}

func droverKubelet(t *testing.T, in render.Input) (*kubelet, error) {
	t.Helper()
	data, err := render.UserData(in)
	if err != nil {
		t.Fatal(err)
	}
	disk, err := userdata.Parse(data, userdata.InstanceData{InstanceID: "i-1", AvailabilityZone: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if len(disk.Warnings) > 0 {
		t.Errorf("%q", disk.Warnings)
	}
	return plan(disk, testMachine)
}

// TestFormatsAreAlike: a machine starts the same kubelet for every user data format and
// installation method. Ignition has no instance data: the controller sets the provider ID.
func TestFormatsAreAlike(t *testing.T) {
	want, err := droverKubelet(t, droverInput(t, bootstrapv1.DroverConfigSpec{}))
	if err != nil {
		t.Fatal(err)
	}
	if want.providerID != "simulated:///a/i-1" || want.node != "node-1" || want.labels["pool"] != "blue" || len(want.taints) != 1 {
		t.Fatalf("%+v", want)
	}
	for name, spec := range map[string]bootstrapv1.DroverConfigSpec{
		"ignition": {Format: bootstrapv1.FormatIgnition},
		"flatcar":  {OperatingSystem: "flatcar"},
		"packages": {OperatingSystem: "ubuntu-24.04", Install: bootstrapv1.Install{Mode: bootstrapv1.InstallPackages}},
	} {
		t.Run(name, func(t *testing.T) {
			in := droverInput(t, spec)
			got, err := droverKubelet(t, in)
			if err != nil {
				t.Fatal(err)
			}
			if render.FormatOf(in.Spec) == bootstrapv1.FormatIgnition {
				if got.providerID != "" {
					t.Errorf("provider ID %q", got.providerID)
				}
				got.providerID = want.providerID
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v\nwant %+v", got, want)
			}
		})
	}
}

// joinByDrover makes a machine join an API server by kubeadm, with Drover's own user data.
func joinByDrover(ctx context.Context, t *testing.T, a *apiServer, format bootstrapv1.Format,
	change func(*render.Input, userdata.Machine)) (*kubelet, userdata.Machine, error) {
	t.Helper()
	in := droverInput(t, bootstrapv1.DroverConfigSpec{
		Format: format, Join: bootstrapv1.Join{Method: bootstrapv1.JoinKubeadm}, Kubelet: bootstrapv1.Kubelet{MaxPods: 50},
	})
	in.Server, in.CA = a.URL, a.describes
	disk := userdata.Machine{Files: map[string]userdata.File{}}
	change(&in, disk)
	data, err := render.UserData(in)
	if err != nil {
		t.Fatal(err)
	}
	read, err := userdata.Parse(data, userdata.InstanceData{InstanceID: "i-1", AvailabilityZone: "a"})
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(read.Files, disk.Files)
	b := NewFleet(ctx, Options{}).New(testMachine)
	if err := b.kubeadm(ctx, read, commanded(read).join); err != nil {
		return nil, read, err
	}
	k, err := plan(read, testMachine)
	return k, read, err
}

// TestJoinByKubeadm: a machine that joins by kubeadm starts the same kubelet as without it, with
// the cluster's configuration except for the spec's settings. It starts none if it finds another
// authority or the files of another join.
func TestJoinByKubeadm(t *testing.T) {
	a := newAPIServer(t)
	nothing := func(*render.Input, userdata.Machine) {}
	for _, format := range []bootstrapv1.Format{bootstrapv1.FormatCloudConfig, bootstrapv1.FormatIgnition} {
		got, disk, err := joinByDrover(t.Context(), t, a, format, nothing)
		if err != nil {
			t.Fatal(err)
		}
		in := droverInput(t, bootstrapv1.DroverConfigSpec{Format: format})
		in.Server, in.CA = a.URL, a.describes
		want, err := droverKubelet(t, in)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%v, got %+v\nwant %+v", err, got, want)
		}
		if config := string(disk.Files[kubeletConfigFile].Content); !strings.Contains(config, "maxPods: 50\n") ||
			!strings.Contains(config, "serverTLSBootstrap: true\n") {
			t.Errorf("the kubelet's configuration is\n%s", config)
		}
	}
	for name, c := range map[string]struct {
		change func(*render.Input, userdata.Machine)
		words  string
	}{
		"another authority": {func(in *render.Input, _ userdata.Machine) {
			in.CA = droverInput(t, bootstrapv1.DroverConfigSpec{}).CA
		}, "couldn't validate the identity of the API Server"},
		"joined before": {func(_ *render.Input, disk userdata.Machine) {
			disk.Files[kubeletKubeconfig] = userdata.File{Content: []byte("a kubeconfig")}
		}, "FileAvailable--etc-kubernetes-kubelet.conf"},
		"half joined before": {func(_ *render.Input, disk userdata.Machine) {
			disk.Files[authorityFile] = userdata.File{Content: []byte("an authority")}
		}, "FileAvailable--etc-kubernetes-pki-ca.crt"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // kubeadm tries another authority until then
		_, _, err := joinByDrover(ctx, t, a, "", c.change)
		if cancel(); err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestCommandThatFails: the simulation stops where the machine would, also within a unit and a
// script.
func TestCommandThatFails(t *testing.T) {
	for _, format := range []bootstrapv1.Format{bootstrapv1.FormatCloudConfig, bootstrapv1.FormatIgnition} {
		in := droverInput(t, bootstrapv1.DroverConfigSpec{Format: format, PreKubeletCommands: []string{"exit 3"}})
		if _, err := droverKubelet(t, in); err == nil || !strings.Contains(err.Error(), errNotStarted.Error()) {
			t.Errorf("%s: %v", format, err)
		}
	}
}
