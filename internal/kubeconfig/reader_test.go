// SPDX-License-Identifier: Apache-2.0

package kubeconfig

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	capikubeconfig "sigs.k8s.io/cluster-api/util/kubeconfig"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/drover-io/drover/internal/test/authority"
)

// Outcomes of a field of client-go's kubeconfig types.
const (
	carried = "carried" // its value is in the kubeconfig that libraries get
	refused = "refused" // the kubeconfig is refused
	dropped = "dropped" // it is not in the kubeconfig that libraries get
	chosen  = "chosen"  // the kubeconfig that libraries get has a value of its own
)

// outcomes has every field of the kubeconfig types. A field that a new client-go adds fails the
// test until its outcome is listed here.
var outcomes = map[reflect.Type]map[string]string{
	reflect.TypeFor[clientcmdapi.Config](): {
		"Preferences": dropped, "CurrentContext": chosen, "Extensions": dropped,
	},
	reflect.TypeFor[clientcmdapi.Context](): {
		"LocationOfOrigin": dropped, "Cluster": chosen, "AuthInfo": chosen, "Namespace": dropped, "Extensions": dropped,
	},
	reflect.TypeFor[clientcmdapi.Cluster](): {
		"LocationOfOrigin": dropped, "Server": carried, "TLSServerName": carried, "InsecureSkipTLSVerify": refused,
		"CertificateAuthority": refused, "CertificateAuthorityData": carried, "ProxyURL": refused, "DisableCompression": carried,
		"Extensions": dropped,
	},
	reflect.TypeFor[clientcmdapi.AuthInfo](): {
		"LocationOfOrigin": dropped, "ClientCertificate": refused, "ClientCertificateData": carried, "ClientKey": refused,
		"ClientKeyData": carried, "Token": carried, "TokenFile": refused, "Impersonate": refused, "ImpersonateUID": refused,
		"ImpersonateGroups": refused, "ImpersonateUserExtra": refused, "Username": refused, "Password": refused,
		"AuthProvider": refused, "Exec": refused, "Extensions": dropped,
	},
}

// TestEveryFieldIsDecided sets each field of client-go's types, and compares what a library gets.
func TestEveryFieldIsDecided(t *testing.T) {
	ca := authority.New(t)
	certificate, key := ca.Issue(t, time.Now().Add(time.Hour))
	values := map[string]any{
		"Server": "https://10.0.0.2:6443", "TLSServerName": "api.example.com", "CertificateAuthorityData": authority.New(t).PEM,
		"ClientCertificateData": certificate, "ClientKeyData": key,
	}
	parts := map[reflect.Type]func(*clientcmdapi.Config) reflect.Value{
		reflect.TypeFor[clientcmdapi.Config]():   func(c *clientcmdapi.Config) reflect.Value { return reflect.ValueOf(c) },
		reflect.TypeFor[clientcmdapi.Context]():  func(c *clientcmdapi.Config) reflect.Value { return reflect.ValueOf(only(t, c.Contexts)) },
		reflect.TypeFor[clientcmdapi.Cluster]():  func(c *clientcmdapi.Config) reflect.Value { return reflect.ValueOf(only(t, c.Clusters)) },
		reflect.TypeFor[clientcmdapi.AuthInfo](): func(c *clientcmdapi.Config) reflect.Value { return reflect.ValueOf(only(t, c.AuthInfos)) },
	}
	for of, part := range parts {
		for i := range of.NumField() {
			field := of.Field(i)
			if slices.Contains([]string{"Kind", "APIVersion", "Clusters", "AuthInfos", "Contexts"}, field.Name) {
				continue // the type's own name, and what holds the other types
			}
			t.Run(of.Name()+"/"+field.Name, func(t *testing.T) {
				data := write(t, ca, func(c *clientcmdapi.Config) {
					if strings.HasPrefix(field.Name, "ClientCertificateData") || field.Name == "ClientKeyData" {
						c.AuthInfos["u"].ClientCertificateData, c.AuthInfos["u"].ClientKeyData = certificate, key
					}
					if outcomes[of][field.Name] != chosen {
						fill(t, part(c).Elem().Field(i), values[field.Name])
					}
				})
				config, err := read(t, data)
				switch outcomes[of][field.Name] {
				case refused:
					if err == nil || strings.Contains(err.Error(), marked) {
						t.Fatalf("got %v, want a refusal without the value", err)
					}
				case carried:
					want := reflect.New(field.Type).Elem()
					fill(t, want, values[field.Name])
					if err != nil || !reflect.DeepEqual(part(config).Elem().Field(i).Interface(), want.Interface()) {
						t.Fatalf("the value is not carried: %v", err)
					}
				case dropped:
					if err != nil || !empty(part(config).Elem().Field(i)) {
						t.Fatalf("the value is not dropped: %v", err)
					}
				case chosen:
					if err != nil || part(config).Elem().Field(i).String() == part(mustLoad(t, data)).Elem().Field(i).String() {
						t.Fatalf("the kubeconfig has the tenant's value: %v", err)
					}
				default:
					t.Fatalf("client-go has a field %s.%s: decide whether it is carried, refused or dropped", of.Name(), field.Name)
				}
			})
		}
	}
}

