// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/yaml"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/internal/test/playground"
)

// deployed creates the shipped Deployment of the manager, without Pods, until the test ends.
func (s *tenant) deployed(variables ...corev1.EnvVar) {
	s.t.Helper()
	root, err := playground.Root(s.ctx)
	s.Expect(err).NotTo(HaveOccurred())
	data, err := os.ReadFile(filepath.Join(root, "config/manager/manager.yaml"))
	s.Expect(err).NotTo(HaveOccurred())
	d := &appsv1.Deployment{}
	s.Expect(yaml.UnmarshalStrict(data, d)).To(Succeed())
	for _, labels := range []map[string]string{d.Labels, d.Spec.Selector.MatchLabels, d.Spec.Template.Labels} {
		labels[clusterv1.ProviderNameLabel] = "infrastructure-drover" // as config/default adds it
	}
	d.Spec.Replicas = new(int32)
	d.Spec.Template.Spec.Containers[0].Image = "ghcr.io/drover-io/drover:v0.1.7"
	shipped := &d.Spec.Template.Spec.Containers[0].Env
	for i, v := range *shipped { // clusterctl's defaults are empty
		if strings.HasPrefix(v.Value, "${") {
			(*shipped)[i].Value = ""
		}
	}
	for _, v := range variables {
		*shipped = append(slices.DeleteFunc(*shipped, func(old corev1.EnvVar) bool { return old.Name == v.Name }), v)
	}
	s.create(d)
	s.t.Cleanup(func() { _ = env.client.Delete(context.Background(), d) })
}

// drover runs the command, and returns what it prints.
func (s *tenant) drover(args ...string) (string, error) {
	s.t.Helper()
	raw, err := env.management.Kubeconfig("operator", "system:masters")
	s.Expect(err).NotTo(HaveOccurred())
	path := filepath.Join(s.t.TempDir(), "kubeconfig")
	s.Expect(os.WriteFile(path, raw, 0o600)).To(Succeed())
	out, err := exec.CommandContext(s.ctx, env.command, append(args, "--kubeconfig="+path, "--namespace="+s.Namespace)...).CombinedOutput()
	return string(out), err
}

// TestManagerFlags tests that the command sees the clouds that the manager's Deployment names, and
// its version, and that a flag of the user's goes before.
func TestManagerFlags(t *testing.T) {
	s := newTenant(t)
	account := s.Account()
	account.Spec.Cloud.Simulated.Endpoint = "" // the manager knows it
	s.create(account, s.credentials())
	out, err := s.drover("orphans")
	s.Expect(err).To(HaveOccurred())
	s.Expect(out).To(And(ContainSubstring("switched on"), Not(ContainSubstring("check its Ready condition"))))

	s.deployed(corev1.EnvVar{Name: "DROVER_SIMULATED_ENDPOINT", Value: env.cloud.URL},
		corev1.EnvVar{Name: "DROVER_ALLOW_ENDPOINTS", Value: "127.0.0.0/8,::1/128"})
	out, err = s.drover("orphans")
	s.Expect(err).NotTo(HaveOccurred(), out)
	s.Expect(out).To(HavePrefix("DroverAccount " + s.Namespace + "/prod: No orphans."))
	out, err = s.drover("orphans", "--simulated-endpoint=http://127.0.0.1:1")
	s.Expect(err).To(HaveOccurred(), out)
	s.Expect(out).To(ContainSubstring("127.0.0.1:1"))

	out, err = s.drover("version")
	s.Expect(err).NotTo(HaveOccurred(), out)
	s.Expect(out).To(ContainSubstring("manager: v0.1.7 (Deployment drover-system/drover-controller-manager)"))
	out, err = s.drover("simulate", "slow", "0s")
	s.Expect(err).NotTo(HaveOccurred(), out)
}

