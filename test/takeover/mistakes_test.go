// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"maps"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/test/internal/scenario"
)

// TestMistakes takes a pool over while its users do what they should not: they pause the Cluster,
// leave the autoscaler running, scale the pool after the switch, and start the other system again.
// The Nodes work all the time: from the switch on, their kubelets get new certificates.
func TestMistakes(t *testing.T) {
	s := start(t, "mistakes", Pool{Name: "a", Replicas: 2})
	g := NewWithT(t)
	lease := s.Old.Lease(time.Now().Add(-time.Hour))
	refuses := func(step, why string) {
		t.Helper()
		out, errs, code := s.Run(step)
		g.Expect(out + errs).To(MatchRegexp(why))
		g.Expect(code).To(Equal(1))
	}
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Tenant.Name}}
	pause := func(paused bool) {
		t.Helper()
		s.Do(s.Rig.Client.Get(s.Ctx, client.ObjectKeyFromObject(cluster), cluster))
		s.Do(scenario.Patch(s.Ctx, s.Rig.Client, cluster, func() { cluster.Spec.Paused = ptr.To(paused) }))
	}
	pause(true)
	refuses("stage", "somebody else has paused Cluster mistakes")
	refuses("check", `Refused +Cluster mistakes +spec.paused +no takeover has paused it`)
	_, _, code := s.Run("rollback")
	g.Expect(code).To(Equal(0), "nothing is staged")
	s.Do(s.Rig.Client.Get(s.Ctx, client.ObjectKeyFromObject(cluster), cluster))
	g.Expect(cluster.Spec.Paused).To(HaveValue(BeTrue()), "it is not this takeover's pause")
	pause(false)

	scaler := s.deployment("autoscaler", "cluster-autoscaler:v1.34.0", "./cluster-autoscaler", "--nodes=1:5:"+s.Old.namespace+".mistakes-a")
	s.staged()
	refuses("check", `Refused +Deployment autoscaler +spec.replicas +it runs cluster-autoscaler`)
	refuses("switch", `Refused +Deployment autoscaler`)
	s.Do(scenario.Patch(s.Ctx, s.Rig.Client, scaler, func() { scaler.Spec.Replicas = ptr.To[int32](0) }))
	out, errs, code := s.Run("switch")
	g.Expect(code).To(Equal(0), out+errs)
	g.Expect(out).To(ContainSubstring("between 1 and 5 machines"))

	s.servingCertificate("mistakes-a-6d4f5-0")

	tags := maps.Clone(s.Old.Tags)
	tags["Name"] = "bait"
	bait, _ := s.AWS.Launch(tags)
	s.Until("the other system would find an orphan", func(context.Context) (string, error) {
		return map[bool]string{true: "", false: "it would not"}[len(s.Old.victims()) == 1], nil
	})
	g.Expect(s.Old.victims()).To(ConsistOf(bait), "started again after the switch")
	s.Renew(lease, time.Now().Add(time.Hour))
	refuses("commit", "Lease machine-controller: it was renewed")
	s.Renew(lease, time.Now().Add(-time.Hour))

	d := &clusterv1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "mistakes-a"}}
	s.Do(s.Rig.Client.Get(s.Ctx, client.ObjectKeyFromObject(d), d))
	g.Expect(d.Annotations).NotTo(HaveKey(clusterv1.AutoscalerMinSizeAnnotation), "an autoscaler must not find it yet")
	s.Do(scenario.Patch(s.Ctx, s.Rig.Client, d, func() { d.Spec.Replicas = ptr.To[int32](3) }))
	added := s.added(3)
	refuses("rollback", "Machine "+added.Name+" of MachineDeployment mistakes-a was made after the switch")
	s.Do(s.Rig.Client.Get(s.Ctx, client.ObjectKeyFromObject(added), added))
	s.Do(scenario.Patch(s.Ctx, s.Rig.Client, added, func() {
		metav1.SetMetaDataAnnotation(&added.ObjectMeta, clusterv1.DeleteMachineAnnotation, "")
	}))
	s.Do(scenario.Patch(s.Ctx, s.Rig.Client, d, func() { d.Spec.Replicas = ptr.To[int32](2) }))
	s.added(2)

	out, errs, code = s.Run("switch")
	g.Expect(code).To(Equal(0), "it waits until the pool is at rest again: %s%s", out, errs)
	out, errs, code = s.Run("commit")
	g.Expect(code).To(Equal(0), out+errs)
	s.Do(s.Rig.Client.Get(s.Ctx, client.ObjectKeyFromObject(d), d))
	g.Expect(d.Annotations).To(And(HaveKeyWithValue(clusterv1.AutoscalerMinSizeAnnotation, "1"),
		HaveKeyWithValue(clusterv1.AutoscalerMaxSizeAnnotation, "5")))
	for _, name := range []string{"mistakes-a", credentials} {
		secret := &corev1.Secret{}
		s.Do(s.Rig.Client.Get(s.Ctx, client.ObjectKey{Namespace: s.Old.namespace, Name: name}, secret))
		g.Expect(secret.Finalizers).To(Equal([]string{anothers}), name)
		g.Expect(secret.DeletionTimestamp).To(BeNil(), name)
	}
	g.Expect(s.Old.victims()).To(ConsistOf(bait), "started again after the commit")
	s.AWS.Vanish(bait)

	s.servingCertificate("mistakes-a-6d4f5-1")
	for _, id := range s.Old.vms {
		for _, e := range s.AWS.Books() {
			if e.ID == id {
				g.Expect(e.State).To(Equal("running"))
				g.Expect(e.Tags).To(HaveKey(cloud.TagOwnership))
			}
		}
	}
	s.Do(scenario.Patch(s.Ctx, s.Rig.Client, d, func() { d.Spec.Replicas = ptr.To[int32](0) }))
	s.Empty()
}

