// SPDX-License-Identifier: Apache-2.0

package playground

import (
	"os"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

func TestDrover(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	binary, err := Build(t.Context(), true)
	g.Expect(err).NotTo(HaveOccurred())
	m, err := StartManagement(t.Context(), ManagementOptions{ControlPlaneOptions: ControlPlaneOptions{Progress: os.Stderr}})
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { g.Expect(m.Stop()).To(Succeed()) }()
	cloud, err := StartSimulator(t.Context(), SimulatorOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { g.Expect(cloud.Stop()).To(Succeed()) }()
	scheme := runtime.NewScheme()
	g.Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
	g.Expect(infrav1.AddToScheme(scheme)).To(Succeed())
	admin, err := client.New(m.AdminConfig(), client.Options{Scheme: scheme})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(admin.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "token", Labels: map[string]string{infrav1.CredentialsLabel: "simulated"}},
		Data:       map[string][]byte{"token": []byte(cloud.Token)},
	})).To(Succeed())

	options := DroverOptions{Binary: binary, Args: []string{"--simulated-endpoint=" + cloud.URL, "--leader-elect=false"}}
	drover, err := m.StartDrover(t.Context(), options)
	g.Expect(err).NotTo(HaveOccurred())
	one := account("one")
	g.Expect(admin.Create(t.Context(), one)).To(Succeed(), "its webhook admits it")
	g.Eventually(func(g Gomega) {
		g.Expect(admin.Get(t.Context(), client.ObjectKeyFromObject(one), one)).To(Succeed())
		g.Expect(one.Status.Conditions).To(ContainElement(And(HaveField("Type", "Ready"), HaveField("Status", metav1.ConditionTrue))))
	}, patience).Should(Succeed(), "it reaches the simulated cloud")
	kind := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "droveraccounts." + infrav1.GroupVersion.Group}}
	kind.SetGroupVersionKind(crdKind)
	g.Eventually(func() error { return admin.Delete(t.Context(), kind, client.DryRunAll) }, patience).Should(
		MatchError(apierrors.IsForbidden, "IsForbidden"), "its kinds are kept, as in a release")

	drover.Kill()
	g.Expect(drover.Wait()).To(MatchError(ContainSubstring("signal: killed")))
	g.Expect(admin.Create(t.Context(), account("two"))).To(MatchError(ContainSubstring("failed calling webhook")))
	g.Expect(admin.Delete(t.Context(), one)).To(Succeed())
	g.Expect(admin.Get(t.Context(), client.ObjectKeyFromObject(one), one)).To(Succeed())
	one.Finalizers = nil
	g.Expect(admin.Update(t.Context(), one)).To(Succeed(), "an object under deletion can be let go while nobody serves webhooks")

	drover, err = m.StartDrover(t.Context(), options)
	g.Expect(err).NotTo(HaveOccurred())
	beside, err := m.StartDrover(t.Context(), options)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(beside.Log).NotTo(Equal(drover.Log))
	g.Expect(admin.Create(t.Context(), account("two"))).To(Succeed())
	g.Expect(drover.Stop(patience)).To(Succeed())
	g.Eventually(func() error { return admin.Create(t.Context(), account("three")) }, patience).Should(Succeed(), "the other one serves")
	g.Expect(beside.Stop(patience)).To(Succeed())
}

func account(name string) *infrav1.DroverAccount {
	return &infrav1.DroverAccount{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: infrav1.DroverAccountSpec{CredentialsRef: infrav1.LocalReference{Name: "token"},
			Cloud: infrav1.AccountCloud{Simulated: &infrav1.SimulatedAccount{}}},
	}
}