// TestSupport tests that the archive has what an issue needs, and none of the secrets that are
// planted wherever one can be.
func TestSupport(t *testing.T) {
	s := newTenant(t)
	s.deployed(corev1.EnvVar{Name: "HTTPS_PROXY", Value: "http://proxy:" + marked + "@example.com"})
	credentials := s.credentials()
	credentials.Data["token"] = []byte(marked)
	kubeconfig := s.kubeconfigSecret(s.edited(func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) { u.Token = marked }))
	kubeconfig.Labels = map[string]string{clusterv1.ClusterNameLabel: s.Name}
	account := s.Account()
	account.Annotations = map[string]string{
		corev1.LastAppliedConfigAnnotation: `{"spec":"` + marked + `"}`, "example.com/note": marked, "drover.io/note": strings.Repeat("x", 200) +
			marked,
	}
	template := &bootstrapv1.DroverConfigTemplate{ObjectMeta: s.meta("workers")}
	template.Spec.Template.Spec = bootstrapv1.DroverConfigSpec{
		Files:              []bootstrapv1.File{{Path: "/etc/secret", Content: marked}},
		PreKubeletCommands: []string{"curl -u me:" + marked + " https://example.com"},
	}
	template.Annotations = map[string]string{"example.com/note": marked}
	event := &corev1.Event{
		ObjectMeta: s.meta("planted"), Reason: "Planted", Message: "calling https://me:" + marked + "@example.com", Type: corev1.EventTypeWarning,
		InvolvedObject: corev1.ObjectReference{APIVersion: infrav1.GroupVersion.String(), Kind: "DroverAccount", Namespace: s.Namespace,
			Name: "prod"},
	}
	s.create(credentials, kubeconfig, account, template, event, s.ControlPlane(), s.Cluster())
	s.says(account, clusterv1.ReadyCondition, infrav1.UnauthorizedReason, "AuthFailure")

	log, err := os.ReadFile(env.drover.Log)
	s.Expect(err).NotTo(HaveOccurred())
	path := filepath.Join(t.TempDir(), "manager.log")
	s.Expect(os.WriteFile(path, append(log, []byte("Authorization: Bearer "+marked+"\npassword="+marked+"\n")...), 0o600)).To(Succeed())
	file := filepath.Join(t.TempDir(), "support.tar.gz")
	out, err := s.drover("support", "--file="+file, "--log="+path)
	s.Expect(err).NotTo(HaveOccurred(), out)

	files := unpack(s, file)
	for name, text := range files {
		s.Expect(text).NotTo(ContainSubstring(marked), name)
	}
	objects := "objects/" + s.Namespace + "/"
	for name, want := range map[string]string{
		"versions.yaml":  "version: v0.1.7",
		"conditions.txt": "DroverAccount " + s.Namespace + "/prod: Ready=False Unauthorized",
		"events.txt":     "Planted: calling https://(redacted)@example.com",
		"secrets.txt":    s.Namespace + "/prod-adopted Opaque: value",
		objects + "droveraccounts.infrastructure.cluster.x-k8s.io/prod.yaml":      "example.com/note: (redacted)",
		objects + "droverconfigtemplates.bootstrap.cluster.x-k8s.io/workers.yaml": "path: /etc/secret",
		objects + "clusters.cluster.x-k8s.io/prod.yaml":                           "kind: DroverCluster",
		"manager/drover-system/Deployment-drover-controller-manager.yaml":         "name: HTTPS_PROXY",
		"manager/manager.log": "Starting Drover",
	} {
		s.Expect(files).To(HaveKeyWithValue("drover-support/"+name, ContainSubstring(want)))
	}
	info, err := os.Stat(file)
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(info.Mode().Perm()).To(Equal(os.FileMode(0o600)))
}

// unpack returns the files of an archive.
func unpack(s *tenant, file string) map[string]string {
	s.t.Helper()
	f, err := os.Open(file)
	s.Expect(err).NotTo(HaveOccurred())
	defer f.Close()
	zipped, err := gzip.NewReader(f)
	s.Expect(err).NotTo(HaveOccurred())
	files, archive := map[string]string{}, tar.NewReader(zipped)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		s.Expect(err).NotTo(HaveOccurred())
		text, err := io.ReadAll(archive)
		s.Expect(err).NotTo(HaveOccurred())
		files[header.Name] = string(text)
	}
}