// victims returns what the other system would delete if it were started now, by its rules: a VM
// with both of its tags whose name is of no Machine with that VM, and a Machine whose Node is gone.
// A class counts as there even if it is not.
func (o *Old) victims() (all []string) {
	o.Helper()
	machines := o.list("Machine")
	o.Do(o.Rig.Client.List(o.Ctx, machines, client.InNamespace(o.namespace)))
	ids := map[string]string{}
	for _, m := range machines.Items {
		ids[m.GetName()], _, _ = unstructured.NestedString(m.Object, "spec", "providerID")
		if err := o.Rig.Nodes.Get(o.Ctx, client.ObjectKey{Name: m.GetLabels()["node"]}, &corev1.Node{}); apierrors.IsNotFound(err) {
			all = append(all, m.GetName())
		} else {
			o.Do(err)
		}
	}
	for _, e := range o.AWS.Books() {
		has := 0
		for key := range o.Tags {
			if _, is := e.Tags[key]; is {
				has++
			}
		}
		if has == len(o.Tags) && e.State == running && ids[e.Tags["Name"]] != "aws:///us-east-1/"+e.ID {
			all = append(all, e.ID)
		}
	}
	return all
}

// deployment makes a Deployment of one replica beside the other system's objects.
func (s *Stage) deployment(name, image string, command ...string) *appsv1.Deployment {
	s.Helper()
	labels := map[string]string{"app": name}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Old.namespace, Name: name},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: name, Image: "registry.example/" + image, Command: command}}},
			},
		},
	}
	s.Do(s.Rig.Client.Create(s.Ctx, d))
	return d
}

// added waits until there are n Machines, and returns one that was not imported, if there is one.
func (s *Stage) added(n int) (one *clusterv1.Machine) {
	s.Helper()
	s.Until(fmt.Sprintf("there are %d Machines", n), func(ctx context.Context) (string, error) {
		machines := &clusterv1.MachineList{}
		if err := s.Rig.Client.List(ctx, machines, client.InNamespace(s.Namespace)); err != nil {
			return "", err
		}
		for i := range machines.Items {
			if m := &machines.Items[i]; !metav1.HasAnnotation(m.ObjectMeta, "drover.io/imported") {
				one = m
			}
		}
		if len(machines.Items) != n {
			return fmt.Sprintf("there are %d", len(machines.Items)), nil
		}
		return "", nil
	})
	return one
}

// servingCertificate requests a certificate as the Node's kubelet, and waits for it. Drover must
// approve it: nobody else here does.
func (s *Stage) servingCertificate(node string) {
	s.Helper()
	config := s.Rig.Workload.AdminConfig()
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:node:" + node, Groups: []string{"system:nodes", "system:authenticated"}}
	kubelet, err := kubernetes.NewForConfig(config)
	s.Do(err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	s.Do(err)
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}, DNSNames: []string{node},
	}, key)
	s.Do(err)
	requests := kubelet.CertificatesV1().CertificateSigningRequests()
	csr, err := requests.Create(s.Ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: certificatesv1.KubeletServingSignerName,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth},
		},
	}, metav1.CreateOptions{})
	s.Do(err)
	s.Until("the kubelet of "+node+" has its serving certificate", func(ctx context.Context) (string, error) {
		is := &certificatesv1.CertificateSigningRequest{}
		err := s.Rig.Nodes.Get(ctx, client.ObjectKeyFromObject(csr), is)
		if err == nil && len(is.Status.Certificate) == 0 {
			return fmt.Sprintf("%+v", is.Status.Conditions), nil
		}
		return "", err
	})
}
