// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
)

// secretReader holds Secrets of the namespace "tenant", and counts the reads.
type secretReader struct {
	client.Reader
	secrets map[string]map[string][]byte
	asked   int
}

func (r *secretReader) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	r.asked++
	data, ok := r.secrets[key.Name]
	if !ok || key.Namespace != "tenant" {
		return apierrors.NewNotFound(corev1.Resource("secrets"), key.Name)
	}
	*o.(*corev1.Secret) = corev1.Secret{Data: data}
	o.SetName(key.Name)
	if key.Name != "private" {
		o.SetLabels(map[string]string{bootstrapv1.MachineSecretLabel: ""})
	}
	return nil
}

func TestReadSecrets(t *testing.T) {
	g := NewWithT(t)
	r := &secretReader{secrets: map[string]map[string][]byte{"a": {"x": []byte("1"), "y": []byte("2"), "other": []byte("3")}, "b": {"z": nil},
		"private": {"x": nil}}}
	keys := []bootstrapv1.SecretKey{{Name: "a", Key: "x"}, {Name: "a", Key: "y"}, {Name: "b", Key: "z"}}
	got, err := readSecrets(t.Context(), r, "tenant", keys)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(got).To(Equal(map[bootstrapv1.SecretKey][]byte{keys[0]: []byte("1"), keys[1]: []byte("2"), keys[2]: nil}))
	g.Expect(r.asked).To(Equal(2), "each Secret is read once")

	var w *waiting
	for message, key := range map[string]bootstrapv1.SecretKey{
		`Waiting for the label drover.io/machine-data on Secret "private", which permits Drover to put the Secret onto machines`: {Name: "private", Key: "x"},
		`Waiting for Secret "c" to exist`:       {Name: "c", Key: "x"},
		`Waiting for the key "q" in Secret "a"`: {Name: "a", Key: "q"},
	} {
		_, err := readSecrets(t.Context(), r, "tenant", []bootstrapv1.SecretKey{key})
		g.Expect(errors.As(err, &w)).To(BeTrue())
		g.Expect(w.reason).To(Equal(bootstrapv1.WaitingForSecretReason))
		g.Expect(w.message).To(Equal(message))
		g.Expect(w.after).NotTo(BeZero(), "no watch reports it")
	}
	_, err = readSecrets(t.Context(), r, "elsewhere", keys)
	g.Expect(errors.As(err, &w)).To(BeTrue())
}

func TestServerVersion(t *testing.T) {
	g := NewWithT(t)
	answer := `{"major":"1","minor":"36","gitVersion":"v1.36.3"}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != "/version" {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = w.Write([]byte(answer))
	}))
	defer server.Close()
	version, err := serverVersion(t.Context(), &rest.Config{Host: server.URL})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(version).To(Equal("v1.36.3"))
	answer = "<html>"
	_, err = serverVersion(t.Context(), &rest.Config{Host: server.URL})
	g.Expect(err).To(HaveOccurred())
}
