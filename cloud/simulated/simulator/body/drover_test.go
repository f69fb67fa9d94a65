// SPDX-License-Identifier: Apache-2.0

package body

import (
	"os"
	"reflect"
	"strings"
	"testing"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1alpha1"
	"github.com/drover-io/drover/bootstrap/render"
	"github.com/drover-io/drover/cloud/simulated/simulator/userdata"
)

// droverInput is what Drover's own bootstrap provider would render.
func droverInput(t *testing.T, spec bootstrapv1.CloudInitConfigSpec) render.Input {
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

// TestFormatsAreAlike sees to it that a machine starts the same kubelet, whatever the format of its user data and the way
// its software is installed. Ignition has no instance data: the provider ID is the controller's to set.
func TestFormatsAreAlike(t *testing.T) {
	want, err := droverKubelet(t, droverInput(t, bootstrapv1.CloudInitConfigSpec{}))
	if err != nil {
		t.Fatal(err)
	}
	if want.providerID != "simulated:///a/i-1" || want.node != "node-1" || want.labels["pool"] != "blue" || len(want.taints) != 1 {
		t.Fatalf("%+v", want)
	}
	for name, spec := range map[string]bootstrapv1.CloudInitConfigSpec{
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

// TestCommandThatFails sees to it that the simulation ends where the machine would, behind the unit and the script.
func TestCommandThatFails(t *testing.T) {
	for _, format := range []bootstrapv1.Format{bootstrapv1.FormatCloudConfig, bootstrapv1.FormatIgnition} {
		in := droverInput(t, bootstrapv1.CloudInitConfigSpec{Format: format, PreKubeletCommands: []string{"exit 3"}})
		if _, err := droverKubelet(t, in); err == nil || !strings.Contains(err.Error(), errNotStarted.Error()) {
			t.Errorf("%s: %v", format, err)
		}
	}
}
