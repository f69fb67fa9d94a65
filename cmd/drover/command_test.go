// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// TestExamples tests that each command has examples, and that their commands and flags exist.
func TestExamples(t *testing.T) {
	t.Parallel()
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			walk(sub)
		}
		if c.HasParent() && c.Runnable() && c.Name() != "import" && len(examples(c)) == 0 {
			t.Errorf("%s has no example", c.CommandPath())
		}
		for _, line := range examples(c) {
			if err := parses(strings.Fields(line)); err != nil {
				t.Errorf("%s: %q: %v", c.CommandPath(), line, err)
			}
		}
	}
	walk(command())
	for line, want := range map[string]string{
		"drover chek x":             "unknown command",
		"drover check x --nowhere":  "unknown flag",
		"drover check":              "needs the name",
		"drover simulate kil x":     "unknown command",
		"drover import cluster-api": "required flag",
	} {
		if err := parses(strings.Fields(line)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", line, err)
		}
	}
}

// examples returns the command lines in a command's examples.
func examples(c *cobra.Command) (lines []string) {
	for line := range strings.Lines(c.Example) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	return lines
}

// parses says what cobra has against a command line. It runs nothing.
func parses(words []string) error {
	root := command()
	cmd, args, err := root.Find(words[1:])
	if err != nil {
		return err
	}
	if err := cmd.ParseFlags(args); err != nil {
		return err
	}
	if err := cmd.ValidateArgs(cmd.Flags().Args()); err != nil {
		return err
	}
	return cmd.ValidateRequiredFlags()
}

// TestMistakes tests what the command says to a mistake. None ends with code 0.
func TestMistakes(t *testing.T) {
	nowhere := filepath.Join(t.TempDir(), "nowhere")
	t.Setenv("KUBECONFIG", nowhere)
	t.Setenv("DROVER_SIMULATED_ENDPOINT", "")
	for line, want := range map[string][]string{
		"orphan":      {`unknown command "orphan" for "drover"`, "Did you mean this?", "orphans", "See 'drover --help'."},
		"check":       {`"drover check" needs the name of a DroverMachineTemplate`, "See 'drover check --help'."},
		"check x --f": {"unknown flag: --f", "See 'drover check --help'."},
		"check x":     {"finding the management cluster: KUBECONFIG names no file with a cluster: " + nowhere},
		"orphans -o table": {`invalid argument "table" for "-o, --output" flag: must be one of text, json, yaml`,
			"See 'drover orphans --help'."},
		"import machine-controler-manager commit": {`unknown command "machine-controler-manager" for "drover import"`,
			"Did you mean this?", "\tmachine-controller-manager", "See 'drover import --help'."},
		"import machine-controller plam": {`unknown step "plam"`, "must be one of plan, stage, check, switch, commit, rollback, status",
			"Did you mean this?", "\tplan"},
		"import machine-controller":     {"required flag(s)", "See 'drover import machine-controller --help'."},
		"simulate kil x":                {`unknown command "kil" for "drover simulate"`, "\tkill"},
		"simulate kill":                 {`"drover simulate kill" needs the name of a machine`},
		"simulate capacity sim-1a some": {`finding the management cluster`},
	} {
		var errs bytes.Buffer
		root := command()
		root.SetOut(new(bytes.Buffer))
		root.SetErr(&errs)
		root.SetArgs(strings.Fields(line))
		if code := run(root, &errs); code != 1 {
			t.Errorf("%q: code %d", line, code)
		}
		for _, words := range want {
			if !strings.Contains(errs.String(), words) {
				t.Errorf("%q does not say %q:\n%s", line, words, errs.String())
			}
		}
	}
}

// TestContext tests that the cluster and the namespace are those of the kubeconfig's context.
func TestContext(t *testing.T) {
	g := NewWithT(t)
	config := clientcmdapi.NewConfig()
	for _, name := range []string{"first", "second"} {
		config.Clusters[name] = &clientcmdapi.Cluster{Server: "https://" + name}
		config.Contexts[name] = &clientcmdapi.Context{Cluster: name, Namespace: "in-" + name}
	}
	config.CurrentContext = "first"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	g.Expect(clientcmd.WriteToFile(*config, path)).To(Succeed())
	t.Setenv("KUBECONFIG", path)
	for args, want := range map[string][2]string{
		"":                            {"https://first", "in-first"},
		"--context second":            {"https://second", "in-second"},
		"--context second -n another": {"https://second", "another"},
	} {
		var m management
		cmd := &cobra.Command{}
		m.addFlags(cmd.Flags())
		g.Expect(cmd.ParseFlags(strings.Fields(args))).To(Succeed())
		config, err := m.config()
		g.Expect(err).NotTo(HaveOccurred())
		namespace, err := m.namespace()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect([2]string{config.Host, namespace}).To(Equal(want), args)
		g.Expect(config.UserAgent).To(Equal("drover/dev"))
		g.Expect(config.QPS).To(BeEquivalentTo(-1))
	}
}

// TestVersionOf tests which version an image's name tells.
func TestVersionOf(t *testing.T) {
	t.Parallel()
	for image, want := range map[string]string{
		"ghcr.io/drover-io/drover:v0.1.0":         "v0.1.0",
		"localhost:5000/drover:v0.1.0@sha256:abc": "v0.1.0",
		"localhost:5000/drover@sha256:abc":        "sha256:abc",
		"localhost:5000/drover":                   "",
	} {
		if got := versionOf(image); got != want {
			t.Errorf("%s: %q, want %q", image, got, want)
		}
	}
}
