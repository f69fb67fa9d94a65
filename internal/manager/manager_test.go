// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	controlplanev1 "github.com/drover-io/drover/api/controlplane/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/fleet"
	"github.com/drover-io/drover/cloud/registry"
	"github.com/drover-io/drover/controllers"
	"github.com/drover-io/drover/internal/options"
	"github.com/drover-io/drover/internal/test/authority"
)

// endpoints are the endpoints that the reconcilers dial. All hang except the healthy one, for which
// reached is the time it was reached.
type endpoints struct {
	end chan struct{} // net/http continues to dial after its caller has stopped waiting

	mu      sync.Mutex
	reached time.Time
}

func (e *endpoints) dial(ctx context.Context, _, address string) (net.Conn, error) {
	if strings.HasPrefix(address, "healthy") {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.reached.IsZero() {
			e.reached = time.Now()
		}
		return nil, errors.New("it answers at once")
	}
	select {
	case <-ctx.Done():
	case <-e.end:
	}
	return nil, errors.New("it never answered")
}

// waiter is a reconciler, and what tells which of its targets hang.
type waiter struct {
	reconcile.Reconciler
	hangs func(types.NamespacedName) bool
}

// TestHangingEndpointsHoldUpNobody: a healthy endpoint is reached within a second, although 30
// endpoints that hang were reconciled before it. Those are known to hang when their time is up.
func TestHangingEndpointsHoldUpNobody(t *testing.T) {
	ca := authority.New(t).PEM
	for flag, build := range map[string]func(client.Client, *endpoints) waiter{
		"droveraccount-concurrency": func(c client.Client, e *endpoints) waiter {
			clouds := registry.WithSimulated("")
			accounts := fleet.NewAccounts(fleet.Options{
				Clouds: clouds, Times: fleet.TimesFor(fleet.DefaultCall), Transport: fleet.NewTransport(e.dial),
			})
			return waiter{&controllers.DroverAccountReconciler{
				Client: c, APIReader: c, Clouds: clouds, Changed: &controllers.EventQueue{}, Machines: &controllers.EventQueue{}, ConnectOnly: true,
				Accounts: accounts,
			}, accounts.Hangs}
		},
		"adoptedcontrolplane-concurrency": func(c client.Client, e *endpoints) waiter {
			r := &controllers.AdoptedControlPlaneReconciler{
				Client: c, APIReader: c, ClusterCache: clustercache.NewFakeEmptyClusterCache(), Dial: e.dial,
			}
			return waiter{r, r.Hangs}
		},
	} {
		t.Run(flag, func(t *testing.T) {
			count, err := New("test", "").Flags().GetInt(flag)
			if err != nil {
				t.Fatal(err)
			}
			scheme, err := options.NewScheme()
			if err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				var objects []client.Object
				var requests []reconcile.Request
				for i := range 31 {
					name := fmt.Sprintf("hanging-%02d", i)
					if i == 30 {
						name = "healthy"
					}
					some := tenant(t, name, ca)
					objects = append(objects, some...)
					requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(some[0])})
				}
				c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
					WithStatusSubresource(&infrav1.DroverAccount{}, &controlplanev1.AdoptedControlPlane{}).Build()
				e := &endpoints{end: make(chan struct{})}
				waiter := build(c, e)
				options := fairWorkers(count, itself, waiter.hangs)
				options.Reconciler = waiter
				it, err := controller.NewUnmanaged(flag, options)
				if err != nil {
					t.Fatal(err)
				}
				err = it.Watch(source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
					for _, r := range requests {
						queue.Add(r)
					}
					return nil
				}))
				if err != nil {
					t.Fatal(err)
				}
				ctx, stop := context.WithCancel(t.Context())
				start := time.Now()
				var running sync.WaitGroup
				running.Go(func() { _ = it.Start(ctx) })
				time.Sleep(9 * time.Second) // on the bubble's clock; a control plane probe ends after 10 seconds, a call after 30
				e.mu.Lock()
				if e.reached.IsZero() || e.reached.Sub(start) > time.Second {
					t.Errorf("%d workers reached the healthy endpoint after %s, want within a second", count, e.reached.Sub(start))
				}
				e.mu.Unlock()
				time.Sleep(fleet.DefaultCall)
				for _, r := range requests {
					if hangs := waiter.hangs(r.NamespacedName); hangs != (r.Name != "healthy") {
						t.Errorf("%s hangs: %v", r.Name, hangs)
					}
				}
				stop()
				close(e.end)
				running.Wait()
			})
		})
	}
}

// tenant returns an account and an adopted control plane, each with an endpoint at a host of the
// given name, and the objects that they need.
func tenant(t *testing.T, name string, ca []byte) []client.Object {
	t.Helper()
	kubeconfig, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: "https://" + name + ".example.com:6443", CertificateAuthorityData: ca}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": {Token: "token"}},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "x",
	})
	if err != nil {
		t.Fatal(err)
	}
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "team", Name: name} }
	adopted := &controlplanev1.AdoptedControlPlane{ObjectMeta: meta(name)}
	adopted.OwnerReferences = []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: name, UID: "1"}}
	adopted.Spec.KubeconfigRef = controlplanev1.KubeconfigReference{Name: name, Key: "value"}
	labels := map[string]string{infrav1.CredentialsLabel: "simulated"}
	return []client.Object{
		adopted,
		&clusterv1.Cluster{ObjectMeta: meta(name)},
		&infrav1.DroverAccount{ObjectMeta: meta(name), Spec: infrav1.DroverAccountSpec{
			CredentialsRef: infrav1.LocalReference{Name: name},
			Cloud:          infrav1.AccountCloud{Simulated: &infrav1.SimulatedAccount{Region: "sim-1", Endpoint: "http://" + name + ".example.com"}},
		}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, Labels: labels},
			Data: map[string][]byte{"value": kubeconfig, "token": []byte("token")}},
	}
}
