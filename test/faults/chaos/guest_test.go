// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"net"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/test/internal/scenario"
)

// guestLabel marks what a hostile guest has made, with the tenant's name.
const guestLabel = "chaos.example.com/guest"

// flood is how many certificate requests a hostile guest makes that are none of Drover's business.
const flood = 10

// attack lets somebody with root on one machine claim to be another one. The machine's kubelet asks
// for certificates of the other one, and of the API server; it makes a flood of other requests. Two
// Nodes register, as a stolen bootstrap token of another provider would let them: one with the
// other's addresses, one with its provider ID.
func (x *tenant) attack(ctx context.Context, n int, on bool) error {
	if !on {
		return x.endAttack(ctx)
	}
	machines := &infrav1.DroverMachineList{} // of all tenants, who share the workload cluster
	if err := x.rig.Client.List(ctx, machines); err != nil {
		return err
	}
	var guest *infrav1.DroverMachine
	var others []*infrav1.DroverMachine
	for i := range machines.Items {
		switch m := &machines.Items[i]; {
		case m.Namespace == x.Namespace && guest == nil:
			guest = m
		case m.Spec.ProviderID != "":
			others = append(others, m)
		}
	}
	if guest == nil || len(others) == 0 {
		return nil
	}
	victim := others[n%len(others)]
	x.note("   %s claims to be %s", guest.Name, victim.Name)
	return errors.Join(x.register(ctx, guest.Name, victim), x.request(ctx, guest.Name, victim))
}

// register makes two Nodes that look like the victim's.
func (x *tenant) register(ctx context.Context, guest string, victim *infrav1.DroverMachine) error {
	meta := func(suffix string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: guest + "-" + suffix, Labels: map[string]string{guestLabel: x.Name}}
	}
	addresses := &corev1.Node{ObjectMeta: meta("addresses")}
	err := client.IgnoreAlreadyExists(x.rig.Nodes.Create(ctx, addresses))
	if err == nil {
		for _, a := range victim.Status.Addresses {
			addresses.Status.Addresses = append(addresses.Status.Addresses,
				corev1.NodeAddress{Type: corev1.NodeAddressType(a.Type), Address: a.Address})
		}
		err = x.rig.Nodes.Status().Update(ctx, addresses)
	}
	id := &corev1.Node{ObjectMeta: meta("id"), Spec: corev1.NodeSpec{ProviderID: victim.Spec.ProviderID}}
	return errors.Join(err, client.IgnoreAlreadyExists(x.rig.Nodes.Create(ctx, id)))
}

// request asks for certificates that nobody may have, as the guest's kubelet.
func (x *tenant) request(ctx context.Context, guest string, victim *infrav1.DroverMachine) error {
	config := rest.CopyConfig(x.rig.Workload.AdminConfig())
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:node:" + guest, Groups: []string{"system:nodes", "system:authenticated"}}
	kubelet, err := scenario.NewClient(config)
	if err != nil {
		return err
	}
	var ips []net.IP
	for _, a := range victim.Status.Addresses {
		if ip := net.ParseIP(a.Address); ip != nil {
			ips = append(ips, ip)
		}
	}
	nodes := []string{"system:nodes"}
	own, other := pkix.Name{CommonName: "system:node:" + guest, Organization: nodes},
		pkix.Name{CommonName: "system:node:" + victim.Name, Organization: nodes}
	all := []*certificatesv1.CertificateSigningRequest{
		certificateRequest(certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.UsageClientAuth,
			&x509.CertificateRequest{Subject: other}),
		certificateRequest(certificatesv1.KubeletServingSignerName, certificatesv1.UsageServerAuth,
			&x509.CertificateRequest{Subject: other, DNSNames: []string{victim.Name}, IPAddresses: ips}),
		certificateRequest(certificatesv1.KubeletServingSignerName, certificatesv1.UsageServerAuth,
			&x509.CertificateRequest{Subject: own, DNSNames: []string{"kubernetes.default.svc"}}),
	}
	if len(ips) > 0 {
		all = append(all, certificateRequest(certificatesv1.KubeletServingSignerName, certificatesv1.UsageServerAuth,
			&x509.CertificateRequest{Subject: own, IPAddresses: ips}))
	}
	for range flood {
		all = append(all, certificateRequest("example.com/other", certificatesv1.UsageClientAuth, &x509.CertificateRequest{Subject: other}))
	}
	var errs []error
	for _, request := range all {
		request.Labels = map[string]string{guestLabel: x.Name}
		errs = append(errs, kubelet.Create(ctx, request))
	}
	return errors.Join(errs...)
}

func certificateRequest(signer string, usage certificatesv1.KeyUsage,
	template *x509.CertificateRequest) *certificatesv1.CertificateSigningRequest {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	raw, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		panic(err)
	}
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "guest-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: signer, Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, usage},
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: raw}),
		},
	}
}

// endAttack checks that the guest got nothing, and removes what it has made.
func (x *tenant) endAttack(ctx context.Context) error {
	mine := client.MatchingLabels{guestLabel: x.Name}
	requests, nodes := &certificatesv1.CertificateSigningRequestList{}, &corev1.NodeList{}
	if err := errors.Join(x.rig.Nodes.List(ctx, requests, mine), x.rig.Nodes.List(ctx, nodes, mine)); err != nil {
		return err
	}
	x.claims.Add(int64(len(requests.Items) + len(nodes.Items)))
	var errs []error
	for i := range requests.Items {
		r := &requests.Items[i]
		for _, c := range r.Status.Conditions {
			if c.Type == certificatesv1.CertificateApproved {
				x.note("INVARIANT: the request %s of a hostile guest was approved: %s", r.Name, c.Message)
			}
		}
		errs = append(errs, scenario.Delete(ctx, x.rig.Nodes, r))
	}
	for i := range nodes.Items {
		node := &nodes.Items[i]
		if strings.HasSuffix(node.Name, "-addresses") && (node.Spec.ProviderID != "" || node.Annotations[clusterv1.MachineAnnotation] != "") {
			x.note("INVARIANT: the Node %s became a machine for its addresses: provider ID %q", node.Name, node.Spec.ProviderID)
		}
		errs = append(errs, scenario.Delete(ctx, x.rig.Nodes, node))
	}
	return errors.Join(errs...)
}
