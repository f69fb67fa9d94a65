// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"bytes"
	"encoding/base64"
	"encoding/pem"
	"io"
	"mime"
	"mime/multipart"
	"net/mail"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// nodeConfig returns the configuration that nodeadm, the bootstrap program of EKS images, finds in
// the user data of the flavor's machines. It parses the user data as nodeadm does: a multipart
// message, of which only the part with EKS's content type counts
// (nodeadm/internal/configprovider/userdata.go).
func nodeConfig(t *testing.T, flavor []byte) *unstructured.Unstructured {
	t.Helper()
	all := objects(t, flavor)
	md := only[clusterv1.MachineDeployment](t, all, "MachineDeployment")[0]
	secret := only[corev1.Secret](t, all, "Secret")[0]
	if name := md.Spec.Template.Spec.Bootstrap.DataSecretName; name == nil || *name != secret.Name {
		t.Fatalf("the machines read the Secret %v, there is %s", name, secret.Name)
	}
	message, err := mail.ReadMessage(bytes.NewReader([]byte(secret.StringData["value"])))
	if err != nil {
		t.Fatal(err)
	}
	kind, params, err := mime.ParseMediaType(message.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/mixed" {
		t.Fatalf("the user data is %s: %v", kind, err)
	}
	part, err := multipart.NewReader(message.Body, params["boundary"]).NextPart()
	if err != nil || part.Header.Get("Content-Type") != "application/node.eks.aws" {
		t.Fatalf("its part is %v: %v", part, err)
	}
	text, err := io.ReadAll(part)
	if err != nil {
		t.Fatal(err)
	}
	config := objects(t, text)[0]
	config.SetName("blue") // nodeadm needs no name, the API server does
	return config
}

// TestEKSUserData tests that the user data holds the API server's address and EKS's CA.
func TestEKSUserData(t *testing.T) {
	config := nodeConfig(t, newClusterctl(t).generate(t, "aws-eks", "blue", "team-a"))
	cluster, _, err := unstructured.NestedStringMap(config.Object, "spec", "cluster")
	if err != nil {
		t.Fatal(err)
	}
	ca, err := base64.StdEncoding.DecodeString(cluster["certificateAuthority"])
	if block, _ := pem.Decode(ca); err != nil || block == nil {
		t.Errorf("the CA became %q: %v", ca, err)
	}
	delete(cluster, "certificateAuthority")
	want := map[string]string{"name": "green", "apiServerEndpoint": "https://0A1B.gr7.eu-central-1.eks.amazonaws.com", "cidr": "10.100.0.0/16"}
	for key, value := range want {
		if cluster[key] != value {
			t.Errorf("%s is %q, want %q", key, cluster[key], value)
		}
		delete(cluster, key)
	}
	if len(cluster) > 0 || config.GetKind() != "NodeConfig" || config.GetAPIVersion() != "node.eks.aws/v1alpha1" {
		t.Errorf("it is a %s of %s, and also says %v", config.GetKind(), config.GetAPIVersion(), cluster)
	}
}