// fill sets a field to value, or else to a value that contains the mark.
func fill(t *testing.T, field reflect.Value, value any) {
	t.Helper()
	switch {
	case value != nil:
		field.Set(reflect.ValueOf(value))
	case field.Type() == reflect.TypeFor[map[string]runtime.Object]():
		field.Set(reflect.ValueOf(map[string]runtime.Object{marked: &runtime.Unknown{Raw: []byte(`{"a":"b"}`),
			ContentType: runtime.ContentTypeJSON}}))
	case field.Type() == reflect.TypeFor[map[string][]string]():
		field.Set(reflect.ValueOf(map[string][]string{marked: {marked}}))
	case field.Type() == reflect.TypeFor[*clientcmdapi.ExecConfig]():
		field.Set(reflect.ValueOf(&clientcmdapi.ExecConfig{Command: marked, APIVersion: "client.authentication.k8s.io/v1"}))
	case field.Type() == reflect.TypeFor[*clientcmdapi.AuthProviderConfig]():
		field.Set(reflect.ValueOf(&clientcmdapi.AuthProviderConfig{Name: marked}))
	case field.Type() == reflect.TypeFor[clientcmdapi.Preferences]():
		field.Set(reflect.ValueOf(clientcmdapi.Preferences{Colors: true}))
	case field.Kind() == reflect.String:
		field.SetString(marked)
	case field.Kind() == reflect.Bool:
		field.SetBool(true)
	case field.Type() == reflect.TypeFor[[]string]():
		field.Set(reflect.ValueOf([]string{marked}))
	default:
		t.Fatalf("no value for a field of type %s", field.Type())
	}
}

// empty reports whether a field has no content. The decoder makes empty maps.
func empty(field reflect.Value) bool {
	return field.IsZero() || field.Kind() == reflect.Map && field.Len() == 0 ||
		field.Type() == reflect.TypeFor[clientcmdapi.Preferences]() && len(field.Interface().(clientcmdapi.Preferences).Extensions) == 0 &&
			!field.FieldByName("Colors").Bool()
}

func only[V any](t *testing.T, all map[string]V) V {
	t.Helper()
	for _, v := range all {
		if len(all) == 1 {
			return v
		}
	}
	t.Fatalf("%d entries, want one", len(all))
	panic("unreachable")
}

func mustLoad(t *testing.T, data []byte) *clientcmdapi.Config {
	t.Helper()
	config, err := clientcmd.Load(data)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

var cluster = client.ObjectKey{Namespace: "team-a", Name: "blue"}

func reader(t *testing.T, kubeconfig []byte) Reader {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name + "-kubeconfig",
			Annotations: map[string]string{"a": marked}},
		Type: clusterv1.ClusterSecretType,
		Data: map[string][]byte{"value": kubeconfig, "other": []byte(marked)},
	}
	other := secret.DeepCopy()
	other.Name = "blue-credentials"
	return Reader{
		Live:  fake.NewClientBuilder().WithScheme(scheme).WithObjects(secret, other).Build(),
		Write: func(cluster client.ObjectKey, config *Config) ([]byte, error) { return config.Serialize(cluster.Name) },
	}
}

// read returns the kubeconfig that Cluster API's own function gets through a Reader.
func read(t *testing.T, kubeconfig []byte) (*clientcmdapi.Config, error) {
	t.Helper()
	data, err := capikubeconfig.FromSecret(t.Context(), reader(t, kubeconfig), cluster)
	if err != nil {
		return nil, err
	}
	return mustLoad(t, data), nil
}

// TestReaderReadsNothingElse: a library gets kubeconfigs, and of their Secrets nothing but these.
func TestReaderReadsNothingElse(t *testing.T) {
	ctx, r := context.Background(), reader(t, write(t, authority.New(t), nil))
	got := &corev1.Secret{}
	if err := r.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: "blue-kubeconfig"}, got); err != nil {
		t.Fatal(err)
	}
	if len(got.Data) != 1 || len(got.Annotations) != 0 || got.Type != clusterv1.ClusterSecretType {
		t.Errorf("the Secret has more than its kubeconfig: %v, annotations %v", slices.Collect(maps.Keys(got.Data)), got.Annotations)
	}
	if err := r.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: "blue-credentials"}, got); err == nil {
		t.Error("another Secret was read")
	}
	if err := r.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: "blue-kubeconfig"}, &corev1.ConfigMap{}); err == nil {
		t.Error("an object of another kind was read")
	}
	if err := r.List(ctx, &corev1.SecretList{}); err == nil {
		t.Error("Secrets were listed")
	}
	if err := r.Get(ctx, client.ObjectKey{Namespace: "team-b", Name: "blue-kubeconfig"}, got); !apierrors.IsNotFound(err) {
		t.Errorf("a Secret that does not exist: %v, want NotFound, which Cluster API waits for", err)
	}
}
