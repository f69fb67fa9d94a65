// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/internal/test/authority"
	"github.com/drover-io/drover/test/internal/scenario"
)

// finding is a result of "drover check --output=json".
type finding struct{ Check, Result, Message, Remedy string }

// check runs "drover check", and returns its results and its exit code.
func (s *tenant) check(template string, args ...string) (all []finding, code int) {
	s.t.Helper()
	raw, err := env.management.Kubeconfig("operator", "system:masters")
	s.Expect(err).NotTo(HaveOccurred())
	path := filepath.Join(s.t.TempDir(), "kubeconfig")
	s.Expect(os.WriteFile(path, raw, 0o600)).To(Succeed())
	cmd := exec.CommandContext(s.ctx, env.command, append([]string{
		"check", template, "--kubeconfig=" + path, "--namespace=" + s.Namespace, "--simulated-cloud", "--allow-endpoints=127.0.0.0/8,::1/128",
		"--output=json",
	}, args...)...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, _ := cmd.Output() // the exit code is compared
	s.Expect(string(out) + errs.String()).NotTo(ContainSubstring(marked))
	var answer struct {
		Passed bool
		Checks []finding
	}
	s.Expect(json.Unmarshal(out, &answer)).To(Succeed(), "%s%s", out, errs.String())
	s.Expect(answer.Passed).To(Equal(cmd.ProcessState.ExitCode() == 0))
	return answer.Checks, cmd.ProcessState.ExitCode()
}

// wanted is what a user has written before the first machine.
type wanted struct {
	account             *infrav1.DroverAccount
	credentials, config *corev1.Secret
	machine             infrav1.SimulatedMachine
}

// TestCheck runs "drover check" before the first machine: with everything in order, and with one
// mistake each, which it names with a remedy. No run makes anything in the cloud.
func TestCheck(t *testing.T) {
	for _, tc := range []struct {
		name     string
		template string // another one than exists
		flag     string // of the manager
		mistake  func(s *tenant, w *wanted)
		check    string // the first that fails; "" for none
		message  string
		remedy   string // a part of it
	}{
		{name: "in order"},
		{name: "no template", template: "other", check: "DroverMachineTemplate", message: `"other" does not exist`},
		{name: "no account", check: "DroverAccount", message: `"prod" does not exist`, mistake: func(_ *tenant, w *wanted) { w.account = nil }},
		{name: "no secret", check: "credentials", message: `Secret "prod-credentials"`,
			mistake: func(_ *tenant, w *wanted) { w.credentials = nil }},
		{name: "no label", check: "credentials", message: "kubectl -n", mistake: func(_ *tenant, w *wanted) { w.credentials.Labels = nil }},
		{name: "wrong token", check: "credentials", message: "AuthFailure",
			mistake: func(_ *tenant, w *wanted) { w.credentials.Data["token"] = []byte(marked) }},
		{name: "cloud not switched on", flag: "--simulated-cloud=false", check: "credentials", message: "switched on",
			remedy: "Change the DroverAccount"},
		{name: "type", check: "type and image", message: `"huge" does not exist`, remedy: "Change the DroverMachineTemplate",
			mistake: func(_ *tenant, w *wanted) { w.machine.InstanceType = "huge" }},
		{name: "image", check: "type and image", message: `"nothing" does not exist`,
			mistake: func(_ *tenant, w *wanted) { w.machine.Image = "nothing" }},
		{name: "quota", check: "create a machine in sim-1a, sim-1b, sim-1c", message: "QuotaExceeded", mistake: func(s *tenant, _ *wanted) {
			s.Expect(env.admin.SetQuota(s.ctx, "default", simulator.Quota{VCPUs: 1})).To(Succeed())
			s.t.Cleanup(func() { _ = env.admin.SetQuota(context.Background(), "default", simulator.Quota{}) })
		}},
		{name: "api server", check: "API server", message: "is not signed by the kubeconfig's certificate authority",
			mistake: func(s *tenant, w *wanted) {
				other := authority.New(s.t).PEM
				w.config.Data["value"] = s.edited(func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) { c.CertificateAuthorityData = other })
			}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newTenant(t)
			w := &wanted{
				account: s.Account(), credentials: s.credentials(), config: s.kubeconfigSecret(s.Kubeconfig),
				machine: infrav1.SimulatedMachine{InstanceType: "medium", Image: "node-image"},
			}
			if tc.mistake != nil {
				tc.mistake(s, w)
			}
			s.create(w.config, s.ControlPlane(), s.Cluster(), scenario.Pool{Cluster: s.Adopted}.Template("workers", w.machine))
			if w.account != nil {
				s.create(w.account)
			}
			if w.credentials != nil {
				s.create(w.credentials)
			}
			before, err := env.admin.Snapshot(s.ctx)
			s.Expect(err).NotTo(HaveOccurred())
			template := "workers"
			if tc.template != "" {
				template = tc.template
			}
			args := []string{"--cluster=" + s.Name}
			if tc.flag != "" {
				args = append(args, tc.flag)
			}
			all, code := s.check(template, args...)
			after, err := env.admin.Snapshot(s.ctx)
			s.Expect(err).NotTo(HaveOccurred())
			s.Expect(after.Live()).To(HaveLen(len(before.Live())), "nothing is made")
			failed := slices.DeleteFunc(slices.Clone(all), func(f finding) bool { return f.Result != "Failed" })
			if tc.check == "" {
				s.Expect(failed).To(BeEmpty())
				s.Expect(all).To(HaveLen(6), "%+v", all)
				s.Expect(all).To(HaveEach(HaveField("Result", "Passed")))
				s.Expect(code).To(Equal(0))
				return
			}
			s.Expect(failed).NotTo(BeEmpty(), "%+v", all)
			s.Expect(failed[0].Check).To(Equal(tc.check))
			s.Expect(failed[0].Message).To(ContainSubstring(tc.message))
			s.Expect(failed[0].Remedy).NotTo(BeEmpty())
			s.Expect(failed[0].Remedy).To(ContainSubstring(tc.remedy))
			s.Expect(code).To(Equal(1))
		})
	}
}
