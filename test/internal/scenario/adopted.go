// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/drover-io/drover/api/controlplane/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// Adopted is an existing cluster that gets machines from the simulated cloud. All its objects are
// in one namespace. Those that need no name of their own have its name.
type Adopted struct {
	// Namespace of all objects, and name of the Cluster.
	Namespace, Name string
	// Kubeconfig of the cluster, as provided by its owner.
	Kubeconfig []byte
	// Endpoint of the simulated cloud, and token of an account there.
	Endpoint, Token string
	// Inventory of the DroverAccount. The zero value keeps the defaults.
	Inventory infrav1.InventorySpec
	// RateLimits of the DroverAccount. nil keeps the cloud's own.
	RateLimits *infrav1.RateLimits
	// OrphanPolicy of the DroverAccount. "" keeps the default, Report.
	OrphanPolicy infrav1.OrphanPolicy
	// Dress changes each object of the cluster and its pools before it is created: it replaces the
	// fields of the simulated cloud with those of another cloud. nil changes nothing.
	Dress func(client.Object)
}

func (a Adopted) dress(objects ...client.Object) []client.Object {
	if a.Dress != nil {
		for _, o := range objects {
			a.Dress(o)
		}
	}
	return objects
}

func (a Adopted) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: a.Namespace, Name: name}
}

// These functions return the names of the Secrets.
func (a Adopted) kubeconfigSecret() string  { return a.Name + "-adopted" }
func (a Adopted) credentialsSecret() string { return a.Name + "-credentials" }

// Objects returns the cluster's objects in an order in which they can be created: the namespace,
// both Secrets, and everything except worker pools.
func (a Adopted) Objects() []client.Object {
	return a.dress(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: a.Namespace}},
		&corev1.Secret{ObjectMeta: a.meta(a.kubeconfigSecret()), Data: map[string][]byte{"value": a.Kubeconfig}},
		Credentials(a.meta(a.credentialsSecret()), "simulated", map[string][]byte{"token": []byte(a.Token)}),
		a.Account(),
		a.DroverCluster(),
		a.ControlPlane(),
		a.Cluster(),
	)
}

// Credentials returns a Secret that can be the credentials of accounts of this cloud.
func Credentials(meta metav1.ObjectMeta, cloud string, data map[string][]byte) *corev1.Secret {
	s := &corev1.Secret{ObjectMeta: meta}
	FillCredentials(s, cloud, data)
	return s
}

// FillCredentials makes a Secret the credentials of this cloud only.
func FillCredentials(s *corev1.Secret, cloud string, data map[string][]byte) {
	metav1.SetMetaDataLabel(&s.ObjectMeta, infrav1.CredentialsLabel, cloud)
	s.Data = data
}

// Account returns the DroverAccount that creates the machines.
func (a Adopted) Account() *infrav1.DroverAccount {
	return &infrav1.DroverAccount{ObjectMeta: a.meta(a.Name), Spec: infrav1.DroverAccountSpec{
		CredentialsRef: infrav1.LocalReference{Name: a.credentialsSecret()},
		Cloud:          infrav1.AccountCloud{Simulated: &infrav1.SimulatedAccount{Endpoint: a.Endpoint}},
		Inventory:      a.Inventory,
		RateLimits:     a.RateLimits,
		OrphanPolicy:   a.OrphanPolicy,
	}}
}

// DroverCluster returns the DroverCluster, which offers the account's zones as failure domains.
func (a Adopted) DroverCluster() *infrav1.DroverCluster {
	return &infrav1.DroverCluster{ObjectMeta: a.meta(a.Name), Spec: infrav1.DroverClusterSpec{
		DroverClusterFields: infrav1.DroverClusterFields{AccountRefs: []infrav1.LocalReference{{Name: a.Name}}},
	}}
}

// ControlPlane returns the AdoptedControlPlane for the existing API server.
func (a Adopted) ControlPlane() *controlplanev1.AdoptedControlPlane {
	return &controlplanev1.AdoptedControlPlane{ObjectMeta: a.meta(a.Name), Spec: controlplanev1.AdoptedControlPlaneSpec{
		KubeconfigRef: controlplanev1.KubeconfigReference{Name: a.kubeconfigSecret()},
	}}
}

// Cluster returns the Cluster, which refers to the other parts.
func (a Adopted) Cluster() *clusterv1.Cluster {
	return &clusterv1.Cluster{ObjectMeta: a.meta(a.Name), Spec: clusterv1.ClusterSpec{
		InfrastructureRef: clusterv1.ContractVersionedObjectReference{
			APIGroup: infrav1.GroupVersion.Group, Kind: "DroverCluster", Name: a.Name,
		},
		ControlPlaneRef: clusterv1.ContractVersionedObjectReference{
			APIGroup: controlplanev1.GroupVersion.Group, Kind: "AdoptedControlPlane", Name: a.Name,
		},
	}}
}
