// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
)

// asProgram is the variable that makes the test binary run the command itself.
const asProgram = "DROVER_TEST_SIMULATE"

func TestMain(m *testing.M) {
	if args := os.Getenv(asProgram); args != "" {
		cmd := newSimulateCommand()
		cmd.SetArgs(strings.Fields(args))
		if cmd.Execute() != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// runSimulate runs the command in this process. It returns the address and a function that stops
// it.
func runSimulate(t *testing.T, args ...string) (string, func() error) {
	t.Helper()
	address := filepath.Join(t.TempDir(), "address")
	ctx, cancel := context.WithCancel(t.Context())
	var out bytes.Buffer
	cmd := newSimulateCommand()
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(append(args, "--address-file="+address))
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	var url string
	NewWithT(t).Eventually(func() error {
		text, err := os.ReadFile(address)
		url = strings.TrimSpace(string(text))
		return err
	}, 5*time.Second).Should(Succeed())
	return url, func() error {
		cancel()
		err := <-ended
		if first, _, _ := strings.Cut(out.String(), "\n"); first != url {
			t.Errorf("the first line is %q", first)
		}
		return err
	}
}

func TestCommand(t *testing.T) {
	g := NewWithT(t)
	config := filepath.Join(t.TempDir(), "cloud.yaml")
	g.Expect(os.WriteFile(config, []byte(`
regions:
- name: north
  zones: [n1, n2]
  capacity: {n1: {tiny: 0}}
instanceTypes:
- {name: tiny, cpu: 1, memoryMiB: 512, arch: amd64}
settings:
  bootMin: 1ms
  latency: {mean: 1ms}
  throttle: ec2
bodies:
  leaseInterval: 30s
`), 0o600)).To(Succeed())
	url, end := runSimulate(t, "--config="+config, "--token=mine", "--admin-token=admin", "--seed=3", "--throttle=none")
	admin := simulator.Admin{URL: url, Token: "admin"}
	r, err := admin.Run(t.Context(), "default", wire.RunInstancesRequest{
		Region: "north", InstanceType: "tiny", ClientToken: "a", Image: "node-image",
	})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(r.Zone).To(Equal("n2"))
	s, err := admin.Settings(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(s.Throttle).To(Equal(simulator.ThrottleNone), "a flag goes before the file")
	g.Expect(s.Latency.Mean).To(Equal(simulator.Duration{Duration: time.Millisecond}))
	g.Expect(end()).To(Succeed())
}

func TestCommandRefuses(t *testing.T) {
	config := filepath.Join(t.TempDir(), "cloud.yaml")
	if err := os.WriteFile(config, []byte("regionz: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--config=" + config}, {"--config=/nowhere"}, {"--throttle=some"}, {"--listen=nonsense"}, {"argument"}} {
		cmd := newSimulateCommand()
		cmd.SetOut(new(bytes.Buffer))
		cmd.SetErr(new(bytes.Buffer))
		cmd.SetArgs(args)
		if cmd.ExecuteContext(t.Context()) == nil {
			t.Errorf("%q: taken", args)
		}
	}
}

func TestStopWithParent(t *testing.T) {
	g := NewWithT(t)
	address := filepath.Join(t.TempDir(), "address")
	parent := exec.CommandContext(t.Context(), "sh", "-c", `"$0" & wait`, os.Args[0])
	parent.Env = append(os.Environ(), asProgram+"=--stop-with-parent --address-file="+address)
	g.Expect(parent.Start()).To(Succeed())
	var admin simulator.Admin
	g.Eventually(func() error {
		text, err := os.ReadFile(address)
		admin.URL = strings.TrimSpace(string(text))
		return err
	}, 10*time.Second).Should(Succeed())
	_, err := admin.Snapshot(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(parent.Process.Kill()).To(Succeed())
	_ = parent.Wait()
	g.Eventually(func() error {
		_, err := admin.Snapshot(t.Context())
		return err
	}, 10*time.Second).Should(HaveOccurred(), "it ends when the process that started it has")
}
